"""A prediction: the groups received so far, and the best answer from them.

A `Prediction` has no clock and does no I/O. Its caller (an embedding program, the runner or the service) adds groups
and requests answers. A rejected group leaves the prediction unchanged.

Values are stored minus their training means, column by column in the order of the sequence. A prefix is therefore one
product with the first columns, whatever the order of arrival. Only received columns use memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy.linalg.blas import dasum

from anytime.errors import ValuesError, suggestion
from anytime.inference.conformal import class_members, covering_intervals, label_sets, model_outputs
from anytime.inference.subsets import ArrivedModel, arrived_model
from anytime.inference.values import LARGEST, Answer, checked_values
from anytime.model.file import read_model
from anytime.model.model import Model, checked_budget
from anytime.types import Bool, Float, Index, Policy, Reason

__all__ = ["LARGEST", "LoadedModel", "Prediction", "Solve", "load"]

Solve = Callable[[Model, frozenset[str]], ArrivedModel | None]
"""Return the optimum of a set of groups, or None if it is not solved yet."""


class Prediction:
    """Groups received for one or more rows, and the answers they allow.

    Parameters
    ----------
    model : the model that answers.
    rows : number of rows that share this prediction (the documents of a query), at least 1; None takes the number of
        rows of the first values.
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
        self._nulls: dict[str, Bool | None] = {}
        self._X: Float | None = None
        self._ready: tuple[int, Float] | None = None
        self._advance()

    @property
    def rows(self) -> int:
        """Number of rows; 1 while it is unknown."""
        return self._rows or 1

    @property
    def rows_known(self) -> bool:
        """Whether the number of rows was given, or counted from values."""
        return self._rows is not None

    @property
    def received(self) -> tuple[str, ...]:
        """Groups received so far, in sequence order."""
        return tuple(self.model.order(self._nulls))

    def expect_rows(self, rows: int) -> None:
        """Set the number of rows, if it is not known yet.

        Raises
        ------
        ValuesError
            The number of rows is known and different.
        """
        if self._rows not in (None, rows):
            raise ValuesError(f"rows is {rows}; expected {self._rows}, as before")
        self._know_rows(rows)

    def has(self, group: str) -> bool:
        """Return whether a group has been received."""
        return group in self._nulls

    def add(self, group: str, values: Any) -> None:
        """Add the values of one group; the last values of a group count.

        Parameters
        ----------
        group : name of a group that has features.
        values : (rows, features) in raw units, columns in the order of the groups file; a flat list when `rows` is 1.
            None and NaN are missing values: the training mean replaces them, and the answer lists the feature.

        Raises
        ------
        ValuesError
            Unknown group, group without features, wrong shape, text or infinity; the prediction is unchanged.
        """
        self.take(group, self.checked(group, values))

    def checked(self, group: str, values: Any) -> Float:
        """Return values in the form that `take` accepts: (rows, features), NaN if missing; raises as `add` does."""
        place = self.model.places.get(group) if isinstance(group, str) else None
        if place is None:
            raise ValuesError(self._refusal(group))
        return checked_values(group, place.features, self._rows, values)

    def take(self, group: str, array: Float) -> None:
        """Add values that `checked` returned."""
        place = self.model.places[group]
        if self._X is None:
            self._know_rows(len(array))
            # Columns are contiguous, so pages of columns that never arrive are never touched.
            self._X = np.empty((len(array), len(self.model.prefixes.mean)), order="F")
        stored = self._X[:, place.start : place.stop]
        np.subtract(array, place.mean, out=stored)
        nulls = None
        if math.isnan(dasum(stored.ravel(order="K"))):
            missing = np.isnan(array)
            stored[missing] = 0.0
            nulls = np.asarray(missing.any(axis=0))
        if group in self._nulls:
            self.replaced[group] = None
            self.replacements += 1
            self._ready = None
        else:
            self.nbytes += stored.nbytes
            self._unreceived[place.step] -= 1
            self._advance()
        self._nulls[group] = nulls

    def prepare(self, budget: float | None = None) -> None:
        """Compute the scores of the current prefix, so that many rows need no product when the deadline expires.

        The base rate is not computed: it needs no product, and it would use memory for each row of a prediction without
        values.
        """
        prefix = min(self.prefix, self.model.affordable(budget))
        if self.model.prefixes.ends[prefix]:
            self._prefix_scores(prefix)

    def usable(self, budget: float | None = None) -> frozenset[str]:
        """Return the groups that the policy "arrived" uses.

        Without a budget these are all received groups; with a budget, groups in sequence order while the joint cost
        fits.
        """
        groups = self.model.groups
        if budget is None:
            return frozenset(self._nulls)
        selected: set[str] = set()
        paid: set[int] = set()
        for name in self.received:
            index = groups.position(name)
            with_this = paid | {index, *groups.prerequisites[index]}
            if groups.costs[list(with_this)].sum() > budget * (1 + 1e-9):
                break
            paid = with_this
            selected.add(name)
        return frozenset(selected)

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
        """Return the best prediction from the groups received so far.

        Parameters
        ----------
        budget : maximum joint cost of the groups used, in the model's cost unit; None is no limit.
        policy : "prefix", the longest complete prefix within the budget; or "arrived", the exact optimum for the set of
            groups received (with a budget: in sequence order, while the joint cost fits).
        ranking : whether to return the order of the rows, by descending score.
        reason, elapsed_ms, late_groups : copied into the answer; the caller measures time.
        solve : finds the optimum of a set; where it returns None, the prefix answers and `note` states it.

        Raises
        ------
        ValuesError
            The budget is negative or not a number, the policy is unknown, or the model has several scores per row to
            rank.
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
        outputs = model_outputs(model, scores)
        prediction, probabilities = self._prediction(outputs)
        interval, prediction_set = self._covering(outputs, prefix if arrived is None else arrived.prefix)
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
        """Advance over the steps whose features have all been received; steps that add no features are complete."""
        while self.prefix < self.model.steps and not self._unreceived[self.prefix + 1]:
            self.prefix += 1

    def _know_rows(self, rows: int) -> None:
        if self._rows != rows:
            self._rows, self._ready = rows, None  # earlier answers had one row

    def _refusal(self, group: object) -> str:
        groups = self.model.groups
        if not isinstance(group, str) or group not in groups.positions:
            return f"there is no group {group!r} in model {self.model.name!r}; {suggestion(str(group), groups.names)}"
        return f"group {group!r} has no features and therefore no values; do not send it"

    def _arrived(self, budget: float | None, solve: Solve) -> tuple[ArrivedModel | None, str | None]:
        """Return the optimum of the received groups, or the reason why it is unavailable."""
        if not self.model.supports_arrived:
            return None, self.model.fallback_reason
        arrived = solve(self.model, self.usable(budget))
        return arrived, None if arrived else "the optimum of these groups is not solved yet; the prefix policy answered"

    def _prefix_scores(self, prefix: int) -> Float:
        """Return the linear predictor (rows, P) of a complete prefix."""
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
        """Return scores (rows, P) from some of the values; extreme coefficients overflow, and callers check."""
        assert self._X is not None  # noqa: S101  (these columns were received)
        with np.errstate(over="ignore", invalid="ignore"):
            scores: Float = intercept + self._X[:, columns] @ coef
        return scores

    def _prediction(self, outputs: Float) -> tuple[Any, Any]:
        """Return prediction and probabilities in the form of an answer."""
        classes = self.model.manifest.classes
        if classes is None:
            numbers = outputs[:, 0] if outputs.shape[1] == 1 else outputs
            return (numbers.tolist() if self.rows > 1 else numbers[0].tolist()), None
        chosen = [classes[i] for i in outputs.argmax(axis=1)]
        return (chosen, outputs.tolist()) if self.rows > 1 else (chosen[0], outputs[0].tolist())

    def _covering(self, outputs: Float, prefix: int | None) -> tuple[list[Any] | None, list[Any] | None]:
        """Return interval and prediction set in the form of an answer; both are None if the groups are not a prefix."""
        manifest = self.model.manifest
        if manifest.calibration is None or prefix is None:
            return None, None
        threshold = manifest.calibration.thresholds[prefix]
        if manifest.classes is not None:
            sets = list(map(list, label_sets(class_members(outputs, threshold), manifest.classes)))
            return None, sets if self.rows > 1 else sets[0]
        ends = covering_intervals(self.model, outputs, threshold)
        each: list[Any] = (ends[:, 0] if ends.shape[1] == 1 else ends).tolist()
        return each if self.rows > 1 else each[0], None

    def _ranked(self, scores: Float) -> list[int]:
        if scores.shape[1] > 1:
            raise ValuesError(
                f"ranking requires one score per row; model {self.model.name!r} has {scores.shape[1]}; rank the rows"
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


class LoadedModel(Model):
    """A model that opens predictions; `load` returns one."""

    @classmethod
    def of(cls, model: Model) -> Self:
        """Return a trained model as one that opens predictions, without copying."""
        return cls(model.manifest, model.prefixes, model.moments, model.curvatures)

    def open(self, rows: int | None = 1) -> Prediction:
        """Return a new prediction: add groups as they are computed, and request an answer at any time.

        Parameters
        ----------
        rows : number of rows of the prediction; None takes the number of rows of the first values.
        """
        return Prediction(self, rows)


def load(path: str | Path) -> LoadedModel:
    """Read a model file and validate all of its content.

    Raises
    ------
    ArtifactError
        The file does not exist, is not a model file, has a different format, is truncated or was modified.
    """
    return LoadedModel(*read_model(Path(path)))
