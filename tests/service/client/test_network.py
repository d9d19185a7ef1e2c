"""The clients on a slow network, on a network that breaks, and with servers of other protocols."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler
from itertools import islice
from threading import Event
from time import perf_counter
from types import SimpleNamespace
from typing import Any, get_args
from unittest.mock import AsyncMock

import msgspec
import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, ConnectionClosedError
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime.types import Overload
from anytime_service.app import create_app
from anytime_service.client import (
    AsyncClient,
    Client,
    ClientError,
    ConnectionLostError,
    NoAnswerError,
    ProblemError,
    ReplyError,
    engine,
    running as running_calls,
)
from anytime_service.client.client import Portal
from anytime_service.client.engine import MAX_UNSENT_BYTES, Connection
from anytime_service.client.transport import Lifetime, Network as Way
from anytime_service.core.service import PredictionService
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.catalogue import summary
from anytime_service.settings import Settings
from service.certificates import Certificate
from service.client.test_client import LONG_MS, but
from service.serving import BASE_RATE, EXTRACTORS, VALUES, Running, changed, running, small_model, trained_model
from system import http_server
from waiting import WAIT_S, until, until_async

SHORT_MS = 200.0
PATIENT_MS = 1_500.0
"""Within this the groups at hand are sent and their updates arrive, on a busy machine too."""

SECOND_UPDATE = msgspec.msgpack.encode("prefix") + b"\x02"
"""Bytes of the update of two steps."""


def portal() -> Portal:
    """Return an event loop in a thread, for a proxy between a client and a server, or a fake server."""
    return Portal(Lifetime(), AsyncMock())


class Network:
    """A proxy in front of a server that can be slow, cut its connections, and be closed.

    It delays the bytes of the server by `delay_s`. While `stalled`, it reads nothing from clients. `delivered` is
    what they received. It cuts the next `broken` connections at their first bytes.
    """

    def __init__(self, port: int) -> None:
        self.to = port
        self.delay_s = 0.0
        self.stalled = False
        self.broken = 0
        self.delivered = b""
        self.loop = portal()
        self.writers: set[asyncio.StreamWriter] = set()
        self.connections = 0
        self.server: asyncio.Server | None = None
        self.port = 0
        self.open()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        self.server = self.loop.call(asyncio.start_server, self._accept, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    def shut(self) -> None:
        """Cut the connections, and accept no more."""
        self.loop.call(self._cut, self.server)

    def cut(self) -> None:
        self.loop.call(self._cut)

    def close(self) -> None:
        self.shut()
        self.loop.close()

    async def _cut(self, server: asyncio.Server | None = None) -> None:
        if server is not None:
            server.close()
        for writer in tuple(self.writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.broken:
            self.broken -= 1
            await reader.read(1)
            writer.transport.abort()
            return
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.to)
        ends = {writer, there_writer}
        self.writers |= ends
        try:
            await asyncio.gather(self._up(reader, there_writer, writer), self._down(there_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self.writers -= ends
            for end in ends:
                end.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter) -> None:
        while content := await reader.read(65536):
            if content.startswith(b"CONNECT "):  # it is a proxy of HTTP too
                back.write(b"HTTP/1.1 200 OK\r\n\r\n")
                continue
            while self.stalled:
                await asyncio.sleep(0.01)
            writer.write(content)
        writer.transport.abort()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                at, content = await queue.get()
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                writer.write(content)
                self.delivered += content

        delivering = asyncio.create_task(deliver())
        try:
            while content := await reader.read(65536):
                queue.put_nowait((time.monotonic() + self.delay_s, content))
        finally:
            delivering.cancel()
            writer.transport.abort()


@pytest.fixture
def network(server: Running) -> Iterator[Network]:
    network = Network(server.port)
    yield network
    network.close()


@pytest.fixture
def client(network: Network) -> Iterator[Client]:
    """A client that is connected, and knows the extractors of most tests."""
    with Client(network.url) as client:
        client.warm_up(EXTRACTORS)
        yield client


def pausing(group: str, act: Callable[[], Any]) -> Callable[[Any], Any]:
    """Return an extractor that calls something, then returns its group."""
    return lambda x: (act(), x[group])[1]


# a slow network


def test_with_a_network_slower_than_the_deadline_the_last_update_is_the_answer(
    client: Client, network: Network
) -> None:
    def then_slow() -> None:
        until(lambda: SECOND_UPDATE in network.delivered)
        network.delay_s = 5.0
        time.sleep(0.01)

    extractors = but(lab=pausing("lab", then_slow))
    client.warm_up(extractors)
    network.delivered = b""
    answer = client.run(extractors, VALUES, PATIENT_MS)
    assert answer.note == "no answer arrived before the deadline; this is the last update received"
    assert (answer.groups, answer.prefix, answer.missing) == (("speed", "hog"), 2, ("lab",))
    assert (answer.reason, answer.complete) == ("deadline", False)
    assert client.lateness.count == 1


def test_without_an_update_the_base_rate_is_the_answer(client: Client, network: Network) -> None:
    network.delay_s = 5.0
    for answer, rows in (
        (client.run(EXTRACTORS, VALUES, SHORT_MS), 1),
        (client.predict(VALUES, deadline_ms=SHORT_MS), 1),
        (client.predict({"speed": np.zeros((3, 1))}, deadline_ms=SHORT_MS, budget=1, ranking=True), 3),
    ):
        assert answer.note == "no answer arrived before the deadline; this is the base rate, since no update arrived"
        assert answer.prediction == (BASE_RATE if rows == 1 else [BASE_RATE] * rows)
        assert (answer.reason, answer.prefix, answer.complete) == ("deadline", 0, False)
    assert (answer.budget, answer.missing, answer.ranking) == (1, ("speed",), [0, 1, 2])


def test_an_answer_that_arrives_too_late_is_dropped_without_side_effects(client: Client, network: Network) -> None:
    network.delay_s = 0.6
    delivered = len(network.delivered)
    assert client.predict(VALUES, deadline_ms=50).note is not None
    network.delay_s = 0.0
    until(lambda: len(network.delivered) > delivered)
    answer = client.predict({**VALUES, "speed": [77.0]}, deadline_ms=LONG_MS)
    assert answer.note is None
    assert answer.prediction != client.predict(VALUES).prediction


def test_without_a_deadline_the_client_waits_for_its_own_timeout(network: Network) -> None:
    with Client(network.url, timeout_s=2.0) as client:
        assert client.predict(VALUES).complete
        network.delay_s = 3_600.0
        with ThreadPoolExecutor(1) as threads:
            listed = threads.submit(client.models)
            with pytest.raises(NoAnswerError, match=r"did not answer within 2 s") as late:
                client.predict(VALUES)
            with pytest.raises(NoAnswerError, match="did not reply within"):
                listed.result()
        assert isinstance(late.value, TimeoutError)


def test_a_connection_that_takes_longer_than_the_deadline_gives_the_base_rate(client: Client, network: Network) -> None:
    network.delay_s = 5.0
    before = network.connections
    network.cut()
    until(lambda: network.connections > before, "the client connects again in the background")
    answer = client.run(EXTRACTORS, VALUES, SHORT_MS)
    assert answer.note == "no connection was open before the deadline; this is the base rate, since no update arrived"
    assert answer.prefix == 0


def test_groups_that_did_not_reach_the_server_in_time_are_listed(client: Client, network: Network) -> None:
    assert client.run(EXTRACTORS, VALUES, LONG_MS).unused_groups == ()
    network.stalled = True
    answer = client.run(EXTRACTORS, VALUES, SHORT_MS)
    network.stalled = False
    assert (answer.groups, answer.late_groups, answer.unused_groups) == ((), (), ("speed", "hog", "lab"))


def test_unsent_bytes_are_bounded_on_a_stalled_network(client: Client, network: Network) -> None:
    network.stalled = True
    groups = {name: np.zeros((10_000, len(values))) for name, values in VALUES.items()}
    notes = iter(lambda: str(client.predict(groups, deadline_ms=1).note), "")
    tries = 10 * MAX_UNSENT_BYTES // sum(each.nbytes for each in groups.values())
    assert any("the network is too slow" in note for note in islice(notes, tries)), "the connection is given up"
    network.stalled = False
    assert client.predict(VALUES, deadline_ms=LONG_MS).complete


# a network that breaks


def test_a_run_whose_connection_breaks_restarts_on_a_new_connection(client: Client, network: Network) -> None:
    extractors = but(lab=pausing("lab", network.cut))
    client.warm_up(extractors)
    answer = client.run(extractors, VALUES, LONG_MS)
    assert (answer.complete, answer.note, answer.groups) == (True, None, ("speed", "hog", "lab"))


def test_a_run_that_cannot_reconnect_falls_back_to_the_last_update(client: Client, network: Network) -> None:
    def break_off() -> None:
        until(lambda: SECOND_UPDATE in network.delivered)
        network.shut()

    extractors = but(lab=pausing("lab", break_off))
    client.warm_up(extractors)
    network.delivered = b""
    answer = client.run(extractors, VALUES, LONG_MS)
    broke = "the connection broke: the connection to the server broke.*this is the last update received$"
    assert re.match(broke, str(answer.note))
    assert (answer.groups, answer.reason) == (("speed", "hog"), "deadline")


@pytest.mark.parametrize("overload", get_args(Overload))
@pytest.mark.parametrize("breaks", [True, False])
def test_a_restarted_run_that_is_refused_falls_back_to_the_last_update(
    breaks: bool, overload: Overload, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(port=0)
    app = create_app(ModelRegistry.of([trained_model()]), settings)
    with running(app, settings) as service, closing(Network(service.port)) as network, Client(network.url) as client:
        last = client.model().order()[-1]

        def updated() -> bool:
            calls = list(client._async._connection._open.values())
            return any(each.update is not None and each.update.prefix == 2 for each in calls)

        def lose() -> None:
            until(updated)
            monkeypatch.setattr(app.state.service.admission, "admits", lambda _: False)
            if not breaks:
                raise RuntimeError("out of order")
            network.cut()

        extractors = but(**{last: pausing(last, lose)})
        client.warm_up(extractors)
        answer = client.run(extractors, VALUES, LONG_MS, overload=overload)
        refused = "the server refused: the server has more requests.*this is the last update received$"
        assert re.search(refused, str(answer.note))
        assert (answer.prefix, answer.missing, answer.reason) == (2, (last,), "overload")


def test_an_interrupted_prediction_is_sent_again(client: Client, network: Network) -> None:
    network.delay_s = 0.3
    cutting = threading.Timer(0.1, network.cut)
    cutting.start()
    assert client.predict(VALUES).complete
    cutting.join()


@pytest.mark.parametrize(("broken", "is_reachable"), [(1, True), (2, False)])
def test_one_connection_that_breaks_in_its_handshake_does_not_make_a_server_unreachable(
    network: Network, broken: int, *, is_reachable: bool
) -> None:
    network.broken = broken
    lost = nullcontext() if is_reachable else pytest.raises(ConnectionLostError, match="cannot connect")
    with Client(network.url) as client, lost:
        assert client.run(EXTRACTORS, VALUES, LONG_MS).complete


def test_the_next_call_reconnects_to_a_server_that_is_back(client: Client, network: Network) -> None:
    network.shut()
    for _ in range(5):
        with pytest.raises(ConnectionLostError):
            client.predict(VALUES)
    with pytest.raises(ConnectionLostError, match="cannot connect"):
        client.run(EXTRACTORS, VALUES, 5)  # the deadline is shorter than the pause
    network.open()
    assert client.predict(VALUES).complete  # waits through the pause between two attempts
    assert client.run(EXTRACTORS, VALUES, LONG_MS).complete


async def test_a_hundred_calls_share_one_attempt_to_connect(network: Network) -> None:
    async with AsyncClient(network.url) as client:
        await asyncio.gather(*(client.predict(VALUES) for _ in range(100)))
    assert network.connections == 1


def test_a_session_survives_a_broken_connection(client: Client, network: Network) -> None:
    with client.session() as session:
        session.add("speed", [2.0])
        network.cut()
        assert session.predict().groups == ("speed",)
        network.shut()
    assert session.id is None


def test_a_reloaded_model_is_requested_again(model: Model) -> None:
    settings = Settings(port=0)
    app = create_app(ModelRegistry.of([model]), settings)
    with running(app, settings) as service, Client(service.url) as client:
        client.run(EXTRACTORS, VALUES, LONG_MS)
        shorter = changed(model, version="v2", steps=model.manifest.steps[:1])
        app.state.service.registry = ModelRegistry.of([shorter])
        answer = client.run(but(hog=pausing("hog", lambda: time.sleep(0.05))), VALUES, LONG_MS)
        assert (answer.version, answer.steps) == ("v2", 1)
        until(lambda: client._async._known.models[None].description.version == "v2")


# other servers


OURS = (Subprotocol("anytime.v1"),)

DESCRIPTION = summary(small_model(), ("v1",)).model_dump(mode="json") | {"version": "v1", "news": {}}
for _part in (*DESCRIPTION["steps"], *DESCRIPTION["groups"], DESCRIPTION["guarantee"]):
    _part["news"] = []


def describe(connection: ServerConnection, request: Request) -> Response | None:
    """Return the reply of a fake server over HTTP: every path except the stream's describes a model."""
    return None if request.path == "/stream" else connection.respond(200, json.dumps(DESCRIPTION))


