"""A client that does not read: nothing that it has sent is lost, and a connection that closes ends in time."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from websockets.frames import Frame, Opcode

from anytime_service.limits.turns import AT_ONCE
from anytime_service.settings import Settings
from anytime_service.telemetry.context import DIRECT
from service.in_session import begin, post_groups
from service.inferring import tensors
from service.memory_transport import MemoryTransport, connect
from service.raw_stream import HANDSHAKE
from service.serving import LINES, VALUES, Connection, Running, lines_of
from waiting import until, until_async

GET = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"
LIMIT_S = 0.02
MANY = 1 << 20


class Stalling(MemoryTransport):
    """The server's end of a connection that stores what is written until the client reads.

    Attributes
    ----------
    room : bytes that it stores before the server must wait.
    unsent : bytes that it stores.
    aborted : whether the server has closed it without sending them.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.unsent = 0
        self.aborted = False
        self._is_full = False

    @property
    def statuses(self) -> list[bytes]:
        return [piece[9:12] for piece in self.pieces]

    def write(self, data: Any) -> None:
        super().write(data)
        self.unsent += len(data)
        if self.unsent > self.room and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def read(self, left: int = 0) -> None:
        """Have the client read all but a few bytes."""
        self.unsent = left
        if self._is_full:
            self._is_full = False
            self._protocol.resume_writing()

    def abort(self) -> None:
        self.closed = self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unsent


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request; accept a WebSocket, and wait for its end."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})
    else:
        await receive()
        await send({"type": "websocket.accept"})
        scope["extensions"][DIRECT].deliver(lambda _: None)
        await receive()


@asynccontextmanager
async def stalling(room: int, application: ASGIApp = app, **limits: Any) -> AsyncIterator[Stalling]:
    """Connect a client to a server with these limits; at the end it disconnects."""
    transport = Stalling(room)
    state = connect(transport, application, Settings(**limits))
    try:
        yield transport
    finally:
        transport.get_protocol().connection_lost(None)
        await asyncio.gather(*state.tasks)


async def test_every_pipelined_request_is_answered_however_late_its_client_reads() -> None:
    async with stalling(0, header_timeout_s=LIMIT_S) as transport:
        assert not transport.feed(GET * 3)
        for expected in ([b"200"], [b"200"] * 2, [b"200"] * 3):
            await until_async(lambda: transport.unsent, "the next answer")
            await asyncio.sleep(3 * LIMIT_S)  # longer than a head may take
            assert transport.statuses == expected
            transport.read()


@pytest.mark.parametrize(("second", "answers"), [(GET, 2), (GET[:-2], 1)], ids=["complete", "a part"])
async def test_a_client_that_sends_no_more_is_answered_to_what_is_complete_when_it_reads(
    second: bytes, answers: int
) -> None:
    async with stalling(0) as transport:
        transport.feed(GET + second)
        await until_async(lambda: transport.unsent, "the first answer")
        assert transport.get_protocol().eof_received(), "the transport stays open"
        transport.read()
        await until_async(lambda: transport.closed)
        assert transport.statuses == [b"200"] * answers


@pytest.mark.parametrize("room", [MANY, 0], ids=["few bytes", "many bytes, few of them remaining"])
async def test_a_connection_that_closes_with_unsent_bytes_ends_by_the_limit_of_writes(room: int) -> None:
    async with stalling(room, idle_timeout_s=LIMIT_S) as transport:
        transport.feed(GET[:-2] + b"Connection: close\r\n\r\n")
        while not transport.closed:
            await asyncio.sleep(0)
        transport.read(left=1)
        await until_async(lambda: transport.aborted)
        assert transport.statuses == [b"200"]


async def test_the_last_ping_of_a_client_that_does_not_read_is_answered_when_it_reads() -> None:
    async with stalling(0) as transport:
        transport.feed(HANDSHAKE)
        await until_async(lambda: b"101" in transport.statuses and transport.reading)
        for content in (b"first", b"last"):
            assert not transport.feed(Frame(Opcode.PING, content).serialize(mask=True))
        assert transport.statuses == [b"101"]
        transport.read()
        assert transport.pieces[1:] == [Frame(Opcode.PONG, b"last").serialize(mask=False)]


