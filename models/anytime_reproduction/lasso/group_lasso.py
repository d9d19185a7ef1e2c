"""The Group Lasso at one penalty: its penalised groups, duality gap, block updates and Newton steps.

*Objective.* The residual is r = y - X w; rows are divided by the root of n, so that S = X'X, q = X'y and b = X'r =
q - S w. With k_g = mu c_g,

    P(w) = 1/2 |r|^2 + sum_g k_g |w_g|_F.

*Groups of weight 0* are optimal, given the others, at w_0 = S_00^+ (q_0 - S_0. w). Substituted, they leave the same
problem on what they do not explain,

    S - S_.0 S_00^+ S_0.,   q - S_.0 S_00^+ q_0,   yy - q_0' S_00^+ q_0,

so they are eliminated beforehand, exactly. Their dual constraint, the equality X_0'theta = 0, is satisfied by every
residual of the reduced problem.

*Dual.* maximise D(theta) = 1/2 |y|^2 - 1/2 |y - theta|^2 over |X_g'theta|_F <= k_g. With theta = s r, feasible for
s = min(1, min_g k_g/|b_g|), and by <r, y> = |r|^2 + <b, w>,

    P(w) - D(s r) = 1/2 (1 - s)^2 |r|^2 + sum_g (k_g |w_g| - s <b_g, w_g>).

No term is negative, so nothing cancels: the gap is accurate to its last digits, from moments only. It bounds
P(w) - min P.

*Block update.* A proximal gradient step of one group given the others: with L the largest eigenvalue of S_gg and
z = w_g + b_g/L, the group moves to z (1 - k_g/(L |z|))_+. From 0 it stays at 0 exactly where that is optimal.

*Newton step.* Where no group is zero the objective is smooth. With r the negative gradient and u_g = vec(w_g)/|w_g|,
solve H d = r for

    H = I_P (x) S_AA + blockdiag(kappa_g (I - u_g u_g')),   kappa_g = k_g/|w_g|.

A line search follows: along a line the objective is convex, with kinks where groups pass through zero.

*Descent.* Block coordinate descent finds the groups that are zero, but where columns are nearly collinear it needs
thousands of cycles for the last digits. Therefore cycles and Newton steps alternate: a handful of each suffices from
the last penalty's optimum. Moments make the gradient b of *all* groups cheap, so no screening rule is needed: a cycle
visits the groups that are not zero or violate |b_g| <= k_g, and every duality gap covers all groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from anytime._linalg import RANK_TOLERANCE, conjugate_gradients, factorise_penalised
from anytime.moments.moments import Gram
from anytime.types import Bool, Float, Index

KINK = 1e-7
"""A group that a step shrinks below this share of its norm passes zero, where the objective has a kink."""

FALLEN = 0.5
"""The full step is accepted if the slope there is, in size, at most this share of the initial slope."""

FARTHEST = 2.0**20
"""Longest step, where the slope still falls: the objective is bounded, but rounding may hide it."""

BISECTIONS = 40
"""Halvings of the step; the next step corrects the remaining 1e-12."""


def line_search(slope: Callable[[float], float]) -> float:
    """Return a step that lowers a convex function, given its slope: 1 if that has fallen enough there, or its root."""
    before = slope(0.0)
    if before >= 0:
        return 0.0
    if abs(slope(1.0)) <= -FALLEN * before:
        return 1.0
    low, high = 0.0, 1.0
    while slope(high) < 0 and high < FARTHEST:
        low, high = high, 2.0 * high
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return low


DIRECT = 1000
"""Maximum number of unknowns for which H is factorised."""

RIDGES = (1e-13, 1e-9)
"""Shares of H's diagonal added to it; the second is for cases where rounding makes the first too small: duplicate
columns have directions without curvature.
"""

DIRECTION_TOLERANCE = 1e-6
"""Tolerance of conjugate gradients; six digits suffice for the full speed of Newton's method."""

MAX_CONJUGATE_STEPS = 200


def _by_factor(S: Float, owner: Index, unit: Float, kappa: Float, gradient: Float) -> Float | None:
    """Return H^-1 gradient, (d, P), for the columns of the groups that are not zero; None if rounding prevents it.

    `owner` (d,) is the group of each column, ascending. `unit` (d, P) are the coefficients, each group divided by its
    norm; `kappa` (d,) is the penalty of each column's group divided by that norm. The Cholesky factor of H takes
    (d P)^3/3 operations.
    """
    d, P = unit.shape
    u, owners = unit.ravel(), np.repeat(owner, P)
    across = np.eye(d * P) - np.outer(u, u)  # exactly 0 for a group of one coefficient
    H = np.kron(S, np.eye(P)) + np.where(owners[:, np.newaxis] == owners, across * np.repeat(kappa, P), 0.0)
    # The scaling makes groups of any norm comparable.
    diagonal = np.diagonal(H)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    H /= scale[:, np.newaxis] * scale
    for ridge in RIDGES:
        H[np.diag_indices(d * P)] += ridge
        with suppress(LinAlgError):
            factor = cho_factor(H, lower=True, check_finite=False)
            return np.reshape(cho_solve(factor, gradient.ravel() / scale, check_finite=False) / scale, (d, P))
    return None


