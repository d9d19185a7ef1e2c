"""How much memory this process may take.

Counters, gauges and histograms that cost little to change, and that a scrape can collect piece by piece.

They are told to Prometheus like those of its own library, whose locks and checks an event loop does not need: all that
happens to them happens in its one thread. The library collects a family as a whole, which for a family of thousands
takes many milliseconds; here each of its members is a piece, made when it is asked for.

What the service measures of itself, for Prometheus, and the margins learned from it.

Labels take their values from what the operator serves and from lists of ours, never from what a client sends. A model
that is no longer served keeps its counters, as Prometheus expects of them, and leaves `anytime_model_info`.
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

from anytime.inference.answer import Answer
from anytime.inference.deadline import LatenessRecord
from anytime.model.model import Model
from anytime.types import Reason
from anytime_service.errors import UnknownModelError
from anytime_service.telemetry.exposition import Exposition
from anytime_service.version import release

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
"""Where containers find theirs, of either version of control groups."""


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the container may take, or else the machine has; None where neither can be told."""
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


_LATENESS_S = (-0.001, -0.0005, -0.0002, 0.0, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_PREFIX = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)
_GROUP_S = (*(float(f"{digit}e{power}") for power in range(-5, 1) for digit in (1, 2, 5)), 10.0)
_LAG_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Metrics:
    """Measures of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = here = CollectorRegistry()
        self.predictions = Counters("anytime_predictions", "Answers given.", ["model", "reason"], here)
        self.lateness = Histograms(
            "anytime_deadline_lateness_seconds",
            "Answer left minus deadline, of answers that a deadline brought; negative is early.",
            ["model"],
            _LATENESS_S,
            here,
        )
        self.prefix = Histograms("anytime_prefix", "Complete steps used.", ["model"], _PREFIX, here)
        self.groups_late = Counters(
            "anytime_groups_late", "Groups received after the deadline or after the answer.", ["model"], here
        )
        self.margin = Gauges("anytime_deadline_margin_seconds", "How much earlier answers are begun.", ["model"], here)
        self.group_seconds = Histograms(
            "anytime_group_seconds",
            "What computing a group took, as clients tell; else the time since what came before it.",
            ["model", "group"],
            _GROUP_S,
            here,
        )
        self.open = Gauge("anytime_open_predictions", "Predictions that are open.", registry=here)
        self.shed = Counter(
            "anytime_shed",
            "Predictions not begun for want of time or room: refused, or told the prior.",
            ["how", "why"],
            registry=here,
        )
        self.predicted_lateness = Gauge(
            "anytime_predicted_lateness_seconds", "How late an answer begun now is expected to be.", registry=here
        )
        self.connections = Gauge("anytime_connections", "Connections that are open.", registry=here)
        self.held_bytes = Gauge("anytime_held_bytes", "Bytes of group values that are held.", registry=here)
        self.sessions = Gauge("anytime_sessions", "Sessions there are.", registry=here)
        self.session_store_up = Gauge(
            "anytime_session_store_up", "Whether sessions can be reached: 1 or 0.", registry=here
        )
        self.session_store_up.set(1)  # in memory they always can
        self.errors = Counter("anytime_errors", "Problems told to clients, by kind.", ["kind"], registry=here)
        self.reloads = Counter("anytime_reloads", "Reloads of models, by outcome.", ["outcome"], registry=here)
        self.lag = Histograms(
            "anytime_loop_lag_seconds", "How much later the event loop came round than it was to.", [], _LAG_S, here
        ).of()
        Info("anytime_build", "The service's own version.", registry=here).info({"version": release()})
        # Told before the first, so that the first is an increase too.
        self.errors.labels("fault")
        self.overloaded = self.errors.labels("overloaded")
        for outcome in ("ok", "failed"):
            self.reloads.labels(outcome)
        limit = Gauge("anytime_memory_limit_bytes", "Memory that the process may take; 0: not known.", registry=here)
        limit.set(memory_limit() or 0)
        self._served = _Served(here)
        self._models: dict[str, ModelMetrics] = {}
        GCCollector(registry=here)
        self.exposition = Exposition(here, [ProcessCollector(registry=None)])

    def of(self, model: Model) -> ModelMetrics:
        """Measures of one model; its versions share them."""
        found = self._models.get(model.name)
        if found is None:
            found = self._models[model.name] = ModelMetrics(self, model.name)
            found.knows(model.places)
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

    def serves(self, models: Iterable[Model]) -> None:
        """Hear which models are served now, in every version."""
        served = list(models)
        self._served.models = [(model.name, model.version) for model in served]
        for model in served:
            self.of(model).knows(model.places)


class _Served:
    """The models that are served now; of those that go nothing is told any more."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.models: list[tuple[str, str]] = []
        registry.register(self)

    def describe(self) -> list[InfoMetricFamily]:
        """The family without its models; the registry asks for its name."""
        return [InfoMetricFamily("anytime_model", "Models that are served, in every version.", labels=["model"])]

    def collect(self) -> list[InfoMetricFamily]:
        """One a version."""
        [family] = self.describe()
        for name, version in self.models:
            family.add_metric([name], {"version": version})
        return [family]


class ModelMetrics:
    """Measures of one model, and how much earlier than its deadline an answer is begun so that it leaves in time."""

    def __init__(self, signals: Metrics, name: str) -> None:
        self._record = LatenessRecord()
        self._name = name
        # Told from the beginning, so that the first of each is an increase too.
        self._predictions = {reason: signals.predictions.of(name, reason) for reason in get_args(Reason)}
        self._lateness = signals.lateness.of(name)
        self._prefix = signals.prefix.of(name)
        self._groups_late = signals.groups_late.of(name)
        self._group_seconds = signals.group_seconds
        self._known: set[str] = set()
        self.groups: dict[str, Tally] = {}
        """What computing groups took, of those that have come; see `group`."""
        signals.margin.of(name).read = lambda: self._record.margin_ms / 1000.0

    @property
    def margin_ms(self) -> float:
        """Learned from the lateness of the answers before, at most 1 ms."""
        return self._record.margin_ms

    def knows(self, groups: Collection[str]) -> None:
        """Hear which groups the model has; what clients call others is measured nowhere."""
        self._known.update(groups)

    def answered(self, answer: Answer, late_ms: float | None) -> None:
        """Count an answer that has left; `late_ms` after the deadline, where a deadline brought it."""
        self._predictions[answer.reason].inc()
        self._prefix.observe(answer.prefix)
        if answer.late_groups:
            self._groups_late.inc(len(answer.late_groups))
        if late_ms is not None:
            self._record.add(late_ms)
            self._lateness.observe(late_ms / 1000.0)

    def group(self, name: str) -> Tally | None:
        """What computing a group took, told from now on; None where the model has no such group."""
        if name in self._known:
            self.groups[name] = self._group_seconds.of(self._name, name)
        return self.groups.get(name)

    def dropped(self, groups: int) -> None:
        """Count groups that came after the answer had left."""
        self._groups_late.inc(groups)
