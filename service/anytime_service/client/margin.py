"""How much earlier than its caller's deadline the server is asked to answer, learned from how late answers came.

An answer that a deadline interrupts comes after it by what the way there, the way back and both event loops take. Each
such answer counts, also one that came too late to be used. `anytime.inference.deadline` follows its quantile in small
steps. A network may change by far more than a step, so here the quantile is that of the last answers themselves.
"""

from __future__ import annotations

from collections import deque

__all__ = ["LONGEST_MS", "NetworkMargin"]

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
