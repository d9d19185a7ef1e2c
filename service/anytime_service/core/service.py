"""Prediction service that all transports share: it opens, admits and drains predictions.

A transport opens a prediction with the options of the request and with a sink, and passes on the events that it
receives: groups, amended options, the end. The deadline timer, the solver and the drain of a stopping server produce
the other events. The sink receives updates, and then exactly one answer or error, from within the event that ends the
prediction or, if the worker makes the answer, after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol

from anytime._files import memory_limit
from anytime.errors import AnytimeError
from anytime.inference.deadline import early_ms
from anytime.inference.prediction import Answer, Prediction, Settled
from anytime.inference.subsets import ArrivedModel
from anytime.model.model import Model
from anytime_service.clock import now_ms
from anytime_service.core.open_prediction import Limits, OpenPrediction, Result
from anytime_service.core.solver import Solver
from anytime_service.errors import OverloadedError, UnknownModelError
from anytime_service.keys import KeyRing
from anytime_service.limits.admission import Admission, measure_cycles
from anytime_service.limits.memory import Account, Accounts
from anytime_service.limits.table import INLINE
from anytime_service.limits.tuning import TUNING, Tuning
from anytime_service.limits.turns import SLACK_MS, DeadlineTimer, TimeoutQueue, Turns
from anytime_service.limits.worker import Slot, Worker
from anytime_service.models.registry import ModelRegistry, reloaded
from anytime_service.schemas.messages import ListLimits
from anytime_service.schemas.options import PredictionOptions
from anytime_service.settings import Settings
from anytime_service.telemetry.context import CURRENT, on_behalf_of
from anytime_service.telemetry.logs import log_answer
from anytime_service.telemetry.metrics import GroupTimings, Metrics, SessionTimings
from anytime_service.telemetry.tracing import Tracing

LEAD_MS = 100.0  # before a deadline that is not the request's own, its timer starts: one takes as long as two groups
BYTES_A_NUMBER = 80  # of an answer while the worker makes it: as float64 twice, and as text three times

_log = logging.getLogger("anytime_service")


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
    sent: the worker makes one of many rows for some time. `on_end` is called with the prediction once, when it is
    answered, fails or is dropped. The constructor begins the prediction, and may answer it; raises as
    `PredictionService.open`.
    """

    def __init__(
        self,
        service: PredictionService,
        model: Model,
        options: PredictionOptions,
        begun_ms: float,
        sink: Sink,
        account: Account,
        shared: Prediction | None,
        *,
        overloaded: bool,
    ) -> None:
        self.model = model
        self.machine = OpenPrediction(model, shared, service.limits)
        self.timings = GroupTimings(service.metrics.of(model), begun_ms, options.rows)
        self.answered = False
        self.done = False
        self.on_end: Callable[[ActivePrediction], None] | None = None
        self._service = service
        self._sink = sink
        self._account = account
        self._context = CURRENT.get()
        self._origin = None if service.tracing is None else service.tracing.origin(options.traceparent)
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
        self.timings.rows = options.rows
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
        early = max(early_ms(self.timings.metrics.lateness.margin_ms, due_ms - begun_ms) - SLACK_MS, 0.0)
        if self._slot is not None:
            due_ms = min(due_ms, max(self._slot[0], (begun_ms + due_ms) / 2))
        self._timer = DeadlineTimer(asyncio.get_running_loop(), service.turns, due_ms - early, self.expire)

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
        now, prediction, timings = received_ms or now_ms(), self.machine.prediction, self.timings
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
            with on_behalf_of(self._context):
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
                self.on_end(self)
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
            if machine.prediction.rows > 1:
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
        numbers = self.machine.numbers(rows) if self.timings.rows is None else 0
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
        return numbers * self.timings.metrics.ms_per_number.expected_ms(now_ms() / 1000.0)

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

        def work() -> tuple[float, Answer, Any]:
            begun_ms, answer = now_ms(), settled.make_arrays()
            return begun_ms, answer, self._sink.encode(answer)

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
        self.timings.metrics.ms_per_number.add((now - begun_ms) / numbers, now / 1000.0)
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
        metrics, waited = self.timings.metrics, answer.reason == "deadline"
        after_ms = now_ms() - self.machine.deadline_at
        late_ms = after_ms if self._timer is not None and (waited or after_ms > 0) else None
        if late_ms is not None:  # the margin is that of the timer; slots cover the time that the worker takes
            metrics.lateness.add(late_ms, waited=waited and not by_worker)
        metrics.answered(answer, late_ms)
        if service.tracing is not None and self._origin is not None:
            try:
                service.tracing.answered(self._origin, answer, late_ms)
            except Exception:  # the answer was sent: the prediction has not failed
                _log.exception("could not make the span of a prediction")
        if _log.isEnabledFor(logging.DEBUG):
            with on_behalf_of(self._context):
                log_answer(answer, late_ms)


