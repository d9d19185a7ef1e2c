"""Training options."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Literal

import numpy as np

from anytime.errors import TrainingError
from anytime.families import family_of
from anytime.groups import FeatureGroups
from anytime.selection import Rule
from anytime.types import FamilyName

MAX_PAIRS = 256

BASIS = "auto"
"""The basis of the columns of a table, with folds and unless another is stated."""

GRID: tuple[float, ...] = tuple(np.logspace(-7, 1, 20).tolist())
"""The penalties of alpha "cv": 20 values from 1e-7 to 10."""


@dataclass(frozen=True)
class Options:
    """Training options.

    Attributes
    ----------
    rule : Rule
        How the groups are ordered.
    alpha : float | Literal["cv"]
        The penalty, 0 or more, or "cv" to choose from `GRID`.
    one_se : bool
        Choose the largest penalty within a standard error of the best.
    nested : bool
        Let each fold learn its own order for the errors.
    family : FamilyName
        The likelihood; "gaussian" is least squares.
    pairs : int | Literal["auto"] | None
        The number of pairs of columns whose products are terms, or "auto" to choose it by cross-validation.
    n_jobs : int | None
        Threads that share out the folds of least squares, as in joblib; the results do not depend on it.
    """

    rule: Rule = field(default_factory=Rule)
    _: KW_ONLY
    alpha: float | Literal["cv"] = "cv"
    one_se: bool = False
    nested: bool = False
    family: FamilyName = "gaussian"
    pairs: int | Literal["auto"] | None = None
    n_jobs: int | None = None

    @classmethod
    def of(cls, source: object = None, **others: Any) -> Options:
        """Return the options and the rule that the attributes of an object state, apart from others."""
        names = [each.name for each in fields(cls)]
        stated = {name: getattr(source, name) for name in names if hasattr(source, name)}
        own = {name: others.pop(name) for name in names if name in others}
        return cls(**({"rule": Rule.of(source, **others)} | stated | own))

    @property
    def grid(self) -> tuple[float, ...]:
        return GRID if isinstance(self.alpha, str) else (self.alpha,)

    def horizon(self, groups: FeatureGroups) -> float | None:
        """Return the cost up to which curves are compared: that of all groups, if curves may end at different costs."""
        return None if self.rule.epsilon is None else float(groups.costs.sum())

    def __post_init__(self) -> None:
        if not (family_of(self.family).least_squares or self.rule.by.likelihoods):
            raise TrainingError(
                f"method {self.rule.name!r} supports family gaussian, not {self.family}; choose method 'fr' or family "
                "gaussian"
            )
        if isinstance(self.alpha, str):
            if self.alpha != "cv":
                raise TrainingError(f"alpha is {self.alpha!r}; expected a number, 0 or more, or 'cv'")
        elif not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise TrainingError(f"alpha is {self.alpha}; expected a finite number, 0 or more, or 'cv'")
        if self.pairs is not None:
            self._check_pairs()

    def _check_pairs(self) -> None:
        number = isinstance(self.pairs, int) and not isinstance(self.pairs, bool) and 1 <= self.pairs <= MAX_PAIRS
        if self.pairs != "auto" and not number:
            raise TrainingError(f"pairs is {self.pairs!r}; expected a number from 1 to {MAX_PAIRS}, or 'auto'")
        if not self.rule.by.pairs:
            raise TrainingError(
                f"method {self.rule.name} does not support pairs; choose another method, or train without pairs"
            )
