"""uvicorn's HTTP protocol with limits on what a client may send and on how long it may take.

An HTTP connection goes through stages, and each stage has a time limit:

===== ======================================= =================================================================
stage                                         ends
===== ======================================= =================================================================
HEAD  the server waits for a request's head   when the head is complete, or with 408 after the header timeout
BUSY  the server is answering the request     with the response; deadlines and `exchange` bound the time
TAIL  the body continues after the response   with the body, after `LINGER_S`, or above the limit for bodies
IDLE  nothing was received since the response with the next byte, or after the idle timeout
LAST  the server has sent its last response   when the client closes, after `LINGER_S`, or after `MAX_DISCARDED` bytes
===== ======================================= =================================================================

Every received byte counts against one of two limits. Bytes of bodies count against the limit for bodies. All other
bytes of a request (request line, headers, chunk sizes and extensions, trailers, blank lines) share one counter, which
may reach the limit for heads. Trailers are ignored.

`SheddingHttpProtocol` answers requests whose predictions are refused before a task is created for them. Requests of the
Open Inference Protocol may request the base rate in their bodies, so the protocol scans these bodies first, for at most
`LINGER_S`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from anytime_service.clock import now_ms
from anytime_service.errors import HeadTooLargeError, MalformedBodyError, OverloadedError, RequestTimeoutError
from anytime_service.http.exchange import ADMITTED, STORE_REPLY
from anytime_service.limits.memory import MemoryBudget
from anytime_service.server.connections import Connections
from anytime_service.server.shedding import Key, LoadShedding, asks_for_prediction, key_of

__all__ = [
    "MAX_SCANNED",
    "PROBES",
    "GuardedHttpProtocol",
    "SheddingHttpProtocol",
]

PROBES = frozenset((b"/livez", b"/readyz", b"/metrics", b"/v2/health/live", b"/v2/health/ready"))
"""Paths that connections above the limit may request."""

MAX_DISCARDED = 1024 * 1024
"""Bytes to discard after the last response, so that the client has time to read it."""

CHUNK_FRAMING = 20
"""Bytes around each piece of a chunked body that do not count: a size of 16 hexadecimal digits and two line ends."""

_HEAD, _BUSY, _TAIL, _IDLE, _LAST = range(5)


class GuardedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol for HTTP with limits of size and time.

    Parameters
    ----------
    shared : shared state of the server's connections.

    Attributes
    ----------
    slice : the bytes that are being parsed.
    single_request : whether the slice begins with a request and contains no other.
    """

    def __init__(self, shared: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.shared = shared
        self._stage = _HEAD
        self._in_head = False
        self._begun_here = False
        self._framing_bytes = 0  # bytes that are not body, without the slice in which the request begins
        self._body_here = 0  # bytes of this slice that are body, or framing that is not counted
        self._first_bytes = 0
        self._after_bytes = 0
        self._running: RequestResponseCycle | None = None
        self.slice: bytes = b""
        self.single_request = False
        self._accepted = True
        self._idle_since_s = 0.0

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        super().connection_made(transport)
        self._accepted = self.shared.opened(self, self.connections)

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self.shared.closed(self)
        super().connection_lost(exc)
        answering = self._answering
        if answering is not None:
            _abandon(answering)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and start the timeout for the remaining ones."""
        if self._stage == _LAST:
            self._discard(len(data))
            return
        self.slice, self._begun_here, self.single_request, self._body_here = data, False, self.idle, 0
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
    def idle(self) -> bool:
        """Return whether the next byte is the first of a request."""
        return self._stage == _IDLE

    @property
    def awaits_head(self) -> bool:
        """Return whether the next bytes begin a request or continue its head."""
        return self._stage in (_IDLE, _HEAD)

    @property
    def congested(self) -> bool:
        """Return whether too many bytes are unsent to write a further response at once."""
        return self.flow.write_paused or self.transport.get_write_buffer_size() > HIGH_WATER_LIMIT

    def pause_writing(self) -> None:
        """Wait for the client to read what was sent."""
        shedding = self.shared.shedding
        held = self.shared.held if shedding is None else shedding.account(self.headers or ())
        self.shared.stalled(self, self.transport.get_write_buffer_size(), held)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Resume sending."""
        self.shared.resumed(self)
        super().resume_writing()

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self._stage == _IDLE:  # the slice begins with the rest of a body whose response was sent before
            self._unset_keepalive_if_required()
            self._stage = _HEAD
        self.single_request = self.single_request and not self._begun_here
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
        elif not (self._accepted or self._may_request()):
            self.refuse(self.shared.limit_error())
        else:
            self.answer_head()

    def answer_head(self) -> None:
        """Answer a permitted request whose head is complete."""
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count a piece of the body, and pass it on."""
        self._body_here += len(body) + CHUNK_FRAMING
        self.pass_body(body)

    def pass_body(self, body: bytes) -> None:
        """Pass a piece of the body to the request."""
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
            self.begin_idle()
        elif self._stage != _LAST:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Enter the stage after a response: the next request, or the rest of this one."""
        ended, next_here = not self.cycle.more_body, bool(self.pipeline)
        super().on_response_complete()
        if self._stage == _LAST or next_here:
            return
        if not ended:
            self.begin_tail()
            self.shared.tails.begin(self)
        elif self._in_head:
            self._stage = _HEAD
            self.shared.heads.begin(self)
        else:
            self._stage = _IDLE

    def handle_websocket_upgrade(self) -> None:
        """Become a WebSocket; it inherits the timeout of a client that has not read the previous response."""
        if self._stage == _LAST:
            return
        self.shared.closed(self)
        super().handle_websocket_upgrade()
        if self.flow.write_paused:
            cast(asyncio.Protocol, self.transport.get_protocol()).pause_writing()

    def _should_upgrade(self) -> bool:
        """Return whether to become a WebSocket: not while a previous request is being answered."""
        return super()._should_upgrade() and self._answering is None

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not valid HTTP."""
        if self._stage != _LAST:
            self.refuse(MalformedBodyError(f"{msg[:1].lower()}{msg[1:].rstrip('.')}; expected HTTP/1.1"))

    def timed_out(self) -> None:
        """Stop reading: the head of the request was not complete in time."""
        if self._in_head:
            limit_s = self.shared.settings.header_timeout_s
            self.refuse(RequestTimeoutError(f"the head of the request was not complete within {limit_s:g} s"))
        else:
            self.transport.close()

    def refuse(self, error: Exception) -> None:
        """Send the error as the last response, and close."""
        if self.transport.is_closing() or self._stage == _LAST:
            return
        answering = self._answering if self._stage == _BUSY else None
        self._stage, self._after_bytes = _LAST, 0
        self.shared.closed(self)
        self._unset_keepalive_if_required()
        if answering is not None and answering is self.cycle and answering.more_body and not answering.response_started:
            _abandon(answering)  # the body of this request will never be complete
        elif answering is not None:  # the previous request is being answered; the connection closes after it
            self.pipeline.clear()
            answering.keep_alive = False
            return
        self.transport.write(self.shared.refusal(error, self.server_state.default_headers))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.shared.begin_closing(self)

    def _refuse_framing(self) -> None:
        """Refuse framing bytes above the limit for heads; after a response close instead."""
        if self._stage == _TAIL:
            self.cut()
        else:
            self.refuse(self._too_large())

    def cut(self) -> None:
        """Close at once."""
        self.transport.abort()

    def begin_tail(self) -> None:
        """Read the remaining body after an early response."""
        self._stage, self._after_bytes = _TAIL, 0

    def begin_idle(self) -> None:
        """Wait for the next request."""
        self._stage = _IDLE
        self._idle_since_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_handler()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection after the idle timeout; if it has not passed yet, check again later."""
        remaining_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if remaining_s > 0:
            self.timeout_keep_alive_task = self.loop.call_later(remaining_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    @property
    def _answering(self) -> RequestResponseCycle | None:
        """Return the request that is being answered; `cycle` is the last received one, and others may wait between."""
        running = self._running
        return None if running is None or running.response_complete else running

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _discard(self, size: int) -> None:
        self._after_bytes += size
        if self._after_bytes > MAX_DISCARDED:
            self.cut()

    def _may_request(self) -> bool:
        """Return whether a connection above the limit may send this request: it is a probe, or others have closed."""
        self._accepted = self.shared.accepts_now(self, self.connections)
        return self._accepted or self.url.partition(b"?")[0] in PROBES

    def _is_too_large(self) -> bool:
        limit = self.shared.settings.max_header_bytes
        if self._first_bytes + self._framing_bytes + len(self.slice) <= limit:  # even if all of it were the head
            return False
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > limit

    def _too_large(self) -> HeadTooLargeError:
        limit = self.shared.settings.max_header_bytes
        return HeadTooLargeError(
            f"request line, headers, chunk framing and trailers exceed {limit} bytes; send at most that many"
        )


def _abandon(cycle: RequestResponseCycle) -> None:
    """Report to the application that the client of a request has disconnected."""
    cycle.disconnected = True
    cycle.waiting_for_100_continue = False  # otherwise uvicorn would write it after the end of the response
    cycle.message_event.set()


MAX_SCANNED = 256 * 1024
"""Largest body in bytes that is scanned for a request of the base rate; larger ones need it in the query."""

_IN_QUERY = b"overload=prior"
_IN_BODY = b'"overload"'


class SheddingHttpProtocol(GuardedHttpProtocol):
    """The guarded protocol with admission control: it decides which predictions begin."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._scanned: bytearray | None = None
        self._scan_budget: MemoryBudget = self.shared.held
        self._decided: bool | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._end_scan()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; a known request that is not admitted is answered without parsing."""
        shedding = self.shared.shedding
        if shedding is not None and self.idle and isinstance(data, bytes) and not self.congested:
            known = shedding.known(data)
            if known is not None:
                self._decided = shedding.admission.admits(now_ms())
                if not self._decided and self._answered_unparsed(shedding, known[0]):
                    return
        super().data_received(data)
        self._decided = None

    def answer_head(self) -> None:
        """Answer the request, or shed it if it would begin a prediction that is not admitted."""
        shedding = self.shared.shedding
        if shedding is None or not asks_for_prediction(self.parser.get_method(), self.url):
            super().answer_head()
            return
        decided, self._decided = self._decided, None
        if decided is None:
            if not shedding.has_key(self.headers):
                super().answer_head()
                return
            decided = shedding.admission.admits(now_ms())
        if decided:
            self.scope["state"][ADMITTED] = True
            super().answer_head()
            shedding.admission.waiting += 1
            self.loop.call_soon(shedding.had_turn)  # directly after the first turn of the request's task
        elif not self._answered_at_once(shedding):
            self._pass_to_endpoint()

    def pass_body(self, body: bytes) -> None:
        """Pass a piece of the body to the request, or scan it."""
        if self._scanned is None:
            super().pass_body(body)
            return
        try:
            self._scan_budget.check(len(body))
        except OverloadedError:
            self._refuse_inference()
            return
        self._scanned += body
        self._scan_budget.bytes += len(body)
        if len(self._scanned) > MAX_SCANNED:
            self._refuse_inference()

    def on_message_complete(self) -> None:
        """End a request."""
        if self._scanned is None:
            super().on_message_complete()
            return
        if _IN_BODY in self._scanned:
            body = self._end_scan()
            self._pass_to_endpoint()
            super().pass_body(body)
        else:
            self._refuse_inference()
        super().on_message_complete()

    def timed_out(self) -> None:
        """Stop reading; a body that is scanned and arrives too slowly is refused as at its end."""
        if self._scanned is None:
            super().timed_out()
        else:
            self._refuse_inference()
            self.shared.tails.begin(self)

    def _answered_unparsed(self, shedding: LoadShedding, key: Key | None) -> bool:
        default = self.server_state.default_headers
        content = shedding.refusal(default) if key is None else shedding.prior(key, default)
        if content is not None:
            self._decided = None
            self.transport.write(content)
            self.begin_idle()
        return content is not None

    def _answered_at_once(self, shedding: LoadShedding) -> bool:
        """Answer a request whose prediction does not begin, and return True; return False if the application must."""
        busy = self.cycle is not None and not self.cycle.response_complete
        if busy or self.congested or self.expect_100_continue or not self.parser.should_keep_alive():
            return False
        default, key = self.server_state.default_headers, None
        if _IN_QUERY in self.url:
            if not self.url.startswith(b"/predict") or self.parser.get_method() != b"POST":
                return False
            key = key_of(self.url, self.headers)
            content = shedding.prior(key, default)
            if content is None:
                self.scope["state"][STORE_REPLY] = partial(shedding.store_prior, key)
                return False
        elif self.url.startswith(b"/v2"):
            self._scanned, self._scan_budget = bytearray(), shedding.account(self.headers)
            self.shared.looks.begin(self)
            return True
        else:
            content = shedding.refusal(default)
        self.transport.write(content)
        self.begin_tail()
        if self.single_request:
            shedding.learn(bytes(self.slice), self.headers, key)
        return True

    def _pass_to_endpoint(self) -> None:
        self.scope["state"][ADMITTED] = False
        super().answer_head()

    def _refuse_inference(self) -> None:
        self._end_scan()
        if self.shared.shedding is not None and not self.transport.is_closing():
            self.transport.write(self.shared.shedding.refusal(self.server_state.default_headers, inference=True))
            self.begin_tail()

    def _end_scan(self) -> bytes:
        """End the scan and return the received part of the body."""
        body, self._scanned = bytes(self._scanned or b""), None
        self._scan_budget.bytes -= len(body)
        self.shared.looks.end(self)
        return body
