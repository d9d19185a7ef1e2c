"""The queue of messages to one client, which may read slowly or not at all."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from starlette.types import Send

from anytime_service.http.exchange import start
from anytime_service.limits.memory import MemoryBudget

__all__ = [
    "MAX_BYTES",
    "SendQueue",
]

MAX_BYTES = 1024 * 1024
"""Maximum bytes queued for a client that does not read; above it, the server gives up on the client."""

AT_A_TIME = 16
"""Number of messages that the queue sends before the event loop serves other connections."""

_log = logging.getLogger("anytime_service")


class SendQueue:
    """Queue that sends messages in order, and without delay as long as the client reads.

    Parameters
    ----------
    send : the ASGI channel.
    give_up : called once if the client is unreachable or reads too slowly.
    held : the memory budget that counts the queued bytes; None to apply only the limit of one client.
    """

    def __init__(self, send: Send, give_up: Callable[[], None], held: MemoryBudget | None = None) -> None:
        self._send = send
        self._give_up = give_up
        self._queue: deque[tuple[dict[str, Any], int]] = deque()
        self._bytes = 0
        self._held = MemoryBudget(sys.maxsize) if held is None else held
        self._flushing: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def slow(self) -> bool:
        """Whether messages are queued because the client does not read."""
        return self._flushing is not None

    def put(self, message: dict[str, Any], size: int) -> None:
        """Send an ASGI message of about `size` bytes, or queue it; never wait."""
        if self._closed:
            return
        if self._flushing is not None:
            self._queue.append((message, size))
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
        """Discard the queue, and send no further message."""
        self._closed = True
        self._queue.clear()
        self._hold(-self._bytes)
        if self._flushing is not None:
            self._flushing.cancel()

    async def flushed(self) -> None:
        """Wait until every message has been sent."""
        if self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _flush(self, waiting: asyncio.Task[None]) -> None:
        """Send the queued messages when the client reads again; yield to the event loop in between."""
        try:
            await waiting
            sent = 0
            while self._queue:
                message, size = self._queue.popleft()
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
        """Give up on the client; `error` is the reason, an OSError if the client has disconnected."""
        if not self._closed:
            if error is not None and not isinstance(error, OSError):
                _log.warning("giving up on a client: %s: %s", type(error).__name__, error)
            self.close()
            self._give_up()
