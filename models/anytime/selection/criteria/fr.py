"""Forward regression: the exact gain in explained variance, 1/2 tr(b_g' C_{g|G}^-1 b_g) (CS-G-FR).

With C the covariance of a block of columns given the selection (section 2, Eq. 3) and b its gradient, the gain is what
the block adds to the explained variance. Columns whose pivot falls to rounding of their `reference`, the diagonal of
the unconditional C, are *dropped*: they add nothing.
"""

from __future__ import annotations

import numpy as np

from anytime._linalg import factorise, positive_pivots
from anytime.selection.criteria.criterion import Criterion
from anytime.selection.sweep import SelectionState
from anytime.types import Float, Index

BORDER = 1e8
"""Diagonal of the border of a block, larger than any |L^-1 b|^2 in standard units."""


def gain(C: Float, b: Float, reference: Float) -> float:
    """Return the gain of one block C (d, d) with the gradient b (d, P) and reference (d,)."""
    z = factorise(C, reference).forward(b)
    return 0.5 * float(np.sum(z * z))


def gains(C: Float, b: Float, reference: Float) -> Float:
    """Return the gains (k,) of stacked blocks C (k, d, d) with gradients b (k, d, P) and references (k, d)."""
    if C.shape[1] == 1:
        pivot = C[:, :, 0]
        squares = np.square(b[:, 0, :]).sum(axis=1, keepdims=True)
        positive = positive_pivots(pivot, reference)
        return np.asarray(0.5 * np.divide(squares, pivot, out=np.zeros_like(pivot), where=positive)[:, 0])
    z = forward(C, b, reference).reshape(len(C), -1)
    return np.asarray(0.5 * np.einsum("kz,kz->k", z, z))


def gains_and_freedom(C: Float, b: Float, reference: Float, ridge: Float) -> tuple[Float, Float]:
    """Return the gains (k,) of stacked blocks, and their effective degrees of freedom tr(C^-1 (C - diag(ridge))), (k,).

    `ridge` (k, d) is the part of C's diagonal that is no covariance.
    """
    P = b.shape[2]
    own = np.broadcast_to(np.eye(C.shape[1]), C.shape)
    solved = forward(C, np.concatenate([b, own], axis=2), reference).transpose(0, 2, 1)
    inverse = np.square(solved[:, :, P:]).sum(axis=1)  # the diagonal of C^-1, 0 in dropped columns
    freedom = np.where(inverse > 0, 1.0 - ridge * inverse, 0.0).sum(axis=1)
    return 0.5 * np.square(solved[:, :, :P]).sum(axis=(1, 2)), freedom


def forward(C: Float, b: Float, reference: Float) -> Float:
    """Return (L^-1 b)' (k, P, d) of stacked blocks, in one call where no column is dropped.

    The factor of the bordered block  [[C, b], [b', M]]  has (L^-1 b)' in its last P rows for any sufficiently large M.
    One call therefore gives pivots and solution.
    """
    k, d, P = b.shape
    bordered = np.zeros((k, d + P, d + P))
    bordered[:, :d, :d] = C
    bordered[:, d:, :d] = b.transpose(0, 2, 1)
    bordered[:, range(d, d + P), range(d, d + P)] = BORDER
    try:
        L = np.linalg.cholesky(bordered)
    except np.linalg.LinAlgError:
        return _one_by_one(C, b, reference)
    pivots = np.square(np.diagonal(L[:, :d, :d], axis1=1, axis2=2))
    return np.asarray(L[:, d:, :d]) if positive_pivots(pivots, reference).all() else _one_by_one(C, b, reference)


def _one_by_one(C: Float, b: Float, reference: Float) -> Float:
    return np.array([factorise(*block).forward(own).T for *block, own in zip(C, reference, b, strict=True)])


class ForwardRegression(Criterion):
    """The gain F(G + g) - F(G), from the candidates' conditional blocks."""

    name = "fr"
    needs_blocks = True
    doubling_theorem = True

    def whitening_share(self, shares: Float) -> float:  # noqa: ARG002
        """Return nu of Theorem 3.2, which is 1."""
        return 1.0

    def scores(self, state: SelectionState) -> Float:
        return state.scores(lambda stack: gains(stack.blocks, state.b[stack.rows], state.reference[stack.rows]))

    def union_score(self, state: SelectionState, rows: Index) -> float:
        return gain(state.conditional(rows), state.b[rows], state.reference[rows])

    def lengths(self, scores: Float) -> Float:
        """Return the lengths of the projections, sqrt(tr(b_g' C_{g|G}^-1 b_g)): a gain is half of the square."""
        return np.sqrt(2.0 * scores)
