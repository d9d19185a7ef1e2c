"""Arrivals into an answer: a new one is made after each arrival, so that one is at hand when the deadline expires.

A group may fail: its extractor raises, its process dies, its values do not fit. The policy "prefix" can use nothing
behind such a hole, so a model that has its moments goes on and answers for what has arrived, and one without answers at
once.

Feature extractors under a deadline: compute groups in sequence order, and answer when the clock strikes.

A worker computes; the calling thread collects and has the best answer at hand when the deadline strikes, whatever the
extractor at work is doing. An answer comes always, and on time: the base rate at the least.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from types import TracebackType
from typing import Any, Self

from anytime.errors import ValuesError
from anytime.inference.answer import Answer
from anytime.inference.deadline import Lateness, LatenessRecord
from anytime.inference.extractors import check_extractors
from anytime.inference.prediction import Prediction
from anytime.inference.workers import Arrival, Extraction, Worker, Workers
from anytime.model.model import Model
from anytime.types import Reason

__all__ = [
    "KEPT_FAILURES",
    "Failure",
    "FailureRecord",
    "Runner",
    "collect",
    "solve_seconds",
]

KEPT_FAILURES = 256

_log = logging.getLogger("anytime.inference.runner")


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


def solve_seconds(model: Model) -> float:
    """Measure an answer for a set that is no prefix, D^3 / 3 operations; infinite where the prefix stands in."""
    if not model.arrives:
        return math.inf
    prediction = Prediction(model)
    prediction.answer(policy="arrived")  # the first such answer of a model prepares what it is solved from, once
    for name in model.computed[-1][1:]:
        prediction.add(name, model.prefixes.mean[model.groups.slices[model.groups.positions[name]]])
    begin = time.perf_counter()
    prediction.answer(policy="arrived")
    return time.perf_counter() - begin


class Runner:
    """Runs extractors on workers and answers at the deadline; a context manager, safe to use from several threads.

    Parameters
    ----------
    model : the model that answers.
    extractors : for every group that has features, a callable that takes the input and returns the group's values for
        one row. It must not change the input.
    worker : "thread", or "process" for extractors that hold the interpreter (loops in Python, C code that keeps the
        GIL), crash or hang: from a thread they delay the answer itself, which needs the interpreter too, and cannot be
        killed. Extractors and inputs of processes must be picklable; the processes are started, with the extractors
        imported, when the constructor returns.
    max_workers : threads or processes there may be. After the answer the extractor at work is abandoned and nothing
        that it returns is used; a run that finds all workers still busy with such work waits for one until its own
        deadline.
    patience_ms : how long after the deadline a process may go on before it is killed and, in the background, replaced.

    Raises
    ------
    ExtractorError
        Extractors are missing or have no group, cannot be sent to a process, or the processes do not start.

    Notes
    -----
    The docstring of `anytime.inference.runner` says what happens when a group fails. For a model that can follow the
    policy "arrived" the constructor measures the time of an answer without a failed group: it solves once for nearly
    all features.

    A child that is forked off may go on with a runner: its first run, or `warm_up`, starts workers there. Processes are
    not ready at once, so answers are the base rate until they are.
    """

    def __init__(
        self,
        model: Model,
        extractors: Mapping[str, Callable[[Any], Any]],
        worker: Worker = "thread",
        *,
        max_workers: int = 4,
        patience_ms: float = 1000.0,
    ) -> None:
        check_extractors(model.groups.names, model.groups.featured, extractors)
        self.model = model
        self._orders = model.computed
        self._solve = solve_seconds(model)
        self._late = LatenessRecord()
        self._failures = FailureRecord()
        self._workers = Workers(extractors, worker, max_workers=max_workers, patience_ms=patience_ms)
        self._closing = weakref.finalize(self, self._workers.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers. Safe to call twice; a runner that is dropped is closed as well."""
        self._closing()

    @property
    def lateness(self) -> Lateness:
        """How late the answers were that a deadline interrupted; deadlines of 0 are not counted."""
        return self._late.summary()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Groups that failed, the last 256."""
        return tuple(self._failures.kept)

    @property
    def last_failure(self) -> str | None:
        """The last group that failed and why, in one line; None when none has."""
        failures = self.failures
        return str(failures[-1]) if failures else None

    def warm_up(self, x: Any) -> None:
        """Compute every group of `x` once on each worker there is, without a deadline, so that first runs are quick."""
        extractions = [self._workers.start(self._orders[-1], x) for _ in range(max(self._workers.count, 1))]
        for extraction in extractions:
            for arrival in extraction.arrivals(math.inf):
                prediction = Prediction(self.model)
                self._failures.take(prediction, arrival)
                prediction.answer()

    def run(self, x: Any, deadline_ms: float, budget: float | None = None) -> Answer:
        """Compute groups of `x` in sequence order until the deadline, or the budget's prefix is complete, and answer.

        Parameters
        ----------
        x : what the extractors are called with.
        deadline_ms : milliseconds from the call to the answer; 0 gives the base rate at once.
        budget : cost that the groups may have, in the model's cost unit; None is no limit.

        Returns
        -------
        Answer
            Its `reason` is "deadline"; "budget" or "complete" when all that the budget or the model has was computed;
            "end" when a failure, reported in `note`, left nothing to wait for. Groups that were complete when the
            deadline expired are used, also where a stall of the process delayed the answer. `late_groups` names those
            read after the deadline, `unused_groups` those that were computed and came too late to be used.

        Raises
        ------
        ValuesError
            The deadline or the budget is negative or not a number.
        ExtractorError
            The runner is closed, or `x` cannot be sent to a process.
        """
        begin = time.perf_counter()
        deadline = begin + _seconds(deadline_ms)
        order = self._orders[self.model.affordable(budget)]
        prediction = Prediction(self.model)
        if not order or deadline == begin:
            return _told(prediction.answer(budget), begin, interrupted=True)
        # A deadline so short that the margin would take most of it keeps half.
        margin = min(self._late.margin_ms / 1e3, (deadline - begin) / 2)
        extraction = self._workers.start(order, x)
        try:
            answer, interrupted = collect(
                extraction, prediction, budget, deadline, margin=margin, solve=self._solve, failures=self._failures
            )
        finally:
            unread = extraction.cancel()
        answer = _told(answer, begin, interrupted=interrupted, unused_groups=unread)
        if answer.reason == "deadline":
            self._late.add((time.perf_counter() - deadline) * 1e3)
        return answer


def _told(answer: Answer, begin: float, *, interrupted: bool, unused_groups: tuple[str, ...] = ()) -> Answer:
    """Fill in why and when the answer was given."""
    if answer.complete:
        reason: Reason = "complete" if answer.prefix == answer.steps else "budget"
    else:
        reason = "deadline" if interrupted else "end"
    elapsed_ms = (time.perf_counter() - begin) * 1e3
    return replace(answer, reason=reason, elapsed_ms=elapsed_ms, unused_groups=unused_groups)


def _seconds(deadline_ms: float) -> float:
    if isinstance(deadline_ms, bool) or not isinstance(deadline_ms, Real) or not 0 <= deadline_ms < math.inf:
        raise ValuesError(f"deadline_ms is {deadline_ms!r}; expected a finite number of milliseconds, 0 or more")
    return float(deadline_ms) / 1e3
