"""Reading in slices, so that one client's flood of tiny frames or chunks does not keep the others waiting.

uvicorn reads up to 256,000 bytes at once and takes all frames in them apart before anything else has its turn: 36,000
frames of one byte hold the loop for 100 ms. Here a long read is taken apart slice by slice, one each time round the
loop, and the next only when what the last one brought has been taken. Slices grow while they are quick, as those of
large frames are, and shrink when they are not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from anytime_service.clock import now_ms
from anytime_service.closing import closing_in_time

__all__ = ["ABORT", "LARGEST_SLICE", "SMALLEST_SLICE", "SlicedHttpProtocol", "SlicedWebSocketProtocol"]

ABORT = "anytime_service.abort"
"""Extension of a WebSocket's scope whose `abort` cuts the connection off."""

SMALLEST_SLICE = 2048
LARGEST_SLICE = 65_536
QUICK_MS = 0.2


class _Backlog:
    """What has been read and not been taken apart, and how much of it to take at once."""

    __slots__ = ("_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self._size = SMALLEST_SLICE

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def fits(self, data: bytes) -> bool:
        """Whether `data` can be taken at once."""
        return len(data) <= self._size and not self._pieces

    def add(self, data: bytes) -> None:
        """Keep what has been read."""
        self._pieces.append(memoryview(data))

    def clear(self) -> None:
        """Forget it all."""
        self._pieces.clear()

    def take(self, feed: Callable[[Any], None]) -> None:
        """Feed one slice."""
        piece = self._pieces.popleft()
        if len(piece) > self._size:
            self._pieces.appendleft(piece[self._size :])
        begun = now_ms()
        feed(piece[: self._size])
        quick = now_ms() - begun < QUICK_MS
        self._size = min(self._size * 2, LARGEST_SLICE) if quick else max(self._size // 2, SMALLEST_SLICE)


class _Sliced(asyncio.Protocol):
    """What the two protocols share; stands before uvicorn's, whose `data_received` takes bytes apart."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._backlog = _Backlog()

    def data_received(self, data: bytes) -> None:
        """Take what has been read."""
        if self._backlog.fits(data):
            super().data_received(data)
            return
        waiting = bool(self._backlog)
        self._backlog.add(data)
        if not waiting:
            self._feed()

    def _feed(self) -> None:
        """Take one slice, and see to the next."""
        raise NotImplementedError

    def _take(self) -> None:
        self._backlog.take(super().data_received)


class SlicedWebSocketProtocol(_Sliced, WebSocketsSansIOProtocol):
    """uvicorn's protocol for WebSockets, fed in slices."""

    def handle_connect(self, event: Request) -> None:
        """Begin, and let the application cut off a client that does not read: closing would wait for it to."""
        super().handle_connect(event)
        if self.handshake_initiated and not self.close_sent:
            self.scope["extensions"][ABORT] = {"abort": self.transport.abort}

    def _feed(self) -> None:
        """Take one slice, and the next in the loop's next turn."""
        if self.transport.is_closing():
            self._backlog.clear()
            return
        if self.queue.empty():
            self._take()
        if self._backlog:
            # Whoever takes the messages would resume reading; what has been read comes first.
            self.read_paused = False
            self.transport.pause_reading()
            self.loop.call_soon(self._feed)
        elif not self.read_paused:
            self.transport.resume_reading()


class _HeldFlow(FlowControl):
    """Flow control that resumes by taking what has been read already, as long as there is any."""

    def __init__(self, transport: asyncio.Transport, resume: Callable[[], None]) -> None:
        super().__init__(transport)
        self._resume = resume

    def resume_reading(self) -> None:
        """Go on."""
        if self.read_paused:
            self.read_paused = False
            self._resume()


class SlicedHttpProtocol(_Sliced, HttpToolsProtocol):
    """uvicorn's protocol for HTTP, fed in slices."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._woken = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        transport = closing_in_time(transport, self.loop)
        super().connection_made(transport)
        self.flow = _HeldFlow(transport, self._wake)

    def _wake(self) -> None:
        """Take the next slice in the loop's next turn, or read on."""
        if not self._backlog:
            self.transport.resume_reading()
        elif not self._woken:
            self._woken = True
            self.loop.call_soon(self._feed)

    def _feed(self) -> None:
        self._woken = False
        if self.transport.is_closing() or self.transport.get_protocol() is not self:  # or a WebSocket by now
            self._backlog.clear()
            return
        if not self.flow.read_paused:
            self._take()
            if self._backlog:
                self.transport.pause_reading()
        if not self.flow.read_paused:
            self._wake()
