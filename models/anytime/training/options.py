"""Options of training: everything that a user can choose, stated once.

`anytime train` has an option, and the estimators a parameter, of the same name and default for each that applies there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Literal

import numpy as np

from anytime.errors import refuse
from anytime.families import Family, family_of
from anytime.features.bases import Clamp, parsed_basis
from anytime.features.learning import CLAMPS
from anytime.selection import Rule
from anytime.types import ColumnType, FamilyName, Label, Task

MAX_PAIRS = 256

FOLDS = 5
"""Number of folds where some are needed and none are stated."""

GRID: tuple[float, ...] = tuple(np.logspace(-7, 1, 20).tolist())
"""The penalties of alpha "cv": 20 values from 1e-7 to 10."""


@dataclass(frozen=True, kw_only=True)
class Options(Rule):
    """Training options: the rule that orders the groups, and all others.

    Attributes
    ----------
    task : Task | Literal["auto"]
        What the target is; "auto" is the task of the family, or as its values show.
    family : FamilyName | None
        The likelihood; "gaussian" is least squares. None is the default of the task, and of classes that of their size.
    class_weight : Literal["balanced"] | Mapping[Label, float] | None
        Factors of the weights of rows by class; "balanced" makes all classes equally heavy.
    alpha : float | Literal["cv"]
        The penalty, 0 or more, or "cv" to choose from `GRID`.
    one_se : bool
        Choose the largest penalty within a standard error of the best.
    nested : bool
        Let each fold learn its own order for the errors.
    folds : int | None
        The number of folds, 0 for none; None is `FOLDS` where something is chosen by cross-validation, else none.
    basis : str | None
        The basis of columns that it fits and whose basis the groups do not state; None is that of each type. "auto"
        without folds is None.
    clamp : Clamp
        As in `anytime.features.learning`.
    min_level_rows : int | Literal["auto"]
        Rows of the sample that a level needs for a term of its own; "auto" without folds is `MIN_LEVEL_ROWS`.
    types : Mapping[str, ColumnType]
        Types of columns, apart from those that the groups state.
    pairs : int | Literal["auto"]
        The number of pairs of columns whose products are terms; "auto" chooses it by cross-validation where the method
        supports pairs, and there are rows to find them in and folds.
    missing_target : Literal["drop", "error"]
        Leave out rows without a target, or refuse them.
    rows : int | None
        Rows of a call, which share the fixed costs; None is as the groups state.
    drop : tuple[str, ...]
        Columns that are left out.
    seed : int
        Seed of the folds and of samples of rows.
    n_jobs : int | None
        Threads for passes over rows and for the folds of least squares, as in joblib; the results do not depend on it.
    """

    task: Task | Literal["auto"] = "auto"
    family: FamilyName | None = None
    class_weight: Literal["balanced"] | Mapping[Label, float] | None = None
    alpha: float | Literal["cv"] = "cv"
    one_se: bool = False
    nested: bool = False
    folds: int | None = None
    basis: str | None = "auto"
    clamp: Clamp = None
    min_level_rows: int | Literal["auto"] = "auto"
    types: Mapping[str, ColumnType] = field(default_factory=dict)
    pairs: int | Literal["auto"] = "auto"
    missing_target: Literal["drop", "error"] = "drop"
    rows: int | None = None
    drop: tuple[str, ...] = ()
    seed: int = 0
    n_jobs: int | None = None

    @property
    def fitted_family(self) -> Family:
        """Return the family to fit: least squares if none is stated."""
        return family_of(self.family or "gaussian")

    @property
    def grid(self) -> tuple[float, ...]:
        return GRID if isinstance(self.alpha, str) else (self.alpha,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.basis is not None:
            parsed_basis(self.basis)
        name, alpha, folds, pairs, weights = self.by.name, self.alpha, self.folds, self.pairs, self.class_weight
        clamp, least = self.clamp, self.min_level_rows
        is_quantile = isinstance(clamp, Real) and not isinstance(clamp, bool) and 0 <= clamp < 0.5
        is_count = isinstance(pairs, int) and not isinstance(pairs, bool) and 0 <= pairs <= MAX_PAIRS
        refuse(
            {
                f"clamp is {clamp!r}; expected a quantile Q from 0 to below 0.5, or {' or '.join(CLAMPS)}": (
                    clamp is not None and clamp not in CLAMPS and not is_quantile
                ),
                f"min_level_rows is {least!r}; expected a whole number, 2 or more, or 'auto'": (
                    least != "auto" and not (isinstance(least, Integral) and not isinstance(least, bool) and least >= 2)
                ),
                f"folds is {folds}; expected 2 or more, or 0 for none": folds is not None and (folds < 0 or folds == 1),
                "folds is 0; --alpha cv and --nested need 2 or more": folds == 0 and (alpha == "cv" or self.nested),
                f"method {name!r} supports family gaussian, not {self.family}; choose method 'fr' or family gaussian": (
                    not (self.fitted_family.least_squares or self.by.likelihoods)
                ),
                f"alpha is {alpha!r}; expected a number, 0 or more, or 'cv'": isinstance(alpha, str) and alpha != "cv",
                f"alpha is {alpha}; expected a finite number, 0 or more, or 'cv'": (
                    not isinstance(alpha, str)
                    and (isinstance(alpha, bool) or not (math.isfinite(alpha) and alpha >= 0))
                ),
                "n_jobs is 0; expected a number of threads, or -1 for all cores": self.n_jobs == 0,
                f"class_weight is {weights!r}; expected 'balanced', a dict or None": not (
                    weights is None
                    or isinstance(weights, Mapping)
                    or (isinstance(weights, str) and weights == "balanced")
                ),
                f"pairs is {pairs!r}; expected a number from 0 to {MAX_PAIRS}, or 'auto'": (
                    pairs != "auto" and not is_count
                ),
                f"method {name} does not support pairs; choose another method, or train without pairs": (
                    pairs not in ("auto", 0) and not self.by.pairs
                ),
            }
        )
