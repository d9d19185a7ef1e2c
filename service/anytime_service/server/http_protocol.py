"""uvicorn's HTTP protocol with limits on what a client may send and on how long it may take, and with load shedding.

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

A request with an Upgrade field either becomes a WebSocket or is answered as if it had no such field (RFC 9110, 7.8).
httptools ends the request at its head in both cases, even if a body follows, and leaves the rest of the bytes to
`_feed`: they go to the WebSocket, or to a new parser that first receives the head without the field. So a body is never
parsed as a request.

A request whose prediction is not admitted is answered here, before a task is created for it. A request of the Open
Inference Protocol is not: its body may request the base rate, so its endpoint reads the body before it refuses.

uvicorn documents none of these names of its `HttpToolsProtocol`. `pyproject.toml` caps its version, and
tests/service/test_private_names.py checks that the names exist.

- `pipeline`, `cycle`, `_start_asgi_task`, `on_response_complete`: to know which request is being answered.
- `send` and the attributes of `RequestResponseCycle`, `STATUS_LINE`: to send a response in one write.
- `flow`: to parse the backlog before reading resumes.
- `connections`, `server_state.default_headers`, `parser`, `url`, `headers`, `scope`, `expect_100_continue`: to refuse
  and to shed requests outside the application.
- `_unset_keepalive_if_required`, `server_state.total_requests`: to time idle connections in one queue; a timer for each
  response takes 2 us.
- `_should_upgrade`, `handle_websocket_upgrade`, `ws_protocol_class`: to decide which request becomes a WebSocket, and
  to pass on the limits of its connection and the bytes behind its head.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from anytime_service.clock import now_ms
from anytime_service.errors import HeadTooLargeError, MalformedBodyError, OverloadedError, RequestTimeoutError
from anytime_service.http.exchange import ADMITTED, STORE_REPLY
from anytime_service.limits.memory import MemoryBudget
from anytime_service.server.connections import Connection, Connections
from anytime_service.server.shedding import LoadShedding, begins_prediction, request_key
from anytime_service.server.tls import with_close_timeout
from anytime_service.server.websocket_protocol import WebSocketProtocol

PROBES = frozenset((b"/livez", b"/readyz", b"/metrics", b"/v2/health/live", b"/v2/health/ready"))
"""Paths that connections above the limit may request."""

MAX_PIPELINED = 128  # largest number of requests of one connection that wait for the response to the previous one
MAX_DISCARDED = 1024 * 1024  # bytes to discard after the last response, so that the client has time to read it
CHUNK_FRAMING = 20  # bytes around each chunk that do not count: 16 hexadecimal digits and two line ends

_HEAD, _BUSY, _TAIL, _IDLE, _LAST = range(5)

_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class _BacklogFlow(FlowControl):
    """Flow control that parses the backlog before it resumes reading; it does not refer to the connection."""

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            connection = self._transport.get_protocol()
            if isinstance(connection, HttpProtocol):  # else it is a WebSocket, or closed
                connection.update_reading()


class _Cycle(RequestResponseCycle):
    """uvicorn's request and response, which sends the head and a complete body in one write.

    uvicorn makes two, and a system call takes as long as reading the values of a group. Any other response (in pieces,
    without a length, the last one of a connection) is sent by uvicorn, once its body begins.
    """

    _head: Any = None

    async def send(self, message: Any) -> None:
        head, self._head = self._head, None
        if not self.response_started and message["type"] == "http.response.start":
            self._head, self.response_started = message, True
            return
        if head is not None:
            headers = self.default_headers + head["headers"]
            values, body = dict(headers), message.get("body", b"")
            if (
                message.get("more_body")
                or values.get(b"content-length") != b"%d" % len(body)
                or not values.keys().isdisjoint((b"connection", b"transfer-encoding"))
                or not self.keep_alive
                or self.disconnected
                or self.flow.write_paused
                or self.scope["method"] == "HEAD"
                or _CONTROL.search(b"".join(values.values()))
            ):
                self.response_started = False
                await super().send(head)
            else:
                lines = [b"%b: %b\r\n" % header for header in headers]
                self.transport.write(b"".join((STATUS_LINE[head["status"]], *lines, b"\r\n", body)))
                self.response_complete = True
                self.message_event.set()
                self.on_response()
                return
        await super().send(message)


class HttpProtocol(Connection, HttpToolsProtocol):
    """uvicorn's protocol for HTTP with limits of size and time, parsing in slices, and load shedding.

    The requests of a slice are answered before the next slice is parsed.
    """

    def __init__(self, shared: Connections, *args: Any, **options: Any) -> None:
        super().__init__(shared, *args, **options)
        self._stage = _HEAD
        self._in_head = False
        self._begun_here = False  # whether a request begins in this slice
        self._slice_bytes = 0
        self._first_bytes = 0  # bytes of the slice in which the request begins, after that slice
        self._framing_bytes = 0  # bytes of the request that are not body, without the slice in which it begins
        self._body_here = 0  # bytes of this slice that are body, or framing that is not counted
        self._after_bytes = 0  # bytes received after the response
        self._pieces = 0  # number of requests and of pieces of bodies
        self._running: RequestResponseCycle | None = None
        self._accepted = True
        self._stopped = False

    def connection_made(self, transport: Any) -> None:
        transport = with_close_timeout(transport, self.loop)
        super().connection_made(transport)
        self.flow = _BacklogFlow(transport)
        self._accepted = self.shared.opened(self, self.connections)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        answering = self._answering
        if answering is not None:
            _abandon(answering)
        # Requests refer to the connection until they have been answered, so those that never will be are cycles.
        self.pipeline.clear()
        self.cycle = cast(Any, None)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, after the waiting requests."""
        if self.pipeline:
            self._store(data)
        else:
            super().data_received(data)

    def parse(self, data: Any) -> None:
        if self._stage == _LAST:
            self._after_bytes += len(data)
            if self._after_bytes > MAX_DISCARDED:
                self.cut()
            return
        self._slice_bytes, self._begun_here, self._body_here = len(data), False, 0
        if self._stage == _IDLE:
            self._stage = _HEAD
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.refuse(MalformedBodyError("invalid HTTP request received; expected HTTP/1.1"))
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

    def messages(self) -> int:
        """Return the number of requests and of pieces of bodies so far."""
        return self._pieces

    def is_free(self) -> bool:
        return self._may_read() and not self.pipeline

    def update_reading(self) -> None:
        if self.transport.get_protocol() is not self:  # a WebSocket, which reads by its own rules
            return
        self._stopped = bool(self._backlog) or not self._may_read()
        if not self._stopped:
            self.transport.resume_reading()  # even while requests wait: their client may close
            return
        self.transport.pause_reading()
        if self._backlog and self.is_free():
            self._queue_turn()

    def pause_writing(self) -> None:
        """Begin no further request while the client does not read the previous responses."""
        super().pause_writing()
        self.update_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.update_reading()

    def budget_of_unsent(self) -> MemoryBudget:
        shedding = self.shared.shedding
        return self.held if shedding is None or not self.scope else shedding.account([*self.scope["headers"]])

    def on_message_begin(self) -> None:
        self._pieces += 1
        if self._stage == _IDLE:  # the slice begins with the rest of a body whose response was sent before
            self._unset_keepalive_if_required()  # uvicorn does so only before it parses
            self._stage = _HEAD
        self._in_head = self._begun_here = True
        self._framing_bytes = self._first_bytes = 0
        super().on_message_begin()
        if len(self.pipeline) >= MAX_PIPELINED:
            self.refuse(OverloadedError(f"{MAX_PIPELINED} requests wait on this connection; read the responses first"))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.headers = self.headers.copy()  # uvicorn appends trailers, which the request in `scope` must not get
        if self._stage == _LAST:
            return
        if self._stage == _HEAD:
            self.shared.heads.end(self)
            self._stage = _BUSY
        upgrades = self.parser.should_upgrade()
        if self._is_too_large():
            self.refuse(self._too_large())
        elif upgrades and self.parser.get_method() == b"CONNECT":
            self.refuse(
                MalformedBodyError(
                    "CONNECT is not supported, because this server is not a proxy; send the request to it directly"
                )
            )
        elif upgrades and not self._should_upgrade():
            return  # `_feed` has the request parsed again
        elif not (self._accepted or self._may_request()):
            self.refuse(self.shared.limit_error())
        elif upgrades:
            super().on_headers_complete()  # completes `scope`, from which the handshake is made
        else:
            if self.expect_100_continue and self.parser.get_http_version() == "1.0":
                self.expect_100_continue = False  # HTTP/1.0 has no interim responses
            self._answer_or_shed()

    def on_body(self, body: bytes) -> None:
        self._pieces += 1
        self._body_here += len(body) + CHUNK_FRAMING
        if self._stage == _TAIL:
            self._after_bytes += len(body)
            if self._after_bytes > self.shared.settings.max_body_bytes:
                self.cut()
        elif self._stage != _LAST:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():  # only the head is complete
            return
        if self._stage == _TAIL:
            self.shared.tails.end(self)
            self._begin_idle()
        elif self._stage != _LAST:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Continue with the next request or the rest of this one, and with what was received after the request."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            elif self._stage != _LAST:
                if self.cycle.more_body:
                    self._begin_tail()
                    self.shared.tails.begin(self)
                elif self._in_head:
                    self._stage = _HEAD
                    self.shared.heads.begin(self)
                else:
                    self._begin_idle()
        if self._stopped and not self.transport.is_closing():
            self.update_reading()

    def handle_websocket_upgrade(self, rest: Any = b"") -> None:
        """Become a WebSocket, with `rest` and the backlog as its first bytes.

        It inherits the timeout of a client that has not read the previous response.
        """
        self.shared.closed(self)
        if self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # before 101 (RFC 9110, 7.8)
        super().handle_websocket_upgrade()
        self.parser = cast(Any, None)  # it refers to this object, which is not needed any more
        websocket = cast(WebSocketProtocol, self.transport.get_protocol())
        websocket.continue_with((rest, *self._backlog.pieces()))
        self._clear_backlog()
        if self._stopped:
            websocket.update_reading()
        if self.flow.write_paused:
            websocket.pause_writing()

    def _should_upgrade(self) -> bool:
        """Return whether to become a WebSocket: at a GET of HTTP/1.1 without a body, when no answer is pending."""
        fields: dict[bytes, list[bytes]] = {}
        for name, value in self.headers:
            fields.setdefault(name, []).append(value.strip().lower())
        options = b",".join(fields.get(b"connection", ())).split(b",")
        return (
            self.ws_protocol_class is not None
            and self.parser.get_method() == b"GET"
            and self.parser.get_http_version() == "1.1"
            and b"upgrade" in map(bytes.strip, options)
            and fields.get(b"upgrade") == [b"websocket"]
            and b"transfer-encoding" not in fields
            and fields.get(b"content-length", [b"0"]) == [b"0"]
            and self._answering is None
        )

    def _feed(self, data: Any) -> None:
        """Parse bytes; where httptools stops at an upgrade, decide what the remaining ones are.

        Raise HttpParserError if they are not HTTP.
        """
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stop:
                data = memoryview(data)[stop.args[0] :]
            else:
                return
            if self._stage == _LAST:  # refused
                return
            if self._should_upgrade():
                self.handle_websocket_upgrade(data)
                return
            self._ignore_upgrade()

    def _ignore_upgrade(self) -> None:
        """Replace the parser by one that has received the same head without its Upgrade field."""
        lines = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        start = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        counters = self._begun_here, self._first_bytes, self._framing_bytes
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self.parser.feed_data(b"\r\n".join((start, *lines, b"", b"")))
        self._begun_here, self._first_bytes, self._framing_bytes = counters  # the head is counted already

    def timed_out(self) -> None:
        """Stop reading: the head of the request was not complete in time."""
        if self._in_head:
            limit_s = self.shared.settings.header_timeout_s
            self.refuse(RequestTimeoutError(f"the head of the request was not complete within {limit_s:g} s"))
        else:
            self.transport.close()

    def refuse(self, error: Exception) -> None:
        if self.transport.is_closing() or self._stage == _LAST:
            return
        answering = self._answering if self._stage == _BUSY else None
        self._stage, self._after_bytes = _LAST, 0
        self.shared.closed(self)
        self._unset_keepalive_if_required()  # `closing` times this connection now
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

    @property
    def _answering(self) -> RequestResponseCycle | None:
        """Return the request that is being answered; `cycle` is the last received one, and others may wait between."""
        running = self._running
        return None if running is None or running.response_complete else running

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.__class__ = _Cycle
        self._running = cycle  # uvicorn starts every request here, also one that waited behind another
        super()._start_asgi_task(cycle, app)

    def _answer_or_shed(self) -> None:
        """Answer a permitted request, or shed it if it would begin a prediction that is not admitted."""
        shedding = self.shared.shedding
        if (
            shedding is None
            or not begins_prediction(self.parser.get_method(), self.url)
            or not shedding.has_key(self.headers)
        ):
            super().on_headers_complete()
        elif shedding.admission.admits(now_ms()):
            self.scope["state"][ADMITTED] = True
            super().on_headers_complete()
            shedding.admission.waiting += 1
            # Directly after the first turn of the request's task.
            self.loop.call_soon(lambda: shedding.admission.had_turn(now_ms()))
        elif not self._shed(shedding):
            self.scope["state"][ADMITTED] = False
            super().on_headers_complete()

    def _shed(self, shedding: LoadShedding) -> bool:
        """Answer a request whose prediction does not begin, and return True; return False if its endpoint must."""
        busy = self.cycle is not None and not self.cycle.response_complete
        congested = self.flow.write_paused or self.transport.get_write_buffer_size() > HIGH_WATER_LIMIT
        if busy or congested or self.expect_100_continue or not self.parser.should_keep_alive():
            return False
        if self.url.startswith(b"/v2"):  # the body may request the base rate
            return False
        default = self.server_state.default_headers
        if b"overload=prior" not in self.url:
            content = shedding.refusal(default)
        elif not self.url.startswith(b"/predict") or self.parser.get_method() != b"POST":
            return False
        else:
            request = request_key(self.url, self.headers)
            prior = shedding.prior(request, default)
            if prior is None:
                self.scope["state"][STORE_REPLY] = partial(shedding.store_prior, request)
                return False
            content = prior
        self.transport.write(content)
        self._begin_tail()
        return True

    def _begin_tail(self) -> None:
        """Read the remaining body after an early response."""
        self._stage, self._after_bytes = _TAIL, 0

    def _begin_idle(self) -> None:
        self._stage = _IDLE
        self.shared.idle.begin(self)

    def _unset_keepalive_if_required(self) -> None:
        self.shared.idle.end(self)

    def _may_read(self) -> bool:
        # Bodies are read even while writing is paused: the client may send its complete body before it reads.
        awaits_head = self._stage in (_IDLE, _HEAD)
        return not (self.flow.read_paused or self._rate_limited or (self.flow.write_paused and awaits_head))

    def _may_request(self) -> bool:
        """Return whether a connection above the limit may send this request: it is a probe, or others have closed."""
        self._accepted = self.shared.accepts_now(self, self.connections)
        return self._accepted or self.url.partition(b"?")[0] in PROBES

    def _refuse_framing(self) -> None:
        """Refuse framing bytes above the limit for heads; after a response close instead."""
        if self._stage == _TAIL:
            self.cut()
        else:
            self.refuse(self._too_large())

    def _is_too_large(self) -> bool:
        limit = self.shared.settings.max_header_bytes
        if self._first_bytes + self._framing_bytes + self._slice_bytes <= limit:  # even if all of it were the head
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
