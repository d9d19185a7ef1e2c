"""How the service logs: as text for people or as JSON for machines, uvicorn's own lines too.

Every line that a request gives rise to has its id, and in JSON the ids of its trace. Values, keys and headers are never
logged. What uvicorn and its WebSocket library would say below "info" are the bytes of whole messages and handshakes,
so that they stay at "info" whatever level is set.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from uvicorn.logging import DefaultFormatter

from anytime_service.access import LOGGER as ACCESS
from anytime_service.correlation import CURRENT
from anytime_service.settings import Settings

__all__ = ["JsonLines", "OnPurpose", "TextLines", "log_config"]

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
        "filters": {"on_purpose": {"()": OnPurpose}},
        "formatters": {"lines": lines},
        "handlers": {
            "lines": {"class": "logging.StreamHandler", "formatter": "lines", "stream": "ext://sys.stderr"},
        },
        "loggers": {
            "uvicorn": {**ours, "level": calm},
            "uvicorn.error": {"level": calm, "filters": ["on_purpose"]},
            "uvicorn.access": {"propagate": False},  # ours says more, see `access`
            "anytime_service": {**ours, "level": level},
            ACCESS: {"level": "INFO"},  # whoever wants it has said so
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
