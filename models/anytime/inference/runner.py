"""Feature extractors under a deadline: compute groups in sequence order, and answer when the deadline expires.

Workers compute the groups and add them to the prediction; the calling thread waits, answers when no further group can
end in time, and at the deadline at the latest, whatever a running extractor does. There is always an answer on time: at
least the base rate.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from threading import Lock
from typing import Any, Generic, Self, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload

from anytime.errors import ExtractorError, ValuesError, clipped, refuse, suggestion, summary
from anytime.groups import milliseconds
from anytime.inference.deadline import (
    STALL_S,
    Durations,
    Lateness,
    LatenessRecord,
    checked_seconds,
    early_ms,
    fitting_ms,
)
from anytime.inference.extraction import Arrival, Extraction, Task
from anytime.inference.planning import all_groups, check_extractors, planned
from anytime.inference.prediction import Answer, Prediction
from anytime.inference.schedule import Failure, GroupCounts, Schedule
from anytime.inference.subsets import ArrivedModel, arrived_model_within, checked_policy, solved_sets
from anytime.inference.workers import Worker, Workers
from anytime.model.model import Model
from anytime.types import Policy, Reason

Answers = TypeVar("Answers")
Extractors: TypeAlias = Mapping[str, Callable[..., Any]]


class RunnerOptions(TypedDict, total=False):
    """Options of a runner, by name."""

    max_workers: int | None
    workers_per_run: int
    patience_ms: float
    skip: bool
    times: Mapping[str, Iterable[float]] | None
    time_limits: Mapping[str, float] | None
    reuse: Mapping[str, float] | None
    order: Sequence[str] | None
    example: Any


_NOTHING = Extraction((), None, lambda _: False)


@dataclass
class _Reused:
    """The latest values of a group that later inputs may use."""

    values: Any = None
    at: float = -math.inf
    """Time at which the run of their input began."""
    refresh: Extraction = _NOTHING
    process: int = 0
    """Process that started the refresh."""


class Runner(Generic[Answers]):
    """Extractors on workers, and an answer at the deadline; a context manager, thread-safe.

    Parameters
    ----------
    model : Model
        The model that answers; or several models, which share the groups that each input is computed for, and whose
        answers are a list.
    extractors : Extractors
        For every group that has features, a callable that receives the input and returns the group's values for one
        row. It must not change the input. A group without features may have one too (an image pyramid): groups that
        require it receive its result after the input, in the order of their `requires`.
    worker : Worker
        "thread", or "process" for extractors that hold the interpreter (loops in Python, C code that keeps the GIL),
        crash or hang. In a thread such extractors delay the answer itself, which needs the interpreter too, and nothing
        can kill them. Extractors and inputs of processes must be picklable; large arrays go through shared memory on
        Linux. When the constructor returns, the processes are started and have imported the extractors.
    max_workers : int | None
        Maximum number of threads or processes; by default 64 threads, or as many processes as cores, at least four.
        After the answer the running extractor is abandoned and its result is discarded. A run that finds all workers
        busy with abandoned work waits for one until its own deadline.
    workers_per_run : int
        Number of workers that compute the groups of one input at the same time.
    patience_ms : float
        Milliseconds after the deadline before a busy process is killed and, in the background, replaced.
    skip : bool
        Whether a group that cannot end before the deadline is not started. Its duration is the 0.9 quantile of its last
        32 calls; before the first, that of `times`, else its cost if the cost unit is a time.
    times : Mapping[str, Iterable[float]] | None
        Durations of calls in milliseconds by group, such as those that `anytime profile` measured.
    time_limits : Mapping[str, float] | None
        Milliseconds after which a group is given up, by group; the run continues without it on another worker.
    reuse : Mapping[str, float] | None
        Milliseconds for which the values of a group also count for later inputs, by group; such a group is computed in
        the background, after an answer. The answer's `ages` lists what it used.
    order : Sequence[str] | None
        Order of the groups with extractors, instead of the models' own.
    example
        An input whose groups are computed once by every worker in advance, so that first runs are quick.

    Raises
    ------
    ExtractorError
        The model is not a `Model`; a group has no extractor, an extractor has no group or is not picklable, or the
        processes do not start; an option names no such group, or is not a number of milliseconds.

    Notes
    -----
    A group may fail: its extractor raises, its process dies, its values do not fit. The policy "prefix" cannot use the
    groups after it. A model that supports the policy "arrived" therefore continues and answers from the groups
    received; others answer at once. The optimum for a set of groups is solved once per model: in the run if there is
    time, else in the background, and the run uses the best solved part of the set.

    A group whose abandoned extractor is still running, for longer than a deadline and three times as long as expected,
    is left out like a failed group while that lasts. If it lasts for a second and ten times as long as expected, or
    its process is killed, the group hangs: that is a failure, and it is tried again after 1, 2, 4, ... up to 60 s.

    A forked child process may use a runner of its parent: its first run, or `warm_up`, starts workers there. Processes
    take time to start, so answers are the base rate until they are ready.
    """

    @overload
    def __init__(
        self: Runner[Answer],
        model: Model,
        extractors: Extractors,
        worker: Worker = ...,
        **options: Unpack[RunnerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Runner[list[Answer]],
        model: Sequence[Model],
        extractors: Extractors,
        worker: Worker = ...,
        **options: Unpack[RunnerOptions],
    ) -> None: ...

    def __init__(
        self,
        model: Model | Sequence[Model],
        extractors: Extractors,
        worker: Worker = "thread",
        *,
        max_workers: int | None = None,
        workers_per_run: int = 1,
        patience_ms: float = 1000.0,
        skip: bool = True,
        times: Mapping[str, Iterable[float]] | None = None,
        time_limits: Mapping[str, float] | None = None,
        reuse: Mapping[str, float] | None = None,
        order: Sequence[str] | None = None,
        example: Any = None,
    ) -> None:
        self._several = isinstance(model, Iterable) and not isinstance(model, str)
        self.models: tuple[Model, ...] = tuple(cast("Iterable[Model]", model if self._several else [model]))
        kinds = ", ".join(type(each).__name__ for each in self.models)
        is_count = isinstance(workers_per_run, int) and not isinstance(workers_per_run, bool) and workers_per_run > 0
        refuse(
            {
                "there is no model; expected at least one": not self.models,
                f"the model is {kinds}; expected a Model, as of anytime.load(path), or several": not all(
                    isinstance(each, Model) for each in self.models
                ),
                f"workers_per_run is {workers_per_run!r}; expected a whole number, 1 or more": not is_count,
            },
            ExtractorError,
        )
        groups = all_groups(self.models)
        check_extractors({name: group.features for name, group in groups.items()}, extractors)
        self._extractors = frozenset(extractors)
        self._skip = skip
        self._order = order
        self._time_limits = _limits("time_limits", time_limits, groups, extractors)
        self._reuse = _limits("reuse", reuse, [name for name in groups if groups[name].features], extractors)
        self._reused = {name: _Reused() for name in self._reuse}
        self._schedule = Schedule(self._priors(times or {}))
        self._plans: dict[tuple[int, ...], list[list[Task]]] = {}
        self._plan(None)
        for one in self.models:
            if one.supports_arrived:
                solved_sets(one)
        self._late = LatenessRecord()
        self._answering = Durations(0.0)
        self._workers_per_run = workers_per_run
        self._workers = Workers(extractors, worker, max_workers=max_workers, patience_ms=patience_ms)
        self._closing: weakref.finalize[[], Runner[Any]] = weakref.finalize(self, self._workers.close)
        if example is not None:
            self.warm_up(example)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the workers. Idempotent; a garbage-collected runner is closed as well."""
        self._closing()

    @property
    def model(self) -> Model:
        """The model, or the first of several."""
        return self.models[0]

    @property
    def lateness(self) -> Lateness:
        """Lateness of the answers with reason "deadline" and of all later ones; deadlines of 0 do not count."""
        return self._late.summary()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The last 256 groups that failed or were found hanging."""
        return self._schedule.failures

    @property
    def last_failure(self) -> str | None:
        """The last group that failed and the reason, in one line; None without failures."""
        return str(self.failures[-1]) if self.failures else None

    @property
    def counts(self) -> dict[str, GroupCounts]:
        """What became of each group so far."""
        return self._schedule.counts(time.perf_counter())

    def warm_up(self, x: Any) -> None:
        """Compute every group of `x` once per worker, without a deadline, so that first runs are quick; then once more.

        Only the last time counts for the durations of the groups.
        """
        tasks = list(chain.from_iterable(self._plan(None)))
        for count, measured in ((max(self._workers.count, 1), False), (1, True)):
            runs = [_Run(self, math.inf, measured=measured, stores=False) for _ in range(count)]
            self._workers.compute_all(tasks, x, [run.receive for run in runs])
            for prediction in chain.from_iterable(run.predictions for run in runs):
                prediction.answer()

    def __repr__(self) -> str:
        return f"<Runner of {', '.join(model.name for model in self.models)}>"

    def run(
        self,
        x: Any,
        deadline_ms: float,
        budget: float | None = None,
        *,
        policy: Policy = "prefix",
        explain: bool = False,
    ) -> Answers:
        """Compute groups of `x` in sequence order until the deadline or the end of the budget's prefix, and answer.

        Parameters
        ----------
        x
            Input of the extractors.
        deadline_ms : float
            Milliseconds from the call to the answer; 0 returns the base rate at once.
        budget : float | None
            Maximum joint cost of the groups of each model, in its cost unit; None is no limit.
        policy : Policy
            "prefix" answers as soon as the next group of the sequence cannot end in time; "best" does so too, and
            computes no group after the prefix of least cross-validated error; "arrived" continues with the groups after
            it that can, and answers from the set of groups received.
        explain : bool
            Whether the answer has the contributions of the groups used and of their columns.

        Returns
        -------
        Answer, or a list of them for several models
            Its `reason` is "deadline", also if the run ended early since no further group could end in time, and `note`
            names that group; "budget" or "complete" if everything within the budget or the model was computed; "end" if
            a failure, reported in `note`, ended the run early. Groups that were complete when the deadline expired are
            used, even if the process stalled and the answer is late. `late_groups` names the groups received after the
            deadline, `unused_groups` the groups that were computed too late to be used.

        Raises
        ------
        ValuesError
            The deadline or the budget is negative or not a number, or the policy is unknown.
        ExtractorError
            The runner is closed, or `x` is not picklable for a process.
        """
        begin = time.perf_counter()
        seconds = checked_seconds(deadline_ms)
        deadline = begin + seconds
        run = _Run(self, deadline, budget, checked_policy(policy), explain=explain, reuses=True)
        steps = self._plan(budget, policy)
        if not steps or not seconds:
            return self._returned(run.answers(waited=not seconds))
        margin_ms = self._late.margin_ms + self._answering.expected_ms(begin)
        until = deadline - early_ms(margin_ms, seconds * 1e3) / 1e3
        left_out = self._schedule.left_out(self._workers.abandoned(), begin, seconds)
        run.left_out = {name: why for name, why in left_out.items() if name not in run.has}
        try:
            self._start(run, steps, x, until)
            waited = self._wait(run, x, until)
            answers = run.answers(waited=waited)
        finally:
            run.extraction.cancel()
            run.extraction = _NOTHING  # lets go of the input
        if self._reuse:
            self._refresh(run, x)
        if run.unused:
            answers = [replace(answer, unused_groups=tuple(run.unused)) for answer in answers]
        late_ms = (time.perf_counter() - deadline) * 1e3
        if late_ms > 0 or any(answer.reason == "deadline" for answer in answers):
            self._late.add(late_ms, waited=waited)
        return self._returned(answers)

    def _returned(self, answers: list[Answer]) -> Answers:
        return cast("Answers", answers if self._several else answers[0])

    def _start(self, run: _Run, steps: Sequence[Sequence[Task]], x: Any, until: float) -> None:
        """Start the groups of some steps that this run needs."""
        needed = [[task for task in step if task.group not in run.has] for step in steps]
        results = run.extraction.results
        if run.failures:  # the results of an earlier part of this run may be in a process
            used = {name for step in needed for task in step for name in task.uses} - results.keys()
            needed = [[task for task in step if task.group not in run.has or task.group in used] for step in steps]
        prefix = run.policy != "arrived" and not run.left_out and not run.failures
        tasks = self._schedule.tasks(
            needed,
            run.left_out.keys(),
            now=time.perf_counter(),
            until=until if self._skip else None,
            whole_steps=prefix and self._workers_per_run == 1,
            continues=run.continues,
        )
        read_by = -math.inf if self._time_limits else until
        run.extraction = Extraction(
            tasks,
            x,
            run.receive,
            in_order=prefix and not self._several,  # the next group of one model may not fit, and that of another may
            workers=self._workers_per_run,
            read_by=read_by,
        )
        run.extraction.results.update(results)
        if tasks:
            self._workers.start(run.extraction, read_by if self._workers_per_run == 1 else -math.inf)

    def _wait(self, run: _Run, x: Any, until: float) -> bool:
        """Wait for the groups of an input until a time; return whether it was reached."""
        while self._time_limits:
            now = time.perf_counter()
            limits = {
                group: started + self._time_limits[group]
                for group, started in run.extraction.running.copy().items()
                if group in self._time_limits
            }
            overdue = [group for group, limit in limits.items() if limit <= now]
            if overdue:
                run.extraction.cancel()  # which abandons its workers
                run.has.update(overdue)
                for group in overdue:
                    run.fail(
                        group, f"still running after {self._time_limits[group] * 1e3:g} ms, its time limit", hung=True
                    )
                if not run.continues:
                    return False
                self._start(run, self._plan(run.budget, run.policy), x, until)
                continue
            check = min([*limits.values(), now + min(self._time_limits.values())])  # others may start meanwhile
            if check >= until:
                break
            if run.extraction.wait(check) is None:
                return False
        late_s = run.extraction.wait(until, reads_late=True)
        if late_s is not None and late_s > STALL_S and self._workers.worker == "thread":
            self._schedule.held_up(list(run.extraction.running), time.perf_counter())
        return late_s is not None

    def _plan(self, budget: float | None, policy: Policy = "prefix") -> list[list[Task]]:
        prefixes = tuple(model.affordable(budget, policy) for model in self.models)
        plan = self._plans.get(prefixes)
        if plan is None:
            plan = self._plans[prefixes] = planned(self.models, prefixes, self._extractors, self._order)
        return plan

    def _refresh(self, run: _Run, x: Any) -> None:
        """Compute, in the background, the groups to reuse whose values are old, from a copy of this run's input."""
        now, copied = time.perf_counter(), None
        for name, limit in self._reuse.items():
            reused = self._reused[name]
            if reused.process != os.getpid():  # the refresh of the parent of a fork
                reused.process, reused.refresh = os.getpid(), _NOTHING
            running = reused.refresh.running.copy()
            limited = any(now - at > self._time_limits.get(group, math.inf) for group, at in running.items())
            if limited or self._schedule.hangs(running, now):
                reused.refresh.cancel()
            old = now - reused.at >= limit / 2 and reused.at < run.begin
            if name in run.left_out or not reused.refresh.finished or not old:
                continue
            tasks = list(chain.from_iterable(self._plan(None)))
            needed = next(task for task in tasks if task.group == name).needs | {name}
            try:
                copied = deepcopy(x) if copied is None else copied  # its owner may overwrite it
            except Exception as error:  # a foreign object may raise anything
                self._schedule.failed(name, f"its input is not copyable for reuse: {summary(error)}", now)
                return
            reused.refresh = Extraction(
                [task for task in tasks if task.group in needed], copied, _Run(self, math.inf, begin=run.begin).receive
            )
            with suppress(ExtractorError):  # the runner was closed meanwhile; the answer is made
                self._workers.start(reused.refresh)

    def _priors(self, times: Mapping[str, Iterable[float]]) -> dict[str, float | None]:
        """Return the expected duration of each group that has an extractor, in ms; None if it is unknown."""
        priors: dict[str, float | None] = dict.fromkeys(self._extractors)
        for model in reversed(self.models):
            factor = milliseconds(model.groups.cost_unit)
            for name, cost in zip(model.groups.names, model.groups.call_costs(1).tolist(), strict=True):
                if factor is not None and name in priors:
                    priors[name] = factor * cost
        for name, took in times.items():
            if name not in priors:
                raise ExtractorError(f"times has {name!r}; {suggestion(str(name), list(priors))}")
            try:
                priors[name] = 1e3 * fitting_ms(sorted(map(checked_seconds, took)))
            except (IndexError, TypeError, ValuesError):
                raise ExtractorError(
                    f"times of group {name!r} are {clipped(repr(took))}; expected a list of milliseconds"
                ) from None
        return priors


