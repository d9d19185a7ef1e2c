"""The protocol class for WebSockets: frames without I/O from `frames`, limits, and problems as refusals.

The application receives each message when it is read (`deliver`), in this turn of the loop if it is short; a long one
waits for its turn in the fair queue. Limits apply to the stored part of an incomplete message, and to data that a
client does not read; a message that waits counts as stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from starlette.types import Message
from websockets.exceptions import ProtocolError
from websockets.frames import Close, CloseCode, Opcode

from anytime_service.errors import OverloadedError
from anytime_service.http.responses import blank_response, response_head
from anytime_service.limits.memory import Account
from anytime_service.limits.turns import AT_ONCE
from anytime_service.schemas.codecs import Content
from anytime_service.server import frames
from anytime_service.server.connections import LARGE, Connection, Connections
from anytime_service.server.frames import FrameReader
from anytime_service.server.requests import Head
from anytime_service.telemetry.context import DIRECT

_PING = b"anytime"
RETRY_MS = 10.0  # time until a connection reads again whose partial message does not fit into the memory

_NOT_FOUND = "there is no WebSocket at this path; use /stream, or see /docs"
_VERSION = (b"sec-websocket-version", b"13")
_KEPT = (b"traceparent",)  # headers that are used after the handshake, for spans

_log = logging.getLogger("anytime_service")


class WebSocketProtocol(Connection):
    """A connection after an upgrade."""

    def __init__(self, shared: Connections, **options: Any) -> None:
        super().__init__(shared, **options)
        self._frames = FrameReader(shared.settings.max_body_bytes)
        self._opened = False  # whether the handshake is complete
        self._closed = False  # whether a close frame or a refusal was sent
        self._accept = b""  # the server's field of the handshake
        self._refusal = b""  # the beginning of the response with which the application refuses
        self._asgi: dict[str, Any] = {}
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self._on_message: Callable[[Content | str], None] | None = None
        self._context = copy_context()
        self._long: Content | str | None = None  # a message that waits for its turn
        self._pinged = False
        self._ping: bytes | None = None  # of a client that does not read: the last one is answered when it does
        self.sent_bytes = 0

    def take_over(self, http: Connection, head: Head, scope: dict[str, Any]) -> None:
        """Become the protocol of the transport of another connection, with what it received.

        Check the head of the request, and let the application decide.
        """
        self.connection_made(http.transport)
        http.transport.set_protocol(self)
        self.received, self._paused, self._full = http.received, http._paused, http._full
        http.end_stall()
        if http.write_paused:
            self.pause_writing()
        try:
            self._accept = frames.accept_key(head.headers)
        except ValueError as error:
            self._refuse_with(blank_response(400, str(error), self.state.default_headers, _VERSION))
            return
        offered = b",".join(value for name, value in head.headers if name == b"sec-websocket-protocol")
        del scope["method"]
        self._asgi = scope | {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "scheme": "wss" if scope["scheme"] == "https" else "ws",
            "subprotocols": [each.strip() for each in offered.decode("latin-1").split(",") if each.strip()],
            "extensions": {"websocket.http.response": {}, DIRECT: self},
        }
        self._put("websocket.connect")
        self.run(self._run())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._frames.message = bytearray()
        self._put("websocket.disconnect", code=int(CloseCode.ABNORMAL_CLOSURE))
        self._asgi.get("extensions", {}).clear()  # they refer to this object
        self._on_message = self._long = None

    def shutdown(self) -> None:
        """Close with 1012, service restart; uvicorn calls this when it stops."""
        self._fail(CloseCode.SERVICE_RESTART, "")

    def resume_writing(self) -> None:
        ping, self._ping = self._ping, None
        if ping is not None and not self._closed:
            self.transmit(frames.head_of(Opcode.PONG, len(ping)) + ping)
        super().resume_writing()

    # What is received.

    def step(self) -> int:
        if self._long is not None:  # it has its turn
            message, self._long = self._long, None
            self.store(0)
            self._pass_on(message)
            return 1
        if not self._opened or not (self._events.empty() or self._closed) or self.at >= len(self.received):
            return 0
        if self._frames.message and not self.budget.fits(0) and self._releases():
            self.wait(RETRY_MS)
            return 0
        try:
            at, opcode, content = self._frames.read(self.received, self.at)
            progress, self.at = at - self.at, at
            self.partial = len(self._frames.message)
            if content is not None:
                self._handle(opcode, content)
        except OverflowError as error:
            self._fail(CloseCode.MESSAGE_TOO_BIG, str(error))
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "the text is not UTF-8")
        except ProtocolError as error:
            self._fail(CloseCode.PROTOCOL_ERROR, str(error))
        else:
            return int(progress > 0 and self._long is None)
        return 0

    def _handle(self, opcode: int, content: Content) -> None:
        """Handle a message or control frame."""
        if opcode < frames.CONTROL and not self._closed:  # the application receives nothing after a close frame
            message = str(content, "utf-8") if opcode == Opcode.TEXT else content
            if len(message) > AT_ONCE and self._on_message is not None:
                self._long = message
                self.store(len(message))
                self.wait()
            else:
                self._pass_on(message)
        elif opcode == Opcode.PONG:
            self._pinged = False
        elif opcode == Opcode.CLOSE:
            close = Close.parse(content)
            if not self._closed:
                self.transport.write(frames.head_of(Opcode.CLOSE, len(content)) + content)
                self._put("websocket.disconnect", code=int(close.code))
            self._closed = True
            self.close()
        elif opcode == Opcode.PING and not self._closed:
            if self.write_paused:
                self._ping = bytes(content)
            else:
                self.transport.write(frames.head_of(Opcode.PONG, len(content)) + content)

    def _pass_on(self, message: Content | str) -> None:
        """Pass a message to the application."""
        if self._on_message is None:
            kind = {"text": message} if isinstance(message, str) else {"bytes": bytes(message)}
            self._put("websocket.receive", **kind)
            return
        try:
            self._context.run(self._on_message, message)
        except Exception as error:
            _log.exception("handling a message failed")
            self.refuse(error)

    def does_not_fit(self, error: OverloadedError) -> None:
        if not self._releases():
            self.refuse(error)

    def _releases(self) -> bool:
        """Return whether predictions of this key are open, which will release memory."""
        return bool(self.budget.active)

    def timed_out(self) -> None:
        """Send a ping; give the connection up if the last one was not answered."""
        if self._pinged:
            self._fail(CloseCode.INTERNAL_ERROR, "keepalive ping timeout")
        else:
            self._pinged = True
            self.transmit(frames.head_of(Opcode.PING, len(_PING)) + _PING)
            self.shared.pings.begin(self)

    # The application.

    async def _run(self) -> None:
        try:
            await self.config.loaded_app(self._asgi, self._receive, self._send)
        except ConnectionResetError:
            pass  # from `_send`
        except Exception as error:
            _log.exception("Exception in ASGI application")
            if self._opened:
                self.refuse(error)
            else:
                self.transmit(self.shared.refusal(error, self.state.default_headers))
        finally:
            if not self._closed:
                self.close()

    async def _receive(self) -> Message:
        message = await self._events.get()
        self.proceed()
        return message

    def charge(self, account: Account) -> None:
        self.budget.add(-self._counted)
        account.add(self._counted)
        self.budget = account

    def deliver(self, on_message: Callable[[Content | str], None]) -> None:
        self._on_message, self._context = on_message, copy_context()

    def write(self, content: bytes, *, text: bool) -> bool:
        if self.write_paused or self._closed or self.transport.is_closing():
            return False
        head = frames.head_of(Opcode.TEXT if text else Opcode.BINARY, len(content))
        if len(content) > LARGE:
            self.transport.write(head)
            self.transport.write(content)
        else:
            self.transport.write(head + content)
        self.sent_bytes += len(content)
        return True

    async def _send(self, message: Message) -> None:
        if self.write_paused:
            await self.drain()
        kind = message["type"]
        if self.transport.is_closing() or (self._opened and self._closed):
            raise ConnectionResetError("the connection is closed")
        if not self._opened:
            self._answer_handshake(kind, message)
        elif kind == "websocket.send":
            content = message.get("bytes")
            self.write(message["text"].encode() if content is None else content, text=content is None)
        elif kind == "websocket.close":
            code = message.get("code", 1000)
            self._close(code, message.get("reason") or "")
            self.wait_in(self.shared.handshakes)
        else:
            raise RuntimeError(f"expected websocket.send or websocket.close, not {kind}")

    def _answer_handshake(self, kind: str, message: Message) -> None:
        if kind == "websocket.accept":
            upgrade = ((b"upgrade", b"websocket"), (b"connection", b"Upgrade"), (b"sec-websocket-accept", self._accept))
            headers = [*upgrade, *self.state.default_headers, *message.get("headers", ())]
            if message.get("subprotocol"):
                headers.append((b"sec-websocket-protocol", message["subprotocol"].encode()))
            self.transmit(response_head(101, headers))
            self._opened = True
            self._asgi["headers"][:] = [each for each in self._asgi["headers"] if each[0] in _KEPT][:2]
            self.wait_in(self.shared.pings)
            self.wait()  # when the application is ready for messages
        elif kind == "websocket.close":
            self._refuse_with(blank_response(404, _NOT_FOUND, self.state.default_headers))
        elif kind == "websocket.http.response.start":
            headers = [*self.state.default_headers, *message.get("headers", ()), (b"connection", b"close")]
            self._refusal = response_head(message["status"], headers)
        elif kind == "websocket.http.response.body" and self._refusal:
            self._refusal += message.get("body", b"")
            if not message.get("more_body", False):
                self._refuse_with(self._refusal)
        else:
            raise RuntimeError(f"expected websocket.accept or a refusal, not {kind}")

    # The end.

    def _refuse_with(self, content: bytes) -> None:
        """Send the response that refuses the handshake, and close."""
        self._opened = self._closed = True
        self.transmit(content)
        self._put("websocket.disconnect", code=int(CloseCode.ABNORMAL_CLOSURE))
        self.close()

    def refuse(self, error: Exception) -> None:
        self._fail(CloseCode.TRY_AGAIN_LATER, str(error))

    def _fail(self, code: int, reason: str) -> None:
        """Close at once, with a close frame if none was sent."""
        self._close(code, reason)
        self.close()

    def _close(self, code: int, reason: str) -> None:
        """Send a close frame, and report the end to the application. Idempotent."""
        if self._opened and not self._closed:
            self._closed = True
            self.transmit(frames.close_frame(code, reason))
        self._put("websocket.disconnect", code=int(code))

    def _put(self, kind: str, **fields: Any) -> None:
        """Pass an event to the application."""
        self._events.put_nowait({"type": kind, **fields})
