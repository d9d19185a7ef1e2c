"""Counters, gauges and histograms that cost little to change, and that a scrape can collect piece by piece.

They are told to Prometheus like those of its own library, whose locks and checks an event loop does not need: all that
happens to them happens in its one thread. The library collects a family as a whole, which for a family of thousands
takes many milliseconds; here each of its members is a piece, made when it is asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

__all__ = ["Count", "Counters", "Family", "Gauges", "Histograms", "Reading", "Tally"]

Member = TypeVar("Member")


class Family(Generic[Member]):
    """Measures of one name, told apart by their labels.

    Parameters
    ----------
    name, documentation : as Prometheus is told; the unit is in the name.
    labels : names of the labels.
    registry : where the family is collected.
    """

    def __init__(self, name: str, documentation: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = tuple(labels)
        self._members: dict[tuple[str, ...], Member] = {}
        registry.register(self)

    def of(self, *values: str) -> Member:
        """The member with these values of the labels; it is told from now on, though nothing has happened to it."""
        member = self._members.get(values)
        if member is None:
            if len(values) != len(self.labels):
                raise ValueError(f"{self.name} has labels {self.labels}; got {values}")
            member = self._members[values] = self._new()
        return member

    def describe(self) -> list[Metric]:
        """The family without its members; the registry asks for its name."""
        return [self._piece(None)]

    def collect(self) -> Iterator[Metric]:
        """Each member as a piece of the family; the family alone where there is none."""
        if not self._members:
            yield self._piece(None)
        for values, member in tuple(self._members.items()):
            yield self._piece((values, member))

    def _new(self) -> Member:
        raise NotImplementedError

    def _piece(self, told: tuple[tuple[str, ...], Member] | None) -> Metric:
        """The family with one member, or none."""
        raise NotImplementedError


class Count:
    """One counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, more: int = 1) -> None:
        """Count something."""
        self.value += more


class Counters(Family[Count]):
    """Counters of one name."""

    def _new(self) -> Count:
        return Count()

    def _piece(self, told: tuple[tuple[str, ...], Count] | None) -> Metric:
        family = CounterMetricFamily(self.name, self.documentation, labels=self.labels)
        if told is not None:
            family.add_metric(told[0], told[1].value)
        return family


class Reading:
    """One gauge, which is read when it is asked for."""

    __slots__ = ("read",)

    def __init__(self) -> None:
        self.read: Callable[[], float] = float


class Gauges(Family[Reading]):
    """Gauges of one name."""

    def _new(self) -> Reading:
        return Reading()

    def _piece(self, told: tuple[tuple[str, ...], Reading] | None) -> Metric:
        family = GaugeMetricFamily(self.name, self.documentation, labels=self.labels)
        if told is not None:
            family.add_metric(told[0], told[1].read())
        return family


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


class Histograms(Family[Tally]):
    """Histograms of one name.

    Parameters
    ----------
    bounds : of the buckets, rising; one without a bound follows. Where one is negative neither sum nor count is told,
        as OpenMetrics has it: the sum could fall; the last bucket is the count.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._bounds = tuple(bounds)
        self._told = [*(str(float(bound)) for bound in bounds), "+Inf"]
        super().__init__(name, documentation, labels, registry)

    def _new(self) -> Tally:
        return Tally(self._bounds)

    def _piece(self, told: tuple[tuple[str, ...], Tally] | None) -> Metric:
        family = HistogramMetricFamily(self.name, self.documentation, labels=self.labels)
        if told is not None:
            counts, total = told[1].read()
            family.add_metric(told[0], list(zip(self._told, counts, strict=True)), total)
        return family
