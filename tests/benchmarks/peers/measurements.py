"""Interleaved measurements, with medians and spreads.

The machine is shared, and its noise lasts for seconds. So everything that is compared is measured round by round, one
after the other, and reported as the ratio within a round, in which noise affects both sides.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


class FailedError(Exception):
    """A measurement failed; the message says why."""


class NotInstalledError(FailedError):
    """The environment of a peer cannot be created."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles; minimum and maximum of fewer than four values."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Summarise at least one value."""
        if len(values) < 4:
            return Spread(statistics.median(values), min(values), max(values), len(values))
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, low, high, len(values))

    def __str__(self) -> str:
        return digits(self.median) + (f" ({digits(self.low)} to {digits(self.high)})" if self.count > 1 else "")


def digits(value: float) -> str:
    """Format with two significant digits below ten, no decimals above."""
    return f"{value:,.0f}" if abs(value) >= 9.95 else f"{value:#.2g}"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return ours as a share of theirs, per round; only rounds that both have."""
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=False)])


@dataclass(frozen=True)
class Measurements:
    """Values of each measurement, one per round, and why one failed: it has no values then, or fewer."""

    values: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def spread(self, name: str) -> Spread | None:
        """Return the spread of a measurement; None without values."""
        values = self.values.get(name)
        return Spread.of(values) if values else None

    def ratio(self, ours: str, theirs: str) -> Spread | None:
        """Return one measurement as a share of another; None if either is missing."""
        a, b = self.values.get(ours), self.values.get(theirs)
        return ratios(a, b) if a and b else None


def interleave(
    measures: Mapping[str, Callable[[], float]], rounds: int, *, few: int = 3, warm_up: bool = True, long: float = 1e99
) -> Measurements:
    """Interleave measurements.

    Parameters
    ----------
    measures : each returns its value, or raises `FailedError` and is skipped from then on.
    long : a measurement with a larger first value has `few` rounds only.
    warm_up : whether to discard the first turn.
    """
    results = Measurements({name: [] for name in measures})
    rounds_of = dict.fromkeys(measures, rounds)
    for turn in range(rounds + warm_up):
        for name, measure in measures.items():
            if name in results.failed or len(results.values[name]) >= rounds_of[name]:
                continue
            try:
                value = measure()
            except FailedError as error:
                results.failed[name] = str(error)
                continue
            if turn == 0 and value > long:
                rounds_of[name] = min(rounds, few)
            if turn > 0 or not warm_up:
                results.values[name].append(value)
    return results