def _by_conjugate_gradients(S: Float, owner: Index, unit: Float, kappa: Float, gradient: Float) -> Float:
    """Return the same by conjugate gradients, preconditioned by S + diag(kappa), d x d and shared by the responses."""
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    M = S + np.diag(kappa)
    M[np.diag_indices(len(M))] *= 1.0 + RIDGES[1]
    factor = cho_factor(M, lower=True, check_finite=False)

    def times(x: Float) -> Float:
        radial = np.add.reduceat(np.sum(unit * x, axis=1), starts)
        along = np.repeat(radial, np.diff(starts, append=len(x)))[:, np.newaxis] * unit
        return np.asarray(S @ x + kappa[:, np.newaxis] * (x - along))

    return conjugate_gradients(
        times,
        lambda r: np.asarray(cho_solve(factor, r, check_finite=False)),
        gradient,
        tolerance=DIRECTION_TOLERANCE,
        max_steps=MAX_CONJUGATE_STEPS,
    )


SHARP = 1e-6
"""Maximum error of a group's gradient, as a share of its penalty."""

POLISH = 10
"""Maximum number of extra rounds, once the gap is reached, for groups that violate their optimality conditions.

Where the penalty is small, a group that should be zero may remain with hardly any effect on the gap.
"""


@dataclass(frozen=True, eq=False)
class PathPoint:
    """The optimum w (d, P) at one penalty and its duality gap.

    `ratios` are |b_g|_F/c_g of each group (k,), and `active` marks the groups that are not zero (k,).
    """

    mu: float
    gap: float
    w: Float
    ratios: Float
    active: Bool


