"""The protocol class for HTTP, on httptools' parser: limits of size and time, parsing in slices, and load shedding.

`stages` has the rules; this file connects them to the parser, to the transport and to the application.

A request with an Upgrade field either becomes a WebSocket or is answered as if it had no such field (RFC 9110, 7.8).
httptools ends the request at its head in both cases, even if a body follows, and leaves the rest of the bytes to
`_feed`: they go to the WebSocket, or to a new parser that first receives the head without the field. So a body is never
parsed as a request.

A request whose prediction is not admitted is answered here, before a task is created for it. A request of the Open
Inference Protocol is not: its body may request the base rate, so its endpoint reads the body before it refuses.
"""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import httptools
from starlette.types import Message

from anytime_service.clock import now_ms
from anytime_service.errors import (
    HeadTooLargeError,
    MalformedBodyError,
    OverloadedError,
    RequestTimeoutError,
    TransferCodingError,
)
from anytime_service.http.exchange import ADMITTED, STORE_REPLY
from anytime_service.limits.costs import HEADERS, PIPELINED
from anytime_service.limits.memory import MemoryBudget
from anytime_service.limits.queues import TimeoutQueue
from anytime_service.routes import Row, find
from anytime_service.schemas.values import AT_ONCE
from anytime_service.server.connections import SMALLEST_SLICE, Connection, Connections, release_head
from anytime_service.server.hosting import Host
from anytime_service.server.shedding import LoadShedding, request_key
from anytime_service.server.stages import ConnectionState, Event, Stage
from anytime_service.server.websocket_protocol import WebSocketProtocol

HEADER_OVERHEAD = 170  # bytes of memory that a header uses besides its own
MAX_WAITING = 65_536  # bytes of a body that the application has not read, above which the connection reads no more
MAX_HEADERS, MAX_PIPELINED = int(HEADERS), int(PIPELINED)
PROBE_S = 1.0  # time between interim responses to a client that sends no more and waits for its answer
MAX_KNOWN_FIELDS = 256  # a server sends few; an application may make names from requests

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_CONTROLS = bytes({*range(32), 127} - {9})
_VERSIONS = ("1.0", "1.1")  # the parser accepts 0.9 and 2.0 too
_HOST = re.compile(rb"(?:\[[\w:.%~-]+\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]*)?[ \t]*")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#@]+)((?:[/?#].*)?)")
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

_log = logging.getLogger("anytime_service")


