"""Upgrades that are not accepted are ignored: no byte of one request is ever parsed as another."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from hypothesis import given, strategies as st
from starlette.types import Message, Receive, Scope, Send
from websockets.frames import Frame, Opcode

from anytime_service.api.openapi import AnytimeAPI
from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.server.run import Server
from anytime_service.settings import Settings
from drills.attacks.frames import HANDSHAKES
from drills.attacks.wire import connect, receive, send_all
from models.present import present
from models.properties import quick
from service.doors import Door, doors, keyed
from service.in_session import begin
from service.inferring import tensors
from service.memory_transport import MemoryTransport
from service.raw_stream import HANDSHAKE, read_frame, text
from service.serving import VALUES, Running, chunk, expected, run_service, small_model, timeless

MODEL = small_model()
SETTINGS = Settings(port=0, max_header_bytes=4_000, max_lateness_ms=1e6, max_message_rate=0)
JSON, LINES = b"application/json", b"application/x-ndjson"
HIDDEN = b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n"
BEGIN = text({"type": "begin", "id": 1, "deadline_ms": 2_000})
GROUPS = [text({"type": "group", "id": 1, "group": name, "values": values}) for name, values in VALUES.items()]

IGNORED = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    b"Upgrade: foo/1\r\nConnection: keep-alive\r\nconnection: upgrade\r\n",
    b"Connection: upgrade\r\nUpgrade: websocket, h2c\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n",
    b"Proxy-Connection: upgrade\r\nUpgrade: websocket\r\n",
)
"""Fields that ask for other protocols, and that no request has accepted."""

WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n" % (
    base64.b64encode(bytes(16))
)
"""Fields of a WebSocket's handshake, which are ignored if the request has a body."""


@dataclass(frozen=True)
class Request:
    """One request: its line, fields and body; `chunks` are places to cut the body, `value` what is to be predicted."""

    line: bytes
    body: bytes | None = None
    upgrade: bytes = b""
    fields: bytes = b""
    kind: bytes = JSON
    chunks: Sequence[int] = ()
    value: float | None = None

    def __bytes__(self) -> bytes:
        head = self.line + b"\r\nHost: test\r\n" + self.upgrade + self.fields
        if self.body is None:
            return head + b"\r\n"
        head += b"Content-Type: %b\r\n" % self.kind
        if not self.chunks:
            return head + b"Content-Length: %d\r\n\r\n%b" % (len(self.body), self.body)
        parts = [part for part in cut(self.body, self.chunks) if part]
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(map(chunk, [*parts, b""]))


def cut(content: bytes, places: Sequence[int]) -> list[bytes]:
    """Cut bytes at places, each modulo their number."""
    ends = sorted(place % (len(content) + 1) for place in places)
    return [content[i:j] for i, j in zip([0, *ends], [*ends, len(content)], strict=True)]


ROUTES = doors(create_app(ModelRegistry.of([MODEL]), SETTINGS))
LIVE = ("/livez", "/v2/health/live")


@pytest.fixture(scope="module")
def app() -> AnytimeAPI:
    return create_app(ModelRegistry.of([MODEL]), SETTINGS)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner


@pytest.fixture(scope="module")
def server(runner: asyncio.Runner) -> Server:
    """A server that does not listen: its connections are made here."""

    async def build() -> Server:
        server = Server(create_app(ModelRegistry.of([MODEL]), SETTINGS), SETTINGS)
        server.config.load()
        return server

    return runner.run(build())


def _connected(server: Server) -> MemoryTransport:
    """Make a connection to the server, and return its end of it."""
    make: Any = server.config.http_protocol_class
    transport, protocol = MemoryTransport(), make(config=server.config, server_state=server.server_state, app_state={})
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    return transport


async def _feed(transport: MemoryTransport, pieces: Sequence[bytes], turns: int) -> None:
    """Send pieces some turns of the loop apart, while the server reads."""
    for piece in pieces:
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            left = piece
            while left and not transport.closed:
                left = transport.feed(left)
                await asyncio.sleep(0)


async def _sent(server: Server, pieces: Sequence[bytes], turns: int = 1) -> bytes:
    """Send requests in pieces on a new connection, and return what the server writes."""
    transport, quiet = _connected(server), 0
    await _feed(transport, pieces, turns)
    async with asyncio.timeout(60):
        while quiet < 10:  # turns in which no request is being answered
            await asyncio.sleep(0)
            quiet = 0 if server.server_state.tasks else quiet + 1
    transport.get_protocol().connection_lost(None)
    return b"".join(transport.pieces)


