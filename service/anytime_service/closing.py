"""Encrypted connections that close in time.

To close one properly, both ends say goodbye. The event loop waits 30 s for a client to, and takes apart and drops what
it sends meanwhile: gigabytes, if the client would rather send. Here it gets a second, after all has gone out to it.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

__all__ = ["closing_in_time"]

GOODBYE_S = 1.0
MOST_WAITS = 30


class _InTime:
    """A transport that is cut off when its client does not see to its end; everything else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waits = 0
        self.write = transport.write
        self.is_closing = transport.is_closing

    def close(self) -> None:
        """Close, in time."""
        self._transport.close()
        if not self._waits:
            self._wait()

    def _wait(self) -> None:
        self._waits += 1
        self._loop.call_later(GOODBYE_S, self._cut)

    def _cut(self) -> None:
        if self._transport.get_write_buffer_size() and self._waits < MOST_WAITS:  # it is still being told something
            self._wait()
        else:
            self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def closing_in_time(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> asyncio.Transport:
    """Give a transport back as one that closes in time, if it is encrypted; as it is, if it is not."""
    if transport.get_extra_info("sslcontext") is None:
        return transport
    return cast(asyncio.Transport, _InTime(transport, loop))
