"""What the connections of one server share: how many there may be, how long they are waited for, and what they hold."""

from __future__ import annotations

import resource
from collections.abc import Collection, Iterable
from typing import Protocol

from anytime_service.errors import OverloadedError
from anytime_service.http.exchange import LINGER_S
from anytime_service.http.responses import problem_reply, response
from anytime_service.limits.memory import Held
from anytime_service.limits.queues import FairQueue, TimeoutQueue
from anytime_service.server.shedding import LoadShedding
from anytime_service.settings import Settings
from anytime_service.telemetry.context import RequestContext, on_behalf_of

__all__ = [
    "BESIDE",
    "RESERVED",
    "SIDE_CONNECTIONS",
    "Connection",
    "Connections",
    "room_for",
]

RESERVED = 16
"""Connections above the limit that may only ask how the service is; of more, the oldest goes."""

LASTING = 16
"""Connections that were told that this is all, and have not been closed yet; of more, the oldest is cut off."""

OTHER_FILES = 64
"""Descriptors for everything that is no connection."""

SIDE_CONNECTIONS = 64
"""Connections of the port for metrics and probes, where there is one."""

BESIDE = 2 * (RESERVED + LASTING) + SIDE_CONNECTIONS + OTHER_FILES
"""Descriptors beyond the connections that may be served."""


class Connection(Protocol):
    """What is asked of one connection."""

    def overdue(self) -> None:
        """Take no more: what was waited for has not come in time."""

    def refuse(self, error: Exception) -> None:
        """Tell why nothing is served here, and close."""

    def cut(self) -> None:
        """Close at once."""


class Connections:
    """The limits of a server, and the connections that they are kept for.

    Parameters
    ----------
    settings : limits of size and time.
    held : bytes that clients have the server hold.
    shedding : what to do with predictions when too many are asked for; None lets all pass.

    Attributes
    ----------
    heads : connections whose next request has not come, or not wholly.
    looks : those whose request is looked through before it is refused.
    tails : those whose request goes on after its response.
    lasts : those that were told that they are closed.
    writes : those that do not take what is sent.
    """

    def __init__(self, settings: Settings, held: Held, shedding: LoadShedding | None = None) -> None:
        self.settings = settings
        self.held = held
        self.shedding = shedding
        self.most = settings.max_connections
        self.turns = FairQueue()
        self.heads: TimeoutQueue[Connection] = TimeoutQueue(settings.header_timeout_s, lambda each: each.overdue())
        self.looks: TimeoutQueue[Connection] = TimeoutQueue(LINGER_S, lambda each: each.overdue())
        self.tails: TimeoutQueue[Connection] = TimeoutQueue(LINGER_S, lambda each: each.cut())
        self.lasts: TimeoutQueue[Connection] = TimeoutQueue(LINGER_S, lambda each: each.cut())
        self.writes: TimeoutQueue[Connection] = TimeoutQueue(settings.idle_timeout_s, lambda each: each.cut())
        self._guests: dict[Connection, None] = {}
        self._unsent: dict[Connection, tuple[Held, int]] = {}
        self._nobody = None if shedding is None else RequestContext("", (), shedding.handler.signals.errors)

    def came(self, connection: Connection, every: Collection[object]) -> bool:
        """Take note of a new connection, one of `every`; whether it may ask for anything."""
        self.heads.begin(connection)
        if self._served(every) <= self.most:
            return True
        self._guests[connection] = None
        if len(self._guests) > RESERVED:
            oldest = next(iter(self._guests))
            self.left(oldest)
            oldest.refuse(self.full())
        return False

    def has_room(self, connection: Connection, every: Collection[object]) -> bool:
        """Whether a connection that might only ask how the service is may ask for anything by now."""
        if self._served(every) >= self.most:
            return False
        self._guests.pop(connection, None)
        return True

    def closes(self, connection: Connection) -> None:
        """Give a connection that was told that this is all some time to read it."""
        self.lasts.begin(connection)
        if len(self.lasts) > LASTING:
            self.lasts.first().cut()

    def stalled(self, connection: Connection, unsent: int, held: Held) -> None:
        """Wait for a client that does not read, and have `held` count the `unsent` bytes."""
        self.writes.begin(connection)
        self._unsent[connection] = held, unsent
        held.bytes += unsent

    def flows(self, connection: Connection) -> None:
        """Stop waiting for a client, as it reads again or has gone."""
        self.writes.end(connection)
        held, unsent = self._unsent.pop(connection, (self.held, 0))
        held.bytes -= unsent

    def left(self, connection: Connection) -> None:
        """Forget a connection."""
        self._guests.pop(connection, None)
        self.flows(connection)
        for waiting in (self.heads, self.looks, self.tails, self.lasts):
            waiting.end(connection)

    def _served(self, every: Collection[object]) -> int:
        """How many connections may ask for anything."""
        return len(every) - len(self._guests) - len(self.lasts)

    def refusal(self, error: Exception, default: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The last response of a connection, which is none to a request; it is counted all the same."""
        with on_behalf_of(self._nobody):
            return response(problem_reply(error)._replace(close=True), default)

    def full(self) -> OverloadedError:
        """Why a connection is not served."""
        if self.shedding is not None:
            self.shedding.count("connections")
        return OverloadedError(f"there are {self.most} connections already; ask again in a second, or another replica")


def room_for(connections: int) -> int:
    """Raise this process's limit of open files as far as it may be; how many connections there is room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + BESIDE
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    return max(soft - BESIDE, 1)
