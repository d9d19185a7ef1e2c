"""The protocol class for WebSockets, on the sans-I/O protocol of websockets: limits, and problems as refusals.

The limits apply to the stored part of an incomplete message, and to data that a client does not read. There is no
compression: messages are small, and latency matters most.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from types import GeneratorType
from typing import Any
from urllib.parse import unquote

from starlette.types import Message
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from anytime_service.clock import now_ms
from anytime_service.errors import HeadTooLargeError, OverloadedError
from anytime_service.http.exchange import Reply
from anytime_service.http.responses import blank_reply, response
from anytime_service.limits.memory import MemoryBudget
from anytime_service.limits.queues import SHARE_MS
from anytime_service.schemas.codecs import Content
from anytime_service.schemas.values import AT_ONCE
from anytime_service.server.connections import Connection, Connections, release_head
from anytime_service.server.fragments import Fragments
from anytime_service.server.hosting import Host
from anytime_service.telemetry.context import DIRECT

RETRY_S = 0.01  # time until a connection reads again whose partial message does not fit into the memory
LARGE = 65_536  # bytes of a message that is written without a copy
CLOSE_S = 10.0  # time for the client's part of the closing handshake

_PREFIX = "failed to open a websocket connection: "
_NOT_FOUND = "there is no WebSocket at this path; use /stream, or see /docs"
_VERSION = (b"sec-websocket-version", b"13")
_OF_MESSAGES = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)

_log = logging.getLogger("anytime_service")


class WebSocketProtocol(Connection):
    """A connection after an upgrade; the application receives the messages of a slice before the next is parsed."""

    def __init__(self, shared: Connections, host: Host) -> None:
        super().__init__(shared, host)
        self._conn = ServerProtocol(max_size=shared.settings.max_body_bytes)
        self._opened = False  # whether the handshake is complete
        self._closed = False  # whether a close frame or a refusal was sent
        self._response: Any = None  # the response that completes the handshake
        self._refusal: Reply | None = None
        self._scope: dict[str, Any] = {}
        self._unread: deque[Message | Content | str]  # the contents of messages, and other events of ASGI
        self._on_message: Callable[[Content | str], None] | None = None
        self._context = copy_context()
        self._waiter: asyncio.Future[None] | None = None
        self._slow = True  # until the handshake is complete: a frame must not be answered before it
        self.sent_bytes = 0
        self._pieces = Fragments(shared.settings.max_body_bytes)
        self._fragments = bytearray()  # of an incomplete message
        self._is_text = False
        self._unparsed = 0  # bytes of an incomplete frame
        self._partial = 0  # bytes of an incomplete message that the budget counts
        self._pinged = False
        self._closing: asyncio.TimerHandle | None = None

    def shake_hands(self, url: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        """Begin: check the head of the request, and let the application decide."""
        lines = [b"%b: %b" % header for header in headers]
        self._conn.receive_data(b"\r\n".join((b"GET %b HTTP/1.1" % url, *lines, b"", b"")))
        request = next((event for event in self._conn.events_received() if isinstance(event, Request)), None)
        if request is None:
            self._refuse_with(
                self.shared.refusal(
                    HeadTooLargeError("a line of the head is too long for a WebSocket, or it has too many"),
                    self.host.state.default_headers,
                )
            )
            return
        self._response = self._conn.accept(request)
        error = self._conn.handshake_exc
        if error is not None:
            error.__traceback__ = error.__cause__ = error.__context__ = None  # frames, which refer to the error
            detail = " ".join((self._response.body or b"").decode().split())
            detail = detail[len(_PREFIX) :] if detail.lower().startswith(_PREFIX) else detail
            status = self._response.status_code
            if status == 500:  # websockets before 17 calls a key that is no base64 its own failure
                status, detail = 400, "invalid handshake; expected the header fields of RFC 6455"
            extra = [(b"upgrade", b"websocket")] if status == 426 else []
            reply = blank_reply(status, detail[:1].lower() + detail[1:], (_VERSION, *extra))
            self._refuse_with(response(reply._replace(close=True), self.host.state.default_headers))
            return
        raw, _, query = url.partition(b"?")
        offered = b",".join(value for name, value in headers if name == b"sec-websocket-protocol").decode("latin-1")
        self._scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "wss" if self.scheme == "https" else "ws",
            "server": self.server,
            "client": self.client,
            "root_path": self.host.root_path,
            "path": self.host.root_path + unquote(raw.decode("latin-1")),
            "raw_path": self.host.root_path.encode() + raw,
            "query_string": query,
            "headers": headers,
            "subprotocols": [each.strip() for each in offered.split(",") if each.strip()],
            "state": self.host.app_state.copy(),
            "extensions": {"websocket.http.response": {}, DIRECT: self},
        }
        self._unread.append({"type": "websocket.connect"})
        self.host.run(self._run())

    def connection_lost(self, exc: Exception | None) -> None:
        self._count_partial(0)
        super().connection_lost(exc)
        self._end()
        if self._closing is not None:
            self._closing.cancel()
        self._scope.get("extensions", {}).clear()  # they refer to this object
        self._on_message = None
        for name, value in tuple(vars(self._conn).items()):
            if isinstance(value, GeneratorType | BaseException):  # they refer to their object, by frames
                delattr(self._conn, name)

    def eof_received(self) -> None:
        """Close: a client that sends no more cannot answer a close frame."""

    def shutdown(self) -> None:
        """Close with 1012, service restart; uvicorn calls this when it stops."""
        if self._opened and not self._closed:
            self._close(CloseCode.SERVICE_RESTART, "")
        self._end(int(CloseCode.SERVICE_RESTART))
        self.transport.close()

    def parse(self, data: Any) -> int:
        """Parse bytes, and return the number of frames in them."""
        conn, count, answers = self._conn, 0, False
        if self._closed and conn.state is State.CLOSED:
            return 0
        for piece in self._pieces.split(bytes(data)):
            conn.receive_data(piece)
            self._unparsed += len(piece)
        for frame in conn.events_received():
            if isinstance(frame, Frame):
                count += 1
                size = len(frame.data)
                self._unparsed -= size + (6 if size < 126 else 8 if size < 65_536 else 14)
                answers |= frame.opcode not in _OF_MESSAGES
                self._receive(frame)
        if conn.state is not State.OPEN and not self._closed:  # a frame was invalid, or the client closes
            self._closed = True
            self._end(int(CloseCode.PROTOCOL_ERROR))
        if answers or conn.state is not State.OPEN:
            self._flush(pongs=not self.write_paused)
        if self._unread:
            self._pass_on()
        self._unparsed = max(self._unparsed, 0)
        partial = self._pieces.held + self._unparsed + len(self._fragments)
        if partial != self._partial:
            self._count_partial(partial)
        added, self._pieces.added = self._pieces.added, 0
        return count - added

    def is_free(self) -> bool:
        return self._opened and not self._unread

    def update_reading(self) -> None:
        if self.transport.is_closing():
            return
        if self._backlog or self._rate_limited or self._waiting():
            self.transport.pause_reading()
            if self._waiting() or (self._backlog and not self._rate_limited and self.is_free()):
                self._queue_turn()
        else:
            self.transport.resume_reading()

    def timed_out(self) -> None:
        """Send a ping; give the connection up if the last one was not answered."""
        if self._pinged:
            self._conn.fail(CloseCode.INTERNAL_ERROR, "keepalive ping timeout")
            self._closed = True
        else:
            self._pinged = True
            self._conn.send_ping(b"anytime")
            self.shared.pings.begin(self)
        self._flush()

    def refuse(self, error: Exception) -> None:
        if not (self._closed or self.transport.is_closing()):
            self._conn.fail(CloseCode.TRY_AGAIN_LATER, str(error)[:120])  # a frame has room for 123 bytes
            self._closed = True
            self._flush()
        self.transport.close()

    # The application.

    async def _run(self) -> None:
        try:
            await self.host.app(self._scope, self._receive_message, self._send)
        except ConnectionResetError:
            pass  # from `_send`
        except Exception as error:
            _log.exception("Exception in ASGI application")
            if self._opened:
                self.refuse(error)
            else:
                self._refuse_with(self.shared.refusal(error, self.host.state.default_headers))
        finally:
            if self._closing is None:
                self.transport.close()

    async def _receive_message(self) -> Message:
        while not self._unread or self._waiting():
            self._waiter = self.loop.create_future()
            await self._waiter
        message = self._unread.popleft()
        if not self._unread and self._backlog:
            self.update_reading()
        if isinstance(message, str):
            return {"type": "websocket.receive", "text": message}
        if isinstance(message, bytes | bytearray):
            return {"type": "websocket.receive", "bytes": bytes(message)}
        return message

    def charge(self, budget: MemoryBudget) -> None:
        counted = self._partial + self._backlog.stored
        self.budget.add(-counted)
        budget.add(counted)
        self.budget = budget

    def deliver(self, on_message: Callable[[Content | str], None]) -> None:
        self._on_message, self._context = on_message, copy_context()
        self._pass_on()

    def write(self, content: bytes, *, text: bool) -> bool:
        if self.write_paused or self._closed or self.transport.is_closing():
            return False
        size = len(content)
        if size < 126:
            length = size.to_bytes(1, "big")
        else:
            length = b"\x7e" + size.to_bytes(2, "big") if size < 65_536 else b"\x7f" + size.to_bytes(8, "big")
        head = (b"\x81" if text else b"\x82") + length
        if size > LARGE:
            self.transport.write(head)
            self.transport.write(content)
        else:
            self.transport.write(head + content)
        self.sent_bytes += size
        return True

    def _waiting(self) -> bool:
        """Return whether a message waits for its turn to be passed to the application."""
        return self._on_message is not None and bool(self._unread) and not isinstance(self._unread[0], dict)

    def _turn(self) -> None:
        if self._unread:
            self._pass_on(queued=True)
        super()._turn()

    def _pass_on(self, *, queued: bool = False) -> None:
        """Pass messages to the application for a share of the loop's turn; a long one only from the fair queue."""
        messages, on_message, until = self._unread, self._on_message, 0.0
        try:
            while messages:
                content = messages[0]
                if on_message is None or not isinstance(content, str | bytes | bytearray):
                    self._wake()
                    return
                if (len(content) > AT_ONCE and not queued) or (until and now_ms() > until):
                    break
                until = until or now_ms() + SHARE_MS
                messages.popleft()
                self._context.run(on_message, content)
            else:
                return
        except Exception as error:
            _log.exception("handling a message failed")
            self.refuse(error)
        if messages:
            self.update_reading()

    async def _send(self, message: Message) -> None:
        if self.write_paused:
            await self.drain()
        if self.transport.is_closing():
            raise ConnectionResetError("the client has disconnected")
        kind = message["type"]
        if not self._opened:
            self._answer_handshake(kind, message)
        elif self._closed:
            raise ConnectionResetError("the connection is closed")
        elif kind == "websocket.send":
            content = message.get("bytes")
            self.write(message["text"].encode() if content is None else content, text=content is None)
        elif kind == "websocket.close":
            self._close(message.get("code", 1000), message.get("reason") or "")
            self._end(message.get("code", 1000))
            self._closing = self.loop.call_later(CLOSE_S, self.transport.close)
            self.update_reading()
        else:
            raise RuntimeError(f"expected websocket.send or websocket.close, not {kind}")

    def _answer_handshake(self, kind: str, message: Message) -> None:
        default = self.host.state.default_headers
        if kind == "websocket.accept":
            headers = self._response.headers
            del headers["Date"]
            for name, value in (*default, *message.get("headers", ())):
                headers[name.decode()] = value.decode("latin-1")
            if message.get("subprotocol"):
                headers["Sec-WebSocket-Protocol"] = message["subprotocol"]
            self._conn.send_response(self._response)
            self._opened, self._slow = True, False
            release_head(self._scope["headers"])
            self._flush()
            self.shared.pings.begin(self)
            if self._backlog:
                self.update_reading()
        elif kind == "websocket.close":
            self._refuse_with(response(blank_reply(404, _NOT_FOUND)._replace(close=True), default))
        elif kind == "websocket.http.response.start":
            found = dict(message.get("headers", ()))
            media_type = found.pop(b"content-type", b"text/plain; charset=utf-8").decode()
            found.pop(b"content-length", None)
            self._refusal = Reply(message["status"], media_type, b"", tuple(found.items()), close=True)
        elif kind == "websocket.http.response.body" and self._refusal is not None:
            self._refusal = self._refusal._replace(content=self._refusal.content + message.get("body", b""))
            if not message.get("more_body", False):
                self._refuse_with(response(self._refusal, default))
        else:
            raise RuntimeError(f"expected websocket.accept or a refusal, not {kind}")

    def _refuse_with(self, content: bytes) -> None:
        """Send the response that refuses the handshake, and close."""
        self._opened = self._closed = True
        if not self.transport.is_closing():
            self.transport.write(content)
        self._end()
        self.transport.close()

    # Frames.

    def _receive(self, frame: Frame) -> None:
        data: Any = frame.data
        if frame.opcode in _OF_MESSAGES:
            if frame.opcode is not Opcode.CONT:
                self._is_text = frame.opcode is Opcode.TEXT
            if self._fragments or not frame.fin:
                self._fragments += data  # in a list, fragments of one byte would use fifty times their size
                if not frame.fin:
                    return
                data, self._fragments = self._fragments, bytearray()
            if self._closed:  # the application does not receive messages any more
                return
            try:
                self._unread.append(str(data, "utf-8") if self._is_text else data)
            except UnicodeDecodeError:
                self._conn.fail(CloseCode.INVALID_DATA, "the text is not UTF-8")
        elif frame.opcode is Opcode.PONG:
            self._pinged = False
        elif frame.opcode is Opcode.CLOSE:
            if self._closed:  # the client answers the close frame of the server
                self.transport.close()
            else:
                self._closed = True
                self._end(int.from_bytes(frame.data[:2], "big") if frame.data else 1005)

    def _end(self, code: int = int(CloseCode.ABNORMAL_CLOSURE)) -> None:
        """Tell the application that the connection has ended."""
        self._unread.append({"type": "websocket.disconnect", "code": code})
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _close(self, code: int, reason: str) -> None:
        self._conn.send_close(code, reason)
        self._closed = True
        self._flush()

    def _flush(self, *, pongs: bool = True) -> None:
        """Send what the protocol has to send; without `pongs` only if it closes, as the client does not read them."""
        pieces = self._conn.data_to_send()
        if pieces and not self.transport.is_closing():
            ends = not pieces[-1]
            if pongs or ends:
                content = b"".join(pieces)
                if content:
                    self.transport.write(content)
            if ends:
                self.transport.close()

    def _end_rate_limit(self) -> None:
        if self.budget.fits(0) or not getattr(self.budget, "active", ()):
            super()._end_rate_limit()
        else:
            self.loop.call_later(RETRY_S, self._end_rate_limit)

    def _count_partial(self, partial: int) -> None:
        more = partial - self._partial
        try:
            if more > 0:
                self.budget.check(more)
        except OverloadedError as error:
            if not getattr(self.budget, "active", ()):
                self.refuse(error)
                return
            if not self._rate_limited:  # predictions of this key will release memory; they must be answered before
                self._rate_limited = True
                self.loop.call_later(RETRY_S, self._end_rate_limit)
        self.budget.add(more)
        self._partial = partial
        if self._rate_limited:
            self.update_reading()
