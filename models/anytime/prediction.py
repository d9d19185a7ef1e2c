"""A prediction in the making: what has arrived so far, and the best answer from it.

No clock and no I/O here: a `Prediction` is told what arrived and asked for answers, by an embedding program, by the
runner or by the service. A refused group changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from anytime.answer import Answer, Policy, Reason
from anytime.arrays import Bool, Float
from anytime.arrived import ArrivedModel, arrived_model
from anytime.errors import ValuesError, listed, suggestion
from anytime.model import AnytimeModel, checked_budget

__all__ = ["LARGEST", "Prediction", "class_probabilities"]

LARGEST = 1e100
"""Largest value taken: a sum of products with coefficients stays finite, so that there is always an answer."""


class Prediction:
    """Groups received for one or more rows, and the answers they allow.

    Parameters
    ----------
    model : the model that answers.
    rows : number of rows that share this prediction (the documents of a query), at least 1.
    """

    def __init__(self, model: AnytimeModel, rows: int = 1) -> None:
        if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1:
            raise ValuesError(f"rows is {rows!r}; expected a whole number, 1 or more")
        self.model = model
        self.rows = int(rows)
        self._values: dict[str, Float] = {}
        self._nulls: dict[str, Bool] = {}

    @property
    def received(self) -> tuple[str, ...]:
        """Groups received so far, in sequence order."""
        return tuple(self.model.order(self._values))

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
        groups = self.model.groups
        if not isinstance(group, str) or group not in groups.positions:
            raise ValuesError(
                f"there is no group {group!r} in model {self.model.name!r}; {suggestion(str(group), groups.names)}"
            )
        index = groups.positions[group]
        if not groups.groups[index].features:
            raise ValuesError(f"group {group!r} has no features, so it has no values; do not send it")
        array = self._checked(group, groups.groups[index].features, values)
        nulls = np.isnan(array)
        self._values[group] = np.where(nulls, self.model.prefixes.mean[groups.slices[index]], array)
        self._nulls[group] = np.asarray(nulls.any(axis=0))

    def _checked(self, group: str, features: tuple[str, ...], values: Any) -> Float:
        """`values` as a float64 array (rows, features), NaN where null."""
        expected = f"expected {self.rows} x {len(features)} numbers (rows x features)"
        try:
            array = np.asarray(values)
        except ValueError as error:  # rows of unequal lengths
            raise ValuesError(f"values of group {group!r} are ragged; {expected}") from error
        if array.ndim == 1 and self.rows == 1:
            array = array[np.newaxis, :]
        if array.shape != (self.rows, len(features)):
            shape = " x ".join(map(str, array.shape)) or "a single value"
            raise ValuesError(f"values of group {group!r} are {shape}; {expected}")
        if array.dtype == object:
            if not all(item is None or isinstance(item, (int, float, np.number)) for item in array.flat):
                raise ValuesError(f"values of group {group!r} are not all numbers; {expected}")
            array = np.array([np.nan if item is None else item for item in array.flat], dtype=object).reshape(
                array.shape
            )
        if array.dtype.kind not in "biufO":
            raise ValuesError(f"values of group {group!r} are not numbers; {expected}")
        try:
            with np.errstate(over="ignore"):
                array = array.astype(np.float64)
        except OverflowError as error:
            raise ValuesError(f"values of group {group!r} hold a number too large for a float") from error
        absurd = np.abs(array) > LARGEST
        if absurd.any():
            named = listed(np.array(features)[absurd.any(axis=0)])
            raise ValuesError(
                f"values of group {group!r} are infinite or beyond {LARGEST:g} in {named}; expected numbers, or null"
            )
        return array

    def answer(
        self,
        budget: float | None = None,
        policy: Policy = "prefix",
        *,
        reason: Reason = "end",
        elapsed_ms: float = 0.0,
        late_groups: Iterable[str] = (),
    ) -> Answer:
        """The best prediction from what has arrived.

        Parameters
        ----------
        budget : cost that the groups used may have, in the model's cost unit; None is no limit.
        policy : "prefix", the longest complete prefix within the budget; or "arrived", the exact optimum for whatever
        set
            has arrived (with a budget: in sequence order, while the joint cost fits).
        reason, elapsed_ms, late_groups : told by whoever keeps the clock, and passed on.

        Raises
        ------
        ValuesError
            The budget is negative or not a number, or the policy is unknown.
        """
        if policy not in ("prefix", "arrived"):
            raise ValuesError(f"policy is {policy!r}; expected 'prefix' or 'arrived'")
        model = self.model
        budget = checked_budget(budget, model.groups.cost_unit)
        allowed = model.affordable(budget)
        prefix = self._complete(allowed)
        note = None
        arrived = None
        if policy == "arrived":
            if model.moments is None:
                policy, note = "prefix", "the model was saved without its moments; the prefix policy answered"
            else:
                arrived = arrived_model(model, self._within(budget))
        used = model.needed[prefix] if arrived is None else arrived.groups
        scores = self._scores(prefix, arrived)
        prediction, probabilities = self._told(scores)
        nulls = (f for g in model.order(used) for f in self._null_features(g))
        missing = model.needed[allowed].difference(self._values)
        return Answer(
            model=model.name,
            version=model.version,
            prediction=prediction,
            probabilities=probabilities,
            prefix=prefix,
            steps=model.steps,
            groups=tuple(model.order(used)),
            cost=float(model.costs[prefix]) if arrived is None else arrived.cost,
            budget=budget,
            complete=prefix == allowed,
            missing=tuple(model.order(missing)),
            imputed=tuple(nulls),
            reason=reason,
            policy=policy,
            expected=model.expected(prefix) if arrived is None else arrived.expected,
            elapsed_ms=elapsed_ms,
            late_groups=tuple(late_groups),
            note=note,
        )

    def _complete(self, allowed: int) -> int:
        """Longest prefix, at most `allowed` steps, of which every group with features has arrived."""
        prefix = 0
        while prefix < allowed and self.model.needed[prefix + 1].issubset(self._values):
            prefix += 1
        return prefix

    def _within(self, budget: float | None) -> frozenset[str]:
        """Arrived groups in sequence order while their joint cost, with what they require, fits the budget."""
        groups = self.model.groups
        if budget is None:
            return frozenset(self._values)
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

    def _scores(self, prefix: int, arrived: ArrivedModel | None) -> Float:
        """Linear predictor (rows, P)."""
        models = self.model.prefixes
        if arrived is None:
            used, columns = self.model.order(self.model.needed[prefix]), models.columns[: models.ends[prefix]]
            coef = models.coef(prefix)
        else:
            used, columns, coef = arrived.order, arrived.columns, arrived.coef
        if not used:
            return np.tile(models.intercept, (self.rows, 1))
        X = np.hstack([self._values[name] for name in used])
        return models.intercept + (X - models.mean[columns]) @ coef

    def _told(self, scores: Float) -> tuple[Any, Any]:
        """Prediction and probabilities in the form that an answer has."""
        classes = self.model.manifest.classes
        if classes is None:
            numbers = scores[:, 0] if scores.shape[1] == 1 else scores
            return (numbers.tolist() if self.rows > 1 else numbers[0].tolist()), None
        likely = class_probabilities(scores)
        chosen = [classes[i] for i in likely.argmax(axis=1)]
        return (chosen, likely.tolist()) if self.rows > 1 else (chosen[0], likely[0].tolist())

    def _null_features(self, group: str) -> list[str]:
        features = self.model.groups.groups[self.model.groups.positions[group]].features
        return [f for f, null in zip(features, self._nulls[group], strict=True) if null]


def class_probabilities(scores: Float) -> Float:
    """Least-squares estimates (rows, P) of one-hot classes as probabilities (rows, classes).

    They are clipped at 0 and scaled to sum to 1. One response stands for the second of two classes.
    """
    if scores.shape[1] == 1:
        second = np.clip(scores, 0.0, 1.0)
        return np.hstack([1.0 - second, second])
    positive = np.clip(scores, 0.0, None)
    total = positive.sum(axis=1, keepdims=True)
    # One-hot estimates sum to 1, so some are positive; only rounding of absurdly large values can leave none.
    even = np.full_like(positive, 1.0 / scores.shape[1])
    shares: Float = np.divide(positive, total, out=even, where=total > 0)
    return shares