def responses(content: bytes) -> list[tuple[int, Any]]:
    """Parse responses, interim ones too: status, and the body without the times in it."""
    found: list[tuple[int, Any]] = []
    while content:
        head, _, rest = content.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 "), content[:200]
        lengths = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body, content = rest[: sum(lengths)], rest[sum(lengths) :]
        found.append((int(head[9:12]), json.loads(body, object_hook=timeless) if body.startswith(b"{") else body))
    return found


def predicting(value: float, how: str, padding: bytes) -> Request:
    """Return a request for a prediction from one value, with padding in its body."""
    path, content, kind = {
        "lines": (b"/predict", {"group": "speed", "values": [value]}, LINES),
        "tensors": (b"/v2/models/brake/infer", {"id": "7", "inputs": tensors({"speed": [value]})}, JSON),
        "json": (b"/predict", {"groups": {"speed": [value]}}, JSON),
    }[how]
    return Request(b"POST %b HTTP/1.1" % path, padding + json.dumps(content).encode(), kind=kind, value=value)


PREDICTIONS = st.builds(
    predicting,
    st.floats(-5, 5),
    st.sampled_from(["lines", "json", "tensors"]),
    st.sampled_from([b"", b"\r\n", b" \r\n" * 1_500, b"\n" * 9_000]),
)
OTHERS = st.sampled_from(
    [
        Request(b"GET /livez HTTP/1.1"),
        Request(b"GET /stream HTTP/1.1"),
        Request(b"GET /nowhere HTTP/1.1"),
        Request(b"DELETE /sessions/nobody HTTP/1.1"),
        Request(b"POST /sessions HTTP/1.1", b'{"model": "nowhere"}'),
        Request(b"POST /predict HTTP/1.1", HIDDEN, kind=LINES),
        Request(b"POST /predict HTTP/1.1", b"\r\n" * 4_000 + HIDDEN, kind=LINES),
        Request(b"POST /nowhere HTTP/1.1", HIDDEN),
    ]
)
LAST = [
    Request(b"POST /predict HTTP/1.0", b'{"groups": {"speed": [1.0]}}'),
    Request(b"GET /predict?session=nobody HTTP/1.0", fields=b"Expect: 100-continue\r\n"),
    Request(b"POST /predict HTTP/1.1", b"{}", fields=b"Connection: close\r\n"),
    Request(b"POST /predict HTTP/1.1", b"{}", fields=b"X: %b\r\n" % (b"y" * 4_000)),
    Request(b"POST /predict HTTP/1.1", b"{}", fields=b"Transfer-Encoding: gzip\r\n"),
    Request(b"POST /predict HTTP/1.1", fields=b"Transfer-Encoding: gzip\r\n"),
    Request(b"POST /predict HTTP/1.1", b"{}", fields=b"Content-Length: 40\r\n"),
]
"""Requests after which the server closes the connection."""


def without_upgrade(fields: bytes) -> bytes:
    return b"".join(line for line in fields.splitlines(keepends=True) if not line.startswith(b"Upgrade:"))


def framed(request: Request, upgrade: bytes, chunks: list[int]) -> Request:
    if request.body is None and upgrade == WEBSOCKET:
        upgrade = b""
    return replace(request, upgrade=upgrade, chunks=chunks)


REQUESTS = st.lists(
    st.builds(
        framed,
        st.one_of(PREDICTIONS, OTHERS),
        st.sampled_from([b"", WEBSOCKET, *IGNORED]),
        st.lists(st.integers(0, 20_000), max_size=3),
    ),
    min_size=1,
    max_size=3,
)


CUTS = st.lists(st.integers(0, 50_000), max_size=8)
TURNS = st.integers(0, 3)


def assert_ignored(
    runner: asyncio.Runner, server: Server, requests: Sequence[Request], cuts: list[int], turns: int
) -> list[Any]:
    """Assert that requests are answered as those without Upgrade fields, which arrive whole; return the responses."""
    plain = b"".join(bytes(replace(request, upgrade=without_upgrade(request.upgrade))) for request in requests)
    found = responses(runner.run(_sent(server, cut(b"".join(map(bytes, requests)), cuts), turns)))
    assert found == responses(runner.run(_sent(server, [plain])))
    return found


@quick(max_examples=400)
@given(REQUESTS, CUTS, TURNS)
def test_requests_are_answered_in_turn_as_if_they_had_no_upgrade_field(
    runner: asyncio.Runner, server: Server, requests: list[Request], cuts: list[int], turns: int
) -> None:
    found = assert_ignored(runner, server, requests, cuts, turns)
    if any(status == 400 for status, _ in found):  # an error in a body may close the connection
        return
    assert len(found) == len(requests)
    for request, (status, answer) in zip(requests, found, strict=True):
        if request.value is not None:
            score = expected(MODEL, {"speed": [request.value]})["prediction"]
            scores = {output["name"]: output["data"] for output in answer.get("outputs", ())}
            assert (status, answer.get("prediction", scores.get("prediction"))) in ((200, score), (200, [score]))