@contextmanager
def fake(
    handle: Callable[[ServerConnection], Any],
    http: Callable[[ServerConnection, Request], Response | None] = describe,
    subprotocols: tuple[Subprotocol, ...] | None = OURS,
) -> Iterator[str]:
    """Run a WebSocket server with the behaviour `handle`, and return its address."""

    async def quietly(socket: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            await handle(socket)

    async def start() -> Any:
        options: dict[str, Any] = {"process_request": http, "subprotocols": subprotocols, "close_timeout": 0.5}
        return await serve(quietly, "127.0.0.1", 0, **options)

    async def stop(server: Any) -> None:
        server.close()
        await server.wait_closed()

    with closing(portal()) as loop:
        server = loop.call(start)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            loop.call(stop, server)


def reply(kind: str, name: Any, **changed: Any) -> bytes:
    fields = {**msgspec.to_builtins(Prediction(small_model()).answer()), "reason": "deadline", **changed}
    return msgspec.msgpack.encode({"type": kind, "id": name, **fields})


async def frames(socket: ServerConnection) -> Any:
    async for message in socket:
        assert isinstance(message, bytes)
        yield msgspec.msgpack.decode(message)


def replying(*messages: Any) -> Callable[[ServerConnection], Any]:
    """Return a server that sends these messages after each begin, or what functions make of it."""

    async def handle(socket: ServerConnection) -> None:
        async for frame in frames(socket):
            for message in messages if frame["type"] == "begin" else ():
                await socket.send(message(frame) if callable(message) else message)

    return handle


def answer_to(frame: Mapping[str, Any]) -> bytes:
    return reply("answer", frame["id"])


answering = replying(answer_to)


def test_unknown_messages_fields_and_values_of_a_newer_server_are_accepted() -> None:
    newer = replying(
        msgspec.msgpack.encode({"type": "weather", "sky": "blue"}),
        lambda frame: reply("update", frame["id"], reason="half", mood="good"),
        lambda frame: json.dumps(  # replies may be JSON
            msgspec.msgpack.decode(reply("answer", frame["id"], reason="eclipse", mood="good", policy="wise"))
        ),
    )
    with fake(newer) as url, Client(url) as client:
        answer, described = client.predict(VALUES), client.model("brake")
        assert (answer.reason, answer.policy, hasattr(answer, "mood")) == ("eclipse", "wise", False)
        assert (described.order(), hasattr(described, "news")) == (("speed", "hog", "lab"), False)


def test_a_base_rate_of_another_version_than_the_description_is_requested_again_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running_calls, "REFRESH_S", 0.2)
    learned: list[int] = []

    def loaded_anew(frame: Mapping[str, Any]) -> bytes:
        version = "v1" if learned else "v0"  # the first is the last answer of a version that is replaced
        if frame.get("deadline_ms") == 0.0:
            learned.append(frame["id"])
        return reply("answer", frame["id"], version=version, prediction=float(version == "v1"))

    def base_rate(client: Client) -> Any:
        return client.predict({}, deadline_ms=0).prediction

    with fake(replying(loaded_anew)) as url, Client(url) as client:
        assert base_rate(client) == 0.0
        assert client.predict({}, deadline_ms=LONG_MS).version == "v1"
        until(lambda: base_rate(client) == 1.0)
        begun = time.monotonic()
        while time.monotonic() < begun + 0.3:  # after which another request would be permitted
            client.predict({}, deadline_ms=LONG_MS)
        assert len(learned) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"\xc1",
        b"\x01",
        "nonsense",
        b"\x80",
        reply("answer", 0)[:-3],
        msgspec.msgpack.encode({"type": "answer", "id": 0}),
    ],
)
def test_invalid_replies_end_the_connection_with_an_error(content: bytes | str) -> None:
    lost = pytest.raises(ConnectionLostError, match="the server sent")
    with fake(replying(content)) as url, Client(url) as client, lost:
        client.predict(VALUES)


