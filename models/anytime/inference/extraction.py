"""One extraction: the groups of one input, computed in order by a worker and collected by a thread with a deadline.

    waiting --begin--> computing --finish--> finished
       |                   |
       +-----cancel--------+--> cancelled: no further group is started, later arrivals are dropped

Two threads use it. The worker's thread calls `begin`, `put` and `finish`; the other calls `arrivals` and `cancel`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import TIMEOUT_MAX, Condition
from typing import Any

from anytime.errors import summary

MAX_DRAIN_S = 0.002
"""Seconds after its deadline during which `arrivals` still yields complete groups."""

STALL_S = 0.001
"""A consumer that wakes later than this was stalled, and its workers possibly too."""

STALL_SHARE = 0.1
"""Share of a stall that workers get to return finished work; the answer is at most that much later."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """The result of one group."""

    group: str
    values: Any
    """What the extractor returned; None if it failed."""
    took_ms: float
    """Duration of the extractor's call."""
    error: str | None = None
    """Why there are no values, in one line."""


class Extraction:
    """Groups of one input in progress, computed in `order`; `x` is in the form that the worker accepts."""

    def __init__(self, order: Sequence[str], x: Any) -> None:
        self.order = tuple(order)
        self.x = x
        self.cancelled_at: float | None = None
        self._changed = Condition()
        self._arrived: deque[Arrival] = deque()
        self._ended = False
        self._stop: Callable[[], object] | None = None
        self._pending: Callable[[], bool] | None = None
        self._late: Callable[[Arrival], object] | None = None

    @property
    def cancelled(self) -> bool:
        return self.cancelled_at is not None

    @property
    def ready(self) -> bool:
        """Whether an arrival is queued, so that `arrivals` would not wait for it."""
        return bool(self._arrived)

    @property
    def finished(self) -> bool:
        """Whether the worker is done and every computed group has been read."""
        return self._ended and not self._arrived

    def arrivals(self, until: float) -> Iterator[Arrival]:
        """Yield groups as they arrive, until all have arrived or the deadline (`time.perf_counter`, in s) expires.

        Groups that are complete when the deadline expires are yielded too, for at most `MAX_DRAIN_S`: after a stall
        they are in the queue, in the pipe of a worker process, or about to be returned by a stalled thread. A second
        call with a later deadline continues.
        """
        while (arrival := self._next(until, until)) is not None:
            yield arrival
        woken = time.perf_counter()
        stall = woken - until
        grace = min(STALL_SHARE * stall, MAX_DRAIN_S) if stall > STALL_S else 0.0
        while (arrival := self._next(woken + grace, woken + MAX_DRAIN_S)) is not None:
            yield arrival

    def cancel(self, late: Callable[[Arrival], object] | None = None) -> tuple[str, ...]:
        """Abandon the running extractor and start no further group; return the groups that were computed and not read.

        `late` is called, from any thread, with each group that is computed nevertheless, now or later: its values are
        discarded, but its duration is known.
        """
        with self._changed:
            if self.cancelled_at is None:
                self.cancelled_at = time.perf_counter()
                self._late = late
                if self._stop is not None:
                    self._stop()
            unread = tuple(self._arrived)
            self._arrived.clear()
            self._changed.notify_all()
        if late is not None:
            for arrival in unread:
                late(arrival)
        return tuple(arrival.group for arrival in unread if arrival.error is None)

    def begin(self, stop: Callable[[], object], pending: Callable[[], bool]) -> None:
        """Connect the worker that computes this extraction; both functions are called from other threads.

        `cancel` calls `stop`; `pending` returns whether the worker has computed a group that it has not yet put.
        """
        with self._changed:
            self._stop, self._pending = stop, pending
            if self.cancelled:
                stop()

    def put(self, arrival: Arrival) -> None:
        """Queue a computed group; after a cancellation, pass it only to the callback of `cancel`."""
        with self._changed:
            late = self._late
            if not self.cancelled:
                self._arrived.append(arrival)
                self._changed.notify_all()
                return
        if late is not None:
            late(arrival)

    def finish(self) -> None:
        with self._changed:
            self._ended = True
            self._stop = self._pending = None
            self._changed.notify_all()

    def _next(self, until: float, limit: float) -> Arrival | None:
        """Return the next group: wait until `until`, or until `limit` for a group that the worker is passing on."""
        with self._changed:
            while not (self.cancelled or self.finished) and (now := time.perf_counter()) < limit:
                if self._arrived:
                    return self._arrived.popleft()
                passing = until < limit and self._pending is not None and self._pending()
                remaining = (limit if passing else until) - now
                if remaining <= 0:
                    break
                self._changed.wait(min(remaining, TIMEOUT_MAX))
        return None


def computed(
    order: Sequence[str], extractors: Mapping[str, Callable[[Any], Any]], x: Any, stopped: Callable[[], bool]
) -> Iterator[Arrival]:
    """Yield the groups of `x`, computed in order and on demand, until `stopped()` is true.

    An exception of an extractor becomes the error of its arrival.
    """
    for group in order:
        if stopped():
            return
        begin = time.perf_counter()
        values, error = None, None
        try:
            values = extractors[group](x)
        except BaseException as raised:  # sys.exit in an extractor counts as a failure
            error = summary(raised)
        yield Arrival(group, values, (time.perf_counter() - begin) * 1e3, error)
