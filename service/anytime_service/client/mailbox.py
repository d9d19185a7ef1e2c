"""What happens while a call waits, in order, and the moment at which it waits no longer.

A timer wakes the call; nothing is cancelled and no timeout wraps anything, which is what keeps it punctual.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Generic, TypeVar

__all__ = ["Mailbox"]

Event = TypeVar("Event")
Kind = TypeVar("Kind")

KEPT = 4096
"""Events that wait to be looked at, at most: a server that sends more loses the oldest."""


class Mailbox(Generic[Event]):
    """Events for one call; belongs to the event loop in which it is made.

    Parameters
    ----------
    until : when to wait no longer, by `time.perf_counter`.
    """

    def __init__(self, until: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = until
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._waiter: asyncio.Future[None] | None = None
        self._set_timer()

    @property
    def struck(self) -> bool:
        """Whether the moment has come."""
        return time.perf_counter() >= self._until

    def put(self, event: Event) -> None:
        """Add an event and wake the call; from the event loop's own thread."""
        self._events.append(event)
        self._wake()

    def pop(self, kind: type[Kind]) -> Kind | None:
        """Remove and return the oldest event of one kind, also after the deadline; None if there is none."""
        for place, event in enumerate(self._events):
            if isinstance(event, kind):
                del self._events[place]
                return event
        return None

    async def get(self) -> Event | None:
        """Wait for the next event; None once the deadline has expired, whatever has happened by then."""
        while not self.struck:
            if self._events:
                return self._events.popleft()
            self._waiter = self._loop.create_future()
            await self._waiter
            if not self._events and not self.struck:  # timers of some event loops fire a little early
                self._timer.cancel()
                self._set_timer()
        return None

    def close(self) -> list[Event]:
        """Stop the timer; return the events that `get` has not returned."""
        self._timer.cancel()
        events = list(self._events)
        self._events.clear()
        return events

    def _set_timer(self) -> None:
        self._timer = self._loop.call_later(self._until - time.perf_counter(), self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
