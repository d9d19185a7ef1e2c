"""Feature extractors under a deadline: compute groups in sequence order, and answer when the deadline expires.

A worker computes the groups. The calling thread collects them, makes a new answer after each arrival, and returns the
latest one when the deadline expires, whatever the running extractor does. There is always an answer on time: at least
the base rate.
"""

from __future__ import annotations

import logging
import math
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from importlib import import_module
from numbers import Real
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np

from anytime.errors import ExtractorError, ValuesError, listed, suggestion, summary
from anytime.inference.extraction import Arrival, Extraction
from anytime.inference.prediction import Answer, Prediction
from anytime.inference.workers import Worker, Workers
from anytime.model.model import Model
from anytime.types import Policy, Reason

_log = logging.getLogger("anytime.runner")


WINDOW = 4096
"""Number of most recent answers that the percentiles cover."""

MARGIN_MS = 0.1
LARGEST_MARGIN_MS = 1.0
STEP_MS = 0.02
SHARE_IN_TIME = 0.98


@dataclass(frozen=True)
class Lateness:
    """Time of `count` answers minus their deadline, in ms; negative is early.

    The percentiles and the maximum are over the last 4096; 0 if there are no answers yet.
    """

    count: int
    p50: float
    p99: float
    max: float


class LatenessRecord:
    """Lateness of answers, and the margin learned from it; bounded and thread-safe.

    A wait ends some tens of microseconds after the requested time, more on a busy machine. The runner therefore wakes
    earlier, by a margin that is a running quantile of that delay (Robbins and Monro, 1951): it grows by `step * share`
    after a late answer and shrinks by `step * (1 - share)` after any other, so it settles where `share` of the answers
    are on time. A single stall of the machine changes it by only one step.
    """

    def __init__(self) -> None:
        self.margin_ms = MARGIN_MS
        self._count = 0
        self._latest: deque[float] = deque(maxlen=WINDOW)
        self._lock = Lock()

    def add(self, late_ms: float) -> None:
        step = STEP_MS * (SHARE_IN_TIME if late_ms > 0 else SHARE_IN_TIME - 1)
        with self._lock:
            self._count += 1
            self._latest.append(late_ms)
            self.margin_ms = min(max(self.margin_ms + step, 0.0), LARGEST_MARGIN_MS)

    def summary(self) -> Lateness:
        with self._lock:
            count, latest = self._count, list(self._latest)
        if not latest:
            return Lateness(0, 0.0, 0.0, 0.0)
        p50, p99 = np.percentile(latest, (50, 99)).tolist()
        return Lateness(count, p50, p99, max(latest))


@dataclass(frozen=True)
class Failure:
    """A group that did not arrive, and the reason in one line."""

    group: str
    error: str

    def __str__(self) -> str:
        return f"group {self.group!r} failed: {self.error}"


