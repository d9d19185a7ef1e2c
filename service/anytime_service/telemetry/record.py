"""What is noted of one prediction, beside answering it: whose it is, what its groups took, how it was answered."""

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
    """Notes of one prediction.

    Parameters
    ----------
    signals : the measures of its model.
    tracing : makes its span, where spans are wanted.
    begun_ms : when it was begun, by the request that is being served now.
    traceparent : the caller's span, where the prediction has one of its own.
    """

    __slots__ = ("_correlation", "_origin", "_signals", "_tracing", "laps")

    def __init__(
        self, signals: ModelMetrics, tracing: Tracing | None, begun_ms: float, traceparent: str | None
    ) -> None:
        self.laps = GroupTimings(signals, begun_ms)
        self._signals = signals
        self._correlation = CURRENT.get()
        self._tracing = tracing
        self._origin = None if tracing is None else tracing.origin(traceparent)

    def answered(self, answer: Answer, late_ms: float | None) -> None:
        """Note an answer that has left; `late_ms` after the deadline, where a deadline brought it."""
        self._signals.answered(answer, late_ms)
        if self._tracing is not None and self._origin is not None:
            try:
                self._tracing.answered(self._origin, answer, late_ms)
            except Exception:  # the answer has left: it is no failure of the prediction
                _log.exception("a span could not be made")
        if _log.isEnabledFor(logging.DEBUG):
            with self.request():
                log_answer(answer, late_ms)

    def request(self) -> AbstractContextManager[None]:
        """Go back to the request that began the prediction; another one may be at work for it."""
        return on_behalf_of(self._correlation)
