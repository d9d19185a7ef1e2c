"""uvicorn's HTTP protocol with limits on what a client may send and on how long it may take.

An HTTP connection goes through stages, and each stage has a time limit:

===== ======================================= =================================================================
stage                                         ends
===== ======================================= =================================================================
HEAD  the server waits for a request's head   when the head is complete, or with 408 after the header timeout
BUSY  the server is answering the request     with the response; deadlines and `exchange` bound the time
TAIL  the body continues after the response   with the body, after `LINGER_S`, or above the limit for bodies
IDLE  nothing was received since the response with the next byte, or after the idle timeout
LAST  the server has sent its last response   when the client closes, after `LINGER_S`, or after `SWALLOWED` bytes
===== ======================================= =================================================================

Every received byte counts against one of two limits. Bytes of bodies count against the limit for bodies. All other
bytes of a request (request line, headers, chunk sizes and extensions, trailers, blank lines) share one counter, which
may reach the limit for heads. Trailers are ignored.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from anytime_service.connections import Connections
from anytime_service.errors import HeadTooLargeError, MalformedBodyError, SlowRequestError

__all__ = ["PROBES", "GuardedHttpProtocol"]

PROBES = frozenset((b"/livez", b"/readyz", b"/metrics", b"/v2/health/live", b"/v2/health/ready"))
"""What may be asked for although there are too many connections."""

SWALLOWED = 1024 * 1024
"""Bytes that may come after the last response, so that the client has time to read it."""

CHUNK_FRAMING = 20
"""Bytes around each piece of a chunked body that do not count: a size of 16 hexadecimal digits and two line ends."""

_HEAD, _BUSY, _TAIL, _IDLE, _LAST = range(5)


class GuardedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol for HTTP, of which no client takes more than is its due.

    Parameters
    ----------
    shared : what all connections of the server share.

    Attributes
    ----------
    slice : what is being taken apart.
    alone_here : whether it begins with a request, and has had no other.
    """

    def __init__(self, shared: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.shared = shared
        self._stage = _HEAD
        self._in_head = False
        self._begun_here = False
        self._framing_bytes = 0  # not body; without the slice in which the request begins
        self._body_here = 0  # bytes of this slice that are body, or framing that does not count
        self._first_bytes = 0
        self._after_bytes = 0
        self._running: RequestResponseCycle | None = None
        self.slice: bytes = b""
        self.alone_here = False
        self._welcome = True
        self._rested_s = 0.0

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        super().connection_made(transport)
        self._welcome = self.shared.came(self, self.connections)

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self.shared.left(self)
        super().connection_lost(exc)
        answering = self._answering
        if answering is not None:
            _abandon(answering)

    def data_received(self, data: bytes) -> None:
        """Take what has been read, and see that the rest comes in time."""
        if self._stage == _LAST:
            self._swallow(len(data))
            return
        self.slice, self._begun_here, self.alone_here, self._body_here = data, False, self.resting, 0
        if self._stage == _IDLE:
            self._stage = _HEAD
        super().data_received(data)
        if self._begun_here:
            self._first_bytes = len(data)
        else:
            self._framing_bytes = max(self._framing_bytes + len(data) - self._body_here, 0)
            if self._framing_bytes > self.shared.settings.max_header_bytes:
                self._refuse_framing()
        if self._stage == _HEAD:
            self.shared.heads.begin(self)
        elif self._stage == _TAIL:
            self.shared.tails.begin(self)

    @property
    def resting(self) -> bool:
        """Whether the next byte is the first of a request."""
        return self._stage == _IDLE

    @property
    def awaiting(self) -> bool:
        """Whether what is received next begins a request, or continues its head."""
        return self._stage in (_IDLE, _HEAD)

    @property
    def clogged(self) -> bool:
        """Whether so much waits to be sent that no further response should be written at once."""
        return self.flow.write_paused or self.transport.get_write_buffer_size() > HIGH_WATER_LIMIT

    def pause_writing(self) -> None:
        """Wait for the client to read what was sent."""
        shedding = self.shared.shedding
        held = self.shared.held if shedding is None else shedding.account(self.headers or ())
        self.shared.stalled(self, self.transport.get_write_buffer_size(), held)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Resume sending."""
        self.shared.flows(self)
        super().resume_writing()

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self._stage == _IDLE:  # the slice began with the rest of a body that had been answered already
            self._unset_keepalive_if_required()
            self._stage = _HEAD
        self.alone_here = self.alone_here and not self._begun_here
        self._in_head = self._begun_here = True
        self._framing_bytes = self._first_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; trailers, which follow a chunked body, are ignored."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Answer the request, unless there is a reason not to."""
        self._in_head = False
        if self._stage == _LAST:
            return
        if self._stage == _HEAD:
            self.shared.heads.end(self)
            self._stage = _BUSY
        if self._is_too_large():
            self.refuse(self._too_large())
        elif not (self._welcome or self._may_ask()):
            self.refuse(self.shared.full())
        else:
            self.answer_head()

    def answer_head(self) -> None:
        """Answer a request whose head has come, and which may be answered."""
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count a piece of the body, and pass it on."""
        self._body_here += len(body) + CHUNK_FRAMING
        self.take_body(body)

    def take_body(self, body: bytes) -> None:
        """Pass a piece of the body on to the request."""
        if self._stage == _TAIL:
            self._after_bytes += len(body)
            if self._after_bytes > self.shared.settings.max_body_bytes:
                self.cut()
        elif self._stage != _LAST:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if self._stage == _TAIL:
            self.shared.tails.end(self)
            self.rest()
        elif self._stage != _LAST:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """See to what comes after a response: the next request, or the rest of this one."""
        ended, next_here = not self.cycle.more_body, bool(self.pipeline)
        super().on_response_complete()
        if self._stage == _LAST or next_here:
            return
        if not ended:
            self.outlive()
            self.shared.tails.begin(self)
        elif self._in_head:
            self._stage = _HEAD
            self.shared.heads.begin(self)
        else:
            self._stage = _IDLE

    def handle_websocket_upgrade(self) -> None:
        """Become a WebSocket, which inherits the wait for a client that has not read the previous response."""
        if self._stage == _LAST:
            return
        self.shared.left(self)
        super().handle_websocket_upgrade()
        if self.flow.write_paused:
            cast(asyncio.Protocol, self.transport.get_protocol()).pause_writing()

    def _should_upgrade(self) -> bool:
        """Return whether to become a WebSocket: not while a previous request is being answered."""
        return super()._should_upgrade() and self._answering is None

    def send_400_response(self, msg: str) -> None:
        """Tell that what came is no HTTP."""
        if self._stage != _LAST:
            self.refuse(MalformedBodyError(f"{msg[:1].lower()}{msg[1:].rstrip('.')}; expected HTTP/1.1"))

    def overdue(self) -> None:
        """Take no more, as no whole head has come in time."""
        if self._in_head:
            limit_s = self.shared.settings.header_timeout_s
            self.refuse(SlowRequestError(f"the head of the request has not come within {limit_s:g} s"))
        else:
            self.transport.close()

    def refuse(self, error: Exception) -> None:
        """Tell why nothing is served here, and close."""
        if self.transport.is_closing() or self._stage == _LAST:
            return
        answering = self._answering if self._stage == _BUSY else None
        self._stage, self._after_bytes = _LAST, 0
        self.shared.left(self)
        self._unset_keepalive_if_required()
        if answering is not None and answering is self.cycle and answering.more_body and not answering.response_started:
            _abandon(answering)  # it is this request's own body, which will never be whole
        elif answering is not None:  # the request before this one has the word, and the connection closes after it
            self.pipeline.clear()
            answering.keep_alive = False
            return
        self.transport.write(self.shared.refusal(error, self.server_state.default_headers))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.shared.closes(self)

    def _refuse_framing(self) -> None:
        """Refuse what is not body and above the limit for heads; after a response there is only closing."""
        if self._stage == _TAIL:
            self.cut()
        else:
            self.refuse(self._too_large())

    def cut(self) -> None:
        """Close at once."""
        self.transport.abort()

    def outlive(self) -> None:
        """Let the body run out after a response that was sent before it had come."""
        self._stage, self._after_bytes = _TAIL, 0

    def rest(self) -> None:
        """Wait for the next request."""
        self._stage = _IDLE
        self._rested_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_handler()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if nothing has come for long enough, and look again later if not."""
        left_s = self._rested_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    @property
    def _answering(self) -> RequestResponseCycle | None:
        """The request that is being answered; `cycle` is the last that has come, others may wait between them."""
        running = self._running
        return None if running is None or running.response_complete else running

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _swallow(self, size: int) -> None:
        self._after_bytes += size
        if self._after_bytes > SWALLOWED:
            self.cut()

    def _may_ask(self) -> bool:
        """Whether a connection above the limit may ask for this: there is room by now, or it is a probe."""
        self._welcome = self.shared.has_room(self, self.connections)
        return self._welcome or self.url.partition(b"?")[0] in PROBES

    def _is_too_large(self) -> bool:
        most = self.shared.settings.max_header_bytes
        if self._first_bytes + self._framing_bytes + len(self.slice) <= most:  # whatever else is in it
            return False
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > most

    def _too_large(self) -> HeadTooLargeError:
        most = self.shared.settings.max_header_bytes
        return HeadTooLargeError(
            f"request line, headers, chunk framing and trailers have more than {most} bytes; send at most that many"
        )


def _abandon(cycle: RequestResponseCycle) -> None:
    """Report to what answers a request that its client is gone."""
    cycle.disconnected = True
    cycle.waiting_for_100_continue = False  # it would be written on receiving, when the end has been sent
    cycle.message_event.set()
