"""Records of predictions: metrics, span and log line of an answer, and the times that clients take to compute groups.

The costs of the groups are estimated from these times. The time of a group is the one that the client reports. Without
a report it is the time since the previous event of the prediction: its begin, or the group before. Late groups count
too; otherwise the costs would be those of fast computations only. A time is that of a call for all rows of the
prediction, so their number is recorded too.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from anytime.inference.prediction import Answer
from anytime_service.telemetry.context import CURRENT, on_behalf_of
from anytime_service.telemetry.logs import log_answer
from anytime_service.telemetry.metrics import ModelMetrics
from anytime_service.telemetry.tracing import Tracing

LONGEST_MS = 3_600_000.0  # longer times of a group count as this, so that one absurd value does not dominate

_log = logging.getLogger("anytime_service")


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
        self.metrics.dropped(1)
        if self.rows is None:
            self.rows = rows()
        self.received(group, now_ms, took_ms)


class SessionTimings:
    """Group timings of sessions by id, wherever the sessions are stored.

    The least recently used session beyond `limit` is removed, which costs a measurement.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._timings: OrderedDict[str, GroupTimings] = OrderedDict()

    def begin(self, session_id: str, metrics: ModelMetrics, now_ms: float) -> None:
        """Record that a session began, or that this process received its first request for it."""
        self._timings[session_id] = GroupTimings(metrics, now_ms)
        if len(self._timings) > self._limit:
            self._timings.popitem(last=False)

    def received(
        self, session_id: str, metrics: ModelMetrics, groups: Collection[str], rows: int, now_ms: float, *, again: bool
    ) -> None:
        """Record groups that a session accepted, each of some rows; `again` if they arrived before."""
        timings = self._timings.get(session_id)
        if timings is None:
            self.begin(session_id, metrics, now_ms)
            return
        self._timings.move_to_end(session_id)
        if len(groups) == 1:
            timings.rows = rows
            timings.received(next(iter(groups)), now_ms, again=again)
        else:
            timings.last_ms = now_ms  # the times of the single groups are unknown

    def end(self, session_id: str) -> None:
        self._timings.pop(session_id, None)


class PredictionRecord:
    """Record of one prediction, which the current request began; `traceparent` is the caller's span, if it sent one."""

    __slots__ = ("_context", "_make_span", "_metrics", "timings")

    def __init__(
        self,
        metrics: ModelMetrics,
        tracing: Tracing | None,
        begun_ms: float,
        traceparent: str | None,
        rows: int | None = None,
    ) -> None:
        self.timings = GroupTimings(metrics, begun_ms, rows)
        self._metrics = metrics
        self._context = CURRENT.get()
        self._make_span = None if tracing is None else partial(tracing.answered, tracing.origin(traceparent))

    def answered(self, answer: Answer, late_ms: float | None) -> None:
        """Record an answer that was sent; `late_ms` is its lateness if the deadline expired, else None."""
        self._metrics.answered(answer, late_ms)
        if self._make_span is not None:
            try:
                self._make_span(answer, late_ms)
            except Exception:  # the answer was sent: the prediction has not failed
                _log.exception("could not make the span of a prediction")
        if _log.isEnabledFor(logging.DEBUG):
            with self.request():
                log_answer(answer, late_ms)

    def request(self) -> AbstractContextManager[None]:
        """Return a context manager that restores the context of the request that began the prediction."""
        return on_behalf_of(self._context)