class Runner:
    """Extractors on workers, and an answer at the deadline; a context manager, thread-safe.

    Parameters
    ----------
    model : the model that answers.
    extractors : for every group that has features, a callable that receives the input and returns the group's values
        for one row. It must not change the input.
    worker : "thread", or "process" for extractors that hold the interpreter (loops in Python, C code that keeps the
        GIL), crash or hang. In a thread such extractors delay the answer itself, which needs the interpreter too, and
        nothing can kill them. Extractors and inputs of processes must be picklable. When the constructor returns, the
        processes are started and have imported the extractors.
    max_workers : maximum number of threads or processes. After the answer the running extractor is abandoned and its
        result is discarded. A run that finds all workers busy with abandoned work waits for one until its own deadline.
    patience_ms : milliseconds after the deadline before a busy process is killed and, in the background, replaced.

    Raises
    ------
    ExtractorError
        A group has no extractor, an extractor has no group or is not picklable, or the processes do not start.

    Notes
    -----
    A group may fail: its extractor raises, its process dies, its values do not fit. The policy "prefix" cannot use the
    groups after it. A model that supports the policy "arrived" therefore continues and answers from the groups
    received; others answer at once. The constructor measures the time of such an answer: it solves once for nearly all
    features.

    A forked child process may use a runner of its parent: its first run, or `warm_up`, starts workers there. Processes
    take time to start, so answers are the base rate until they are ready.
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
        self._solve = _solve_seconds(model)
        self._late = LatenessRecord()
        self._failures: deque[Failure] = deque(maxlen=256)
        self._failing: set[str] = set()
        self._workers = Workers(extractors, worker, max_workers=max_workers, patience_ms=patience_ms)
        self._closing = weakref.finalize(self, self._workers.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the workers. Idempotent; a garbage-collected runner is closed as well."""
        self._closing()

    @property
    def lateness(self) -> Lateness:
        """Lateness of the answers that a deadline interrupted; deadlines of 0 do not count."""
        return self._late.summary()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The last 256 groups that failed."""
        return tuple(self._failures)

    @property
    def last_failure(self) -> str | None:
        """The last group that failed and the reason, in one line; None without failures."""
        failures = self.failures
        return str(failures[-1]) if failures else None

    def warm_up(self, x: Any) -> None:
        """Compute every group of `x` once per worker, without a deadline, so that first runs are quick."""
        order = self.model.computed[-1]
        extractions = [self._workers.start(order, x) for _ in range(max(self._workers.count, 1))]
        for extraction in extractions:
            for arrival in extraction.arrivals(math.inf):
                prediction = Prediction(self.model)
                self._add(prediction, arrival)
                prediction.answer()

    def run(self, x: Any, deadline_ms: float, budget: float | None = None, *, explain: bool = False) -> Answer:
        """Compute groups of `x` in sequence order until the deadline or the end of the budget's prefix, and answer.

        Parameters
        ----------
        x : input of the extractors.
        deadline_ms : milliseconds from the call to the answer; 0 returns the base rate at once.
        budget : maximum joint cost of the groups, in the model's cost unit; None is no limit.
        explain : whether the answer has the contributions of the groups used and of their columns.

        Returns
        -------
        Answer
            Its `reason` is "deadline"; "budget" or "complete" if everything within the budget or the model was
            computed; "end" if a failure, reported in `note`, ended the run early. Groups that were complete when the
            deadline expired are used, even if the process stalled and the answer is late. `late_groups` names the
            groups read after the deadline, `unused_groups` the groups that were computed too late to be used.

        Raises
        ------
        ValuesError
            The deadline or the budget is negative or not a number.
        ExtractorError
            The runner is closed, or `x` is not picklable for a process.
        """
        begin = time.perf_counter()
        deadline = begin + checked_seconds(deadline_ms)
        order = self.model.computed[self.model.affordable(budget)]
        prediction = Prediction(self.model)
        answered = partial(prediction.answer, budget, explain=explain)
        if not order or deadline == begin:
            return _timed(answered(), begin, interrupted=True)
        # The margin uses at most half of a short deadline.
        until = deadline - min(self._late.margin_ms / 1e3, (deadline - begin) / 2)
        extraction = self._workers.start(order, x)
        try:
            answer, interrupted = self._collect(extraction, prediction, answered, deadline, until)
        finally:
            unread = extraction.cancel()
        answer = _timed(answer, begin, interrupted=interrupted, unused_groups=unread)
        if answer.reason == "deadline":
            self._late.add((time.perf_counter() - deadline) * 1e3)
        return answer

    def _collect(
        self,
        extraction: Extraction,
        prediction: Prediction,
        answered: Callable[..., Answer],
        deadline: float,
        until: float,
    ) -> tuple[Answer, bool]:
        """Add groups until `until`; return the best answer, and whether more groups were expected."""
        late: list[str] = []
        answer, fresh = answered(), True
        for arrival in extraction.arrivals(until):
            failure = self._add(prediction, arrival)
            if failure is not None:
                break
            now = time.perf_counter()
            if now > deadline:
                late.append(arrival.group)
            fresh = now < until and not extraction.ready  # one answer covers all groups that are ready
            if fresh:
                answer = answered()
        else:
            return (answer if fresh else answered(late_groups=late)), not extraction.finished

        # Continue without the failed group, until the last moment for solving an answer without it.
        failures = [failure]
        policy: Policy = "prefix"
        interrupted = False
        if until - self._solve > time.perf_counter():
            for arrival in extraction.arrivals(until - self._solve):
                failure = self._add(prediction, arrival)
                if failure is not None:
                    failures.append(failure)
                elif time.perf_counter() > deadline:
                    late.append(arrival.group)
            policy, interrupted = "arrived", not extraction.finished
        answer = answered(policy=policy, late_groups=late)
        return answer.with_note("; ".join(map(str, failures))), interrupted

    def _add(self, prediction: Prediction, arrival: Arrival) -> Failure | None:
        """Add a group; if its extractor failed or the prediction rejects it, record and return the failure.

        A repeatedly failing group is logged once, until it has worked again.
        """
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
        self._failures.append(failure)
        if arrival.group not in self._failing:
            self._failing.add(arrival.group)
            _log.warning("%s", failure)
        return failure


def _timed(answer: Answer, begin: float, *, interrupted: bool, unused_groups: tuple[str, ...] = ()) -> Answer:
    if answer.complete:
        reason: Reason = "complete" if answer.prefix == answer.steps else "budget"
    else:
        reason = "deadline" if interrupted else "end"
    elapsed_ms = (time.perf_counter() - begin) * 1e3
    return replace(answer, reason=reason, elapsed_ms=elapsed_ms, unused_groups=unused_groups)


def checked_seconds(deadline_ms: float) -> float:
    """Return a deadline in seconds; raise ValuesError unless it is a finite number, 0 or more."""
    if isinstance(deadline_ms, bool) or not isinstance(deadline_ms, Real) or not 0 <= deadline_ms < math.inf:
        raise ValuesError(f"deadline_ms is {deadline_ms!r}; expected a finite number of milliseconds, 0 or more")
    return float(deadline_ms) / 1e3


def _solve_seconds(model: Model) -> float:
    """Measure the time to answer for a set that is not a prefix, D^3 / 3 operations; infinite if the prefix answers."""
    if not model.supports_arrived:
        return math.inf
    prediction = Prediction(model)
    prediction.answer(policy="arrived")  # the first such answer prepares the Gram matrix, once per model
    for name in model.computed[-1][1:]:
        prediction.add_checked(name, np.full((1, len(model.places[name].features)), np.nan))
    begin = time.perf_counter()
    prediction.answer(policy="arrived")
    return time.perf_counter() - begin


def check_extractors(names: Collection[str], featured: Sequence[str], extractors: Mapping[str, object]) -> None:
    """Raise ExtractorError unless every group with features, and no other group, has a callable extractor."""
    for name, extractor in extractors.items():
        if name not in names:
            raise ExtractorError(f"there is no group {name!r} to extract; {suggestion(str(name), featured)}")
        if name not in featured:
            raise ExtractorError(f"group {name!r} has no features to extract; remove its extractor")
        if not callable(extractor):
            raise ExtractorError(f"the extractor of group {name!r} is {type(extractor).__name__}; expected a callable")
    missing = [name for name in featured if name not in extractors]
    if missing:
        raise ExtractorError(f"no extractor for {listed(missing)}; expected one for each group that has features")


def imported(reference: str) -> Any:
    """Return the object that `MODULE:NAME` names, or raise ExtractorError; the working directory is searched too."""
    module, colon, name = reference.partition(":")
    if not (module and colon and name):
        raise ExtractorError(f"{reference!r} is not a name in a module; expected MODULE:NAME, like vision:EXTRACTORS")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found = import_module(module)
    except Exception as error:  # the module may raise anything
        raise ExtractorError(f"cannot import {module!r} ({summary(error)}); run this where Python finds it") from error
    try:
        return reduce(getattr, name.split("."), found)
    except AttributeError as error:
        known = [public for public in vars(found) if not public.startswith("_")]
        raise ExtractorError(f"module {module!r} has no {name!r}; {suggestion(name, known)}") from error


def imported_extractors(reference: str) -> dict[str, Callable[[Any], Any]]:
    """Return the extractors that `MODULE:NAME` names: a mapping of groups to callables, or a function that returns one.

    Raises ExtractorError if it is something else, or empty.
    """
    found = imported(reference)
    if callable(found) and not isinstance(found, Mapping):
        found = found()
    if not isinstance(found, Mapping) or not found:
        raise ExtractorError(f"{reference} is {type(found).__name__}; expected a dict with a callable for each group")
    return dict(found)
