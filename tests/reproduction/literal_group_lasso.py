"""The Group Lasso as the paper writes it, on the rows, by plain proximal gradients: slow, and judges the library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anytime.types import Float

__all__ = ["literal_group_lasso", "paper_objective", "violation"]


def paper_objective(
    X: Float, Y: Float, slices: Sequence[slice], weights: Sequence[float], lam: float, w: Float
) -> float:
    """|Y - Xw|^2 + lambda sum_j c_j |w_j|_F."""
    norms = [float(np.linalg.norm(w[columns])) for columns in slices]
    return float(np.sum((Y - X @ w) ** 2) + lam * sum(c * norm for c, norm in zip(weights, norms, strict=True)))


def literal_group_lasso(
    X: Float, Y: Float, slices: Sequence[slice], weights: Sequence[float], lam: float, steps: int = 20_000
) -> Float:
    """Take gradient steps on the squares and shrink each group, until no coefficient moves by 1e-13 of the largest."""
    length = 1.0 / (2.0 * float(np.linalg.norm(X, 2)) ** 2)
    w = np.zeros((X.shape[1], Y.shape[1]))
    for _ in range(steps):
        moved = w + length * 2.0 * X.T @ (Y - X @ w)
        for columns, c in zip(slices, weights, strict=True):
            norm = np.linalg.norm(moved[columns])
            if norm > 0:
                moved[columns] *= max(1.0 - length * lam * c / float(norm), 0.0)
        if np.abs(moved - w).max() <= 1e-13 * max(1.0, np.abs(w).max()):
            return moved
        w = moved
    raise AssertionError("proximal gradients have not come to rest")


def violation(S: Float, q: Float, slices: Sequence[slice], weights: Sequence[float], mu: float, w: Float) -> float:
    """How far w is from the conditions of an optimum, in the scale of the mean loss.

    q_g - S_g w is mu c_g w_g/|w_g| where w_g is not zero, and at most as long elsewhere.
    """
    b, worst = q - S @ w, 0.0
    for columns, c in zip(slices, weights, strict=True):
        norm = np.linalg.norm(w[columns])
        if norm > 0:
            worst = max(worst, float(np.linalg.norm(b[columns] - mu * c * w[columns] / norm)))
        else:
            worst = max(worst, float(np.linalg.norm(b[columns])) - mu * c)
    return worst
