"""Open prediction: a state machine from begin to answer, without sockets and without a clock.

Every event carries its time, in milliseconds of any monotonic clock, so the same log of events gives the same answers.
Every transport translates its messages to these events and the answers back.

`TRANSITIONS` lists the legal events of each state, and the next state by the outcome of the event.

An event that ends in ANSWERED returns the answer; other events return None. An illegal event raises
UnexpectedEventError and an invalid one ValuesError. Neither changes the state.

- The answer uses every group received before it is sent. `late_groups` names the groups received after the deadline.
- The prediction awaits every group of the budget's prefix under the policy "prefix", of the prefix of least error
  within it under "best", and every group of the model under "arrived".
- Under "arrived", `unsolved` is the set of groups whose optimum is not known yet; `solved` provides the optimum. An
  answer that is not due yet waits for it in SOLVING. At the deadline the answer uses the prefix instead.
- The reason is "deadline" after the deadline. Before it, an answer that received all awaited groups has the reason
  "budget" if the budget excludes steps of the sequence, else "complete". Other events set their own reason.
- The deadline event answers at any time that it carries, since event loops may call a timer a little early.
- `took` reports groups that the shared prediction of a session has already received.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum, auto
from typing import Any, TypeAlias

import numpy as np

from anytime.errors import ValuesError
from anytime.inference.prediction import Prediction
from anytime.inference.subsets import POLICIES, ArrivedModel
from anytime.inference.values import checked_row
from anytime.model.model import Model
from anytime.types import Float, Reason
from anytime_service.errors import FieldError, UnexpectedEventError
from anytime_service.limits.tuning import TUNING
from anytime_service.schemas.options import DEFAULTS, PredictionOptions
from anytime_service.schemas.values import of_field

OVERLOADED = "the server has more requests than it can answer in time; this is the base rate"
"""Note of an answer that did not wait for groups because the server is overloaded."""


class State(StrEnum):
    """The state of an open prediction."""

    NEW = auto()
    OPEN = auto()
    SOLVING = auto()
    ANSWERED = auto()


class Outcome(StrEnum):
    """What an event leads to: wait for more events, wait for the optimum of the received groups, or the answer."""

    WAIT = auto()
    SOLVE = auto()
    ANSWER = auto()


_ANY = {Outcome.WAIT: State.OPEN, Outcome.SOLVE: State.SOLVING, Outcome.ANSWER: State.ANSWERED}
_ANSWER = {Outcome.ANSWER: State.ANSWERED}
_SOLVE = {Outcome.SOLVE: State.SOLVING}

_Targets: TypeAlias = Mapping[Outcome, State]

TRANSITIONS: Mapping[tuple[State, str], _Targets] = {
    (State.NEW, "begin"): _ANY,
    (State.OPEN, "groups"): _ANY,
    (State.OPEN, "took"): _ANY,
    (State.OPEN, "solved"): {Outcome.WAIT: State.OPEN},
    (State.OPEN, "end"): _SOLVE | _ANSWER,
    (State.OPEN, "deadline"): _ANSWER,
    (State.OPEN, "drain"): _ANSWER,
    (State.SOLVING, "groups"): _SOLVE | _ANSWER,
    (State.SOLVING, "took"): _SOLVE | _ANSWER,
    (State.SOLVING, "solved"): _SOLVE | _ANSWER,
    (State.SOLVING, "end"): _SOLVE,
    (State.SOLVING, "deadline"): _ANSWER,
    (State.SOLVING, "drain"): _ANSWER,
}
"""The next state by state, event and outcome. An event that is not listed for a state is illegal."""

Reached: TypeAlias = Any
"""An `Answer`; or, if it has more than `at_once` numbers, a `Settled` one, whose numbers are not made yet."""


class OpenPrediction:
    """One prediction, from begin to answer.

    Parameters
    ----------
    model : Model
        Model of the prediction.
    shared : Prediction | None
        Groups of a session, shared by several predictions; `took` then reports the groups that it receives.
    at_once : float
        An answer of more numbers than this is returned as `Settled`; its caller has another thread make it.
    max_contributions : int
        An answer with more contributions of columns than this has none, and a note says so.
    """

    def __init__(
        self,
        model: Model,
        shared: Prediction | None = None,
        at_once: float = math.inf,
        max_contributions: int = TUNING.max_contributions,
    ) -> None:
        self._at_once = at_once
        self._max_contributions = max_contributions
        self.model = model
        self.state = State.NEW
        self.deadline_at = math.inf
        """Time of the deadline, on the clock of the events; infinity without a deadline."""
        self.begun_ms = 0.0
        self._shared = shared
        self.prediction = shared or Prediction(model, None)
        """The groups received so far."""
        self._options = DEFAULTS
        self._allowed = model.steps
        self._awaited: set[str] = set()
        self._filled: Reason = "complete"
        self._pending: Reason = "end"
        self._solving = False
        self._solved: dict[frozenset[str], ArrivedModel | None] = {}
        self._late: dict[str, None] = {}
        self._reported: tuple[int, frozenset[str] | None, int] = (0, None, 0)

    @property
    def solving(self) -> bool:
        """Whether the answer is the optimum of a set of groups; `unsolved` finds it, in time that grows with it."""
        return self._solving and self.state is not State.ANSWERED

    @property
    def unsolved(self) -> frozenset[str] | None:
        """Set of groups whose optimum the prediction needs and does not have; None if it needs none."""
        if not self.solving:
            return None
        wanted = self.prediction.usable(self._options.budget)
        return None if wanted in self._solved else wanted

    def begin(
        self,
        now_ms: float,
        options: PredictionOptions = DEFAULTS,
        max_deadline_ms: float = math.inf,
        *,
        overloaded: bool = False,
    ) -> Reached | None:
        """Open the prediction; without `rows`, the first values define their number.

        Parameters
        ----------
        options : PredictionOptions
            Those of the prediction; the deadline counts from `now_ms`.
        max_deadline_ms : float
            Longest deadline, which applies without one too.
        overloaded : bool
            Answer at once, since an overloaded server does not wait for groups; `note` says so.

        Raises
        ------
        FieldError
            The deadline or budget is not a finite number >= 0, the policy is unknown, or the model cannot rank rows.
        ValuesError
            `rows` is not a whole number, 1 or more.
        """
        targets = self._targets("begin")
        model, rows, budget, deadline_ms = self.model, options.rows, options.budget, options.deadline_ms
        for name, value in (("budget", budget), ("deadline_ms", deadline_ms)):
            if value is not None and not 0 <= value < math.inf:
                raise FieldError(name, f"{name} is {value}; expected a number, 0 or more")
        if options.policy not in POLICIES:
            raise FieldError("policy", f"policy is {options.policy!r}; expected one of {', '.join(POLICIES)}")
        if options.ranking and len(model.prefixes.intercept) > 1:
            raise FieldError(
                "ranking",
                f"model {model.name!r} returns several scores per row, so it cannot rank rows; expected ranking=false",
            )
        prediction = self.prediction if self._shared or rows is None else Prediction(model, rows)
        allowed = model.affordable(budget, options.policy)
        # If the policy "arrived" falls back to "prefix", it awaits the same groups as "prefix".
        by_prefix = options.policy != "arrived" or not model.supports_arrived
        awaited = model.needed[allowed if by_prefix else model.steps]
        self._awaited = {name for name in awaited if not prediction.has(name)} if self._shared else {*awaited}
        self._filled = "complete" if model.affordable(budget) == model.steps else "budget"
        self.begun_ms, self._options, self._allowed, self.prediction = now_ms, options, allowed, prediction
        self._solving = not by_prefix
        self.deadline_at = now_ms + (max_deadline_ms if deadline_ms is None else min(deadline_ms, max_deadline_ms))
        if deadline_ms == 0:
            return self._answer(targets, now_ms, "deadline")
        if overloaded and self._awaited:
            return self._answer(targets, now_ms, "overload").with_note(OVERLOADED)
        return self._wait(targets) if self._awaited else self._finish(targets, now_ms, self._filled)

    def groups(
        self, now_ms: float, values: Mapping[str, Any], allow: Callable[[int, int, str], None] | None = None
    ) -> Reached | None:
        """Accept groups together: all of them, or none if one is invalid; new values replace earlier ones.

        `allow` is called with the rows, the bytes that the values will add, and the field of the request that has them;
        it may raise an error instead.
        """
        targets = self._targets("groups")
        arrays = checked_groups(self.prediction, values)
        if allow is not None and (more := self.prediction.more_bytes(arrays)):
            name = next(iter(values))
            allow(len(arrays[name]), more, f"groups.{name}" if len(values) == 1 else "groups")
        self.prediction.add_all(arrays)
        return self._took(targets, values, now_ms)

    def took(self, now_ms: float, names: Iterable[str]) -> Reached | None:
        """Note groups that the shared prediction has received."""
        return self._took(self._targets("took"), names, now_ms)

    def solved(self, now_ms: float, groups: frozenset[str], optimum: ArrivedModel | None) -> Reached | None:
        """Store the optimum of a set; None means that the solver refused it, so the answer uses the prefix."""
        targets = self._targets("solved")
        self._solved = {groups: optimum}
        return self._finish(targets, now_ms, self._pending) if self.state is State.SOLVING else self._wait(targets)

    def end(self, now_ms: float) -> Reached | None:
        """Answer because the client sends no more groups."""
        targets = self._targets("end")
        return None if self.state is State.SOLVING else self._finish(targets, now_ms, "end")

    def deadline(self, now_ms: float) -> Reached:
        """Answer because the deadline has expired."""
        return self._answer(self._targets("deadline"), now_ms, "deadline")

    def drain(self, now_ms: float) -> Reached:
        """Answer from the received groups because the service is stopping."""
        return self._answer(self._targets("drain"), now_ms, "draining")

    def update(self, now_ms: float) -> Reached | None:
        """Return the preliminary answer if it differs from the last reported one; this is no event."""
        if self.state not in (State.OPEN, State.SOLVING):
            return None
        prediction = self.prediction
        optimum = self._solved.get(prediction.usable(self._options.budget)) if self._solving else None
        current = (
            self.model.answering(min(prediction.prefix, self._allowed), self._options.policy),
            None if optimum is None else optimum.groups,
            prediction.replacements,
        )
        # While the solver works on a new set, the current answer uses the prefix: the last reported one is better.
        worse = self.unsolved is not None and self._reported[1] is not None
        if current == self._reported or worse:
            return None
        self._reported = current
        return self._made(now_ms, None)

    def numbers(self, rows: int) -> int:
        """Return about how many numbers an answer for some rows has; 0 if it is made at once."""
        columns = len(self.model.groups.features) if self._options.explain and self._unexplained(rows) is None else 0
        numbers = rows * len(self.model.prefixes.intercept) * (1 + columns)
        return numbers if numbers > self._at_once else 0

    def prepare(self) -> None:
        """Compute the scores of several rows before the deadline expires, if they are few."""
        rows = self.prediction.rows
        if rows > 1 and rows * len(self.model.prefixes.intercept) <= self._at_once:
            self.prediction.prepare(self._options.budget, self._options.policy)

    def _targets(self, event: str) -> _Targets:
        """Return the next states of an event by its outcome; raise UnexpectedEventError if it is illegal."""
        targets = TRANSITIONS.get((self.state, event))
        if targets is None:
            legal = [each for state, each in TRANSITIONS if state is self.state]
            expected = f"expected {' or '.join(legal)}" if legal else "begin a new prediction"
            raise UnexpectedEventError(f"received {event!r} for a prediction that is {self.state}; {expected}")
        return targets

    def _took(self, targets: _Targets, names: Iterable[str], now_ms: float) -> Reached | None:
        self._awaited.difference_update(names)
        if now_ms > self.deadline_at:
            self._late.update(dict.fromkeys(names))
        if self.state is State.SOLVING:
            return self._finish(targets, now_ms, self._pending)
        return self._wait(targets) if self._awaited else self._finish(targets, now_ms, self._filled)

    def _wait(self, targets: _Targets) -> Reached | None:
        self.state = targets[Outcome.WAIT]
        return None

    def _finish(self, targets: _Targets, now_ms: float, reason: Reason) -> Reached | None:
        """Answer, or wait for the optimum of these groups; the deadline ends that wait."""
        if self._solving and self.unsolved is not None:
            self._pending, self.state = reason, targets[Outcome.SOLVE]
            return None
        return self._answer(targets, now_ms, reason)

    def _answer(self, targets: _Targets, now_ms: float, reason: Reason) -> Reached:
        answer = self._made(now_ms, "deadline" if now_ms > self.deadline_at else reason)
        self.state = targets[Outcome.ANSWER]
        return answer

    def _made(self, now_ms: float, reason: Reason | None) -> Reached:
        options = self._options
        note = self._unexplained(self.prediction.rows) if options.explain else None
        settled = self.prediction.settle(
            options.budget,
            options.policy,
            ranking=options.ranking,
            explain=options.explain and note is None,
            reason=reason,
            elapsed_ms=now_ms - self.begun_ms,
            late_groups=self._late,
            solve=lambda _, groups: self._solved.get(groups),
            at_once=self._at_once,
        )
        if note is not None:
            settled = settled.with_note(note)
        return settled if settled.numbers > self._at_once else settled.make()

    def _unexplained(self, rows: int) -> str | None:
        """Return why an answer for some rows has no contributions; None if it can have them."""
        columns, P = len(self.model.groups.features), len(self.model.prefixes.intercept)
        limit = self._max_contributions
        if rows * columns * P <= limit:
            return None
        if rows == 1:
            return f"no contributions: {columns} columns x {P} scores are more than {limit}"
        size = f"{rows} rows x {columns} columns x {P} scores"
        return f"no contributions: {size} are more than {limit}; explain fewer rows at once"


def checked_groups(prediction: Prediction, values: Mapping[str, Any]) -> Mapping[str, Float]:
    """Return the values of groups as arrays for `Prediction.add_all`; the only conversion of received values.

    Arrays contain the indices of levels, lists the levels. Raise FieldError, which names the group and the place, if
    values are invalid or groups differ in their numbers of rows.
    """
    if prediction.rows == 1 and {*map(type, values.values())} == {list}:
        row = checked_row(prediction.model, values)
        if row is not None:
            return row
    arrays: dict[str, Float] = {}
    for name, each in values.items():
        try:
            arrays[name] = prediction.checked(name, each, coded=isinstance(each, np.ndarray))
        except ValuesError as error:
            raise of_field(f"groups.{name}", error) from error
    if len(arrays) > 1:
        check_same_rows({name: len(array) for name, array in arrays.items()})
    return arrays


def check_same_rows(rows: Mapping[str, int]) -> None:
    """Raise FieldError if groups differ in their numbers of rows."""
    if len({*rows.values()}) > 1:
        counts = ", ".join(f"{name!r} has {count}" for name, count in rows.items())
        raise FieldError("groups", f"groups have different numbers of rows: {counts[:300]}")
