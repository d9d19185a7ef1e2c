"""The rules of time of a run: when to answer, which groups still fit, and what counts after a stall.

Nothing here reads a clock or waits: callers pass times, in seconds of one clock. Durations that people read or state
are in milliseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from threading import Lock

import numpy as np

from anytime.errors import ValuesError

WINDOW = 4096
"""Number of most recent answers that the percentiles of `Lateness` cover."""

MARGIN_MS = 0.1
LARGEST_MARGIN_MS = 1.0
STEP_MS = 0.02
SHARE_IN_TIME = 0.98

STALL_S = 0.001
"""A caller that wakes later than this was stalled, and its workers possibly too."""

STALL_SHARE = 0.1
"""Share of a stall that workers get to return finished work; the answer is at most that much later."""

MAX_DRAIN_S = 0.002
"""Seconds after its deadline during which a stalled caller still receives groups."""

QUIET_TURNS = 3
"""Turns of an event loop that find nothing new, after which a stalled caller has received everything that was there.

A loop needs them to read a socket, to read a slice of what it received, and to run the task that decodes it.
"""

MEASUREMENTS = 32
"""Number of most recent durations of a group that count."""

MEMORY_S = 20.0
"""Seconds for which a duration counts. Without one a group has its prior again, so that one slow phase ends."""

FITTING_SHARE = 0.9
"""A group fits if this share of its durations does."""

FEW = 3
"""With fewer measurements than this, the shortest of them and the prior count: first calls are often slow."""

REFUSALS = 32
"""After this many refusals a group counts as quick as ever for one run, so that the end of a slow phase is noticed.

