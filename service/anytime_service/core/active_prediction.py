"""Alarms that strike on time, on event loops that count in whole milliseconds.

An event loop's timer is a rough tool: uvloop rounds a delay to milliseconds and counts it from a clock that stood still
since its turn began, so it fires up to .9 ms early (libuv#4773) or half a millisecond late. An alarm asks it for the
whole milliseconds that are left and spends the rest, less than one, going round the loop, which serves everything else
meanwhile. Nothing is cancelled and no task is woken on the way to the answer.

A process that was stopped, or a loop that was busy, calls its timers late, and before it has read what arrived in the
meantime. An alarm that is late lets the loop read its sockets first, so that the answer uses what they hold.

A prediction that is open: its alarm, what it holds, and the answer that leaves in time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from anytime.inference.answer import Answer
from anytime.inference.subsets import ArrivedModel
from anytime.model.model import Model
from anytime.types import Overload, Policy
from anytime_service.clock import now_ms
from anytime_service.core.open_prediction import OpenPrediction
from anytime_service.core.solver import Solver
from anytime_service.limits.admission import Admission
from anytime_service.limits.memory import Account
from anytime_service.telemetry.metrics import Metrics
from anytime_service.telemetry.record import PredictionRecord
from anytime_service.telemetry.tracing import Tracing

__all__ = [
    "SLACK_MS",
    "VALUE_BYTES",
    "ActivePrediction",
    "AnswerCallback",
    "Ask",
    "Context",
    "DeadlineTimer",
]

SLACK_MS = 0.2
"""An alarm may strike this much early, rather than go round the loop for so little."""

LATE_MS = 1.0
"""An alarm that wakes later than this lets the loop read its sockets before it calls back."""

READS = 3
"""How often the loop then reads its sockets: for the bytes, for a slice of them, for the task that decodes messages."""

READING_MS = 2.0
"""Time after which a late alarm calls back, even if the sockets have not been read so often."""


def _nothing() -> None:
    """Do nothing."""


class DeadlineTimer:
    """Calls back once, at `due_ms` by our clock; earlier by at most `SLACK_MS`, later while the loop is busy.

    Parameters
    ----------
    loop : the event loop that runs.
    due_ms : when, by `now_ms`.
    strike : called from the loop, never from the constructor.
    """

    __slots__ = ("_due_ms", "_handle", "_loop", "_strike")

    def __init__(self, loop: asyncio.AbstractEventLoop, due_ms: float, strike: Callable[[], None]) -> None:
        self._loop = loop
        self._due_ms = due_ms
        self._strike = strike
        self._handle = self._armed(due_ms - now_ms())

    def cancel(self) -> None:
        """Never strike. Safe at any time."""
        self._handle.cancel()
        self._strike = _nothing  # which has this alarm: together they would wait for the garbage collector

    def _armed(self, left_ms: float) -> asyncio.Handle:
        whole = int(left_ms)
        return self._loop.call_later(whole / 1000.0, self._wake) if whole > 0 else self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        now = now_ms()
        left_ms = self._due_ms - now
        if left_ms > SLACK_MS:
            self._handle = self._armed(left_ms)
        elif left_ms < -LATE_MS:
            self._read(now + READING_MS, READS)
        else:
            self._strike()

    def _read(self, until_ms: float, reads: int) -> None:
        """Call back once the loop has read its sockets `reads` more times, or `until_ms` is past."""
        if reads < 0 or now_ms() >= until_ms:  # below 0: uvloop calls timers before it reads, asyncio after
            self._strike()
        else:
            self._handle = self._loop.call_soon(self._read, until_ms, reads - 1)


VALUE_BYTES = 8
"""What a value takes, in whatever form it came."""

AnswerCallback = Callable[[Answer], None]

_log = logging.getLogger("anytime_service")


@dataclass(frozen=True, slots=True)
class Ask:
    """What a prediction is asked for, before any group; what is None was not said."""

    model: str | None = None
    rows: int | None = None
    budget: float | None = None
    deadline_ms: float | None = None
    policy: Policy = "prefix"
    ranking: bool = False
    overload: Overload = "refuse"
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What every open prediction of a service shares.

    Attributes
    ----------
    live : the open predictions.
    max_deadline_ms : the longest deadline, and that of a prediction without one.
    """

    live: set[ActivePrediction]
    signals: Metrics
    tracing: Tracing | None
    solver: Solver
    admission: Admission
    max_deadline_ms: float


