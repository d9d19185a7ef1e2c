"""The problem of a certificate, and its relaxation: a bound on F of any set of groups within a budget.

*The problem.*  F(S) = 1/2 tr(q_S' C_S^-1 q_S),  C = S + alpha I, does not change when the columns of a group are
replaced by others with the same span. Columns that add nothing to their own group are removed here, and the others are
rotated so that each block (C^-1)_gg is diagonal. The relaxation is diagonal in these coordinates, and C^-1 limits what
it may subtract from C; this rotation was the best of ten on real groups.

*The bound by splitting.*  Let C and b be the covariance and gradient of the candidates, Delta = diag(delta) > 0 with
C - Delta positive semi-definite, and u (d, P) anything. As  u'Mu + w'Mw >= 2 u'Mw  with M = C - Delta, and w is on the
columns of S,

    F(S) = max_w  b'w - 1/2 w'Mw - 1/2 w' Delta w
        <= 1/2 u'Mu + max_w  r'w - 1/2 w' Delta w,       r = b - Mu
         = 1/2 u'Mu + sum over g in S of p_g,            p_g = 1/2 sum over the columns of g of r^2/delta,

and the best sum within a budget K is at most that of the fractional knapsack,  min over the price t >= 0 of
t K + sum_g (p_g - t c_g)_+.  With delta the least eigenvalue of C and u = 0 this is the spectral bound; the best u and
delta make it the semi-definite relaxation of the problem (Pilanci, Wainwright, El Ghaoui 2015; Dong, Chen, Linderoth
2015), far tighter. The best u belongs to shares z_g in [0, 1] of the groups with c'z = K:

    u = W(z, delta) = (C + Delta (1/z - 1))^-1 b,     the saddle  min over delta, max over z of  1/2 tr(b' W(z, delta)),

convex in delta and concave in z. It is followed by Newton's method on the barrier problem

    1/2 tr(b'W) - mu [log det(C - Delta) + sum log delta] + mu sum_g [log z_g + log(1 - z_g)],

mu falling. Every iterate gives a bound, so nothing has to converge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.linalg import block_diag, cho_factor, cho_solve
from scipy.linalg.blas import dtrsm
from scipy.linalg.lapack import dpotrf, dpotri

from anytime._linalg import RANK_TOLERANCE, Factor, factorise
from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram
from anytime.selection.criteria import gains
from anytime.types import Bool, Float, Index

SETTLED = 0.3
"""A Newton step this small, in the barrier's own measure, ends the work at one mu."""

INTERIOR = 0.9
"""Maximum share of the way to the boundary of one step."""

NULL = 1e-13
"""A covariance from which less than this can be subtracted for a column counts as singular."""

RESUMED = 1e-4
"""Smallest mu whose point is stored to start a smaller problem: deep inside, so that the first steps are long."""