class Cycle:
    """One request and its response, as the ASGI application sees them.

    The head of a response is sent together with the first piece of its body: a system call takes as long as reading the
    values of a group.

    Attributes
    ----------
    body, more_body
        What the application has not read, and whether more follows.
    disconnected
        Whether the client has disconnected.
    keep_alive : bool
        Whether the connection serves further requests after this one.
    complete
        Whether the response is complete.
    """

    __slots__ = (
        *(
            "_chunked",
            "_connection",
            "_head",
            "_remaining",
            "__weakref__",
            "body",
            "changed",
            "complete",
            "disconnected",
        ),
        *("keep_alive", "more_body", "must_continue", "scope", "started"),
    )

    def __init__(self, connection: HttpProtocol, scope: dict[str, Any], *, keep_alive: bool, must_continue: bool):
        self._connection: HttpProtocol | None = connection
        self.scope = scope
        self.keep_alive = keep_alive
        self.must_continue = must_continue
        self.body = bytearray()
        self.more_body = True
        self.changed = asyncio.Event()
        self.disconnected = self.started = self.complete = False
        self._head = b""
        self._chunked = False
        self._remaining: int | None = None  # bytes of the body that the head has announced

    async def run(self) -> None:
        """Have the application answer; close the connection if it fails to."""
        connection = cast(HttpProtocol, self._connection)
        try:
            await connection.host.app(self.scope, self.receive, cast(Any, self.send))
            if not (self.started or self.disconnected):
                connection.fail(RuntimeError("the application sent no response"))
        except Exception as error:
            if self.started or self.disconnected:
                _log.exception("Exception in ASGI application")
            else:
                connection.fail(error)
        finally:
            self._connection = None  # it refers to this object
            if not (self.complete or self.disconnected):
                connection.transport.close()

    def abandon(self) -> None:
        """Report to the application that the client has disconnected."""
        self.disconnected = True
        self.changed.set()

    async def receive(self) -> Message:
        connection = self._connection
        if connection is not None and not (self.disconnected or self.complete):
            if self.must_continue:
                self.must_continue = False
                connection.write(CONTINUE)
            await self.changed.wait()
            self.changed.clear()
        if self.disconnected or self.complete:
            return {"type": "http.disconnect"}
        body = bytes(self.body)
        self.body.clear()
        if len(body) > MAX_WAITING and connection is not None:
            connection.update_reading()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: dict[str, Any]) -> None:
        connection = self._connection
        if connection is None or self.complete:
            raise RuntimeError(f"{message['type']} after the end of the response")
        if connection.write_paused:
            await connection.drain(len(message.get("body", b"")))
        if self.disconnected:
            return
        if not self.started:
            self._start(message, connection.host.state.default_headers)
            return
        if message["type"] != "http.response.body":
            raise RuntimeError(f"expected http.response.body, not {message['type']}")
        body, more = message.get("body", b""), message.get("more_body", False)
        head, self._head = self._head, b""
        if self.scope["method"] == "HEAD":
            body = b""
        elif self._chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        elif self._remaining is not None:
            self._remaining -= len(body)
            if self._remaining < 0 or (self._remaining and not more):
                raise RuntimeError("the body of the response does not have the length that its head announced")
        if len(body) > MAX_WAITING:
            connection.write(head)
            connection.write(body)
        elif head or body:
            connection.write(head + body)
        if not more:
            self.complete = True
            self.changed.set()
            connection.on_response()

    def _start(self, message: dict[str, Any], default: list[tuple[bytes, bytes]]) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"expected http.response.start, not {message['type']}")
        self.started, self.must_continue = True, False
        status, headers = message["status"], [*default, *message.get("headers", ())]
        fields = dict(headers)
        if not fields.keys() <= _KNOWN_FIELDS:
            headers = [(_field(name), value) for name, value in headers]
            fields = dict(headers)
        head = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        head += [b"%b: %b\r\n" % header for header in headers]
        if b"content-length" in fields:
            self._remaining = int(fields[b"content-length"])
        self._chunked = fields.get(b"transfer-encoding", b"").lower() == b"chunked"
        if b"close" in fields.get(b"connection", b"").lower():
            self.keep_alive = False
        elif not self.keep_alive:
            head.append(b"connection: close\r\n")
        has_body = self.scope["method"] != "HEAD" and status not in (204, 304)
        if has_body and self._remaining is None and not self._chunked and self.scope["http_version"] != "1.0":
            self._chunked = True
            head.append(b"transfer-encoding: chunked\r\n")
        head.append(b"\r\n")
        self._head = b"".join(head)
        if len(self._head) - len(self._head.translate(None, _CONTROLS)) != 2 * len(head):  # that is, not the line ends
            raise RuntimeError("a header of the response has a control character")


_KNOWN_FIELDS = {b"content-length", b"content-type", b"date", b"x-request-id"}
"""Valid names of headers, in lower case; those of other responses are added."""


def _field(name: bytes) -> bytes:
    """Return the name of a header of a response in lower case."""
    if not _TOKEN.fullmatch(name):
        raise RuntimeError(f"invalid header of the response: {name!r}")
    field = name.lower()
    if len(_KNOWN_FIELDS) < MAX_KNOWN_FIELDS:
        _KNOWN_FIELDS.add(field)
    return field


