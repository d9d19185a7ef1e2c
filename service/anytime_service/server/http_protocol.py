"""The protocol class for HTTP: one request at a time, with its limits of size and time, and load shedding.

`requests` has the rules of the wire without I/O; this file connects them to the transport and to the application. A
connection waits for a head, then answers (`_transaction`) while the rest of the body arrives (`_body`). After the
response it reads the rest of the body, within a limit of bytes and time, and then the next head, or closes: so a client
that reads nothing until it has sent everything receives an early response. A head is read before anything else is done
for it: a request whose prediction is not admitted is answered here, before a task exists and before its body is
decoded. A request of the Open Inference Protocol is not: its body may request the base rate, so its endpoint reads the
body before it refuses.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any, cast

from starlette.types import Message

from anytime_service.clock import now_ms
from anytime_service.errors import (
    HeadTooLargeError,
    MalformedBodyError,
    OverloadedError,
    RequestTimeoutError,
    TransferCodingError,
)
from anytime_service.http.responses import response_head
from anytime_service.limits.memory import Account
from anytime_service.limits.turns import AT_ONCE
from anytime_service.routes import is_probe, route_of
from anytime_service.server.connections import LARGE, Connection, Connections
from anytime_service.server.requests import Body, Head

MAX_UNREAD = 65_536  # bytes of a body that the application has not read, above which the connection reads no more
MAX_DISCARDED = 1024 * 1024  # bytes to discard after the last response, so that the client has time to read it
FIRST_PROBE_S, PROBE_S = 0.02, 1.0
"""Time to the first interim response to a client that sends no more and waits for its answer, and largest time between
two: each time is twice the one before."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_CONTROLS = bytes({*range(32), 127} - {9})
_NAMES = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]*")  # of headers of responses, joined; ASGI has them in lower case
_REFUSED = (HeadTooLargeError, MalformedBodyError, OverloadedError, TransferCodingError)

_log = logging.getLogger("anytime_service")


class Transaction:
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
        *("_chunked", "_connection", "_head", "_read", "_remaining", "__weakref__", "body", "changed", "complete"),
        *("disconnected", "keep_alive", "more_body", "must_continue", "scope", "started"),
    )

    def __init__(
        self, connection: HttpProtocol, scope: dict[str, Any], *, keep_alive: bool, must_continue: bool, more_body: bool
    ) -> None:
        self._connection: HttpProtocol | None = connection
        self.scope = scope
        self.keep_alive = keep_alive
        self.must_continue = must_continue
        self.body = bytearray()
        self.more_body = more_body
        self.changed = asyncio.Event()
        if not more_body:
            self.changed.set()
        self.disconnected = self.started = self.complete = False
        self._read = False  # whether the application has read the whole body
        self._head = b""
        self._chunked = False
        self._remaining: int | None = None  # bytes of the body that the head has announced

    async def run(self) -> None:
        """Have the application answer; close the connection if it fails to."""
        connection = cast(HttpProtocol, self._connection)
        try:
            await connection.config.loaded_app(self.scope, self.receive, cast(Any, self.send))
            if not (self.started or self.disconnected):
                connection.fail(RuntimeError("the application sent no response"), self)
        except Exception as error:
            if self.started or self.disconnected:
                _log.exception("Exception in ASGI application")
            else:
                connection.fail(error, self)
        finally:
            self._connection = None  # it refers to this object
            if not (self.complete or self.disconnected):
                connection.close()
            elif connection.reader is self:  # nobody reads the rest of the body
                connection.reader = None
                connection.proceed()

    def abandon(self) -> None:
        """Report to the application that the client has disconnected."""
        self.disconnected = True
        self.changed.set()

    async def receive(self) -> Message:
        """Return the next part of the body, the rest also after the response, and then that the client is gone."""
        connection = self._connection
        if connection is not None and not (self.disconnected or (self.complete and self._read)):
            if self.must_continue:
                self.must_continue = False
                connection.transmit(CONTINUE)
            await self.changed.wait()
            self.changed.clear()
        if connection is None or self.disconnected or (self.complete and self._read):
            return {"type": "http.disconnect"}
        body, more = bytes(self.body), self.more_body
        self.body.clear()
        self._read = not more
        if len(body) > MAX_UNREAD:
            connection.proceed()  # it may add the last part
        return {"type": "http.request", "body": body, "more_body": more}

    async def send(self, message: dict[str, Any]) -> None:
        connection = self._connection
        if connection is None or self.complete:
            raise RuntimeError(f"{message['type']} after the end of the response")
        if connection.write_paused:
            await connection.drain(len(message.get("body", b"")))
        if self.disconnected:
            return
        if not self.started:
            self._start(message, connection.state.default_headers)
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
        if len(body) > LARGE:
            connection.transmit(head)
            connection.transmit(body)
        elif head or body:
            connection.transmit(head + body)
        if not more:
            self.complete = True
            self.changed.set()
            connection.answered(self)

    def _start(self, message: dict[str, Any], default: list[tuple[bytes, bytes]]) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"expected http.response.start, not {message['type']}")
        self.started, self.must_continue = True, False
        status, headers = message["status"], [*default, *message.get("headers", ())]
        fields = dict(headers)
        if b"content-length" in fields:
            self._remaining = int(fields[b"content-length"])
        self._chunked = fields.get(b"transfer-encoding", b"").lower() == b"chunked"
        if b"close" in fields.get(b"connection", b"").lower():
            self.keep_alive = False
        elif not self.keep_alive:
            headers.append((b"connection", b"close"))
        has_body = self.scope["method"] != "HEAD" and status not in (204, 304)
        if has_body and self._remaining is None and not self._chunked and self.scope["http_version"] != "1.0":
            self._chunked = True
            headers.append((b"transfer-encoding", b"chunked"))
        head = response_head(status, headers)
        controls = len(head) - len(head.translate(None, _CONTROLS)) - 2 * (len(headers) + 2)  # but for the line ends
        if controls or _NAMES.fullmatch(b"".join(fields)) is None:
            raise RuntimeError("a header of the response is invalid; expected a name in lower case, and no line ends")
        self._head = head


