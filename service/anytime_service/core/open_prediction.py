"""Open prediction: a state machine from begin to answer, without sockets and without a clock.

Every event carries its time, in milliseconds of any monotonic clock, so the same log of events gives the same answers.
Every transport translates its messages to these events and the answers back.

`TRANSITIONS` lists the legal events of each state, and the states that may be next.

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
- `amend` replaces the options: those of a request's body complete those of its head.
- `took` reports groups that the shared prediction of a session has already received.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum, auto
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from anytime.errors import ValuesError
from anytime.inference.prediction import Prediction
from anytime.inference.subsets import ArrivedModel
from anytime.inference.values import checked_row
from anytime.model.model import Model
from anytime.types import Float, Reason
from anytime_service.errors import FieldError, UnexpectedEventError
from anytime_service.limits.tuning import TUNING
from anytime_service.schemas.messages import check_rows, of_field
from anytime_service.schemas.options import DEFAULTS, PredictionOptions

OVERLOADED = "the server has more requests than it can answer in time; this is the base rate"
"""Note of an answer that did not wait for groups because the server is overloaded."""


class State(StrEnum):
    """The state of an open prediction."""

    NEW = auto()
    OPEN = auto()
    SOLVING = auto()
    ANSWERED = auto()


_ANY = frozenset((State.OPEN, State.SOLVING, State.ANSWERED))
_ANSWERED = frozenset((State.ANSWERED,))

TRANSITIONS: Mapping[tuple[State, str], frozenset[State]] = {
    (State.NEW, "begin"): _ANY,
    (State.OPEN, "amend"): _ANY,
    (State.OPEN, "groups"): _ANY,
    (State.OPEN, "took"): _ANY,
    (State.OPEN, "solved"): frozenset((State.OPEN,)),
    (State.OPEN, "end"): _ANY - {State.OPEN},
    (State.OPEN, "deadline"): _ANSWERED,
    (State.OPEN, "drain"): _ANSWERED,
    (State.SOLVING, "groups"): _ANY - {State.OPEN},
    (State.SOLVING, "took"): _ANY - {State.OPEN},
    (State.SOLVING, "solved"): _ANY - {State.OPEN},
    (State.SOLVING, "end"): frozenset((State.SOLVING,)),
    (State.SOLVING, "deadline"): _ANSWERED,
    (State.SOLVING, "drain"): _ANSWERED,
}
"""The next states by state and event: waiting for more events or for the optimum of the received groups, or answered.

