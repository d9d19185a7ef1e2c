"""The bytes of responses: those of uvicorn, but a complete response in one write."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from anytime_service.limits.memory import MemoryBudget
from anytime_service.server.connections import Connections
from anytime_service.server.http_protocol import HttpProtocol
from anytime_service.settings import Settings
from service.memory_transport import MemoryTransport

JSON, LENGTH = (b"content-type", b"application/json"), (b"content-length", b"2")
GET = "GET / HTTP/1.1\r\nHost: test\r\n\r\n"


def start(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(content: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


def written(protocol: Any, messages: list[Message], request: str) -> MemoryTransport:
    """Return the transport after a request to an application that sends these messages."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    async def run() -> MemoryTransport:
        config = uvicorn.Config(app, http=protocol, log_config=None, lifespan="off", proxy_headers=False)
        config.load()
        state, transport = ServerState(), MemoryTransport()
        state.default_headers = [(b"date", b"today")]
        make: Any = config.http_protocol_class
        connection = make(config=config, server_state=state, app_state={})
        connection.connection_made(transport)
        connection.data_received(request.encode())
        await asyncio.wait(tuple(state.tasks), timeout=20)
        connection.connection_lost(None)
        return transport

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("messages", "request_", "writes"),
    [
        ([start(JSON, LENGTH), body(b"{}")], GET, 1),
        ([start(JSON, LENGTH, status=404), body(b"{}")], GET, 1),
        ([start(JSON, LENGTH), body(b"{", more=True), body(b"}")], GET, 3),
        ([start(JSON), body(b"{}")], GET, 2),
        ([start(status=204), body(b"")], GET, 2),
        ([start(JSON, LENGTH), body(b"{}")], GET.replace("GET", "HEAD"), 1),
        ([start(JSON, LENGTH), body(b"{}")], GET.replace("1.1", "1.0"), 2),
        ([start(JSON, LENGTH, (b"connection", b"close")), body(b"{}")], GET, 2),
        ([start(JSON, (b"content-length", b"3")), body(b"{}")], GET, 2),
        ([start(JSON, LENGTH, (b"x-id", b"a\r\nb: c")), body(b"{}")], GET, 0),
        ([start(JSON, LENGTH)], GET, 0),
        ([], GET, 2),
    ],
)
def test_a_response_has_the_bytes_of_uvicorn_and_one_write_if_it_is_complete(
    messages: list[Message], request_: str, writes: int
) -> None:
    ours = partial(HttpProtocol, Connections(Settings(), MemoryBudget()))
    found, uvicorns = written(ours, messages, request_), written(HttpToolsProtocol, messages, request_)
    begun = len(messages) != 1  # of a response without a body, uvicorn sends the head; then both close
    assert b"".join(found.pieces) == (b"".join(uvicorns.pieces) if begun else b"")
    assert found.closed == uvicorns.closed
    assert len(found.pieces) == writes
