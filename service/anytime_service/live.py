"""A prediction that is open: its alarm, what it holds, and the answer that leaves in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from anytime.inference.answer import Answer
from anytime.inference.subsets import ArrivedModel
from anytime.model.model import Model
from anytime.types import Overload, Policy
from anytime_service.accounts import Account
from anytime_service.clock import now_ms
from anytime_service.deadlines import SLACK_MS, Alarm
from anytime_service.protocol import OpenPrediction
from anytime_service.trail import Trail

if TYPE_CHECKING:
    from anytime_service.handler import Handler

__all__ = ["VALUE_BYTES", "Ask", "Live", "Tell"]

VALUE_BYTES = 8
"""What a value takes, in whatever form it came."""

Tell = Callable[[Answer], None]

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


class Live:
    """An open prediction in time; events are those of `OpenPrediction`, without the time."""

    __slots__ = (
        "_account",
        "_alarm",
        "_fail",
        "_handler",
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
        handler: Handler,
        opened: OpenPrediction,
        tell: Tell,
        fail: Callable[[Exception], None],
        update: Tell | None,
        account: Account,
    ) -> None:
        self.opened = opened
        self.answered = False
        self._handler = handler
        self._account = account
        self.signals = handler.signals.of(opened.model)
        self._tell = tell
        self._fail = fail
        self._update = update
        self._alarm: Alarm | None = None
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
        self.trail = Trail(self.signals, self._handler.tracing, begun_ms, ask.traceparent)
        longest = self._handler.settings.max_deadline_ms
        deadline_ms = longest if ask.deadline_ms is None else min(ask.deadline_ms, longest)
        answer = self.opened.begin(
            begun_ms, ask.rows, ask.budget, deadline_ms, ask.policy, ranking=ask.ranking, overloaded=overloaded
        )
        if answer is None:
            self._handler.live.add(self)
            self._account.live.add(self)
            # A deadline so short that the margin would take most of it keeps half.
            margin = min(self.signals.margin_ms, deadline_ms / 2)
            loop = asyncio.get_running_loop()
            # The alarm may strike a little early; that is part of the margin.
            early = max(margin - SLACK_MS, 0.0)
            self._alarm = Alarm(loop, begun_ms + deadline_ms - early, self.strike)
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
        self._handler.live.discard(self)
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
            self._handler.solver.find(self.model, groups, lambda found: self._solved(groups, found))

    def _solved(self, groups: frozenset[str], found: ArrivedModel | None) -> None:
        if not self.answered:
            self._safely(lambda: self.opened.solved(now_ms(), groups, found))

    def _drained(self) -> Answer:
        solved = self._solved_on_the_spot()
        return self.opened.drain(now_ms()) if solved is None else replace(solved, reason="draining")

    def _solved_on_the_spot(self) -> Answer | None:
        """Take the optimum of what has arrived, if it can be had at once; the answer, if it only waited for that."""
        groups = self.opened.unsolved
        found = None if groups is None else self._handler.solver.at_once(self.model, groups)
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
            self._handler.admission.ended(answer.elapsed_ms)
        late_ms = None
        if answer.reason == "deadline" and self._alarm is not None and self.opened.deadline_at is not None:
            late_ms = now_ms() - self.opened.deadline_at
        self.trail.answered(answer, late_ms)
