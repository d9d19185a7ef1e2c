"""Logging of the service: access log, answers at level debug, formatters, filters and the configuration.

Lines, also those of uvicorn, are text for people or JSON for machines. The access log has one line per request or
WebSocket connection. Every line that belongs to a request has the request id, and in JSON the ids of the trace. Values,
keys and headers are never logged. Below "info", uvicorn and its WebSocket library log the bytes of complete messages
and handshakes, so their loggers stay at "info" or above whatever level is set.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.logging import DefaultFormatter

from anytime.inference.prediction import Answer
from anytime_service.clock import now_ms
from anytime_service.schemas.options import PARAMETERS
from anytime_service.settings import Settings
from anytime_service.telemetry.context import CURRENT, DIRECT

MAX_LINES = 10  # warnings and errors of one place in the code in `WINDOW_S`; clients can cause any number of them
WINDOW_S = 60.0

_SESSION = re.compile("(/sessions/+)[^/]+", re.IGNORECASE)
"""Ids of sessions are secrets: anyone who has one can read the session and delete it."""

_OTHERS = {
    "asyncio": "WARNING",
    "concurrent.futures": "WARNING",
    "fastapi": "WARNING",
    "opentelemetry": "ERROR",  # it warns at every attempt to reach a collector that is down
    "redis": "WARNING",
    "websockets": "WARNING",  # it logs every connection, and below that the bytes of messages
}
"""Loggers of libraries, and the lowest level that is logged."""

_log = logging.getLogger("anytime_service")
_access_log = logging.getLogger("anytime_service.access")


def with_access_log(app: ASGIApp) -> ASGIApp:
    """Return an application that logs a line when a request or connection ends, so that no answer waits for it."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        begun = sent = now_ms()
        status, size, direct = None, 0, scope.get("extensions", {}).get(DIRECT)

        def count_bytes(message: Message) -> Awaitable[None]:
            nonlocal status, size, sent
            status = message.get("status", 101 if message["type"] == "websocket.accept" else status)
            content = message.get("body") or message.get("bytes") or message.get("text", "").encode()
            if content and scope.get("method") != "HEAD":
                size += len(content)
                sent = now_ms()  # an early answer is sent long before its request ends
            return send(message)

        try:
            await app(scope, receive, count_bytes)
        finally:
            done = sent if scope["type"] == "http" and size else now_ms()
            _log_access(
                scope, status, done - begun, direct.sent_bytes if direct is not None and status == 101 else size
            )

    return answer


def _log_access(scope: Scope, status: int | None, took_ms: float, size: int) -> None:
    query = shown_query(scope.get("query_string", b""))
    fields = {
        "method": scope.get("method", "WEBSOCKET"),
        "path": shown_path(scope),
        **({"query": query} if query else {}),
        "status": status,
        "duration_ms": round(took_ms, 3),
        "bytes": size,
    }
    _access_log.info(
        "%s %s %s %.3f ms %d bytes",
        fields["method"],
        f"{fields['path']}?{query}" if query else fields["path"],
        "-" if status is None else status,
        took_ms,
        size,
        extra={"json_fields": fields},
    )


def log_answer(answer: Answer, late_ms: float | None) -> None:
    """Log how a prediction was answered, without the predicted values."""
    fields = {
        "model": answer.model,
        "version": answer.version,
        "reason": answer.reason,
        "prefix": answer.prefix,
        "steps": answer.steps,
        "elapsed_ms": round(answer.elapsed_ms, 3),
        "late_ms": None if late_ms is None else round(late_ms, 3),
    }
    _log.debug("answered: %s", fields, extra={"json_fields": fields})


def shown_path(scope: Mapping[str, Any]) -> str:
    """Return a path for logs and traces: percent-encoded, with `{id}` in place of the id of a session."""
    return quote(_SESSION.sub(r"\1{id}", scope["path"]), safe="/{}:@!$&'()*+,;=~")


