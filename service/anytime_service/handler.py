"""What every transport shares: a prediction that is open, its alarm, and the answer that leaves in time.

A transport opens a prediction with what was asked and two callables, one for the answer and one for updates. It hands
on the events that come by its wire; the alarm, the solver and the drain of a server that stops bring the others. The
answer is told once, from inside whichever of them brought it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from anytime.answer import Answer, Policy
from anytime.arrived import ArrivedModel
from anytime.model import AnytimeModel
from anytime.prediction import Prediction
from anytime_service.clock import now_ms
from anytime_service.deadlines import SLACK_MS, Alarm
from anytime_service.errors import FieldError, OverloadedError
from anytime_service.laps import SessionLaps
from anytime_service.protocol import OpenPrediction
from anytime_service.registry import ModelRegistry, reloaded
from anytime_service.settings import Settings
from anytime_service.signals import Signals
from anytime_service.solving import Solver
from anytime_service.tracing import Tracing
from anytime_service.trail import Trail

__all__ = ["Ask", "Handler", "Live"]

_log = logging.getLogger("anytime_service")

Tell = Callable[[Answer], None]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a prediction is asked for, before any group; what is None was not said."""

    model: str | None = None
    rows: int | None = None
    budget: float | None = None
    deadline_ms: float | None = None
    policy: Policy = "prefix"
    ranking: bool = False
    traceparent: str | None = None


class Handler:
    """Opens predictions, under the limits of one service, and ends them when it drains.

    Parameters
    ----------
    registry : the models to answer from; may be replaced by another at any time.
    tracing : makes the spans of predictions, where they are wanted.
    """

    def __init__(self, registry: ModelRegistry, settings: Settings, tracing: Tracing | None = None) -> None:
        self.registry = registry
        self.settings = settings
        self.tracing = tracing
        self.signals = Signals()
        self.signals.serves(registry.every())
        self.session_laps = SessionLaps(settings.max_sessions)
        self.solver = Solver(settings.max_solve_ms)
        self.live: set[Live] = set()
        self.draining = False
        self._reloading = asyncio.Lock()
        self.signals.open.set_function(lambda: len(self.live))

    def open(
        self,
        ask: Ask,
        begun_ms: float,
        tell: Tell,
        fail: Callable[[Exception], None],
        *,
        update: Tell | None = None,
        shared: Prediction | None = None,
    ) -> Live:
        """Open a prediction; `tell` may be called at once.

        Parameters
        ----------
        begun_ms : when it was asked for, from which its deadline counts.
        tell : called once with the answer.
        fail : called instead if there is none by a fault of ours, met when nobody is there to catch it.
        update : called with better answers before, where they are wanted.
        shared : the groups of a session.

        Raises
        ------
        UnknownModelError
            There is no such model.
        FieldError
            Something was asked for that cannot be.
        OverloadedError
            Too many predictions are open, or the service is stopping.
        """
        self.check_room()
        model = shared.model if shared is not None else self.registry.get(ask.model)
        most = self.settings.max_rows
        if ask.rows is not None and not 1 <= ask.rows <= most:
            raise FieldError("rows", f"rows is {ask.rows}; expected 1 to {most}, in several predictions if more")
        live = Live(self, OpenPrediction(model, shared), tell, fail, update)
        live.begin(ask, begun_ms)
        return live

    def check_room(self) -> None:
        """Raise OverloadedError where nothing more may be opened."""
        if self.draining or len(self.live) >= self.settings.max_open:
            why = "the service is stopping" if self.draining else f"{len(self.live)} predictions are open already"
            raise OverloadedError(f"{why}; ask again in a second, or another replica")

    async def reload(self, name: str | None = None) -> None:
        """Load models again beside the event loop; what is open keeps the models it began with.

        Raises
        ------
        RegistryError, ArtifactError, UnknownModelError
            A model cannot be loaded; everything stays as it was. See `registry.reloaded`.
        """
        async with self._reloading:
            with self.signals.reloading():
                self.registry = await asyncio.to_thread(reloaded, self.registry, name)
            self.signals.serves(self.registry.every())

    def drain(self) -> None:
        """Answer everything that is open, and open nothing more."""
        self.draining = True
        for live in tuple(self.live):
            live.drain()

    def close(self) -> None:
        """End what runs beside the event loop."""
        self.solver.close()


