"""Request context: the request id and the trace that tie log lines, spans and problems to a request.

The id is the client's `X-Request-Id` if it is valid, otherwise a new one. Every response and every handshake of the
application contains it. Tasks and timers inherit the context of the request that started them, so an answer that a
deadline timer sends still has its request. `on_behalf_of` switches the context where one request does work for
another: groups of a session, or one set of groups that is solved for several predictions.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count

from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADER = b"x-request-id"
_VALID_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_TRACEPARENT = re.compile(
    r"(?:(00)|(?!00|ff)[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})-[0-9a-f]{2}(?(1)|(?:-.*)?)"
)
"""Version, ids of the trace and the span, flags; a version after 00 may have more."""
DIRECT = "anytime_service.direct"  # WebSocket extension: what the connection can do beyond ASGI, see `http/exchange.py`
_STARTS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request, or one WebSocket connection, which carries many predictions.

    `errors` counts the problems that were sent. `span` is the id of the trace and the id of the server's span in it;
    None without tracing.
    """

    id: str
    headers: Headers
    errors: Counter
    connection: bool = False
    span: tuple[str, str] | None = None

    def caller(self) -> tuple[str, str] | None:
        """Return the ids of the trace and of the caller's span, if the caller sent them."""
        values = [value for name, value in self.headers if name == b"traceparent"]
        return trace_of(values[0].decode("latin-1")) if len(values) == 1 else None

    def trace(self) -> tuple[str, str] | None:
        """Return the ids of the trace and of a span in it: the server's span, else the caller's; None without one."""
        return self.span or self.caller()


CURRENT: ContextVar[RequestContext | None] = ContextVar("anytime_request", default=None)
"""The request that is being served; None while the service does work of its own."""


def with_request_context(
    app: ASGIApp, others: ASGIApp, errors: Counter, begun: Callable[[Scope], None] | None = None
) -> ASGIApp:
    """Return an application that sets the context of every request and adds its id to the response.

    It wraps the complete application, including the error handling; `others` gets events that are no requests. `begun`
    is called with the scope after the context is set; tracing uses it.
    """
    new = new_ids()

    def answer(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] not in ("http", "websocket"):
            return others(scope, receive, send)
        headers = scope["headers"]
        name = next((value for name, value in headers if name == _HEADER), b"")
        if not _VALID_ID.fullmatch(name):
            name = next(new)
        # Every request runs in a context of its own: no reset is needed.
        CURRENT.set(RequestContext(name.decode(), headers, errors, connection=scope["type"] == "websocket"))
        if begun is not None:
            begun(scope)

        def send_with_id(message: Message) -> Awaitable[None]:
            if message["type"] in _STARTS:
                message["headers"] = [*message.get("headers", ()), (_HEADER, name)]
            return send(message)

        return app(scope, receive, send_with_id)

    return answer


def new_ids() -> Iterator[bytes]:
    """Return an iterator of unique request ids: a random prefix for this process and a counter."""
    prefix = secrets.token_hex(6).encode()
    return (b"%b-%x" % (prefix, number) for number in count(1))


@contextmanager
def on_behalf_of(context: RequestContext | None) -> Iterator[None]:
    token = CURRENT.set(context)
    try:
        yield
    finally:
        CURRENT.reset(token)


def trace_of(traceparent: str) -> tuple[str, str] | None:
    """Return the ids of the trace and of the caller's span in a `traceparent` (W3C Trace Context); None if invalid."""
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    return None if found is None else (found["trace"], found["span"])