class _Run:
    """One input's predictions, to which workers add groups until the answer is made."""

    def __init__(
        self,
        runner: Runner[Any],
        deadline: float,
        budget: float | None = None,
        policy: Policy = "prefix",
        *,
        explain: bool = False,
        measured: bool = True,
        stores: bool = True,
        reuses: bool = False,
        begin: float | None = None,
    ) -> None:
        self.begin = time.perf_counter() if begin is None else begin
        self.budget = budget
        self.policy = policy
        self.predictions = [Prediction(model) for model in runner.models]
        self.has: set[str] = set()
        """Groups that have arrived, failed, or are reused."""
        self.left_out: dict[str, str] = {}
        """Groups that are left out from the start, and why."""
        self.unused: list[str] = []
        self.extraction = _NOTHING
        self.continues = any(model.supports_arrived for model in runner.models) or len(runner.models) > 1
        """Whether an answer can use groups after one that failed."""
        self._runner = runner
        self._deadline = deadline
        self._explain = explain
        self._measured = measured
        self._stores = stores
        self.failures: list[Failure] = []
        self._late: list[str] = []
        self._ages: dict[str, float] = {}
        self._solving_s = 0.0
        self._lock = Lock()
        self._closed = False
        for name, limit in runner._reuse.items() if reuses else ():
            reused = runner._reused[name]
            age = self.begin - reused.at
            if age <= limit and self._add(name, reused.values) is None:
                self._ages[name] = age * 1e3
                self.has.add(name)

    def receive(self, arrival: Arrival) -> bool:
        """Add a group; return whether to compute more. Called by workers."""
        runner, group, now = self._runner, arrival.group, time.perf_counter()
        if arrival.error is None and self._measured:
            runner._schedule.measured(group, arrival.took_ms, now)
        with self._lock:
            closed = self._closed
            if group in self.has and not closed:  # given up, or computed again after a worker was lost
                return True
            self.has.add(group)
            error = arrival.error or self._add(group, arrival.values, checks_only=closed)
            if error is None and closed:
                self.unused.append(group)
            elif error is None and now > self._deadline:
                self._late.append(group)
        if error is not None:
            self.fail(group, error, hung=arrival.killed)
        elif arrival.took_ms <= 1e3 * runner._time_limits.get(group, math.inf):
            runner._schedule.arrived(group)
            reused = runner._reused.get(group)
            # A slow computation may end after that of a later input; an extractor may use its array again.
            if reused is not None and self._stores and self.begin > reused.at:
                reused.values, reused.at = deepcopy(arrival.values), self.begin
        return not closed and (error is None or self.continues)

    def fail(self, group: str, error: str, *, hung: bool = False) -> None:
        """Record a group that this run lacks, and why."""
        self.failures.append(self._runner._schedule.failed(group, error, time.perf_counter(), hung=hung))

    def answers(self, *, waited: bool) -> list[Answer]:
        """Return the answer of each model, and end the run; `waited` is whether its time is over."""
        begin, runner = time.perf_counter(), self._runner
        with self._lock:
            self._closed = True
            skipped = self.extraction.skipped
            too_long = runner._schedule.skipped(skipped, time.perf_counter())
            no_worker = runner._workers.shortage if waited and not self.extraction.began else None
            notes = [*map(str, self.failures), *self.left_out.values(), too_long, no_worker]
            note = "; ".join(filter(None, notes))
            out_of_time = waited or bool(skipped or self.left_out)
            answers = [self._answer(prediction, out_of_time=out_of_time) for prediction in self.predictions]
        runner._answering.add((time.perf_counter() - begin - self._solving_s) * 1e3, begin)
        return [answer.with_note(note) if note and not answer.complete else answer for answer in answers]

    def _answer(self, prediction: Prediction, *, out_of_time: bool) -> Answer:
        model, policy = prediction.model, self.policy
        if prediction.prefix >= model.affordable(self.budget, policy):
            reason: Reason = "complete" if model.affordable(self.budget) == model.steps else "budget"
        else:
            reason = "deadline" if out_of_time else "end"
            lost = {failure.group for failure in self.failures} | self.left_out.keys()
            if model.supports_arrived and not lost.isdisjoint(model.groups.names):
                policy = "arrived"
        answer = prediction.answer(
            self.budget,
            policy,
            explain=self._explain,
            reason=reason,
            elapsed_ms=(time.perf_counter() - self.begin) * 1e3,
            late_groups=self._late,
            solve=self._solve,
        )
        if self._ages:
            answer = replace(answer, ages={name: age for name, age in self._ages.items() if name in answer.groups})
        return answer

    def _solve(self, model: Model, groups: frozenset[str]) -> ArrivedModel:
        begin = time.perf_counter()
        found = arrived_model_within(model, groups, (self._deadline - begin) * 1e3 - self._runner._late.margin_ms)
        self._solving_s += time.perf_counter() - begin
        return found

    def _add(self, group: str, values: Any, *, checks_only: bool = False) -> str | None:
        """Add the values of a group to each prediction that has it; return the error if one refuses them."""
        try:
            for prediction in self.predictions:
                if group in prediction.model.places:
                    checked = prediction.checked(group, values)
                    if not checks_only:
                        prediction.add_checked(group, checked)
        except ValuesError as refused:
            return str(refused)
        return None


def _limits(
    option: str, limits: Mapping[str, float] | None, groups: Iterable[str], extractors: Iterable[str]
) -> dict[str, float]:
    """Return limits in seconds; raise ExtractorError for an unknown group, or a limit that is not milliseconds."""
    known = [name for name in groups if name in set(extractors)]
    found = {}
    for name, limit in (limits or {}).items():
        if name not in known:
            raise ExtractorError(f"{option} has {name!r}; {suggestion(str(name), known)}")
        with suppress(ValuesError):
            found[name] = checked_seconds(limit)
        if not found.get(name):
            raise ExtractorError(f"{option} of group {name!r} is {limit!r}; expected milliseconds, more than 0")
    return found
