"""One line a request, one a WebSocket connection and, in debugging, one an answer, for those who want them.

How the service logs: as text for people or as JSON for machines, uvicorn's own lines too.

Every line that a request gives rise to has its id, and in JSON the ids of its trace. Values, keys and headers are never
logged. What uvicorn and its WebSocket library would say below "info" are the bytes of whole messages and handshakes,
so that they stay at "info" whatever level is set.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.logging import DefaultFormatter

from anytime.inference.answer import Answer
from anytime_service.clock import now_ms
from anytime_service.settings import Settings
from anytime_service.telemetry.context import CURRENT

__all__ = [
    "LIMITED",
    "LOGGER",
    "MAX_LINES",
    "WINDOW_S",
    "AccessLog",
    "JsonLines",
    "Limited",
    "OnPurpose",
    "TextLines",
    "log_answer",
    "log_config",
    "shown_path",
    "shown_query",
]

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


MAX_LINES = 10
"""Warnings and errors that one place in the code may log in `WINDOW_S`: clients can cause any number of them."""

WINDOW_S = 60.0

_OTHERS = {
    "asyncio": "WARNING",
    "concurrent.futures": "WARNING",
    "fastapi": "WARNING",
    "opentelemetry": "ERROR",  # its warnings are of every attempt at a collector that is gone
    "redis": "WARNING",
}
"""Loggers of libraries that may have something to say, and from which level on."""

_DROPPED = (
    "ASGI callable returned without completing response.",  # left open so that its connection closes, see `exchange`
    "connection open",
    "connection rejected (%d %s)",
    "ASGI callable returned without completing handshake.",  # it has, by refusing with a response
    "Invalid UTF-8 sequence received from client.",  # a client's mistake, which the client is told
)


class OnPurpose(logging.Filter):
    """Drops what uvicorn says of things that are meant, and of every WebSocket that opens."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to keep a record."""
        return record.msg not in _DROPPED and "WebSocket" not in str(record.msg) and not _has_gone(record)


@dataclass(slots=True)
class _Window:
    """Lines of one place in the code: since when they are counted, how many were dropped, and the first of those."""

    since: float
    kept: int = 0
    dropped: int = 0
    first: logging.LogRecord | None = None


class Limited(logging.Filter):
    """Drops warnings and errors beyond `MAX_LINES` in `WINDOW_S` of each place in the code, and reports how many.

    Memory is bounded by the size of the code.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        self._windows: dict[tuple[str, int], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to keep a record."""
        if record.levelno < logging.WARNING or hasattr(record, "suppressed"):
            return True
        self.report(WINDOW_S)
        with self._lock:
            window = self._windows.setdefault((record.pathname, record.lineno), _Window(monotonic()))
            if window.kept < MAX_LINES:
                window.kept += 1
                return True
            window.dropped += 1
            window.first = window.first or record
            return False

    def report(self, age_s: float = 0.0) -> None:
        """Report the lines dropped in windows that are older than some seconds, and begin new windows."""
        until = monotonic() - age_s
        with self._lock:
            over = [place for place, window in self._windows.items() if window.since <= until]
            windows = [self._windows.pop(place) for place in over]
        for window in windows:
            if window.first is not None:
                logging.getLogger(window.first.name).log(
                    window.first.levelno,
                    "%d more lines like this one were not logged: %s",
                    window.dropped,
                    window.first.getMessage(),
                    extra={"suppressed": window.dropped, "told": {"suppressed": window.dropped}},
                )


LIMITED = Limited()
"""The limit of this process; its servers share it, as they share the loggers."""


class TextLines(DefaultFormatter):
    """uvicorn's lines, with the request's id at the end of the first."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Write the first line of a record."""
        line = super().formatMessage(record)
        current = CURRENT.get()
        return line if current is None else f"{line} [{current.id}]"


class JsonLines(logging.Formatter):
    """One JSON object a line, with the traceback inside; what a record has as `told` stands beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= _of_request()
        line |= getattr(record, "told", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # Everything but ASCII is escaped, so that a line is a line and half a surrogate is no error.
        return json.dumps(line, default=str)


def _has_gone(record: logging.LogRecord) -> bool:
    """Whether all that failed was writing to a client that has reset its connection meanwhile."""
    error = record.exc_info[1] if record.exc_info else None
    return isinstance(error, RuntimeError) and "the handler is closed" in str(error)


def log_config(settings: Settings) -> dict[str, Any]:
    """Configuration for `logging.config.dictConfig`; the root is left to the program that embeds the service."""
    level = settings.log_level.upper()
    calm = "INFO" if level == "DEBUG" else level
    lines: dict[str, Any] = {"()": JsonLines}
    if settings.log_format == "text":
        lines = {"()": TextLines, "fmt": "%(levelprefix)s %(message)s"}
    ours = {"handlers": ["lines"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"on_purpose": {"()": OnPurpose}, "limited": {"()": lambda: LIMITED}},
        "formatters": {"lines": lines},
        "handlers": {
            "lines": {
                "class": "logging.StreamHandler",
                "filters": ["limited"],
                "formatter": "lines",
                "stream": "ext://sys.stderr",
            },
        },
        "loggers": {
            "uvicorn": {**ours, "level": calm},
            "uvicorn.error": {"level": calm, "filters": ["on_purpose"]},
            "uvicorn.access": {"propagate": False},  # ours says more, see `access`
            "anytime_service": {**ours, "level": level},
            LOGGER: {"level": "INFO"},  # whoever wants it has said so
            **{name: {**ours, "level": others} for name, others in _OTHERS.items()},
        },
    }


def _of_request() -> dict[str, str]:
    current = CURRENT.get()
    if current is None:
        return {}
    told = {"request_id": current.id}
    trace = current.trace()
    if trace is not None:
        told["trace_id"], told["span_id"] = trace
    return told
