"""The five methods of the Group-OMP paper, each as the path of coefficients over its tuning parameter.

Group-OMP is this library's (`sequence`, cost-blind "omp", without a penalty); OLS is numpy's; Lasso and OMP are
scikit-learn's. None fits an intercept: the caller centres the rows to get one. Paths begin with no columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anytime.groups import FeatureGroups
from anytime.model.prefixes import staircase
from anytime.moments.gram import Gram
from anytime.moments.moments import Moments
from anytime.selection import sequence
from anytime.selection.sparse import group_lasso_path
from anytime.types import Float

__all__ = [
    "METHODS",
    "TUNED",
    "Rows",
    "group_lasso",
    "group_omp",
    "lasso",
    "ols",
    "omp",
]

PENALTIES = 100
"""Number of penalties on a path of the Lasso or the Group Lasso."""

SMALLEST = 1e-4
"""The last penalty as a share of the first: close enough to OLS that every optimum lies before."""

GAP = 1e-7
"""Target duality gap on the Group Lasso's path, as a share of |y|^2."""

NOUGHT = 1e-9
"""Coefficients below this share of the path's largest are rounding at a knot."""

NULL = 1e-10
"""Directions of a group below this share of its largest variance count as null, the factorisation's own tolerance."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Training rows: X (n, D), y (n,), and the groups of the columns in order."""

    X: Float
    y: Float
    groups: FeatureGroups

    @property
    def lengths(self) -> Float:
        """Return the root mean squares (D,) of the columns, 1 for a column of zeros."""
        lengths = np.sqrt(np.mean(self.X**2, axis=0))
        return np.where(lengths > 0, lengths, 1.0)


Method = Callable[[Rows], Float]
"""A function from rows to a path (points, D) of coefficients."""


def ols(rows: Rows) -> Float:
    """Return least squares on all columns, the only point; columns are scaled, so that none is lost to rounding."""
    w = np.asarray(np.linalg.lstsq(rows.X / rows.lengths, rows.y, rcond=None)[0], dtype=np.float64)
    return (w / rows.lengths)[np.newaxis]


def lasso(rows: Rows) -> Float:
    """Return optima of |y - Xw|^2 + lambda |w|_1 at decreasing penalties, columns scaled to length 1.

    Least angle regression gives the path's knots, up to rounding even for nearly collinear columns. Between two knots
    the path is linear.
    """
    from sklearn.linear_model import lars_path_gram  # noqa: PLC0415

    A = rows.X / rows.lengths
    max_knots = 8 * A.shape[1] + 100  # knots; variables that leave and return create more knots than columns
    knots, _, coef = lars_path_gram(A.T @ rows.y, A.T @ A, n_samples=len(A), method="lasso", max_iter=max_knots)
    grid = float(knots[0]) * np.geomspace(1.0, SMALLEST, PENALTIES)
    path = np.stack([np.interp(-grid, -knots, w) for w in coef], axis=1)
    path[np.abs(path) <= NOUGHT * np.abs(path).max()] = 0.0
    return path / rows.lengths


def omp(rows: Rows) -> Float:
    """Return every iteration of orthogonal matching pursuit, columns scaled to length 1."""
    from sklearn.linear_model import orthogonal_mp_gram  # noqa: PLC0415

    A = rows.X / rows.lengths
    path = orthogonal_mp_gram(A.T @ A, A.T @ rows.y, n_nonzero_coefs=min(A.shape), return_path=True)
    return np.vstack([np.zeros(A.shape[1]), path.T / rows.lengths])


def group_omp(rows: Rows) -> Float:
    """Return every iteration of Group-OMP (Figure 1 of the paper), groups orthonormalised: the library's own sequence.

    The criterion b_g' S_g^+ b_g is invariant under linear maps of a group's columns, such as orthonormalisation.
    """
    gram = _about_zero(rows.X, rows.y)
    found = sequence(gram, rows.groups, "omp", alpha=0.0, cost_blind=True)
    W = staircase(found.factor, found.z, found.ends)[:, :, 0]
    path = np.zeros_like(W)
    path[:, found.columns] = W
    return path * gram.y_scale / gram.x_scale


def group_lasso(rows: Rows, root: float = 0.0) -> Float:
    """Return optima of 1/2 |y - sum_j X_j w_j|^2 + lambda sum_j d_j^root |w_j|_2, X_j' X_j = I, decreasing penalties.

    The paper prints root 0; Yuan and Lin have root 1/2.
    """
    T = _orthonormalising(rows)
    gram = _about_zero(rows.X @ T, rows.y)
    sizes = np.array([len(group.features) for group in rows.groups.groups], dtype=np.float64)
    found = group_lasso_path(gram, rows.groups.slices, sizes**root, count=PENALTIES, smallest=SMALLEST, tolerance=GAP)
    path: Float = (found.coef[:, :, 0] * gram.y_scale / gram.x_scale) @ T.T
    return path


def _about_zero(X: Float, y: Float) -> Gram:
    """Return the normal equations of rows that are not centred."""
    Z, D = np.column_stack([X, y]), X.shape[1]
    return Gram.of(Moments(D, 1, len(Z), float(len(Z)), np.zeros(D + 1), Z.T @ Z, np.zeros(D)))


def _orthonormalising(rows: Rows) -> Float:
    """Return a block-diagonal T (D, D) with X T orthonormal in each group up to sqrt(n); zero columns for lost rank."""
    A = rows.X / rows.lengths
    T = np.zeros((A.shape[1], A.shape[1]))
    for columns in rows.groups.slices:
        values, vectors = np.linalg.eigh(A[:, columns].T @ A[:, columns] / len(A))
        positive = values > NULL * values[-1]
        T[columns, columns] = vectors * np.where(positive, 1.0 / np.sqrt(np.where(positive, values, 1.0)), 0.0)
    return T / rows.lengths[:, np.newaxis]


METHODS: dict[str, Method] = {
    "OLS": ols,
    "Lasso": lasso,
    "OMP": omp,
    "Group Lasso": group_lasso,
    "Group-OMP": group_omp,
}
"""The methods by the paper's names, in its order."""

TUNED: tuple[str, ...] = ("Lasso", "OMP", "Group Lasso", "Group-OMP")
"""The methods with a tuning parameter."""