class HttpProtocol(Connection):
    """A connection of HTTP."""

    def __init__(self, shared: Connections, **options: Any) -> None:
        super().__init__(shared, **options)
        self._transaction: Transaction | None = None  # the request that is being answered
        self._body: Body | None = None  # the framing of a body, until that is complete
        self.reader: Transaction | None = None  # the request whose body that is, if its application may still read it
        self._url, self._method = b"", ""  # of the last head
        self._is_last = False  # whether the server has sent its last response, or closes after the present request
        self._discarded = 0  # bytes of this request, or of anything, after its response

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.shared.opened(self)
        self.wait_in(self.shared.heads)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.shared.excess.pop(self, None)
        for each in (self._transaction, self.reader):
            if each is not None:
                each.abandon()
        self._transaction = self._body = self.reader = None

    def eof_received(self) -> bool:
        """Answer the requests of a client that sends no more (RFC 9112, 9.6), and close then.

        A client that has closed its connection looks the same; `_probe` finds out. A client that has sent a part of a
        request is not answered. Event loops close TLS in both directions at once.
        """
        waiting = self._transaction
        if self.scope["scheme"] == "https":
            return False
        if waiting is None and self.received and self.write_paused and not self._is_last:
            self.ended = True  # a request waits until the client reads
            return True
        if waiting is None or waiting.more_body:
            self.close()
            return False
        self.ended = True
        waiting.keep_alive = waiting.keep_alive and bool(self.received)
        self.loop.call_later(FIRST_PROBE_S, self._probe, 2 * FIRST_PROBE_S)
        return True

    def _probe(self, next_s: float) -> None:
        """Send an interim response: a client that has closed its connection resets it, and the next one fails."""
        waiting = self._transaction
        if waiting is not None and not waiting.started and waiting.scope["http_version"] != "1.0":
            self.transmit(CONTINUE)
            self.loop.call_later(next_s, self._probe, min(2 * next_s, PROBE_S))

    def shutdown(self) -> None:
        """Close after the request that is being answered; uvicorn calls this when it stops."""
        if self._transaction is not None:
            self._transaction.keep_alive = False
        elif self._body is not None:
            self._is_last = True
        else:
            self.close()

    # What is received.

    def step(self) -> int:
        try:
            if self._body is not None:
                return self._read_body(self._body)
            if self._is_last:
                self._discard(len(self.received), MAX_DISCARDED)
            elif self._transaction is None and self.received and not self.write_paused:
                return self._read_head()
        except _REFUSED as error:
            self.refuse(error)
        return 0

    def update_reading(self) -> None:
        """Read or pause, and begin the time limit of what the client owes."""
        super().update_reading()
        if self._transaction is not None or self.transport.is_closing():
            return
        if self._body is not None:
            self.wait_in(self.shared.tails)
        elif self._is_last:
            pass  # it is closing, or not the protocol of its transport any more
        elif self.ended and not (self._waiting or self.write_paused):
            self.close()  # the rest is a part of a request
        elif self.received:  # a complete one may wait until the client reads, which has a time limit of its own
            self.wait_in(None if self.write_paused else self.shared.heads)
        else:
            self.wait_in(self.shared.idle)

    def _discard(self, size: int, limit: int) -> None:
        """Remove bytes that were received after the response; close the connection above a limit."""
        self.received = self.received[size:]
        self._discarded += size
        if self._discarded > limit:
            self.close()

    def _read_body(self, body: Body) -> int:
        reader = self.reader
        if not self.received or (reader is not None and len(reader.body) > MAX_UNREAD):
            return 0
        content, size = body.read(self.received)
        if self._transaction is None:
            self._discard(size, self.shared.settings.max_body_bytes)
        else:
            self.received = self.received[size:]
        if reader is not None and (content or body.complete):
            reader.body += content
            reader.more_body = not body.complete
            reader.changed.set()
        if body.complete:
            self._body = self.reader = None
            if self._is_last and self._transaction is None:
                self.close()
        return body.pieces

    def _read_head(self) -> int:
        head = Head()
        try:
            head.read(self.received, self.shared.settings.max_header_bytes)
        finally:
            self._url, self._method = head.url, head.method
        if not head.complete:
            return 0
        self.wait_in(None)
        body = head.body(self.shared.settings.max_header_bytes)
        self._begin(head, body)
        return 1 if body is None else 1 + body.pieces

    def _begin(self, head: Head, body: Body | None) -> None:
        """Answer a request, become a WebSocket, or refuse the request before anything is done for it."""
        scope = head.scope(self.scope)
        route = route_of(scope)
        if self in self.shared.excess and not (self.shared.accepts_now(self) or is_probe(scope)):
            raise self.shared.limit_error()
        self._body = body
        self.received = self.received[head.size :]
        self._discarded = 0
        if self.config.ws_protocol_class is not None and head.becomes_websocket():
            self._upgrade(head, scope)
            return
        must_continue = head.version != "1.0" and b"100-continue" in head.fields.get(b"expect", ())
        shedding, admitted = self.shared.shedding, None
        if shedding is not None and route is not None and route.shed is not None:
            admitted = shedding.admits(scope, 0 if body is None else body.length or 0)
            if (
                admitted is False
                and head.keep_alive
                and not (must_continue or self.ended or head.method == "HEAD")
                and self.transport.get_write_buffer_size() <= LARGE
            ):
                content = shedding.reply(scope, route, self.state.default_headers)
                if content is not None:
                    self.transport.write(content)
                    return
        transaction = Transaction(
            self, scope, keep_alive=head.keep_alive, must_continue=must_continue, more_body=body is not None
        )
        self._transaction = transaction
        if body is not None:
            self.reader = transaction
            self._read_body(body)
        if self.ended:
            if transaction.more_body:
                self.close()  # a part of a request is not answered
                return
            transaction.keep_alive = transaction.keep_alive and bool(self.received)
        direct = route is not None and route.direct and not transaction.more_body and len(transaction.body) <= AT_ONCE
        self.run(transaction.run(), direct=direct)
        if admitted and not direct:  # it waits until directly after the first turn of its task
            admission = self.shared.service.admission
            admission.waiting += 1
            self.loop.call_soon(lambda: admission.had_turn(now_ms()))

    def _upgrade(self, head: Head, scope: dict[str, Any]) -> None:
        """Become a WebSocket, with what was received behind the handshake as its first bytes.

        It inherits the timeout of a client that has not read the previous response.
        """
        if b"100-continue" in head.fields.get(b"expect", ()):
            self.transport.write(CONTINUE)  # before 101 (RFC 9110, 7.8)
        make: Any = self.config.ws_protocol_class
        websocket = make(config=self.config, server_state=self.state, app_state=self.app_state)
        self.state.connections.discard(self)
        self.shared.excess.pop(self, None)
        websocket.take_over(self, head, scope)
        self.received, self._is_last, self.ended, self._full = b"", True, True, False  # this object decides no more

    # The response.

    def answered(self, transaction: Transaction) -> None:
        """Go on with the rest of this request, and then close or go on with what was received behind it."""
        self.state.total_requests += 1
        self._transaction = None
        self._is_last = self._is_last or not transaction.keep_alive
        if self._is_last and self._body is None:
            self.close()
        self.proceed()

    def timed_out(self) -> None:
        """Stop reading: the head of the request was not complete in time."""
        if self.received.strip(b"\r\n"):
            limit_s = self.shared.settings.header_timeout_s
            self.refuse(RequestTimeoutError(f"the head of the request was not complete within {limit_s:g} s"))
        else:
            self.close()

    def refuse(self, error: Exception) -> None:
        transaction = self._transaction
        if transaction is None and self._body is not None:  # the response was sent
            self.close()
        if self.transport.is_closing() or self._is_last:
            return
        self._is_last = True
        self.shared.excess.pop(self, None)
        self._body = self.reader = None
        if transaction is not None and (transaction.started or not transaction.more_body):
            transaction.keep_alive = False  # the connection closes after this response
            return
        if transaction is not None:
            transaction.abandon()  # its body will never be complete
            self._transaction = None
        self.received, self._discarded = b"", 0
        self.transport.write(self.shared.refusal(error, self.state.default_headers, self._url, self._method))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.wait_in(self.shared.closing)
        self.update_reading()

    def fail(self, error: Exception, transaction: Transaction) -> None:
        """Send that the server failed, as the last response."""
        transaction.complete, transaction.keep_alive = True, False
        self.transmit(self.shared.refusal(error, self.state.default_headers, self._url, self._method))
        self.answered(transaction)

    # Limits.

    def does_not_fit(self, error: OverloadedError) -> None:
        if self._transaction is None and self._body is None:
            self.refuse(error)

    def budget_of_unsent(self) -> Account:
        if self._transaction is None:
            return self.budget
        return self.shared.service.accounts.of(self._transaction.scope)
