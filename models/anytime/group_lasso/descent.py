"""Descent to the optimum at one penalty: exact block updates, and Newton's steps on the groups that are not zero.

Block coordinate descent finds out which groups are zero; where columns are nearly collinear it then takes thousands of
cycles for the last digits. But where no group is zero the objective is smooth, and its second derivatives are at hand:

    H = I_P (x) S_AA + blockdiag(k_g/|w_g| (I - u_g u_g')),   u_g = vec(w_g)/|w_g|.

So cycles and Newton's steps, each with an exact line search, take turns: a handful of either from the last penalty's
optimum. Moments make the gradient b of *all* groups cheap, so that no rule has to guess which may be left out: a cycle
goes over the groups that are not zero or violate |b_g| <= k_g, and every duality gap is taken over all groups.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from anytime.arrays import Bool, Float, Index
from anytime.group_lasso.block import Block
from anytime.group_lasso.problem import Problem

__all__ = ["Descent"]

DIRECT = 1000
"""Unknowns up to which Newton's equations are factored whole."""

RIDGES = (1e-13, 1e-9)
"""Added to the unit diagonal of the scaled Hessian, the second where rounding makes the first too small: duplicate
columns leave directions without curvature."""

BISECTIONS = 40
"""Halvings of the step; what is left of it, 1e-12, the next step mends."""

STRAIGHT = 1e-14
"""A step that passes 0 by less than the root of this share of a group's norm passes through it."""


