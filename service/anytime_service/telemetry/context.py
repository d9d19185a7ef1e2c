"""What ties log lines, spans and problems to the request that they are about: its id, and the caller's trace.

The id is the client's own `X-Request-Id` where that is sane, else a new one; every response and every handshake of the
application tells it. Tasks and timers inherit the request in which they were begun, so that an answer that leaves from
an alarm still has its request. What one request does on behalf of another, a session's groups or a set solved for
several, goes back to the other's by `on_behalf_of`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count

from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = [
    "CURRENT",
    "HEADER",
    "RequestContext",
    "RequestContextMiddleware",
    "new_ids",
    "on_behalf_of",
    "trace_of",
]

HEADER = b"x-request-id"

_SANE = re.compile(rb"[\x21-\x7e]{1,128}")
_TRACEPARENT = re.compile(
    r"(?P<version>(?!ff)[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})-[0-9a-f]{2}(?P<more>-.*)?"
)
_STARTS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})

Headers = Sequence[tuple[bytes, bytes]]


class RequestContext:
    """One request or WebSocket connection.

    Attributes
    ----------
    id : tells the request from all others.
    connection : it is a WebSocket connection, on which many predictions are made.
    errors : counts the problems told, by kind.
    span : ids of the trace and of our own span in it, where spans are made.
    """

    __slots__ = ("_headers", "connection", "errors", "id", "span")

    def __init__(self, name: str, headers: Headers, errors: Counter, *, connection: bool = False) -> None:
        self.id = name
        self.connection = connection
        self.errors = errors
        self.span: tuple[str, str] | None = None
        self._headers = headers

    @property
    def traced(self) -> bool:
        """Whether the caller told of a trace of its own."""
        return self._caller() is not None

    def trace(self) -> tuple[str, str] | None:
        """Ids of the trace and of a span in it, ours or else the caller's; None where there is no trace."""
        return self.span or self._caller()

    def _caller(self) -> tuple[str, str] | None:
        told = [value for name, value in self._headers if name == b"traceparent"]
        return trace_of(told[0].decode("latin-1")) if len(told) == 1 else None


CURRENT: ContextVar[RequestContext | None] = ContextVar("anytime_request", default=None)
"""The request that is being served; None where the service does something of its own."""


class RequestContextMiddleware:
    """What stands before the whole application, its error handling too: gives every request its id, and tells it.

    Parameters
    ----------
    app : the application.
    errors : counts the problems told.
    begun : called when a request has its id, where more is to be noted of it.
    """

    def __init__(self, app: ASGIApp, errors: Counter, begun: Callable[[Scope], None] | None = None) -> None:
        self.app = app
        self._errors = errors
        self._begun = begun
        self._new = new_ids()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = scope["headers"]
        name = _told(headers) or next(self._new)
        # Every request has a task of its own, and with it a context: nothing needs to be set back.
        connection = scope["type"] == "websocket"
        CURRENT.set(RequestContext(name.decode(), headers, self._errors, connection=connection))
        if self._begun is not None:
            self._begun(scope)

        def telling(message: Message) -> Awaitable[None]:
            if message["type"] in _STARTS:
                message["headers"] = [*message.get("headers", ()), (HEADER, name)]
            return send(message)

        await self.app(scope, receive, telling)


def new_ids() -> Iterator[bytes]:
    """Ids that no other process gives: one random beginning for all, and a number."""
    beginning = secrets.token_hex(6).encode()
    return (b"%b-%x" % (beginning, number) for number in count(1))


@contextmanager
def on_behalf_of(correlation: RequestContext | None) -> Iterator[None]:
    """Do something for a request that is not the one being served."""
    token = CURRENT.set(correlation)
    try:
        yield
    finally:
        CURRENT.reset(token)


def trace_of(traceparent: str) -> tuple[str, str] | None:
    """Ids of the trace and of the caller's span in a `traceparent` (W3C Trace Context); None if it is none."""
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    if found is None or (found["version"] == "00" and found["more"] is not None):
        return None
    return found["trace"], found["span"]


def _told(headers: Headers) -> bytes | None:
    for name, value in headers:
        if name == HEADER:
            return value if _SANE.fullmatch(value) else None
    return None
