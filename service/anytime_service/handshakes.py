"""Handshakes of WebSockets that are refused before the application has its say: also by problem details."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from websockets.http11 import Response
from websockets.server import ServerProtocol

from anytime_service.problems import MEDIA_TYPE, Problem

__all__ = ["Handshakes"]

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
