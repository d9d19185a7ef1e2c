"""Messages on their way to one client, which may read slowly or not at all."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from starlette.types import Send

from anytime_service.http.exchange import start
from anytime_service.limits.memory import Held

__all__ = [
    "MAX_BYTES",
    "SendQueue",
]

MAX_BYTES = 1024 * 1024
"""Bytes kept for a client that does not read; when they are more, it is given up."""

AT_A_TIME = 16
"""Messages sent before others have their turn."""

_log = logging.getLogger("anytime_service")


class SendQueue:
    """Sends messages in their order, on the spot as long as the client reads.

    Parameters
    ----------
    send : the channel.
    give_up : called once when the client cannot be reached, or reads too slowly.
    held : counts the bytes that are kept; None for no limit but that of one client.
    """

    def __init__(self, send: Send, give_up: Callable[[], None], held: Held | None = None) -> None:
        self._send = send
        self._give_up = give_up
        self._kept: deque[tuple[dict[str, Any], int]] = deque()
        self._bytes = 0
        self._held = Held(sys.maxsize) if held is None else held
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
            self._kept.append((message, size))
            self._hold(size)
            if self._bytes > MAX_BYTES or not self._held.fits(0):
                self._fail()
            return
        try:
            waiting = start(self._send(message))
        except Exception as error:
            self._fail(error)
            return
        if waiting is not None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush(waiting))
            self._flushing.add_done_callback(lambda _: waiting.cancel())  # a task cancelled early awaits nothing

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        self._kept.clear()
        self._hold(-self._bytes)
        if self._flushing is not None:
            self._flushing.cancel()

    async def flushed(self) -> None:
        """Wait until everything has been handed over."""
        if self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _flush(self, waiting: asyncio.Task[None]) -> None:
        """Send what is kept, once the client reads again; with a turn for others in between."""
        try:
            await waiting
            sent = 0
            while self._kept:
                message, size = self._kept.popleft()
                self._hold(-size)
                await self._send(message)
                sent += 1
                if sent % AT_A_TIME == 0:
                    await asyncio.sleep(0)
        except Exception as error:
            self._fail(error)
        else:
            self._flushing = None

    def _hold(self, more: int) -> None:
        self._bytes += more
        self._held.bytes += more

    def _fail(self, error: Exception | None = None) -> None:
        """Give the client up; `error` is why it cannot be reached, an OSError where it has simply gone."""
        if not self._closed:
            if error is not None and not isinstance(error, OSError):
                _log.warning("a client is given up: %s: %s", type(error).__name__, error)
            self.close()
            self._give_up()
