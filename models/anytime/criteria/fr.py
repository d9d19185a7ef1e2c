"""Forward regression: the exact gain in explained variance, 1/2 tr(b_g' C_{g|G}^-1 b_g) (CS-G-FR, section 2)."""

from __future__ import annotations

import numpy as np

from anytime.arrays import Float, Index
from anytime.cholesky import RANK_TOLERANCE, factorise
from anytime.left import Left, SizeClass

__all__ = ["ForwardRegression"]


class ForwardRegression:
    """The gain F(G + g) - F(G), from the candidates' conditional blocks."""

    needs_blocks = True

    def scores(self, left: Left) -> Float:
        """Gains of all groups: one stacked factorisation for each size of group."""
        gains = np.zeros(len(left.sizes))
        for stack in left.classes:
            gains[stack.groups] = _gains(stack, left.b[stack.rows], left.reference[stack.rows])
        return gains

    def union_score(self, left: Left, rows: Index) -> float:
        """Joint gain of several groups."""
        z = factorise(left.conditional(rows), left.reference[rows]).forward(left.b[rows])
        return 0.5 * float(np.sum(z * z))

    def lengths(self, scores: Float) -> Float:
        """Lengths of the projections, sqrt(tr(b_g' C_{g|G}^-1 b_g)): a gain is half of the square."""
        lengths: Float = np.sqrt(2.0 * scores)
        return lengths


def _gains(stack: SizeClass, b: Float, reference: Float) -> Float:
    """Gains (k,) of stacked groups with gradients b (k, d, P).

    The factor of the bordered block  [[C, b], [b', M]]  holds (L^-1 b)' in its last P rows, whatever the (large enough)
    M: one call gives pivots and solution.
    """
    C = stack.conditional()
    k, d, P = b.shape
    if d == 1:
        pivot = C[:, :, 0]
        sound = pivot > RANK_TOLERANCE * reference
        squares = np.square(b[:, 0, :]).sum(axis=1, keepdims=True)
        single: Float = 0.5 * np.divide(squares, pivot, out=np.zeros_like(pivot), where=sound)[:, 0]
        return single
    bordered = np.zeros((k, d + P, d + P))
    bordered[:, :d, :d] = C
    bordered[:, d:, :d] = b.transpose(0, 2, 1)
    bordered[:, range(d, d + P), range(d, d + P)] = 1e8
    try:
        L = np.linalg.cholesky(bordered)
    except np.linalg.LinAlgError:
        return _gains_with_rank_loss(C, b, reference)
    pivots = np.square(np.diagonal(L[:, :d, :d], axis1=1, axis2=2))
    if not (pivots > RANK_TOLERANCE * reference).all():
        return _gains_with_rank_loss(C, b, reference)
    z = L[:, d:, :d].reshape(k, -1)
    gains: Float = 0.5 * np.einsum("kz,kz->k", z, z)
    return gains


def _gains_with_rank_loss(C: Float, b: Float, reference: Float) -> Float:
    """The same, group by group, dropping the columns that add nothing."""
    solved = (factorise(*block).forward(gradient) for *block, gradient in zip(C, reference, b, strict=True))
    return np.array([0.5 * float(np.sum(z * z)) for z in solved])
