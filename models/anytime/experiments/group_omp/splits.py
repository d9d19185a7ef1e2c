"""Splits of Boston Housing as in section 4.2 of the Group-OMP paper: expand, split, fit, choose by hold-out, test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anytime.arrays import Bool, Float
from anytime.experiments.experiment import Result, Setting
from anytime.experiments.group_omp.methods import METHODS, Rows
from anytime.experiments.group_omp.scores import groups_with, held_out_errors
from anytime.experiments.sets import load_set
from anytime.groups import FeatureGroup, FeatureGroups
from anytime.threads import single_blas_thread

__all__ = ["READINGS", "Expanded", "expanded", "splits"]

POWERS = 3

READINGS: dict[str, str] = {
    "read": "an intercept, and every variable of more than two values expanded",
    "no-intercept": "no intercept",
    "refitted": "fitted again, at the point chosen, on the rows for training and validation together",
    "index-plain": "the index RAD and the share ZN, which take few values, not expanded",
    "standardised": "variables centred and scaled before their powers are taken",
    "by-test": "the tuning parameter chosen by the test rows themselves",
}
"""Ways to read section 4.2, ours first."""

FEW = 30
"""Values of a variable that reading "index-plain" does not take for continuous: RAD has 9 and ZN 26."""


@dataclass(frozen=True, eq=False)
class Expanded:
    """Columns x, x^2, x^3 of each continuous variable, a group each; a binary variable is alone."""

    X: Float
    groups: FeatureGroups


def expanded(X: Float, names: tuple[str, ...], few: int = 2) -> Expanded:
    """Expand the columns of X (n, D) that take more than `few` values; the powers of a binary one add nothing."""
    columns: list[Float] = []
    groups: list[FeatureGroup] = []
    for name, x in zip(names, X.T, strict=True):
        powers = POWERS if len(np.unique(x)) > few else 1
        columns += [x**power for power in range(1, powers + 1)]
        features = tuple(f"{name}^{power}" for power in range(1, powers + 1))
        groups.append(FeatureGroup(name=name, features=features, cost=1.0))
    return Expanded(np.column_stack(columns), FeatureGroups(groups=tuple(groups)))


def splits(setting: Setting, reading: str, first: int, count: int) -> Result:
    """Some splits: for each method test errors and numbers of variables, and how OLS comes by its errors.

    `"inside"` are OLS's errors on the test rows that no variable takes beyond the range of the training rows, `"top"`
    is the share of its squared error that comes from one row, `"unscaled"` its errors where columns are as they come.
    """
    data = load_set("boston_housing", setting)
    X = (data.X - data.X.mean(axis=0)) / data.X.std(axis=0) if reading == "standardised" else data.X
    table = expanded(X, data.groups.features, FEW if reading == "index-plain" else 2)
    with single_blas_thread():
        found = [
            _split(table, data.y, np.random.default_rng([setting.seed, 5, first + i]), reading) for i in range(count)
        ]
    return {
        "what": data.what,
        "real": setting.data is not None,
        "variables": len(table.groups),
        "methods": {
            method: {key: [one[0][method][k] for one in found] for k, key in enumerate(("error", "variables"))}
            for method in METHODS
        },
        "ols": {key: [one[1][key] for one in found] for key in ("inside", "outside", "top", "unscaled")},
    }


def _split(
    table: Expanded, y: Float, rng: np.random.Generator, reading: str
) -> tuple[dict[str, tuple[float, int]], dict[str, float]]:
    """Test error and number of variables of each method, and the details of OLS, on one random split."""
    order = rng.permutation(len(y))
    train, held, test = np.split(order, [len(y) // 2, len(y) // 2 + len(y) // 4])
    X, target = table.X, y
    if reading != "no-intercept":
        X, target = X - X[train].mean(axis=0), y - y[train].mean()
    rows, both = (Rows(X[some], target[some], table.groups) for some in (train, np.concatenate([train, held])))
    scored: dict[str, tuple[float, int]] = {}
    details: dict[str, float] = {}
    for method, fitted in METHODS.items():
        path = fitted(rows)
        chooser = test if reading == "by-test" else held
        point = int(np.argmin(held_out_errors(path, X[chooser], target[chooser])))
        w = (fitted(both) if reading == "refitted" else path)[point]
        error = float(held_out_errors(w[np.newaxis], X[test], target[test])[0])
        scored[method] = (error, int(groups_with(w != 0.0, table.groups).sum()))
        if method == "OLS":
            details = _details(w, rows, X[test], target[test])
    return scored, details


def _details(w: Float, rows: Rows, X: Float, y: Float) -> dict[str, float]:
    squares = (y - X @ w) ** 2
    outside = _beyond(X, rows.X)
    plain = np.linalg.lstsq(rows.X, rows.y, rcond=None)[0]
    return {
        "inside": float(squares[~outside].mean()),
        "outside": int(outside.sum()),
        "top": float(squares.max() / squares.sum()),
        "unscaled": float(np.mean((y - X @ plain) ** 2)),
    }


def _beyond(X: Float, known: Float) -> Bool:
    """(n,) which rows have a value under the least or over the largest known one."""
    beyond: Bool = ((known.min(axis=0) > X) | (known.max(axis=0) < X)).any(axis=1)
    return beyond
