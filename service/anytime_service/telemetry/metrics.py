"""Metrics of the service for Prometheus, their exposition, and the times that clients take to compute groups.

A service with many models and groups exposes tens of thousands of lines, which take hundreds of milliseconds to collect
and write. A thread would not help, because it holds the interpreter for 5 ms at a time. Therefore the event loop
collects and writes a few lines per turn, so that no answer waits for a scrape. Values of labels are names of served
models and groups or constants of the code, never text that a client sends. A model that is no longer served keeps its
counters, as Prometheus expects, and disappears from `anytime_model_info`.

The costs of the groups are estimated from the times of groups. The time of a group is the one that the client reports.
Without a report it is the time since the previous event of the prediction: its begin, or the group before. Late groups
count too; otherwise the costs would be those of fast computations only. A time is that of a call for all rows of the
prediction, so their number is recorded too.
"""

from __future__ import annotations

import asyncio
import math
import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric

from anytime._version import __version__
from anytime.inference.deadline import Durations, LatenessRecord
from anytime.inference.prediction import Answer
from anytime.model.model import GroupPosition, Model
from anytime.types import Reason
from anytime_service.limits.turns import TTLCache

_LATENESS_S = (-0.001, -0.0005, -0.0002, 0.0, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_PREFIX = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)
_GROUP_S = (*(float(f"{digit}e{power}") for power in range(-5, 1) for digit in (1, 2, 5)), 10.0)
_LAG_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_SAMPLES = 24  # samples that are written in one piece, which takes 0.1 to 0.3 ms
_EOF = b"# EOF\n"
_HEADS = re.compile(rb"^# .*\n", re.MULTILINE)

MS_PER_NUMBER = 2e-4  # time in which the worker makes a number of an answer, until it is measured
LONGEST_MS = 3_600_000.0  # longer times of a group count as this, so that one absurd value does not dominate


@dataclass(slots=True, eq=False)
class Tally:
    """One histogram. Observing a value takes 0.15 us; a histogram of the library takes 0.8 us, because it is locked.

    Every answer observes two values, and every group one; only the thread of the event loop uses them. `rows` are those
    of all calls, if the values are their durations.
    """

    bounds: Sequence[float]
    counts: list[int]
    total: float = 0.0
    rows: int = 0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(eq=False)
class Family:
    """Family of metrics of tallies; it yields one member at a time, while the library collects thousands in one call.

    `empty` makes the family without members, and `values` what its `add_metric` receives of a member.
    """

    empty: Callable[[], Any]
    values: Callable[[Tally], tuple[Any, ...]]
    members: dict[tuple[str, ...], Tally] = field(default_factory=dict)

    def collect(self) -> Iterator[Metric]:
        """Yield the empty family, and then the family with each member only."""
        yield self.empty()
        for labels, tally in tuple(self.members.items()):
            family = self.empty()
            family.add_metric(labels, *self.values(tally))
            yield family


class Histograms(Family):
    """Family of histograms.

    If a bound is negative, the sum and the count are not exposed, as OpenMetrics requires, since the sum could fall;
    the last bucket is the count.
    """

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        shown = [*(str(float(bound)) for bound in bounds), "+Inf"]
        super().__init__(
            partial(HistogramMetricFamily, name, documentation, labels=labels),
            lambda tally: (list(zip(shown, accumulate(tally.counts), strict=True)), tally.total),
        )
        self._bounds = tuple(bounds)
        registry.register(self)

    def labels(self, *values: str) -> Tally:
        """Return the member with these values of the labels; it is exposed from now on, even without a value."""
        return self.members.setdefault(values, Tally(self._bounds, [0] * (len(self._bounds) + 1)))


def rows_label(rows: int) -> str:
    """Return the range of numbers of rows, up to twice its start, that contains a number: "1", "2-3", "4-7"..."""
    low = 1 << rows.bit_length() - 1
    return "1" if rows == 1 else f"{low}-{2 * low - 1}"


GAUGES = {
    "open_predictions": "Open predictions.",
    "predicted_lateness_seconds": "Expected lateness of an answer that begins now.",
    "connections": "Open connections.",
    "held_bytes": "Bytes stored for clients.",
    "sessions": "Stored sessions.",
    "session_store_up": "Whether the session store is available: 1 or 0.",
    "memory_limit_bytes": "Memory limit of the process; 0 if unknown.",
}
"""Metrics of one number, without `anytime_`; the object that knows the number connects it to `Metrics.gauges`."""


