"""The contract between uvicorn's server and a protocol class, with the installed version of uvicorn."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any, cast

import uvicorn

from anytime_service.limits.memory import MemoryBudget
from anytime_service.limits.turns import Turns
from anytime_service.server.connections import Connections
from anytime_service.server.http_protocol import HttpProtocol
from anytime_service.server.websocket_protocol import WebSocketProtocol
from anytime_service.settings import Settings
from service.raw_stream import HANDSHAKE
from waiting import until_async


async def echo(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        await receive()
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def served() -> tuple[list[dict[str, Any]], uvicorn.Server, list[bytes]]:
    made: list[dict[str, Any]] = []
    shared = Connections(Settings(), MemoryBudget(), Turns())

    class Recorded(HttpProtocol):
        def __init__(self, **options: Any) -> None:
            made.append(options)
            super().__init__(shared, **options)

    ws: Any = partial(WebSocketProtocol, shared)
    config = uvicorn.Config(echo, http=cast(Any, Recorded), ws=ws, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve([listening]))
        await until_async(lambda: server.started)
        idle, stream = [await asyncio.open_connection(*listening.getsockname()) for _ in range(2)]
        idle[1].write(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
        first = await idle[0].readline()
        stream[1].write(HANDSHAKE)
        second = await stream[0].readline()
        await until_async(lambda: len(server.server_state.connections) == 2 and len(server.server_state.tasks) == 1)
        server.should_exit = True
        rest = [await reader.read() for reader, _ in (idle, stream)]
        for _, writer in (idle, stream):
            writer.close()
        await serving
    return made, server, [first, second, *rest]


def test_uvicorn_passes_what_connections_need_and_shuts_them_down() -> None:
    made, server, received = asyncio.run(served())
    assert all(set(options) <= {"config", "server_state", "app_state", "_loop"} for options in made)
    assert received[0] == b"HTTP/1.1 200 OK\r\n"
    assert received[1].startswith(b"HTTP/1.1 101 ")
    assert received[2].startswith(b"date: ")
    assert received[3].endswith(b"\x88\x02" + (1012).to_bytes(2, "big")), "uvicorn calls `shutdown`, which closes"
    state = server.server_state
    assert (state.connections, state.tasks, state.total_requests) == (set(), set(), 1)


def test_the_state_of_another_port_has_what_uvicorns_has() -> None:
    state = uvicorn.Server(uvicorn.Config(echo)).server_state
    assert type(state) is uvicorn.server.ServerState
    assert {"connections", "tasks", "default_headers", "total_requests"} <= set(vars(state))
