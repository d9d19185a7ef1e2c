"""Repetitions of the Group-OMP paper's simulations (section 4.1): draw, fit, choose by oracle and by hold-out, score.

Scores are F1 of variables, F1 of groups, and the model error. Each fit is scored in three ways, to distinguish the
readings that the paper permits:

    "printed"     the model error by E(x x'), as the paper prints it, and hold-out by mean squared error;
    "covariance"  the model error by the covariance of x instead;
    "deviations"  hold-out by responses minus their training mean, with predictions fitted to uncentred ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from anytime._linalg import single_blas_thread
from anytime.groups import FeatureGroups
from anytime.types import Bool, Float
from anytime_reproduction.experiment import Result, Setting
from anytime_reproduction.group_omp.designs import DESIGNS, METHODS, Design, Rows, group_lasso

__all__ = [
    "MEASURES",
    "SCORINGS",
    "VARIATIONS",
    "Variation",
    "f1",
    "groups_with",
    "held_out_errors",
    "model_errors",
    "row_names",
    "trials",
]


def f1(selected: Bool, true: Bool) -> float:
    """Return 2 P R/(P + R) of precision P and recall R; 0 if nothing is selected."""
    return 2.0 * int(np.sum(selected & true)) / (int(selected.sum()) + int(true.sum()))


def groups_with(variables: Bool, groups: FeatureGroups) -> Bool:
    """Return the groups (groups,) that contain any of some variables (D,)."""
    return np.array([variables[columns].any() for columns in groups.slices], dtype=np.bool_)


def model_errors(path: Float, truth: Float, second: Float) -> Float:
    """Return (w - b)' E(x x') (w - b) of each point w of a path (points, D)."""
    away = path - truth
    errors: Float = np.einsum("kd,kd->k", away @ second, away)
    return errors


def held_out_errors(path: Float, X: Float, y: Float) -> Float:
    """Return the mean squared error on held-out rows of each point of a path, (points,)."""
    errors: Float = np.mean((y[:, np.newaxis] - X @ path.T) ** 2, axis=0)
    return errors


MEASURES = ("F1 (Var)", "F1 (Group)", "ME")
"""Measures by the paper's names."""

SCORINGS = ("printed", "covariance", "deviations")
"""The scorings described in the module docstring."""

EVERY = tuple(METHODS)


@dataclass(frozen=True)
class Variation:
    """An experiment as printed, or with a change that tests an explanation.

    Attributes
    ----------
    design : number of the experiment, from 1.
    methods : the methods to fit.
    training, noise : replacements of the printed values.
    intercept : centre the rows by their training means, in training and in validation.
    root : power of the group's size in the Group Lasso's weights.
    """

    design: int
    methods: tuple[str, ...] = EVERY
    training: int | None = None
    noise: float | None = None
    intercept: bool = False
    root: float = 0.0

    def applied(self) -> Design:
        """Return the design with the changes."""
        design = DESIGNS[self.design - 1]
        return replace(design, training=self.training or design.training, noise=self.noise or design.noise)


VARIATIONS: dict[str, Variation] = {
    **{f"printed-{number}": Variation(number) for number in (1, 2, 3, 4)},
    "intercept-1": Variation(1, intercept=True),
    "intercept-2": Variation(2, intercept=True),
    "roots-3": Variation(3, methods=("Group Lasso",), root=0.5),
    "rows-4": Variation(4, training=450),
    "noise-4": Variation(4, noise=15.0),
}
"""Variations by name: the four experiments, then the explanations."""


def row_names(method: str) -> dict[str, str]:
    """Return the rows of Table 1 of a method, by tuning."""
    return {"": method} if method == "OLS" else {kind: f"{method} ({kind})" for kind in ("Oracle", "Holdout")}


def trials(setting: Setting, variation: str, first: int, count: int) -> Result:
    """Return, for each scoring, row of Table 1 and measure, the numbers of `count` repetitions."""
    varied = VARIATIONS[variation]
    with single_blas_thread():
        scored = [_trial(varied, np.random.default_rng([setting.seed, varied.design, first + i])) for i in range(count)]
    return {
        scoring: {
            row: {measure: [one[scoring][row][m] for one in scored] for m, measure in enumerate(MEASURES)}
            for row in scored[0][scoring]
        }
        for scoring in SCORINGS
    }


def _trial(varied: Variation, rng: np.random.Generator) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return scores (F1 of variables, F1 of groups, model error) by scoring and row."""
    design = varied.applied()
    X = design.draw(rng, design.training + design.validation)
    y = X @ design.truth + design.noise * rng.normal(size=len(X))
    X_mean, y_mean = X[: design.training].mean(axis=0), float(y[: design.training].mean())
    if varied.intercept:
        X, y = X - X_mean, y - y_mean
    rows = Rows(X[: design.training], y[: design.training], design.groups)
    X_held, y_held = X[design.training :], y[design.training :]
    scored: dict[str, dict[str, tuple[float, float, float]]] = {scoring: {} for scoring in SCORINGS}
    for method in varied.methods:
        path = group_lasso(rows, varied.root) if method == "Group Lasso" else METHODS[method](rows)
        second = design.second()
        error = model_errors(path, design.truth, second)
        centred = model_errors(path, design.truth, second - np.outer(design.mean(), design.mean()))
        held = held_out_errors(path, X_held, y_held)
        moved = held_out_errors(path, X_held, y_held - y_mean)
        for scoring, (judge, chooser) in zip(SCORINGS, ((error, held), (centred, held), (error, moved)), strict=True):
            for kind, row in row_names(method).items():
                point = int(np.argmin(chooser if kind == "Holdout" else judge))
                scored[scoring][row] = (*_selection(path[point], design), float(judge[point]))
    return scored


def _selection(w: Float, design: Design) -> tuple[float, float]:
    """Return F1 of the variables and of the groups of some coefficients (D,)."""
    selected, true = w != 0.0, design.support
    return f1(selected, true), f1(groups_with(selected, design.groups), groups_with(true, design.groups))
