"""A client whose server is an application in this process: the same answers and errors, and no socket."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from anytime.model.model import Model
from anytime_service.api.openapi import AnytimeAPI
from anytime_service.app import create_app
from anytime_service.client import (
    AsyncClient,
    Client,
    ClientError,
    ClosedError,
    ConnectionLostError,
    NoAnswerError,
    ProblemError,
)
from anytime_service.keys import read_keys
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import Settings
from service.serving import VALUES, expected, small_model


@pytest.fixture(scope="module")
def model() -> Model:
    return small_model()


@pytest.fixture
def app(model: Model) -> AnytimeAPI:
    return create_app(ModelRegistry.of([model]), Settings())


@pytest.fixture
def client(app: AnytimeAPI) -> Iterator[Client]:
    with Client(transport=app) as client:
        yield client


def _values(name: str, _: object) -> Any:
    return VALUES[name]


def test_it_answers_as_a_server_does(client: Client, model: Model) -> None:
    answer = client.predict(VALUES)
    wanted = expected(model, VALUES)
    assert (answer.prediction, answer.groups, answer.prefix) == (wanted["prediction"], tuple(VALUES), 3)
    answer = client.run({name: partial(_values, name) for name in VALUES}, None, 30_000)
    assert (answer.groups, answer.reason) == (tuple(VALUES), "complete")
    assert [card.name for card in client.models()] == [model.name]
    assert [step.group for step in client.plan(have=["speed"]).steps] == ["hog", "lab"]


def test_a_session_stays_open(client: Client) -> None:
    with client.session() as session:
        session.add("speed", VALUES["speed"])
        assert session.predict().groups == ("speed",)
        session.add("hog", VALUES["hog"])
        assert session.predict().groups == ("speed", "hog")


def test_an_error_is_that_of_the_server(client: Client) -> None:
    with pytest.raises(ProblemError, match="there is no group 'hg'"):
        client.predict({"hg": [1.0]})
    assert client.predict(VALUES).complete, "the connection is still open"


def test_a_deadline_ends_the_wait(client: Client) -> None:
    client.warm_up()
    assert client.predict({"speed": VALUES["speed"]}, deadline_ms=20).groups in ((), ("speed",))


@pytest.mark.parametrize("key", [None, "wrong", "right"])
def test_keys_are_checked(model: Model, key: str | None) -> None:
    app = create_app(ModelRegistry.of([model]), Settings(api_keys=read_keys("right")))
    with Client(transport=app, api_key=key) as client:
        if key == "right":
            assert client.predict(VALUES).complete
            assert client.models()
            return
        for call in (lambda: client.predict(VALUES), client.models):
            with pytest.raises(ProblemError) as raised:
                call()
            assert raised.value.status == 401


def test_two_event_loops_have_a_client_each(app: AnytimeAPI) -> None:
    async def predicted() -> Any:
        async with AsyncClient(transport=app) as client:
            return (await client.predict(VALUES)).prediction

    assert asyncio.run(predicted()) == asyncio.run(predicted())


def test_an_application_that_fails_or_speaks_something_else_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(*_: object) -> None:
        raise RuntimeError("no such thing")

    async def silent(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    async def closing(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "websocket.close", "code": 1000})

    with caplog.at_level(logging.CRITICAL):
        for app, why in ((failing, "no such thing"), (silent, "does not speak"), (closing, "HTTP status 403")):
            with Client(transport=app) as client, pytest.raises(ConnectionLostError, match=why):
                client.predict(VALUES)


def test_a_request_to_an_application_that_fails_or_hangs_is_an_error() -> None:
    async def failing(*_: object) -> None:
        raise RuntimeError("no such thing")

    async def silent(*_: object) -> None:
        """Send no reply."""

    async def hanging(*_: object) -> None:
        await asyncio.Event().wait()

    async def dripping(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        while True:
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
            await asyncio.sleep(0.01)

    for app, error, why in (
        (failing, ProblemError, r"Internal Server Error \(500\)"),
        (silent, ConnectionLostError, "GET /models at http://localhost broke"),
        (hanging, NoAnswerError, "did not reply within 0.1 s to GET /models"),
        (dripping, NoAnswerError, "did not reply within 0.1 s to GET /models"),
    ):
        with Client(transport=app, timeout_s=0.1) as client, pytest.raises(error, match=why):
            client.models()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_application_that_ends_the_loop_ends_every_call(model: Model) -> None:
    """SystemExit in a task ends its event loop, for which the callers wait."""
    waiting = threading.Event()

    async def leaving(scope: Any, _receive: Any, _send: Any) -> None:
        if scope["path"] == "/models":
            waiting.set()
            await asyncio.Event().wait()
        sys.exit(3)

    client = Client(transport=leaving)
    errors: list[Exception] = []

    def call() -> None:
        try:
            client.models()
        except ClientError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert waiting.wait(60)
    with pytest.raises(ClosedError):
        client.predict(VALUES)
    thread.join(60)
    assert [type(error) for error in errors] == [ClosedError]
    with pytest.raises(ClosedError, match="create a new one"):
        client.models()
    client.close()


def test_ssl_and_an_application_are_an_error() -> None:
    from ssl import create_default_context  # noqa: PLC0415

    with pytest.raises(ClientError, match="omit ssl, or transport"):
        Client("https://localhost", transport=lambda *_: None, ssl=create_default_context())  # type: ignore[arg-type]