class Metrics:
    """Metrics of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = here = CollectorRegistry()
        counter, gauge = partial(Counter, registry=here), partial(Gauge, registry=here)
        self.predictions = counter("anytime_predictions", "Answers sent.", ["model", "reason"])
        self.lateness = Histograms(
            "anytime_deadline_lateness_seconds",
            "Time of sending minus deadline, for late answers and those that the deadline caused; negative is early.",
            ["model"],
            _LATENESS_S,
            here,
        )
        self.prefix = Histograms("anytime_prefix", "Complete steps that answers used.", ["model"], _PREFIX, here)
        self.groups_late = counter(
            "anytime_groups_late", "Groups received after the deadline or after the answer.", ["model"]
        )
        self.clamped = counter(
            "anytime_clamped_columns",
            "Columns of answers with a value outside their range, which moved to its nearest end.",
            ["model", "group"],
        )
        self.margin = gauge(
            "anytime_deadline_margin_seconds", "Time before the deadline at which answers begin.", ["model"]
        )
        self.group_seconds = Histograms(
            "anytime_group_seconds",
            "Time to compute a group: as the client reports it, else since the previous event of the prediction.",
            ["model", "group", "rows"],
            _GROUP_S,
            here,
        )
        here.register(  # after the histograms, so that it counts at least the rows of the calls that were written
            Family(
                partial(
                    CounterMetricFamily,
                    "anytime_group_rows",
                    "Rows for which groups were computed, in the calls that anytime_group_seconds counts.",
                    labels=["model", "group", "rows"],
                ),
                lambda tally: (float(tally.rows),),
                self.group_seconds.members,
            )
        )
        self.gauges = {name: gauge(f"anytime_{name}", text) for name, text in GAUGES.items()}
        self.shed = counter(
            "anytime_shed",
            "Predictions not begun because of overload: refused, or answered with the base rate.",
            ["how", "why"],
        )
        self.errors = counter("anytime_errors", "Problems sent to clients, by kind.", ["kind"])
        self.reloads = counter("anytime_reloads", "Reloads of models, by outcome.", ["outcome"])
        self.lag = Histogram(
            "anytime_loop_lag_seconds", "Delay of a timer of the event loop.", buckets=_LAG_S, registry=here
        )
        Info("anytime_build", "Version of the service.", registry=here).info({"version": __version__})
        # Exposed from the start with value 0, so that the first event is an increase too.
        self.errors.labels("fault")
        self.overloaded = self.errors.labels("overloaded")
        for outcome in ("ok", "failed"):
            self.reloads.labels(outcome)
        self._served = Info("anytime_model", "Served models, in every version.", ["model", "version"], registry=here)
        self._models: dict[str, ModelMetrics] = {}
        GCCollector(registry=here)
        self._process = ProcessCollector(registry=None)
        self._writing = asyncio.Lock()

    def of(self, model: Model) -> ModelMetrics:
        """Return the metrics of a model; its versions share them."""
        found = self._models.get(model.name)
        if found is None:
            found = self._models[model.name] = ModelMetrics(self, model.name)
            found.add_groups(model.places)
        return found

    def set_served(self, models: Iterable[Model]) -> None:
        self._served.clear()
        for model in models:
            self._served.labels(model.name, model.version)
            self.of(model).add_groups(model.places)

    async def write(self, accept: str, after_one: Callable[[], Awaitable[None]]) -> tuple[bytes, str]:
        """Return all metrics in the format that the `Accept` header requests, and the media type.

        `after_one` is awaited after every few lines, and waits for a turn of the event loop as needed. Scrapes are
        written one at a time; several at once would add up to long turns of the event loop.
        """
        encode, media_type = choose_encoder(accept)
        async with self._writing:
            # In a thread, since it lists every open file.
            process = await asyncio.to_thread(lambda: list(self._process.collect()))
            written: list[bytes] = []
            for source in (self.registry.collect(), process):
                for text in _texts(encode, source):
                    written.append(text)
                    await after_one()
        if media_type.startswith("application/openmetrics-text"):
            written.append(_EOF)
        return b"".join(written), media_type


class ModelMetrics:
    """Metrics of one model, and what the service learns from its answers.

    Attributes
    ----------
    lateness : LatenessRecord
        The lateness of its answers, and the margin by which they begin before their deadline.
    ms_per_number : Durations
        How long the worker takes for a number of an answer.
    groups_late : Counter
        Groups received after the deadline or after the answer.
    """

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._name = name
        self._metrics = metrics
        self.lateness, self.ms_per_number = LatenessRecord(), Durations(MS_PER_NUMBER)
        metrics.margin.labels(name).set_function(lambda: self.lateness.margin_ms / 1000.0)
        # Exposed from the start with value 0, so that the first event is an increase too.
        self._predictions = {reason: metrics.predictions.labels(name, reason) for reason in get_args(Reason)}
        self._late_s = metrics.lateness.labels(name)
        self._prefix = metrics.prefix.labels(name)
        self.groups_late = metrics.groups_late.labels(name)
        self._known: set[str] = set()
        self._clamped: dict[str, Counter] = {}
        self._groups: dict[str | tuple[str, int], Tally] = {}
        """Durations of calls by group, and number of binary digits of their rows unless that is one."""

    def add_groups(self, groups: Mapping[str, GroupPosition]) -> None:
        """Add groups of the model; other names that clients send are not measured."""
        self._known.update(groups)
        for name, place in groups.items():
            ranged = [column.name for column in place.expansion.columns if column.range]
            if ranged:
                self._clamped |= dict.fromkeys(ranged, self._metrics.clamped.labels(self._name, name))

    def answered(self, answer: Answer, late_ms: float | None) -> None:
        """Count an answer that was sent; `late_ms` is its lateness if the deadline expired, else None."""
        self._predictions[answer.reason].inc()
        self._prefix.observe(answer.prefix)
        if answer.late_groups:
            self.groups_late.inc(len(answer.late_groups))
        for column in self._clamped.keys() & answer.clamped:
            self._clamped[column].inc()
        if late_ms is not None:
            self._late_s.observe(late_ms / 1000.0)

    def computed(self, group: str, took_ms: float, rows: int) -> None:
        """Record the time to compute a group for some rows; it is exposed from the first time on."""
        key = group if rows == 1 else (group, rows.bit_length())
        tally = self._groups.get(key)
        if tally is None:
            if group not in self._known:
                return
            tally = self._groups[key] = self._metrics.group_seconds.labels(self._name, group, rows_label(rows))
        tally.rows += rows
        tally.observe(took_ms / 1000.0)


@dataclass(slots=True, eq=False)
class GroupTimings:
    """Time of the last event of one prediction, at first its begin.

    It outlives the answer, since groups may arrive later. `rows` is None while the number of rows is unknown.
    """

    metrics: ModelMetrics
    last_ms: float
    rows: int | None = None

    def received(self, group: str, now_ms: float, took_ms: float | None = None, again: bool = False) -> None:
        """Record a group that arrived on its own; `took_ms` is the computing time that the client reports.

        With `again`, the group arrived before and the client reports no time: it may have been sent twice, but computed
        once.
        """
        if took_ms is None:
            took_ms = now_ms - self.last_ms
        self.last_ms = now_ms
        if not again:
            # NaN counts as the longest.
            self.metrics.computed(group, took_ms if took_ms < LONGEST_MS else LONGEST_MS, self.rows or 1)

    def received_late(
        self, group: str, now_ms: float, took_ms: float | None = None, rows: Callable[[], int] = lambda: 1
    ) -> None:
        """Record a group that arrived after the answer; `rows` counts the rows of its values, if still unknown."""
        self.metrics.groups_late.inc()
        if self.rows is None:
            self.rows = rows()
        self.received(group, now_ms, took_ms)


class SessionTimings(TTLCache[GroupTimings]):
    """Group timings of sessions by id, wherever the sessions are stored.

    The least recently used session beyond `limit` is removed, which costs a measurement.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit, math.inf)

    def received(
        self,
        session_id: str,
        metrics: ModelMetrics,
        now_ms: float,
        groups: Collection[str] = (),
        rows: int = 1,
        *,
        again: bool = False,
    ) -> None:
        """Record groups that a session accepted, each of some rows, none at its begin; `again` if they arrived before.

        Those of the first request that this process received for a session are not timed.
        """
        timings = self.find(session_id)
        if timings is None:
            timings = GroupTimings(metrics, now_ms)
        elif len(groups) == 1:
            timings.rows = rows
            timings.received(next(iter(groups)), now_ms, again=again)
        timings.last_ms = now_ms  # the times of several groups are unknown
        self.add(session_id, timings, now_ms)


def _texts(encode: Callable[[Any], bytes], metrics: Iterable[Metric]) -> Iterator[bytes]:
    """Yield the text of a few samples at a time; only the first text of a family has the HELP and TYPE lines."""
    last = None
    for metric in metrics:
        # Prometheus does not use the creation times of series, which would double the number of lines.
        samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
        for first in range(0, max(len(samples), 1), _SAMPLES):
            metric.samples = samples[first : first + _SAMPLES]
            text = encode(SimpleNamespace(collect=lambda piece=metric: [piece])).removesuffix(_EOF)
            yield _HEADS.sub(b"", text) if metric.name == last else text
            last = metric.name
