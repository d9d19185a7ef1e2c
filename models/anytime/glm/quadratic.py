"""The weighted moments of a likelihood at a fit: its second-order model, a least-squares problem of its own.

At coefficients theta with score u (the negative gradient) and Hessian H of the mean loss,

    loss(theta + step) = loss(theta) - u'step + 1/2 step'H step + ...

so that with r = H theta + u one Newton step to any set A of columns solves (H_AA + alpha I) x = r_A, the intercept
among A and not penalised. H and r are the normal equations of iteratively reweighted least squares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from anytime._linalg import factorise, factorise_penalised
from anytime.glm.design import Evaluation
from anytime.moments.gram import Gram
from anytime.types import Float, Index

__all__ = [
    "QuadraticModel",
    "QuadraticModels",
    "on_all_columns",
]

LARGEST = 2**22
"""Numbers that the curvatures of one model may take: 32 MiB."""


def on_all_columns(theta: Float, columns: Index, width: int) -> Float:
    """Coefficients (d + 1, Q) of some columns as those of all, (width + 1, Q), zero in the others."""
    whole = np.zeros((width + 1, theta.shape[1]))
    whole[0] = theta[0]
    whole[columns + 1] = theta[1:]
    return whole


@dataclass(frozen=True, eq=False)
class QuadraticModel:
    """Normal equations of all columns at one fit, in standard units, intercepts first.

    Attributes
    ----------
    H : ((D + 1) Q, same) second derivatives.
    r : ((D + 1) Q,) H theta + u.
    predictors : Q.
    """

    H: Float
    r: Float
    predictors: int

    @staticmethod
    def at(theta: Float, evaluation: Evaluation) -> QuadraticModel:
        """Those of coefficients theta (D + 1, Q), zero in the columns that are not selected."""
        assert evaluation.hessian is not None  # noqa: S101
        flat = theta.ravel()
        return QuadraticModel(evaluation.hessian, evaluation.hessian @ flat + evaluation.score.ravel(), theta.shape[1])

    def places(self, columns: Index) -> Index:
        """Rows of H of the intercepts and of some columns."""
        Q = self.predictors
        rows = (columns[:, np.newaxis] + 1) * Q + np.arange(Q)
        return np.concatenate([np.arange(Q), rows.ravel()])

    def restricted(self, columns: Index) -> QuadraticModel:
        """The same problem of some of the columns; the fit must be zero in the others."""
        at = self.places(columns)
        if len(at) == len(self.r):
            return self
        return QuadraticModel(self.H[np.ix_(at, at)], self.r[at], self.predictors)

    def evaluation(self, theta: Float, columns: Index, loss: float) -> Evaluation:
        """The evaluation at theta (D + 1, Q), seen from some columns only."""
        at = self.places(columns)
        score = (self.r - self.H @ theta.ravel())[at]
        return Evaluation(loss, score.reshape(-1, self.predictors), self.H[np.ix_(at, at)])

    def newton(self, columns: Index, alpha: float) -> Float:
        """One Newton step from this fit to the optimum on some columns, (d + 1, Q)."""
        at = self.places(columns)
        ridge = np.where(np.arange(len(at)) < self.predictors, 0.0, alpha)
        factor = factorise_penalised(self.H[np.ix_(at, at)], ridge)
        return factor.backward(factor.forward(self.r[at, np.newaxis])).reshape(-1, self.predictors)

    def gram(self, like: Gram) -> Gram:
        """The same problem given the intercepts, as normal equations of D Q columns and one response."""
        Q = self.predictors
        H00 = factorise(self.H[:Q, :Q], np.diagonal(self.H)[:Q])
        V = H00.forward(self.H[:Q, Q:])
        S = self.H[Q:, Q:] - V.T @ V
        q = self.r[Q:] - V.T @ H00.forward(self.r[:Q, np.newaxis])[:, 0]
        constant = np.repeat(like.constant, Q)
        S[constant] = 0.0
        S[:, constant] = 0.0
        q[constant] = 0.0
        return replace(like, S=S, q=q[:, np.newaxis], constant=constant)


@dataclass(frozen=True, eq=False)
class QuadraticModels:
    """Second-order models at some prefixes of a sequence, for one predictor, as they are stored.

    Attributes
    ----------
    prefixes : (m,) at which prefixes, ascending.
    packed : (m, (D + 1)(D + 2)/2) lower triangles of H, row by row.
    r : (m, D + 1) right-hand sides.
    """

    prefixes: Index
    packed: Float
    r: Float

    @staticmethod
    def all_kept(columns: int, prefixes: int) -> bool:
        """Whether those of so many prefixes may all be kept."""
        return prefixes * ((columns + 1) * (columns + 2) // 2) <= LARGEST

    @staticmethod
    def prefixes_kept(ends: Index) -> Index:
        """All prefixes, or where that would be too much the last and as many as fit, evenly spaced by their columns."""
        width = int(ends[-1]) + 1
        most = max(1, LARGEST // (width * (width + 1) // 2))
        if most >= len(ends):
            return np.arange(len(ends))
        wanted = np.linspace(ends[-1], 0, most)
        return np.unique([int(np.abs(ends - at).argmin()) for at in wanted]).astype(np.intp)

    @staticmethod
    def packed_from(prefixes: Index, found: list[QuadraticModel]) -> QuadraticModels:
        """Those found at some prefixes."""
        lower = np.tril_indices(len(found[0].r))
        return QuadraticModels(prefixes, np.array([c.H[lower] for c in found]), np.array([c.r for c in found]))

    def at(self, index: int, columns: Index | None = None) -> QuadraticModel:
        """The model at the prefix of that index, of all columns or of some; d^2 numbers are read of the D^2."""
        rows = np.arange(self.r.shape[1]) if columns is None else np.concatenate([[0], columns + 1])
        low, high = np.minimum.outer(rows, rows), np.maximum.outer(rows, rows)
        return QuadraticModel(self.packed[index, high * (high + 1) // 2 + low], self.r[index, rows], 1)