class ActivePrediction:
    """An open prediction in time; events are those of `OpenPrediction`, without the time."""

    __slots__ = (
        "_account",
        "_alarm",
        "_context",
        "_fail",
        "_held",
        "_solve_due",
        "_tell",
        "_update",
        "answered",
        "on_end",
        "opened",
        "signals",
        "trail",
    )

    def __init__(
        self,
        context: Context,
        opened: OpenPrediction,
        tell: AnswerCallback,
        fail: Callable[[Exception], None],
        update: AnswerCallback | None,
        account: Account,
    ) -> None:
        self.opened = opened
        self.answered = False
        self._context = context
        self._account = account
        self.signals = context.signals.of(opened.model)
        self._tell = tell
        self._fail = fail
        self._update = update
        self._alarm: DeadlineTimer | None = None
        self._solve_due = False
        self._held = 0
        self.on_end: Callable[[], None] | None = None
        """Called when nobody waits any more."""

    @property
    def model(self) -> Model:
        """The model that answers; a prediction keeps the one it began with."""
        return self.opened.model

    def begin(self, ask: Ask, begun_ms: float, *, overloaded: bool = False) -> None:
        """Open, with the alarm set to the deadline; called by the handler. Answers at once if it is overloaded."""
        self.trail = PredictionRecord(self.signals, self._context.tracing, begun_ms, ask.traceparent)
        longest = self._context.max_deadline_ms
        deadline_ms = longest if ask.deadline_ms is None else min(ask.deadline_ms, longest)
        answer = self.opened.begin(
            begun_ms, ask.rows, ask.budget, deadline_ms, ask.policy, ranking=ask.ranking, overloaded=overloaded
        )
        if answer is None:
            self._context.live.add(self)
            self._account.live.add(self)
            # A deadline so short that the margin would take most of it keeps half.
            margin = min(self.signals.margin_ms, deadline_ms / 2)
            loop = asyncio.get_running_loop()
            # The alarm may strike a little early; that is part of the margin.
            early = max(margin - SLACK_MS, 0.0)
            self._alarm = DeadlineTimer(loop, begun_ms + deadline_ms - early, self.strike)
        self._after(answer)

    def group(self, name: str, values: Any, took_ms: float | None = None) -> None:
        """Take the values of one group; `took_ms` is what computing them took, where the client tells.

        Raises
        ------
        FieldError
            The values cannot be used.
        OverloadedError
            Too many bytes are held already. Either changes nothing.
        """
        now, again = now_ms(), self.opened.has(name)
        if not again:
            self._account.check(values.size * VALUE_BYTES, f"groups.{name}")
        answer = self.opened.group(now, name, values)
        self.trail.laps.came(name, now, took_ms, again and took_ms is None)
        self._hold()
        self._after(answer)

    def groups(self, values: Mapping[str, Any], came_ms: float | None = None) -> None:
        """Take several groups that came together, at `came_ms` if that is past; may raise as `group`."""
        self._account.check(sum(array.size for array in values.values()) * VALUE_BYTES, "groups")
        answer = self.opened.groups(now_ms() if came_ms is None else came_ms, values)
        self._hold()
        self._after(answer)

    def took(self, names: Iterable[str]) -> None:
        """Hear of groups that the shared prediction has taken."""
        self._safely(lambda: self.opened.took(now_ms(), names))

    def end(self) -> None:
        """Answer, as nothing more will come."""
        self._after(self.opened.end(now_ms()))

    def ended(self) -> None:
        """Answer because the shared prediction has ended; never raises."""
        self._safely(lambda: self.opened.end(now_ms()))

    def drain(self) -> None:
        """Answer, as the service is stopping."""
        self._safely(self._drained)

    def drop(self) -> None:
        """Forget the prediction: nobody waits for its answer. Safe at any time."""
        self.answered = True
        self._context.live.discard(self)
        self._account.live.discard(self)
        self._account.bytes -= self._held
        self._held = 0
        if self._alarm is not None:
            self._alarm.cancel()
        if self.on_end is not None:
            self.on_end()
            self.on_end = None

    def fail(self, error: Exception) -> None:
        """Send the error instead of an answer; never raises, because others may wait for theirs."""
        self.drop()
        try:
            self._fail(error)
        except Exception:
            _log.exception("an error of a prediction of model %r could not be sent", self.model.name)

    def strike(self) -> None:
        """Answer, as the deadline has struck; what can be solved on the spot still is."""
        self._safely(lambda: self._solved_on_the_spot() or self.opened.deadline(now_ms()))

    def _after(self, answer: Answer | None) -> None:
        """See to what an event leads to: an answer, something to solve, or scores to have at hand."""
        if answer is not None:
            self._leave(answer)
            return
        if self.opened.unsolved is not None:
            if not self._solve_due:  # once for all groups that are at hand
                self._solve_due = True
                asyncio.get_running_loop().call_soon(self._solve)
        elif self.opened.many:
            self.opened.prepare()
        self._tell_update()

    def _hold(self) -> None:
        """Account for the values that have been taken."""
        held = self.opened.nbytes
        self._account.bytes += held - self._held
        self._held = held

    def _solve(self) -> None:
        """Have the optimum found of what has arrived."""
        self._solve_due = False
        groups = self.opened.unsolved
        if groups is not None and not self.answered:
            self._context.solver.find(self.model, groups, lambda found: self._solved(groups, found))

    def _solved(self, groups: frozenset[str], found: ArrivedModel | None) -> None:
        if not self.answered:
            self._safely(lambda: self.opened.solved(now_ms(), groups, found))

    def _drained(self) -> Answer:
        solved = self._solved_on_the_spot()
        return self.opened.drain(now_ms()) if solved is None else replace(solved, reason="draining")

    def _solved_on_the_spot(self) -> Answer | None:
        """Take the optimum of what has arrived, if it can be had at once; the answer, if it only waited for that."""
        groups = self.opened.unsolved
        found = None if groups is None else self._context.solver.at_once(self.model, groups)
        return None if groups is None or found is None else self.opened.solved(now_ms(), groups, found)

    def _safely(self, event: Callable[[], Answer | None]) -> None:
        """Apply an event that this prediction's own client did not send; only that client is told of a failure."""
        try:
            self._after(event())
        except Exception as error:
            with self.trail.request():
                _log.exception("a prediction of model %r failed", self.model.name)
                self.fail(error)

    def _tell_update(self) -> None:
        if self._update is not None and not self.answered:
            better = self.opened.update(now_ms())
            if better is not None:
                self._update(better)

    def _leave(self, answer: Answer) -> None:
        self.drop()
        self._tell(answer)
        if answer.reason != "overload":
            self._context.admission.ended(answer.elapsed_ms)
        late_ms = None
        if answer.reason == "deadline" and self._alarm is not None and self.opened.deadline_at is not None:
            late_ms = now_ms() - self.opened.deadline_at
        self.trail.answered(answer, late_ms)
