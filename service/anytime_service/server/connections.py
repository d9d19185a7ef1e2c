"""Shared state of the connections of one server: limits of their number, timeouts, and stored bytes."""

from __future__ import annotations

import resource
from collections.abc import Collection, Iterable
from typing import Protocol

from anytime_service.errors import OverloadedError
from anytime_service.http.exchange import LINGER_S
from anytime_service.http.responses import problem_reply, response
from anytime_service.limits.memory import MemoryBudget
from anytime_service.limits.queues import FairQueue, TimeoutQueue
from anytime_service.server.shedding import LoadShedding
from anytime_service.settings import Settings
from anytime_service.telemetry.context import RequestContext, on_behalf_of

__all__ = [
    "RESERVED",
    "RESERVED_DESCRIPTORS",
    "SIDE_CONNECTIONS",
    "Connection",
    "Connections",
    "raise_file_limit",
]

RESERVED = 16
"""Connections above the limit, which may only request health and metrics; of more, the oldest is closed."""

MAX_CLOSING = 16
"""Connections that received their last response and are not closed yet; of more, the oldest is aborted."""

OTHER_FILES = 64
"""File descriptors for everything except connections."""

SIDE_CONNECTIONS = 64
"""Connections of the separate port for metrics and probes."""

RESERVED_DESCRIPTORS = 2 * (RESERVED + MAX_CLOSING) + SIDE_CONNECTIONS + OTHER_FILES
"""File descriptors in addition to those of the served connections."""


class Connection(Protocol):
    """Interface of one connection."""

    def timed_out(self) -> None:
        """Stop reading: the awaited data did not arrive in time."""

    def refuse(self, error: Exception) -> None:
        """Send the error as the last response, and close."""

    def cut(self) -> None:
        """Close at once."""


class Connections:
    """The connections of a server and their limits.

    Parameters
    ----------
    settings : limits of size and time.
    held : memory budget of the bytes that are stored for clients.
    shedding : load shedding of predictions; None admits all.

    Attributes
    ----------
    heads : connections that wait for a request's head.
    looks : connections whose request body is scanned before it is refused.
    tails : connections whose request body continues after the response.
    closing : connections that received their last response.
    writes : connections whose clients do not read.
    """

    def __init__(self, settings: Settings, held: MemoryBudget, shedding: LoadShedding | None = None) -> None:
        self.settings = settings
        self.held = held
        self.shedding = shedding
        self.max_connections = settings.max_connections
        self.fair_queue = FairQueue()
        self.heads: TimeoutQueue[Connection] = TimeoutQueue(settings.header_timeout_s, lambda each: each.timed_out())
        self.looks: TimeoutQueue[Connection] = TimeoutQueue(LINGER_S, lambda each: each.timed_out())
        self.tails: TimeoutQueue[Connection] = TimeoutQueue(LINGER_S, lambda each: each.cut())
        self.closing: TimeoutQueue[Connection] = TimeoutQueue(LINGER_S, lambda each: each.cut())
        self.writes: TimeoutQueue[Connection] = TimeoutQueue(settings.idle_timeout_s, lambda each: each.cut())
        self._excess: dict[Connection, None] = {}
        self._unsent: dict[Connection, tuple[MemoryBudget, int]] = {}
        self._context = None if shedding is None else RequestContext("", (), shedding.handler.signals.errors)

    def opened(self, connection: Connection, every: Collection[object]) -> bool:
        """Register a new connection, one of `every`, and return whether it may send any request."""
        self.heads.begin(connection)
        if self._served(every) <= self.max_connections:
            return True
        self._excess[connection] = None
        if len(self._excess) > RESERVED:
            oldest = next(iter(self._excess))
            self.closed(oldest)
            oldest.refuse(self.limit_error())
        return False

    def accepts_now(self, connection: Connection, every: Collection[object]) -> bool:
        """Return whether a connection above the limit may now send any request."""
        if self._served(every) >= self.max_connections:
            return False
        self._excess.pop(connection, None)
        return True

    def begin_closing(self, connection: Connection) -> None:
        """Give a connection time to read its last response."""
        self.closing.begin(connection)
        if len(self.closing) > MAX_CLOSING:
            self.closing.first().cut()

    def stalled(self, connection: Connection, unsent: int, held: MemoryBudget) -> None:
        """Start the timeout of a client that does not read, and add the `unsent` bytes to `held`."""
        self.writes.begin(connection)
        self._unsent[connection] = held, unsent
        held.bytes += unsent

    def resumed(self, connection: Connection) -> None:
        """Stop the timeout of a client that reads again or has disconnected."""
        self.writes.end(connection)
        held, unsent = self._unsent.pop(connection, (self.held, 0))
        held.bytes -= unsent

    def closed(self, connection: Connection) -> None:
        """Remove a connection."""
        self._excess.pop(connection, None)
        self.resumed(connection)
        for waiting in (self.heads, self.looks, self.tails, self.closing):
            waiting.end(connection)

    def _served(self, every: Collection[object]) -> int:
        """Return the number of connections that may send any request."""
        return len(every) - len(self._excess) - len(self.closing)

    def refusal(self, error: Exception, default: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the last response of a connection, outside a request; its error is counted too."""
        with on_behalf_of(self._context):
            return response(problem_reply(error)._replace(close=True), default)

    def limit_error(self) -> OverloadedError:
        """Return the error for a connection above the limit, and count it."""
        if self.shedding is not None:
            self.shedding.count("connections")
        return OverloadedError(
            f"there are {self.max_connections} connections, the limit; retry in a second, or use another replica"
        )


def raise_file_limit(connections: int) -> int:
    """Raise the process's limit of open files as far as allowed, and return how many connections it permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + RESERVED_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    return max(soft - RESERVED_DESCRIPTORS, 1)