A group that held up an answer, since it holds the interpreter, is not tried.
"""

UNMEASURED_REFUSALS = 8
"""The same for a group that was never measured: it counts as instantaneous, since the prior may be wrong."""


def checked_seconds(deadline_ms: float) -> float:
    """Return a deadline in seconds; raise ValuesError unless it is a finite number, 0 or more."""
    if isinstance(deadline_ms, bool) or not isinstance(deadline_ms, Real) or not 0 <= deadline_ms < math.inf:
        raise ValuesError(f"deadline_ms is {deadline_ms!r}; expected a finite number of milliseconds, 0 or more")
    try:
        return float(deadline_ms) / 1e3
    except OverflowError:
        raise ValuesError("deadline_ms is too large for a float; expected a finite number of milliseconds") from None


def early_ms(margin_ms: float, deadline_ms: float) -> float:
    """Return how long before a deadline to stop waiting: the margin, but at most half of a short deadline."""
    return min(margin_ms, deadline_ms / 2)


class LateReading:
    """What a caller that woke `late_s` seconds after its deadline, at `woken`, still receives: what had arrived.

    A caller that waits for workers has `remaining` seconds; one in an event loop lets it run as long as `has_turn`.
    """

    def __init__(self, late_s: float, woken: float) -> None:
        self._granted = woken + (min(STALL_SHARE * late_s, MAX_DRAIN_S) if late_s > STALL_S else 0.0)
        self._until = woken + MAX_DRAIN_S
        self._turns = QUIET_TURNS + 1  # loops differ in whether they read before or after their timers

    def remaining(self, now: float, *, unread: bool) -> float:
        """Return the seconds for which to wait; `unread` is whether a worker has a group to put."""
        return (self._until if unread else self._granted) - now

    def has_turn(self, now: float, *, unread: bool) -> bool:
        """Return whether to let the loop run once more; `unread` is whether bytes are there that it has not read."""
        self._turns = QUIET_TURNS if unread else self._turns - 1
        return self._turns >= 0 and now < self._until


@dataclass(frozen=True)
class Lateness:
    """Time of `count` answers minus their deadline, in ms; negative is early.

    The percentiles and the maximum are over the last 4096; 0 if there are no answers yet.
    """

    count: int
    p50: float
    p99: float
    max: float


class LatenessRecord:
    """Lateness of answers, and the margin learned from it; bounded and thread-safe.

    A wait ends some tens of microseconds after the requested time, more on a busy machine. A caller therefore wakes
    earlier, by a margin that is a running quantile of that delay (Robbins and Monro, 1951): it grows by `step * share`
    after a late answer and shrinks by `step * (1 - share)` after any other, so it settles where `share` of the answers
    are on time. A single stall of the machine changes it by only one step.
    """

    def __init__(self) -> None:
        self.margin_ms = MARGIN_MS
        self._count = 0
        self._latest: deque[float] = deque(maxlen=WINDOW)
        self._lock = Lock()

    def add(self, late_ms: float, *, waited: bool = True) -> None:
        """Record an answer; the margin learns from it only if the caller `waited` for the deadline."""
        step = STEP_MS * (SHARE_IN_TIME if late_ms > 0 else SHARE_IN_TIME - 1)
        with self._lock:
            self._count += 1
            self._latest.append(late_ms)
            if waited:
                self.margin_ms = min(max(self.margin_ms + step, 0.0), LARGEST_MARGIN_MS)

    def summary(self) -> Lateness:
        with self._lock:
            count, latest = self._count, list(self._latest)
        p50, p99 = np.percentile(latest or [0.0], (50, 99)).tolist()
        return Lateness(count, p50, p99, max(latest, default=0.0))


def fitting_ms(took_ms: Sequence[float]) -> float:
    """Return the duration that `FITTING_SHARE` of some sorted durations do not exceed."""
    return took_ms[int(FITTING_SHARE * (len(took_ms) - 1))]


class Durations:
    """The latest durations of a group, or of another repeated piece of work, and its expected duration; in ms.

    `prior_ms` is expected while none is known; None if nothing is known, and the work then counts as instantaneous.
    """

    def __init__(self, prior_ms: float | None = None) -> None:
        self._prior = () if prior_ms is None else (prior_ms,)
        self._latest: deque[tuple[float, float]] = deque()
        self._sorted: list[float] = []
        self._expected = prior_ms or 0.0
        self._refused = 0
        self._expected_before = math.inf
        """What was expected when the work was last refused."""
        self._careful_until = -math.inf
        self._lock = Lock()

    def add(self, took_ms: float, now: float) -> None:
        with self._lock:
            if self._refused >= REFUSALS and took_ms < self._expected_before:  # the old ones are of another phase
                self._latest.clear()
                self._sorted.clear()
            self._latest.append((now, took_ms))
            insort(self._sorted, took_ms)
            if len(self._latest) > MEASUREMENTS:
                self._forget()
            self._refused = 0
            self._learn()

    def expected_ms(self, now: float) -> float:
        """Return the duration that `FITTING_SHARE` of the latest ones do not exceed."""
        with self._lock:
            if self._latest and self._latest[0][0] < now - MEMORY_S:
                while self._latest and self._latest[0][0] < now - MEMORY_S:
                    self._forget()
                self._learn()
            return self._expected

    def hold_up(self, now: float) -> None:
        """Try this work no more for some time: it held up an answer by not ending in time."""
        self._careful_until = now + MEMORY_S

    def refuse(self, now: float) -> None:
        """Count a run in which the work did not fit; after some of them, expect the shortest duration once."""
        with self._lock:
            self._refused += 1
            self._learn()
            self._expected_before = self._expected
            if not self._sorted:
                self._expected *= self._refused % UNMEASURED_REFUSALS != 0
            elif self._refused % REFUSALS == 0 and now > self._careful_until:
                self._expected = self._sorted[0]

    def _forget(self) -> None:
        _, took_ms = self._latest.popleft()
        del self._sorted[bisect_left(self._sorted, took_ms)]

    def _learn(self) -> None:
        took = self._sorted
        self._expected = fitting_ms(took) if len(took) >= FEW else min((*self._prior, *took), default=0.0)


HANGING_S = 1.0
"""An abandoned computation that has run for longer than this, and ten times its duration, hangs."""


def is_hanging(running_s: float, expected_ms: float) -> bool:
    return running_s > max(1e-2 * expected_ms, HANGING_S)
