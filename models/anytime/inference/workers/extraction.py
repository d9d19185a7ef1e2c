"""One extraction: the groups of one input, computed in order by a worker and collected by somebody with a clock.

    waiting --begin--> computing --finish--> finished
       |                   |
       +-----cancel--------+--> cancelled: no further group is started, what still comes is dropped

Two threads meet here. The worker's calls `begin`, `put` and `finish`; the other one `arrivals` and `cancel`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import TIMEOUT_MAX, Condition
from typing import Any

from anytime.errors import summary

__all__ = [
    "MAX_DRAIN_S",
    "Arrival",
    "Extraction",
    "computed",
]

MAX_DRAIN_S = 0.002
"""How long `arrivals` goes on after its deadline to yield groups that are complete."""

STALL_S = 0.001
"""A consumer that wakes later than this has been stalled, and its workers perhaps too."""

STALL_SHARE = 0.1
"""Share of a stall that workers get to return what they had in hand: at most so much later is the answer."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What came of one group.

    Attributes
    ----------
    group : its name.
    values : what the extractor returned; None where it failed.
    took_ms : how long the extractor worked, in milliseconds.
    error : why there are no values, in one line; None where there are.
    """

    group: str
    values: Any
    took_ms: float
    error: str | None = None


class Extraction:
    """Groups of one input on their way.

    Parameters
    ----------
    order : the groups, in the order in which they are computed.
    x : what the extractors are called with, in the form in which the worker takes it.
    """

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
        """Whether nobody waits for more groups."""
        return self.cancelled_at is not None

    @property
    def ready(self) -> bool:
        """Whether an arrival is at hand, so that `arrivals` would not wait for it."""
        return bool(self._arrived)

    @property
    def finished(self) -> bool:
        """Whether nothing more will come: the worker is done and everything that it computed has been read."""
        return self._ended and not self._arrived

    def arrivals(self, until: float) -> Iterator[Arrival]:
        """Yield groups as they arrive, until all have arrived or the deadline expires.

        Groups that are complete when the deadline expires are yielded too, for at most `MAX_DRAIN_S`: after a stall of
        this process they are in the queue, in the pipe of a worker process, or about to be returned by a thread that
        was stalled as well.

        Parameters
        ----------
        until : the deadline, by `time.perf_counter`, in seconds. May be called again with another one, to continue.
        """
        while (arrival := self._next(until)) is not None:
            yield arrival
        woken = time.perf_counter()
        stall = woken - until
        patience = min(STALL_SHARE * stall, MAX_DRAIN_S) if stall > STALL_S else 0.0
        while (arrival := self._next_complete(woken + patience, woken + MAX_DRAIN_S)) is not None:
            yield arrival

    def cancel(self, late: Callable[[Arrival], object] | None = None) -> tuple[str, ...]:
        """Stop it: no further group is started, the one that is being computed is abandoned.

        Parameters
        ----------
        late : told, from any thread, of each group that is computed all the same, now or later: its values are of no
            use any more, but what it took is known.

        Returns
        -------
        tuple of str
            Groups that were computed and that nobody read.
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

        Parameters
        ----------
        stop : called by `cancel`.
        pending : whether the worker has computed a group that has not been put yet.
        """
        with self._changed:
            self._stop, self._pending = stop, pending
            if self.cancelled:
                stop()

    def put(self, arrival: Arrival) -> None:
        """Hand over a group that is computed; when nobody waits for it, only what it took is told."""
        with self._changed:
            late = self._late
            if not self.cancelled:
                self._arrived.append(arrival)
                self._changed.notify_all()
                return
        if late is not None:
            late(arrival)

    def finish(self) -> None:
        """Say that no more groups will come."""
        with self._changed:
            self._ended = True
            self._stop = self._pending = None
            self._changed.notify_all()

    def _next(self, until: float) -> Arrival | None:
        with self._changed:
            while True:
                left = until - time.perf_counter()
                if left <= 0 or self.cancelled or self.finished:
                    return None
                if self._arrived:
                    return self._arrived.popleft()
                self._changed.wait(min(left, TIMEOUT_MAX))

    def _next_complete(self, patience: float, limit: float) -> Arrival | None:
        """Return a group that is complete: wait until `limit` for one in the worker's hands, else until `patience`."""
        with self._changed:
            while not (self.cancelled or self.finished):
                now = time.perf_counter()
                if now >= limit:
                    break
                if self._arrived:
                    return self._arrived.popleft()
                left = (limit if self._pending is not None and self._pending() else patience) - now
                if left <= 0:
                    break
                self._changed.wait(left)
        return None


def computed(
    order: Sequence[str], extractors: Mapping[str, Callable[[Any], Any]], x: Any, stopped: Callable[[], bool]
) -> Iterator[Arrival]:
    """Compute the groups of `x` in order, each when asked for, until `stopped()`; what an extractor raises is told."""
    for group in order:
        if stopped():
            return
        begin = time.perf_counter()
        values, error = None, None
        try:
            values = extractors[group](x)
        except BaseException as raised:  # an extractor that calls sys.exit has failed like any other
            error = summary(raised)
        yield Arrival(group, values, (time.perf_counter() - begin) * 1e3, error)
