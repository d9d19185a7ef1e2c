"""Reading WebSockets in slices, so that one client's flood of tiny frames does not keep the others waiting.

uvicorn reads up to 256,000 bytes at once and takes all frames in them apart before anything else has its turn: 36,000
frames of one byte hold the loop for 100 ms. Here a long read is taken apart slice by slice, one each time round the
loop, and the next only when the messages of the last have been taken. Slices grow while they are quick, as those of
large frames are, and shrink when they are not.
"""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from anytime_service.clock import now_ms

__all__ = ["LARGEST_SLICE", "SMALLEST_SLICE", "SlicedWebSocketProtocol"]

SMALLEST_SLICE = 2048
LARGEST_SLICE = 65_536
QUICK_MS = 0.5


class SlicedWebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol, fed in slices."""

    _slice = SMALLEST_SLICE
    _rest = b""

    def data_received(self, data: bytes) -> None:
        """Take what has been read."""
        if self._rest:
            self._rest += data
        elif len(data) <= self._slice:
            super().data_received(data)
        else:
            self._rest = data
            self._feed()

    def _feed(self) -> None:
        """Take one slice, and the next in the loop's next turn."""
        if self.transport.is_closing():
            self._rest = b""
            return
        if self.queue.empty():
            piece, self._rest = self._rest[: self._slice], self._rest[self._slice :]
            begun = now_ms()
            super().data_received(piece)
            quick = now_ms() - begun < QUICK_MS
            self._slice = min(self._slice * 2, LARGEST_SLICE) if quick else max(self._slice // 2, SMALLEST_SLICE)
        if self._rest:
            # Whoever takes the messages would resume reading; what has been read comes first.
            self.read_paused = False
            self.transport.pause_reading()
            self.loop.call_soon(self._feed)
        elif not self.read_paused:
            self.transport.resume_reading()