class Descent:
    """Coefficients w (d, P) of one problem and their gradient b = q - S w, kept from one penalty to the next."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.w, self.b = np.zeros_like(problem.q), problem.q.copy()
        ends = problem.starts + problem.sizes
        self._slices = [slice(int(a), int(e)) for a, e in zip(problem.starts, ends, strict=True)]
        self._blocks = [Block(problem.S[rows, rows]) for rows in self._slices]
        self._owner = np.repeat(np.arange(len(problem.sizes)), problem.sizes)

    def start(self, w: Float) -> None:
        """Begin at some coefficients."""
        self.w = w.copy()
        self._refresh()

    def solve(self, mu: float, target: float, limit: int) -> float:
        """Descend until the gap is at most `target`, or for `limit` rounds; returns the gap reached."""
        k = mu * self.problem.weights
        for _ in range(limit):
            gap = self.problem.gap(self.w, self.b, mu)
            if gap <= target:
                break
            norms = self.problem.norms(self.w)
            self._cycle(np.flatnonzero((norms > 0) | (self.problem.norms(self.b) > k)), k, norms)
            self._newton(k)
            self._refresh()
        else:
            gap = self.problem.gap(self.w, self.b, mu)
        return gap

    def _refresh(self) -> None:
        """The gradient from the coefficients: what updates have left of rounding goes."""
        nonzero = np.flatnonzero(self.w.any(axis=1))
        self.b = self.problem.q - self.problem.S[:, nonzero] @ self.w[nonzero]

    def _cycle(self, groups: Index, k: Float, norms: Float) -> None:
        """Each group to its optimum given the others, once."""
        S, w, b = self.problem.S, self.w, self.b
        for g in groups.tolist():
            rows = self._slices[g]
            before = w[rows].copy()
            w[rows] = self._blocks[g].optimum(b[rows] + S[rows, rows] @ before, float(k[g]), float(norms[g]))
            b -= S[:, rows] @ (w[rows] - before)

    def _newton(self, k: Float) -> None:
        """A step on the groups that are not zero; where it ends at a kink, that group is 0 and the others go on."""
        for _ in range(len(k)):
            norms = self.problem.norms(self.w)
            rows = np.flatnonzero(norms[self._owner] > 0)
            if len(rows) == 0:
                return
            owner = self._owner[rows]
            unit = self.w[rows] / norms[owner, np.newaxis]
            gradient = self.b[rows] - k[owner, np.newaxis] * unit
            kappa = (k / np.where(norms > 0, norms, 1.0))[owner]
            d = self._direction(rows, owner, unit, kappa, gradient)
            if d is None:
                return
            whole = np.zeros_like(self.w)
            whole[rows] = d
            step, kinks = self._step(whole, k)
            moved = self.w + step * whole
            moved[kinks[self._owner]] = 0.0
            self.b -= self.problem.S[:, rows] @ (moved[rows] - self.w[rows])
            self.w = moved
            if not kinks.any():
                return

    def _direction(self, rows: Index, owner: Index, unit: Float, kappa: Float, gradient: Float) -> Float | None:
        """H^-1 times the gradient, or None where rounding forbids it."""
        if gradient.size <= DIRECT:
            return _direct(self.problem.S[np.ix_(rows, rows)], owner, unit, kappa, gradient)
        return _conjugate(self.problem.S[np.ix_(rows, rows)], owner, unit, kappa, gradient)

    def _step(self, d: Float, k: Float) -> tuple[float, Bool]:
        """How far along d (D, P), and which groups (groups,) are at their kink there.

        |w_g + t d_g|^2 = f (t - t_g)^2 + c: the slope is told without cancelling, also where c is 0 and it jumps at t_g.
        The step is 1 where the slope has fallen enough there; else where it is zero, or jumps over it.
        """
        problem = self.problem
        a, e, f = (problem.sums(product) for product in (self.w * self.w, self.w * d, d * d))
        moving = (f > 0) & (a > 0)
        f = np.where(moving, f, 1.0)
        at = np.where(moving, -e / f, 0.0)
        c = np.where(moving, a + at * e, 0.0)
        c[c <= STRAIGHT * a] = 0.0
        pull = np.where(moving, k * f, 0.0)
        linear, curvature = float(np.sum(self.b * d)), float(np.sum(d * (problem.S @ d)))

        def slope(t: float) -> float:
            gone = t - at
            norms = np.sqrt(f * gone * gone + c)
            return curvature * t - linear + float(np.sum(pull * gone / np.where(norms > 0, norms, 1.0)))

        nowhere, before = np.zeros(len(k), dtype=np.bool_), slope(0.0)
        if before >= 0:
            return 0.0, nowhere
        if slope(1.0) <= -0.5 * before:
            return 1.0, nowhere
        low, high = 0.0, 1.0
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if slope(middle) < 0 else (low, middle)
        kinks = moving & (c == 0) & (low <= at) & (at <= high)
        return (float(at[kinks][0]) if kinks.any() else low), kinks


def _direct(S: Float, owner: Index, unit: Float, kappa: Float, gradient: Float) -> Float | None:
    """By the Cholesky factor of H, (d P)^3/3 operations."""
    d, P = unit.shape
    u, k, of = unit.ravel(), np.repeat(kappa, P), np.repeat(owner, P)
    H = np.kron(S, np.eye(P)) if P > 1 else S
    curved = np.eye(d * P) - np.outer(u, u)  # for a single coefficient exactly 0
    H = H + np.where(of[:, np.newaxis] == of, curved * k, 0.0)
    scale = np.sqrt(np.maximum(np.diagonal(H), np.finfo(float).tiny))
    H /= scale
    H /= scale[:, np.newaxis]
    diagonal = np.einsum("ii->i", H)
    for ridge in RIDGES:
        diagonal += ridge
        try:
            factor = cho_factor(H, lower=True, check_finite=False)
        except LinAlgError:
            continue
        direction: Float = (cho_solve(factor, gradient.ravel() / scale, check_finite=False) / scale).reshape(d, P)
        return direction
    return None


def _conjugate(S: Float, owner: Index, unit: Float, kappa: Float, gradient: Float) -> Float:
    """By conjugate gradients, preconditioned by M = S + diag(k_g/|w_g|), which all responses share."""
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    sizes = np.diff(starts, append=len(owner))
    M = S + np.diag(kappa)
    M[np.diag_indices(len(M))] *= 1 + RIDGES[1]
    factor = cho_factor(M, lower=True, check_finite=False)

    def applied(x: Float) -> Float:
        radial = np.repeat(np.add.reduceat((unit * x).sum(axis=1), starts), sizes)
        product: Float = S @ x + kappa[:, np.newaxis] * (x - radial[:, np.newaxis] * unit)
        return product

    x, r = np.zeros_like(gradient), gradient.copy()
    z = cho_solve(factor, r, check_finite=False)
    p, rz = z, float(np.sum(r * z))
    enough = 1e-12 * rz
    for _ in range(200):
        Hp = applied(p)
        curvature = float(np.sum(p * Hp))
        if curvature <= 0 or rz <= enough:
            break
        x, r = x + (rz / curvature) * p, r - (rz / curvature) * Hp
        z = cho_solve(factor, r, check_finite=False)
        before, rz = rz, float(np.sum(r * z))
        p = z + (rz / before) * p
    return x
