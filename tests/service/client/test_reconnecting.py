"""The client connects again in the background: one attempt at a time, whatever the peer does."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError

from anytime_service.client import engine
from anytime_service.client.engine import Connection
from anytime_service.client.transport import Network
from waiting import WAIT_S, until_async


class Dropped:
    """A WebSocket that the peer drops at once."""

    async def recv(self) -> bytes:
        await asyncio.sleep(0)
        raise ConnectionClosedError(None, None)

    async def send(self, content: bytes) -> None:
        """Nobody receives it."""

    async def close(self) -> None:
        """It is closed."""


async def test_a_peer_that_drops_every_connection_is_tried_by_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_PAUSE_S", 0.0)
    dropped: list[Dropped] = []

    async def opened(self: Network) -> Any:
        dropped.append(Dropped())
        return dropped[-1]

    monkeypatch.setattr(Network, "open", opened)

    connection = Connection(Network("http://localhost", None, 1.0))
    await connection.ready(time.perf_counter() + WAIT_S)
    await until_async(lambda: len(dropped) > 20)
    tasks = [each for each in asyncio.all_tasks() if "_keep_open" in repr(each.get_coro())]
    assert len(tasks) <= 2, "one that ends, and the next"
    await connection.transport.close()
