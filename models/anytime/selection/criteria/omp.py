"""Orthogonal matching pursuit: the whitened gradient, tr(b_g' S_g^+ b_g) (CS-G-OMP, line 5 of Algorithm 1)."""

from __future__ import annotations

from typing import Self

import numpy as np

from anytime._linalg import NULL_EIGENVALUE
from anytime.moments.moments import Gram
from anytime.selection.criteria.criterion import Criterion
from anytime.selection.sweep import SelectionState, SizeClass
from anytime.types import Float, Index


def whitening(S: Float) -> Float:
    """Return T (..., d, d) with T T' = S^+ for stacked covariances S (..., d, d); null directions are zero columns."""
    values, vectors = np.linalg.eigh(S)
    positive = values > NULL_EIGENVALUE * np.maximum(values[..., -1:], 0.0)
    root = np.where(positive, 1.0 / np.sqrt(np.where(positive, values, 1.0)), 0.0)
    return np.asarray(vectors * root[..., np.newaxis, :])


class MatchingPursuit(Criterion):
    """The squared norm of the residual's projection onto a group's span, from the gradient only."""

    name = "omp"

    def __init__(self, S: Float | None = None) -> None:
        self._S = np.empty((0, 0)) if S is None else S
        self._whitening: dict[int, tuple[Index, Float]] = {}
        self._unions: dict[bytes, Float] = {}  # unions recur between steps

    def on(self, gram: Gram) -> Self:
        return type(self)(gram.S)

    def whitening_share(self, shares: Float) -> float:
        """Return nu of Theorem 3.2: OMP whitens by S_g only, without the penalty."""
        return float(shares.min() / shares.max())

    def scores(self, state: SelectionState) -> Float:
        return state.scores(lambda stack: self._scored(state, stack))

    def _scored(self, state: SelectionState, stack: SizeClass) -> Float:
        """Return the scores (k,) of groups of one size; the first call whitens all groups of that size."""
        count, size = stack.rows.shape
        if size not in self._whitening:
            at = state.columns[stack.rows]
            self._whitening[size] = stack.groups, whitening(self._S[at[:, :, np.newaxis], at[:, np.newaxis, :]])
        known, T = self._whitening[size]
        if len(known) != count:
            T = T[np.searchsorted(known, stack.groups)]
        whitened = (T.transpose(0, 2, 1) @ state.b[stack.rows]).reshape(count, -1)
        return np.asarray(np.einsum("kz,kz->k", whitened, whitened))

    def union_score(self, state: SelectionState, rows: Index) -> float:
        columns = state.columns[rows]
        key = columns.tobytes()
        if key not in self._unions:
            self._unions[key] = whitening(self._S[np.ix_(columns, columns)])
        return float(np.sum(np.square(self._unions[key].T @ state.b[rows])))