class HttpProtocol(Connection):
    """A connection of HTTP; the requests of a slice are answered before the next slice is parsed."""

    def __init__(self, shared: Connections, **options: Any) -> None:
        super().__init__(shared, Host(**options))
        self._state = ConnectionState(shared.settings.max_header_bytes, shared.settings.max_body_bytes)
        self._timeout: TimeoutQueue[Connection] | None = None  # that of the stage
        self._timed_visit = -1
        self._parser: Any = None
        self._url = b""
        self._checked_host = b""  # the last valid host
        self._headers: list[tuple[bytes, bytes]] = []
        self._cycle: Cycle | None = None  # the last request
        self._running: Cycle | None = None  # the request that is being answered; others may wait behind it
        self._direct: Cycle | None = None  # the request that is answered when this slice is parsed
        self._accepted = True
        self._stopped = False
        self._heads = 0  # bytes of heads that the budget counts: one in part, and those of requests that wait

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._parser = self._new_parser()
        self._accepted = self.shared.opened(self, self.host.state.connections)
        self._time_stage()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for cycle in (self._answering, self._cycle):
            if cycle is not None:
                cycle.abandon()
        self._count_heads(0)
        # Requests refer to the connection until they have been answered, so those that never will be are cycles.
        self._unread.clear()
        self._cycle = self._running = self._parser = None

    def eof_received(self) -> bool:
        """Answer the requests of a client that sends no more (RFC 9112, 9.6), and close then.

        A client that has closed its connection looks the same; `_probe` finds out. A client that has sent a part of a
        request is not answered. Event loops close TLS in both directions at once.
        """
        last = self._cycle
        if self.scheme == "https" or last is None or last.complete or last.more_body:
            return False
        last.keep_alive = False
        self.loop.call_later(PROBE_S, self._probe)
        return True

    def _probe(self) -> None:
        """Send an interim response: a client that has closed its connection resets it, and the next one fails."""
        answering = self._answering
        if answering is not None and not answering.started and answering.scope["http_version"] != "1.0":
            self.write(CONTINUE)
            self.loop.call_later(PROBE_S, self._probe)

    def shutdown(self) -> None:
        """Close after the requests that have been received; uvicorn calls this when it stops."""
        if self._cycle is None or self._cycle.complete:
            self.transport.close()
        else:
            self._cycle.keep_alive = False

    def parse(self, data: Any) -> int:
        """Parse bytes, and return the number of requests and of pieces of bodies in them."""
        state = self._state
        before = state.pieces
        if not state.receive(len(data)):
            self.abort()
        if state.is_last():
            return 0
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:
            self.fail(error)
        except httptools.HttpParserError:
            _log.warning("Invalid HTTP request received.")
            self.refuse(MalformedBodyError("invalid HTTP request received; expected HTTP/1.1"))
        cycle, self._direct = self._direct, None
        if cycle is not None:
            is_complete = not cycle.more_body and len(cycle.body) <= AT_ONCE
            self.host.run(cycle.run(), direct=is_complete)
            if not is_complete:
                self._count_waiting()
        if self.upgraded or state.is_last():
            return 0
        if not state.end_slice():
            if state.stage is Stage.TAIL:  # a response was sent
                self.abort()
            else:
                self.refuse(self._too_large())
        self._time_stage()
        if self._heads or self._state.in_head or self._unread:
            self._count_heads(self._waiting_heads())
        if self._cycle is not None and len(self._cycle.body) > MAX_WAITING:
            self.update_reading()
        return state.pieces - before

    def _turn(self) -> None:
        super()._turn()
        if self._unread:
            self._backlog.size = SMALLEST_SLICE

    def is_free(self) -> bool:
        answering = self._answering
        return self._may_read() and not self._unread and (answering is None or answering.more_body)

    def update_reading(self) -> None:
        if self.upgraded or self.transport.is_closing():
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
        return (
            self.budget if shedding is None or self._cycle is None else shedding.account(self._cycle.scope["headers"])
        )

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection is closing."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def _waiting_heads(self) -> int:
        """Return about how many bytes of memory the heads use that are not complete, or wait behind another request."""
        heads = [self._headers] if self._state.in_head else []
        heads += [cycle.scope["headers"] for cycle in self._unread]
        return sum([len(name) + len(value) + HEADER_OVERHEAD for head in heads for name, value in head])

    def _count_heads(self, size: int) -> None:
        fits = size <= self._heads or self.budget.fits(size - self._heads)
        self.budget.add(size - self._heads)
        self._heads = size
        if not fits:
            self.refuse(OverloadedError("the server stores too many bytes for clients; retry in a second"))

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", []
        if self._state.is_last():
            return
        self._state.begin_request()
        if len(self._unread) >= MAX_PIPELINED:
            self.refuse(OverloadedError(f"{MAX_PIPELINED} requests wait on this connection; read the responses first"))

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self._headers) < MAX_HEADERS:
            self._headers.append((name.lower(), value))
        else:
            self.refuse(HeadTooLargeError(f"the request has more than {MAX_HEADERS} headers; send fewer"))

    def on_headers_complete(self) -> None:
        headers, self._headers = self._headers, []  # the parser appends trailers to the latter
        if self._state.is_last():
            return
        self._state.end_head()
        try:
            row, scope = self._checked(headers)
        except (HeadTooLargeError, MalformedBodyError, OverloadedError, TransferCodingError) as error:
            self.refuse(error)
            return
        if not self._parser.should_upgrade():
            self._answer_or_shed(scope, row)
        else:
            self._headers = headers  # `_feed` decides

    def on_body(self, body: bytes) -> None:
        state = self._state
        if state.is_last():
            return
        if not state.body(len(body)):
            self.abort()
        elif state.stage is not Stage.TAIL and self._cycle is not None and not self._cycle.complete:
            self._cycle.body += body
            self._cycle.changed.set()

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade() or self._state.is_last():  # at an upgrade only the head is complete
            return
        if self._state.stage is not Stage.TAIL and self._cycle is not None:
            self._cycle.more_body = False
            self._cycle.changed.set()
        self._state.advance(Event.BODY_END)
        self._backlog.size = SMALLEST_SLICE  # of the next requests, so that no more wait than their limit permits

    # The end.

    def on_response(self) -> None:
        """Continue with the next request or the rest of this one, and with what was received after the request."""
        self.host.state.total_requests += 1
        if self._running is None or not self._running.keep_alive:
            self.transport.close()
        if self.transport.is_closing():
            return
        if self._running is not None:
            release_head(self._running.scope["headers"])
        if self._unread:
            self._start(self._unread.popleft())
        elif self._state.stage is Stage.BUSY:
            if self._cycle is not None and self._cycle.more_body:
                self._state.advance(Event.EARLY_RESPONSE)
            else:
                self._state.advance(Event.LATE_RESPONSE if self._state.in_head else Event.RESPONSE)
            self._time_stage()
        if self._stopped:
            self.update_reading()

    def timed_out(self) -> None:
        """Stop reading: the head of the request was not complete in time."""
        if self._state.in_head:
            limit_s = self.shared.settings.header_timeout_s
            self.refuse(RequestTimeoutError(f"the head of the request was not complete within {limit_s:g} s"))
        else:
            self.transport.close()

    def refuse(self, error: Exception) -> None:
        if self.transport.is_closing() or self._state.is_last():
            return
        answering = self._answering if self._state.stage is Stage.BUSY else None
        self._state.advance(Event.REFUSAL)
        self.shared.closed(self)
        self._timed_visit = self._state.visit  # `closing` times this connection now
        if answering is not None and answering is self._cycle and answering.more_body and not answering.started:
            answering.abandon()  # the body of this request will never be complete
        elif answering is not None:  # the previous request is being answered; the connection closes after it
            self._unread.clear()
            answering.keep_alive = False
            return
        self.transport.write(self.shared.refusal(error, self.host.state.default_headers, self._url))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.shared.begin_closing(self)

    def fail(self, error: Exception) -> None:
        """Send that the server failed, as the last response."""
        self.write(self.shared.refusal(error, self.host.state.default_headers, self._url))
        self.transport.close()

    # Requests.

    @property
    def _answering(self) -> Cycle | None:
        running = self._running
        return None if running is None or running.complete else running

    def _start(self, cycle: Cycle) -> None:
        self._running = cycle
        self.host.run(cycle.run())

    def _checked(self, headers: list[tuple[bytes, bytes]]) -> tuple[Row | None, dict[str, Any]]:
        """Return the route and the scope of a request; raise an error if it must be refused before it is answered."""
        if not self._state.fits_head(self._url, headers):
            raise self._too_large()
        if self._parser.get_method() == b"CONNECT":
            raise MalformedBodyError(
                "CONNECT is not supported, because this server is not a proxy; send the request to it directly"
            )
        scope = self._scope(headers)
        row = find(scope["method"], scope["path"])
        if not self._accepted:
            self._accepted = self.shared.accepts_now(self, self.host.state.connections)
            if not (self._accepted or (row is not None and row.probe)):
                raise self.shared.limit_error()
        return row, scope

    def _scope(self, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
        """Return the ASGI scope of a request; raise an error for a head that RFC 9112 forbids to answer otherwise."""
        version = self._parser.get_http_version()
        if version not in _VERSIONS:
            raise MalformedBodyError(f"the version of the request is HTTP/{version}; expected HTTP/1.1")
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and version != "1.0"):
            raise MalformedBodyError(f"the request has {len(hosts)} Host headers; send one")
        codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
        if codings:
            if version == "1.0":
                raise MalformedBodyError("HTTP/1.0 has no Transfer-Encoding; send the request by HTTP/1.1")
            if codings != [b"chunked"]:
                raise TransferCodingError(
                    "the only supported Transfer-Encoding is chunked; send the body without others"
                )
        target = self._url
        if not target.startswith(b"/") and not (target == b"*" and self._parser.get_method() == b"OPTIONS"):
            headers, target = _from_absolute(headers, target)
            hosts = [headers[0][1]]
        if hosts and hosts[0] != self._checked_host:
            if _HOST.fullmatch(hosts[0]) is None:
                host = hosts[0][:100].decode("latin-1")
                raise MalformedBodyError(f"the host of the request is {host!r}; expected a name or an address")
            self._checked_host = hosts[0]
        raw, _, query = target.partition(b"#")[0].partition(b"?")
        if not raw.isascii():
            raise MalformedBodyError("the path has bytes that are not ASCII; percent-encode them")
        path = raw.decode()
        root = self.host.root_path
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": self._parser.get_method().decode(),
            "scheme": self.scheme,
            "server": self.server,
            "client": self.client,
            "root_path": root,
            "path": root + (unquote(path) if "%" in path else path),
            "raw_path": root.encode() + raw,
            "query_string": query,
            "headers": headers,
            "state": self.host.app_state.copy(),
        }

    def _answer_or_shed(self, scope: dict[str, Any], row: Row | None) -> None:
        """Answer a permitted request, or shed it if it would begin a prediction that is not admitted."""
        # HTTP/1.0 has no interim responses.
        must_continue = scope["http_version"] != "1.0" and _expects_continue(scope["headers"])
        shedding = self.shared.shedding
        admitted = False
        if shedding is not None and row is not None and row.shed is not None and shedding.has_key(scope["headers"]):
            scope["state"][ADMITTED] = admitted = shedding.service.admits(now_ms())
            if not admitted and not must_continue and self._shed(shedding, scope, row):
                return
        keep_alive = scope["http_version"] != "1.0" and self._parser.should_keep_alive()
        self._cycle = cycle = Cycle(self, scope, keep_alive=keep_alive, must_continue=must_continue)
        if self._answering is not None:
            self._unread.append(cycle)
        elif admitted and row is not None and row.direct:
            self._running = self._direct = cycle
            return
        else:
            self._start(cycle)
        if admitted:
            self._count_waiting()

    def _count_waiting(self) -> None:
        """Count a request of a prediction as waiting until directly after the first turn of its task."""
        if self.shared.shedding is not None:
            admission = self.shared.shedding.service.admission
            admission.waiting += 1
            self.loop.call_soon(lambda: admission.had_turn(now_ms()))

    def _shed(self, shedding: LoadShedding, scope: dict[str, Any], row: Row) -> bool:
        """Answer a request whose prediction does not begin, and return True; return False if its endpoint must."""
        busy = self._answering is not None or self._unread
        congested = self.write_paused or self.transport.get_write_buffer_size() > MAX_WAITING
        if (
            row.shed == "endpoint"  # the body may request the base rate
            or busy
            or congested
            or scope["method"] == "HEAD"
            or not self._parser.should_keep_alive()
        ):
            return False
        default = self.host.state.default_headers
        if b"overload=prior" not in self._url:
            content = shedding.refusal(default)
        elif row.shed != "stored":
            return False
        else:
            request = request_key(self._url, scope["headers"])
            prior = shedding.prior(request, default)
            if prior is None:
                scope["state"][STORE_REPLY] = partial(shedding.store_prior, request)
                return False
            content = prior
        self.transport.write(content)
        self._state.advance(Event.EARLY_RESPONSE)
        return True

    def _too_large(self) -> HeadTooLargeError:
        limit = self.shared.settings.max_header_bytes
        return HeadTooLargeError(
            f"request line, headers, chunk framing and trailers exceed {limit} bytes; send at most that many"
        )

    # Reading.

    def _may_read(self) -> bool:
        # Bodies are read even while writing is paused: the client may send its complete body before it reads.
        waits = self._cycle is not None and not self._cycle.complete and len(self._cycle.body) > MAX_WAITING
        awaits_head = self._state.stage in (Stage.IDLE, Stage.HEAD)
        return not (waits or self._rate_limited or (self.write_paused and awaits_head))

    def _time_stage(self) -> None:
        """Apply the timeout of the current stage, if it has changed."""
        if self._timed_visit != self._state.visit:
            self._timed_visit = self._state.visit
            if self._timeout is not None:
                self._timeout.end(self)
            self._timeout = self.shared.timeouts.get(self._state.stage)
            if self._timeout is not None:
                self._timeout.begin(self)

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # Answer a request with `Connection: close`, whatever follows it.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _feed(self, data: Any) -> None:
        """Parse bytes; where httptools stops at an upgrade, decide what the remaining ones are.

        Raise HttpParserError if they are not HTTP.
        """
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as stop:
                data = memoryview(data)[stop.args[0] :]
            else:
                return
            if self._state.is_last():  # refused
                return
            if self._becomes_websocket(self._headers):
                self._upgrade(data)
                return
            self._ignore_upgrade()

    def _becomes_websocket(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Return whether to become a WebSocket: at a GET of HTTP/1.1 without a body, when no answer is pending."""
        fields: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            fields.setdefault(name, []).append(value.strip().lower())
        options = b",".join(fields.get(b"connection", ())).split(b",")
        return (
            self.shared.websockets
            and self._parser.get_method() == b"GET"
            and self._parser.get_http_version() == "1.1"
            and b"upgrade" in map(bytes.strip, options)
            and fields.get(b"upgrade") == [b"websocket"]
            and b"transfer-encoding" not in fields
            and fields.get(b"content-length", [b"0"]) == [b"0"]
            and self._answering is None
        )

    def _ignore_upgrade(self) -> None:
        """Replace the parser by one that has received the same head without its Upgrade field."""
        lines = [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
        start = b"%b %b HTTP/%b" % (self._parser.get_method(), self._url, self._parser.get_http_version().encode())
        self._parser = self._new_parser()
        self._state.repeat_head()
        self._parser.feed_data(b"\r\n".join((start, *lines, b"", b"")))

    def _upgrade(self, rest: Any) -> None:
        """Become a WebSocket, with `rest` and the backlog as its first bytes.

        It inherits the timeout of a client that has not read the previous response.
        """
        headers = self._headers
        if _expects_continue(headers):
            self.transport.write(CONTINUE)  # before 101 (RFC 9110, 7.8)
        self.upgraded = True
        self.shared.closed(self)
        self._parser = None  # it refers to this object, which is not needed any more
        self.host.state.connections.discard(self)
        websocket = WebSocketProtocol(self.shared, self.host)
        websocket.connection_made(self.transport)
        self.transport.set_protocol(websocket)
        if self.write_paused:
            websocket.pause_writing()
        for piece in (rest, *self._backlog.pieces()):
            if piece:
                websocket.store(piece)
        self._clear_backlog()
        if self._stopped:
            websocket.update_reading()
        websocket.shake_hands(self._url, headers)


def _expects_continue(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(value.lower() == b"100-continue" for name, value in headers if name == b"expect")


def _from_absolute(headers: list[tuple[bytes, bytes]], target: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the headers and the target in origin form of an absolute target, whose host counts (RFC 9112, 3.2.2)."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        raise MalformedBodyError("the target of the request is invalid; expected a path or an http address")
    others = [header for header in headers if header[0] != b"host"]
    return [(b"host", found[1]), *others], found[2] if found[2].startswith(b"/") else b"/" + found[2]
