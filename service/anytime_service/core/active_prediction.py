"""Active predictions: an open prediction with its deadline timer, its memory and its sink.

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
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from anytime.errors import AnytimeError
from anytime.inference.deadline import STALL_S, Durations, LatenessRecord, LateReading, early_ms
from anytime.inference.prediction import Answer, Prediction, Settled
from anytime.inference.subsets import ArrivedModel
from anytime.model.model import Model
from anytime_service.clock import now_ms
from anytime_service.core.open_prediction import Limits, OpenPrediction, Result
from anytime_service.core.solver import Solver
from anytime_service.errors import OverloadedError
from anytime_service.limits.admission import Admission
from anytime_service.limits.memory import Account
from anytime_service.limits.queues import TimeoutQueue
from anytime_service.limits.turns import FairQueue, Turns
from anytime_service.limits.worker import Slot, Worker
from anytime_service.schemas.options import PredictionOptions
from anytime_service.telemetry.metrics import Metrics
from anytime_service.telemetry.records import PredictionRecord
from anytime_service.telemetry.tracing import Tracing

MS_PER_NUMBER = 2e-4  # time in which the worker makes a number of an answer, until it is measured
LEAD_MS = 100.0  # before a deadline that is not the request's own, its timer starts: one takes as long as two groups
BYTES_A_NUMBER = 80  # of an answer while the worker makes it: as float64 twice, and as text three times
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


_log = logging.getLogger("anytime_service")


class Resources:
    """What the predictions of a service share; a `PredictionService` makes it."""

    active: set[ActivePrediction]
    admission: Admission
    limits: Limits
    metrics: Metrics
    solver: Solver
    tracing: Tracing | None
    turns: Turns
    without_deadline: TimeoutQueue[ActivePrediction]
    """Predictions without a deadline of their own, whose timers start `LEAD_MS` before that of the server."""
    worker: Worker
    _times: dict[str, tuple[LatenessRecord, Durations]]

    def times(self, model: Model) -> tuple[LatenessRecord, Durations]:
        """Return the lateness of the answers of a model, and how long the worker takes for a number of one, in ms."""
        times = self._times.get(model.name)
        if times is None:
            times = self._times[model.name] = LatenessRecord(), Durations(MS_PER_NUMBER)
            self.metrics.of(model).show_margin(lambda: times[0].margin_ms)
        return times


class Sink(Protocol):
    """Where the answer of a prediction goes, and its updates; each transport has its own."""

    def encode(self, answer: Answer) -> Any:
        """Return what `send` needs of an answer or update, which has no reason; the worker calls it if it is large."""

    def send(self, encoded: Any, elapsed_ms: float) -> None:
        """Send an answer or update that is sent `elapsed_ms` after the begin."""

    def fail(self, error: Exception) -> None:
        """Send the error instead of an answer."""


class ActivePrediction:
    """An open prediction with a clock and a sink; its events are those of `OpenPrediction`, without the time argument.

    `answered` is whether the answer is settled, after which the prediction accepts no event; `done` whether it was
    sent: the worker makes one of many rows for some time. `on_end` is called once when the prediction is answered,
    fails or is dropped. The constructor begins the prediction, and may answer it; raises as `PredictionService.open`.
    """

    def __init__(
        self,
        service: Resources,
        model: Model,
        options: PredictionOptions,
        begun_ms: float,
        sink: Sink,
        account: Account,
        shared: Prediction | None,
        *,
        overloaded: bool,
    ) -> None:
        metrics = service.metrics.of(model)
        self.model = model
        self.machine = OpenPrediction(model, shared, service.limits)
        self.record = PredictionRecord(metrics, service.tracing, begun_ms, options.traceparent, options.rows)
        self.answered = False
        self.done = False
        self.on_end: Callable[[], None] | None = None
        self._service = service
        self._sink = sink
        self._account = account
        self._lateness, self._durations = service.times(model)
        self._making: asyncio.Future[Any] | None = None  # the answer or update that the worker makes
        self._timer: DeadlineTimer | None = None
        self._solve_due = False
        self._stored = 0
        self._reserved = 0  # bytes in which the answer is made
        self._slot: Slot | None = None  # when it is made
        self._begun(self.machine.begin(begun_ms, options, overloaded=overloaded))

    def amend(self, options: PredictionOptions, *, overloaded: bool = False) -> None:
        """Replace the options, as those of a body that has arrived after its head; raises as the constructor."""
        result = self.machine.amend(now_ms(), options, overloaded=overloaded)
        self._release()
        self.answered = False
        self._timer = None
        self.record.timings.rows = options.rows
        self._begun(result)

    def _begun(self, result: Result | None) -> None:
        """Check and reserve memory and time, and start the deadline timer unless the prediction is answered."""
        service, prediction = self._service, self.machine.prediction
        numbers = self.machine.numbers(prediction.rows)
        if numbers:
            self._check(numbers, prediction.nbytes)  # a snapshot may need the values of a session
            self._reserve()
        if result is None:
            service.active.add(self)
            self._account.active.add(self)
            fresh = now_ms() - self.machine.begun_ms < LEAD_MS / 2  # the queue counts from now, not from the begin
            if fresh and self.machine.options.deadline_ms is None and service.limits.max_deadline_ms > LEAD_MS:
                service.without_deadline.begin(self)
            else:
                self.start_timer()
        self._after(result)

    def start_timer(self) -> None:
        """Start the deadline timer."""
        machine, service = self.machine, self._service
        due_ms, begun_ms = machine.deadline_at, machine.begun_ms
        # The timer may fire a little early; that is part of the margin.
        early = max(early_ms(self._lateness.margin_ms, due_ms - begun_ms) - SLACK_MS, 0.0)
        if self._slot is not None:
            due_ms = min(due_ms, max(self._slot[0], (begun_ms + due_ms) / 2))
        self._timer = DeadlineTimer(
            asyncio.get_running_loop(), due_ms - early, self.expire, lambda: service.turns.unread, service.turns.due
        )

    def groups(
        self,
        values: Mapping[str, Any],
        received_ms: float | None = None,
        *,
        alone: bool = False,
        took_ms: float | None = None,
    ) -> None:
        """Accept groups that arrived together, at `received_ms` or now.

        The time of a group that arrived `alone` is recorded; `took_ms` is what the client reports of it, if anything.

        Raise FieldError if the values are invalid, and OverloadedError if they, or the answer for their rows, exceed
        the memory budget, or the answer would be late. The prediction does not change then.
        """
        now, prediction, timings = received_ms or now_ms(), self.machine.prediction, self.record.timings
        before = prediction.replacements
        result = self.machine.groups(now, values, self._allow)
        if timings.rows is None:
            timings.rows = prediction.rows
            if self.machine.numbers(prediction.rows):
                self._reserve()
        self._store(prediction.nbytes)
        if alone:
            again = took_ms is None and prediction.replacements > before
            timings.received(next(iter(values)), now, took_ms, again)
        self._after(result)

    def took(self, names: Iterable[str]) -> None:
        """Note groups that the shared prediction has accepted. Never raises."""
        self._reserve()
        self.apply(lambda machine, now: machine.took(now, names))

    def end(self) -> None:
        self._after(self.machine.end(now_ms()))

    def expire(self) -> None:
        """Answer because the deadline has expired, with the optimum if it is available at once. Never raises."""
        self.apply(lambda machine, now: machine.deadline(now, self._optimum()))

    def drain(self) -> None:
        """Answer because the service is stopping, with the optimum if it is available at once. Never raises."""
        self.apply(lambda machine, now: machine.drain(now, self._optimum()))

    def apply(self, event: Callable[[OpenPrediction, float], Result | None]) -> None:
        """Apply an event that the client did not send; report a failure only to the client of this prediction."""
        try:
            self._after(event(self.machine, now_ms()))
        except Exception as error:
            with self.record.request():
                _log.exception("a prediction of model %r failed", self.model.name)
                self.fail(error)

    def drop(self) -> None:
        """Cancel the prediction and release its resources. Idempotent."""
        self._release()
        if self._making is not None:
            self._making.cancel()
            self._making = None

    def fail(self, error: Exception) -> None:
        """Send the error instead of an answer. Never raises, because it must not affect other predictions."""
        self._release()
        self.done = True
        try:
            self._sink.fail(error)
        except Exception:
            _log.exception("sending the error of a prediction of model %r failed", self.model.name)

    def _release(self, *, memory: bool = True) -> None:
        """Accept no further event, and release what the prediction uses; the worker still needs its memory."""
        if not self.answered:
            self.answered = True
            self._service.active.discard(self)
            self._account.active.discard(self)
            if self._slot is not None:
                self._service.worker.free(self._slot)
                self._slot = None
            if self._timer is None:
                self._service.without_deadline.end(self)
            else:
                self._timer.cancel()
            if self.on_end is not None:
                self.on_end()
                self.on_end = None
        if memory:
            self._store(0)
            if self._reserved:
                self._account.reserve_answer(0, self._reserved)
                self._reserved = 0

    def _after(self, result: Result | None) -> None:
        """Send the answer that an event returned, or else start solving, precompute scores and send an update."""
        machine = self.machine
        if result is not None:
            self._release(memory=not isinstance(result, Settled))
        elif not machine.solving:
            machine.prepare()
        elif not self._solve_due:  # solve once for all groups that arrive in this turn of the loop
            self._solve_due = True
            self._service.turns.work.submit(self._solve)
        if result is None and machine.options.updates and self._making is None:
            result = machine.update(now_ms())
        if isinstance(result, Settled):
            self._make(result)
        elif result is not None:
            try:
                encoded = self._sink.encode(result)
            except AnytimeError as error:
                if not self.answered:  # it is an update
                    raise
                self.fail(error)
            else:
                self._deliver(result, encoded)

    def allow(self, rows: int, more: int = 0, field: str | None = None) -> None:
        """Raise OverloadedError if the answer for some rows, and `more` bytes of values, do not fit into the memory."""
        numbers = self.machine.numbers(rows)
        if numbers:
            self._account.check_answer(numbers * BYTES_A_NUMBER, more, field)

    def _allow(self, rows: int, more: int, field: str) -> None:
        """Raise OverloadedError if the values of groups do not fit, or the answer for the rows that they define."""
        numbers = self.machine.numbers(rows) if self.record.timings.rows is None else 0
        if numbers:
            self._check(numbers, more, field)
        else:
            self._account.check(more, field)

    def _check(self, numbers: int, more: int, field: str | None = None) -> None:
        """Raise OverloadedError if an answer does not fit into the memory, or not into the second half of its time."""
        self._account.check_answer(numbers * BYTES_A_NUMBER, more, field)
        machine, service = self.machine, self._service
        took_ms, due_ms, now = self._took_ms(numbers), machine.deadline_at, now_ms()
        alone = due_ms - took_ms  # when the only answer would begin, maybe before now
        soonest = max(min((machine.begun_ms + due_ms) / 2, alone), min(now, alone) + service.worker.queued_ms)
        if soonest - service.worker.begin_ms(due_ms, took_ms) > service.admission.max_lateness_ms:
            service.metrics.shed.labels("refused", "lateness").inc()
            raise OverloadedError(
                "the server has more answers of many rows than it can make in time; retry in a second, use another"
                " replica, or send fewer rows or a later deadline"
            )

    def _took_ms(self, numbers: int) -> float:
        return numbers * self._durations.expected_ms(now_ms() / 1000.0)

    def _reserve(self) -> None:
        """Reserve the memory in which the worker makes the answer, and the time."""
        numbers = self.machine.numbers(self.machine.prediction.rows)
        if numbers * BYTES_A_NUMBER == self._reserved or self.answered:
            return
        self._account.reserve_answer(numbers * BYTES_A_NUMBER, self._reserved)
        self._reserved = numbers * BYTES_A_NUMBER
        if self._slot is not None:
            self._service.worker.free(self._slot)
        self._slot = self._service.worker.reserve(self.machine.deadline_at, self._took_ms(numbers))
        if self._timer is not None:
            self._timer.cancel()
            self.start_timer()

    def _store(self, nbytes: int) -> None:
        """Count the bytes of the values that the prediction stores."""
        if nbytes != self._stored:
            self._account.add(nbytes - self._stored)
            self._stored = nbytes

    def _solve(self) -> None:
        self._solve_due = False
        groups = None if self.answered else self.machine.unsolved
        if groups is not None:
            self._service.solver.find(self.model, groups, partial(self._solved, groups))
        elif not self.answered:
            self.machine.prepare()

    def _solved(self, groups: frozenset[str], found: ArrivedModel | None) -> None:
        if not self.answered:
            self.apply(lambda machine, now: machine.solved(now, groups, found))

    def _optimum(self) -> ArrivedModel | None:
        """Return the optimum of the received groups if the prediction needs it and it is available at once."""
        groups = self.machine.unsolved
        return None if groups is None else self._service.solver.at_once(self.model, groups)

    def _make(self, settled: Settled) -> None:
        """Have the worker make and encode an answer or update."""
        encode = self._sink.encode

        def work() -> tuple[float, Answer, Any]:
            begun_ms, answer = now_ms(), settled.make_arrays()
            return begun_ms, answer, encode(answer)

        if self._making is not None:
            self._making.cancel()
        # Also of a session: if a group is replaced meanwhile, the answer has the only reference.
        self._store(self.machine.prediction.nbytes)
        due = (self.machine.deadline_at, self._took_ms(settled.numbers)) if settled.fields["reason"] else ()
        self._making = self._service.worker.answer(work, *due)
        self._making.add_done_callback(partial(self._made, settled.numbers))

    def _made(self, numbers: int, making: asyncio.Future[tuple[float, Answer, Any]]) -> None:
        """Send an answer or update that the worker has made, unless it was cancelled."""
        if making is not self._making or making.cancelled():
            return
        self._making = None
        try:
            begun_ms, answer, encoded = making.result()
        except Exception as error:
            if not isinstance(error, AnytimeError):
                _log.error("a prediction of model %r failed", self.model.name, exc_info=error)
            self.fail(error)
            return
        now = now_ms()
        self._durations.add((now - begun_ms) / numbers, now / 1000.0)
        self._deliver(replace(answer, elapsed_ms=now - self.machine.begun_ms), encoded)

    def _deliver(self, answer: Answer, encoded: Any) -> None:
        """Send an encoded answer or update, and record an answer: it may be late although it was settled in time."""
        if answer.reason is None:
            if not self.answered:
                self._sink.send(encoded, answer.elapsed_ms)
            return
        by_worker, service = bool(self._reserved), self._service
        self._release()
        self.done = True
        self._sink.send(encoded, answer.elapsed_ms)
        if answer.reason != "overload":
            service.admission.ended(answer.elapsed_ms)
        late_ms, waited = now_ms() - self.machine.deadline_at, answer.reason == "deadline"
        counts = self._timer is not None and (waited or late_ms > 0)
        if counts:  # the margin is that of the timer; slots cover the time that the worker takes
            self._lateness.add(late_ms, waited=waited and not by_worker)
        self.record.answered(answer, late_ms if counts else None)
