"""Small linear algebra: one BLAS thread, Cholesky factors with rank loss as a declared outcome, conjugate gradients.

*Threads.* numpy and scipy each load an OpenBLAS with its own thread pool. On blocks of ten columns the threads spin
against each other and cost ten times what they save. Only the large cross-products use several cores: they are split by
rows, with one BLAS thread each.

*Rank loss.* A column whose pivot falls to rounding of its own diagonal adds nothing to the columns before it. It is
*dropped*: its row and column of the matrix become those of the identity and its right-hand side becomes 0. Its
coefficient is then exactly 0, and the other coefficients are what they would be without it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
from scipy.linalg import cython_blas, cython_lapack
from scipy.linalg.lapack import dpotrf, dtrtrs
from threadpoolctl import ThreadpoolController

from anytime.types import Bool, Float


@cache
def _libraries() -> list[Any]:
    """Return the loaded BLAS libraries, as threadpoolctl controls them."""
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


_LOCK = Lock()
_OPEN: list[list[int]] = []
"""The numbers of threads before the limit was set, once for each open context."""


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Return a context in which BLAS uses one thread, or a decorator of functions in it.

    The setting is process-wide. Of the contexts that overlap, in any thread, the first sets the limit and the last
    removes it. From 3.7 on, threadpoolctl's own contexts ignore all threads but the first that set a limit.
    """
    with _LOCK:
        _OPEN.append(_OPEN[0] if _OPEN else [library.num_threads for library in _libraries()])
        if len(_OPEN) == 1:
            _set_threads([1] * len(_OPEN[0]))
    try:
        yield
    finally:
        with _LOCK:
            before = _OPEN.pop()
            if not _OPEN:
                _set_threads(before)


def _set_threads(numbers: list[int]) -> None:
    for library, number in zip(_libraries(), numbers, strict=True):
        getattr(library, "_real_set_num_threads", library.set_num_threads)(number)


def row_scores(terms: Float, coef: Float, intercept: Float) -> Float:
    """Return the scores (rows, P) of terms (T, rows), of coefficients (T, P) and intercepts (P,).

    Each row's products are summed in the order of the terms. A score depends on its row alone, not on the position of
    the row or the number of rows, as it does with BLAS, whose kernels treat the last rows of a block differently.
    """
    rows = terms.shape[1]
    # With both in C order, the inner sum runs along the rows or the responses. A single product has neither.
    terms, coef = np.ascontiguousarray(terms), np.ascontiguousarray(coef)
    if rows == len(intercept) == 1:
        terms = terms.repeat(2, axis=1)
    sums: Float = np.einsum("tr,tp->pr", terms, coef)[:, :rows].T
    return np.add(sums, intercept, order="C")


NULL_EIGENVALUE = 1e-10
"""Eigenvalues below this share of the group's largest count as zero."""

RANK_TOLERANCE = 1e-10
"""A pivot below this share of its column's diagonal is rank loss. Penalties from 1e-9 up keep every pivot above it."""


def add_outer(A: Float, x: Float, y: Float) -> None:
    """Add x y' to A (d, e) in place, some rows at a time: another matrix of its size takes as long as the sum."""
    for start in range(0, len(x), 256):
        A[start : start + 256] += np.multiply.outer(x[start : start + 256], y)


@dataclass(frozen=True)
class Factor:
    """Lower factor L of a positive semi-definite matrix; `dropped` (d,) marks the dropped columns."""

    L: Float
    dropped: Bool

    def forward(self, B: Float) -> Float:
        """Return L^-1 B, zero in dropped rows; B is (d, P)."""
        if self.dropped.any():
            B = np.where(self.dropped[:, np.newaxis], 0.0, B)
        # For ten columns 2 us, `solve_triangular` 20 us.
        return np.asarray(dtrtrs(self.L, B, lower=1)[0]) if len(self.L) else B

    def backward(self, Z: Float) -> Float:
        """Return L'^-1 Z; Z is (d, P)."""
        return np.asarray(dtrtrs(self.L, Z, lower=1, trans=1)[0]) if len(self.L) else Z

    def solve(self, B: Float) -> Float:
        """Return A^-1 B, zero in dropped rows; B has d rows, or d numbers in all for each of its columns."""
        return self.backward(self.forward(B.reshape(len(self.L), -1))).reshape(B.shape)


def _routine(module: Any, name: str, *arguments: Any) -> Callable[..., None]:
    """Return a routine of scipy's BLAS or LAPACK with arguments of these types.

    scipy's wrappers keep the interpreter's lock and copy blocks of larger matrices; the routine itself does neither.
    """
    capsule = module.__pyx_capi__[name]
    name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
    at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return ctypes.CFUNCTYPE(None, *arguments)(
        at(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, name_of(capsule)) or 0
    )


