"""Arrivals into an answer: a new one is made after each arrival, so that one is at hand when the deadline expires.

A group may fail: its extractor raises, its process dies, its values do not fit. The policy "prefix" can use nothing
behind such a hole, so a model that has its moments goes on and answers for what has arrived, and one without answers at
once.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from dataclasses import dataclass, replace

from anytime.answer import Answer
from anytime.errors import ValuesError
from anytime.model import AnytimeModel
from anytime.prediction import Prediction
from anytime.workers import Arrival, Extraction

__all__ = ["KEPT_FAILURES", "Failure", "FailureRecord", "collect", "solve_seconds"]

KEPT_FAILURES = 256

_log = logging.getLogger("anytime.runner")


@dataclass(frozen=True)
class Failure:
    """A group that did not arrive, and why in one line."""

    group: str
    error: str

    def __str__(self) -> str:
        return f"group {self.group!r} failed: {self.error}"


class FailureRecord:
    """Failures of one runner, the last 256; a group that goes on failing is logged once, until it has worked again."""

    def __init__(self) -> None:
        self.kept: deque[Failure] = deque(maxlen=KEPT_FAILURES)
        self._failing: set[str] = set()

    def take(self, prediction: Prediction, arrival: Arrival) -> Failure | None:
        """Add the group to the prediction; where that cannot be, keep, log and return the failure."""
        error = arrival.error
        if error is None:
            try:
                prediction.add(arrival.group, arrival.values)
            except ValuesError as refused:
                error = str(refused)
            else:
                self._failing.discard(arrival.group)
                return None
        failure = Failure(arrival.group, error)
        self.kept.append(failure)
        if arrival.group not in self._failing:
            self._failing.add(arrival.group)
            _log.warning("%s", failure)
        return failure


def collect(
    extraction: Extraction,
    prediction: Prediction,
    budget: float | None,
    deadline: float,
    *,
    margin: float,
    solve: float,
    failures: FailureRecord,
) -> tuple[Answer, bool]:
    """Wait for groups and make the best answer from them.

    Parameters
    ----------
    extraction : where the groups come from.
    prediction : receives them; begun by the caller.
    budget : as in `Prediction.answer`.
    deadline : by `time.perf_counter`, in seconds.
    margin : how long before the deadline to stop waiting, in seconds.
    solve : seconds that an answer of the policy "arrived" takes, see `solve_seconds`.
    failures : where failures are recorded.

    Returns
    -------
    answer : the caller, who keeps the clock, fills in its reason and times.
    interrupted : whether more groups were to come.
    """
    until = deadline - margin
    answer, fresh = prediction.answer(budget), True
    late: list[str] = []
    for arrival in extraction.arrivals(until):
        failure = failures.take(prediction, arrival)
        if failure is not None:
            return _collect_around(failure, extraction, prediction, budget, deadline, until - solve, late, failures)
        now = time.perf_counter()
        if now > deadline:
            late.append(arrival.group)
        fresh = now < until and not extraction.ready  # one answer serves all groups that are at hand
        if fresh:
            answer = prediction.answer(budget)
    return (answer if fresh else prediction.answer(budget, late_groups=late)), not extraction.finished


def _collect_around(
    failure: Failure,
    extraction: Extraction,
    prediction: Prediction,
    budget: float | None,
    deadline: float,
    until: float,
    late: list[str],
    failures: FailureRecord,
) -> tuple[Answer, bool]:
    """Continue after a failure, until the last moment at which an answer around it can still be solved."""
    holes = [failure]
    if until <= time.perf_counter():
        return _with_note(prediction.answer(budget, late_groups=late), holes), False
    for arrival in extraction.arrivals(until):
        another = failures.take(prediction, arrival)
        if another is not None:
            holes.append(another)
        elif time.perf_counter() > deadline:
            late.append(arrival.group)
    interrupted = not extraction.finished
    return _with_note(prediction.answer(budget, "arrived", late_groups=late), holes), interrupted


def _with_note(answer: Answer, holes: list[Failure]) -> Answer:
    told = "; ".join(map(str, holes))
    return replace(answer, note=told if answer.note is None else f"{told}; {answer.note}")


def solve_seconds(model: AnytimeModel) -> float:
    """Measure an answer for a set that is no prefix, D^3 / 3 operations; infinite where the prefix stands in."""
    if not model.arrives:
        return math.inf
    prediction = model.open()
    prediction.answer(policy="arrived")  # the first such answer of a model prepares what it is solved from, once
    for name in model.computed[-1][1:]:
        prediction.add(name, model.prefixes.mean[model.groups.slices[model.groups.positions[name]]])
    begin = time.perf_counter()
    prediction.answer(policy="arrived")
    return time.perf_counter() - begin
