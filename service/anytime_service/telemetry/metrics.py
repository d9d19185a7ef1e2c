"""Metrics of the service for Prometheus, the answer margins learned from them, and the memory limit of the process.

Counters, gauges and histograms are cheap to update, and a scrape collects them piece by piece. Their output equals that
of the Prometheus client library, but they have no locks and checks, since only the thread of the event loop uses them.
The library collects a complete family at once, which takes many milliseconds for a family of thousands; here each
member of a family is a piece, made when the scrape reaches it.

Values of labels are names of served models and groups or constants of the code, never text that a client sends. A model
that is no longer served keeps its counters, as Prometheus expects, and disappears from `anytime_model_info`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Generic, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Info, ProcessCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from anytime.inference.runner import LatenessRecord
from anytime.inference.values import Answer
from anytime.model.model import Model
from anytime.types import Reason
from anytime_service import __version__
from anytime_service.errors import UnknownModelError
from anytime_service.telemetry.exposition import Exposition

__all__ = [
    "Count",
    "Counters",
    "Family",
    "Gauges",
    "Histograms",
    "Metrics",
    "ModelMetrics",
    "Reading",
    "Tally",
    "memory_limit",
]

_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the memory limit of a container: control groups of version 2 and of version 1."""


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the memory limit of the container, or else the memory of the machine, in bytes; None if unknown."""
    limits = [_machine(root), *(_bytes(root / path) for path in _LIMITS)]
    return min((limit for limit in limits if limit is not None), default=None)


def _bytes(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max" is no limit


def _machine(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")), None)


Member = TypeVar("Member")


class Family(Generic[Member]):
    """Metric family: metrics of one name with different values of the labels.

    Parameters
    ----------
    name, documentation : as exposed to Prometheus; the name contains the unit.
    labels : names of the labels.
    registry : registry that collects the family.
    """

    def __init__(self, name: str, documentation: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = tuple(labels)
        self._members: dict[tuple[str, ...], Member] = {}
        registry.register(self)

    def of(self, *values: str) -> Member:
        """Return the member with these values of the labels; it is exposed from now on, even at its initial value."""
        member = self._members.get(values)
        if member is None:
            if len(values) != len(self.labels):
                raise ValueError(f"{self.name} has labels {self.labels}; got {values}")
            member = self._members[values] = self._new()
        return member

    def describe(self) -> list[Metric]:
        """Return the family without members, from which the registry reads the name."""
        return [self._piece(None)]

    def collect(self) -> Iterator[Metric]:
        """Yield each member as a piece of the family; the empty family if there is no member."""
        if not self._members:
            yield self._piece(None)
        for values, member in tuple(self._members.items()):
            yield self._piece((values, member))

    def _new(self) -> Member:
        raise NotImplementedError

    def _piece(self, labelled: tuple[tuple[str, ...], Member] | None) -> Metric:
        """Return the family with one member, or without members."""
        raise NotImplementedError


class Count:
    """One counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, more: int = 1) -> None:
        """Increase the counter."""
        self.value += more


class Counters(Family[Count]):
    """Family of counters."""

    def _new(self) -> Count:
        return Count()

    def _piece(self, labelled: tuple[tuple[str, ...], Count] | None) -> Metric:
        family = CounterMetricFamily(self.name, self.documentation, labels=self.labels)
        if labelled is not None:
            family.add_metric(labelled[0], labelled[1].value)
        return family


class Reading:
    """One gauge, whose function `read` is called at each scrape."""

    __slots__ = ("read",)

    def __init__(self) -> None:
        self.read: Callable[[], float] = float


class Gauges(Family[Reading]):
    """Family of gauges."""

    def _new(self) -> Reading:
        return Reading()

    def _piece(self, labelled: tuple[tuple[str, ...], Reading] | None) -> Metric:
        family = GaugeMetricFamily(self.name, self.documentation, labels=self.labels)
        if labelled is not None:
            family.add_metric(labelled[0], labelled[1].read())
        return family


class Tally:
    """One histogram."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count a value in the bucket with the smallest bound that is at least the value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> tuple[list[int], float]:
        """Return the cumulative counts at each bound, the last one being the total, and the sum of the values."""
        return list(accumulate(self._counts)), self._total


class Histograms(Family[Tally]):
    """Family of histograms.

    Parameters
    ----------
    bounds : upper bounds of the buckets, ascending; an unbounded bucket follows. If a bound is negative, the sum and
        the count are not exposed, as OpenMetrics requires, since the sum could fall; the last bucket is the count.
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
        self._bound_labels = [*(str(float(bound)) for bound in bounds), "+Inf"]
        super().__init__(name, documentation, labels, registry)

    def _new(self) -> Tally:
        return Tally(self._bounds)

    def _piece(self, labelled: tuple[tuple[str, ...], Tally] | None) -> Metric:
        family = HistogramMetricFamily(self.name, self.documentation, labels=self.labels)
        if labelled is not None:
            counts, total = labelled[1].read()
            family.add_metric(labelled[0], list(zip(self._bound_labels, counts, strict=True)), total)
        return family


