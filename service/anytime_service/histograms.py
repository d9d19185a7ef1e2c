"""Histograms that cost little to observe, and that a scrape can collect piece by piece.

They are told to Prometheus like those of its own library, whose locks and checks an event loop does not need: all that
happens to them happens in its one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily

__all__ = ["Histograms", "Tally"]


class Tally:
    """One histogram."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count a value, in the bucket of the least bound that is not under it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> tuple[list[int], float]:
        """How many values lie at each bound or under it, the last of all; and the sum of all."""
        return list(accumulate(self._counts)), self._total


class Histograms:
    """Histograms of one name, told apart by their labels.

    Parameters
    ----------
    name, documentation : as Prometheus is told; the unit is in the name.
    labels : names of the labels.
    bounds : of the buckets, rising; one without a bound follows. Where one is negative neither sum nor count is
        told, as OpenMetrics has it: the sum could fall; the last bucket is the count.
    registry : where they are collected.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self.name = name
        self.documentation = documentation
        self._labels = tuple(labels)
        self._bounds = tuple(bounds)
        self._told = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._tallies: dict[tuple[str, ...], Tally] = {}
        registry.register(self)

    def of(self, *values: str) -> Tally:
        """The histogram with these values of the labels; it is told from now on, though nothing was observed yet."""
        tally = self._tallies.get(values)
        if tally is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self.name} has labels {self._labels}; got {values}")
            tally = self._tallies[values] = Tally(self._bounds)
        return tally

    def describe(self) -> list[HistogramMetricFamily]:
        """The family without its histograms; the registry asks for its name."""
        return [self._family()]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Each histogram as a piece of the family, made when it is asked for; the family alone where there is none."""
        if not self._tallies:
            yield self._family()
        for values, tally in tuple(self._tallies.items()):
            counts, total = tally.read()
            piece = self._family()
            piece.add_metric(values, list(zip(self._told, counts, strict=True)), total)
            yield piece

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self.name, self.documentation, labels=self._labels)
