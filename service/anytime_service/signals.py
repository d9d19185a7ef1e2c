"""What the service measures of itself, for Prometheus, and the margins learned from it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from anytime.answer import Answer
from anytime.lateness import LatenessRecord
from anytime.model import AnytimeModel

__all__ = ["CONTENT_TYPE", "ModelSignals", "Signals"]

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_LATENESS_S = (-0.001, -0.0005, -0.0002, 0.0, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_PREFIX = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)


class Signals:
    """Measures of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = here = CollectorRegistry()
        self.predictions = Counter("anytime_predictions", "Answers given.", ["model", "reason"], registry=here)
        self.lateness = Histogram(
            "anytime_deadline_lateness_seconds",
            "Answer left minus deadline, of answers that a deadline brought; negative is early.",
            ["model"],
            buckets=_LATENESS_S,
            registry=here,
        )
        self.prefix = Histogram("anytime_prefix", "Complete steps used.", ["model"], buckets=_PREFIX, registry=here)
        self.groups_late = Counter(
            "anytime_groups_late", "Groups that came too late to be used.", ["model"], registry=here
        )
        self.margin = Gauge(
            "anytime_deadline_margin_seconds", "How much earlier answers are begun.", ["model"], registry=here
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
        self._models: dict[str, ModelSignals] = {}

    def of(self, model: AnytimeModel) -> ModelSignals:
        """Measures of one model; its versions share them."""
        if model.name not in self._models:
            self._models[model.name] = ModelSignals(self, model.name)
        return self._models[model.name]

    def exposition(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self.registry)


class ModelSignals:
    """Measures of one model, and how much earlier than its deadline an answer is begun so that it leaves in time."""

    def __init__(self, signals: Signals, name: str) -> None:
        self._record = LatenessRecord()
        self._name = name
        self._predictions = signals.predictions
        self._lateness = signals.lateness.labels(name)
        self._prefix = signals.prefix.labels(name)
        self._groups_late = signals.groups_late.labels(name)
        signals.margin.labels(name).set_function(lambda: self._record.margin_ms / 1000.0)

    @property
    def margin_ms(self) -> float:
        """Learned from the lateness of the answers before, at most 1 ms."""
        return self._record.margin_ms

    def answered(self, answer: Answer, late_ms: float | None) -> None:
        """Count an answer that has left; `late_ms` after the deadline, where a deadline brought it."""
        self._predictions.labels(self._name, answer.reason).inc()
        self._prefix.observe(answer.prefix)
        if answer.late_groups:
            self._groups_late.inc(len(answer.late_groups))
        if late_ms is not None:
            self._record.add(late_ms)
            self._lateness.observe(late_ms / 1000.0)

    def dropped(self, groups: int) -> None:
        """Count groups that came after the answer had left."""
        self._groups_late.inc(groups)
