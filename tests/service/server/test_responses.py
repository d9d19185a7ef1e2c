"""The bytes of responses, and how they are divided into writes."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from anytime_service.settings import Settings
from service.memory_transport import MemoryTransport, connect
from service.raw_stream import HANDSHAKE

JSON, LENGTH = (b"content-type", b"application/json"), (b"content-length", b"2")
CHUNKS = b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
GET = "GET / HTTP/1.1\r\nHost: test\r\n\r\n"


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
        await asyncio.wait(tuple(state.tasks), timeout=20)
        closed = transport.closed
        transport.get_protocol().connection_lost(None)
        transport.closed = closed
        return transport

    return asyncio.run(run())


OK = b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    ("messages", "request_", "pieces", "closes"),
    [
        ([start(JSON, LENGTH), body(b"{}")], GET, [OK + b"content-length: 2\r\n\r\n{}"], False),
        (
            [start(JSON, LENGTH), body(b"{", more=True), body(b"}")],
            GET,
            [OK + b"content-length: 2\r\n\r\n{", b"}"],
            False,
        ),
        ([start(JSON), body(b"{}")], GET, [OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"], False),
        ([start(status=204), body(b"")], GET, [b"HTTP/1.1 204 No Content\r\ndate: today\r\n\r\n"], False),
        ([start(status=599), body(b"")], GET, [b"HTTP/1.1 599 \r\ndate: today\r\n" + CHUNKS], False),
        ([start(JSON, LENGTH), body(b"{}")], GET.replace("GET", "HEAD"), [OK + b"content-length: 2\r\n\r\n"], False),
        (
            [start(JSON, LENGTH), body(b"{}")],
            GET.replace("1.1", "1.0"),
            [OK + b"content-length: 2\r\nconnection: close\r\n\r\n{}"],
            True,
        ),
        ([start(JSON), body(b"{}")], GET.replace("1.1", "1.0"), [OK + b"connection: close\r\n\r\n{}"], True),
        (
            [start(JSON, LENGTH, (b"connection", b"close")), body(b"{}")],
            GET,
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
    found = written(messages, GET)
    assert (found.pieces, found.closed) == ([], True)


@pytest.mark.parametrize(
    ("messages", "request_"),
    [
        ([], GET),
        ([], GET.replace("GET", "HEAD")),
        ([{"type": "other"}], GET),
        ([{"type": "other"}], HANDSHAKE.decode()),
    ],
    ids=["none", "none to HEAD", "an invalid one", "a WebSocket"],
)
def test_an_application_without_a_response_is_a_server_failure(messages: list[Message], request_: str) -> None:
    found = written(messages, request_)
    assert found.pieces[0].startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert found.pieces[0].endswith(b"\r\n\r\n") == request_.startswith("HEAD")
    assert found.closed