def test_answers_for_unknown_ids_are_ignored_and_errors_without_an_id_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problem = {"title": "odd", "detail": "no such thing", "status": 400}
    confused = replying(
        *(reply("answer", name) for name in (999, "who", None, [1], {"a": 1}, True)),
        msgspec.msgpack.encode({"type": "error", "id": None, "problem": problem}),
        answer_to,
    )
    with fake(confused) as url, Client(url) as client, caplog.at_level(logging.WARNING, "anytime.client"):
        assert client.predict(VALUES).prediction == BASE_RATE
    assert "no such thing" in caplog.text


def test_the_refusal_of_a_group_that_was_never_sent_is_that_of_the_prediction() -> None:
    problem = {"title": "Invalid value", "detail": "an odd group", "status": 422, "field": "groups.other"}

    def refusing(frame: Mapping[str, Any]) -> bytes:
        if frame.get("overload") == "prior":  # by which the client learns the base rate
            return answer_to(frame)
        return msgspec.msgpack.encode({"type": "error", "id": frame["id"], "problem": problem})

    refused = pytest.raises(ProblemError, match="an odd group")
    with fake(replying(refusing)) as url, Client(url) as client, refused:
        client.run(EXTRACTORS, VALUES, LONG_MS)


def test_the_number_of_abandoned_predictions_is_bounded() -> None:
    async def silent(socket: ServerConnection) -> None:
        async for frame in frames(socket):
            if frame.get("overload") == "prior":  # by which the client learns the base rate
                await socket.send(reply("answer", frame["id"]))

    with fake(silent) as url, Client(url) as client:
        for _ in range(300):
            assert client.predict({}, deadline_ms=0.05).note is not None
        assert not client._async._connection._open
        assert len(client._async._connection._abandoned) <= 256


