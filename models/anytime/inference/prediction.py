"""A prediction: the groups received so far, and the best answer from them.

A `Prediction` has no clock and does no I/O. Its caller (an embedding program, the runner or the service) adds groups
and requests answers. A rejected group leaves the prediction unchanged.

Values are stored minus their training means, column by column in the order of the sequence. A prefix is therefore one
product with the first columns, whatever the order of arrival. Only received columns use memory.

Another thread may make the numbers of an answer while groups are replaced. It reads a snapshot (`Prediction.settle`):
values that a snapshot reads are never overwritten, but copied first.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from itertools import compress
from typing import Any, NamedTuple, Self
from weakref import WeakSet

import numpy as np
from scipy.linalg.blas import dasum

from anytime._linalg import row_scores
from anytime.errors import ValuesError, clipped, suggestion
from anytime.features.expansion import Columns
from anytime.inference.conformal import covering, label_sets, model_outputs
from anytime.inference.contributions import Contributions, contributions
from anytime.inference.subsets import ArrivedModel, arrived_model, checked_policy, usable
from anytime.inference.values import CheckedRow, numbers_of
from anytime.model.model import Expected, GroupPosition, Model, checked_budget
from anytime.tabulated import Tabulated
from anytime.types import Bool, Float, Index, Policy, Reason

LONGEST_NAME = 200
"""Maximum number of characters of an unknown name in a message."""

MAX_CELLS = 6
"""Elements of a list that a notebook shows."""

LONGEST_NOTE = 300
"""Maximum number of characters of a note."""

Solve = Callable[[Model, frozenset[str]], ArrivedModel | None]
"""Return the optimum of a set of groups, or None if it is not solved yet."""


LOCAL_FIELDS = ("unused_groups", "ages")
"""Fields of an answer that only a local caller knows; a server does not send them."""


@dataclass(frozen=True)
class Answer:
    """A prediction and the groups it is based on; every field is JSON-serialisable.

    Attributes
    ----------
    model, version : str
        Name and version of the model.
    prediction
        A number, a vector (several responses) or a class; a list of them if there are several rows.
    probabilities
        For classification, one per class in the model's order; a list per row if there are several rows. Least squares
        on one-hot classes can leave [0, 1]; its outputs are clipped to [0, 1] and scaled to sum to one. Probabilities
        of a likelihood are returned unchanged.
    prefix : int
        Number of complete steps used; 0 is the base rate.
    steps : int
        Number of steps of the model.
    groups : tuple[str, ...]
        Groups used, in sequence order.
    cost : float
        Their joint cost per row, in the model's cost unit.
    cost_total : float
        Their joint cost for all rows together: for each group its fixed part, and its cost per row times the rows. A
        group that several require is paid once.
    budget : float | None
        The requested budget.
    complete : bool
        Whether every step within the budget was used.
    missing : tuple[str, ...]
        Groups of the budget's prefix that were not received.
    imputed : tuple[str, ...]
        Columns received as null and replaced by their training means, or with a level that was never seen.
    clamped : tuple[str, ...]
        Columns with a value outside their range, which moved to its nearest end.
    reason : Reason | None
        Why the answer was made now; None in an update, which is not final.
    policy : Policy
        The policy that the answer follows; `note` gives the reason if a different one was requested.
    note : str | None
        What the client should know of this answer, at most 300 characters.
    approximate : bool
        Whether the optimum of the received groups is one Newton step from the nearest prefix, not exact.
    expected : Expected
        Quality of the groups used, measured in training.
    interval : list[Any] | None
        [low, high] if regression or counts are calibrated (several responses: a list of them); a list per row if there
        are several rows. It belongs to the prefix that answered.
    prediction_set : list[Any] | None
        If classes are calibrated, the classes that are likely enough, in the model's order, possibly none; a list per
        row if there are several rows. Like `interval`, None if the groups used do not form a prefix.
    elapsed_ms : float
        Milliseconds from begin to answer.
    late_groups : tuple[str, ...]
        Groups received after the deadline and before the answer was made; the policy may use them.
    unused_groups : tuple[str, ...]
        Groups that were computed too late to be used. `Runner` and the client set it; the server does not send it.
    replaced : tuple[str, ...]
        Groups received more than once; the last values count.
    ranking : list[int] | None
        Row indices by descending score (of the second of two classes), if requested.
    contributions : Contributions | None
        What each group used and each of its columns adds to the score, if requested.
    ages : dict[str, float]
        Milliseconds since the earlier input that a reused group was computed from, by group. `Runner` sets it; the
        server does not send it.
    """

    model: str
    version: str
    prediction: Any
    probabilities: Any
    prefix: int
    steps: int
    groups: tuple[str, ...]
    cost: float
    cost_total: float
    budget: float | None
    complete: bool
    missing: tuple[str, ...]
    imputed: tuple[str, ...]
    clamped: tuple[str, ...]
    reason: Reason | None
    policy: Policy
    expected: Expected
    interval: list[Any] | None = None
    prediction_set: list[Any] | None = None
    elapsed_ms: float = 0.0
    late_groups: tuple[str, ...] = ()
    unused_groups: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    ranking: list[int] | None = None
    note: str | None = None
    approximate: bool = False
    contributions: Contributions | None = None
    ages: dict[str, float] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        shown = {
            "prediction": self.prediction,
            "probabilities": self.probabilities,
            "interval": self.interval,
            "prediction_set": self.prediction_set,
            "groups": ", ".join(self.groups) or "none (the base rate)",
            "step": f"{self.prefix} of {self.steps}",
            "cost": f"{self.cost:g}",
            "missing": ", ".join(self.missing),
            "imputed": ", ".join(self.imputed),
            "clamped": ", ".join(self.clamped),
            "note": self.note,
        }
        if self.contributions is not None:
            shown["base"] = self.contributions.intercept
            shown |= {f"contribution of {name}": each for name, each in self.contributions.groups.items()}
        facts = {name: _shown(value) for name, value in shown.items() if value not in (None, "")}
        return Tabulated.of_rows(
            ("", ""), facts.items(), caption=f"answer of {self.model} {self.version}".rstrip()
        )._repr_html_()

    def with_note(self, note: str) -> Self:
        """Return the answer with one more note, before the one that it has; all have at most 300 characters."""
        return replace(self, note=_joined(note, self.note))


def _shown(value: Any) -> str:
    """Return a part of an answer as text for notebooks, numbers with four digits."""
    if isinstance(value, list):
        cells = [*map(_shown, value[:MAX_CELLS]), *(["..."] if len(value) > MAX_CELLS else [])]
        return f"[{', '.join(cells)}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _joined(note: str, before: str | None) -> str:
    return clipped(note if before is None else f"{note}; {before}", LONGEST_NOTE)


class BestPrediction(NamedTuple):
    """The best prediction from the groups received: its scores (rows, P), and what they are based on.

    `allowed` is the prefix that answers once all groups within the budget are there, and `arrived` the optimum of the
    groups, if it answers. `policy` is the one that answers.
    """

    prefix: int
    allowed: int
    arrived: ArrivedModel | None
    policy: Policy
    groups: tuple[str, ...]
    cost: float
    expected: Expected
    budget: float | None
    note: str | None
    scores: Float = np.empty((0, 0))


class Prediction:
    """Groups received for one or more rows, and the answers they allow.

    Parameters
    ----------
    model : Model
        The model that answers.
    rows : int
        Number of rows that share this prediction (the documents of a query), at least 1; None takes the number of rows
        of the first values.
    """

    def __init__(self, model: Model, rows: int | None = 1) -> None:
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1):
            raise ValuesError(f"rows is {rows!r}; expected a whole number, 1 or more")
        self.model = model
        self.prefix = 0
        """Longest complete prefix, whatever the budget."""
        self.replaced: dict[str, None] = {}
        """Groups received more than once."""
        self.replacements = 0
        """Number of times that a received group was replaced."""
        self.nbytes = 0
        """Bytes of the received values."""
        self._rows = None if rows is None else int(rows)
        self._unreceived = list(model.groups_added)
        self._received: dict[str, None] = {}
        self._nulls: dict[str, Bool] = {}
        self._clamped: dict[str, Bool] = {}
        self._X: Float | None = None
        self._inputs: dict[str, Float] = {}
        """Clamped values (columns, rows) of received groups that products need."""
        self._ready: tuple[int, Float] | None = None
        self._usable: tuple[tuple[float | None, int], frozenset[str]] | None = None
        self._snapshots: Collection[Prediction] = ()
        """Those that read `_X`; one that is not needed any more is not in it."""
        self._advance()

    def __repr__(self) -> str:
        received = ", ".join(self.received) or "no group"
        count = f"{self.rows} row{'s' * (self.rows != 1)}"
        return f"<Prediction by {self.model.name} of {count}: {received}; prefix {self.prefix}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self)[1:-1])}</p>"

    @property
    def rows(self) -> int:
        """Number of rows; 1 while it is unknown."""
        return self._rows or 1

    @property
    def received(self) -> tuple[str, ...]:
        """Groups received so far, in sequence order."""
        return self.model.order(self._received)

    def expect_rows(self, rows: int) -> None:
        """Set the number of rows; raise ValuesError if a different one is known."""
        if self._rows not in (None, rows):
            raise ValuesError(f"rows is {rows}; expected {self._rows}, as before")
        if self._rows is None:
            self._rows, self._ready = rows, None  # earlier answers had one row

    def has(self, group: str) -> bool:
        """Return whether a group has been received."""
        return group in self._received

    def more_bytes(self, values: Mapping[str, Float]) -> int:
        """Return the bytes that storing values (rows, features) by group would add to `nbytes`."""
        places, products, received = self.model.places, self.model.product_places, self._received
        if isinstance(values, CheckedRow) and not products and received.keys().isdisjoint(values.layout.slices):
            return 8 * len(values.layout.mean)  # nearly always, in a third of the time
        new = {name: places[name] for name in values if name not in received}
        numbers = sum([place.stop - place.start for place in new.values()])
        if products:
            numbers += sum(len(place.features) for place in new.values() if place.products)
            ready = self._inputs.keys() | new
            completed = [each for each in products if not new.keys().isdisjoint(each.groups)]
            numbers += sum(each.stop - each.start for each in completed if ready.issuperset(each.groups))
        return 8 * numbers * len(values[next(iter(new))]) if new else 0

    def add(self, group: str, values: Any) -> None:
        """Add the values of one group; the last values of a group count.

        Parameters
        ----------
        group : str
            Name of a group that has features.
        values : array of shape (rows, features)
            In raw units, columns in the order of the groups file; a flat list when `rows` is 1. None, NaN, masked
            elements and `pandas.NA` are missing values: the training mean replaces them, and the answer lists the
            column. Columns of categories take their levels, as text, whole numbers or booleans. The columns of a frame
            or of a structured array go by their names. A group of one column takes a number, too.

        Raises
        ------
        ValuesError
            Unknown group, group without features, wrong shape, text or infinity; the prediction is unchanged.
        """
        self.add_checked(group, self.checked(group, values))

    def checked(self, group: str, values: Any, *, coded: bool = False) -> Float:
        """Return values in the form that `add_checked` accepts: (rows, features), NaN if missing; raises as `add`.

        A category becomes the index of its level, -1 for other levels. With `coded`, it is this index already.
        """
        place = self.model.places.get(group) if isinstance(group, str) else None
        if place is None:
            groups, shown = self.model.groups, clipped(str(group), LONGEST_NAME)
            if isinstance(group, str) and group in groups.positions:
                raise ValuesError(f"group {shown!r} has no features and therefore no values; do not send it")
            raise ValuesError(
                f"there is no group {shown!r} in model {self.model.name!r}; {suggestion(shown, groups.names)}"
            )
        return numbers_of(group, place.features, place.expansion.readers, values, self._rows, coded=coded)

    def add_all(self, values: Mapping[str, Float]) -> None:
        """Add groups that `checked_row` returned, or `checked` each."""
        layout = row = None
        if isinstance(values, CheckedRow):
            layout = values.layout
            row = None if layout.expansion is None else layout.expansion.terms_of_row(values.numbers)
        if layout is not None and row is not None:
            self._stored(1, values)[0, layout.columns] = row - layout.mean
            for group, place in layout.places.items():
                self._clamped.pop(group, None)
                self._count(group, place, None, 8 * (place.stop - place.start))
        else:
            for group, each in values.items():
                self.add_checked(group, each, present=layout is not None)

    def add_checked(self, group: str, values: Float, *, present: bool = False) -> None:
        """Add values that `checked` returned, or `checked_row`; then none is missing, and `present` is true."""
        place = self.model.places[group]
        stored = self._stored(len(values), (group,))[:, place.start : place.stop]
        expansion, nulls = place.expansion, None
        if expansion.is_identity:
            np.subtract(values, place.mean, out=stored)
        else:
            nulls = self._expand(group, expansion, values, stored.T)
            stored -= place.mean
        if not present and math.isnan(dasum(stored.ravel(order="K"))):  # 1 us, 3 by `np.isnan(values).any()`
            missing = np.isnan(stored)
            stored[missing] = 0.0
            absent = missing[:, [start for start, _ in expansion.spans]].any(axis=0)
            nulls = np.asarray(absent if nulls is None else nulls | absent)
        self._count(group, place, nulls, stored.nbytes)
        if place.products:
            self._multiply(group, place, expansion.clamped(values)[0])

    def store_in(self, array: Float) -> None:
        """Store the values in an array (rows, terms) of the caller, who may use it again after this prediction."""
        self._X = array

    def _stored(self, rows: int, groups: Iterable[str]) -> Float:
        """Return the array (rows, terms) in which to write the values of some groups."""
        if self._rows != rows:
            self.expect_rows(rows)
        before = self._X
        if before is not None and not (self._snapshots and any(map(self.has, groups))):
            return before
        self._X = stored = _untouched(rows, len(self.model.prefixes.mean))
        if before is not None:
            products = [each for each in self.model.product_places if self._inputs.keys() >= set(each.groups)]
            spans = [(each.start, each.stop) for each in map(self.model.places.__getitem__, self._received)]
            for start, stop in spans + [(each.start, each.stop) for each in products]:
                stored[:, start:stop] = before[:, start:stop]
            self._snapshots = ()
        return stored

    def _count(self, group: str, place: GroupPosition, nulls: Bool | None, nbytes: int) -> None:
        """Count a group as received; `nulls` are the columns with a missing value, or None."""
        if group in self._received:
            self.replaced[group] = None
            self.replacements += 1
            self._ready = None
            self._nulls.pop(group, None)
        else:
            self._received[group] = None
            self.nbytes += nbytes
            self._unreceived[place.step] -= 1
            if not self._unreceived[place.step]:
                self._advance()
        if nulls is not None:
            self._nulls[group] = nulls

    def _multiply(self, group: str, place: GroupPosition, inputs: Float) -> None:
        """Store a group's clamped values (columns, rows), and the products of columns that are there."""
        assert self._X is not None  # noqa: S101
        is_new, self._inputs[group] = group not in self._inputs, inputs
        self.nbytes += is_new * inputs.nbytes
        for each in place.products:
            if self._inputs.keys() >= set(each.groups):
                stored = self._X[:, each.start : each.stop]
                self.nbytes += is_new * stored.nbytes
                each.expand(self._inputs, stored.T)
                stored -= each.mean
                stored[np.isnan(stored)] = 0.0

    def _expand(self, group: str, columns: Columns, values: Float, out: Float) -> Bool | None:
        """Write the terms of a group; record which columns are clamped, and return which have an unknown level."""
        x, outside = columns.clamped(values)
        columns.expand_clamped(x, values, out)
        self._clamped.pop(group, None)
        if outside is not None:
            self._clamped[group] = outside
        if not columns.categories:
            return None
        unknown = np.zeros(values.shape[1], dtype=np.bool_)
        for j in columns.categories:
            unknown[j] = (values[:, j] < 0).any()
        return unknown

    def prepare(self, budget: float | None = None, policy: Policy = "prefix") -> None:
        """Compute the scores of the current prefix, so that many rows need no product when the deadline expires.

        The base rate needs no product, and it would use memory for each row of a prediction without values.
        """
        prefix = self.model.answering(min(self.prefix, self.model.affordable(budget, policy)), policy)
        if self.model.prefixes.ends[prefix]:
            self._prefix_scores(prefix)

    def usable(self, budget: float | None = None) -> frozenset[str]:
        """Return the groups that policy "arrived" uses: with a budget, in sequence order while the joint cost fits."""
        known = budget, len(self._received)  # groups are only added
        if self._usable is None or self._usable[0] != known:
            self._usable = known, usable(self.model, self._received, budget)
        return self._usable[1]

    def answer(
        self,
        budget: float | None = None,
        policy: Policy = "prefix",
        *,
        ranking: bool = False,
        explain: bool = False,
        reason: Reason | None = "end",
        elapsed_ms: float = 0.0,
        late_groups: Iterable[str] = (),
        solve: Solve = arrived_model,
    ) -> Answer:
        """Return the best prediction from the groups received so far.

        Parameters
        ----------
        budget : float | None
            Maximum joint cost of the groups used, in the model's cost unit; None is no limit.
        policy : Policy
            "prefix", the longest complete prefix within the budget; "best", the prefix of least cross-validated error
            within that one, where it is better by one standard error; or "arrived", the exact optimum for the set of
            groups received (with a budget: in sequence order, while the joint cost fits). A model without one of them
            answers by prefix, and `note` gives the reason.
        ranking : bool
            Whether to return the order of the rows, by descending score.
        explain : bool
            Whether to return the contributions of the groups used and of their columns.
        reason, elapsed_ms, late_groups
            Copied into the answer; the caller measures time.
        solve : Solve
            Finds the optimum of a set; where it returns None, the prefix answers and `note` states it.

        Raises
        ------
        ValuesError
            The budget is negative or not a number, the policy is unknown, or the model has several scores per row to
            rank.
        """
        return self.settle(
            budget,
            policy,
            ranking=ranking,
            explain=explain,
            reason=reason,
            elapsed_ms=elapsed_ms,
            late_groups=late_groups,
            solve=solve,
        ).make()

    def settle(
        self,
        budget: float | None,
        policy: Policy,
        *,
        ranking: bool,
        explain: bool,
        reason: Reason | None,
        elapsed_ms: float,
        late_groups: Iterable[str],
        solve: Solve,
        at_once: float = math.inf,
    ) -> Settled:
        """Return an answer whose numbers are not made yet.

        More than `at_once` are made of the values that the groups have now, whatever arrives meanwhile: another thread
        may make them. Fewer must be made before the next group is added.
        Arguments and errors are those of `answer`; a ranking of several scores per row is an error of `make`.
        """
        model, best = self.model, self._selected(budget, policy, solve)
        fields = dict[str, Any](
            model=model.manifest.name,
            version=model.manifest.version,
            prefix=best.prefix,
            steps=model.steps,
            groups=best.groups,
            cost=best.cost,
            cost_total=self._total(best),
            budget=best.budget,
            complete=best.prefix == best.allowed,
            missing=tuple([name for name in model.computed[best.allowed] if name not in self._received]),
            imputed=self.imputed(best.groups) if self._nulls else (),
            clamped=self.clamped(best.groups) if self._clamped else (),
            reason=reason,
            policy=best.policy,
            expected=best.expected,
            elapsed_ms=elapsed_ms,
            late_groups=tuple(late_groups),
            replaced=model.order(self.replaced) if self.replaced else (),
            note=best.note,
            approximate=best.arrived is not None and best.arrived.approximate,
        )
        columns = len(model.groups.features) if explain else 0
        numbers = (self._rows or 1) * len(model.prefixes.intercept) * (1 + columns)
        source = self if numbers <= at_once else copy(self)
        if source is not self:  # later values go to another array
            self._snapshots = WeakSet((*self._snapshots, source))
        return Settled(fields, numbers, partial(source._numbers, best, ranking=ranking, explain=explain))

    def _numbers(
        self, best: BestPrediction, *, ranking: bool, explain: bool, listed: Callable[[Float], Any] = np.ndarray.tolist
    ) -> dict[str, Any]:
        """Return the fields of an answer that have numbers for each row; `listed` converts the arrays of all rows."""
        best, classes = self._scored(best), self.model.manifest.classes
        P = best.scores.shape[1]
        if ranking and P > 1:
            raise ValuesError(
                f"ranking requires one score per row; model {self.model.name!r} has {P}; rank the rows by one of its "
                "predictions"
            )
        outputs = model_outputs(self.model, best.scores)
        interval, members = covering(self.model, best.prefix if best.arrived is None else best.arrived.prefix, outputs)
        if classes is None:
            predictions = listed(outputs[:, 0] if outputs.shape[1] == 1 else outputs)
        else:
            predictions = [classes[i] for i in outputs.argmax(axis=1)]
        return {
            "prediction": self._by_row(predictions),
            "probabilities": None if classes is None else self._by_row(listed(outputs)),
            "interval": None if interval is None else self._by_row(listed(interval)),
            "prediction_set": None if members is None else self._by_row(label_sets(members, classes or ())),
            "ranking": np.argsort(-best.scores[:, 0], kind="stable").tolist() if ranking else None,
            "contributions": self._contributions(best) if explain else None,
        }

    def best(
        self,
        budget: float | None = None,
        policy: Policy = "prefix",
        solve: Solve = arrived_model,
        *,
        limit: int | None = None,
    ) -> BestPrediction:
        """Return the scores of the best prediction from the groups received so far; arguments and errors as `answer`.

        `limit` is the longest prefix to use, instead of the budget's.
        """
        return self._scored(self._selected(budget, policy, solve, limit))

    def _selected(self, budget: float | None, policy: Policy, solve: Solve, limit: int | None = None) -> BestPrediction:
        """Return the best prediction without its scores."""
        model, policy = self.model, checked_policy(policy)
        if budget is not None:
            budget = checked_budget(budget, model.groups.cost_unit)
        reason = None if policy in model.policies else model.fallback_reason(policy)
        arrived = None
        if policy == "arrived" and reason is None:
            arrived = solve(model, self.usable(budget))
            reason = None if arrived else "the optimum of these groups is not solved yet"
        policy, note = (policy, None) if reason is None else ("prefix", f"{reason}; the prefix policy answered")
        allowed = model.affordable(budget, policy) if limit is None else limit
        prefix = model.answering(min(self.prefix, allowed), policy)
        if arrived is None:
            used, cost, expected = model.computed[prefix], float(model.costs[prefix]), model.expected(prefix)
        else:
            used, cost, expected = model.order(arrived.groups), arrived.cost, arrived.expected
        return BestPrediction(prefix, allowed, arrived, policy, used, cost, expected, budget, note)

    def _scored(self, best: BestPrediction) -> BestPrediction:
        """Return a selected prediction with its scores."""
        arrived = best.arrived
        if arrived is None:
            return best._replace(scores=self._prefix_scores(best.prefix))
        return best._replace(scores=self._scores(arrived.columns, arrived.coef, arrived.intercept))

    def imputed(self, groups: Iterable[str]) -> tuple[str, ...]:
        """Return the columns of some groups in which a value was missing, or a level that was never seen."""
        return self._columns(groups, self._nulls)

    def clamped(self, groups: Iterable[str]) -> tuple[str, ...]:
        """Return the columns of some groups in which a value was outside the range."""
        return self._columns(groups, self._clamped)

    def _columns(self, groups: Iterable[str], marked: Mapping[str, Bool]) -> tuple[str, ...]:
        """Return the marked columns of some groups."""
        return tuple(
            column
            for name in groups
            if name in marked
            for column in compress(self.model.places[name].features, marked[name])
        )

    def parts(
        self, best: BestPrediction, shaped: Callable[[Float], Iterable[Any]], intercept: Callable[[Float], Any]
    ) -> Contributions:
        """Return the contributions to the best scores, in the shapes that `shaped` and `intercept` give them."""
        prefixes, arrived = self.model.prefixes, best.arrived
        coef = prefixes.coef(best.prefix) if arrived is None else arrived.coef
        base = prefixes.intercept_of(best.prefix) if arrived is None else arrived.intercept
        columns: slice | Index = slice(len(coef)) if arrived is None else arrived.columns
        terms = np.empty((self.rows, 0)) if self._X is None else self._X[:, columns]
        return contributions(self.model, best.groups, terms, coef, intercept(base), shaped)

    def _contributions(self, best: BestPrediction) -> Contributions:
        """Return the contributions to the best scores as lists."""
        several, P = self.rows > 1, best.scores.shape[1]

        def shaped(values: Float) -> Any:
            values = values if several else values[:, 0]
            return (values[..., 0] if P == 1 else values).tolist()

        return self.parts(best, shaped, lambda base: base.tolist()[0] if P == 1 else base.tolist())

    def _total(self, best: BestPrediction) -> float:
        """Return the cost of the groups used for all rows together."""
        if best.arrived is None:
            return self.model.prefix_costs[best.prefix].of_call(self._rows or 1)
        if not self.model.prefix_costs[-1].fixed:
            return best.cost * self.rows
        return self.model.total_cost(best.arrived.groups, self.rows)

    def _advance(self) -> None:
        """Advance over the steps whose features have all been received; steps that add no features are complete."""
        while self.prefix < self.model.steps and not self._unreceived[self.prefix + 1]:
            self.prefix += 1

    def _prefix_scores(self, prefix: int) -> Float:
        if self._ready is None or self._ready[0] != prefix:
            coef, intercept = self.model.prefixes.coef(prefix), self.model.prefixes.intercept_of(prefix)
            self._ready = prefix, self._scores(slice(len(coef)), coef, intercept)
        return self._ready[1]

    def _scores(self, columns: slice | Index, coef: Float, intercept: Float) -> Float:
        """Return scores (rows, P) from received columns; extreme coefficients overflow, and callers check."""
        if not len(coef):
            return np.tile(intercept, (self.rows, 1))
        assert self._X is not None  # noqa: S101  (these columns were received)
        with np.errstate(over="ignore", invalid="ignore"):
            return row_scores(self._X.T[columns], coef, intercept)

    def _by_row(self, rows: Any) -> Any:
        """Return the list of all rows, or its element if there is one row."""
        return rows if (self._rows or 1) > 1 else rows[0]


