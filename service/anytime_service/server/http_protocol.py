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

Requests whose predictions are not begun, answered before there is a task for them.

Those of the Open Inference Protocol may ask for the base rate in their bodies, which are looked through first, for as
long as a body may go on after its answer.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from anytime_service.clock import now_ms
from anytime_service.errors import HeadTooLargeError, MalformedBodyError, OverloadedError, SlowRequestError
from anytime_service.http.exchange import ADMITTED, KEEP
from anytime_service.limits.memory import Held
from anytime_service.server.connections import Connections
from anytime_service.server.shedding import Key, LoadShedding, asks_for_prediction, key_of

__all__ = [
    "LOOKED_THROUGH",
    "PROBES",
    "GuardedHttpProtocol",
    "SheddingHttpProtocol",
]

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


LOOKED_THROUGH = 256 * 1024
"""Bytes of a body that may ask for the base rate; larger ones are refused unless the query does."""

_IN_QUERY = b"overload=prior"
_IN_BODY = b'"overload"'


class SheddingHttpProtocol(GuardedHttpProtocol):
    """The guarded protocol, with the decision which predictions are begun."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._looking: bytearray | None = None
        self._looking_held: Held = self.shared.held
        self._decided: bool | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._looked()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has been read; a request that is known, and its prediction not begun, is told so unread."""
        shedding = self.shared.shedding
        if shedding is not None and self.resting and isinstance(data, bytes) and not self.clogged:
            known = shedding.known(data)
            if known is not None:
                self._decided = shedding.admission.admits(now_ms())
                if not self._decided and self._told_unread(shedding, known[0]):
                    return
        super().data_received(data)
        self._decided = None

    def answer_head(self) -> None:
        """Have the request answered, if it asks for a prediction only if that is begun."""
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
            self.loop.call_soon(shedding.had_turn)  # right after the request's own task has had it
        elif not self._told_at_once(shedding):
            self._leave_to_endpoint()

    def take_body(self, body: bytes) -> None:
        """Pass a piece of the body on to the request, or look through it."""
        if self._looking is None:
            super().take_body(body)
            return
        try:
            self._looking_held.check(len(body))
        except OverloadedError:
            self._refuse_inference()
            return
        self._looking += body
        self._looking_held.bytes += len(body)
        if len(self._looking) > LOOKED_THROUGH:
            self._refuse_inference()

    def on_message_complete(self) -> None:
        """End a request."""
        if self._looking is None:
            super().on_message_complete()
            return
        if _IN_BODY in self._looking:
            body = self._looked()
            self._leave_to_endpoint()
            super().take_body(body)
        else:
            self._refuse_inference()
        super().on_message_complete()

    def overdue(self) -> None:
        """Take no more; whoever sends slowly what is looked through is told what it would have been told at its end."""
        if self._looking is None:
            super().overdue()
        else:
            self._refuse_inference()
            self.shared.tails.begin(self)

    def _told_unread(self, shedding: LoadShedding, key: Key | None) -> bool:
        default = self.server_state.default_headers
        told = shedding.refusal(default) if key is None else shedding.prior(key, default)
        if told is not None:
            self._decided = None
            self.transport.write(told)
            self.rest()
        return told is not None

    def _told_at_once(self, shedding: LoadShedding) -> bool:
        """Tell that the prediction is not begun, if nothing stands in the way of doing so here."""
        busy = self.cycle is not None and not self.cycle.response_complete
        if busy or self.clogged or self.expect_100_continue or not self.parser.should_keep_alive():
            return False
        default, key = self.server_state.default_headers, None
        if _IN_QUERY in self.url:
            if not self.url.startswith(b"/predict") or self.parser.get_method() != b"POST":
                return False
            key = key_of(self.url, self.headers)
            told = shedding.prior(key, default)
            if told is None:
                self.scope["state"][KEEP] = partial(shedding.keep, key)
                return False
        elif self.url.startswith(b"/v2"):
            self._looking, self._looking_held = bytearray(), shedding.account(self.headers)
            self.shared.looks.begin(self)
            return True
        else:
            told = shedding.refusal(default)
        self.transport.write(told)
        self.outlive()
        if self.alone_here:
            shedding.learn(bytes(self.slice), self.headers, key)
        return True

    def _leave_to_endpoint(self) -> None:
        self.scope["state"][ADMITTED] = False
        super().answer_head()

    def _refuse_inference(self) -> None:
        self._looked()
        if self.shared.shedding is not None and not self.transport.is_closing():
            self.transport.write(self.shared.shedding.refusal(self.server_state.default_headers, inference=True))
            self.outlive()

    def _looked(self) -> bytes:
        """Look no more; what has come of the body."""
        body, self._looking = bytes(self._looking or b""), None
        self._looking_held.bytes -= len(body)
        self.shared.looks.end(self)
        return body