class Live:
    """An open prediction in time; events are those of `OpenPrediction`, without the time."""

    __slots__ = (
        "_alarm",
        "_fail",
        "_handler",
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
    ) -> None:
        self.opened = opened
        self.answered = False
        self._handler = handler
        self.signals = handler.signals.of(opened.model)
        self._tell = tell
        self._fail = fail
        self._update = update
        self._alarm: Alarm | None = None
        self._solve_due = False
        self.on_end: Callable[[], None] | None = None
        """Called when nobody waits any more."""

    @property
    def model(self) -> AnytimeModel:
        """The model that answers; a prediction keeps the one it began with."""
        return self.opened.model

    def begin(self, ask: Ask, begun_ms: float) -> None:
        """Open, with the alarm set to the deadline; called by the handler."""
        self.trail = Trail(self.signals, self._handler.tracing, begun_ms, ask.traceparent)
        longest = self._handler.settings.max_deadline_ms
        deadline_ms = longest if ask.deadline_ms is None else min(ask.deadline_ms, longest)
        answer = self.opened.begin(begun_ms, ask.rows, ask.budget, deadline_ms, ask.policy, ranking=ask.ranking)
        if answer is None:
            self._handler.live.add(self)
            # A deadline so short that the margin would take most of it keeps half.
            margin = min(self.signals.margin_ms, deadline_ms / 2)
            loop = asyncio.get_running_loop()
            # The alarm may strike a little early; that is part of the margin.
            early = max(margin - SLACK_MS, 0.0)
            self._alarm = Alarm(loop, begun_ms + deadline_ms - early, self.strike)
        self._after(answer)

    def group(self, name: str, values: Any, took_ms: float | None = None) -> None:
        """Take the values of one group; `took_ms` is what computing them took, where the client tells."""
        now = now_ms()
        again = took_ms is None and self.opened.has(name)
        answer = self.opened.group(now, name, values)
        self.trail.laps.came(name, now, took_ms, again)
        self._after(answer)

    def groups(self, values: Mapping[str, Any], came_ms: float | None = None) -> None:
        """Take several groups that came together, at `came_ms` if that is past."""
        self._after(self.opened.groups(now_ms() if came_ms is None else came_ms, values))

    def took(self, names: Iterable[str]) -> None:
        """Hear of groups that the shared prediction has taken."""
        self._safely(lambda: self.opened.took(now_ms(), names))

    def end(self) -> None:
        """Answer, as nothing more will come."""
        self._after(self.opened.end(now_ms()))

    def drain(self) -> None:
        """Answer, as the service is stopping."""
        self._safely(self._drained)

    def drop(self) -> None:
        """Forget the prediction: nobody waits for its answer. Safe at any time."""
        self.answered = True
        self._handler.live.discard(self)
        if self._alarm is not None:
            self._alarm.cancel()
        if self.on_end is not None:
            self.on_end()
            self.on_end = None

    def overdue(self, now: float) -> bool:
        """Whether the deadline is past."""
        return self.opened.deadline_at is not None and now > self.opened.deadline_at

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
        """Bring about an event that did not come from this prediction's own client, who alone is told of a fault."""
        try:
            self._after(event())
        except Exception as error:
            with self.trail.request():
                _log.exception("a prediction of model %r failed", self.model.name)
                self.drop()
                self._fail(error)

    def _tell_update(self) -> None:
        if self._update is not None and not self.answered:
            better = self.opened.update(now_ms())
            if better is not None:
                self._update(better)

    def _leave(self, answer: Answer) -> None:
        self.drop()
        self._tell(answer)
        late_ms = None
        if answer.reason == "deadline" and self._alarm is not None and self.opened.deadline_at is not None:
            late_ms = now_ms() - self.opened.deadline_at
        self.trail.answered(answer, late_ms)
