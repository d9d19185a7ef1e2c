"""One group's exact optimum given the others.

    minimise  1/2 tr(w'S w) - tr(z'w) + k |w|_F

is 0 where |z|_F <= k. Otherwise, with rho = |w|_F, w = (S + k/rho I)^-1 z; in the eigenvectors of S, with s_i the
eigenvalues and a_i the squared norms of the rows of V'z, rho is the root of the *secular equation*

    h(rho) = sum_i a_i/(s_i rho + k)^2 = 1.

h^-1/2 - 1 is concave and increasing: Newton's steps from below stay below and rise to the root, and a step from above
lands below. It is nearly straight, and quite so where all s_i are equal: three or four steps reach the last digit.
"""

from __future__ import annotations

import math

import numpy as np

from anytime.arrays import Float

__all__ = ["Block"]

STEPS = 100
"""More than Newton's monotone steps ever need from the lower bound."""


class Block:
    """The eigenvectors of one group's covariance S (d, d).

    None is left out, however small its eigenvalue: the penalty holds it, and Newton's steps know it, too.
    """

    def __init__(self, S: Float) -> None:
        self.S = np.ascontiguousarray(S)
        values, vectors = np.linalg.eigh(S)
        self.values, self.vectors = np.maximum(values, 0.0), vectors

    def optimum(self, z: Float, k: float, rho: float) -> Float:
        """The optimum (d, P), for k > 0; `rho`, a guess of its norm, spares steps."""
        if len(z) == 1:
            length = math.sqrt(float(np.vdot(z, z)))
            return z * ((length - k) / (length * float(self.S[0, 0]))) if length > k else np.zeros_like(z)
        along = self.vectors.T @ z
        a = np.einsum("dp,dp->d", along, along)
        length = math.sqrt(float(a.sum()))
        if length <= k:
            return np.zeros_like(z)
        rho = self._norm(a, k, max(rho, (length - k) / float(self.values[-1])))
        w: Float = self.vectors @ (along / (self.values + k / rho)[:, np.newaxis])
        return w

    def _norm(self, a: Float, k: float, rho: float) -> float:
        """Root of the secular equation. Once Newton's step no longer rises it is rounding."""
        s = self.values
        floor = (math.sqrt(float(a.sum())) - k) / float(s[-1])
        for step in range(STEPS):
            inverse = 1.0 / (s * rho + k)
            terms = a * inverse * inverse
            h = float(terms.sum())
            slope = float(terms @ (s * inverse))  # -h'/2
            # (h^-1/2 - 1) / (h^-3/2 slope)
            moved = max(rho + (h * math.sqrt(h) - h) / slope, floor)
            if abs(moved - rho) <= 4e-16 * rho or (moved <= rho and step > 0):
                return moved
            rho = moved
        return rho