@dataclass(frozen=True)
class Settled:
    """An answer whose numbers are not made yet; `numbers` is about how many there are.

    `fields` are known, and `rest` returns the others, see `Prediction.settle`.
    """

    fields: dict[str, Any]
    numbers: int
    rest: Callable[..., dict[str, Any]]

    def make(self) -> Answer:
        """Return the complete answer."""
        return Answer(**self.fields, **self.rest())

    def make_arrays(self) -> Answer:
        """Return the complete answer, with arrays instead of lists of numbers for all rows."""
        return Answer(**self.fields, **self.rest(listed=np.asarray))

    def with_note(self, note: str) -> Self:
        """Return the answer with one more note, see `Answer.with_note`."""
        return replace(self, fields=self.fields | {"note": _joined(note, self.fields["note"])})


_MAPPED = 1 << 20
"""Bytes from which an array gets pages of its own."""


def _untouched(rows: int, columns: int) -> Float:
    """Return an array (rows, columns) of contiguous columns, in which columns that are never written use no memory.

    NumPy requests huge pages for large arrays: a column of 80 KB would use 2 MB. Pages of its own are also returned to
    the system at once.
    """
    if 8 * rows * columns < _MAPPED:
        return np.empty((rows, columns), order="F")
    if os.name == "nt":
        pages = mmap.mmap(-1, 8 * rows * columns)
    else:
        pages = mmap.mmap(-1, 8 * rows * columns, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # a system, or a kernel, without huge pages
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.float64).reshape((rows, columns), order="F")
