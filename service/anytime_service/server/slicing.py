"""Reading in slices, so that one client's flood of tiny frames or chunks does not keep the others waiting.

uvicorn reads up to 256,000 bytes at once and takes all frames in them apart before anything else has its turn: 36,000
frames of one byte hold the loop for 100 ms. Here a long read is taken apart slice by slice, in turns that all such
connections share, and the next only when what the last one brought has been taken. Slices grow while they are quick, as
those of large frames are, and shrink when they are not. A connection whose short reads are slow waits for its turns
too; one that sends more messages than it may is not read until it may again.
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
from anytime_service.limits.memory import Held
from anytime_service.limits.queues import TokenBucket
from anytime_service.server.connections import Connections
from anytime_service.server.http_protocol import SheddingHttpProtocol
from anytime_service.server.tls import closing_in_time
from anytime_service.server.websocket_protocol import GuardedWebSocketProtocol, Handshakes

__all__ = ["LARGEST_SLICE", "SMALLEST_SLICE", "SlicedHttpProtocol", "SlicedWebSocketProtocol"]


SMALLEST_SLICE = 2048
LARGEST_SLICE = 65_536
QUICK_MS = 0.2

MAX_PIPELINED = 128
"""Requests that may wait on one connection for the response to the one before."""


class _Backlog:
    """What has been read and not been taken apart, and how much of it to take at once."""

    __slots__ = ("_pieces", "bytes", "size")

    def __init__(self) -> None:
        self.bytes = 0
        self.size = SMALLEST_SLICE
        self._pieces: deque[memoryview] = deque()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, data: bytes) -> None:
        """Keep what has been read."""
        self._pieces.append(memoryview(data))
        self.bytes += len(data)

    def next(self) -> memoryview:
        """Take one slice off."""
        piece = self._pieces.popleft()
        if len(piece) > self.size:
            self._pieces.appendleft(piece[self.size :])
            piece = piece[: self.size]
        self.bytes -= len(piece)
        return piece

    def learn(self, *, quick: bool) -> None:
        """Have larger slices, or smaller ones."""
        self.size = min(self.size * 2, LARGEST_SLICE) if quick else max(self.size // 2, SMALLEST_SLICE)

    def clear(self) -> None:
        """Forget it all."""
        self._pieces.clear()
        self.bytes = 0


class _Sliced(asyncio.Protocol):
    """What the two protocols share; stands before those whose `data_received` takes bytes apart."""

    shared: Connections
    held: Held
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.held = self.shared.held
        self._backlog = _Backlog()
        self._pace = TokenBucket(self.shared.settings.max_message_rate)
        self._slow = False
        self._asked = False
        self._resting = False

    def data_received(self, data: bytes) -> None:
        """Take what has been read, at once or in turns."""
        if self._backlog or self._slow or self._resting or len(data) > self._backlog.size:
            self._keep(data)
        else:
            self._take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._forget()
        super().connection_lost(exc)

    def _keep(self, data: bytes) -> None:
        # Counted and not refused: it is here already, and no more is read before it has been taken.
        self.held.bytes += len(data)
        self._backlog.add(data)
        self._settle()

    def _forget(self) -> None:
        self.held.bytes -= self._backlog.bytes
        self._backlog.clear()

    def _turn(self) -> None:
        """Take a slice, if what the last one brought has been taken."""
        self._asked = False
        if self.transport.is_closing() or self.transport.get_protocol() is not self:  # or a WebSocket by now
            self._forget()
            return
        if self._backlog and not self._resting and self._is_free():
            piece = self._backlog.next()
            self.held.bytes -= len(piece)
            self._take(piece)
            self._backlog.learn(quick=not self._slow)
        self._settle()

    def _take(self, data: Any) -> None:
        """Take bytes apart; and take no more for a while, if these were too many messages."""
        begun, before = now_ms(), self._messages()
        super().data_received(data)
        now = now_ms()
        self._slow = now - begun > QUICK_MS
        wait_ms = self._pace.spend(self._messages() - before, now)
        if wait_ms and not self._resting:
            self._resting = True
            self.loop.call_later(wait_ms / 1000.0, self._rested)
            self._settle()

    def _rested(self) -> None:
        self._resting = False
        if not self.transport.is_closing():
            self._settle()

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self.shared.turns.ask(self._turn)

    def _messages(self) -> int:
        """Messages so far, by a count that grows by one with each."""
        raise NotImplementedError

    def _is_free(self) -> bool:
        """Whether what was taken apart has been taken."""
        raise NotImplementedError

    def _settle(self) -> None:
        """Go on reading, ask for a turn, or wait."""
        raise NotImplementedError


class SlicedWebSocketProtocol(_Sliced, GuardedWebSocketProtocol):
    """Our protocol for WebSockets, fed in slices."""

    def _charge(self, held: Held) -> None:
        """Have what is held for this connection counted by `held`, now that its key is known."""
        counted = self.partial + self._backlog.bytes
        self.held.bytes -= counted
        held.bytes += counted
        self.held = held

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        super().connection_made(transport)
        self.conn = Handshakes(max_size=self.config.ws_max_size, logger=self.conn.logger)  # nothing has been read yet

    def handle_connect(self, event: Request) -> None:
        """Begin, and let the application cut off a client that does not read: closing would wait for it to."""
        super().handle_connect(event)
        if self.handshake_initiated and not self.close_sent:
            self.scope["extensions"] |= {ABORT: {"abort": self.transport.abort}, CHARGE: {"charge": self._charge}}

    def _messages(self) -> int:
        return self.aside + self.queue.qsize()

    def _is_free(self) -> bool:
        return self.queue.empty()

    def _settle(self) -> None:
        if self._backlog or self._resting:
            # Whoever takes the messages would resume reading; what has been read comes first.
            self.read_paused = False
            self.transport.pause_reading()
            if not self._resting:
                self._ask()
        elif self.queue.empty():
            self.read_paused = False
            self.transport.resume_reading()
        else:
            self.read_paused = True


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


class SlicedHttpProtocol(_Sliced, SheddingHttpProtocol):
    """Our protocol for HTTP, fed in slices; the requests of one slice are answered before the next is read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pieces = 0
        self._stopped = False

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        transport = closing_in_time(transport, self.loop)
        super().connection_made(transport)
        self.flow = _HeldFlow(transport, self._settle)

    def data_received(self, data: bytes) -> None:
        """Take what has been read, after the requests that wait."""
        if self.pipeline:
            self._keep(data)
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
            self._settle()

    def on_body(self, body: bytes) -> None:
        """Count a piece of a body."""
        self._pieces += 1
        super().on_body(body)

    def pause_writing(self) -> None:
        """Begin no other request while the client does not read the responses to those before."""
        super().pause_writing()
        self._settle()

    def resume_writing(self) -> None:
        """Resume sending, and reading."""
        super().resume_writing()
        self._settle()

    def _should_upgrade(self) -> bool:
        """Return whether to become a WebSocket; a request with a body does not, as nobody would read it."""
        body = any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        return super()._should_upgrade() and not body

    def _messages(self) -> int:
        return self._pieces

    def _is_free(self) -> bool:
        return self._reads() and not self.pipeline

    def _reads(self) -> bool:
        # The body of a request is read even then: its client may read nothing before it has sent everything.
        return not (self.flow.read_paused or self._resting or (self.flow.write_paused and self.awaiting))

    def _settle(self) -> None:
        self._stopped = bool(self._backlog) or not self._reads()
        if not self._stopped:
            self.transport.resume_reading()  # even while requests wait: their client may close
            return
        self.transport.pause_reading()
        if self._backlog and self._is_free():
            self._ask()
