"""One line a request, one a WebSocket connection and, in debugging, one an answer, for those who want them."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anytime.inference.answer import Answer
from anytime_service.clock import now_ms

__all__ = ["LOGGER", "AccessLog", "log_answer", "shown_path", "shown_query"]

LOGGER = "anytime_service.access"

_log = logging.getLogger(LOGGER)
_answers = logging.getLogger("anytime_service")

_SHOWN = frozenset({"budget", "deadline_ms", "model", "policy", "ranking", "rows"})
"""Parameters whose values are shown; those of others may be anything, keys too."""

_SESSION = re.compile("(/sessions/+)[^/]+", re.IGNORECASE)
"""Whoever has the id of a session can read it and end it."""


class AccessLog:
    """Middleware that writes a line when a request or connection has ended, so that no answer waits for it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        begun = left = now_ms()
        status, size = None, 0

        def counting(message: Message) -> Awaitable[None]:
            nonlocal status, size, left
            kind = message["type"]
            if "status" in message:
                status = message["status"]
            elif kind == "websocket.accept":
                status = 101
            content = message.get("body") or message.get("bytes") or message.get("text", "").encode()
            if content:
                size += len(content)
                left = now_ms()  # an early answer has left long before its request ends
            return send(message)

        try:
            await self.app(scope, receive, counting)
        finally:
            done = left if scope["type"] == "http" and size else now_ms()
            _write(scope, status, done - begun, size)


def shown_path(scope: Mapping[str, Any]) -> str:
    """Return a path for logs and traces: percent-encoded, with `{id}` in place of the id of a session."""
    return quote(_SESSION.sub(r"\1{id}", scope["path"]), safe="/{}:@!$&'()*+,;=~")


def shown_query(query: bytes) -> str:
    """A query as it may be shown."""
    pairs = parse_qsl(query[:2000].decode("latin-1"), keep_blank_values=True)
    return urlencode([(name, value if name in _SHOWN else "***") for name, value in pairs])


def log_answer(answer: Answer, late_ms: float | None) -> None:
    """Say how a prediction was answered, without anything that was predicted."""
    told = {
        "model": answer.model,
        "version": answer.version,
        "reason": answer.reason,
        "prefix": answer.prefix,
        "steps": answer.steps,
        "elapsed_ms": round(answer.elapsed_ms, 3),
        "late_ms": None if late_ms is None else round(late_ms, 3),
    }
    _answers.debug("answered: %s", told, extra={"told": told})


def _write(scope: Scope, status: int | None, took_ms: float, size: int) -> None:
    method = scope.get("method", "WEBSOCKET")
    path = shown_path(scope)
    query = shown_query(scope.get("query_string", b""))
    told: dict[str, Any] = {"method": method, "path": path}
    if query:
        told["query"] = query
    told |= {"status": status, "duration_ms": round(took_ms, 3), "bytes": size}
    shown = f"{path}?{query}" if query else path
    _log.info(
        "%s %s %s %.3f ms %d bytes",
        method,
        shown,
        "-" if status is None else status,
        took_ms,
        size,
        extra={"told": told},
    )
