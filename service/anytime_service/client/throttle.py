"""Asking a server less that refuses: a refusal is cheap, but not free, and many of them take the time of answers.

Adaptive throttling (Beyer, Jones, Petoff and Murphy, *Site Reliability Engineering*, 2016, chapter 21, "Handling
Overload"): of what is asked of a client, it spares the server the share

    max(0, (requests - K accepts - FEW) / (requests + 1)),

so that the server sees about K times what it accepts: enough to notice when it has time again.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

__all__ = ["Throttle"]

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
