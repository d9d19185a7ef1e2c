"""The Group Lasso of the penalised groups alone, and how far from its optimum coefficients are.

The residual is r = y - X w; rows are divided by the root of n, so that S = X'X, q = X'y and b = X'r = q - S w. With
k_g = mu c_g,

    P(w) = 1/2 |r|^2 + sum_g k_g |w_g|_F.

*Groups of weight 0* may be chosen freely once the others are: w_0 = S_00^+ (q_0 - S_0. w). Put in, they leave the same
problem on what they do not explain,

    S - S_.0 S_00^+ S_0.,   q - S_.0 S_00^+ q_0,   yy - q_0' S_00^+ q_0,

so they are taken out beforehand, exactly. Their dual constraint, the equality X_0'theta = 0, holds for every residual
of what is left.

*Dual.* maximise D(theta) = 1/2 |y|^2 - 1/2 |y - theta|^2 over |X_g'theta|_F <= k_g. With theta = s r, feasible for
s = min(1, min_g k_g/|b_g|), and by <r, y> = |r|^2 + <b, w>,

    P(w) - D(s r) = 1/2 (1 - s)^2 |r|^2 + sum_g (k_g |w_g| - s <b_g, w_g>).

No term is negative, so nothing cancels: the gap is told to its last digits, from moments alone. It bounds P(w) - min P.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anytime.arrays import Float, Index
from anytime.cholesky import RANK_TOLERANCE, Factor, factorise_penalised
from anytime.gram import Gram

__all__ = ["Problem"]


@dataclass(frozen=True, eq=False)
class Problem:
    """The groups that are penalised and have columns, after the free ones are taken out.

    Attributes
    ----------
    S, q, yy : moments of what the free groups leave; S (d, d), q (d, P), yy the sum over responses.
    weights : (k,) weight of each group's norm, positive.
    starts, sizes : (k,) first column and number of columns of each group.
    members : (k,) which groups of the whole they are.
    columns : (d,) which columns of the whole.
    """

    S: Float
    q: Float
    yy: float
    weights: Float
    starts: Index
    sizes: Index
    members: Index
    columns: Index
    _whole: tuple[int, Index, Factor, Float, Float]

    @staticmethod
    def of(gram: Gram, slices: Sequence[slice], weights: Float) -> Problem:
        """Take the groups of weight 0 out. Cost d_0 D^2 for d_0 columns of theirs."""
        size = np.array([s.stop - s.start for s in slices], dtype=np.intp)
        members = np.flatnonzero((weights > 0) & (size > 0))
        owner = np.repeat(np.arange(len(slices)), size)
        penalised = weights[owner] > 0
        columns, free = np.flatnonzero(penalised), np.flatnonzero(~penalised)
        factor = factorise_penalised(gram.S[np.ix_(free, free)], np.zeros(len(free)))
        z, V = factor.forward(gram.q[free]), factor.forward(gram.S[np.ix_(free, columns)])
        S, q = gram.S[np.ix_(columns, columns)], gram.q[columns]
        before = np.diagonal(S).copy()
        if len(free):
            S, q = S - V.T @ V, q - V.T @ z
        # What the free groups span is theirs; what is left of it is rounding.
        spent = np.diagonal(S) <= RANK_TOLERANCE * before
        S[spent], S[:, spent], q[spent] = 0.0, 0.0, 0.0
        sizes = size[members]
        return Problem(
            S=np.asfortranarray(S),
            q=q,
            yy=max(float(gram.yy.sum() - np.sum(z * z)), 0.0),
            weights=weights[members],
            starts=np.cumsum(sizes) - sizes,
            sizes=sizes,
            members=members,
            columns=columns,
            _whole=(len(gram.q), free, factor, z, V),
        )

    def whole(self, w: Float) -> Float:
        """Coefficients (D, P) of all columns, those of the free groups at their optimum."""
        D, free, factor, z, V = self._whole
        full = np.zeros((D, w.shape[1]))
        full[self.columns] = w
        full[free] = factor.backward(z - np.where(factor.dropped[:, np.newaxis], 0.0, V @ w))
        return full

    def norms(self, w: Float) -> Float:
        """Frobenius norm of each group's rows, (k,)."""
        return np.sqrt(self.sums(np.square(w)))

    def largest(self) -> float:
        """The smallest mu at which all penalised groups are zero."""
        return float((self.norms(self.q) / self.weights).max(initial=0.0))

    def gap(self, w: Float, b: Float, mu: float) -> float:
        """By how much P(w) lies above the dual at the scaled residual, at least by how much above the optimum."""
        k, gradients = mu * self.weights, self.norms(b)
        s = min(1.0, float((k / np.where(gradients > 0, gradients, np.inf)).min(initial=np.inf, where=gradients > k)))
        squares = max(self.yy - float(np.sum(self.q * w)) - float(np.sum(b * w)), 0.0)
        terms = k * self.norms(w) - s * self.sums(b * w)
        return 0.5 * (1.0 - s) ** 2 * squares + float(np.maximum(terms, 0.0).sum())

    def sums(self, values: Float) -> Float:
        """Sum of values (d, P) over the rows of each group and over responses, (k,)."""
        sums: Float = np.add.reduceat(values.sum(axis=1), self.starts) if len(self.starts) else np.zeros(0)
        return sums
