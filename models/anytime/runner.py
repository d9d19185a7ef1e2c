"""Feature extractors under a deadline: compute groups in sequence order, and answer when the clock strikes.

A worker computes; the calling thread collects and has the best answer at hand when the deadline strikes, whatever the
extractor at work is doing. An answer comes always, and on time: the base rate at the least.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Real
from types import TracebackType
from typing import Any, Self

from anytime.answer import Answer, Reason
from anytime.collecting import Failure, FailureRecord, collect, solve_seconds
from anytime.errors import ValuesError
from anytime.extractors import check_extractors
from anytime.lateness import Lateness, LatenessRecord
from anytime.model import AnytimeModel
from anytime.workers import Worker, Workers

__all__ = ["Runner"]


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
    What happens when a group fails is told in `anytime.collecting`. For a model that can follow the policy "arrived"
    the constructor measures how long an answer around a failed group takes, by solving for nearly all features once.

    A child that is forked off may go on with a runner: its first run, or `warm_up`, starts workers there. Processes are
    not ready at once, so answers are the base rate until they are.
    """

    def __init__(
        self,
        model: AnytimeModel,
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
                prediction = self.model.open()
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
        prediction = self.model.open()
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
