"""The problem of a certificate: the largest F of any set of groups within a budget.

    F(S) = 1/2 tr(q_S' C_S^-1 q_S),  C = S + alpha I

F does not change when the columns of a group are replaced by others with the same span. Columns that add nothing to
their own group are removed here, and the others are rotated so that each block (C^-1)_gg is diagonal. The relaxation is
diagonal in these coordinates, and C^-1 limits what it may subtract from C; this rotation was the best of ten on real
groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.linalg import block_diag

from anytime._linalg import RANK_TOLERANCE, Factor, factorise
from anytime.groups import FeatureGroups
from anytime.moments.gram import Gram
from anytime.types import Bool, Float, Index

__all__ = [
    "COST_TOLERANCE",
    "Conditional",
    "SelectionProblem",
]

COST_TOLERANCE = 1e-9
"""Relative tolerance of a budget: costs are sums with rounding errors."""


@dataclass(frozen=True, eq=False)
class Conditional:
    """Candidate groups given a selected set I.

    Attributes
    ----------
    explained : F(I).
    C : (d, d) covariance of the candidates' columns given I.
    b : (d, P) their gradient, q - C w(I).
    reference : (d,) the diagonal that pivots are compared with.
    starts : (k,) first column of each candidate that has columns.
    factor : the factor of C.
    top : F(I and all candidates) - F(I).
    """

    explained: float
    C: Float
    b: Float
    reference: Float
    starts: Index
    factor: Factor
    top: float

    def gains(self) -> Float:
        """Return (k,) the gain of each candidate with columns, by itself."""
        ends = np.append(self.starts, len(self.C))
        if len(self.starts) == len(self.C):
            variance = np.diagonal(self.C)
            nonsingular = variance > RANK_TOLERANCE * self.reference
            squares = np.square(self.b).sum(axis=1)
            return np.asarray(0.5 * np.divide(squares, variance, out=np.zeros_like(squares), where=nonsingular))
        blocks = [slice(begin, end) for begin, end in pairwise(ends.tolist())]
        z = [factorise(self.C[g, g], self.reference[g]).forward(self.b[g]) for g in blocks]
        return np.array([0.5 * float(np.sum(part * part)) for part in z])


@dataclass(frozen=True, eq=False)
class SelectionProblem:
    """Normal equations in rotated columns, costs and requirements.

    Attributes
    ----------
    C : (D, D), q : (D, P) in rotated columns.
    reference : (D,) the diagonal of C, which pivots are compared with.
    own : (D,) the group of each column, in increasing order.
    costs : (J,) costs of the groups.
    closure : (J, J), closure[g, p]: p is g, or g requires p, directly or not.
    """

    C: Float
    q: Float
    reference: Float
    own: Index
    costs: Float
    closure: Bool

    @staticmethod
    def of(gram: Gram, groups: FeatureGroups, alpha: float) -> SelectionProblem:
        """Return the problem with the columns of each group rotated. It costs about D^3 operations for D columns."""
        C, q = gram.penalised(alpha)
        dropped = np.concatenate([_dropped(C[columns, columns]) for columns in groups.slices])
        own = np.repeat(np.arange(len(groups)), [len(group.features) for group in groups.groups])[~dropped]
        C, q = C[np.ix_(~dropped, ~dropped)], q[~dropped]
        # A nearly singular matrix is accurate enough: any rotation is valid.
        inverse = np.linalg.inv(C + RANK_TOLERANCE * np.eye(len(C)))
        T = block_diag(*(np.linalg.eigh(inverse[np.ix_(own == g, own == g)])[1] for g in np.unique(own)))
        rotated = T.T @ C @ T
        rotated = 0.5 * (rotated + rotated.T)
        closure = np.eye(len(groups), dtype=np.bool_)
        for g, before in enumerate(groups.prerequisites):
            closure[g, list(before)] = True
        return SelectionProblem(rotated, T.T @ q, np.diagonal(rotated).copy(), own, groups.costs, closure)

    def columns(self, members: Bool) -> Index:
        """Return the columns of the groups in a mask (J,)."""
        return np.flatnonzero(members[self.own])

    def mask(self, members: Iterable[int]) -> Bool:
        """Return the mask (J,) of some groups."""
        mask = np.zeros(len(self.costs), dtype=np.bool_)
        mask[list(members)] = True
        return mask

    def cost(self, members: Bool) -> float:
        """Return the joint cost of a set that contains its prerequisites."""
        return float(self.costs[members].sum())

    def closed(self, members: Bool) -> Bool:
        """Return the set with all its prerequisites."""
        return np.asarray(self.closure[members].any(axis=0))

    def dependents(self, members: Bool) -> Bool:
        """Return the set with all groups that require any of it."""
        return np.asarray(self.closure[:, members].any(axis=1))

    def extra_costs(self, selected: Bool) -> Float:
        """Return (J,) the cost of each group with its prerequisites, once `selected` is paid."""
        extra: Float = self.closure.astype(np.float64) @ np.where(selected, 0.0, self.costs)
        return extra

    def shared_costs(self, selected: Bool, candidates: Bool) -> Float:
        """Return (J,) costs e with  sum of e over S <= cost of S  for any closed set S of candidates.

        Costs of `selected` are not included. The cost of an unpaid prerequisite is divided equally among the candidates
        with columns that need it, itself included; a set with some of these pays for all of them.
        """
        needs = self.closure & (candidates & self.with_columns)[:, np.newaxis]
        parts = np.where(selected | ~candidates, 0.0, self.costs) / np.maximum(needs.sum(axis=0), 1)
        shared: Float = needs @ parts
        return shared

    @cached_property
    def with_columns(self) -> Bool:
        """(J,) groups with columns that were not removed."""
        return self.mask(self.own.tolist())

    def explained(self, members: Bool) -> float:
        """Return F of a set."""
        rows = self.columns(members)
        z = factorise(self.C[np.ix_(rows, rows)], self.reference[rows]).forward(self.q[rows])
        return 0.5 * float(np.sum(z * z))

    def given(self, selected: Bool, candidates: Bool) -> Conditional:
        """Return the candidates given `selected`. It costs about d^3 operations for the d columns of both."""
        rows, others = self.columns(selected), self.columns(candidates)
        C, b, explained = self.C[np.ix_(others, others)], self.q[others], 0.0
        if len(rows):
            factor = factorise(self.C[np.ix_(rows, rows)], self.reference[rows])
            z, V = factor.forward(self.q[rows]), factor.forward(self.C[np.ix_(rows, others)])
            C, b, explained = C - V.T @ V, b - V.T @ z, 0.5 * float(np.sum(z * z))
        candidate_factor = factorise(C, self.reference[others])
        z_candidates = candidate_factor.forward(b)
        starts = np.flatnonzero(np.diff(self.own[others], prepend=-1))
        return Conditional(
            explained,
            C,
            b,
            self.reference[others],
            starts,
            candidate_factor,
            0.5 * float(np.sum(z_candidates * z_candidates)),
        )

    def losses(self, members: Bool) -> Float:
        """Return (J,) the approximate loss of F without each group.

        It is exact for groups of one column, and 0 outside the set.
        """
        rows = self.columns(members)
        factor = factorise(self.C[np.ix_(rows, rows)], self.reference[rows])
        inverse = factor.forward(np.eye(len(rows)))
        w = factor.backward(factor.forward(self.q[rows]))
        by_column = np.zeros(len(self.C))
        by_column[rows] = 0.5 * np.square(w).sum(axis=1) / np.maximum(np.square(inverse).sum(axis=0), 1e-300)
        losses: Float = np.zeros(len(self.costs))
        np.add.at(losses, self.own, by_column)
        return losses

    def trimmed(self, selected: Bool, candidates: Bool, limit: float) -> tuple[Bool, Bool]:
        """Return a set with the candidates that cost nothing more, and the useful candidates that still fit.

        A candidate is useful if it has columns or is a prerequisite of one that has.
        """
        extra = self.extra_costs(selected)
        selected = selected | (candidates & (extra <= 0.0))
        fits = candidates & ~selected & (self.cost(selected) + extra <= limit)
        return selected, fits & self.closed(fits & self.with_columns)


def _dropped(C: Float) -> Bool:
    """Return the columns of a group that add nothing to those before them."""
    return factorise(C, np.diagonal(C).copy()).dropped
