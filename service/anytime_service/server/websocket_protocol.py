"""Handshakes of WebSockets that are refused before the application has its say: also by problem details.

uvicorn's protocol for WebSockets within limits: of what is held of a message, and of what is not taken.
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

_BEGINNING = "failed to open a websocket connection: "
_NOWHERE = "there is no WebSocket at this path; open /stream, or see /docs for what there is"


class Handshakes(ServerProtocol):
    """The library's protocol, whose refusals say in one line what is wrong."""

    def reject(self, status: Any, text: str) -> Response:
        """Refuse; a connection that the application closes unopened is one to a path that has no WebSocket."""
        status = HTTPStatus.NOT_FOUND if status == HTTPStatus.FORBIDDEN and not text else HTTPStatus(status)
        response = super().reject(status, text)
        detail = " ".join(text.split())
        if detail.lower().startswith(_BEGINNING):
            detail = detail[len(_BEGINNING) :]
        problem = Problem("about:blank", status.phrase, status.value, detail[:1].lower() + detail[1:] or _NOWHERE)
        body = msgspec.json.encode(problem)
        for name, value in (("Content-Type", MEDIA_TYPE), ("Content-Length", str(len(body)))):
            del response.headers[name]
            response.headers[name] = value
        return Response(response.status_code, response.reason_phrase, response.headers, body)


TRY_AGAIN_LATER = 1013
"""Code with which a connection is closed for want of memory."""

MAX_REASON = 120
"""Bytes of a reason, which a frame that closes has room for."""


class GuardedWebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol for WebSockets; a message that has not come to its end counts as held.

    Parameters
    ----------
    shared : what all connections of the server share.

    Attributes
    ----------
    held : counts the bytes of a message that is not complete.
    partial : how many they are.
    aside : frames so far that were no whole message: pieces of one, pings and pongs.
    """

    def __init__(self, shared: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.shared = shared
        self.held = shared.held
        self.aside = 0
        self.partial = 0
        self._whole = bytearray()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self.shared.left(self)
        self._hold(0)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has been read."""
        super().data_received(data)
        partial = len(self.conn.reader.buffer)
        if self.frames:  # of a message in pieces the first, until the second comes
            partial += max(len(self.frames[0]), len(self._whole))
        if partial != self.partial:
            self._hold(partial)

    def pause_writing(self) -> None:
        """Wait for the client to read what was sent."""
        self.shared.stalled(self, self.transport.get_write_buffer_size(), self.held)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Resume sending."""
        self.shared.flows(self)
        super().resume_writing()

    def handle_cont(self, event: Frame) -> None:
        """Put a message together in one place: in a list, pieces of a byte would take fifty times their size."""
        self.aside += 1
        self._whole = self._whole or bytearray(self.frames[0])
        self._whole += event.data
        if event.fin:
            self.frames = [bytes(self._whole)]
            self._whole = bytearray()
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Answer a ping, unless the client does not take the answers to those before."""
        self.aside += 1
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def handle_pong(self, event: Frame) -> None:
        """Take the answer to a ping."""
        self.aside += 1
        super().handle_pong(event)

    def overdue(self) -> None:
        """Take no more; nothing of a WebSocket is waited for here."""
        self.cut()

    def refuse(self, error: Exception) -> None:
        """Tell why nothing is served here, and close."""
        if not (self.close_sent or self.transport.is_closing()):
            self.conn.fail(TRY_AGAIN_LATER, str(error)[:MAX_REASON])
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.transport.close()

    def cut(self) -> None:
        """Close at once."""
        self.transport.abort()

    def _hold(self, partial: int) -> None:
        more = partial - self.partial
        try:
            if more > 0:
                self.held.check(more)
        except OverloadedError as error:
            self.refuse(error)
            return
        self.held.bytes += more
        self.partial = partial
