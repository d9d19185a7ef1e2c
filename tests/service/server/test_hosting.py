"""The contract between uvicorn's server and a protocol class, with the installed version of uvicorn."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, ClassVar

import uvicorn
from anytime_service.server.hosting import Host, ServerState


class Recorded(asyncio.Protocol):
    """A protocol that records what uvicorn passes and calls."""

    made: ClassVar[list[Recorded]] = []

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.host = Host(**options)
        self.stopped = False
        self.made.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.host.state.connections.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.host.state.connections.discard(self)

    def shutdown(self) -> None:
        self.stopped = True
        self.host.run(self.last())

    async def last(self) -> None:
        """Answer a request, after which the connection closes."""
        await asyncio.sleep(0)
        self.host.state.total_requests += 1
        self.transport.close()


async def nothing(scope: Any, receive: Any, send: Any) -> None: ...


async def served() -> tuple[Recorded, uvicorn.Server]:
    config = uvicorn.Config(nothing, http=Recorded, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve([listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        while not Recorded.made or not server.server_state.connections:
            await asyncio.sleep(0.01)
        server.should_exit = True
        assert await reader.read() == b"", "uvicorn waits until the connection has closed itself"
        writer.close()
        await serving
    return Recorded.made.pop(), server


def test_uvicorn_passes_what_a_connection_needs_and_shuts_it_down() -> None:
    connection, server = asyncio.run(served())
    assert set(connection.options) <= {"config", "server_state", "app_state", "_loop"}
    state: ServerState = connection.host.state
    assert state is server.server_state
    assert (state.connections, state.tasks, state.total_requests) == (set(), set(), 1)
    assert [name for name, _ in state.default_headers] == [b"date", b"server"]
    assert connection.stopped
    assert callable(connection.host.app)
    assert (connection.host.root_path, connection.host.app_state) == ("", {})


def test_the_state_of_another_port_has_what_uvicorns_has() -> None:
    state = uvicorn.Server(uvicorn.Config(nothing)).server_state
    assert (type(state), set(ServerState.__annotations__) - set(vars(state))) == (uvicorn.server.ServerState, set())
