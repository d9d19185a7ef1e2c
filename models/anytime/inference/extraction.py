"""One extraction: the groups of one input, which workers compute in order for a caller with a deadline.

    waiting --take--> computing --the last worker leaves--> finished
       |                  |
       +------cancel------+--> cancelled: no further group is started

Workers call `take`, `starting`, `put` and `leave`, each in its own thread; the caller calls `wait` and `cancel`, from
any thread. `put` passes each result to `receive` at once, in the worker's thread, also after a cancellation.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence, Set
from threading import TIMEOUT_MAX, Condition
from typing import Any, NamedTuple

from anytime.errors import summary
from anytime.inference.deadline import LateReading


class Task(NamedTuple):
    """A group to compute."""

    group: str
    start_by: float = math.inf
    """Latest time at which it may start, in seconds of `time.perf_counter`."""
    uses: tuple[str, ...] = ()
    """Groups without features whose results its extractor receives after the input."""
    needs: frozenset[str] = frozenset()
    """Groups of the extraction that are computed before it, by any worker."""
    shared: bool = False
    """Whether its result is for other extractors: the group has no features."""


class Arrival(NamedTuple):
    """The result of one group."""

    group: str
    values: Any = None
    """What the extractor returned; None if it failed."""
    took_ms: float = 0.0
    """Duration of the extractor's call."""
    error: str | None = None
    """Why there are no values, in one line."""
    killed: bool = False
    """Whether its process was killed, since it was still busy long after a cancellation."""
    skipped: bool = False
    """Whether the group was not started, since it could not end in time."""


class Seat:
    """A worker, as an extraction sees it; both methods are called from other threads."""

    def stop(self) -> None:
        """Start no further group of the extraction that this worker computes."""

    def pending(self) -> bool:
        """Return whether a group is computed and not yet put."""
        return False