_INT, _MATRIX = ctypes.POINTER(ctypes.c_int), (ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
"""Arguments: an integer; the address of a matrix, and the distance between its columns."""
_POTRF = _routine(cython_lapack, "dpotrf", ctypes.c_char_p, _INT, *_MATRIX, _INT)
_TRSM = _routine(
    cython_blas, "dtrsm", *[ctypes.c_char_p] * 4, _INT, _INT, ctypes.POINTER(ctypes.c_double), *_MATRIX, *_MATRIX
)


def factorise_into(A: Float, reference: Float) -> Factor:
    """Return the factor as `factorise`, in place of A in Fortran order; other threads run meanwhile.

    The entries of `L` above the diagonal are those of A.
    """
    assert A.flags.f_contiguous and A.dtype == np.float64  # noqa: S101, PT018
    d, info, diagonal = len(A), ctypes.c_int(0), np.diagonal(A).copy()
    _POTRF(b"L", ctypes.c_int(d), A.ctypes.data, ctypes.c_int(max(d, 1)), info)
    if info.value == 0 and (np.square(np.diagonal(A)) > RANK_TOLERANCE * reference).all():
        return Factor(A, np.zeros(d, dtype=np.bool_))
    upper = np.triu(A, 1)
    return _by_columns(upper + upper.T + np.diag(diagonal), reference)


def solve_leading(factor: Factor, right: Float) -> None:
    """Replace each row r (m,) of `right` by L_m'^-1 r for the leading block L_m; other threads run meanwhile."""
    assert right.flags.c_contiguous and right.dtype == factor.L.dtype == np.float64  # noqa: S101, PT018
    rows, m = right.shape
    L = factor.L if factor.L.strides[0] == factor.L.itemsize else np.asfortranarray(factor.L)
    integer, stride = ctypes.c_int, max(L.strides[1] // L.itemsize, m, 1)
    sizes = integer(m), integer(rows), ctypes.c_double(1.0)
    _TRSM(b"L", b"L", b"T", b"N", *sizes, L.ctypes.data, integer(stride), right.ctypes.data, integer(max(m, 1)))


def factorise(A: Float, reference: Float) -> Factor:
    """Return the factor of A (d, d); pivots are compared with `reference` (d,), the columns' original diagonal."""
    L, info = dpotrf(A, lower=1, clean=1)  # for one column 1 us instead of 6 by `np.linalg.cholesky`
    if info == 0 and (np.square(np.diagonal(L)) > RANK_TOLERANCE * reference).all():
        return Factor(L, np.zeros(len(A), dtype=np.bool_))
    return _by_columns(A, reference)


def factorise_penalised(H: Float, ridge: Float) -> Factor:
    """Return the factor of H + diag(ridge), ridge (d,); a column without variance and penalty gets the pivot 1."""
    C = H.copy()
    diagonal = np.einsum("ii->i", C)
    diagonal += ridge
    diagonal[diagonal <= 0.0] = 1.0
    return factorise(C, diagonal.copy())


def _by_columns(A: Float, reference: Float) -> Factor:
    """Return the factor by a left-looking factorisation that drops columns of negligible pivot."""
    d = len(A)
    L = np.zeros((d, d), order="F")
    dropped = np.zeros(d, dtype=np.bool_)
    for j in range(d):
        column = A[j:, j] - L[j:, :j] @ L[j, :j]
        if column[0] > RANK_TOLERANCE * reference[j]:
            L[j:, j] = column / np.sqrt(column[0])
        else:
            dropped[j] = True
            L[j, :j] = 0.0
            L[j, j] = 1.0
    return Factor(L, dropped)


def conjugate_gradients(
    product: Callable[[Float], Float],
    precondition: Callable[[Float], Float],
    b: Float,
    *,
    tolerance: float,
    max_steps: int,
) -> Float:
    """Solve A x = b for a positive semi-definite A by preconditioned conjugate gradients, started from 0.

    `scipy.sparse.linalg.cg` requires vectors and breaks down where rounding leaves no positive curvature. This routine
    stops there: a truncated x is still a direction of descent. `product` is A x and `precondition` M^-1 r, all (d, P);
    `tolerance` is the final norm of the residual, (r' M^-1 r)^1/2, as a share of the first.
    """
    x, r = np.zeros_like(b), b.copy()
    z = precondition(r)
    p, rz = z, float(np.sum(r * z))
    enough = tolerance**2 * rz
    for _ in range(max_steps):
        if rz <= enough:
            break
        Ap = product(p)
        curvature = float(np.sum(p * Ap))
        if curvature <= 0.0:
            break
        length = rz / curvature
        x += length * p
        r -= length * Ap
        z = precondition(r)
        rz, last = float(np.sum(r * z)), rz
        p = z + (rz / last) * p
    return x