async def test_an_application_that_reads_late_receives_the_whole_body() -> None:
    reads, body, received = asyncio.Event(), bytes(range(256)) * 600, bytearray()

    async def late(_scope: Scope, receive: Receive, send: Send) -> None:
        await reads.wait()
        more = True
        while more:
            message = await receive()
            received.extend(message["body"])
            more = message["more_body"]
        await app({"type": "http"}, receive, send)

    async with stalling(MANY, late) as transport:
        sent = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        while sent := transport.feed(sent):
            await asyncio.sleep(0)
        reads.set()
        await until_async(lambda: transport.pieces)
    assert received == body


async def test_chunks_that_arrive_with_their_head_have_the_limit_of_rate_too() -> None:
    async with stalling(MANY, max_message_rate=1) as transport:
        transport.feed(b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 200)
        assert not transport.reading


@pytest.mark.parametrize(("pieces", "limit"), [(1, 1), (3, 3 * AT_ONCE)], ids=["beyond the limit", "in pieces"])
async def test_a_long_message_counts_as_stored_until_it_has_its_turn(pieces: int, limit: int) -> None:
    async with stalling(MANY, max_held_bytes=limit) as transport:
        transport.feed(HANDSHAKE)
        await until_async(lambda: b"101" in transport.statuses and transport.reading)
        account, size = transport.get_protocol().shared.service.memory, 3 * AT_ONCE
        for i in range(pieces):
            opcode = Opcode.CONT if i else Opcode.BINARY
            frame = Frame(opcode, bytes(size // pieces), fin=i == pieces - 1)
            assert not transport.feed(frame.serialize(mask=True))
        assert (account.bytes, transport.reading) == (size, False)
        await until_async(lambda: transport.reading)
        assert (account.bytes, transport.closed) == (0, False)


# The bytes of responses, and how they are divided into writes.


JSON, LENGTH = (b"content-type", b"application/json"), (b"content-length", b"2")
CHUNKS = b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
GET_TEXT = "GET / HTTP/1.1\r\nHost: test\r\n\r\n"


def start(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(content: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


def written(messages: list[Message], request: str) -> MemoryTransport:
    """Return the transport after a request to an application that sends these messages."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    async def run() -> MemoryTransport:
        transport = MemoryTransport()
        state = connect(transport, app, Settings())
        state.default_headers = [(b"date", b"today")]
        transport.feed(request.encode())
        await asyncio.wait(tuple(state.tasks), timeout=60)
        closed = transport.closed
        transport.get_protocol().connection_lost(None)
        transport.closed = closed
        return transport

    return asyncio.run(run())


OK = b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    ("messages", "request_", "pieces", "closes"),
    [
        ([start(JSON, LENGTH), body(b"{}")], GET_TEXT, [OK + b"content-length: 2\r\n\r\n{}"], False),
        (
            [start(JSON, LENGTH), body(b"{", more=True), body(b"}")],
            GET_TEXT,
            [OK + b"content-length: 2\r\n\r\n{", b"}"],
            False,
        ),
        ([start(JSON), body(b"{}")], GET_TEXT, [OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"], False),
        ([start(status=204), body(b"")], GET_TEXT, [b"HTTP/1.1 204 No Content\r\ndate: today\r\n\r\n"], False),
        ([start(status=599), body(b"")], GET_TEXT, [b"HTTP/1.1 599 \r\ndate: today\r\n" + CHUNKS], False),
        (
            [start(JSON, LENGTH), body(b"{}")],
            GET_TEXT.replace("GET", "HEAD"),
            [OK + b"content-length: 2\r\n\r\n"],
            False,
        ),
        (
            [start(JSON, LENGTH), body(b"{}")],
            GET_TEXT.replace("1.1", "1.0"),
            [OK + b"content-length: 2\r\nconnection: close\r\n\r\n{}"],
            True,
        ),
        ([start(JSON), body(b"{}")], GET_TEXT.replace("1.1", "1.0"), [OK + b"connection: close\r\n\r\n{}"], True),
        (
            [start(JSON, LENGTH, (b"connection", b"close")), body(b"{}")],
            GET_TEXT,
            [OK + b"content-length: 2\r\nconnection: close\r\n\r\n{}"],
            True,
        ),
    ],
)
def test_the_bytes_of_a_response_with_its_head_and_the_first_piece_in_one_write(
    messages: list[Message], request_: str, pieces: list[bytes], closes: bool
) -> None:
    found = written(messages, request_)
    assert (found.pieces, found.closed) == (pieces, closes)


@pytest.mark.parametrize(
    "messages",
    [
        [start(JSON, (b"content-length", b"3")), body(b"{}")],
        [start(JSON, (b"content-length", b"1")), body(b"{}")],
        [start(JSON, LENGTH, (b"x-id", b"a\r\nb: c")), body(b"{}")],
        [start(JSON, LENGTH, (b"x id", b"a")), body(b"{}")],
        [start(JSON, LENGTH)],
    ],
)
def test_an_invalid_response_closes_the_connection(messages: list[Message]) -> None:
    found = written(messages, GET_TEXT)
    assert (found.pieces, found.closed) == ([], True)


@pytest.mark.parametrize(
    ("messages", "request_"),
    [
        ([], GET_TEXT),
        ([], GET_TEXT.replace("GET", "HEAD")),
        ([{"type": "other"}], GET_TEXT),
        ([{"type": "other"}], HANDSHAKE.decode()),
    ],
    ids=["none", "none to HEAD", "an invalid one", "a WebSocket"],
)
def test_an_application_without_a_response_is_a_server_failure(messages: list[Message], request_: str) -> None:
    found = written(messages, request_)
    assert found.pieces[0].startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert found.pieces[0].endswith(b"\r\n\r\n") == request_.startswith("HEAD")
    assert found.closed


# A client that sends no more gets its answers (RFC 9112, 9.6); one that is gone leaves nothing open.


SETTINGS = Settings(port=0, max_deadline_ms=20_000, max_lateness_ms=5_000, max_json_values=100_000)
PREDICTION = json.dumps({"groups": VALUES}).encode()


def request(target: str, body: bytes, kind: str = "application/json", version: str = "1.1") -> bytes:
    head = f"POST {target} HTTP/{version}\r\nHost: test\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def final(connection: Connection) -> tuple[int, dict[str, str], Any]:
    """The final response, after any interim one."""
    interim(connection)
    return connection.response()


def interim(connection: Connection) -> bool:
    """Read an interim response, if there is one."""
    if found := connection.file.peek(12).startswith(b"HTTP/1.1 100"):
        while connection.file.readline().strip():
            pass
    return found


MANY_ROWS = json.dumps({"groups": {"speed": np.ones((3_000, 1)).tolist()}}).encode()
REQUESTS = {
    "POST": request("/predict", PREDICTION),
    "HTTP/1.0": request("/predict", PREDICTION, version="1.0"),
    "an answer that the worker makes": request("/predict", MANY_ROWS),
    "lines": request("/predict", lines_of(VALUES), LINES),
    "inference": request("/v2/models/brake/infer", json.dumps({"inputs": tensors({"speed": [[1.0]]})}).encode()),
    "a page": b"GET /models/brake HTTP/1.1\r\nHost: test\r\n\r\n",
    "a refusal": request("/predict", b'{"groups": {"none": [1.0]}}'),
}


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("together", [True, False])
def test_a_client_that_sends_no_more_gets_its_answer(service: Running, kind: str, *, together: bool) -> None:
    with service.connect() as connection:
        content = REQUESTS[kind]
        if not together:
            connection.send(content[:-3])
            content = content[-3:]
        connection.send(content)
        connection.sock.shutdown(socket.SHUT_WR)
        status, headers, body = final(connection)
        assert (status, bool(body)) == (422 if kind == "a refusal" else 200, True)
        assert connection.at_end(), "and the server closes"
        assert "close" in headers.get("connection", "close")


def test_a_prediction_that_waits_for_a_session_is_answered_to_a_client_that_sends_no_more(service: Running) -> None:
    session = begin(service)
    with service.connect() as connection:
        head = f"GET /sessions/{session}/predict?deadline_ms=19000 HTTP/1.1\r\nHost: test\r\n\r\n".encode()
        connection.send(head + REQUESTS["a page"])
        until(lambda: service.metric("anytime_open_predictions") == 1)
        connection.sock.shutdown(socket.SHUT_WR)
        assert interim(connection), "by which the server learns of clients that are gone"
        assert post_groups(service, session, VALUES).status_code == 200
        assert final(connection)[2]["reason"] == "complete"
        assert final(connection)[0] == 200, "what it has sent behind it is answered too"
        assert connection.at_end()


def test_a_part_of_a_request_is_not_answered(service: Running) -> None:
    for content in (REQUESTS["POST"][:30], REQUESTS["POST"][:-1]):
        with service.connect() as connection:
            connection.send(content)
            connection.sock.shutdown(socket.SHUT_WR)
            assert connection.at_end()
    until(lambda: service.metric("anytime_open_predictions") == 0)