class Descent:
    """The penalised groups that have columns, after elimination of the free groups, and their optimum at any penalty.

    The optimum has a `target` gap, if a maximum number of rounds suffices; for one BLAS thread.

    Attributes
    ----------
    S, q, yy
        Moments that the free groups do not explain; S (d, d), q (d, P), yy the sum over responses.
    weights : Float
        (k,) weight of each group's norm, positive.
    members : Index
        (k,) indices of these groups among all groups; `free` are those of the free groups that have columns.
    w, b : Float
        (d, P) coefficients, which the descent moves, and their gradient b = q - S w.
    """

    def __init__(self, gram: Gram, slices: Sequence[slice], weights: Float, target: float, rounds: int) -> None:
        """Eliminate the groups of weight 0. Cost d_0 D^2 for their d_0 columns."""
        size = np.array([s.stop - s.start for s in slices], dtype=np.intp)
        self.members = np.flatnonzero((weights > 0) & (size > 0))
        self.free = np.flatnonzero((weights == 0) & (size > 0))
        self.weights, self.target, self._rounds = weights[self.members], target, rounds
        penalised = np.repeat(weights > 0, size)
        columns, free = np.flatnonzero(penalised), np.flatnonzero(~penalised)
        factor = factorise_penalised(gram.S[np.ix_(free, free)], np.zeros(len(free)))
        z, V = factor.forward(gram.q[free]), factor.forward(gram.S[np.ix_(free, columns)])
        S, q = gram.S[np.ix_(columns, columns)], gram.q[columns]
        before = np.diagonal(S).copy()
        if len(free):
            S, q = S - V.T @ V, q - V.T @ z
        # The remainder of columns in the span of the free groups is rounding.
        dropped = np.diagonal(S) <= RANK_TOLERANCE * before
        S[dropped], S[:, dropped], q[dropped] = 0.0, 0.0, 0.0
        self.S, self.q, self.yy = np.asfortranarray(S), q, max(float(gram.yy.sum() - np.sum(z * z)), 0.0)
        self._elimination = columns, free, factor, z, V
        self.w, self.b = np.zeros_like(q), q.copy()
        sizes = size[self.members]
        ends = np.cumsum(sizes)
        self._starts, self._owner = ends - sizes, np.repeat(np.arange(len(sizes)), sizes)
        self._slices = [slice(int(a), int(e)) for a, e in zip(self._starts, ends, strict=True)]
        self._columns = [self.S[:, rows] for rows in self._slices]
        self._bounds = [float(np.linalg.eigvalsh(self.S[rows, rows])[-1]) for rows in self._slices]

    def all_columns(self, w: Float) -> Float:
        """Return the coefficients (D, P) of all columns, those of the free groups at their optimum."""
        columns, free, factor, z, V = self._elimination
        full = np.zeros((len(columns) + len(free), w.shape[1]))
        full[columns] = w
        full[free] = factor.backward(z - np.where(factor.dropped[:, np.newaxis], 0.0, V @ w))
        return full

    def sums(self, values: Float) -> Float:
        """Return the sum of values (d, P) over the rows of each group and over responses, (k,)."""
        return np.add.reduceat(values.sum(axis=1), self._starts) if len(self._starts) else np.zeros(0)

    def norms(self, w: Float) -> Float:
        return np.sqrt(self.sums(np.square(w)))

    def largest(self) -> float:
        """Return the smallest mu at which all penalised groups are zero."""
        return float((self.norms(self.q) / self.weights).max(initial=0.0))

    def gap(self, w: Float, b: Float, mu: float) -> float:
        """Return P(w) minus the dual at the scaled residual, an upper bound of P(w) minus the optimum."""
        k, gradients = mu * self.weights, self.norms(b)
        s = min(1.0, float((k / np.where(gradients > 0, gradients, np.inf)).min(initial=np.inf, where=gradients > k)))
        squares = max(self.yy - float(np.sum(self.q * w)) - float(np.sum(b * w)), 0.0)
        terms = k * self.norms(w) - s * self.sums(b * w)
        return 0.5 * (1.0 - s) ** 2 * squares + float(np.maximum(terms, 0.0).sum())

    def at(self, mu: float, near: PathPoint | None = None) -> PathPoint:
        """Return the optimum at one penalty; the descent starts from a nearby point, or from zero."""
        k = mu * self.weights
        self.w = np.zeros_like(self.q) if near is None else near.w.copy()
        gap, polishing = self._refreshed_gap(mu), 0
        for _ in range(self._rounds):
            if gap <= self.target:
                if polishing == POLISH or self._is_sharp(k):
                    break
                polishing += 1
            self._cycle(np.flatnonzero((self.norms(self.w) > 0) | (self.norms(self.b) > k)), k)
            self._newton(k)
            gap = self._refreshed_gap(mu)
        return PathPoint(mu, gap, self.w, self.norms(self.b) / self.weights, self.norms(self.w) > 0)

    def _is_sharp(self, k: Float) -> bool:
        """Return whether each group satisfies its optimality condition: b_g = k_g u_g, or |b_g| <= k_g at 0."""
        norms = self.norms(self.w)
        unit = self.w / np.where(norms > 0, norms, 1.0)[self._owner, np.newaxis]
        off = self.norms(self.b - k[self._owner, np.newaxis] * unit)
        return bool((off <= np.where(norms > 0, SHARP, 1.0 + SHARP) * k).all())

    def _refreshed_gap(self, mu: float) -> float:
        """Return the gap after recomputing the gradient from the coefficients, which removes rounding errors."""
        nonzero = np.flatnonzero(self.w.any(axis=1))
        self.b = self.q - self.S[:, nonzero] @ self.w[nonzero]
        return self.gap(self.w, self.b, mu)

    def _cycle(self, groups: Index, k: Float) -> None:
        """Move each of some groups by a proximal gradient step, given the others."""
        w, b = self.w, self.b
        for g in groups.tolist():
            rows, bound = self._slices[g], self._bounds[g]
            z = w[rows] + b[rows] / bound
            length = math.sqrt(float(np.vdot(z, z)))
            after = z * max(1.0 - k[g] / (bound * length), 0.0) if length > 0 else z
            b -= self._columns[g] @ (after - w[rows])
            w[rows] = after

    def _newton(self, k: Float) -> None:
        """Take a Newton step on the nonzero groups; a group that reaches its kink becomes 0 and the others continue."""
        for _ in range(len(k)):
            norms = self.norms(self.w)
            rows = np.flatnonzero(norms[self._owner] > 0)
            if len(rows) == 0:
                return
            owner, columns = self._owner[rows], self.S[:, rows]
            unit = self.w[rows] / norms[owner, np.newaxis]
            r = self.b[rows] - k[owner, np.newaxis] * unit
            solved = _by_factor if r.size <= DIRECT else _by_conjugate_gradients
            direction = solved(columns[rows], owner, unit, k[owner] / norms[owner], r)
            if direction is None:
                return
            d, Sd = np.zeros_like(self.w), columns @ direction
            d[rows] = direction
            linear, curvature = float(np.sum(self.b * d)), float(np.sum(d * Sd))

            def slope(t: float, linear: float = linear, curvature: float = curvature, d: Float = d) -> float:
                after = self.w + t * d
                length = self.norms(after)
                pulls = self.sums(after * d) / np.where(length > 0, length, 1.0)
                return curvature * t - linear + float(k @ pulls)

            step = line_search(slope)
            self.w += step * d
            self.b -= step * Sd
            kinks = (norms > 0) & (self.norms(self.w) <= KINK * norms)
            self.w[kinks[self._owner]] = 0.0
            if not kinks.any():
                return