async def test_the_client_rejects_too_many_predictions_at_once() -> None:
    with fake(replying()) as url:
        async with AsyncClient(url, timeout_s=1.0) as client:
            outcomes = await asyncio.gather(*(client.predict({}) for _ in range(1100)), return_exceptions=True)
    assert sum("1024 predictions are open" in str(outcome) for outcome in outcomes) == 1100 - 1024
    assert all(isinstance(outcome, ClientError) for outcome in outcomes)


def test_a_server_of_another_protocol_is_rejected(server: Running) -> None:
    async def other(socket: ServerConnection) -> None:
        await socket.wait_closed()

    not_ours = pytest.raises(ConnectionLostError, match=r"does not speak anytime\.v1")
    with fake(other, subprotocols=None) as url, Client(url) as client, not_ours:
        client.predict(VALUES)
    with Client(f"{server.url}/elsewhere") as client:
        with pytest.raises(ProblemError, match="no WebSocket at this path"):
            client.predict(VALUES)
        with pytest.raises(ProblemError) as nothing:
            client.models()
        assert nothing.value.status == 404


def problem_reply(connection: ServerConnection, status: int, detail: str, **headers: str) -> Response:
    """Return a response with problem details."""
    problem = {"type": "about:blank", "title": "Refused", "status": status, "detail": detail}
    response = connection.respond(status, json.dumps(problem))
    del response.headers["Content-Type"]
    response.headers.update({"Content-Type": "application/problem+json"} | headers)
    return response


