"""Measures taken in turns, and what they say: medians, and how far they spread.

The machine is shared, and its moods last for seconds. So everything that is compared is measured round by round, one
after the other, and told as the ratio within a round: a mood strikes both sides of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["FailedError", "Spread", "Taken", "digits", "in_turns", "ratios"]


class FailedError(Exception):
    """A measure that could not be taken; the message says why."""


@dataclass(frozen=True)
class Spread:
    """Median of some values, and their quartiles (of fewer than four, the least and the largest)."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Of at least one value."""
        if not values:
            raise ValueError("no values; expected at least one")
        if len(values) < 4:
            return Spread(statistics.median(values), min(values), max(values), len(values))
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, low, high, len(values))

    def __str__(self) -> str:
        if self.count == 1:
            return f"{digits(self.median)}"
        return f"{digits(self.median)} ({digits(self.low)} to {digits(self.high)})"


def digits(value: float) -> str:
    """Two significant digits below ten, none behind the point from there on."""
    return f"{value:,.0f}" if abs(value) >= 9.95 else f"{value:#.2g}"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Ours as a share of theirs, round by round; where one was measured in fewer rounds, those that both have."""
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=False)])


@dataclass(frozen=True)
class Taken:
    """What was measured.

    Attributes
    ----------
    values : of each measure, one a round.
    failed : why a measure could not be taken; it has no values then, or fewer.
    """

    values: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def spread(self, name: str) -> Spread | None:
        """How a measure spreads; None where there is none."""
        values = self.values.get(name)
        return Spread.of(values) if values else None

    def ratio(self, ours: str, theirs: str) -> Spread | None:
        """One measure as a share of another; None where either is missing."""
        a, b = self.values.get(ours), self.values.get(theirs)
        return ratios(a, b) if a and b else None


def in_turns(
    measures: Mapping[str, Callable[[], float]],
    rounds: int,
    *,
    long: float = float("inf"),
    few: int = 3,
    warm_up: bool = True,
) -> Taken:
    """Take measures in turns.

    Parameters
    ----------
    measures : each returns what it measured, or raises `FailedError`, and is left out from then on.
    long : a measure that comes to more than this the first time is taken in `few` rounds only.
    warm_up : whether the first turn is thrown away.
    """
    taken = Taken({name: [] for name in measures})
    left = dict.fromkeys(measures, rounds)
    for turn in range(rounds + warm_up):
        for name, measure in measures.items():
            if name in taken.failed or len(taken.values[name]) >= left[name]:
                continue
            try:
                value = measure()
            except FailedError as error:
                taken.failed[name] = str(error)
                continue
            if turn == 0 and value > long:
                left[name] = min(rounds, few)
            if turn > 0 or not warm_up:
                taken.values[name].append(value)
    return taken
