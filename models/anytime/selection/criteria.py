"""Selection criteria: the score of a group before division by its cost (section 2 of the paper).

- Orthogonal matching pursuit: the whitened gradient, tr(b_g' S_g^+ b_g) (CS-G-OMP, line 5 of Algorithm 1).
- Forward regression: the exact gain in explained variance, 1/2 tr(b_g' C_{g|G}^-1 b_g) (CS-G-FR).
- Single: the largest squared gradient of any one feature of a group, max_d sum_p b_dp^2.
- No-whiten: the squared norm of a group's gradient, |b_g|_F^2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anytime._linalg import NULL_EIGENVALUE, RANK_TOLERANCE, factorise
from anytime.moments.moments import Gram
from anytime.selection.sweep import SelectionState, SizeClass
from anytime.types import Float, Index, Method


def whitening(S: Float) -> Float:
    """Return T (..., d, d) with T T' = S^+ for stacked covariances S (..., d, d); null directions are zero columns."""
    values, vectors = np.linalg.eigh(S)
    positive = values > NULL_EIGENVALUE * np.maximum(values[..., -1:], 0.0)
    root = np.where(positive, 1.0 / np.sqrt(np.where(positive, values, 1.0)), 0.0)
    return np.asarray(vectors * root[..., np.newaxis, :])


class Criterion(ABC):
    """Scores of groups, given the selection of a search."""

    needs_blocks: ClassVar[bool] = False
    """Whether a sweep must store the conditional blocks of the remaining groups."""

    @abstractmethod
    def scores(self, state: SelectionState) -> Float:
        """Return the score of every group, (groups,); 0 for groups without columns, undefined for selected groups."""

    @abstractmethod
    def union_score(self, state: SelectionState, rows: Index) -> float:
        """Return the score of the union of some groups, given their rows of the search's matrix."""

    def lengths(self, scores: Float) -> Float:
        """Return the length of the residual's projection on each group, in response deviations, given the scores.

        For orthonormal groups the length of "omp", sqrt(tr(b_g' S_g^+ b_g)), is |X_g'r|_2.
        """
        return np.sqrt(scores)


class MatchingPursuit(Criterion):
    """The squared norm of the residual's projection onto a group's span, from the gradient only."""

    def __init__(self, gram: Gram) -> None:
        self._S = gram.S
        self._whitening: dict[int, tuple[Index, Float]] = {}
        self._unions: dict[bytes, Float] = {}  # unions recur between steps

    def scores(self, state: SelectionState) -> Float:
        scores = np.zeros(len(state.sizes))
        for stack in state.classes:
            whitened = self._stacked(state, stack.groups, stack.rows).transpose(0, 2, 1) @ state.b[stack.rows]
            flat = whitened.reshape(len(stack.groups), -1)
            scores[stack.groups] = np.einsum("kz,kz->k", flat, flat)
        return scores

    def _stacked(self, state: SelectionState, groups: Index, rows: Index) -> Float:
        """Return the whitening (k, d, d) of groups of one size; the first call whitens all groups of that size."""
        size = rows.shape[1]
        if size not in self._whitening:
            columns = state.columns[rows]
            T = whitening(self._S[columns[:, :, np.newaxis], columns[:, np.newaxis, :]])
            self._whitening[size] = (groups, T)
        known, T = self._whitening[size]
        return T if len(known) == len(groups) else T[np.searchsorted(known, groups)]

    def union_score(self, state: SelectionState, rows: Index) -> float:
        columns = state.columns[rows]
        key = columns.tobytes()
        if key not in self._unions:
            self._unions[key] = whitening(self._S[np.ix_(columns, columns)])
        return float(np.sum(np.square(self._unions[key].T @ state.b[rows])))


class ForwardRegression(Criterion):
    """The gain F(G + g) - F(G), from the candidates' conditional blocks."""

    needs_blocks = True

    def scores(self, state: SelectionState) -> Float:
        gains = np.zeros(len(state.sizes))
        for stack in state.classes:
            gains[stack.groups] = _gains(stack, state.b[stack.rows], state.reference[stack.rows])
        return gains

    def union_score(self, state: SelectionState, rows: Index) -> float:
        z = factorise(state.conditional(rows), state.reference[rows]).forward(state.b[rows])
        return 0.5 * float(np.sum(z * z))

    def lengths(self, scores: Float) -> Float:
        """Return the lengths of the projections, sqrt(tr(b_g' C_{g|G}^-1 b_g)): a gain is half of the square."""
        return np.sqrt(2.0 * scores)


def _gains(stack: SizeClass, b: Float, reference: Float) -> Float:
    """Return the gains (k,) of stacked groups with gradients b (k, d, P).

    The factor of the bordered block  [[C, b], [b', M]]  has (L^-1 b)' in its last P rows for any sufficiently large M.
    One call therefore gives pivots and solution.
    """
    C = stack.blocks
    k, d, P = b.shape
    if d == 1:
        pivot = C[:, :, 0]
        positive = pivot > RANK_TOLERANCE * reference
        squares = np.square(b[:, 0, :]).sum(axis=1, keepdims=True)
        return np.asarray(0.5 * np.divide(squares, pivot, out=np.zeros_like(pivot), where=positive)[:, 0])
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
    return np.asarray(0.5 * np.einsum("kz,kz->k", z, z))


def _gains_with_rank_loss(C: Float, b: Float, reference: Float) -> Float:
    """Return the gains, group by group, after dropping columns that add nothing."""
    solved = (factorise(*block).forward(gradient) for *block, gradient in zip(C, reference, b, strict=True))
    return np.array([0.5 * float(np.sum(z * z)) for z in solved])


@dataclass(frozen=True)
class GradientNorm(Criterion):
    """The squared gradients of a group's features, combined by their maximum ("single") or sum ("no-whiten").

    The maximum underestimates groups whose features are informative only together; the sum overestimates groups that
    repeat a good feature.
    """

    combine: np.ufunc

    def scores(self, state: SelectionState) -> Float:
        scores = np.zeros(len(state.sizes))
        remaining = state.remaining_groups
        scores[remaining] = self.combine.reduceat(np.square(state.b).sum(axis=1), state.starts[remaining])
        return scores

    def union_score(self, state: SelectionState, rows: Index) -> float:
        return float(self.combine.reduce(np.square(state.b[rows]).sum(axis=1), initial=0.0))


CRITERIA: dict[Method, Callable[[Gram], Criterion]] = {
    "omp": MatchingPursuit,
    "fr": lambda _: ForwardRegression(),
    "single": lambda _: GradientNorm(np.maximum),
    "no-whiten": lambda _: GradientNorm(np.add),
}
"""The constructor of each method's criterion, for one problem."""
