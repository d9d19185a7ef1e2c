"""The sweep: the block Cholesky of C = S + alpha I in selection order, with the remaining part downdated.

With G selected, the sweep stores for every remaining column

    b      = q - C_G' w(G)                       the gradient of the explained variance (section 2)
    C_|G   = C - C_G' C_G^-1 C_G                 the conditional covariance (Eq. 3)

C_|G is stored as the matrix of the last *flush* minus the outer product of a panel V of the columns factored since:
C_|G = C - V V'. Selecting a group g costs one product with the panel. Only when the panel is full is it subtracted from
the matrix, at the speed of a matrix product. The panels, side by side, are the factor L: all prefix coefficients follow
without another Cholesky. Where the criterion needs them (forward regression), the conditional blocks of the candidates
are downdated at every step, stacked by size. That costs less than the panel product, so exact forward regression costs
the same as OMP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import dtrsm

from anytime._linalg import Factor, factorise
from anytime.moments.moments import Gram
from anytime.types import Float, Index


@dataclass
class SizeClass:
    """The remaining groups with the same number of columns, stacked: indices (k,), rows (k, d) and blocks (k, d, d).

    The blocks are the conditional covariances, or empty where the criterion does not need them. The block of a group
    selected since the last flush is the identity, and its gradient is zero.
    """

    groups: Index
    rows: Index
    blocks: Float


class SelectionState:
    """The remaining groups given the selection.

    Attributes
    ----------
    b : Float
        (D, P) gradient.
    reference : Float
        (D,) diagonal of C, with which pivots are compared.
    ridge : Float | None
        (D,) part of it that is no covariance: the penalty, and 1 more for a constant column.
    noise
        Variance of the residuals, summed over the responses, divided by the number of rows. A column of unit variance
        without effect has b b' of this size. It is 0 where the criterion needs no blocks.
    columns : array of shape (D,)
        Index of each row of b among all columns.
    """

    def __init__(
        self, slices: Sequence[slice], b: Float, reference: Float, ridge: Float | None = None, C: Float | None = None
    ) -> None:
        self.b, self.reference = b, reference
        self.ridge = np.zeros(len(b)) if ridge is None else ridge
        self.noise = 0.0
        self.columns = np.arange(len(b))
        self.sizes = np.array([s.stop - s.start for s in slices], dtype=np.intp)
        self.starts = np.array([s.start for s in slices], dtype=np.intp)
        self.selected = np.zeros(len(slices), dtype=np.bool_)
        self.stack(C)

    def rows(self, group: int) -> slice:
        return slice(int(self.starts[group]), int(self.starts[group] + self.sizes[group]))

    def stack(self, C: Float | None = None) -> None:
        """Sort the remaining groups into classes of one size, with their blocks of C, if it is given."""
        remaining = ~self.selected & (self.sizes > 0)
        self.remaining_groups: Index = np.flatnonzero(remaining)
        self.classes: list[SizeClass] = []
        for size in np.unique(self.sizes[remaining]):
            groups = np.flatnonzero(remaining & (self.sizes == size))
            rows = self.starts[groups, np.newaxis] + np.arange(size)
            blocks = np.empty(0) if C is None else C[rows[:, :, np.newaxis], rows[:, np.newaxis, :]]
            self.classes.append(SizeClass(groups, rows, blocks))

    def scores(self, of_classes: Iterable[Float]) -> Float:
        """Return the scores of all groups, (groups,), given those of each of the `classes`; 0 without columns."""
        scores = np.zeros(len(self.sizes))
        for stack, own in zip(self.classes, of_classes, strict=True):
            scores[stack.groups] = own
        return scores

    def conditional(self, rows: Index | slice) -> Float:
        """Return the conditional covariance of some rows given the selection, (d, d)."""
        raise RuntimeError(f"gradients alone have no covariance of {rows}")


PANEL = 128
"""Columns factored before the matrix is updated."""


class Sweep(SelectionState):
    """Groups selected one by one, and the remaining groups given the selection. Use it with one BLAS thread.

    `blocks` states whether the conditional blocks of the remaining groups are stored.
    """

    def __init__(self, gram: Gram, slices: Sequence[slice], alpha: float, *, blocks: bool) -> None:
        self._C, b = gram.penalised(alpha)
        D, P = b.shape
        self._keep_blocks = blocks
        ridge = np.asarray(gram.constant + alpha, dtype=np.float64)
        super().__init__(slices, b, np.diagonal(self._C).copy(), ridge, self._C if blocks else None)
        self._weight = gram.weight
        self._residual = float(gram.yy.sum())
        self.noise = self._residual / self._weight
        self._V = np.zeros((D, min(max(PANEL, *self.sizes, 1), D)), order="F")
        self._width = 0
        self._L, self._z = np.zeros((D, D), order="F"), np.zeros((D, P))
        self._dropped = np.zeros(D, dtype=np.bool_)
        self._order: list[int] = []
        self._selected_rows = np.zeros(D, dtype=np.bool_)

    def conditional(self, rows: Index | slice) -> Float:
        V = self._V[rows, : self._width]
        block = self._C[rows, rows] if isinstance(rows, slice) else self._C[np.ix_(rows, rows)]
        return np.asarray(block - V @ V.T)

    def select(self, group: int) -> float:
        """Select a group; return its gain in explained variance F."""
        d = int(self.sizes[group])
        if d == 0:
            self.selected[group] = True
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
        W[self._selected_rows] = 0.0
        W[rows] = factor.L
        done = len(self._order)
        self._z[done : done + d] = z
        self._dropped[done : done + d] = factor.dropped
        self._order += self.columns[rows].tolist()
        self._V[:, self._width : self._width + d] = W
        self._width += d
        self._selected_rows[rows] = True
        self.selected[group] = True
        self.b -= W @ z
        self.b[rows] = 0.0
        if self._keep_blocks:
            for stack in self.classes:
                Wg = W[stack.rows]
                stack.blocks -= Wg @ Wg.transpose(0, 2, 1)
                if stack.rows.shape[1] == d:
                    stack.blocks[stack.groups == group] = np.eye(d)
        gain = 0.5 * float(np.sum(z * z))
        self._residual = max(self._residual - 2.0 * gain, 0.0)
        self.noise = self._residual / self._weight
        return gain

    def _store(self) -> None:
        """Copy the panel, columns of the factor, into L."""
        done = len(self._order)
        self._L[self.columns, done - self._width : done] = self._V[:, : self._width]

    def _flush(self) -> None:
        """Update the matrix and remove the rows of selected groups."""
        self._store()
        keep = np.flatnonzero(~self._selected_rows)
        V = self._V[:, : self._width].T.take(keep, axis=1).T
        C = self._C.T.take(keep, axis=0).take(keep, axis=1)  # symmetric: complete rows of the transpose are faster
        C -= V @ V.T  # numpy computes half of it
        self._C = C.T
        self.b, self.reference, self.columns = self.b[keep], self.reference[keep], self.columns[keep]
        self.ridge = self.ridge[keep]
        self._V = np.zeros((len(keep), min(self._V.shape[1], len(keep))), order="F")
        self._width = 0
        self._selected_rows = np.zeros(len(keep), dtype=np.bool_)
        sizes = np.where(self.selected, 0, self.sizes)
        self.starts = np.cumsum(sizes) - sizes
        self.stack(self._C if self._keep_blocks else None)  # directly after a flush, C is conditional

    def factor(self) -> tuple[Factor, Float]:
        """Return the factor L of C for the selected columns, in selection order, and z = L^-1 q."""
        self._store()
        order = np.array(self._order, dtype=np.intp)
        dropped = self._dropped[: len(order)]
        L = self._L[order, : len(order)]
        L[dropped] = 0.0
        L[dropped, dropped] = 1.0
        return Factor(L, dropped), self._z[: len(order)]
