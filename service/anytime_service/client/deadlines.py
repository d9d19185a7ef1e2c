"""Deadlines as a caller tells them, and when the client stops waiting for the sake of them."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from numbers import Real
from typing import Any

from anytime.errors import ValuesError
from anytime.inference.answer import Answer
from anytime.inference.deadline import LatenessRecord

__all__ = ["Deadline", "checked_ms"]


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
