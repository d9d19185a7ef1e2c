"""How late answers are, and how much earlier to wake so that they are not.

A wait ends some tens of microseconds after the time asked for, more on a busy machine. The margin follows it as a
running quantile (Robbins and Monro, 1951): it grows by `step * share` when an answer was late and shrinks by `step * (1
- share)` when it was not, and so settles where `share` of the answers are in time. One stall of the machine moves it by
one step only.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Lock

import numpy as np

__all__ = [
    "KEPT",
    "Lateness",
    "LatenessRecord",
]

KEPT = 4096
"""Answers that the percentiles are taken over: the last ones."""

MARGIN_MS = 0.1
LARGEST_MARGIN_MS = 1.0
STEP_MS = 0.02
SHARE_IN_TIME = 0.98


@dataclass(frozen=True)
class Lateness:
    """Answer ready minus deadline, in milliseconds; negative is early.

    Attributes
    ----------
    count : answers measured.
    p50, p99, max : over the last 4096 of them; 0 when there are none.
    """

    count: int
    p50: float
    p99: float
    max: float


class LatenessRecord:
    """Lateness of the answers of one runner and the margin learned from it; bounded, and safe to use from threads."""

    def __init__(self) -> None:
        self.margin_ms = MARGIN_MS
        self._count = 0
        self._kept: deque[float] = deque(maxlen=KEPT)
        self._lock = Lock()

    def add(self, late_ms: float) -> None:
        """Take the lateness of one answer."""
        step = STEP_MS * (SHARE_IN_TIME if late_ms > 0 else SHARE_IN_TIME - 1)
        with self._lock:
            self._count += 1
            self._kept.append(late_ms)
            self.margin_ms = min(max(self.margin_ms + step, 0.0), LARGEST_MARGIN_MS)

    def summary(self) -> Lateness:
        """Count and percentiles."""
        with self._lock:
            count, kept = self._count, list(self._kept)
        if not kept:
            return Lateness(0, 0.0, 0.0, 0.0)
        p50, p99 = np.percentile(kept, (50, 99)).tolist()
        return Lateness(count, p50, p99, max(kept))
