"""The problem of a certificate: the largest F of any set of groups within a budget.

    F(S) = 1/2 tr(q_S' C_S^-1 q_S),  C = S + alpha I

does not change when the columns of a group are turned into others that span the same. Here columns that add nothing to
their own group are gone, and the others are turned so that each block (C^-1)_gg is diagonal. The relaxation is diagonal
in these coordinates, and what it may take off C is limited by C^-1; this turn was the best of ten on real groups.
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
    "Problem",
]

COST_TOLERANCE = 1e-9
"""Costs are sums: one that exceeds a budget by this share of it is within it."""


@dataclass(frozen=True, eq=False)
class Conditional:
    """What is left of some candidates once a set I is taken.

    Attributes
    ----------
    explained : F(I).
    C : (d, d) covariance of the candidates' columns given I.
    b : (d, P) their gradient, q - C w(I).
    reference : (d,) the diagonal by which pivots are judged.
    starts : (k,) first column of each candidate that has columns.
    factor : the factor of C.
    top : what all candidates add, F(I and all candidates) - F(I).
    """

    explained: float
    C: Float
    b: Float
    reference: Float
    starts: Index
    factor: Factor
    top: float

    def gains(self) -> Float:
        """(k,) what each candidate with columns adds by itself."""
        ends = np.append(self.starts, len(self.C))
        if len(self.starts) == len(self.C):
            variance = np.diagonal(self.C)
            sound = variance > RANK_TOLERANCE * self.reference
            squares = np.square(self.b).sum(axis=1)
            return np.asarray(0.5 * np.divide(squares, variance, out=np.zeros_like(squares), where=sound))
        blocks = [slice(begin, end) for begin, end in pairwise(ends.tolist())]
        z = [factorise(self.C[g, g], self.reference[g]).forward(self.b[g]) for g in blocks]
        return np.array([0.5 * float(np.sum(part * part)) for part in z])


@dataclass(frozen=True, eq=False)
class Problem:
    """Normal equations in turned columns, costs and requirements.

    Attributes
    ----------
    C : (D, D), q : (D, P) in turned columns.
    reference : (D,) the diagonal of C, by which pivots are judged.
    own : (D,) the group of each column, in rising order.
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
    def of(gram: Gram, groups: FeatureGroups, alpha: float) -> Problem:
        """Turn each group. About D^3 operations for D columns."""
        C, q = gram.penalised(alpha)
        lost = np.concatenate([_lost(C[columns, columns]) for columns in groups.slices])
        own = np.repeat(np.arange(len(groups)), [len(group.features) for group in groups.groups])[~lost]
        C, q = C[np.ix_(~lost, ~lost)], q[~lost]
        # Nearly singular is near enough to turn by: any turn is valid.
        inverse = np.linalg.inv(C + RANK_TOLERANCE * np.eye(len(C)))
        T = block_diag(*(np.linalg.eigh(inverse[np.ix_(own == g, own == g)])[1] for g in np.unique(own)))
        turned = T.T @ C @ T
        turned = 0.5 * (turned + turned.T)
        closure = np.eye(len(groups), dtype=np.bool_)
        for g, before in enumerate(groups.prerequisites):
            closure[g, list(before)] = True
        return Problem(turned, T.T @ q, np.diagonal(turned).copy(), own, groups.costs, closure)

    def columns(self, members: Bool) -> Index:
        """Columns of the groups of a mask (J,)."""
        return np.flatnonzero(members[self.own])

    def mask(self, members: Iterable[int]) -> Bool:
        """Mask (J,) of some groups."""
        mask = np.zeros(len(self.costs), dtype=np.bool_)
        mask[list(members)] = True
        return mask

    def cost(self, members: Bool) -> float:
        """Joint cost of a set that holds what it requires."""
        return float(self.costs[members].sum())

    def closed(self, members: Bool) -> Bool:
        """The set with all that it requires."""
        return np.asarray(self.closure[members].any(axis=0))

    def dependents(self, members: Bool) -> Bool:
        """The set with all that requires any of it."""
        return np.asarray(self.closure[:, members].any(axis=1))

    def extra_costs(self, taken: Bool) -> Float:
        """(J,) what each group costs with all that it requires, once `taken` is paid."""
        extra: Float = self.closure.astype(np.float64) @ np.where(taken, 0.0, self.costs)
        return extra

    def shared_costs(self, taken: Bool, candidates: Bool) -> Float:
        """(J,) costs e with  sum of e over S <= cost of S  for any closed set S of candidates, beside `taken`.

        The cost of a prerequisite that nobody has paid is dealt out in equal parts to the candidates with columns that
        need it, itself among them; a set that holds some of these pays for all of them.
        """
        needs = self.closure & (candidates & self.with_columns)[:, np.newaxis]
        parts = np.where(taken | ~candidates, 0.0, self.costs) / np.maximum(needs.sum(axis=0), 1)
        shared: Float = needs @ parts
        return shared

    @cached_property
    def with_columns(self) -> Bool:
        """(J,) groups that have columns left."""
        return self.mask(self.own.tolist())

    def explained(self, members: Bool) -> float:
        """F of a set."""
        rows = self.columns(members)
        z = factorise(self.C[np.ix_(rows, rows)], self.reference[rows]).forward(self.q[rows])
        return 0.5 * float(np.sum(z * z))

    def given(self, taken: Bool, candidates: Bool) -> Conditional:
        """What is left of the candidates' columns given `taken`. About d^3 operations for the d columns of both."""
        rows, others = self.columns(taken), self.columns(candidates)
        C, b, explained = self.C[np.ix_(others, others)], self.q[others], 0.0
        if len(rows):
            factor = factorise(self.C[np.ix_(rows, rows)], self.reference[rows])
            z, V = factor.forward(self.q[rows]), factor.forward(self.C[np.ix_(rows, others)])
            C, b, explained = C - V.T @ V, b - V.T @ z, 0.5 * float(np.sum(z * z))
        whole = factorise(C, self.reference[others])
        left = whole.forward(b)
        starts = np.flatnonzero(np.diff(self.own[others], prepend=-1))
        return Conditional(explained, C, b, self.reference[others], starts, whole, 0.5 * float(np.sum(left * left)))

    def losses(self, members: Bool) -> Float:
        """(J,) about what a set loses with each of its groups: exact for groups of one column, 0 outside the set."""
        rows = self.columns(members)
        factor = factorise(self.C[np.ix_(rows, rows)], self.reference[rows])
        inverse = factor.forward(np.eye(len(rows)))
        w = factor.backward(factor.forward(self.q[rows]))
        by_column = np.zeros(len(self.C))
        by_column[rows] = 0.5 * np.square(w).sum(axis=1) / np.maximum(np.square(inverse).sum(axis=0), 1e-300)
        losses: Float = np.zeros(len(self.costs))
        np.add.at(losses, self.own, by_column)
        return losses

    def trimmed(self, taken: Bool, candidates: Bool, limit: float) -> tuple[Bool, Bool]:
        """A set with what costs nothing more, and the candidates that still fit and have columns or open some."""
        extra = self.extra_costs(taken)
        taken = taken | (candidates & (extra <= 0.0))
        fits = candidates & ~taken & (self.cost(taken) + extra <= limit)
        return taken, fits & self.closed(fits & self.with_columns)


def _lost(C: Float) -> Bool:
    """Columns of a group that add nothing to those before them."""
    return factorise(C, np.diagonal(C).copy()).dropped
