"""One sweep: the block Cholesky of C = S + alpha I in selection order, with what is left downdated.

With G selected, the sweep keeps for every column left

    b      = q - C_G' w(G)                       the gradient of the explained variance (section 2)
    C_|G   = C - C_G' C_G^-1 C_G                 the conditional covariance (Eq. 3)

C_|G is kept as a matrix of the last *flush* less the outer product of a panel V of the columns factored since: C_|G = C
- V V'. Selecting a group g costs one product with the panel; only when the panel is full is it taken off the matrix, at
the speed of a matrix product. The panels, side by side, are the factor L: all prefix coefficients follow without
another Cholesky. The conditional blocks of the candidates are downdated at every step where the criterion asks for them
(forward regression), stacked by size, which costs less than the panel product: exact forward regression at the price of
OMP.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg.blas import dgemm, dtrsm

from anytime._linalg import Factor, factorise
from anytime.moments.gram import Gram
from anytime.selection.state import SelectionState
from anytime.types import Float, Index

__all__ = [
    "Sweep",
]

PANEL = 128
"""Columns factored before the matrix is brought up to date."""


class Sweep(SelectionState):
    """Groups selected one by one, and what is left given them. Small linear algebra: hold BLAS to one thread around it.

    Parameters
    ----------
    gram : the standardised normal equations; not changed.
    slices : columns of each group.
    alpha : the penalty.
    blocks : whether to keep the conditional blocks of the groups left.
    """

    def __init__(self, gram: Gram, slices: Sequence[slice], alpha: float, *, blocks: bool) -> None:
        self._C, b = gram.penalised(alpha)
        D, P = b.shape
        self._keep_blocks = blocks
        super().__init__(slices, b, np.diagonal(self._C).copy())
        self._V = np.zeros((D, min(max(PANEL, *self.sizes, 1), D)), order="F")
        self._width = 0
        self._L, self._z = np.zeros((D, D), order="F"), np.zeros((D, P))
        self._dropped = np.zeros(D, dtype=np.bool_)
        self._order: list[int] = []
        self._selected = np.zeros(D, dtype=np.bool_)

    def conditional(self, rows: Index | slice) -> Float:
        """Conditional covariance of some rows given what is selected, (d, d)."""
        V = self._V[rows, : self._width]
        block = self._C[rows, rows] if isinstance(rows, slice) else self._C[np.ix_(rows, rows)]
        conditional: Float = block - V @ V.T
        return conditional

    def select(self, group: int) -> float:
        """Take a group; returns what it adds to the explained variance F."""
        d = int(self.sizes[group])
        if d == 0:
            self.taken[group] = True
            return 0.0
        if self._width + d > self._V.shape[1]:
            self._flush()
        rows = self.rows(group)
        U = np.asfortranarray(self._C[:, rows] - self._V[:, : self._width] @ self._V[rows, : self._width].T)
        factor = factorise(U[rows], self.reference[rows])
        r = np.where(factor.dropped[:, np.newaxis], 0.0, self.b[rows])
        z = dtrsm(1.0, factor.L, r, lower=1)
        U[:, factor.dropped] = 0.0
        W = dtrsm(1.0, factor.L, U, side=1, lower=1, trans_a=1, overwrite_b=1)
        W[self._selected] = 0.0
        W[rows] = factor.L
        done = len(self._order)
        self._z[done : done + d] = z
        self._dropped[done : done + d] = factor.dropped
        self._order += self.columns[rows].tolist()
        self._V[:, self._width : self._width + d] = W
        self._width += d
        self._selected[rows] = True
        self.taken[group] = True
        self.b -= W @ z
        self.b[rows] = 0.0
        if self._keep_blocks:
            self._downdate(group, W)
        return 0.5 * float(np.sum(z * z))

    def _downdate(self, group: int, W: Float) -> None:
        """Take the outer products of a factored group's columns W off the candidates' blocks."""
        for stack in self.classes:
            Wg = W[stack.rows]
            blocks = stack.conditional()
            blocks -= Wg @ Wg.transpose(0, 2, 1)
            if stack.rows.shape[1] == self.sizes[group]:
                blocks[stack.groups == group] = np.eye(stack.rows.shape[1])

    def _store(self) -> None:
        """Put the panel, which is columns of the factor, into its place in L."""
        done = len(self._order)
        self._L[self.columns, done - self._width : done] = self._V[:, : self._width]

    def _flush(self) -> None:
        """Bring the matrix up to date and forget the rows of selected groups."""
        self._store()
        keep = np.flatnonzero(~self._selected)
        V = self._V[:, : self._width].T.take(keep, axis=1).T
        C = self._C.T.take(keep, axis=0).take(keep, axis=1)  # symmetric: its transpose is gathered by whole rows
        self._C = dgemm(-1.0, V, V, beta=1.0, c=C.T, trans_b=1, overwrite_c=1)
        self.b, self.reference, self.columns = self.b[keep], self.reference[keep], self.columns[keep]
        self._V = np.zeros((len(keep), min(self._V.shape[1], len(keep))), order="F")
        self._width = 0
        self._selected = np.zeros(len(keep), dtype=np.bool_)
        left = np.where(self.taken, 0, self.sizes)
        self.starts = np.cumsum(left) - left
        self.stack()

    def _blocks(self, rows: Index) -> Float | None:
        """Conditional blocks of stacked groups, just after a flush."""
        return self._C[rows[:, :, np.newaxis], rows[:, np.newaxis, :]] if self._keep_blocks else None

    def factor(self) -> tuple[Index, Factor, Float]:
        """The columns selected, in selection order, the factor L of C in that order, and z = L^-1 q."""
        self._store()
        order = np.array(self._order, dtype=np.intp)
        dropped = self._dropped[: len(order)]
        L = self._L[order, : len(order)]
        L[dropped] = 0.0
        L[dropped, dropped] = 1.0
        return order, Factor(L, dropped), self._z[: len(order)]
