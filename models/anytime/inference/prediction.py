"""A prediction in the making: what has arrived so far, and the best answer from it.

No clock and no I/O here: a `Prediction` is told what arrived and asked for answers, by an embedding program, by the
runner or by the service. A refused group changes nothing.

Values are kept less their training means, column after column in the order of the sequence, so that a prefix is one
product with the first columns, whatever the order of arrival. Only the columns that have come take memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy.linalg.blas import dasum

from anytime.errors import ValuesError, suggestion
from anytime.inference.answer import Answer
from anytime.inference.conformal import class_members, covering_intervals, label_sets, told_of
from anytime.inference.subsets import ArrivedModel, arrived_model
from anytime.inference.values import LARGEST, checked_values
from anytime.model.model import Model, checked_budget
from anytime.types import Bool, Float, Index, Policy, Reason

__all__ = [
    "LARGEST",
    "Prediction",
    "Solve",
]

Solve = Callable[[Model, frozenset[str]], ArrivedModel | None]
"""Finds the optimum of a set of groups; None is "not yet"."""


class Prediction:
    """Groups received for one or more rows, and the answers they allow.

    Parameters
    ----------
    model : the model that answers.
    rows : number of rows that share this prediction (the documents of a query), at least 1; None counts them in the
        first values that come.
    """

    def __init__(self, model: Model, rows: int | None = 1) -> None:
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1):
            raise ValuesError(f"rows is {rows!r}; expected a whole number, 1 or more")
        self.model = model
        self.prefix = 0
        """Longest complete prefix, whatever the budget."""
        self.replaced: dict[str, None] = {}
        """Groups that came more than once."""
        self.replacements = 0
        """How often a group came again."""
        self.nbytes = 0
        """Bytes of the values that have come."""
        self._rows = None if rows is None else int(rows)
        self._lacking = list(model.lacking)
        self._nulls: dict[str, Bool | None] = {}
        self._X: Float | None = None
        self._ready: tuple[int, Float] | None = None
        self._advance()

    @property
    def rows(self) -> int:
        """Number of rows: 1 for as long as it is not known."""
        return self._rows or 1

    @property
    def rows_known(self) -> bool:
        """Whether the number of rows was told, or counted."""
        return self._rows is not None

    @property
    def received(self) -> tuple[str, ...]:
        """Groups received so far, in sequence order."""
        return tuple(self.model.order(self._nulls))

    def expect_rows(self, rows: int) -> None:
        """Tell the number of rows, where it was not told before.

        Raises
        ------
        ValuesError
            It is known to be another.
        """
        if self._rows not in (None, rows):
            raise ValuesError(f"rows is {rows}; expected {self._rows}, as before")
        self._know_rows(rows)

    def has(self, group: str) -> bool:
        """Tell whether a group has been received."""
        return group in self._nulls

    def add(self, group: str, values: Any) -> None:
        """Take the values of one group; the last values of a group count.

        Parameters
        ----------
        group : name of a group that has features.
        values : (rows, features) in raw units, columns in the order of the groups file; a flat list when `rows` is 1.
            None and NaN stand for a value that is missing: the training mean takes its place, and the answer says so.

        Raises
        ------
        ValuesError
            Unknown group, group without features, wrong shape, text or infinity; nothing has changed.
        """
        self.take(group, self.checked(group, values))

    def checked(self, group: str, values: Any) -> Float:
        """Values as `take` takes them: (rows, features), NaN where missing; raises as `add` does."""
        place = self.model.places.get(group) if isinstance(group, str) else None
        if place is None:
            raise ValuesError(self._not_taken(group))
        return checked_values(group, place.features, self._rows, values)

    def take(self, group: str, array: Float) -> None:
        """Take values that `checked` let through."""
        place = self.model.places[group]
        if self._X is None:
            self._know_rows(len(array))
            # Columns are contiguous, so pages of those that never come are never touched.
            self._X = np.empty((len(array), len(self.model.prefixes.mean)), order="F")
        kept = self._X[:, place.start : place.stop]
        np.subtract(array, place.mean, out=kept)
        nulls = None
        if math.isnan(dasum(kept.ravel(order="K"))):
            missing = np.isnan(array)
            kept[missing] = 0.0
            nulls = np.asarray(missing.any(axis=0))
        if group in self._nulls:
            self.replaced[group] = None
            self.replacements += 1
            self._ready = None
        else:
            self.nbytes += kept.nbytes
            self._lacking[place.step] -= 1
            self._advance()
        self._nulls[group] = nulls

    def prepare(self, budget: float | None = None) -> None:
        """Compute the scores of the current prefix, so that many rows need no product when the deadline expires.

        The base rate is not computed: it needs no product, and memory for each row of a prediction without values.
        """
        prefix = min(self.prefix, self.model.affordable(budget))
        if self.model.prefixes.ends[prefix]:
            self._prefix_scores(prefix)

    def usable(self, budget: float | None = None) -> frozenset[str]:
        """Groups that the policy "arrived" uses: all; with a budget, in sequence order while the joint cost fits."""
        groups = self.model.groups
        if budget is None:
            return frozenset(self._nulls)
        taken: set[str] = set()
        paid: set[int] = set()
        for name in self.received:
            index = groups.position(name)
            with_this = paid | {index, *groups.prerequisites[index]}
            if groups.costs[list(with_this)].sum() > budget * (1 + 1e-9):
                break
            paid = with_this
            taken.add(name)
        return frozenset(taken)

    def answer(
        self,
        budget: float | None = None,
        policy: Policy = "prefix",
        *,
        ranking: bool = False,
        reason: Reason | None = "end",
        elapsed_ms: float = 0.0,
        late_groups: Iterable[str] = (),
        solve: Solve = arrived_model,
    ) -> Answer:
        """The best prediction from what has arrived.

        Parameters
        ----------
        budget : cost that the groups used may have, in the model's cost unit; None is no limit.
        policy : "prefix", the longest complete prefix within the budget; or "arrived", the exact optimum for whatever
            set has arrived (with a budget: in sequence order, while the joint cost fits).
        ranking : also give the order of the rows, by descending score.
        reason, elapsed_ms, late_groups : told by whoever keeps the clock, and passed on.
        solve : finds the optimum of a set; where it has none yet, the prefix answers and `note` says so.

        Raises
        ------
        ValuesError
            The budget is negative or not a number, the policy is unknown, or rows cannot be ranked.
        """
        if policy not in ("prefix", "arrived"):
            raise ValuesError(f"policy is {policy!r}; expected 'prefix' or 'arrived'")
        model = self.model
        budget = checked_budget(budget, model.groups.cost_unit)
        allowed = model.affordable(budget)
        prefix = min(self.prefix, allowed)
        note = arrived = None
        if policy == "arrived":
            arrived, note = self._arrived(budget, solve)
        if arrived is None:
            used, cost, expected = model.computed[prefix], float(model.costs[prefix]), model.expected(prefix)
            scores = self._prefix_scores(prefix)
        else:
            used, cost, expected = tuple(model.order(arrived.groups)), arrived.cost, arrived.expected
            scores = self._arrived_scores(arrived)
        told = told_of(model, scores)
        prediction, probabilities = self._prediction(told)
        interval, prediction_set = self._covering(told, prefix if arrived is None else arrived.prefix)
        return Answer(
            model=model.name,
            version=model.version,
            prediction=prediction,
            probabilities=probabilities,
            prefix=prefix,
            steps=model.steps,
            groups=used,
            cost=cost,
            budget=budget,
            complete=prefix == allowed,
            missing=tuple(name for name in model.computed[allowed] if name not in self._nulls),
            imputed=self._imputed(used),
            reason=reason,
            policy="prefix" if arrived is None else "arrived",
            expected=expected,
            interval=interval,
            prediction_set=prediction_set,
            elapsed_ms=elapsed_ms,
            late_groups=tuple(late_groups),
            replaced=tuple(model.order(self.replaced)),
            ranking=self._ranked(scores) if ranking else None,
            note=note,
            approximate=arrived is not None and arrived.approximate,
        )

    def _advance(self) -> None:
        """Go on over the steps that lack nothing; those that add no features never do."""
        while self.prefix < self.model.steps and not self._lacking[self.prefix + 1]:
            self.prefix += 1

    def _know_rows(self, rows: int) -> None:
        if self._rows != rows:
            self._rows, self._ready = rows, None  # what was answered before was of one row

    def _not_taken(self, group: object) -> str:
        groups = self.model.groups
        if not isinstance(group, str) or group not in groups.positions:
            return f"there is no group {group!r} in model {self.model.name!r}; {suggestion(str(group), groups.names)}"
        return f"group {group!r} has no features, so it has no values; do not send it"

    def _arrived(self, budget: float | None, solve: Solve) -> tuple[ArrivedModel | None, str | None]:
        """Optimum of what has arrived, or why there is none."""
        if not self.model.arrives:
            return None, self.model.falls_back
        arrived = solve(self.model, self.usable(budget))
        return arrived, None if arrived else "the optimum of these groups is not solved yet; the prefix policy answered"

    def _prefix_scores(self, prefix: int) -> Float:
        """Linear predictor (rows, P) of a prefix that is complete."""
        if self._ready is None or self._ready[0] != prefix:
            models = self.model.prefixes
            end = models.ends[prefix]
            if end == 0:
                scores = np.tile(models.intercept_of(prefix), (self.rows, 1))
            else:
                scores = self._product(slice(end), models.coef(prefix), models.intercept_of(prefix))
            self._ready = prefix, scores
        return self._ready[1]

    def _arrived_scores(self, arrived: ArrivedModel) -> Float:
        if not len(arrived.columns):
            return np.tile(arrived.intercept, (self.rows, 1))
        return self._product(arrived.columns, arrived.coef, arrived.intercept)

    def _product(self, columns: slice | Index, coef: Float, intercept: Float) -> Float:
        """Scores (rows, P) from some of the values; absurd coefficients overflow, and whoever sends answers looks."""
        assert self._X is not None  # noqa: S101  (these columns have come)
        with np.errstate(over="ignore", invalid="ignore"):
            scores: Float = intercept + self._X[:, columns] @ coef
        return scores

    def _prediction(self, told: Float) -> tuple[Any, Any]:
        """Prediction and probabilities in the form that an answer has."""
        classes = self.model.manifest.classes
        if classes is None:
            numbers = told[:, 0] if told.shape[1] == 1 else told
            return (numbers.tolist() if self.rows > 1 else numbers[0].tolist()), None
        chosen = [classes[i] for i in told.argmax(axis=1)]
        return (chosen, told.tolist()) if self.rows > 1 else (chosen[0], told[0].tolist())

    def _covering(self, told: Float, prefix: int | None) -> tuple[list[Any] | None, list[Any] | None]:
        """Interval and prediction set in the form that an answer has; a set of groups that is no prefix has neither."""
        manifest = self.model.manifest
        if manifest.calibration is None or prefix is None:
            return None, None
        threshold = manifest.calibration.thresholds[prefix]
        if manifest.classes is not None:
            sets = list(map(list, label_sets(class_members(told, threshold), manifest.classes)))
            return None, sets if self.rows > 1 else sets[0]
        ends = covering_intervals(self.model, told, threshold)
        each: list[Any] = (ends[:, 0] if ends.shape[1] == 1 else ends).tolist()
        return each if self.rows > 1 else each[0], None

    def _ranked(self, scores: Float) -> list[int]:
        if scores.shape[1] > 1:
            raise ValuesError(
                f"rows cannot be ranked: model {self.model.name!r} has {scores.shape[1]} scores for each; rank them"
                " by one of its predictions"
            )
        ranked: list[int] = np.argsort(-scores[:, 0], kind="stable").tolist()
        return ranked

    def _imputed(self, used: Iterable[str]) -> tuple[str, ...]:
        found: list[str] = []
        for name in used:
            nulls = self._nulls.get(name)
            if nulls is not None:
                features = self.model.places[name].features
                found += [feature for feature, null in zip(features, nulls, strict=True) if null]
        return tuple(found)