An event that is not listed for a state is illegal.
"""

Result: TypeAlias = Any
"""An `Answer`; or, if it has more than `Limits.max_inline` numbers, a `Settled` one, whose numbers are not made yet."""


class Limits(NamedTuple):
    """Limits of a prediction.

    Attributes
    ----------
    max_deadline_ms : float
        Longest deadline, which applies without one too.
    max_rows : int
        Largest number of rows.
    max_inline : float
        An answer of more numbers than this is returned as `Settled`; its caller has another thread make it.
    max_contributions : int
        An answer with more contributions of columns than this has none, and a note says so.
    """

    max_deadline_ms: float = math.inf
    max_rows: int = sys.maxsize
    max_inline: float = math.inf
    max_contributions: int = TUNING.max_contributions


UNLIMITED = Limits()


class OpenPrediction:
    """One prediction, from begin to answer.

    Parameters
    ----------
    model : Model
        Model of the prediction.
    shared : Prediction | None
        Groups of a session, shared by several predictions; `took` then reports the groups that it receives.
    limits : Limits
        Limits of the prediction.

    Attributes
    ----------
    prediction : Prediction
        The groups received so far.
    options : PredictionOptions
        Those that `begin` or `amend` stated last.
    begun_ms, deadline_at : float
        Times of begin and deadline, on the clock of the events; infinity without a deadline.
    solving : bool
        Whether the answer is the optimum of a set of groups; `unsolved` finds it, in time that grows with it.
    """

    def __init__(self, model: Model, shared: Prediction | None = None, limits: Limits = UNLIMITED) -> None:
        self.model = model
        self.state = State.NEW
        self.prediction = shared or Prediction(model, None)
        self.options = DEFAULTS
        self.begun_ms = 0.0
        self.deadline_at = math.inf
        self.solving = False
        self._limits = limits
        self._allowed = model.steps
        self._awaited: set[str] = set()
        self._filled: Reason = "complete"
        self._pending: Reason = "end"
        self._solved: dict[frozenset[str], ArrivedModel | None] = {}
        self._late: dict[str, None] = {}
        self._reported: tuple[int, frozenset[str] | None, int] = (0, None, 0)

    @property
    def unsolved(self) -> frozenset[str] | None:
        """Set of groups whose optimum the prediction needs and does not have; None if it needs none."""
        if not self.solving or self.state is State.ANSWERED:
            return None
        wanted = self.prediction.usable(self.options.budget)
        return None if wanted in self._solved else wanted

    def begin(
        self,
        now_ms: float,
        options: PredictionOptions = DEFAULTS,
        *,
        overloaded: bool = False,
        event: Literal["begin", "amend"] = "begin",
    ) -> Result | None:
        """Open the prediction; without `rows`, the first values define their number.

        Parameters
        ----------
        options : PredictionOptions
            Those of the prediction; the deadline counts from `now_ms`.
        overloaded : bool
            Answer at once, since an overloaded server does not wait for groups; `note` says so.
        event : Literal["begin", "amend"]
            Use `amend` for the second one.

        Raises
        ------
        FieldError
            The deadline or budget is not a finite number >= 0, there are no or too many rows, or the model cannot rank
            rows.
        """
        self._check(event)
        model, budget, prediction = self.model, options.budget, self.prediction
        for name, value in (("budget", budget), ("deadline_ms", options.deadline_ms)):
            if value is not None and not 0 <= value < math.inf:
                raise FieldError(name, f"{name} is {value}; expected a number, 0 or more")
        if options.ranking and len(model.prefixes.intercept) > 1:
            raise FieldError(
                "ranking",
                f"model {model.name!r} returns several scores per row, so it cannot rank rows; expected ranking=false",
            )
        if options.rows is not None:
            check_rows(options.rows, self._limits.max_rows)
            prediction.expect_rows(options.rows)
        allowed = model.affordable(budget, options.policy)
        # If the policy "arrived" falls back to "prefix", it awaits the same groups as "prefix".
        self.solving = options.policy == "arrived" and model.supports_arrived
        awaited = model.needed[model.steps if self.solving else allowed]
        self._awaited = {name for name in awaited if not prediction.has(name)} if prediction.nbytes else {*awaited}
        self._filled = "complete" if model.affordable(budget) == model.steps else "budget"
        self.options = options
        self._allowed = allowed
        self.begun_ms = now_ms if event == "begin" else self.begun_ms
        self.deadline_at = self.begun_ms + min(
            math.inf if options.deadline_ms is None else options.deadline_ms, self._limits.max_deadline_ms
        )
        if options.deadline_ms == 0:
            return self._proceed(now_ms, "deadline", waits=False)
        if overloaded and self._awaited:
            base: Result = self._proceed(now_ms, "overload", waits=False)
            return base.with_note(OVERLOADED)
        return self._proceed(now_ms, None if self._awaited else self._filled)

    def amend(self, now_ms: float, options: PredictionOptions, *, overloaded: bool = False) -> Result | None:
        """Replace the options; the deadline still counts from the begin. Raises as `begin`."""
        return self.begin(now_ms, options, overloaded=overloaded, event="amend")

    def groups(
        self, now_ms: float, values: Mapping[str, Any], allow: Callable[[int, int, str], None] | None = None
    ) -> Result | None:
        """Accept groups together: all of them, or none if one is invalid; new values replace earlier ones.

        `allow` is called with the rows, the bytes that the values will add, and the field of the request that has them;
        it may raise an error instead.
        """
        self._check("groups")
        arrays = checked_groups(self.prediction, values)
        if allow is not None and (more := self.prediction.more_bytes(arrays)):
            name = next(iter(values))
            allow(len(arrays[name]), more, f"groups.{name}" if len(values) == 1 else "groups")
        self.prediction.add_all(arrays)
        return self.took(now_ms, values, "groups")

    def took(self, now_ms: float, names: Iterable[str], event: Literal["groups", "took"] = "took") -> Result | None:
        """Note groups that the shared prediction has received."""
        self._check(event)
        self._awaited.difference_update(names)
        if now_ms > self.deadline_at:
            self._late.update(dict.fromkeys(names))
        waiting = None if self._awaited else self._filled
        return self._proceed(now_ms, self._pending if self.state is State.SOLVING else waiting)

    def solved(self, now_ms: float, groups: frozenset[str], optimum: ArrivedModel | None) -> Result | None:
        """Store the optimum of a set; None means that the solver refused it, so the answer uses the prefix."""
        self._check("solved")
        self._solved = {groups: optimum}
        return self._proceed(now_ms, self._pending if self.state is State.SOLVING else None)

    def end(self, now_ms: float) -> Result | None:
        """Answer because the client sends no more groups."""
        self._check("end")
        return None if self.state is State.SOLVING else self._proceed(now_ms, "end")

    def deadline(self, now_ms: float, optimum: ArrivedModel | None = None) -> Result:
        """Answer because the deadline has expired; `optimum` is that of `unsolved`, if it is available at once."""
        reason: Reason = self._pending if self.state is State.SOLVING and optimum is not None else "deadline"
        return self._last("deadline", now_ms, reason, optimum)

    def drain(self, now_ms: float, optimum: ArrivedModel | None = None) -> Result:
        """Answer from the received groups because the service is stopping; `optimum` is as for `deadline`."""
        return self._last("drain", now_ms, "draining", optimum)

    def update(self, now_ms: float) -> Result | None:
        """Return the preliminary answer if it differs from the last reported one; this is no event."""
        if self.state not in (State.OPEN, State.SOLVING):
            return None
        prediction = self.prediction
        optimum = self._solved.get(prediction.usable(self.options.budget)) if self.solving else None
        current = (
            self.model.answering(min(prediction.prefix, self._allowed), self.options.policy),
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
        columns = len(self.model.groups.features) if self.options.explain and self._unexplained(rows) is None else 0
        numbers = rows * len(self.model.prefixes.intercept) * (1 + columns)
        return numbers if numbers > self._limits.max_inline else 0

    def prepare(self) -> None:
        """Compute the scores of several rows before the deadline expires, if they are few."""
        rows = self.prediction.rows
        if rows > 1 and rows * len(self.model.prefixes.intercept) <= self._limits.max_inline:
            self.prediction.prepare(self.options.budget, self.options.policy)

    def _check(self, event: str) -> None:
        """Raise UnexpectedEventError if an event is illegal in this state."""
        if (self.state, event) not in TRANSITIONS:
            legal = [each for state, each in TRANSITIONS if state is self.state]
            expected = f"expected {' or '.join(legal)}" if legal else "begin a new prediction"
            raise UnexpectedEventError(f"received {event!r} for a prediction that is {self.state}; {expected}")

    def _last(self, event: str, now_ms: float, reason: Reason, optimum: ArrivedModel | None) -> Result:
        self._check(event)
        wanted = self.unsolved
        if wanted is not None and optimum is not None:
            self._solved = {wanted: optimum}
        return self._proceed(now_ms, reason, waits=False)

    def _proceed(self, now_ms: float, reason: Reason | None, *, waits: bool = True) -> Result | None:
        """Wait for groups without a reason; else answer, or wait for the optimum of the groups if it `waits`."""
        if reason is None:
            self.state = State.OPEN
            return None
        if waits and self.solving and self.unsolved is not None:
            self._pending, self.state = reason, State.SOLVING
            return None
        answer = self._made(now_ms, "deadline" if now_ms > self.deadline_at else reason)
        self.state = State.ANSWERED
        return answer

    def _made(self, now_ms: float, reason: Reason | None) -> Result:
        options = self.options
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
            at_once=self._limits.max_inline,
        )
        if note is not None:
            settled = settled.with_note(note)
        return settled if settled.numbers > self._limits.max_inline else settled.make()

    def _unexplained(self, rows: int) -> str | None:
        """Return why an answer for some rows has no contributions; None if it can have them."""
        columns, P = len(self.model.groups.features), len(self.model.prefixes.intercept)
        limit = self._limits.max_contributions
        if rows * columns * P <= limit:
            return None
        size = f"{columns} columns x {P} scores are more than {limit}"
        return (
            f"no contributions: {size}"
            if rows == 1
            else f"no contributions: {rows} rows x {size}; explain fewer rows at once"
        )


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
    check_same_rows({name: len(array) for name, array in arrays.items()})
    return arrays


def check_same_rows(rows: Mapping[str, int]) -> None:
    """Raise FieldError if groups differ in their numbers of rows."""
    if len({*rows.values()}) > 1:
        counts = ", ".join(f"{name!r} has {count}" for name, count in rows.items())
        raise FieldError("groups", f"groups have different numbers of rows: {counts[:300]}")