@dataclass(frozen=True, eq=False)
class Conditional:
    """Candidate groups given a selected set I.

    Attributes
    ----------
    explained, top : float
        F(I), and F(I and all candidates) - F(I).
    C, factor : array of shape (d, d)
        Covariance of the candidates' columns given I.
    b : Float
        (d, P) their gradient, q - C w(I).
    reference : Float
        (d,) the diagonal that pivots are compared with.
    starts : Index
        (k,) first column of each candidate that has columns.
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
        if len(self.starts) == len(self.C):
            single = np.diagonal(self.C)[:, np.newaxis, np.newaxis]
            return gains(single, self.b[:, np.newaxis], self.reference[:, np.newaxis])
        blocks = [slice(begin, end) for begin, end in pairwise([*self.starts.tolist(), len(self.C)])]
        return np.concatenate(
            [gains(self.C[np.newaxis, g, g], self.b[np.newaxis, g], self.reference[np.newaxis, g]) for g in blocks]
        )


@dataclass(frozen=True, eq=False)
class SelectionProblem:
    """Normal equations in rotated columns, costs and requirements.

    Attributes
    ----------
    C : Float
        (D, D), q : (D, P) in rotated columns.
    reference : Float
        (D,) the diagonal of C, which pivots are compared with.
    own : Index
        (D,) the group of each column, in increasing order.
    costs : Float
        (J,) costs of the groups.
    closure : Bool
        (J, J), closure[g, p]: p is g, or g requires p, directly or not.
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
        blocks = [C[columns, columns] for columns in groups.slices]
        dropped = np.concatenate([factorise(block, np.diagonal(block).copy()).dropped for block in blocks])
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
        return np.flatnonzero(members[self.own])

    def mask(self, members: Iterable[int]) -> Bool:
        return np.isin(np.arange(len(self.costs)), list(members))

    def cost(self, members: Bool) -> float:
        return float(self.costs[members].sum())

    def closed(self, members: Bool) -> Bool:
        return np.asarray(self.closure[members].any(axis=0))

    def dependents(self, members: Bool) -> Bool:
        """Return the set with all groups that require any of it."""
        return np.asarray(self.closure[:, members].any(axis=1))

    def extra_costs(self, selected: Bool) -> Float:
        """Return (J,) the cost of each group with its prerequisites, once `selected` is paid."""
        return np.asarray(self.closure.astype(np.float64) @ np.where(selected, 0.0, self.costs))

    def shared_costs(self, selected: Bool, candidates: Bool) -> Float:
        """Return (J,) costs e with  sum of e over S <= cost of S  for any closed set S of candidates.

        Costs of `selected` are not included. The cost of an unpaid prerequisite is divided equally among the candidates
        with columns that need it, itself included; a set with some of these pays for all of them.
        """
        needs = self.closure & (candidates & self.with_columns)[:, np.newaxis]
        parts = np.where(selected | ~candidates, 0.0, self.costs) / np.maximum(needs.sum(axis=0), 1)
        return np.asarray(needs @ parts)

    @cached_property
    def with_columns(self) -> Bool:
        """(J,) groups with columns that were not removed."""
        return self.mask(self.own.tolist())

    def explained(self, members: Bool) -> float:
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
        factor = factorise(C, self.reference[others])
        z = factor.forward(b)
        starts = np.flatnonzero(np.diff(self.own[others], prepend=-1))
        return Conditional(explained, C, b, self.reference[others], starts, factor, 0.5 * float(np.sum(z * z)))

    def losses(self, members: Bool) -> Float:
        """Return (J,) the approximate loss of F without each group: exact for one column, and 0 outside the set."""
        rows = self.columns(members)
        factor = factorise(self.C[np.ix_(rows, rows)], self.reference[rows])
        inverse = factor.forward(np.eye(len(rows)))
        w = factor.backward(factor.forward(self.q[rows]))
        by_column = np.zeros(len(self.C))
        by_column[rows] = 0.5 * np.square(w).sum(axis=1) / np.maximum(np.square(inverse).sum(axis=0), 1e-300)
        return np.asarray(np.bincount(self.own, by_column, minlength=len(self.costs)), dtype=np.float64)

    def trimmed(self, selected: Bool, candidates: Bool, limit: float) -> tuple[Bool, Bool]:
        """Return a set with the candidates that cost nothing more, and the useful candidates that still fit.

        A candidate is useful if it has columns or is a prerequisite of one that has.
        """
        extra = self.extra_costs(selected)
        selected = selected | (candidates & (extra <= 0.0))
        fits = candidates & ~selected & (self.cost(selected) + extra <= limit)
        return selected, fits & self.closed(fits & self.with_columns)


@dataclass(frozen=True, eq=False)
class Split:
    """A point of the saddle: delta (d,) by column, z (J,) by group, and the price of the budget."""

    delta: Float
    z: Float
    price: float


@dataclass(frozen=True, eq=False)
class Relaxed:
    """A bound `value` on what any set of candidates adds within the budget.

    Attributes
    ----------
    p : Float
        (J,) the value of each group.
    surplus : Float
        (J,) p_g minus its cost at the price; the bound falls by |surplus| if the group is on the other side: left out
        if this is positive, selected if it is negative.
    z : Float
        (J,) shares of the groups at the bound.
    split : Split
        A point of the path to start a smaller problem from.
    """

    value: float
    p: Float
    surplus: Float
    z: Float
    split: Split


