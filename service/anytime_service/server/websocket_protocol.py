"""uvicorn's protocol for WebSockets with limits, and problem details for refused handshakes.

The limits apply to the stored part of an incomplete message, and to data that a client does not read.

uvicorn and websockets document none of these names. `pyproject.toml` caps their versions, and
tests/service/test_private_names.py checks that the names exist.

- `conn`, `conn.reader.buffer`, `frames`: to replace the handshakes, and to measure the incomplete message.
- `handle_connect`, `handle_cont`, `handle_ping`, `handle_pong`, `send_receive_event_to_app`, `writable`: to count
  frames, and to bound the memory that they use.
- `queue`, `read_paused`: to know when the application has consumed all messages.
- `handshake_initiated`, `handshake_complete`: to parse no frame during the handshake.
- `close_sent`, `scope`: to close, and to pass extensions to the application.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from anytime_service.errors import OverloadedError
from anytime_service.http.exchange import ABORT, CHARGE
from anytime_service.limits.memory import MemoryBudget
from anytime_service.schemas.problem import MEDIA_TYPE, Problem
from anytime_service.server.connections import Connection, Connections

_PREFIX = "failed to open a websocket connection: "
_NOT_FOUND = "there is no WebSocket at this path; use /stream, or see /docs"


class Handshakes(ServerProtocol):
    """The library's protocol, with problem details of one line in refusals."""

    def accept(self, request: Request) -> Response:
        """Return the response to a handshake; drop the traceback of an error, whose frames refer to the error."""
        response = super().accept(request)
        if self.handshake_exc is not None:
            self.handshake_exc.__traceback__ = self.handshake_exc.__cause__ = self.handshake_exc.__context__ = None
        return response

    def reject(self, status: Any, text: str) -> Response:
        """Return the refusal of a handshake; 403 without a text means that the path has no WebSocket."""
        status = HTTPStatus.NOT_FOUND if status == HTTPStatus.FORBIDDEN and not text else HTTPStatus(status)
        response = super().reject(status, text)
        detail = " ".join(text.split())
        if detail.lower().startswith(_PREFIX):
            detail = detail[len(_PREFIX) :]
        problem = Problem("about:blank", status.phrase, status.value, detail[:1].lower() + detail[1:] or _NOT_FOUND)
        body = msgspec.json.encode(problem)
        for name, value in (("Content-Type", MEDIA_TYPE), ("Content-Length", str(len(body)))):
            del response.headers[name]
            response.headers[name] = value
        return Response(response.status_code, response.reason_phrase, response.headers, body)


class WebSocketProtocol(Connection, WebSocketsSansIOProtocol):
    """uvicorn's protocol for WebSockets, with parsing in slices; incomplete messages count in the memory budget."""

    def __init__(self, shared: Connections, *args: Any, **options: Any) -> None:
        super().__init__(shared, *args, **options)
        self._extra_frames = 0  # received frames that are not complete messages: fragments, pings and pongs
        self._partial = 0  # bytes of an incomplete message
        self._assembled = bytearray()
        self._extensions: dict[str, Any] = {}

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.conn.__class__ = Handshakes

    def connection_lost(self, exc: Exception | None) -> None:
        self._count_partial(0)
        super().connection_lost(exc)
        vars(self.conn).clear()  # its parser, a generator, refers to it
        self._extensions.clear()  # `_charge` refers to this object

    def continue_with(self, pieces: Iterable[memoryview]) -> None:
        """Receive the bytes that followed the head of the request."""
        for piece in pieces:
            if piece:
                self._store(piece)

    def parse(self, data: Any) -> None:
        WebSocketsSansIOProtocol.data_received(self, data)
        partial = len(self.conn.reader.buffer)
        if self.frames:  # the first fragment of a message, until the second arrives
            partial += max(len(self.frames[0]), len(self._assembled))
        if partial != self._partial:
            self._count_partial(partial)

    def messages(self) -> int:
        """Return the number of messages so far, without those that the application has consumed."""
        return self._extra_frames + self.queue.qsize()

    def is_free(self) -> bool:
        # A frame that arrives during the handshake waits: it must not be answered before the handshake.
        return self.queue.empty() and (self.handshake_complete or not self.handshake_initiated)

    def update_reading(self) -> None:
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

    def handle_connect(self, event: Request) -> None:
        """Begin, and let the application abort the connection: closing would wait for a client that does not read."""
        super().handle_connect(event)
        if self.handshake_initiated and not self.close_sent:
            self._extensions = self.scope["extensions"]
            self._extensions |= {ABORT: {"abort": self.transport.abort}, CHARGE: {"charge": self._charge}}

    def handle_cont(self, event: Frame) -> None:
        """Assemble the fragments in one buffer; in a list, fragments of one byte would use fifty times their size."""
        self._extra_frames += 1
        self._assembled = self._assembled or bytearray(self.frames[0])
        self._assembled += event.data
        if event.fin:
            self.frames = [bytes(self._assembled)]
            self._assembled = bytearray()
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Answer a ping, unless the client does not read the previous pongs."""
        self._extra_frames += 1
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def handle_pong(self, event: Frame) -> None:
        self._extra_frames += 1
        super().handle_pong(event)

    def refuse(self, error: Exception) -> None:
        if not (self.close_sent or self.transport.is_closing()):
            self.conn.fail(CloseCode.TRY_AGAIN_LATER, str(error)[:120])  # a frame has room for 123 bytes
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.transport.close()

    def _charge(self, held: MemoryBudget) -> None:
        """Move the bytes of this connection to the memory budget `held` of its key, which is known now."""
        counted = self._partial + self._backlog.bytes
        self.held.add(-counted)
        held.add(counted)
        self.held = held

    def _count_partial(self, partial: int) -> None:
        more = partial - self._partial
        try:
            if more > 0:
                self.held.check(more)
        except OverloadedError as error:
            self.refuse(error)
            return
        self.held.add(more)
        self._partial = partial