_LATENESS_S = (-0.001, -0.0005, -0.0002, 0.0, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_PREFIX = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)
_GROUP_S = (*(float(f"{digit}e{power}") for power in range(-5, 1) for digit in (1, 2, 5)), 10.0)
_LAG_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Metrics:
    """Metrics of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = here = CollectorRegistry()
        self.predictions = Counters("anytime_predictions", "Answers sent.", ["model", "reason"], here)
        self.lateness = Histograms(
            "anytime_deadline_lateness_seconds",
            "Time of sending minus deadline, for answers at an expired deadline; negative is early.",
            ["model"],
            _LATENESS_S,
            here,
        )
        self.prefix = Histograms("anytime_prefix", "Complete steps that answers used.", ["model"], _PREFIX, here)
        self.groups_late = Counters(
            "anytime_groups_late", "Groups received after the deadline or after the answer.", ["model"], here
        )
        self.margin = Gauges(
            "anytime_deadline_margin_seconds", "Time before the deadline at which answers begin.", ["model"], here
        )
        self.group_seconds = Histograms(
            "anytime_group_seconds",
            "Time to compute a group: as the client reports it, else since the previous event of the prediction.",
            ["model", "group"],
            _GROUP_S,
            here,
        )
        self.open = Gauge("anytime_open_predictions", "Open predictions.", registry=here)
        self.shed = Counter(
            "anytime_shed",
            "Predictions not begun because of overload: refused, or answered with the base rate.",
            ["how", "why"],
            registry=here,
        )
        self.predicted_lateness = Gauge(
            "anytime_predicted_lateness_seconds", "Expected lateness of an answer that begins now.", registry=here
        )
        self.connections = Gauge("anytime_connections", "Open connections.", registry=here)
        self.held_bytes = Gauge("anytime_held_bytes", "Bytes stored for clients.", registry=here)
        self.sessions = Gauge("anytime_sessions", "Stored sessions.", registry=here)
        self.session_store_up = Gauge(
            "anytime_session_store_up", "Whether the session store is available: 1 or 0.", registry=here
        )
        self.session_store_up.set(1)  # a store in memory is always available
        self.errors = Counter("anytime_errors", "Problems sent to clients, by kind.", ["kind"], registry=here)
        self.reloads = Counter("anytime_reloads", "Reloads of models, by outcome.", ["outcome"], registry=here)
        self.lag = Histograms("anytime_loop_lag_seconds", "Delay of a timer of the event loop.", [], _LAG_S, here).of()
        Info("anytime_build", "Version of the service.", registry=here).info({"version": __version__})
        # Exposed from the start with value 0, so that the first event is an increase too.
        self.errors.labels("fault")
        self.overloaded = self.errors.labels("overloaded")
        for outcome in ("ok", "failed"):
            self.reloads.labels(outcome)
        limit = Gauge("anytime_memory_limit_bytes", "Memory limit of the process; 0 if unknown.", registry=here)
        limit.set(memory_limit() or 0)
        self._served = _Served(here)
        self._models: dict[str, ModelMetrics] = {}
        GCCollector(registry=here)
        self.exposition = Exposition(here, [ProcessCollector(registry=None)])

    def of(self, model: Model) -> ModelMetrics:
        """Return the metrics of a model; its versions share them."""
        found = self._models.get(model.name)
        if found is None:
            found = self._models[model.name] = ModelMetrics(self, model.name)
            found.add_groups(model.places)
        return found

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Count a reload of models by its outcome."""
        try:
            yield
        except UnknownModelError:  # the caller's mistake, not the files'
            raise
        except Exception:
            self.reloads.labels("failed").inc()
            raise
        self.reloads.labels("ok").inc()

    def set_served(self, models: Iterable[Model]) -> None:
        """Set the models that are served now, in every version."""
        served = list(models)
        self._served.models = [(model.name, model.version) for model in served]
        for model in served:
            self.of(model).add_groups(model.places)


class _Served:
    """Collector of the models that are served now; models that are no longer served disappear from it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.models: list[tuple[str, str]] = []
        registry.register(self)

    def describe(self) -> list[InfoMetricFamily]:
        """Return the family without models, from which the registry reads the name."""
        return [InfoMetricFamily("anytime_model", "Served models, in every version.", labels=["model"])]

    def collect(self) -> list[InfoMetricFamily]:
        """Return the family with one member per version."""
        [family] = self.describe()
        for name, version in self.models:
            family.add_metric([name], {"version": version})
        return [family]


class ModelMetrics:
    """Metrics of one model, and the margin by which its answers begin before the deadline to be sent in time."""

    def __init__(self, signals: Metrics, name: str) -> None:
        self._record = LatenessRecord()
        self._name = name
        # Exposed from the start with value 0, so that the first event is an increase too.
        self._predictions = {reason: signals.predictions.of(name, reason) for reason in get_args(Reason)}
        self._lateness = signals.lateness.of(name)
        self._prefix = signals.prefix.of(name)
        self._groups_late = signals.groups_late.of(name)
        self._group_seconds = signals.group_seconds
        self._known: set[str] = set()
        self.groups: dict[str, Tally] = {}
        """Histograms of the times to compute groups, by name; `group` adds to it."""
        signals.margin.of(name).read = lambda: self._record.margin_ms / 1000.0

    @property
    def margin_ms(self) -> float:
        """Return the margin, learned from the lateness of previous answers; at most 1 ms."""
        return self._record.margin_ms

    def add_groups(self, groups: Collection[str]) -> None:
        """Add names of groups of the model; other names that clients send are not measured."""
        self._known.update(groups)

    def answered(self, answer: Answer, late_ms: float | None) -> None:
        """Count an answer that was sent; `late_ms` is its lateness if the deadline expired, else None."""
        self._predictions[answer.reason].inc()
        self._prefix.observe(answer.prefix)
        if answer.late_groups:
            self._groups_late.inc(len(answer.late_groups))
        if late_ms is not None:
            self._record.add(late_ms)
            self._lateness.observe(late_ms / 1000.0)

    def group(self, name: str) -> Tally | None:
        """Return the histogram of a group's times, exposed from now on; None if the model has no such group."""
        if name in self._known:
            self.groups[name] = self._group_seconds.of(self._name, name)
        return self.groups.get(name)

    def dropped(self, groups: int) -> None:
        """Count groups that arrived after the answer was sent."""
        self._groups_late.inc(groups)