@pytest.mark.parametrize("request_", LAST, ids=lambda request: request.line.decode() + request.fields[:20].decode())
@pytest.mark.parametrize("upgrade", [WEBSOCKET, *IGNORED], ids=range(len(IGNORED) + 1))
def test_a_last_request_with_an_upgrade_field_is_answered_once_and_none_behind_it(
    runner: asyncio.Runner, server: Server, request_: Request, upgrade: bytes
) -> None:
    for cuts in ([], [60], [100, 120, 140, 160], list(range(0, 400, 7))):
        requests = [framed(request_, upgrade, []), Request(b"GET /livez HTTP/1.1")]
        assert len(assert_ignored(runner, server, requests, cuts, 1)) == 1


@pytest.mark.parametrize("door", [door for door in ROUTES if not door.socket and door.method != "HEAD"], ids=str)
def test_no_route_reads_a_request_from_the_body_of_another(runner: asyncio.Runner, server: Server, door: Door) -> None:
    line = f"{door.method} {door.filled} HTTP/1.1".encode()
    for upgrade in (WEBSOCKET, IGNORED[0]):
        for chunks in ([], [3, 3_000]):
            asked = bytes(Request(line, b"\r\n" * 4_000 + HIDDEN, upgrade, chunks=chunks))
            answers = [runner.run(_sent(server, cut(asked, cuts))) for cuts in ([], [len(asked) - len(HIDDEN), 200])]
            assert [content.count(b"HTTP/1.1 ") for content in answers] == [1, 1]
            assert not any(b'{"status":"ok"}' in content for content in answers) or door.path in LIVE


def _exchanged(service: Running, content: bytes) -> tuple[bytes, str]:
    """Return what the service answers, and how the connection ends."""
    with connect(service.port) as sock:
        send_all(sock, content)
        return receive(sock)


@pytest.mark.parametrize(
    "name", ["no key", "a key too short", "two keys", "version 8", "another protocol", "another path"]
)
def test_nothing_that_follows_a_refused_handshake_is_a_request(
    runner: asyncio.Runner, server: Server, service: Running, name: str
) -> None:
    for prefix in ([], [HIDDEN]):
        for cuts in ([], [30, 90], [len(HANDSHAKES[name])]):
            pieces = [*prefix, *cut(HANDSHAKES[name] + HIDDEN * 100, cuts)]
            found = responses(runner.run(_sent(server, pieces, turns=20)))
            assert [status for status, _ in found[:-1]] == [200] * len(prefix)
            assert found[-1][0] in (400, 404, 426)
    received, end = _exchanged(service, HANDSHAKES[name] + HIDDEN)
    assert (len(responses(received)), end) == (1, "FIN")


def test_nothing_that_follows_a_handshake_without_a_key_is_a_request() -> None:
    with keyed() as service:
        for field, status in ((b"", 401), (b"Authorization: Bearer wrong", 401), (b"Origin: http://b.example", 403)):
            received, end = _exchanged(service, HANDSHAKE[:-2] + field + b"\r\n" * (1 + bool(field)) + HIDDEN)
            assert ([found[0] for found in responses(received)], end) == ([status], "FIN")


def test_a_handshake_is_refused_once_when_predictions_are_shed(
    runner: asyncio.Runner, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.config.app.state.service.admission, "admits", lambda _now_ms: False)  # type: ignore[union-attr]
    for path in (b"/predict?session=1", b"/sessions/1/predict"):
        found = responses(runner.run(_sent(server, [HANDSHAKE.replace(b"/stream", path)])))
        assert [status for status, _ in found] == [404]


