"""Active predictions: an open prediction with its deadline timer, its memory and its callbacks.

`DeadlineTimer` fires on time although event loops count in whole milliseconds. uvloop rounds a delay to milliseconds
and counts it from a clock that it updates once per iteration, so its timers fire up to 0.9 ms early (libuv#4773) or
half a millisecond late. The deadline timer uses a loop timer for the whole milliseconds, and then reschedules itself in
every iteration, while the loop continues to serve everything else.

A process that was stopped, or a loop that was busy, calls its timers late, and before it reads the data that arrived
meanwhile. A deadline timer that is late lets the loop read its sockets first, so that the answer uses this data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from anytime.errors import AnytimeError
from anytime.inference.deadline import STALL_S, Durations, LatenessRecord, LateReading, early_ms
from anytime.inference.prediction import Answer, Prediction, Settled
from anytime.inference.subsets import ArrivedModel
from anytime.model.model import Model
from anytime_service.clock import now_ms
from anytime_service.core.open_prediction import OpenPrediction, Reached
from anytime_service.core.solver import Solver
from anytime_service.errors import OverloadedError
from anytime_service.limits.admission import Admission
from anytime_service.limits.memory import Account
from anytime_service.limits.queues import TimeoutQueue
from anytime_service.limits.table import INLINE
from anytime_service.limits.turns import FairQueue
from anytime_service.limits.worker import Slot, Worker
from anytime_service.schemas.options import PredictionOptions
from anytime_service.telemetry.metrics import Metrics
from anytime_service.telemetry.records import PredictionRecord
from anytime_service.telemetry.tracing import Tracing

LEAD_MS = 100.0
AT_ONCE = int(INLINE)
SLACK_MS = 0.2  # a deadline timer may fire this much early instead of running one more iteration of the loop


class DeadlineTimer:
    """A timer that calls `expire` once at `due_ms`; at most `SLACK_MS` earlier, and later while the loop is busy.

    It never calls from the constructor. `unread` returns whether the server has received bytes that it has not decoded.
    Of the timers that share a queue, those of one turn of the loop call for a share of it, and others in later turns.
    """

    __slots__ = ("_due_ms", "_expire", "_handle", "_loop", "_queue", "_unread")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        due_ms: float,
        expire: Callable[[], None],
        unread: Callable[[], bool] = lambda: False,
        queue: FairQueue | None = None,
    ) -> None:
        self._loop = loop
        self._queue = FairQueue() if queue is None else queue
        self._due_ms = due_ms
        self._expire = expire
        self._unread = unread
        self._handle = self._armed(due_ms - now_ms())

    def cancel(self) -> None:
        self._handle.cancel()
        self._expire = lambda: None  # the callback refers to this timer; the cycle would wait for the garbage collector

    def _armed(self, remaining_ms: float) -> asyncio.Handle:
        whole_ms = int(remaining_ms)
        if whole_ms > 0:
            return self._loop.call_later(whole_ms / 1000.0, self._wake)
        return self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        now = now_ms()
        remaining_ms = self._due_ms - now
        if remaining_ms > SLACK_MS:
            self._handle = self._armed(remaining_ms)
        elif remaining_ms < -STALL_S * 1000.0:
            self._read(LateReading(-remaining_ms / 1000.0, now / 1000.0))
        else:
            self._queue.run(self._call)

    def _read(self, reading: LateReading) -> None:
        """Call back after the loop has read what had arrived."""
        if reading.has_turn(now_ms() / 1000.0, unread=self._unread()):
            self._handle = self._loop.call_soon(self._read, reading)
        else:
            self._queue.run(self._call)

    def _call(self) -> None:
        self._expire()  # as it is then: maybe the timer was cancelled meanwhile


AnswerCallback = Callable[[Any], None]
Encode = Callable[[Literal["answer", "update"], Answer], Callable[[float], Any]]
"""Encode an answer, in the worker thread if it has many numbers; return what makes of its `elapsed_ms` what to send."""

_log = logging.getLogger("anytime_service")


@dataclass(frozen=True, slots=True)
class Context:
    """The objects that all active predictions of a service share.

    `max_deadline_ms` is the longest deadline, and the deadline of a prediction without one. `unread` returns whether
    the server has received bytes that it has not decoded. `unhurried` are the predictions without a deadline of their
    own, whose timers start `LEAD_MS` before it: a timer takes as long as two groups. `work` is the queue of the bytes
    that connections have received and of the sets to solve; `due` are deadlines that wait for another turn of the loop.
    """

    active: set[ActivePrediction]
    metrics: Metrics
    tracing: Tracing | None
    solver: Solver
    worker: Worker
    admission: Admission
    max_deadline_ms: float
    unread: Callable[[], bool]
    unhurried: TimeoutQueue[ActivePrediction]
    max_contributions: int
    work: FairQueue = field(default_factory=FairQueue)
    due: FairQueue = field(default_factory=FairQueue)
    _times: dict[str, tuple[LatenessRecord, Durations]] = field(default_factory=dict)

    def times(self, model: Model) -> tuple[LatenessRecord, Durations]:
        """Return the lateness of the answers of a model, and how long the worker takes for a number of one, in ms."""
        times = self._times.get(model.name)
        if times is None:
            times = self._times[model.name] = LatenessRecord(), Durations(MS_PER_NUMBER)
            self.metrics.of(model).show_margin(lambda: times[0].margin_ms)
        return times


class ActivePrediction:
    """An open prediction with a clock; its events are those of `OpenPrediction`, without the time argument."""

    def __init__(
        self,
        context: Context,
        model: Model,
        shared: Prediction | None,
        on_answer: AnswerCallback,
        on_error: Callable[[Exception], None],
        on_update: AnswerCallback | None,
        account: Account,
        encode: Encode,
    ) -> None:
        self.model = model
        self.machine = OpenPrediction(model, shared, AT_ONCE, context.max_contributions)
        self.answered = False
        self._context = context
        self._account = account
        self.metrics = context.metrics.of(model)
        self._lateness, self._durations = context.times(model)
        self._on_answer = on_answer
        self._on_error = on_error
        self._on_update = on_update
        self._encode = encode
        self._making: asyncio.Future[Any] | None = None  # the answer or update that the worker makes
        self._timer: DeadlineTimer | None = None
        self._solve_due = False
        self._stored = 0
        self._reserved = 0  # bytes in which the answer is made
        self._slot: Slot | None = None  # when it is made
        self.on_end: Callable[[], None] | None = None
        """Called once when the prediction ends: answered, failed or dropped."""

    @property
    def done(self) -> bool:
        """Whether the answer was sent; one of many rows is being made for some time."""
        return self.answered and self._making is None

    def begin(self, options: PredictionOptions, begun_ms: float, *, overloaded: bool = False) -> None:
        """Open the prediction and start its deadline timer; answer at once if `overloaded`. The service calls this."""
        self.record = PredictionRecord(self.metrics, self._context.tracing, begun_ms, options.traceparent, options.rows)
        context, prediction = self._context, self.machine.prediction
        rows = options.rows or prediction.rows
        answer = self.machine.begin(begun_ms, options, context.max_deadline_ms, overloaded=overloaded)
        self.allow(rows, prediction.nbytes)  # a snapshot may need the values of a session
        self._check_time(rows)
        self._reserve()
        if answer is None:
            context.active.add(self)
            self._account.active.add(self)
            if options.deadline_ms is None and context.max_deadline_ms > LEAD_MS:
                context.unhurried.begin(self)
            else:
                self.start_timer()
        self._after(answer)

    def start_timer(self) -> None:
        context, due_ms, begun_ms = self._context, self.machine.deadline_at, self.machine.begun_ms
        # The timer may fire a little early; that is part of the margin.
        early = max(early_ms(self._lateness.margin_ms, due_ms - begun_ms) - SLACK_MS, 0.0)
        if self._slot is not None:
            due_ms = min(due_ms, max(self._slot[0], (begun_ms + due_ms) / 2))
        self._timer = DeadlineTimer(
            asyncio.get_running_loop(), due_ms - early, self.expire, context.unread, context.due
        )

    def group(self, name: str, values: Any, took_ms: float | None = None) -> None:
        """Accept the values of one group; `took_ms` is the computing time that the client reports, if any.

        Raise FieldError if the values are invalid, and OverloadedError if they, or the answer for their rows, exceed
        the memory budget, or the answer would be late. The prediction does not change then.
        """
        now, prediction = now_ms(), self.machine.prediction
        before = prediction.replacements
        answer = self.machine.groups(now, {name: values}, self._allow_groups)
        self._count_stored()
        repeated = took_ms is None and prediction.replacements > before
        self.record.timings.received(name, now, took_ms, repeated)
        self._after(answer)

    def groups(self, values: Mapping[str, Any], received_ms: float | None = None) -> None:
        """Accept several groups that arrived together, at `received_ms` or now; raises like `group`."""
        now = now_ms() if received_ms is None else received_ms
        answer = self.machine.groups(now, values, self._allow_groups)
        self._count_stored()
        self._after(answer)

    def took(self, names: Iterable[str]) -> None:
        """Note groups that the shared prediction has accepted."""
        self._reserve()
        self._safely(lambda: self.machine.took(now_ms(), names))

    def end(self) -> None:
        self._after(self.machine.end(now_ms()))

    def ended(self) -> None:
        """Answer because the shared prediction has ended. Never raises."""
        self._safely(lambda: self.machine.end(now_ms()))

    def drain(self) -> None:
        """Answer because the service is stopping. Never raises."""
        self._safely(self._drained)

    def drop(self) -> None:
        """Cancel the prediction and release its resources and callbacks. Idempotent."""
        if not self.answered:
            self._release()
        self._release_memory()
        self._on_answer = self._on_error = _ignore  # they may refer to this prediction
        self._on_update = None
        self._encode = encode_nothing
        if self._making is not None:
            self._making.cancel()

    def _release_memory(self) -> None:
        if self._stored:
            self._account.add(-self._stored)
            self._stored = 0
        if self._reserved:
            self._account.reserve_answer(0, self._reserved)
            self._reserved = 0

    def _release(self) -> None:
        self.answered = True
        self._context.active.discard(self)
        self._account.active.discard(self)
        if self._slot is not None:
            self._context.worker.free(self._slot)
            self._slot = None
        if self._timer is None:
            self._context.unhurried.end(self)
        else:
            self._timer.cancel()
        if self.on_end is not None:
            self.on_end()
            self.on_end = None

    def fail(self, error: Exception) -> None:
        """Send the error instead of an answer. Never raises, because it must not affect other predictions."""
        self._release()
        self._release_memory()
        try:
            self._on_error(error)
        except Exception:
            _log.exception("sending the error of a prediction of model %r failed", self.model.name)

    def expire(self) -> None:
        """Answer because the deadline has expired, with the optimum if it is available at once. Never raises."""
        self._safely(lambda: self._solved_at_once() or self.machine.deadline(now_ms()))

    def _after(self, answer: Reached | None) -> None:
        """Send the answer that an event returned, or else start solving, precompute scores and send an update."""
        if answer is not None:
            self._finish(answer)
            return
        if not self.machine.solving:
            self.machine.prepare()
        elif not self._solve_due:  # solve once for all groups that arrive in this turn of the loop
            self._solve_due = True
            self._context.work.submit(self._solve)
        if self._on_update is not None and self._making is None:
            better = self.machine.update(now_ms())
            if isinstance(better, Settled):
                self._make(better, "update", self._updated)
            elif better is not None:
                self._on_update(self._encode("update", better)(better.elapsed_ms))

    def _count_stored(self) -> None:
        """Count the bytes and rows of the values that the prediction stores."""
        prediction, timings = self.machine.prediction, self.record.timings
        if timings.rows is None:
            timings.rows = prediction.rows
            self._reserve()
        if prediction.nbytes != self._stored:
            self._account.add(prediction.nbytes - self._stored)
            self._stored = prediction.nbytes

    def allow(self, rows: int, more: int = 0, field: str | None = None) -> None:
        """Raise OverloadedError if the answer for some rows does not fit into the memory budget.

        `more` bytes of values must fit too, if the answer is made by the worker.
        """
        numbers = self.machine.numbers(rows)
        if numbers:
            self._account.check_answer(numbers * BYTES_A_NUMBER, more, field)

    def _allow_groups(self, rows: int, more: int, field: str) -> None:
        self._account.check(more, field)
        if self.record.timings.rows is None:
            self.allow(rows, more, field)
            self._check_time(rows)

    def _check_time(self, rows: int) -> None:
        """Raise OverloadedError if the worker cannot make the answer for some rows in the second half of its time."""
        numbers, machine, context = self.machine.numbers(rows), self.machine, self._context
        if numbers:
            took_ms, due_ms, now = self._took_ms(numbers), machine.deadline_at, now_ms()
            alone = due_ms - took_ms  # when the only answer would begin, maybe before now
            soonest = max(min((machine.begun_ms + due_ms) / 2, alone), min(now, alone) + context.worker.queued_ms)
            if soonest - context.worker.begin_ms(due_ms, took_ms) > context.admission.max_lateness_ms:
                context.metrics.shed.labels("refused", "lateness").inc()
                raise OverloadedError(
                    "the server has more answers of many rows than it can make in time; retry in a second, use another"
                    " replica, or send fewer rows or a later deadline"
                )

    def _took_ms(self, numbers: int) -> float:
        return numbers * self._durations.expected_ms(now_ms() / 1000.0)

    def _reserve(self) -> None:
        """Reserve the memory in which the answer is made, and the time."""
        numbers = self.machine.numbers(self.machine.prediction.rows)
        if numbers * BYTES_A_NUMBER == self._reserved or self.answered:
            return
        self._account.reserve_answer(numbers * BYTES_A_NUMBER, self._reserved)
        self._reserved = numbers * BYTES_A_NUMBER
        if self._slot is not None:
            self._context.worker.free(self._slot)
        self._slot = self._context.worker.reserve(self.machine.deadline_at, self._took_ms(numbers))
        if self._timer is not None:
            self._timer.cancel()
            self.start_timer()

    def _solve(self) -> None:
        self._solve_due = False
        groups = None if self.answered else self.machine.unsolved
        if groups is not None:
            self._context.solver.find(self.model, groups, lambda found: self._solved(groups, found))
        elif not self.answered:
            self.machine.prepare()

    def _solved(self, groups: frozenset[str], found: ArrivedModel | None) -> None:
        if not self.answered:
            self._safely(lambda: self.machine.solved(now_ms(), groups, found))

    def _drained(self) -> Reached:
        solved = self._solved_at_once()
        if solved is None:
            return self.machine.drain(now_ms())
        if isinstance(solved, Settled):
            return replace(solved, fields=solved.fields | {"reason": "draining"})
        return replace(solved, reason="draining")

    def _solved_at_once(self) -> Reached | None:
        """Use the optimum of the received groups if it is available at once; return the answer if it completes one."""
        groups = self.machine.unsolved
        found = None if groups is None else self._context.solver.at_once(self.model, groups)
        return None if groups is None or found is None else self.machine.solved(now_ms(), groups, found)

    def _safely(self, event: Callable[[], Reached | None]) -> None:
        """Apply an event that the client did not send; report a failure only to the client of this prediction."""
        try:
            self._after(event())
        except Exception as error:
            with self.record.request():
                _log.exception("a prediction of model %r failed", self.model.name)
                self.fail(error)

    def _finish(self, answer: Reached) -> None:
        self._release()
        if isinstance(answer, Settled):  # the values stay until the worker has used them
            self._make(answer, "answer", self._send)
            return
        try:
            complete = self._encode("answer", answer)
        except AnytimeError as error:
            self._release_memory()
            self._on_error(error)
            self._record(answer)
        else:
            self._send(answer, complete)

    def _make(self, settled: Settled, kind: Literal["answer", "update"], done: Callable[..., None]) -> None:
        """Have the worker make and encode an answer; then call `done` with it and what completes it, or fail."""
        encode = self._encode

        def work() -> tuple[float, Answer, Callable[[float], Any]]:
            begun_ms, answer = now_ms(), settled.make_arrays()
            return begun_ms, answer, encode(kind, answer)

        def finish(making: asyncio.Future[tuple[float, Answer, Callable[[float], Any]]]) -> None:
            if self._making is making:
                self._making = None
            if making.cancelled():
                return
            error = making.exception()
            if error is None:
                (begun_ms, answer, complete), now = making.result(), now_ms()
                self._durations.add((now - begun_ms) / settled.numbers, now / 1000.0)
                done(replace(answer, elapsed_ms=now - self.machine.begun_ms), complete)
            else:
                if not isinstance(error, AnytimeError):
                    _log.error("a prediction of model %r failed", self.model.name, exc_info=error)
                self.fail(cast(Exception, error))

        if self._making is not None:
            self._making.cancel()
        self._count_stored()  # also of a session: if a group is replaced meanwhile, the answer has the only reference
        due_ms, took_ms = self.machine.deadline_at, self._took_ms(settled.numbers)
        self._making = self._context.worker.answer(work, *((due_ms, took_ms) if kind == "answer" else ()))
        self._making.add_done_callback(finish)

    def _updated(self, answer: Answer, complete: Callable[[float], Any]) -> None:
        if self._on_update is not None and not self.answered:
            self._on_update(complete(answer.elapsed_ms))

    def _send(self, answer: Answer, complete: Callable[[float], Any]) -> None:
        by_worker = bool(self._reserved)
        self._release_memory()
        self._on_answer(complete(answer.elapsed_ms))
        self._record(answer, by_worker=by_worker)

    def _record(self, answer: Answer, *, by_worker: bool = False) -> None:
        """Record an answer that was sent now: it may be late although it was settled before its deadline."""
        if answer.reason != "overload":
            self._context.admission.ended(answer.elapsed_ms)
        late_ms, waited = now_ms() - self.machine.deadline_at, answer.reason == "deadline"
        counts = self._timer is not None and (waited or late_ms > 0)
        if counts:  # the margin is that of the timer; slots cover the time that the worker takes
            self._lateness.add(late_ms, waited=waited and not by_worker)
        self.record.answered(answer, late_ms if counts else None)


BYTES_A_NUMBER = 80  # of an answer while it is made: as float64 twice, and as text three times
MS_PER_NUMBER = 2e-4  # to make it, until it is measured


def encode_nothing(_: Literal["answer", "update"], answer: Answer) -> Callable[[float], Answer]:
    """Return the answer itself, for callers in the same process."""
    return lambda _: answer


def _ignore(_: object) -> None:
    """Do nothing with the answer or the error of a prediction that has ended."""