def test_a_refused_handshake_raises_its_problem_and_an_invalid_description_is_an_error() -> None:
    def refuse(connection: ServerConnection, request: Request) -> Response:
        if request.path == "/models/brake":
            return connection.respond(200, "[]")
        return problem_reply(connection, 401, "this key is not known", **{"Retry-After": "7"})

    with fake(answering, refuse) as url, Client(url, api_key="wrong") as client:
        with pytest.raises(ProblemError, match="this key is not known") as refused:
            client.predict(VALUES)
        assert (refused.value.status, refused.value.retry_after_s) == (401, 7.0)
        with pytest.raises(ProblemError, match="this key is not known"):
            client.models()
        with pytest.raises(ReplyError, match="not a valid reply"):
            client.model("brake")


# How the client connects: redirects, addresses of a name, and lost connections.


CALLS: dict[str, Callable[[Client], Any]] = {
    "websocket": lambda client: client.predict({"speed": [1.0]}),
    "with a deadline": lambda client: client.predict({"speed": [1.0]}, deadline_ms=60_000),
    "get": lambda client: client.models(),
    "query": lambda client: client.plan("brake", budget=3),
    "post": lambda client: client.session().open(),
}
"""Requests of every kind that the client sends; without a deadline in sight."""


class Replying(BaseHTTPRequestHandler):
    """Reply to each request by its path, and note it."""

    protocol_version = "HTTP/1.1"
    heads: list[str]
    respond: Callable[[str], tuple[int, str]]

    def do_GET(self) -> None:
        self.heads.append(str(self.headers))
        status, location = type(self).respond(self.path)
        self.send_response(status)
        self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""


