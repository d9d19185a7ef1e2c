"""Orthogonal matching pursuit: the whitened gradient, tr(b_g' S_g^+ b_g) (CS-G-OMP, line 5 of Algorithm 1)."""

from __future__ import annotations

import numpy as np

from anytime.arrays import Float, Index
from anytime.gram import Gram
from anytime.left import Left

__all__ = ["NULL_EIGENVALUE", "MatchingPursuit", "whitening"]

NULL_EIGENVALUE = 1e-10
"""Eigenvalues under this share of the group's largest count as zero."""


def whitening(S: Float) -> Float:
    """T (..., d, d) with T T' = S^+ for stacked covariances S (..., d, d); null directions are columns of zeros."""
    values, vectors = np.linalg.eigh(S)
    sound = values > NULL_EIGENVALUE * np.maximum(values[..., -1:], 0.0)
    root = np.where(sound, 1.0 / np.sqrt(np.where(sound, values, 1.0)), 0.0)
    T: Float = vectors * root[..., np.newaxis, :]
    return T


class MatchingPursuit:
    """The squared norm of the residual's projection onto a group's span, from the gradient alone."""

    needs_blocks = False

    def __init__(self, gram: Gram) -> None:
        self._S = gram.S
        self._whitening: dict[int, tuple[Index, Float]] = {}
        self._unions: dict[bytes, Float] = {}

    def scores(self, left: Left) -> Float:
        """Scores of all groups: one stacked product for each size of group."""
        scores = np.zeros(len(left.sizes))
        for stack in left.classes:
            whitened = self._stacked(left, stack.groups, stack.rows).transpose(0, 2, 1) @ left.b[stack.rows]
            flat = whitened.reshape(len(stack.groups), -1)
            scores[stack.groups] = np.einsum("kz,kz->k", flat, flat)
        return scores

    def _stacked(self, left: Left, groups: Index, rows: Index) -> Float:
        """Whitening (k, d, d) of groups of one size; all of that size are whitened when first asked for."""
        size = rows.shape[1]
        if size not in self._whitening:
            columns = left.columns[rows]
            T = whitening(self._S[columns[:, :, np.newaxis], columns[:, np.newaxis, :]])
            self._whitening[size] = (groups, T)
        known, T = self._whitening[size]
        return T if len(known) == len(groups) else T[np.searchsorted(known, groups)]

    def union_score(self, left: Left, rows: Index) -> float:
        """Score of several groups at once; unions recur from step to step, so their whitening is kept."""
        columns = left.columns[rows]
        key = columns.tobytes()
        if key not in self._unions:
            self._unions[key] = whitening(self._S[np.ix_(columns, columns)])
        return float(np.sum(np.square(self._unions[key].T @ left.b[rows])))

    def lengths(self, scores: Float) -> Float:
        """Lengths of the projections, sqrt(tr(b_g' S_g^+ b_g)): the |X_g'r|_2 of orthonormal groups."""
        lengths: Float = np.sqrt(scores)
        return lengths
