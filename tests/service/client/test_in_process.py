"""A client whose server is an application in this process: the same answers and errors, and no socket."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from anytime.model.model import Model
from anytime_service.api.openapi import AnytimeAPI
from anytime_service.client import (
    AsyncClient,
    Client,
    ClientError,
    ClosedError,
    ConnectionLostError,
    NoAnswerError,
    ProblemError,
)
from service.doors import PREDICTING, WRONG, keyed_app
from service.serving import EXTRACTORS, VALUES, expected


@pytest.fixture
def client(app: AnytimeAPI) -> Iterator[Client]:
    with Client(transport=app) as client:
        yield client


def test_it_answers_as_a_server_does(client: Client, model: Model) -> None:
    prediction = expected(model, VALUES)["prediction"]
    for answer in (client.predict(VALUES), client.run(EXTRACTORS, VALUES, 30_000)):
        assert (answer.prediction, answer.groups, answer.reason) == (prediction, tuple(VALUES), "complete")
    assert [card.name for card in client.models()] == [model.name]
    assert [step.group for step in client.plan(have=["speed"]).steps] == ["hog", "lab"]
    with client.session() as session:
        session.add("speed", VALUES["speed"])
        assert session.predict().groups == ("speed",)
    with pytest.raises(ProblemError, match="there is no group 'hg'"):
        client.predict({"hg": [1.0]})
    assert client.predict({"speed": VALUES["speed"]}, deadline_ms=20).groups in ((), ("speed",)), "still connected"


def test_two_event_loops_have_a_client_each(app: AnytimeAPI) -> None:
    async def predicted() -> Any:
        async with AsyncClient(transport=app) as client:
            return (await client.predict(VALUES)).prediction

    assert asyncio.run(predicted()) == asyncio.run(predicted())


async def failing(*_: object) -> None:
    raise RuntimeError("no such thing")


async def accepting(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})


async def closing(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "websocket.close", "code": 1000})


async def silent(*_: object) -> None:
    """Send no reply."""


async def hanging(*_: object) -> None:
    await asyncio.Event().wait()


async def dripping(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})
    while True:
        await send({"type": "http.response.body", "body": b" ", "more_body": True})
        await asyncio.sleep(0.01)


def predict(client: Client) -> object:
    return client.predict(VALUES)


@pytest.mark.parametrize(
    ("app", "call", "error", "why"),
    [
        (failing, predict, ConnectionLostError, "cannot connect to http://localhost: .*no such thing"),
        (accepting, predict, ConnectionLostError, "does not speak"),
        (closing, predict, ConnectionLostError, "HTTP status 403"),
        (failing, Client.models, ProblemError, r"Internal Server Error \(500\)"),
        (silent, Client.models, ConnectionLostError, "GET /models at http://localhost broke"),
        (hanging, Client.models, NoAnswerError, "did not reply within 0.1 s to GET /models"),
        (dripping, Client.models, NoAnswerError, "did not reply within 0.1 s to GET /models"),
    ],
)
def test_an_application_that_fails_hangs_or_speaks_something_else_is_an_error(
    app: Any, call: Callable[[Client], object], error: type[ClientError], why: str
) -> None:
    timeout_s = 0.1 if error is NoAnswerError else 60.0
    with Client(transport=app, timeout_s=timeout_s) as client, pytest.raises(error, match=why):
        call(client)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_application_that_ends_the_loop_ends_every_call() -> None:
    """SystemExit in a task ends its event loop, for which the callers wait."""
    waiting = threading.Event()

    async def leaving(scope: Any, _receive: Any, _send: Any) -> None:
        if scope["path"] == "/models":
            waiting.set()
            await asyncio.Event().wait()
        sys.exit(3)

    with ThreadPoolExecutor() as threads, Client(transport=leaving) as client:
        other = threads.submit(client.models)
        assert waiting.wait(60)
        for call in (lambda: client.predict(VALUES), partial(other.result, 60), client.models):
            with pytest.raises(ClosedError, match="create a new one"):
                call()


@pytest.mark.parametrize("key", [None, WRONG, PREDICTING])
@pytest.mark.parametrize("call", [predict, Client.models])
def test_keys_are_checked(key: str | None, call: Callable[[Client], object]) -> None:
    app, _ = keyed_app()
    refused = nullcontext() if key == PREDICTING else pytest.raises(ProblemError, match=r"\(401\)")
    with Client(transport=app, api_key=key) as client, refused:
        assert call(client)