# redirects


@pytest.mark.parametrize(
    ("location", "there", "status"),
    [
        *(("https://any.example:8443{path}", "https://any.example:8443", code) for code in (301, 302, 303, 307, 308)),
        ("http://localhost:{other}{path}", "http://localhost:{other}", 307),  # another host
        ("http://127.0.0.1:{other}{path}", "http://127.0.0.1:{other}", 301),  # another port
        ("http://127.0.0.1:{port}/root{path}", "http://127.0.0.1:{port}/root", 308),  # another path
        ("/login?next=%2Fstream", "http://127.0.0.1:{port}/login", 302),
        ("https://user:secret@anytime.example{path}", "https://anytime.example", 307),
    ],
)
def test_every_request_says_where_the_address_redirects_and_no_key_goes_there(
    location: str, there: str, status: int
) -> None:
    def redirect(path: str) -> tuple[int, str]:
        return status, location.format(other=other, port=port, path=path)

    here, elsewhere = list[str](), list[str]()
    with (
        http_server(Replying, heads=elsewhere, respond=lambda _: (200, "")) as other,
        http_server(Replying, heads=here, respond=redirect) as port,
        Client(f"http://127.0.0.1:{port}", api_key="sesame") as client,
    ):
        said = f"redirects to {re.escape(there.format(other=other, port=port))} [(]{status}[)]; expected the address"
        for call in CALLS.values():
            before = len(here)
            with pytest.raises(ReplyError, match=said):
                call(client)
            assert len(here) == before + 1
        assert elsewhere == []
        assert all("Bearer sesame" in head for head in here)


# addresses of a name


