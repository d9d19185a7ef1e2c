"""Record of one prediction for metrics, logs and traces: its request, its group timings and its answer."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager

from anytime.inference.answer import Answer
from anytime_service.telemetry.context import CURRENT, on_behalf_of
from anytime_service.telemetry.group_timings import GroupTimings
from anytime_service.telemetry.logs import log_answer
from anytime_service.telemetry.metrics import ModelMetrics
from anytime_service.telemetry.tracing import Tracing

__all__ = [
    "PredictionRecord",
]

_log = logging.getLogger("anytime_service")


class PredictionRecord:
    """Record of one prediction, which the current request began.

    Parameters
    ----------
    signals : metrics of the model.
    tracing : makes the span of the prediction; None without tracing.
    begun_ms : time at which the prediction began.
    traceparent : the caller's span, if the prediction has one of its own.
    """

    __slots__ = ("_context", "_origin", "_signals", "_tracing", "timings")

    def __init__(
        self, signals: ModelMetrics, tracing: Tracing | None, begun_ms: float, traceparent: str | None
    ) -> None:
        self.timings = GroupTimings(signals, begun_ms)
        self._signals = signals
        self._context = CURRENT.get()
        self._tracing = tracing
        self._origin = None if tracing is None else tracing.origin(traceparent)

    def answered(self, answer: Answer, late_ms: float | None) -> None:
        """Record an answer that was sent; `late_ms` is its lateness if the deadline expired, else None."""
        self._signals.answered(answer, late_ms)
        if self._tracing is not None and self._origin is not None:
            try:
                self._tracing.answered(self._origin, answer, late_ms)
            except Exception:  # the answer was sent: the prediction has not failed
                _log.exception("could not make the span of a prediction")
        if _log.isEnabledFor(logging.DEBUG):
            with self.request():
                log_answer(answer, late_ms)

    def request(self) -> AbstractContextManager[None]:
        """Return a context manager that restores the context of the request that began the prediction."""
        return on_behalf_of(self._context)
