"""Forward regression where every group is one column: the sweep of `anytime.sweep` less all that it does not need.

With columns G taken, for each column left

    b  the gradient,  d  the conditional variance,  gain = 1/2 |b|^2 / d,

and taking column j with u = C_|G[:, j] / sqrt(d_j), z = b_j / sqrt(d_j) leaves

    b - u z,  d - u^2.

A step is a dozen operations on vectors; C_|G is a matrix less a panel, as there. The order, ties among it, is that of
`anytime.sequencing.candidates`.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from scipy.linalg.blas import dgemm, dger

from anytime.arrays import Float, Index
from anytime.cholesky import RANK_TOLERANCE, Factor
from anytime.gram import Gram
from anytime.groups import FeatureGroups
from anytime.sequencing.candidates import NOISE, TIE
from anytime.sequencing.steps import FactoredSequence, Step

__all__ = ["are_single_columns", "single_columns"]

PANEL = 128
"""Columns taken before the matrix is brought up to date."""


def are_single_columns(groups: FeatureGroups) -> bool:
    """Whether every group is one column, and none requires another."""
    return all(len(group.features) == 1 for group in groups.groups) and not any(groups.prerequisites)


def single_columns(gram: Gram, groups: FeatureGroups, alpha: float, *, cost_blind: bool) -> FactoredSequence:
    """The sequence of all groups by forward regression; BLAS is to be held to one thread around it.

    Parameters
    ----------
    groups : as `are_single_columns` wants them, so that group g is column g.
    """
    costs = groups.costs
    left = _Columns(gram, costs, alpha)
    free = np.empty(0, dtype=np.intp) if cost_blind else np.flatnonzero(costs == 0)
    paid = np.setdiff1d(np.arange(len(costs)), free)
    with np.errstate(divide="ignore", invalid="ignore"):  # free groups have no price, copies no variance left
        prices = np.ones(len(costs)) if cost_blind else 1.0 / costs
        order = left.taken_among(free, np.ones(len(costs))) + left.taken_among(paid, prices)
    gained = np.cumsum(0.5 * np.square(left.z).sum(axis=1))
    told = zip(order, costs[order].tolist(), gained.tolist(), strict=True)
    steps = tuple(Step((group,), cost, explained) for group, cost, explained in told)
    return FactoredSequence(
        steps, None, np.array(order, dtype=np.intp), np.arange(len(order) + 1), left.factor(order), left.z
    )


class _Columns:
    """The columns left, in the order of the table, with what is known of them given those taken.

    Attributes
    ----------
    z : (D, P) L^-1 q of the columns taken so far, in their order.
    """

    def __init__(self, gram: Gram, costs: Float, alpha: float) -> None:
        C, b = gram.penalised(alpha)
        size, responses = b.shape
        self._C = C.T  # symmetric, and read by rows
        self._b, self._d = b.T.copy(), np.diagonal(C).copy()
        self._least = RANK_TOLERANCE * self._d
        self._costs = costs
        self._columns: Index = np.arange(size)
        self._V, self._width = np.empty((min(PANEL, size), size)), 0
        self._L = np.zeros((size, size), order="F")
        self._dropped = np.zeros(size, dtype=np.bool_)
        self.z = np.zeros((size, responses))
        self._taken: list[int] = []
        self._done = 0

    def taken_among(self, columns: Index, prices: Float) -> list[int]:
        """Take some columns, one after the other, the one with the largest gain times price first.

        Parameters
        ----------
        columns : those to take, ascending.  prices : (D,) of all columns of the table.
        """
        order: list[int] = []
        wanted = np.zeros(len(prices), dtype=np.bool_)
        wanted[columns] = True
        while len(order) < len(columns):
            if self._width == len(self._V):
                self._flush()
            price = np.where(wanted[self._columns], prices[self._columns], 0.0)
            count = min(len(self._V) - self._width, len(columns) - len(order))
            for _ in range(count):
                row = self._best(price)
                price[row] = 0.0
                self._take(row)
            taken = self._columns[self._taken[-count:]]
            wanted[taken] = False
            order += taken.tolist()
        return order

    def factor(self, order: list[int]) -> Factor:
        """Factor of C in the order in which all columns were taken."""
        self._store()
        L = self._L[order]
        L[self._dropped] = 0.0
        L[self._dropped, self._dropped] = 1.0
        return Factor(L, self._dropped)

    def _best(self, price: Float) -> int:
        """The row with the best score, of those with a price; ties by cost, then by the order of the table."""
        while True:
            scores = self._squares()
            scores *= price
            row = int(scores.argmax())
            top = scores[row]
            if not top > 2.0 * NOISE * price[row]:
                return self._best_of_noise(price)
            if self._d[row] > self._least[row]:
                break
            self._d[row] = np.inf  # for good: variances only shrink
        near = scores >= top * (1.0 - TIE)
        if np.count_nonzero(near) == 1:
            return row
        tied = np.flatnonzero(near)
        return int(tied[np.argmin(self._costs[tied])])

    def _best_of_noise(self, price: Float) -> int:
        """The same where no gain, or none that is left, is more than rounding, and counts as none."""
        self._d[self._d <= self._least] = np.inf
        squares = self._squares()
        squares[squares < 2.0 * NOISE] = 0.0
        scores = np.where(price > 0.0, squares * price, -1.0)
        tied = np.flatnonzero(scores >= scores.max() * (1.0 - TIE))
        return int(tied[np.argmin(self._costs[tied])])

    def _squares(self) -> Float:
        """Squared length of the residuals' projection on each row, (rows,): twice what it would explain."""
        squares: Float = np.square(self._b[0])
        for b in self._b[1:]:
            squares += np.square(b)
        squares /= self._d
        return squares

    def _take(self, row: int) -> None:
        """Take a column, and bring what is known of the others up to date."""
        V, width = self._V, self._width
        u = V[width]
        np.subtract(self._C[row], V[:width, row] @ V[:width], out=u)
        pivot = float(u[row])
        if pivot <= self._least[row]:
            u[:] = 0.0
            self._dropped[self._done] = True
        else:
            u /= sqrt(pivot)
            z = self._b[:, row] / u[row]
            self._b = dger(-1.0, u, z, a=self._b.T, overwrite_a=1).T
            self._d -= u * u
            self.z[self._done] = z
        self._b[:, row] = 0.0
        self._d[row] = np.inf
        self._taken.append(row)
        self._width += 1
        self._done += 1

    def _store(self) -> None:
        """Put the panel, which is columns of the factor, into its place; columns taken have nothing of those after."""
        self._V[: self._width, self._taken] = np.triu(self._V[: self._width, self._taken])
        self._L[self._columns, self._done - self._width : self._done] = self._V[: self._width].T

    def _flush(self) -> None:
        """Bring the matrix up to date, and forget the rows of what is taken."""
        self._store()
        keep = np.delete(np.arange(len(self._columns)), self._taken)
        V = self._V[: self._width].take(keep, axis=1).T
        C = self._C.take(keep, axis=0).take(keep, axis=1)
        self._C = dgemm(-1.0, V, V, beta=1.0, c=C.T, trans_b=1, overwrite_c=1).T
        self._b, self._d, self._least = self._b[:, keep], self._d[keep], self._least[keep]
        self._costs, self._columns = self._costs[keep], self._columns[keep]
        self._V, self._width, self._taken = np.empty((min(PANEL, len(keep)), len(keep))), 0, []
