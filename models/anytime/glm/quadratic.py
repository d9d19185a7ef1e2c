"""Second-order models of a likelihood at a fit: its weighted moments, a least-squares problem of their own.

At coefficients theta with score u (the negative gradient) and Hessian H of the mean loss,

    loss(theta + step) = loss(theta) - u'step + 1/2 step'H step + ...

With r = H theta + u, one Newton step to any set A of columns solves (H_AA + alpha I) x = r_A, where A includes the
intercept, which is not penalised. H and r are the normal equations of iteratively reweighted least squares.
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

MAX_VALUES = 2**22
"""Maximum number of values in the second-order models of one model: 32 MiB."""


def on_all_columns(theta: Float, columns: Index, width: int) -> Float:
    """Return coefficients (d + 1, Q) of some columns as those of all, (width + 1, Q), zero in the others."""
    padded = np.zeros((width + 1, theta.shape[1]))
    padded[0] = theta[0]
    padded[columns + 1] = theta[1:]
    return padded


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
        """Return the model at coefficients theta (D + 1, Q), which are zero in unselected columns."""
        assert evaluation.hessian is not None  # noqa: S101
        flat = theta.ravel()
        return QuadraticModel(evaluation.hessian, evaluation.hessian @ flat + evaluation.score.ravel(), theta.shape[1])

    def places(self, columns: Index) -> Index:
        """Return the rows of H of the intercepts and of some columns."""
        Q = self.predictors
        rows = (columns[:, np.newaxis] + 1) * Q + np.arange(Q)
        return np.concatenate([np.arange(Q), rows.ravel()])

    def restricted(self, columns: Index) -> QuadraticModel:
        """Return the same problem for some of the columns; the fit must be zero in the others."""
        at = self.places(columns)
        if len(at) == len(self.r):
            return self
        return QuadraticModel(self.H[np.ix_(at, at)], self.r[at], self.predictors)

    def evaluation(self, theta: Float, columns: Index, loss: float) -> Evaluation:
        """Return the evaluation at theta (D + 1, Q), restricted to some columns."""
        at = self.places(columns)
        score = (self.r - self.H @ theta.ravel())[at]
        return Evaluation(loss, score.reshape(-1, self.predictors), self.H[np.ix_(at, at)])

    def newton(self, columns: Index, alpha: float) -> Float:
        """Return one Newton step from this fit to the optimum on some columns, (d + 1, Q)."""
        at = self.places(columns)
        ridge = np.where(np.arange(len(at)) < self.predictors, 0.0, alpha)
        factor = factorise_penalised(self.H[np.ix_(at, at)], ridge)
        return factor.backward(factor.forward(self.r[at, np.newaxis])).reshape(-1, self.predictors)

    def gram(self, like: Gram) -> Gram:
        """Return the same problem given the intercepts, as normal equations of D Q columns and one response."""
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
    prefixes : (m,) the prefixes, ascending.
    packed : (m, (D + 1)(D + 2)/2) lower triangles of H, row by row.
    r : (m, D + 1) right-hand sides.
    """

    prefixes: Index
    packed: Float
    r: Float

    @staticmethod
    def all_fit(columns: int, prefixes: int) -> bool:
        """Return whether the models of that many prefixes all fit the limit."""
        return prefixes * ((columns + 1) * (columns + 2) // 2) <= MAX_VALUES

    @staticmethod
    def stored_prefixes(ends: Index) -> Index:
        """Return all prefixes or, beyond the limit, the last and others evenly spaced by their numbers of columns."""
        width = int(ends[-1]) + 1
        count = max(1, MAX_VALUES // (width * (width + 1) // 2))
        if count >= len(ends):
            return np.arange(len(ends))
        targets = np.linspace(ends[-1], 0, count)
        return np.unique([int(np.abs(ends - at).argmin()) for at in targets]).astype(np.intp)

    @staticmethod
    def packed_from(prefixes: Index, found: list[QuadraticModel]) -> QuadraticModels:
        """Return the packed models of some prefixes."""
        lower = np.tril_indices(len(found[0].r))
        return QuadraticModels(prefixes, np.array([c.H[lower] for c in found]), np.array([c.r for c in found]))

    def at(self, index: int, columns: Index | None = None) -> QuadraticModel:
        """Return the model at the prefix of that index, for all or some columns; reads d^2 of the D^2 numbers."""
        rows = np.arange(self.r.shape[1]) if columns is None else np.concatenate([[0], columns + 1])
        low, high = np.minimum.outer(rows, rows), np.maximum.outer(rows, rows)
        return QuadraticModel(self.packed[index, high * (high + 1) // 2 + low], self.r[index, rows], 1)