@pytest.mark.parametrize(
    ("handshake", "status"),
    [
        (HANDSHAKE.replace(b"Connection: Upgrade", b"Connection: keep-alive"), 426),
        (HANDSHAKE.replace(b"Connection: Upgrade", b"Proxy-Connection: Upgrade"), 426),
        (HANDSHAKE.replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n{}"), 426),
        (HANDSHAKE.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 426),
        (HANDSHAKE.replace(b"GET", b"POST"), 405),
        (HANDSHAKE.replace(b"HTTP/1.1", b"HTTP/1.0"), 426),
    ],
    ids=["no Connection option", "Proxy-Connection", "a length", "chunks", "POST", "HTTP/1.0"],
)
def test_a_handshake_that_http_does_not_allow_is_a_plain_request(
    service: Running, handshake: bytes, status: int
) -> None:
    found = responses(_exchanged(service, handshake + HIDDEN)[0])
    assert [status for status, _ in found] == ([status] if b"HTTP/1.0" in handshake else [status, 200])


def test_a_handshake_behind_a_waiting_request_is_read_after_its_answer(service: Running) -> None:
    waiting = f"GET /sessions/{begin(service)}/predict?deadline_ms=100 HTTP/1.1\r\nHost: test\r\n\r\n".encode()
    received, end = _exchanged(service, waiting + HANDSHAKE + HIDDEN)
    answer, _, rest = received.partition(b"HTTP/1.1 101 ")
    assert ([status for status, _ in responses(answer)], end) == ([200], "FIN")
    assert [opcode for opcode, _ in frames(rest.partition(b"\r\n\r\n")[2])] == [Opcode.CLOSE], "a GET is no frame"


def frames(content: bytes) -> list[tuple[int, bytes]]:
    """Parse frames of the server: opcode and payload."""
    sent: Any = SimpleNamespace(file=BytesIO(content))
    found = []
    while sent.file.tell() < len(content):
        found.append(read_frame(sent))
    return found


async def _streamed(server: Server, pieces: Sequence[bytes], turns: int) -> bytes:
    """Send a handshake and messages in pieces; wait for the answer to the messages, and close."""
    transport = _connected(server)
    await _feed(transport, pieces, turns)
    async with asyncio.timeout(60):
        while not any(b'"answer"' in piece for piece in transport.pieces):
            await asyncio.sleep(0)
        await _closed(server, transport)
    return b"".join(transport.pieces)


async def _closed(server: Server, transport: MemoryTransport) -> None:
    """Close a WebSocket in order."""
    await _feed(transport, [Frame(Opcode.CLOSE, b"").serialize(mask=True)], 0)
    while server.server_state.tasks:
        await asyncio.sleep(0)
    transport.get_protocol().connection_lost(None)


EARLY = [Frame(Opcode.PING, b"early").serialize(mask=True), BEGIN, *GROUPS]


def assert_streamed(received: bytes) -> list[bytes]:
    """Assert that 101 is followed by a pong and the answer; return what is before 101, in lines."""
    *interim, head, sent = received.split(b"\r\n\r\n", received.count(b"HTTP/1.1 "))
    assert head.rpartition(b"HTTP/1.1 ")[2].startswith(b"101 ")
    (pong, early), (_, answer), (close, _) = frames(sent)
    assert (pong, early, close) == (Opcode.PONG, b"early", Opcode.CLOSE)
    assert timeless(json.loads(answer)) == expected(MODEL, VALUES)
    return interim


@quick(max_examples=200)
@given(CUTS, TURNS, st.sampled_from([0, 1_500, 70_000]), st.sampled_from([b"", b"Expect: 100-continue\r\n"]))
def test_frames_that_arrive_with_the_handshake_are_read_after_it(
    runner: asyncio.Runner, server: Server, cuts: list[int], turns: int, padding: int, expect: bytes
) -> None:
    end = text(b" " * padding + b'{"type": "end", "id": 1}')
    asked = HANDSHAKE[:-2] + expect + b"Content-Length: 0\r\n\r\n" + b"".join([*EARLY, end])
    interim = [b"HTTP/1.1 100 Continue"] if expect else []
    assert assert_streamed(runner.run(_streamed(server, cut(asked, cuts), turns))) == interim


@pytest.mark.parametrize("first", [b"", HIDDEN + b"\r\n" * 1_500], ids=["alone", "behind a long read"])
@pytest.mark.parametrize("length", [0, 3_000], ids=["short", "long"])
@pytest.mark.parametrize("apart", [True, False])
def test_frames_wait_until_the_application_has_accepted(
    runner: asyncio.Runner, server: Server, monkeypatch: pytest.MonkeyPatch, first: bytes, length: int, apart: bool
) -> None:
    inner = server.config.loaded_app

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_later(message: Message) -> None:
            for _ in range(20 if message["type"] == "websocket.accept" else 0):
                await asyncio.sleep(0)
            await send(message)

        await inner(scope, receive, send_later)

    monkeypatch.setattr(server.config, "loaded_app", slow)
    handshake = first + HANDSHAKE[:-2] + b"X: %b\r\n\r\n" % (b"y" * length)
    rest = b"".join([*EARLY, text({"type": "end", "id": 1})])
    interim = assert_streamed(runner.run(_streamed(server, [handshake, rest] if apart else [handshake + rest], 0)))
    assert len(interim) == bool(first)


def test_the_port_for_metrics_ignores_every_upgrade() -> None:
    with run_service([MODEL], Settings(port=0, metrics_port=0)) as service:
        side = Running(present(service.metrics_port))
        for upgrade in (WEBSOCKET, *IGNORED):
            asked = Request(b"GET /livez HTTP/1.1", None, upgrade), Request(b"GET /livez HTTP/1.1", HIDDEN, upgrade)
            assert responses(_exchanged(side, b"".join(map(bytes, asked)))[0]) == [(200, {"status": "ok"})] * 2
