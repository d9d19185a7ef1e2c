"""Parsing in slices, so that one client's flood of tiny frames or chunks does not delay other clients.

uvicorn reads up to 256,000 bytes at once and parses all frames in them before other tasks run: 36,000 frames of one
byte occupy the event loop for 100 ms. Here a long read is parsed slice by slice. All such connections share a fair
queue, and the next slice is parsed only when the application has consumed the messages of the last one. Slices grow
while they are fast to parse, like those of large frames, and shrink otherwise. A connection with slow short reads uses
the queue too. A connection that exceeds the message rate is not read until the token bucket permits it again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from websockets.http11 import Request

from anytime_service.clock import now_ms
from anytime_service.errors import OverloadedError
from anytime_service.http.exchange import ABORT, CHARGE
from anytime_service.limits.memory import MemoryBudget
from anytime_service.limits.queues import TokenBucket
from anytime_service.server.connections import Connections
from anytime_service.server.http_protocol import SheddingHttpProtocol
from anytime_service.server.tls import with_close_timeout
from anytime_service.server.websocket_protocol import GuardedWebSocketProtocol, Handshakes

__all__ = ["LARGEST_SLICE", "SMALLEST_SLICE", "SlicedHttpProtocol", "SlicedWebSocketProtocol"]


SMALLEST_SLICE = 2048
LARGEST_SLICE = 65_536
QUICK_MS = 0.2
"""Parsing time of a slice in ms up to which slices grow."""

MAX_PIPELINED = 128
"""Largest number of requests of one connection that wait for the response to the previous one."""


class _Backlog:
    """Received bytes that are not parsed yet, and the size of the next slice."""

    __slots__ = ("_pieces", "bytes", "size")

    def __init__(self) -> None:
        self.bytes = 0
        self.size = SMALLEST_SLICE
        self._pieces: deque[memoryview] = deque()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, data: bytes) -> None:
        """Append received bytes."""
        self._pieces.append(memoryview(data))
        self.bytes += len(data)

    def next(self) -> memoryview:
        """Remove and return the next slice."""
        piece = self._pieces.popleft()
        if len(piece) > self.size:
            self._pieces.appendleft(piece[self.size :])
            piece = piece[: self.size]
        self.bytes -= len(piece)
        return piece

    def learn(self, *, quick: bool) -> None:
        """Double the size of slices after a quick one, halve it after a slow one."""
        self.size = min(self.size * 2, LARGEST_SLICE) if quick else max(self.size // 2, SMALLEST_SLICE)

    def clear(self) -> None:
        """Remove all bytes."""
        self._pieces.clear()
        self.bytes = 0


class _Sliced(asyncio.Protocol):
    """Common part of the two protocols: a mixin in front of the classes whose `data_received` parses bytes."""

    shared: Connections
    held: MemoryBudget
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.held = self.shared.held
        self._backlog = _Backlog()
        self._bucket = TokenBucket(self.shared.settings.max_message_rate)
        self._slow = False
        self._turn_queued = False
        self._rate_limited = False

    def data_received(self, data: bytes) -> None:
        """Parse received bytes at once or in slices."""
        if self._backlog or self._slow or self._rate_limited or len(data) > self._backlog.size:
            self._store(data)
        else:
            self._parse(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._clear_backlog()
        super().connection_lost(exc)

    def _store(self, data: bytes) -> None:
        # Counted without a check: the bytes are in memory already, and no more are read before these are parsed.
        self.held.bytes += len(data)
        self._backlog.add(data)
        self._update_reading()

    def _clear_backlog(self) -> None:
        self.held.bytes -= self._backlog.bytes
        self._backlog.clear()

    def _turn(self) -> None:
        """Parse a slice, if the messages of the last one have been consumed."""
        self._turn_queued = False
        if self.transport.is_closing() or self.transport.get_protocol() is not self:  # it may have become a WebSocket
            self._clear_backlog()
            return
        if self._backlog and not self._rate_limited and self._is_free():
            piece = self._backlog.next()
            self.held.bytes -= len(piece)
            self._parse(piece)
            self._backlog.learn(quick=not self._slow)
        self._update_reading()

    def _parse(self, data: Any) -> None:
        """Parse bytes, and pause reading if they contain more messages than the rate permits."""
        begun, before = now_ms(), self._messages()
        super().data_received(data)
        now = now_ms()
        self._slow = now - begun > QUICK_MS
        wait_ms = self._bucket.spend(self._messages() - before, now)
        if wait_ms and not self._rate_limited:
            self._rate_limited = True
            self.loop.call_later(wait_ms / 1000.0, self._end_rate_limit)
            self._update_reading()

    def _end_rate_limit(self) -> None:
        self._rate_limited = False
        if not self.transport.is_closing():
            self._update_reading()

    def _queue_turn(self) -> None:
        if not self._turn_queued:
            self._turn_queued = True
            self.shared.fair_queue.submit(self._turn)

    def _messages(self) -> int:
        """Return the number of messages so far."""
        raise NotImplementedError

    def _is_free(self) -> bool:
        """Return whether all parsed messages have been consumed."""
        raise NotImplementedError

    def _update_reading(self) -> None:
        """Resume reading, queue for a turn, or wait."""
        raise NotImplementedError


class SlicedWebSocketProtocol(_Sliced, GuardedWebSocketProtocol):
    """The guarded protocol for WebSockets with parsing in slices."""

    def _charge(self, held: MemoryBudget) -> None:
        """Move the bytes of this connection to the memory budget `held` of its key, which is known now."""
        counted = self.partial + self._backlog.bytes
        self.held.bytes -= counted
        held.bytes += counted
        self.held = held

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        super().connection_made(transport)
        self.conn = Handshakes(max_size=self.config.ws_max_size, logger=self.conn.logger)  # nothing has been read yet

    def handle_connect(self, event: Request) -> None:
        """Begin, and let the application abort the connection: closing would wait for a client that does not read."""
        super().handle_connect(event)
        if self.handshake_initiated and not self.close_sent:
            self.scope["extensions"] |= {ABORT: {"abort": self.transport.abort}, CHARGE: {"charge": self._charge}}

    def _messages(self) -> int:
        return self.extra_frames + self.queue.qsize()

    def _is_free(self) -> bool:
        return self.queue.empty()

    def _update_reading(self) -> None:
        if self._backlog or self._rate_limited:
            # Consuming the messages would resume reading, but the backlog must be parsed first.
            self.read_paused = False
            self.transport.pause_reading()
            if not self._rate_limited:
                self._queue_turn()
        elif self.queue.empty():
            self.read_paused = False
            self.transport.resume_reading()
        else:
            self.read_paused = True


class _BacklogFlow(FlowControl):
    """Flow control that parses the backlog before it resumes reading."""

    def __init__(self, transport: asyncio.Transport, resume: Callable[[], None]) -> None:
        super().__init__(transport)
        self._resume = resume

    def resume_reading(self) -> None:
        """Resume."""
        if self.read_paused:
            self.read_paused = False
            self._resume()


class SlicedHttpProtocol(_Sliced, SheddingHttpProtocol):
    """The shedding protocol for HTTP with parsing in slices; requests of a slice are answered before the next one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pieces = 0
        self._stopped = False

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        transport = with_close_timeout(transport, self.loop)
        super().connection_made(transport)
        self.flow = _BacklogFlow(transport, self._update_reading)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, after the waiting requests."""
        if self.pipeline:
            self._store(data)
        else:
            super().data_received(data)

    def on_message_begin(self) -> None:
        """Count a request."""
        self._pieces += 1
        super().on_message_begin()
        if len(self.pipeline) >= MAX_PIPELINED:
            self.refuse(OverloadedError(f"{MAX_PIPELINED} requests wait on this connection; read the responses first"))

    def on_response_complete(self) -> None:
        """Continue with what was received after the request, unless other requests wait."""
        super().on_response_complete()
        if self._stopped and not self.transport.is_closing():
            self._update_reading()

    def on_body(self, body: bytes) -> None:
        """Count a piece of a body."""
        self._pieces += 1
        super().on_body(body)

    def pause_writing(self) -> None:
        """Begin no further request while the client does not read the previous responses."""
        super().pause_writing()
        self._update_reading()

    def resume_writing(self) -> None:
        """Resume sending, and reading."""
        super().resume_writing()
        self._update_reading()

    def _should_upgrade(self) -> bool:
        """Return whether to become a WebSocket; a request with a body does not, since the body would stay unread."""
        body = any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        return super()._should_upgrade() and not body

    def _messages(self) -> int:
        return self._pieces

    def _is_free(self) -> bool:
        return self._reads() and not self.pipeline

    def _reads(self) -> bool:
        # Bodies are read even while writing is paused: the client may send its complete body before it reads.
        return not (self.flow.read_paused or self._rate_limited or (self.flow.write_paused and self.awaits_head))

    def _update_reading(self) -> None:
        self._stopped = bool(self._backlog) or not self._reads()
        if not self._stopped:
            self.transport.resume_reading()  # even while requests wait: their client may close
            return
        self.transport.pause_reading()
        if self._backlog and self._is_free():
            self._queue_turn()
