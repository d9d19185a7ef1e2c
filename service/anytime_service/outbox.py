"""Messages on their way to one client, which may read slowly or not at all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from starlette.types import Send

from anytime_service.eager import start

__all__ = ["MOST_BYTES", "Outbox"]

MOST_BYTES = 4 * 1024 * 1024
"""Bytes kept for a client that does not read; when they are more, it is given up."""


class Outbox:
    """Sends messages in their order, on the spot as long as the client reads.

    Parameters
    ----------
    send : the channel.
    give_up : called once when the client cannot be reached, or reads too slowly.
    """

    def __init__(self, send: Send, give_up: Callable[[], None]) -> None:
        self._send = send
        self._give_up = give_up
        self._kept: deque[dict[str, Any]] = deque()
        self._bytes = 0
        self._flushing: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def slow(self) -> bool:
        """Whether messages wait for the client to read."""
        return self._flushing is not None

    def put(self, message: dict[str, Any], size: int) -> None:
        """Send an ASGI message of about `size` bytes; never waits."""
        if self._closed:
            return
        if self._flushing is not None:
            self._keep(message, size)
            return
        try:
            self._flushing = start(self._send(message))
        except Exception:
            self._fail()
            return
        if self._flushing is not None:
            self._flushing.add_done_callback(self._flushed)

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        self._kept.clear()
        if self._flushing is not None:
            self._flushing.cancel()

    async def flushed(self) -> None:
        """Wait until everything has been handed over."""
        while self._flushing is not None and not self._closed:
            await asyncio.wait([self._flushing])
            await asyncio.sleep(0)  # the callback that goes on with the next one

    def _keep(self, message: dict[str, Any], size: int) -> None:
        self._kept.append(message)
        self._bytes += size
        if self._bytes > MOST_BYTES:
            self._fail()

    def _flushed(self, task: asyncio.Task[None]) -> None:
        self._flushing = None
        if task.cancelled():
            return
        if task.exception() is not None:
            self._fail()
            return
        kept, self._kept, self._bytes = self._kept, deque(), 0
        for message in kept:
            self.put(message, len(message.get("text") or message.get("bytes") or b""))

    def _fail(self) -> None:
        if not self._closed:
            self.close()
            self._give_up()