class Extraction:
    """Groups of one input in progress.

    Parameters
    ----------
    tasks : Sequence[Task]
        The groups, in order; each after those that it needs.
    x
        The input; `Workers.start` changes it to the form that its workers accept.
    receive : Callable[[Arrival], bool]
        Called with each arrival in the thread of a worker; it returns whether to continue. It must not raise.
    in_order : bool
        Whether the first task that cannot start in time is the last one, unless a group has failed; otherwise the
        others continue.
    workers : int
        Maximum number of workers that compute this extraction at the same time.
    ended : Callable[[], object] | None
        Called when the last worker has left, in its thread.
    read_by : float
        Time by which results must have arrived, unless the extraction ends earlier; workers may keep them back until
        shortly before.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        x: Any,
        receive: Callable[[Arrival], bool],
        *,
        in_order: bool = True,
        workers: int = 1,
        ended: Callable[[], object] | None = None,
        read_by: float = -math.inf,
    ) -> None:
        self.tasks = tuple(tasks)
        self.x = x
        self.in_order = in_order
        self.workers = min(workers, max(len(self.tasks), 1))
        self.read_by = read_by
        self.results: dict[str, Any] = {}
        """Results of groups without features."""
        self.running: dict[str, float] = {}
        """Groups being computed, and the time at which each started."""
        self.skipped: list[str] = []
        """Groups that were not started, since they could not end in time."""
        self.began = False
        """Whether a worker has begun."""
        self.cancelled_at: float | None = None
        self.finished = not self.tasks
        """Whether every group has arrived or will not."""
        self._receive = receive
        self._notify_ended = ended
        self._shared = {task.group for task in self.tasks if task.shared}
        self._changed = Condition()
        self._closed = False
        self._left = list(self.tasks)
        self._done: set[str] = set()
        self._seats: list[Seat] = []

    @property
    def cancelled(self) -> bool:
        return self.cancelled_at is not None

    def wait(self, until: float, *, reads_late: bool = False) -> float | None:
        """Wait until the extraction is finished (return None) or until a time (return how late the caller woke).

        With `reads_late`, a caller that woke late also receives the groups that had arrived; see `LateReading`.
        """
        with self._changed:
            while not self.finished and (now := time.perf_counter()) < until:
                self._changed.wait(min(until - now, TIMEOUT_MAX))
            if self.finished:
                return None
            woken = time.perf_counter()
            reading = LateReading(woken - until, woken)
            while reads_late and not self.finished:
                unread = any(seat.pending() for seat in self._seats)
                remaining = reading.remaining(time.perf_counter(), unread=unread)
                if remaining <= 0:
                    break
                self._changed.wait(remaining)
            return woken - until

    def cancel(self) -> None:
        """Abandon running extractors and start no further group. Idempotent."""
        with self._changed:
            if self.cancelled_at is None:
                self.cancelled_at = time.perf_counter()
                self.finished = True
                for seat in self._seats:
                    seat.stop()
                self._changed.notify_all()

    def take(self) -> list[Task]:
        """Return the next tasks for a worker, [] without one; wait for groups that the others need.

        One worker gets all tasks at once; each of several gets the first one whose needs are done.
        """
        with self._changed:
            self.began = True
            while self._left and not self.cancelled:
                if self.workers == 1:
                    taken, self._left = self._left, []
                    return taken
                for i, task in enumerate(self._left):
                    if task.needs <= self._done:
                        del self._left[i]
                        return [task]
                self._changed.wait()
            return []

    def join(self, seat: Seat) -> None:
        """Connect a worker."""
        with self._changed:
            self._seats.append(seat)
            if self.cancelled:
                seat.stop()

    def leave(self, seat: Seat) -> None:
        """Disconnect a worker."""
        with self._changed:
            self._seats.remove(seat)
            last = not (self._seats or self._left)
            self.finished = self.finished or last
            self._changed.notify_all()
        if last and self._notify_ended is not None:
            self._notify_ended()

    def give_back(self, tasks: Sequence[Task]) -> None:
        """Return tasks that a worker took and lost, for another worker."""
        with self._changed:
            self._left = [*tasks, *self._left]

    def close(self) -> None:
        """Cancel an extraction whose workers end; later failures are dropped."""
        self._closed = True
        self.cancel()

    def starting(self, group: str) -> None:
        self.running[group] = time.perf_counter()

    def put(self, arrival: Arrival) -> bool:
        """Record the result of a group; return whether the worker continues."""
        self.running.pop(arrival.group, None)
        goes_on = not (arrival.skipped and self.in_order)
        if arrival.skipped:
            self.skipped.append(arrival.group)
        else:
            if arrival.error is not None:
                self.in_order = False
            elif arrival.group in self._shared and self.workers > 1:  # one worker keeps its results to itself
                self.results[arrival.group] = arrival.values
            if (self._closed and arrival.error is not None) or not self._receive(arrival):
                self.cancel()
        if self.workers > 1 or not goes_on:
            with self._changed:
                self._done.add(arrival.group)
                if not goes_on:
                    self._left = []
                self._changed.notify_all()
        return goes_on and self.cancelled_at is None


def computed(
    tasks: Sequence[Task],
    extractors: Mapping[str, Callable[..., Any]],
    x: Any,
    results: dict[str, Any],
    skipped: Collection[str] = (),
    *,
    in_order: bool,
    starting: Callable[[str], object] = lambda _: None,
) -> Iterator[Arrival]:
    """Yield the groups of `x`, computed in order and on demand; `results` gets those of groups without features.

    A group that cannot start in time is skipped, as are groups that use its result; with `in_order` it is the last one,
    until a group has failed. An exception of an extractor becomes the error of its arrival, and of the groups that use
    its result. `skipped` are groups that other workers skipped.
    """
    skipped = set(skipped)
    for task in tasks:
        begin = time.perf_counter()
        missing = [name for name in task.uses if name not in results]
        if begin > task.start_by or not skipped.isdisjoint(missing):
            skipped.add(task.group)
            yield Arrival(task.group, skipped=True)
            if in_order:
                return
            continue
        if missing:
            yield Arrival(task.group, error=f"it uses {missing[0]!r}, which failed")
            in_order = False
            continue
        starting(task.group)
        try:
            values = extractors[task.group](x, *[results[name] for name in task.uses])
            error = None if task.shared else _unusable(values)
        except BaseException as raised:  # sys.exit in an extractor counts as a failure
            error = summary(raised)
        if error is not None:
            values, in_order = None, False
        elif task.shared:
            results[task.group] = values
        yield Arrival(task.group, values, (time.perf_counter() - begin) * 1e3, error)


def _unusable(result: object) -> str | None:
    """Return why the result of an extractor is not the values of a group; None if it may be."""
    if isinstance(result, Coroutine):
        result.close()  # otherwise Python warns that nobody awaits it
    if isinstance(result, Awaitable | AsyncIterator):
        return f"its extractor is async and returned a {type(result).__name__}; expected a function that returns values"
    if result is None or isinstance(result, Iterator | Mapping | Set):
        what = "None (is a return missing?)" if result is None else f"a {type(result).__name__}"
        return f"its extractor returned {what}; expected an array or lists of values"
    return None
