"""One BLAS thread for small linear algebra.

numpy and scipy each bring an OpenBLAS with threads of its own; on blocks of ten columns they spin against each other
and cost ten times what they save. Only the big cross-products use more than one core, and there by rows, one BLAS
thread each.

Cholesky factors in which rank loss is a declared outcome.

A column whose pivot falls to rounding of its own diagonal adds nothing to the columns before it. It is *dropped*: its
row and column of the matrix become those of the identity and its right-hand side 0, so that its coefficient is exactly
0 and the others are what they would be without it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy.linalg  # noqa: F401  (loads scipy's OpenBLAS, so that the controller finds both)
from scipy.linalg import solve_triangular
from threadpoolctl import ThreadpoolController

from anytime.types import Bool, Float

__all__ = [
    "RANK_TOLERANCE",
    "Factor",
    "factorise",
    "factorise_penalised",
    "single_blas_thread",
]


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def single_blas_thread() -> AbstractContextManager[object]:
    """Context in which BLAS uses one thread; the setting is the process's, and is put back at the end."""
    limit: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return limit


RANK_TOLERANCE = 1e-10
"""A pivot under this share of its column's diagonal is rank loss. Penalties from 1e-9 up keep every pivot above it."""


@dataclass(frozen=True)
class Factor:
    """Lower factor L of a positive semi-definite matrix; `dropped` (d,) marks the columns taken out."""

    L: Float
    dropped: Bool

    def forward(self, B: Float) -> Float:
        """L^-1 B, zero in dropped rows; B is (d, P)."""
        if self.dropped.any():
            B = np.where(self.dropped[:, np.newaxis], 0.0, B)
        Z: Float = solve_triangular(self.L, B, lower=True, check_finite=False)
        return Z

    def backward(self, Z: Float) -> Float:
        """L^-T Z for a Z from `forward`."""
        W: Float = solve_triangular(self.L, Z, trans=1, lower=True, check_finite=False)
        return W


def factorise(A: Float, reference: Float) -> Factor:
    """Factor of A (d, d), pivots judged against the diagonal `reference` (d,) that the columns had at first."""
    try:
        L = np.asarray(np.linalg.cholesky(A), dtype=np.float64)
    except np.linalg.LinAlgError:
        return _by_columns(A, reference)
    pivots = np.square(np.diagonal(L))
    if (pivots > RANK_TOLERANCE * reference).all():
        return Factor(L, np.zeros(len(A), dtype=np.bool_))
    return _by_columns(A, reference)


def factorise_penalised(H: Float, ridge: Float) -> Factor:
    """Factor of H + diag(ridge), ridge (d,); a column without variation and penalty gets a pivot of its own, 1."""
    C = H.copy()
    diagonal = np.einsum("ii->i", C)
    diagonal += ridge
    diagonal[diagonal <= 0.0] = 1.0
    return factorise(C, diagonal.copy())


def _by_columns(A: Float, reference: Float) -> Factor:
    """Left-looking factorisation that drops columns as it meets them."""
    d = len(A)
    L = np.zeros((d, d))
    dropped = np.zeros(d, dtype=np.bool_)
    for j in range(d):
        column = A[j:, j] - L[j:, :j] @ L[j, :j]
        if column[0] <= RANK_TOLERANCE * reference[j]:
            dropped[j] = True
            L[j, :j] = 0.0
            L[j, j] = 1.0
        else:
            L[j:, j] = column / np.sqrt(column[0])
    return Factor(L, dropped)