def shown_query(query: bytes) -> str:
    """Return a query string for logs and traces: the values of all but options may be secrets, and become `***`."""
    pairs = parse_qsl(query[:2000].decode("latin-1"), keep_blank_values=True)
    return urlencode([(name, value if name in PARAMETERS else "***") for name, value in pairs])


@dataclass(slots=True)
class _Window:
    since: float
    count: int = 0
    first: logging.LogRecord | None = None


class RateLimitFilter(logging.Filter):
    """Filter that drops warnings and errors beyond `MAX_LINES` in `WINDOW_S` per place in the code.

    It reports the number of dropped lines. Its memory is bounded by the size of the code.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        self._windows: dict[tuple[str, int], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or hasattr(record, "suppressed"):
            return True
        self.report(WINDOW_S)
        with self._lock:
            window = self._windows.setdefault((record.pathname, record.lineno), _Window(monotonic()))
            window.count += 1
            if window.count == MAX_LINES + 1:
                window.first = record
            return window.count <= MAX_LINES

    def report(self, age_s: float = 0.0) -> None:
        """Report the lines dropped in windows that are older than `age_s` seconds, and close these windows."""
        until = monotonic() - age_s
        with self._lock:
            over = [place for place, window in self._windows.items() if window.since <= until]
            windows = [self._windows.pop(place) for place in over]
        for window in windows:
            if window.first is not None:
                dropped = window.count - MAX_LINES
                logging.getLogger(window.first.name).log(
                    window.first.levelno,
                    "%d more lines like this one were not logged: %s",
                    dropped,
                    window.first.getMessage(),
                    extra={"suppressed": dropped, "json_fields": {"suppressed": dropped}},
                )


RATE_LIMIT = RateLimitFilter()  # the filter of this process; its servers share it, as they share the loggers


class TextFormatter(DefaultFormatter):
    """Formatter for text: uvicorn's lines, with the request id at the end of the first line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = super().formatMessage(record)
        current = CURRENT.get()
        return line if current is None else f"{line} [{current.id}]"


class JsonFormatter(logging.Formatter):
    """Formatter for JSON: one object per line, with the traceback and the record's `json_fields` as further members."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        current = CURRENT.get()
        if current is not None:
            line["request_id"] = current.id
            trace = current.trace()
            if trace is not None:
                line["trace_id"], line["span_id"] = trace
        line |= getattr(record, "json_fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # Non-ASCII characters are escaped: no character can end the line, and a lone surrogate raises no error.
        return json.dumps(line, default=str)


def log_config(settings: Settings) -> dict[str, Any]:
    """Return the configuration for `logging.config.dictConfig`, without the root logger.

    The root logger belongs to the program that embeds the service.
    """
    level = settings.log_level.upper()
    uvicorn_level = "INFO" if level == "DEBUG" else level
    lines: dict[str, Any] = {"()": JsonFormatter}
    if settings.log_format == "text":
        # By default uvicorn checks whether the standard output is a terminal, and fails if it is closed.
        colors = sys.stderr is not None and sys.stderr.isatty()
        lines = {"()": TextFormatter, "fmt": "%(levelprefix)s %(message)s", "use_colors": colors}
    ours = {"handlers": ["lines"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"rate_limit": {"()": lambda: RATE_LIMIT}},
        "formatters": {"lines": lines},
        "handlers": {
            "lines": {
                "class": "logging.StreamHandler",
                "filters": ["rate_limit"],
                "formatter": "lines",
                "stream": "ext://sys.stderr",
            }
        },
        "loggers": {
            "uvicorn": {**ours, "level": uvicorn_level},
            "uvicorn.error": {"level": uvicorn_level},
            "uvicorn.access": {"propagate": False},  # `with_access_log` logs more
            "anytime_service": {**ours, "level": level},
            "anytime_service.access": {"level": "INFO"},  # the setting access_log turns it on
            **{name: {**ours, "level": others} for name, others in _OTHERS.items()},
        },
    }
