"""Whether what a process holds stays as it is: a line through samples, and the largest of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["FEWEST", "FLAT", "Trend", "trend"]

FLAT = 0.05
"""Share by which a level may grow, by the line and by the largest sample, and still be called flat."""

FEWEST = 5


class Trend(NamedTuple):
    """Samples in short: the level at their beginning and the growth to their end, both by the line; the largest."""

    samples: int
    level: float
    growth: float
    largest: float

    @property
    def flat(self) -> bool:
        """Whether the level stays; of too few samples nothing can be said, so it does not."""
        bound = FLAT * self.level
        return self.samples >= FEWEST and self.growth <= bound and self.largest <= self.level + bound


def trend(times: Sequence[float], values: Sequence[float]) -> Trend:
    """Fit a line by least squares."""
    if len(times) < 2:
        return Trend(len(times), 0.0, 0.0, 0.0)
    at = np.asarray(times, dtype=float) - times[0]
    slope, level = np.polyfit(at, np.asarray(values, dtype=float), 1)
    return Trend(len(times), float(level), float(slope * at[-1]), float(max(values)))
