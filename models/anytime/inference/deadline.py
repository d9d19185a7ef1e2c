"""Lateness of answers, and the margin by which to wake earlier.

A wait ends some tens of microseconds after the requested time, more on a busy machine. The margin is a running quantile
of that delay (Robbins and Monro, 1951): it grows by `step * share` after a late answer and shrinks by `step * (1 -
share)` after any other answer, so it settles where `share` of the answers are on time. A single stall of the machine
changes it by only one step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Lock

import numpy as np

__all__ = [
    "WINDOW",
    "Lateness",
    "LatenessRecord",
]

WINDOW = 4096
"""Number of most recent answers that the percentiles cover."""

MARGIN_MS = 0.1
LARGEST_MARGIN_MS = 1.0
STEP_MS = 0.02
SHARE_IN_TIME = 0.98


@dataclass(frozen=True)
class Lateness:
    """Time of the answer minus the deadline, in milliseconds; negative is early.

    Attributes
    ----------
    count : number of answers measured.
    p50, p99, max : over the last 4096 of them; 0 if there are no answers yet.
    """

    count: int
    p50: float
    p99: float
    max: float


class LatenessRecord:
    """Lateness of one runner's answers, and the margin learned from it; bounded and thread-safe."""

    def __init__(self) -> None:
        self.margin_ms = MARGIN_MS
        self._count = 0
        self._latest: deque[float] = deque(maxlen=WINDOW)
        self._lock = Lock()

    def add(self, late_ms: float) -> None:
        """Add the lateness of one answer and update the margin."""
        step = STEP_MS * (SHARE_IN_TIME if late_ms > 0 else SHARE_IN_TIME - 1)
        with self._lock:
            self._count += 1
            self._latest.append(late_ms)
            self.margin_ms = min(max(self.margin_ms + step, 0.0), LARGEST_MARGIN_MS)

    def summary(self) -> Lateness:
        """Return the count and the percentiles."""
        with self._lock:
            count, latest = self._count, list(self._latest)
        if not latest:
            return Lateness(0, 0.0, 0.0, 0.0)
        p50, p99 = np.percentile(latest, (50, 99)).tolist()
        return Lateness(count, p50, p99, max(latest))