def first_split(C: Float, costs: Float) -> Split | None:
    """Return half of the possible C - t diag(C^-1)^-1 with the budget spread evenly, or None if C is singular."""
    try:
        inverse = _inverse(C)
    except np.linalg.LinAlgError:
        return None
    scale = 1.0 / np.sqrt(np.diagonal(inverse))
    largest = float(np.linalg.eigvalsh(scale[:, np.newaxis] * inverse * scale)[-1])
    delta = 0.5 * scale**2 / largest
    z = np.full(len(costs), min(0.5, 1.0 / float(costs.sum())))
    return Split(delta, z, 0.0) if (delta > NULL).all() else None


def knapsack_bound(C: Float, b: Float, starts: Index, costs: Float, split: Split, u: Float) -> Relaxed:
    """Return the bound at a budget of 1 from any u (d, P) and any split; groups begin at the columns `starts`."""
    fitted = C @ u - split.delta[:, np.newaxis] * u
    r = b - fitted
    p = np.add.reduceat(0.5 * np.einsum("dp,dp->d", r, r) / split.delta, starts)
    density = p / costs
    order = np.argsort(-density, kind="stable")
    filled = np.cumsum(costs[order])
    critical = int(np.searchsorted(filled, 1.0, side="right"))
    price = float(density[order[critical]]) if critical < len(order) else 0.0
    surplus = p - price * costs
    value = 0.5 * float(np.sum(u * fitted)) + price + float(np.maximum(surplus, 0.0).sum())
    return Relaxed(value, p, surplus, split.z, split)


def relax(
    C: Float,
    b: Float,
    starts: Index,
    costs: Float,
    split: Split,
    levels: tuple[tuple[float, int], ...],
    enough: Callable[[float], bool],
) -> Relaxed:
    """Return the least bound along the barrier's path, at a budget of 1 and for b scaled so that all candidates add 1.

    Parameters
    ----------
    C : Float
        (d, d) positive definite.
    costs : Float
        (J,) positive, in budgets; together more than 1.
    split : Split
        Starting point with C - Delta positive definite.
    levels : tuple[tuple[float, int], ...]
        Values of mu with the maximum number of steps at each.
    enough : Callable[[float], bool]
        Called with the least bound so far before each step; true ends the search.
    """
    while not _positive(C - np.diag(split.delta)):  # only by rounding, if the larger problem ended at the boundary
        split = replace(split, delta=0.9 * split.delta)
    saddle = _Saddle(C, b, starts, costs, split)
    best = knapsack_bound(C, b, starts, costs, split, saddle.W)
    resumed = split
    for mu, most in levels:
        for _ in range(most):
            step = None if enough(best.value) else saddle.step(mu)
            if step is None:
                return replace(best, split=resumed)
            split, size = step
            saddle = _Saddle(C, b, starts, costs, split)
            here = knapsack_bound(C, b, starts, costs, split, saddle.W)
            best = here if here.value < best.value else best
            resumed = split if mu >= RESUMED else resumed
            if size < SETTLED:
                break
    return replace(best, split=resumed)


