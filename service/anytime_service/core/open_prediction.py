"""An open prediction: from begin to answer, as a state machine without sockets and without a clock.

Time comes in with every event, in milliseconds of any clock that never goes back, so the same log of events gives the
same answers. Every transport translates to these events and back.

======== ======================= ================================ ================ ================= ================
state    begin                   group, groups, took              solved           end               deadline, drain
======== ======================= ================================ ================ ================= ================
NEW      OPEN; or ANSWERED when  illegal                          illegal          illegal           illegal
         there is nothing to
         wait for (deadline 0,
         a budget that buys no
         group, no time for it)
OPEN     illegal                 OPEN; or, when all awaited       OPEN             ANSWERED; or      ANSWERED
                                 groups are there, ANSWERED or                     SOLVING
                                 SOLVING
SOLVING  illegal                 SOLVING; or, for a set that is   ANSWERED; or,    SOLVING           ANSWERED
                                 solved already, ANSWERED         for another set,
                                                                  SOLVING
ANSWERED illegal                 illegal                          illegal          illegal           illegal
======== ======================= ================================ ================ ================= ================

An event returns the answer when it ends in ANSWERED, else None. An illegal event raises OutOfTurnError, a refused one
ValuesError, and either changes nothing.

- The answer uses every group received before it leaves. `late_groups` names those received after the deadline.
- Awaited is every group of the budget's prefix under the policy "prefix", every group of the model under "arrived".
- Under "arrived", `unsolved` is the set of groups whose optimum is not known yet; `solved` brings the optimum. An
  answer that need not leave yet waits for it in SOLVING. At the deadline the prefix stands in.
- The reason is "deadline" after the deadline. Before it, the reason is, for groups that complete what is awaited,
  "budget" if the budget stops short of the whole sequence and "complete" if not; for the other events their own.
- The deadline event answers whatever time it carries: event loops may call a timer a little early.
- `took` reports groups that a shared prediction, a session's, has received already.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any, get_args

from anytime.errors import ValuesError
from anytime.inference.answer import Answer
from anytime.inference.prediction import Prediction
from anytime.inference.subsets import ArrivedModel
from anytime.model.model import Model
from anytime.types import Policy, Reason
from anytime_service.errors import FieldError, OutOfTurnError

__all__ = [
    "OVERLOADED",
    "TRANSITIONS",
    "OpenPrediction",
    "State",
]

OVERLOADED = "more is asked for than can be answered in time; this is the base rate, at once"
"""Note of an answer that did not wait for groups for that reason."""


class State(Enum):
    """Where an open prediction stands."""

    NEW = auto()
    OPEN = auto()
    SOLVING = auto()
    ANSWERED = auto()


_TAKING = frozenset({State.OPEN, State.SOLVING, State.ANSWERED})

TRANSITIONS: Mapping[tuple[State, str], frozenset[State]] = {
    (State.NEW, "begin"): frozenset({State.OPEN, State.SOLVING, State.ANSWERED}),
    (State.OPEN, "group"): _TAKING,
    (State.OPEN, "groups"): _TAKING,
    (State.OPEN, "took"): _TAKING,
    (State.OPEN, "solved"): frozenset({State.OPEN}),
    (State.OPEN, "end"): frozenset({State.SOLVING, State.ANSWERED}),
    (State.OPEN, "deadline"): frozenset({State.ANSWERED}),
    (State.OPEN, "drain"): frozenset({State.ANSWERED}),
    (State.SOLVING, "group"): frozenset({State.SOLVING, State.ANSWERED}),
    (State.SOLVING, "groups"): frozenset({State.SOLVING, State.ANSWERED}),
    (State.SOLVING, "took"): frozenset({State.SOLVING, State.ANSWERED}),
    (State.SOLVING, "solved"): frozenset({State.SOLVING, State.ANSWERED}),
    (State.SOLVING, "end"): frozenset({State.SOLVING}),
    (State.SOLVING, "deadline"): frozenset({State.ANSWERED}),
    (State.SOLVING, "drain"): frozenset({State.ANSWERED}),
}
"""Where each legal event may lead; what is not listed is illegal."""


class OpenPrediction:
    """One prediction, from begin to answer.

    Parameters
    ----------
    model : the model that answers.
    shared : where groups are collected when others share them; this prediction then only hears of them, by `took`.
    """

    def __init__(self, model: Model, shared: Prediction | None = None) -> None:
        self.model = model
        self.state = State.NEW
        self.deadline_at: float | None = None
        """When to answer at the latest, by the clock of the events."""
        self._shared = shared
        self._prediction = shared or Prediction(model)
        self._begun_ms = 0.0
        self._budget: float | None = None
        self._allowed = model.steps
        self._policy: Policy = "prefix"
        self._ranking = False
        self._awaited: set[str] = set()
        self._filled: Reason = "complete"
        self._pending: Reason = "end"
        self._solving = False
        self._solved: dict[frozenset[str], ArrivedModel | None] = {}
        self._late: dict[str, None] = {}
        self._told: tuple[int, frozenset[str] | None, int] = (0, None, 0)

    @property
    def received(self) -> tuple[str, ...]:
        """Groups received so far, in sequence order."""
        return self._prediction.received

    def has(self, name: str) -> bool:
        """Return whether a group has been received."""
        return self._prediction.has(name)

    @property
    def nbytes(self) -> int:
        """Bytes of the values received."""
        return self._prediction.nbytes

    @property
    def many(self) -> bool:
        """Whether there are several rows, so that scores are worth having at hand."""
        return self._prediction.rows > 1

    @property
    def unsolved(self) -> frozenset[str] | None:
        """Set of groups whose optimum is wanted and has not been told; None where nothing is to be solved."""
        if not self._solving or self.state is State.ANSWERED:
            return None
        wanted = self._prediction.usable(self._budget)
        return None if wanted in self._solved else wanted

    def begin(
        self,
        now_ms: float,
        rows: int | None = 1,
        budget: float | None = None,
        deadline_ms: float | None = None,
        policy: Policy = "prefix",
        *,
        ranking: bool = False,
        overloaded: bool = False,
    ) -> Answer | None:
        """Open the prediction for `rows` rows, None to count them in the first values.

        Parameters
        ----------
        deadline_ms : counts from `now_ms`; None is no deadline.
        ranking : the answer is to order the rows.
        overloaded : answer at once, as there is no time to wait for groups; `note` says so.

        Raises
        ------
        FieldError
            The deadline or budget is negative, infinite or no number, the policy is unknown, or rows cannot be ranked.
        ValuesError
            `rows` is not a whole number, 1 or more.
        """
        self._expect("begin")
        model = self.model
        for name, value in (("budget", budget), ("deadline_ms", deadline_ms)):
            if value is not None and not 0 <= value < math.inf:
                raise FieldError(name, f"{name} is {value}; expected a number, 0 or more")
        if policy not in get_args(Policy):
            raise FieldError("policy", f"policy is {policy!r}; expected one of {', '.join(get_args(Policy))}")
        if ranking and len(model.prefixes.intercept) > 1:
            raise FieldError("ranking", f"model {model.name!r} gives several scores a row, so rows have no one order")
        prediction = self._shared or Prediction(model, rows)
        allowed = model.affordable(budget)
        # Where the policy "arrived" falls back to "prefix", it waits for no more than that.
        by_prefix = policy == "prefix" or not model.arrives
        awaited = model.needed[allowed if by_prefix else model.steps]
        self._awaited = {name for name in awaited if not prediction.has(name)}
        self._filled = "complete" if budget is None or allowed == model.steps else "budget"
        self._begun_ms, self._budget, self._allowed, self._ranking = now_ms, budget, allowed, ranking
        self._policy, self._prediction = policy, prediction
        self._solving = not by_prefix
        self.deadline_at = None if deadline_ms is None else now_ms + deadline_ms
        self.state = State.OPEN
        if deadline_ms == 0:
            return self._answer(now_ms, "deadline")
        if overloaded and self._awaited:
            return replace(self._answer(now_ms, "overload"), note=OVERLOADED)
        return None if self._awaited else self._finish(now_ms, self._filled)

    def group(self, now_ms: float, name: str, values: Any) -> Answer | None:
        """Receive the values of one group, see `Prediction.add`; the last values of a group count."""
        self._expect("group")
        self._prediction.take(name, self._checked(name, values))
        return self._took((name,), now_ms)

    def groups(self, now_ms: float, values: Mapping[str, Any]) -> Answer | None:
        """Receive several groups together: all of them, or none if one is refused."""
        self._expect("groups")
        arrays = {name: self._checked(name, each) for name, each in values.items()}
        if len({len(array) for array in arrays.values()}) > 1:
            told = ", ".join(f"{name!r} has {len(array)}" for name, array in arrays.items())
            raise FieldError("groups", f"groups have different numbers of rows: {told[:300]}")
        for name, array in arrays.items():
            self._prediction.take(name, array)
        return self._took(values, now_ms)

    def took(self, now_ms: float, names: Iterable[str]) -> Answer | None:
        """Note groups that the shared prediction has received."""
        self._expect("took")
        return self._took(names, now_ms)

    def solved(self, now_ms: float, groups: frozenset[str], optimum: ArrivedModel | None) -> Answer | None:
        """Take the optimum of a set; None says that there will be none, so that the prefix stands in for good."""
        self._expect("solved")
        self._solved = {groups: optimum}
        return self._finish(now_ms, self._pending) if self.state is State.SOLVING else None

    def end(self, now_ms: float) -> Answer | None:
        """Answer because nothing more will come."""
        self._expect("end")
        return None if self.state is State.SOLVING else self._finish(now_ms, "end")

    def deadline(self, now_ms: float) -> Answer:
        """Answer because the deadline has expired."""
        self._expect("deadline")
        return self._answer(now_ms, "deadline")

    def drain(self, now_ms: float) -> Answer:
        """Answer from what is here because the service is stopping."""
        self._expect("drain")
        return self._answer(now_ms, "draining")

    def update(self, now_ms: float) -> Answer | None:
        """Tell the answer as it stands, if it is another than was told last; an answer it is not, so no event."""
        if self.state not in (State.OPEN, State.SOLVING):
            return None
        prediction = self._prediction
        optimum = self._optimum(self.model, prediction.usable(self._budget)) if self._solving else None
        standing = (
            min(prediction.prefix, self._allowed),
            None if optimum is None else optimum.groups,
            prediction.replacements,
        )
        # While another set is being solved the prefix stands in, and what was told of the last one is better.
        worse = self.unsolved is not None and self._told[1] is not None
        if standing == self._told or worse:
            return None
        self._told = standing
        return self._made(now_ms, None)

    def expect_rows(self, rows: int) -> None:
        """Tell the number of rows, where it was not told at the beginning."""
        self._prediction.expect_rows(rows)

    def prepare(self) -> None:
        """Have the scores at hand before the deadline strikes; of use where there are many rows."""
        self._prediction.prepare(self._allowed)

    def _expect(self, event: str) -> None:
        if (self.state, event) not in TRANSITIONS:
            legal = [name for state, name in TRANSITIONS if state is self.state]
            can = f"it can take {', '.join(legal)}" if legal else "it has been answered; begin another"
            raise OutOfTurnError(f"{event!r} came to a prediction that is {self.state.name.lower()}; {can}")

    def _past(self, now_ms: float) -> bool:
        return self.deadline_at is not None and now_ms > self.deadline_at

    def _checked(self, name: str, values: Any) -> Any:
        try:
            return self._prediction.checked(name, values)
        except ValuesError as error:
            raise FieldError(f"groups.{name}", str(error)) from error

    def _took(self, names: Iterable[str], now_ms: float) -> Answer | None:
        self._awaited.difference_update(names)
        if self._past(now_ms):
            self._late.update(dict.fromkeys(names))
        if self.state is State.SOLVING:
            return self._finish(now_ms, self._pending)
        return None if self._awaited else self._finish(now_ms, self._filled)

    def _finish(self, now_ms: float, reason: Reason) -> Answer | None:
        """Answer, unless the optimum of these groups is still to be solved; the deadline does not wait for it."""
        if self.unsolved is not None:
            self._pending, self.state = reason, State.SOLVING
            return None
        return self._answer(now_ms, reason)

    def _answer(self, now_ms: float, reason: Reason) -> Answer:
        answer = self._made(now_ms, "deadline" if self._past(now_ms) else reason)
        self.state = State.ANSWERED
        return answer

    def _made(self, now_ms: float, reason: Reason | None) -> Answer:
        return self._prediction.answer(
            self._budget,
            self._policy,
            ranking=self._ranking,
            reason=reason,
            elapsed_ms=now_ms - self._begun_ms,
            late_groups=self._late,
            solve=self._optimum,
        )

    def _optimum(self, _model: Model, groups: frozenset[str]) -> ArrivedModel | None:
        return self._solved.get(groups)
