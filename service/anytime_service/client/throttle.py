"""Asking a server less that refuses: a refusal is cheap, but not free, and many of them take the time of answers.

Adaptive throttling (Beyer, Jones, Petoff and Murphy, *Site Reliability Engineering*, 2016, chapter 21, "Handling
Overload"): of what is asked of a client, it spares the server the share

    max(0, (requests - K accepts - FEW) / (requests + 1)),

so that the server sees about K times what it accepts: enough to notice when it has time again.

How much earlier than its caller's deadline the server is asked to answer, learned from how late answers came.

An answer that a deadline interrupts comes after it by what the way there, the way back and both event loops take. Each
such answer counts, also one that came too late to be used. `anytime.inference.deadline` follows its quantile in small
steps. A network may change by far more than a step, so here the quantile is that of the last answers themselves.

Deadlines as a caller tells them, and when the client stops waiting for the sake of them.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from typing import Any

from anytime.errors import ValuesError
from anytime.inference.answer import Answer
from anytime.inference.deadline import LatenessRecord

__all__ = [
    "LONGEST_MS",
    "Deadline",
    "NetworkMargin",
    "Throttle",
    "checked_ms",
]

K = 1.2
"""Times as many as are accepted that the server is asked."""

FEW = 3.0
"""Refusals that say nothing yet."""

MEMORY_S = 2.0
"""What is this old counts a third of what is new."""


class Throttle:
    """Remembers what became of the last predictions; for one event loop.

    Parameters
    ----------
    now : seconds, from a clock that only goes on.
    chance : numbers from 0 to 1.
    """

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, chance: Callable[[], float] = random.random
    ) -> None:
        self._now, self._chance = now, chance
        self._at = now()
        self._requests = self._accepts = 0.0

    def spares(self) -> bool:
        """Whether the server is spared a prediction that is wanted now; it is refused without being asked."""
        self._fade()
        share = (self._requests - K * self._accepts - FEW) / (self._requests + 1.0)
        if share <= 0.0 or self._chance() >= share:
            return False
        self._requests += 1.0
        return True

    def accepted(self) -> None:
        """The server has begun one."""
        self._fade()
        self._requests += 1.0
        self._accepts += 1.0

    def refused(self) -> None:
        """The server had too much to do for one."""
        self._fade()
        self._requests += 1.0

    def _fade(self) -> None:
        now = self._now()
        kept = math.exp((self._at - now) / MEMORY_S)
        self._at = now
        self._requests *= kept
        self._accepts *= kept


KEPT = 64
"""Answers that count: few enough that a network which has become slower is noticed after two."""

SHARE_IN_TIME = 0.98

LONGEST_MS = 1000.0
"""A longer delay is believed to be this long: beyond it, no deadline of the kind served here is kept anyway."""


class NetworkMargin:
    """Delays of the last answers, and the margin that would have had 98% of them in time; for one event loop."""

    def __init__(self) -> None:
        self.ms = 0.0
        self._kept: deque[float] = deque(maxlen=KEPT)

    def guess(self, delay_ms: float) -> None:
        """Take a first delay, of an answer that had nothing to wait for; the next one replaces it."""
        if not self._kept:
            self.ms = min(max(delay_ms, 0.0), LONGEST_MS)

    def add(self, delay_ms: float) -> None:
        """Take the delay of one answer: when it came, less the deadline that the server was told."""
        self._kept.append(min(max(delay_ms, 0.0), LONGEST_MS))
        ordered = sorted(self._kept)
        self.ms = ordered[min(int(SHARE_IN_TIME * len(ordered)), len(ordered) - 1)]

    def told_ms(self, left_ms: float) -> float:
        """Deadline to tell the server when this much is left; at least half of it, or little could be computed."""
        return max(left_ms - self.ms, left_ms / 2, 0.0)


def checked_ms(deadline_ms: Any) -> float:
    """A deadline as a number of milliseconds.

    Raises
    ------
    ValuesError
        It is negative, infinite, or no number.
    """
    number = float(deadline_ms) if isinstance(deadline_ms, Real) and not isinstance(deadline_ms, bool) else math.nan
    if not 0 <= number < math.inf:
        raise ValuesError(f"deadline_ms is {deadline_ms!r}; expected a finite number of milliseconds, 0 or more")
    return number


class Deadline:
    """A caller's deadline, by `time.perf_counter`, in seconds.

    Parameters
    ----------
    begun : when it began to count.
    ms : how long it is.
    late : lateness of the answers before, and the margin learned from it.
    """

    def __init__(self, begun: float, ms: float, late: LatenessRecord) -> None:
        self.begun = begun
        self.at = begun + ms / 1e3
        # A deadline so short that the margin would take most of it keeps half.
        self.until = self.at - min(late.margin_ms, ms / 2) / 1e3

    def told(self, answer: Answer) -> Answer:
        """Say in an answer how long it took, here."""
        return replace(answer, elapsed_ms=(time.perf_counter() - self.begun) * 1e3)