class _Saddle:
    """One point of the saddle, with the Newton step from it.

    With h = 1/z - 1 and t = delta/z^2 by column, G = (C + Delta h)^-1, W = G b, Q = G o WW', P = (C - Delta)^-1 and
    s = 1/2 |W|^2 by row, the derivatives of 1/2 tr(b'W) are

        by delta: -h s,   by z: sum over the group of t s,
        twice:    h Q h,  s/z^2 - h Q t,  and  t Q t - 2 t s/z.
    """

    def __init__(self, C: Float, b: Float, starts: Index, costs: Float, split: Split) -> None:
        self.C, self.starts, self.costs, self.split = C, starts, costs, split
        self.sizes = np.diff(np.append(starts, len(C)))
        self.z = np.repeat(split.z, self.sizes)
        self.h = 1.0 / self.z - 1.0
        self.G = _inverse(C + np.diag(split.delta * self.h))
        self.W: Float = self.G @ b

    def step(self, mu: float) -> tuple[Split, float] | None:
        """Return the next point and the size of the step to it; None if only rounding errors remain."""
        delta, z, price = self.split.delta, self.split.z, self.split.price
        Q, s, t = self.G * (self.W @ self.W.T), 0.5 * np.einsum("dp,dp->d", self.W, self.W), delta / self.z**2
        try:
            P = _inverse(self.C - np.diag(delta))
        except np.linalg.LinAlgError:
            return None
        by_delta = -self.h * s + mu * (np.diagonal(P) - 1.0 / delta)
        by_z = self._grouped(t * s) + mu * (1.0 / z - 1.0 / (1.0 - z)) - price * self.costs
        H = self.h[:, np.newaxis] * Q * self.h + mu * P * P
        H[np.diag_indices_from(H)] += mu / delta**2
        cross = -(self.h[:, np.newaxis] * Q * t)
        cross[np.diag_indices_from(cross)] += s / self.z**2
        cross = self._grouped(cross.T).T
        B = -self._grouped(self._grouped(t[:, np.newaxis] * Q * t).T)
        B[np.diag_indices_from(B)] += self._grouped(2.0 * t * s / self.z) + mu * (1.0 / z**2 + 1.0 / (1.0 - z) ** 2)
        try:
            moved = _newton(H, cross, B, by_delta, by_z, self.costs, 1.0 - float(self.costs @ z))
        except np.linalg.LinAlgError:
            return None
        return self._along(*moved) if all(np.isfinite(part).all() for part in moved) else None

    def _grouped(self, by_column: Float) -> Float:
        """Return sums over the columns of each group, along the first axis."""
        if len(self.starts) == len(by_column):
            return by_column
        return np.asarray(np.add.reduceat(by_column, self.starts, axis=0))

    def _along(self, d_delta: Float, d_z: Float, d_price: float) -> tuple[Split, float] | None:
        """Return the point as far along a step as the barrier allows."""
        delta, z = self.split.delta, self.split.z
        toward = max((-d_delta / delta).max(), (-d_z / z).max(), (d_z / (1.0 - z)).max(), INTERIOR)
        share = INTERIOR / toward
        while not _positive(self.C - np.diag(delta + share * d_delta)):
            share *= 0.7
            if share < 1e-8:
                return None
        size = max(np.abs(d_delta / delta).max(), np.abs(d_z / np.minimum(z, 1.0 - z)).max())
        return Split(delta + share * d_delta, z + share * d_z, self.split.price + share * d_price), float(size)


def _newton(
    H: Float, cross: Float, B: Float, by_delta: Float, by_z: Float, costs: Float, missing: float
) -> tuple[Float, Float, float]:
    """Solve  [H, X, 0; X', -B, -c; 0, -c', 0] (delta, z, price) = -(by_delta, by_z, missing), by elimination."""
    scale = 1.0 / np.sqrt(np.diagonal(H))
    L = np.linalg.cholesky(scale[:, np.newaxis] * H * scale)
    Y = dtrsm(1.0, L, scale[:, np.newaxis] * np.column_stack([cross, by_delta]), lower=1)
    X, y = Y[:, :-1], Y[:, -1]
    A, g = B + X.T @ X, by_z - X.T @ y
    balance = 1.0 / np.sqrt(np.diagonal(A))
    factor = cho_factor(balance[:, np.newaxis] * A * balance, lower=True, check_finite=False)
    sides = balance[:, np.newaxis] * np.column_stack([g, costs])
    both = balance[:, np.newaxis] * cho_solve(factor, sides, check_finite=False)
    price = float((costs @ both[:, 0] - missing) / (costs @ both[:, 1]))
    d_z = both[:, 0] - price * both[:, 1]
    back = dtrsm(1.0, L, (y + X @ d_z)[:, np.newaxis], lower=1, trans_a=1)
    return -scale * back[:, 0], d_z, price


def _inverse(A: Float) -> Float:
    """Return the inverse of a positive definite matrix; raise LinAlgError if it is not positive definite."""
    factor, info = dpotrf(A, lower=1)
    if info == 0:
        half, info = dpotri(factor, lower=1, overwrite_c=1)
    if info != 0:
        raise np.linalg.LinAlgError("not positive definite")
    # The other triangle is zero.
    inverse: Float = half + half.T
    inverse[np.diag_indices_from(inverse)] = np.diagonal(half)
    return inverse


def _positive(A: Float) -> bool:
    return bool(dpotrf(A, lower=1)[1] == 0)