class PredictionService:
    """Service that opens predictions under its limits, and ends them when it drains; a reload replaces `registry`.

    `turns` hands out the time of the loop. `without_deadline` are predictions without a deadline of their own, whose
    timers start `LEAD_MS` before that of the server.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        settings: Settings,
        tracing: Tracing | None = None,
        keys: KeyRing | None = None,
        tuning: Tuning = TUNING,
    ) -> None:
        self.registry = registry
        self.settings = settings
        self.tuning = tuning
        self.tracing = tracing
        self.metrics = metrics = Metrics()
        metrics.set_served(registry.every())
        self.session_timings = SessionTimings(settings.max_sessions)
        self.solver = Solver(settings.max_solve_ms, tuning)
        self.worker = Worker(metrics.shed.labels("refused", "pages").inc)
        self.active: set[ActivePrediction] = set()
        self.list_limits = ListLimits(settings.max_json_bytes, settings.max_json_values)
        self.limits = Limits(settings.max_deadline_ms, settings.max_rows, int(INLINE), tuning.max_contributions)
        self.draining = False
        self.admission = Admission(settings.max_lateness_ms, self.active.__len__, self._measure)
        self.memory = Account(settings.max_held_bytes, metrics.shed.labels("refused", "memory").inc)
        self.accounts = Accounts(self.memory, settings.max_share_per_key, keys)
        self.turns = Turns()
        lead_s = max(settings.max_deadline_ms - LEAD_MS, 0.0) / 1000.0
        self.without_deadline = TimeoutQueue(lead_s, ActivePrediction.start_timer)
        self._reloading = asyncio.Lock()
        self._shed = {how: metrics.shed.labels(how, "lateness") for how in ("refused", "prior")}
        metrics.gauges["open_predictions"].set_function(self.active.__len__)
        metrics.gauges["held_bytes"].set_function(lambda: self.memory.bytes)
        metrics.gauges["memory_limit_bytes"].set(memory_limit() or 0)
        metrics.gauges["predicted_lateness_seconds"].set_function(
            lambda: self.admission.predicted_ms(now_ms()) / 1000.0
        )

    def _measure(self) -> None:
        self._measuring = asyncio.get_running_loop().create_task(measure_cycles(self.admission))

    @property
    def unready(self) -> str | None:
        """Why the service begins no predictions, for every route that reports readiness; None if it begins them."""
        without = None if self.registry.models else "no model is loaded"
        return "the service is stopping" if self.draining else without

    def open(
        self,
        options: PredictionOptions,
        begun_ms: float,
        sink: Sink,
        *,
        shared: Prediction | None = None,
        admitted: bool = True,
        account: Account | None = None,
    ) -> ActivePrediction:
        """Open a prediction; this may send the answer to the sink before it returns.

        Raise UnknownModelError, FieldError if an option is invalid, and OverloadedError if the server cannot answer in
        time, too many predictions are open, or the service is stopping.

        Parameters
        ----------
        begun_ms : float
            Time of the request, from which its deadline counts.
        shared : Prediction | None
            The groups of a session.
        admitted : bool
            What `admits` returned for this request.
        """
        account = account or self.accounts.anonymous
        self.check_capacity(account)
        if not admitted:
            self.shed("prior" if options.overload == "prior" else "refused")
            if options.overload != "prior":
                raise self.overloaded()
        model = shared.model if shared is not None else self.registry.get(options.model)
        if shared is not None and not admitted:
            shared = Prediction(model, shared.rows)  # the same number of rows, no groups
        return ActivePrediction(self, model, options, begun_ms, sink, account, shared, overloaded=not admitted)

    def admits(self, now_ms: float, decided: bool | None = None) -> bool:
        """Return whether a prediction requested now begins: once for each, `decided` if the server did so before."""
        return self.admission.admits(now_ms) if decided is None else decided

    def check_capacity(self, account: Account) -> None:
        """Raise OverloadedError if the service, or the key of an account, may not open more predictions."""
        if account.share_exhausted(len(account.active), self.settings.max_open):
            self.metrics.shed.labels("refused", "open").inc()
            raise account.share_error(len(account.active), self.settings.max_open, "open predictions")
        if self.draining or len(self.active) >= self.settings.max_open:
            self.metrics.shed.labels("refused", "stopping" if self.draining else "open").inc()
            why = "the service is stopping" if self.draining else f"{len(self.active)} predictions are open already"
            raise OverloadedError(f"{why}; retry in a second, or use another replica")

    def shed(self, how: Literal["refused", "prior"]) -> None:
        """Count a prediction that was not admitted because of its predicted lateness: "prior" got the base rate."""
        self._shed[how].inc()

    def overloaded(self, retry_after_s: int | None = None) -> OverloadedError:
        """Return the error for a prediction that was not admitted because of its predicted lateness."""
        seconds = retry_after_s or self.admission.retry_after_s()
        after = "a second" if seconds == 1 else f"{seconds} seconds"
        return OverloadedError(
            f"the server has more requests than it can answer in time; retry in {after}, use another replica, or set"
            " overload=prior for the base rate",
            retry_after_s=seconds,
        )

    async def reload(self, name: str | None = None, *, force: bool = False) -> None:
        """Reload models in a thread, and log it in one line; open predictions continue with their models.

        Raises as `registry.reloaded`.
        """
        async with self._reloading:
            before = {model.name: model.version for model in self.registry}
            try:
                self.registry = await asyncio.to_thread(reloaded, self.registry, name, force=force)
            except UnknownModelError:  # a mistake of the client, which reloads nothing
                raise
            except Exception as error:
                self.metrics.reloads.labels("failed").inc()
                _log.error(
                    "could not reload %s; the previous ones stay in use: %s",
                    "the models" if name is None else f"model {name!r}",
                    error,
                )
                raise
            self.metrics.reloads.labels("ok").inc()
            self.metrics.set_served(self.registry.every())
            changes = (
                f"{model.name!r} {before.get(model.name, 'none')} -> {model.version}"
                for model in self.registry
                if name in (None, model.name)
            )
            _log.info("models reloaded: %s", ", ".join(changes))

    def drain(self) -> None:
        self.draining = True
        for active in tuple(self.active):
            active.drain()
