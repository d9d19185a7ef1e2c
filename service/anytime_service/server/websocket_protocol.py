"""uvicorn's protocol for WebSockets with limits, and problem details for refused handshakes.

The limits apply to the stored part of an incomplete message, and to data that a client does not read.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Response
from websockets.server import ServerProtocol

from anytime_service.errors import OverloadedError
from anytime_service.schemas.problem import MEDIA_TYPE, Problem
from anytime_service.server.connections import Connections

__all__ = [
    "GuardedWebSocketProtocol",
    "Handshakes",
]

_PREFIX = "failed to open a websocket connection: "
_NOT_FOUND = "there is no WebSocket at this path; use /stream, or see /docs"


class Handshakes(ServerProtocol):
    """The library's protocol, with problem details of one line in refusals."""

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


TRY_AGAIN_LATER = 1013
"""Close code for a connection that exceeds the memory budget."""

MAX_REASON = 120
"""Largest size in bytes of a reason in a close frame."""


class GuardedWebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol for WebSockets, with incomplete messages counted in the memory budget.

    Parameters
    ----------
    shared : shared state of the server's connections.

    Attributes
    ----------
    held : memory budget that counts the bytes of an incomplete message.
    partial : number of these bytes.
    extra_frames : number of received frames that are not complete messages: fragments, pings and pongs.
    """

    def __init__(self, shared: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.shared = shared
        self.held = shared.held
        self.extra_frames = 0
        self.partial = 0
        self._assembled = bytearray()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self.shared.closed(self)
        self._count_partial(0)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        super().data_received(data)
        partial = len(self.conn.reader.buffer)
        if self.frames:  # the first fragment of a message, until the second arrives
            partial += max(len(self.frames[0]), len(self._assembled))
        if partial != self.partial:
            self._count_partial(partial)

    def pause_writing(self) -> None:
        """Wait for the client to read what was sent."""
        self.shared.stalled(self, self.transport.get_write_buffer_size(), self.held)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Resume sending."""
        self.shared.resumed(self)
        super().resume_writing()

    def handle_cont(self, event: Frame) -> None:
        """Assemble the fragments in one buffer; in a list, fragments of one byte would use fifty times their size."""
        self.extra_frames += 1
        self._assembled = self._assembled or bytearray(self.frames[0])
        self._assembled += event.data
        if event.fin:
            self.frames = [bytes(self._assembled)]
            self._assembled = bytearray()
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Answer a ping, unless the client does not read the previous pongs."""
        self.extra_frames += 1
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def handle_pong(self, event: Frame) -> None:
        """Receive the answer to a ping."""
        self.extra_frames += 1
        super().handle_pong(event)

    def timed_out(self) -> None:
        """Close; a WebSocket has no timeout of its own here."""
        self.cut()

    def refuse(self, error: Exception) -> None:
        """Send the error as the reason of the close frame, and close."""
        if not (self.close_sent or self.transport.is_closing()):
            self.conn.fail(TRY_AGAIN_LATER, str(error)[:MAX_REASON])
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.transport.close()

    def cut(self) -> None:
        """Close at once."""
        self.transport.abort()

    def _count_partial(self, partial: int) -> None:
        more = partial - self.partial
        try:
            if more > 0:
                self.held.check(more)
        except OverloadedError as error:
            self.refuse(error)
            return
        self.held.bytes += more
        self.partial = partial
