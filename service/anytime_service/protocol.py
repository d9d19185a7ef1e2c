"""An open prediction: from begin to answer, as a state machine without sockets and without a clock.

Time comes in with every event, in milliseconds of any clock that never goes back, so the same log of events gives the
same answers. Every transport translates to these events and back.

======== ======================== ================================================= ========================
state    begin                    group, groups                                     end, deadline, drain
======== ======================== ================================================= ========================
NEW      OPEN; or ANSWERED when   illegal                                           illegal
         there is nothing to wait
         for (deadline 0, or a
         budget that buys no
         group)
OPEN     illegal                  OPEN; or ANSWERED when what is awaited is there   ANSWERED
ANSWERED illegal                  illegal                                           illegal
======== ======================== ================================================= ========================

An event returns the answer when it ends in ANSWERED, else None. An illegal event raises OutOfTurnError, a refused one
ValuesError, and either changes nothing.

- Awaited is every group of the budget's prefix under the policy "prefix", every group of the model under "arrived".
- The reason is "deadline" once the deadline is past. Before that it is, for groups that complete what is awaited,
  "budget" if the budget stops short of the whole sequence and "complete" if not; for the other events their own.
- Groups that come after the deadline and before the answer are not used but named in `late_groups`.
- The deadline event is believed whatever time it carries: event loops may fire a timer a little early.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, get_args

import numpy as np

from anytime.answer import Answer, Policy, Reason
from anytime.errors import ValuesError, suggestion
from anytime.model import AnytimeModel
from anytime.prediction import Prediction
from anytime_service.errors import FieldError, OutOfTurnError

__all__ = ["TRANSITIONS", "OpenPrediction", "State"]


class State(Enum):
    """Where an open prediction stands."""

    NEW = auto()
    OPEN = auto()
    ANSWERED = auto()


TRANSITIONS: Mapping[tuple[State, str], frozenset[State]] = {
    (State.NEW, "begin"): frozenset({State.OPEN, State.ANSWERED}),
    (State.OPEN, "group"): frozenset({State.OPEN, State.ANSWERED}),
    (State.OPEN, "groups"): frozenset({State.OPEN, State.ANSWERED}),
    (State.OPEN, "end"): frozenset({State.ANSWERED}),
    (State.OPEN, "deadline"): frozenset({State.ANSWERED}),
    (State.OPEN, "drain"): frozenset({State.ANSWERED}),
}
"""Where each legal event may lead; what is not listed is illegal."""


class OpenPrediction:
    """One prediction, from begin to answer.

    Parameters
    ----------
    model : the model that answers.
    """

    def __init__(self, model: AnytimeModel) -> None:
        self.model = model
        self.state = State.NEW
        self._begun_ms = 0.0
        self._deadline_ms: float | None = None
        self._budget: float | None = None
        self._policy: Policy = "prefix"
        self._filled: Reason = "complete"
        self._prediction = Prediction(model)
        self._awaited: set[str] = set()
        self._late: dict[str, None] = {}

    @property
    def received(self) -> tuple[str, ...]:
        """Groups received in time so far, in sequence order."""
        return self._prediction.received

    def begin(
        self,
        now_ms: float,
        rows: int = 1,
        budget: float | None = None,
        deadline_ms: float | None = None,
        policy: Policy = "prefix",
    ) -> Answer | None:
        """Open the prediction for `rows` rows; `deadline_ms` counts from `now_ms`, None is no deadline.

        Raises
        ------
        FieldError
            The deadline or budget is negative or not a number, or the policy is unknown.
        ValuesError
            `rows` is not a whole number, 1 or more.
        """
        self._expect("begin")
        model = self.model
        for name, value in (("budget", budget), ("deadline_ms", deadline_ms)):
            if value is not None and not value >= 0:
                raise FieldError(name, f"{name} is {value}; expected a number, 0 or more")
        if policy not in get_args(Policy):
            raise FieldError("policy", f"policy is {policy!r}; expected one of {', '.join(get_args(Policy))}")
        prediction = model.open(rows)
        allowed = model.affordable(budget)
        # Without moments the policy "arrived" falls back to "prefix", so it waits for no more than that.
        by_prefix = policy == "prefix" or model.moments is None
        self._awaited = set(model.needed[allowed if by_prefix else model.steps])
        self._filled = "complete" if budget is None or allowed == model.steps else "budget"
        self._begun_ms, self._budget, self._policy, self._prediction = now_ms, budget, policy, prediction
        self._deadline_ms = None if deadline_ms is None else now_ms + deadline_ms
        self.state = State.OPEN
        if deadline_ms == 0:
            return self._answer(now_ms, "deadline")
        return None if self._awaited else self._answer(now_ms, self._filled)

    def group(self, now_ms: float, name: str, values: Any) -> Answer | None:
        """Take the values of one group, see `Prediction.add`; the last values of a group count."""
        self._expect("group")
        if self._past(now_ms):
            self._note_late([name])
            return None
        self._add(self._prediction, name, values)
        return self._took([name], now_ms)

    def groups(self, now_ms: float, values: Mapping[str, Any]) -> Answer | None:
        """Take several groups that came together: all of them, or none if one is refused."""
        self._expect("groups")
        if self._past(now_ms):
            self._note_late(values)
            return None
        trial = self.model.open(self._prediction.rows)
        for name, each in values.items():
            self._add(trial, name, each)
        if self._prediction.received:
            for name, each in values.items():
                self._prediction.add(name, each)
        else:  # nothing to keep: the trial itself goes on, and values are converted once
            self._prediction = trial
        return self._took(values, now_ms)

    def end(self, now_ms: float) -> Answer:
        """Answer because nothing more will come."""
        self._expect("end")
        return self._answer(now_ms, "end")

    def deadline(self, now_ms: float) -> Answer:
        """Answer because the deadline has struck."""
        self._expect("deadline")
        return self._answer(now_ms, "deadline")

    def drain(self, now_ms: float) -> Answer:
        """Answer from what is here because the service is stopping."""
        self._expect("drain")
        return self._answer(now_ms, "draining")

    def _expect(self, event: str) -> None:
        if (self.state, event) not in TRANSITIONS:
            legal = [name for state, name in TRANSITIONS if state is self.state]
            can = f"it can take {', '.join(legal)}" if legal else "it has been answered; begin another"
            raise OutOfTurnError(f"{event!r} came to a prediction that is {self.state.name.lower()}; {can}")

    def _past(self, now_ms: float) -> bool:
        return self._deadline_ms is not None and now_ms > self._deadline_ms

    def _add(self, prediction: Prediction, name: str, values: Any) -> None:
        try:
            prediction.add(name, values)
        except ValuesError as error:
            raise FieldError(f"groups.{name}", str(error)) from error

    def _note_late(self, names: Mapping[str, Any] | list[str]) -> None:
        known = self.model.groups.names
        for name in names:
            if name not in self.model.groups.positions:  # a slip of the pen is one at any time
                raise FieldError(f"groups.{name}", f"there is no group {name!r}; {suggestion(name, known)}")
        self._late.update(dict.fromkeys(names))

    def _took(self, names: Mapping[str, Any] | list[str], now_ms: float) -> Answer | None:
        self._awaited.difference_update(names)
        return None if self._awaited else self._answer(now_ms, self._filled)

    def _answer(self, now_ms: float, reason: Reason) -> Answer:
        # Values near the limit of a float overflow; whoever sends the answer refuses what is not finite.
        with np.errstate(over="ignore", invalid="ignore"):
            answer = self._prediction.answer(
                self._budget,
                self._policy,
                reason="deadline" if self._past(now_ms) else reason,
                elapsed_ms=now_ms - self._begun_ms,
                late_groups=self._late,
            )
        self.state = State.ANSWERED
        return answer
