"""Training options."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Literal

import numpy as np

from anytime.errors import TrainingError
from anytime.families import family_of
from anytime.groups import FeatureGroups
from anytime.selection import check_sparse
from anytime.types import FamilyName, Method

METHODS: tuple[Method, ...] = ("omp", "fr", "single", "no-whiten", "sparse")

MAX_PAIRS = 256

GRID: tuple[float, ...] = tuple(np.logspace(-7, 1, 20).tolist())
"""The penalties of alpha "cv": 20 values from 1e-7 to 10."""


@dataclass(frozen=True)
class Options:
    """Training options.

    Attributes
    ----------
    method : selection criterion, or "sparse": entry on the Group Lasso path, for least squares without doubling.
    cost_blind : ignore the costs in selection.
    doubling : select no step that costs more than all before it.
    alpha : the penalty, 0 or more, or "cv" to choose from `GRID`.
    one_se : choose the largest penalty within a standard error of the best.
    nested : let each fold learn its own order for the errors.
    family : the likelihood; "gaussian" is least squares.
    epsilon : stop when the residual's projection on every remaining group is at most this long, in standard units
        (`Criterion.lengths`).
    first : groups placed before all others, in this order, each after its requirements.
    pairs : the number of pairs of columns whose products are terms, or "auto" to choose it by cross-validation.
    n_jobs : threads that share out the folds of least squares, as in joblib; the results do not depend on it.
    """

    method: Method = "fr"
    _: KW_ONLY
    cost_blind: bool = False
    doubling: bool = False
    alpha: float | Literal["cv"] = 1e-5
    one_se: bool = False
    nested: bool = False
    family: FamilyName = "gaussian"
    epsilon: float | None = None
    first: tuple[str, ...] = ()
    pairs: int | Literal["auto"] | None = None
    n_jobs: int | None = None

    @classmethod
    def of(cls, source: object, **others: Any) -> Options:
        """Return the options that the attributes of an object state, apart from others."""
        stated = {field.name: getattr(source, field.name) for field in fields(cls) if hasattr(source, field.name)}
        return cls(**(stated | others))

    @property
    def grid(self) -> tuple[float, ...]:
        return GRID if isinstance(self.alpha, str) else (self.alpha,)

    def horizon(self, groups: FeatureGroups) -> float | None:
        """Return the cost up to which curves are compared: that of all groups, if curves may end at different costs."""
        return None if self.epsilon is None else float(groups.costs.sum())

    def forced(self, groups: FeatureGroups) -> list[int]:
        return [groups.position(name) for name in self.first]

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise TrainingError(f"method is {self.method!r}; expected one of {', '.join(METHODS)}")
        family_of(self.family)
        check_sparse(self.method, self.doubling, self.family, self.epsilon)
        if isinstance(self.alpha, str):
            if self.alpha != "cv":
                raise TrainingError(f"alpha is {self.alpha!r}; expected a number, 0 or more, or 'cv'")
        elif not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise TrainingError(f"alpha is {self.alpha}; expected a finite number, 0 or more, or 'cv'")
        if self.pairs is not None:
            self._check_pairs()
        if self.epsilon is not None and not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise TrainingError(f"epsilon is {self.epsilon}; expected a finite number above 0")

    def _check_pairs(self) -> None:
        number = isinstance(self.pairs, int) and not isinstance(self.pairs, bool) and 1 <= self.pairs <= MAX_PAIRS
        if self.pairs != "auto" and not number:
            raise TrainingError(f"pairs is {self.pairs!r}; expected a number from 1 to {MAX_PAIRS}, or 'auto'")
        if self.method == "sparse":
            raise TrainingError("method sparse does not support pairs; choose another method, or train without pairs")
