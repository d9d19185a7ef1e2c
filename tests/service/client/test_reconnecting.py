"""The client connects again in the background: one attempt at a time, whatever the peer does."""

from __future__ import annotations

import asyncio
import time

import pytest
from websockets.asyncio.server import ServerConnection, serve

from anytime_service.client import engine
from anytime_service.client.engine import Connection
from anytime_service.client.transport import Network
from service.loops import run
from waiting import WAIT_S, until_async


def test_a_peer_that_drops_every_connection_is_tried_by_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_PAUSE_S", 0.0)
    dropped = 0

    async def drop(socket: ServerConnection) -> None:
        nonlocal dropped
        dropped += 1
        socket.transport.abort()

    async def main() -> None:
        async with serve(drop, "127.0.0.1", 0, subprotocols=["anytime.v1"]) as server:  # type: ignore[list-item]
            port = next(iter(server.sockets)).getsockname()[1]
            connection = Connection(Network(f"http://127.0.0.1:{port}", None, 1.0))
            await connection.ready(time.perf_counter() + WAIT_S)
            await until_async(lambda: dropped > 20)
            tasks = [each for each in asyncio.all_tasks() if "_keep_open" in repr(each.get_coro())]
            assert len(tasks) <= 2, "one that ends, and the next"
            await connection.transport.close()

    run(main())