@contextmanager
def hole(address: str, port: int) -> Iterator[None]:
    """An address that does not answer: a socket whose queue is full, so that the system drops further connections."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listening, ExitStack() as waiting:
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((address, port))
        listening.listen(0)
        for _ in range(6):
            one = waiting.enter_context(socket.socket(family))
            one.setblocking(False)
            one.connect_ex((address, port))
        yield


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that gives the name `localhost` some addresses.

    Clients run on a loop of asyncio: uvicorn 0.32 makes uvloop the default, which does not use this module.
    """
    real = socket.getaddrinfo
    own = SimpleNamespace(**vars(asyncio))

    def run(main: Any) -> Any:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            return runner.run(main)

    own.run = run
    monkeypatch.setattr("anytime_service.client.client.asyncio", own)

    def resolve(*addresses: str) -> None:
        def getaddrinfo(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
            if host not in ("localhost", b"localhost"):
                return real(host, port, *rest, **options)
            return [found for each in addresses for found in real(each, port, type=socket.SOCK_STREAM)]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return resolve


ANSWERING: dict[str, Callable[[Client], bool]] = {
    "websocket": lambda client: client.predict(VALUES).complete,
    "http": lambda client: bool(client.models()),
}
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address of Linux, which drops connections")


@LINUX
@pytest.mark.parametrize("kind", ANSWERING)
@pytest.mark.parametrize(
    ("dead", "refusing"),
    [
        (["::1"], []),
        (["127.0.0.2"], []),
        (["::1", "127.0.0.2"], []),
        ([], ["::1", "127.0.0.2"]),
        (["::1"], ["127.0.0.2"]),
    ],
)
def test_an_address_that_does_not_answer_does_not_cost_the_time_limit(
    server: Running, resolve: Callable[..., None], kind: str, dead: list[str], refusing: list[str]
) -> None:
    resolve(*dead, *refusing, "127.0.0.1")
    with ExitStack() as holes:
        for address in dead:
            try:
                holes.enter_context(hole(address, server.port))
            except OSError:
                pytest.skip("no IPv6 on this machine")
        # Without the second address a call raises after 60 s.
        with Client(f"http://localhost:{server.port}", timeout_s=60) as client:
            assert ANSWERING[kind](client)


@LINUX
@pytest.mark.parametrize("kind", ANSWERING)
def test_a_name_without_an_address_that_answers_is_an_error(resolve: Callable[..., None], kind: str) -> None:
    resolve("127.0.0.2", "127.0.0.3")
    with socket.socket() as first, socket.socket() as second:  # they listen to nobody, and nobody else gets the port
        first.bind(("127.0.0.2", 0))
        port = first.getsockname()[1]
        second.bind(("127.0.0.3", port))
        refused = pytest.raises(ConnectionLostError, match=f"cannot connect to http://localhost:{port}: ")
        with Client(f"http://localhost:{port}") as client, refused:
            ANSWERING[kind](client)
        first.close()
        dead = pytest.raises(
            ConnectionLostError, match=f"cannot connect to http://localhost:{port}: .*([Tt]ime|no connection within)"
        )
        with hole("127.0.0.2", port), Client(f"http://localhost:{port}", timeout_s=0.3) as client, dead:
            ANSWERING[kind](client)


async def test_another_event_loop_connects_to_any_address_and_only_once(network: Network) -> None:
    """uvloop, in which this runs, has no option for it; the IPv6 address of localhost, if there is one, refuses."""
    opened = await Way(f"http://localhost:{network.port}", None, WAIT_S).open()
    await opened.close()
    assert network.connections == 1
    async with AsyncClient(f"http://localhost:{network.port}") as client:
        assert await client.models()
        assert (await client.predict(VALUES)).complete


@LINUX
@pytest.mark.parametrize("kind", ANSWERING)
def test_a_proxy_is_found_at_any_address(
    server: Running, resolve: Callable[..., None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve("127.0.0.2", "127.0.0.1")
    with closing(Network(server.port)) as proxy, hole("127.0.0.2", proxy.port):
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, f"http://localhost:{proxy.port}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        with Client(f"http://127.0.0.1:{server.port}", timeout_s=60) as client:
            assert ANSWERING[kind](client)
        assert proxy.connections, "the client used no proxy"


# lost connections


def socket_of(client: Client) -> Any:
    return client._async._connection._socket


def test_a_server_that_restarts_is_found_again_without_a_call(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_PAUSE_S", 0.1)
    with closing(Network(server.port)) as network, Client(network.url) as client:
        client.warm_up()
        before = socket_of(client)
        network.shut()
        until(lambda: client._async._connection._refusals >= 2, "the client tries more than once")
        network.open()
        until(lambda: socket_of(client) not in (before, None), "the client connects again")
        assert client.predict(VALUES, deadline_ms=60_000).complete
        network.shut()
        until(lambda: client._async._connection._refusals, "the client tries again")
        client.close()
        assert not client._async._transport.lifetime._tasks, "a closed client connects no more"


def test_a_key_that_is_refused_is_not_sent_again_without_a_call() -> None:
    tried: list[str | None] = []

    def refuse(connection: ServerConnection, request: Request) -> Response | None:
        tried.append(request.headers.get("Authorization"))
        return None if len(tried) == 1 else problem_reply(connection, 401, "removed")

    async def leaving(socket: ServerConnection) -> None:
        begun = await anext(frames(socket))
        await socket.send(answer_to(begun))  # then the server closes the connection

    with fake(leaving, refuse) as url, Client(url, api_key="sesame") as client:
        client.predict(VALUES)
        until(lambda: len(tried) == 2 and not client._async._transport.lifetime._tasks, "the client gives up")
        assert tried == ["Bearer sesame"] * 2
        with pytest.raises(ProblemError, match="removed"):
            client.predict(VALUES)


async def test_pauses_between_attempts_that_nobody_waits_for_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a fake clock: one attempt a minute at last, and the first one after a second where a connection just began."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 20:
            raise asyncio.CancelledError

    class Refusing(Connection):
        async def ready(self, _: float) -> bool:
            raise ConnectionLostError("nobody answers")

    connection = Refusing(Way("http://127.0.0.1:9", None, 1.0))
    monkeypatch.setattr(engine, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    monkeypatch.setattr(engine, "random", SimpleNamespace(uniform=lambda _, high: high))
    with pytest.raises(asyncio.CancelledError):
        await connection._keep_open()
    assert pauses[:8] == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 60.0, 60.0]
    assert set(pauses[8:]) == {60.0}


async def test_a_peer_that_drops_every_connection_is_tried_by_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_PAUSE_S", 0.0)
    opened = AsyncMock(side_effect=lambda: AsyncMock(recv=AsyncMock(side_effect=ConnectionClosedError(None, None))))
    monkeypatch.setattr(Way, "open", opened)
    connection = Connection(Way("http://localhost", None, 1.0))
    await connection.ready(perf_counter() + WAIT_S)
    await until_async(lambda: opened.call_count > 20)
    tasks = [each for each in asyncio.all_tasks() if "_keep_open" in repr(each.get_coro())]
    assert len(tasks) <= 2, "one that ends, and the next"
    await connection.transport.close()


# Calls that are cancelled, or whose client closes, are no open predictions on the server any more.


WAIT_MS = 50_000.0
"""The server answers by itself long after a test has failed."""


@pytest.fixture(scope="module", params=["plain", "TLS"])
def serving(request: pytest.FixtureRequest, own: Certificate) -> Iterator[tuple[PredictionService, str, Any]]:
    encrypted = request.param == "TLS"
    tls: dict[str, Any] = {"ssl_certfile": own.file, "ssl_keyfile": own.key} if encrypted else {}
    settings = Settings(port=0, max_deadline_ms=60_000, max_lateness_ms=5_000, **tls)
    app = create_app(ModelRegistry.of([small_model()]), settings)
    with running(app, settings) as server:
        url = f"{'https' if encrypted else 'http'}://localhost:{server.port}"
        yield app.state.service, url, own.trusted() if encrypted else None


RELEASED = Event()


def waits(_: Any) -> list[float]:
    RELEASED.wait(60)
    return VALUES["hog"]


WAITING = {"speed": lambda _: VALUES["speed"], "hog": waits, "lab": lambda _: VALUES["lab"]}


@pytest.mark.parametrize("budget", [None, 6.0])
@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_a_call_that_has_ended_is_freed_on_the_server_at_once(
    serving: tuple[PredictionService, str, Any], budget: float | None, end: str
) -> None:
    service, url, ssl = serving
    RELEASED.clear()
    async with AsyncClient(url, ssl=ssl) as client:
        await client.warm_up(WAITING)
        tasks = [asyncio.create_task(client.run(WAITING, None, WAIT_MS, budget=budget)) for _ in range(5)]
        await until_async(lambda: len(service.active) == 5, "the predictions are open")
        if end == "close":
            await client.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until_async(lambda: not service.active, "the predictions are freed")
        RELEASED.set()
        if end == "cancel":
            assert (await client.predict(VALUES, deadline_ms=WAIT_MS)).complete, "the connection is still used"
    assert asyncio.all_tasks() == {asyncio.current_task()}
