"""Newton's direction where no group is zero, and there the Group Lasso is smooth.

With r the gradient of the descent and u_g = vec(w_g)/|w_g|, solve H d = r for

    H = I_P (x) S_AA + blockdiag(kappa_g (I - u_g u_g')),   kappa_g = k_g/|w_g|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from anytime.arrays import Float, Index

__all__ = ["Curved"]

DIRECT = 1000
"""Unknowns up to which H is factored whole."""

RIDGES = (1e-13, 1e-9)
"""Shares of H's diagonal added to it, the second where rounding makes the first too small: duplicate columns leave
directions without curvature."""

SOLVED = 1e-12
"""Share of the first residual (squared, in the preconditioner's norm) at which conjugate gradients end: a direction
that is right to six digits gives Newton's step all its speed."""

MOST = 200
"""Conjugate gradients at most; cut short they still give a direction of descent."""


@dataclass(frozen=True, eq=False)
class Curved:
    """Second derivatives at some point.

    Attributes
    ----------
    S : (d, d) covariance of the columns of the groups that are not zero.
    owner : (d,) their group, ascending.
    unit : (d, P) the coefficients, each group divided by its norm.
    kappa : (d,) the penalty of each column's group divided by the group's norm.
    """

    S: Float
    owner: Index
    unit: Float
    kappa: Float

    def direction(self, gradient: Float) -> Float | None:
        """H^-1 gradient, (d, P), or None where rounding forbids it."""
        return self._factored(gradient) if gradient.size <= DIRECT else self._conjugate(gradient)

    def _factored(self, gradient: Float) -> Float | None:
        """By the Cholesky factor of H, (d P)^3/3 operations."""
        d, P = self.unit.shape
        u, kappa, owner = self.unit.ravel(), np.repeat(self.kappa, P), np.repeat(self.owner, P)
        across = np.eye(d * P) - np.outer(u, u)  # for a group of one coefficient exactly 0
        H = np.kron(self.S, np.eye(P)) + np.where(owner[:, np.newaxis] == owner, across * kappa, 0.0)
        # Groups of any norm are solved for in one unit.
        diagonal = np.diagonal(H)
        scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        H /= scale[:, np.newaxis] * scale
        for ridge in RIDGES:
            H[np.diag_indices(d * P)] += ridge
            try:
                factor = cho_factor(H, lower=True, check_finite=False)
            except LinAlgError:
                continue
            solved: Float = cho_solve(factor, gradient.ravel() / scale, check_finite=False) / scale
            return solved.reshape(d, P)
        return None

    def _conjugate(self, gradient: Float) -> Float:
        """By conjugate gradients preconditioned by S + diag(kappa), d x d and shared by the responses."""
        M = self.S + np.diag(self.kappa)
        M[np.diag_indices(len(M))] *= 1.0 + RIDGES[1]
        factor = cho_factor(M, lower=True, check_finite=False)
        x, r = np.zeros_like(gradient), gradient
        z = cho_solve(factor, r, check_finite=False)
        p, rz = z, float(np.sum(r * z))
        enough = SOLVED * rz
        for _ in range(MOST):
            Hp = self._times(p)
            curvature = float(np.sum(p * Hp))
            if rz <= enough or curvature <= 0:
                break
            x, r = x + (rz / curvature) * p, r - (rz / curvature) * Hp
            z = cho_solve(factor, r, check_finite=False)
            before, rz = rz, float(np.sum(r * z))
            p = z + (rz / before) * p
        return x

    def _times(self, x: Float) -> Float:
        """H x."""
        starts = np.flatnonzero(np.diff(self.owner, prepend=-1))
        radial = np.add.reduceat(np.sum(self.unit * x, axis=1), starts)
        along = np.repeat(radial, np.diff(starts, append=len(x)))[:, np.newaxis] * self.unit
        product: Float = self.S @ x + self.kappa[:, np.newaxis] * (x - along)
        return product
