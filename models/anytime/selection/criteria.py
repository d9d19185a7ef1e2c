"""Orthogonal matching pursuit: the whitened gradient, tr(b_g' S_g^+ b_g) (CS-G-OMP, line 5 of Algorithm 1).

Forward regression: the exact gain in explained variance, 1/2 tr(b_g' C_{g|G}^-1 b_g) (CS-G-FR, section 2).

Single: the largest squared gradient of any one feature of a group, max_d sum_p b_dp^2 (section 2).

No-whiten: the squared norm of a group's gradient, |b_g|_F^2 (section 2).

Selection criteria: how much a group promises, before its cost is divided out (section 2 of the paper).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from anytime._linalg import RANK_TOLERANCE, factorise
from anytime.moments.gram import Gram
from anytime.selection.state import SelectionState, SizeClass
from anytime.types import Float, Index, Method

__all__ = [
    "CRITERIA",
    "NULL_EIGENVALUE",
    "Criterion",
    "ForwardRegression",
    "MatchingPursuit",
    "NoWhiten",
    "Single",
    "whitening",
]

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

    def scores(self, left: SelectionState) -> Float:
        """Scores of all groups: one stacked product for each size of group."""
        scores = np.zeros(len(left.sizes))
        for stack in left.classes:
            whitened = self._stacked(left, stack.groups, stack.rows).transpose(0, 2, 1) @ left.b[stack.rows]
            flat = whitened.reshape(len(stack.groups), -1)
            scores[stack.groups] = np.einsum("kz,kz->k", flat, flat)
        return scores

    def _stacked(self, left: SelectionState, groups: Index, rows: Index) -> Float:
        """Whitening (k, d, d) of groups of one size; all of that size are whitened when first asked for."""
        size = rows.shape[1]
        if size not in self._whitening:
            columns = left.columns[rows]
            T = whitening(self._S[columns[:, :, np.newaxis], columns[:, np.newaxis, :]])
            self._whitening[size] = (groups, T)
        known, T = self._whitening[size]
        return T if len(known) == len(groups) else T[np.searchsorted(known, groups)]

    def union_score(self, left: SelectionState, rows: Index) -> float:
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


class ForwardRegression:
    """The gain F(G + g) - F(G), from the candidates' conditional blocks."""

    needs_blocks = True

    def scores(self, left: SelectionState) -> Float:
        """Gains of all groups: one stacked factorisation for each size of group."""
        gains = np.zeros(len(left.sizes))
        for stack in left.classes:
            gains[stack.groups] = _gains(stack, left.b[stack.rows], left.reference[stack.rows])
        return gains

    def union_score(self, left: SelectionState, rows: Index) -> float:
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


class Single:
    """Judges a group by its best feature, and so underestimates groups whose features tell something only together."""

    needs_blocks = False

    def scores(self, left: SelectionState) -> Float:
        """Scores of all groups."""
        scores = np.zeros(len(left.sizes))
        scores[left.live] = np.maximum.reduceat(np.square(left.b).sum(axis=1), left.starts[left.live])
        return scores

    def union_score(self, left: SelectionState, rows: Index) -> float:
        """Score of several groups at once."""
        return float(np.square(left.b[rows]).sum(axis=1).max(initial=0.0))

    def lengths(self, scores: Float) -> Float:
        """Lengths of the projections on the best feature of each group, max_d |b_d|."""
        lengths: Float = np.sqrt(scores)
        return lengths


class NoWhiten:
    """Adds up the features of a group one by one, and so overestimates groups that repeat a good feature."""

    needs_blocks = False

    def scores(self, left: SelectionState) -> Float:
        """Scores of all groups."""
        scores = np.zeros(len(left.sizes))
        scores[left.live] = np.add.reduceat(np.square(left.b).sum(axis=1), left.starts[left.live])
        return scores

    def union_score(self, left: SelectionState, rows: Index) -> float:
        """Score of several groups at once."""
        return float(np.square(left.b[rows]).sum())

    def lengths(self, scores: Float) -> Float:
        """Lengths of the gradients, |b_g|_F."""
        lengths: Float = np.sqrt(scores)
        return lengths


class Criterion(Protocol):
    """Scores of groups given what a search has selected."""

    needs_blocks: bool
    """Whether a sweep must keep the conditional blocks of the groups left."""

    def scores(self, left: SelectionState) -> Float:
        """Score of every group, (groups,); of groups without columns 0, of groups selected anything."""
        ...

    def union_score(self, left: SelectionState, rows: Index) -> float:
        """Score of the union of some groups' rows of the search's matrix."""
        ...

    def lengths(self, scores: Float) -> Float:
        """What scores say of the residual's projection on each group: its length, in deviations of the responses."""
        ...


CRITERIA: dict[Method, Callable[[Gram], Criterion]] = {
    "omp": MatchingPursuit,
    "fr": lambda _: ForwardRegression(),
    "single": lambda _: Single(),
    "no-whiten": lambda _: NoWhiten(),
}
"""The criterion of each method, made for one problem."""
