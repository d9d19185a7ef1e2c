"""The sequence of least squares, and forward regression where every group is one column.

For groups of one column the sweep of `anytime.selection.sweep` needs no blocks.

With columns G taken, for each column left

    b  the gradient,  d  the conditional variance,  gain = 1/2 |b|^2 / d,

and taking column j with u = C_|G[:, j] / sqrt(d_j), z = b_j / sqrt(d_j) leaves

    b - u z,  d - u^2.

A step is a dozen operations on vectors; C_|G is a matrix less a panel, as there. The order, ties among it, is that of
`anytime.selection.candidates`.

The sequence of least squares, in one sweep over the normal equations.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from functools import partial
from math import sqrt

import numpy as np
from scipy.linalg.blas import dgemm, dger

from anytime._linalg import RANK_TOLERANCE, Factor, single_blas_thread
from anytime.groups import FeatureGroups
from anytime.moments.gram import Gram
from anytime.selection.candidates import NOISE, TIE, Candidates
from anytime.selection.criteria import CRITERIA
from anytime.selection.greedy import greedy
from anytime.selection.sequence import FactoredSequence, Step, given_sequence, led_by
from anytime.selection.sparse import check_sparse, sparse_entries
from anytime.selection.sweep import Sweep
from anytime.types import Float, Index, Method

__all__ = [
    "are_single_columns",
    "sequence",
    "sequencer",
    "single_columns",
]

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


def sequence(
    gram: Gram,
    groups: FeatureGroups,
    method: Method = "fr",
    alpha: float = 1e-5,
    cost_blind: bool = False,
    doubling: bool = False,
    epsilon: float | None = None,
    first: Many[int] = (),
) -> FactoredSequence:
    """Order the groups so that each prefix explains as much as its cost allows.

    Parameters
    ----------
    gram : standardised normal equations, columns in the order of the groups file.
    groups : the groups and their costs.
    method : the criterion: "omp", "fr", "single" or "no-whiten"; or "sparse", by entry on the Group Lasso path.
    alpha : the penalty.
    cost_blind : forget the costs in selection (G-OMP is "omp" cost-blind).
    doubling : take no step that costs more than all before it together (Algorithm 2).
    epsilon : stop where no group left has a projection of the residual longer than this; None takes all groups.
    first : groups taken before all others, in this order.

    Raises
    ------
    TrainingError
        "sparse" with doubling or epsilon, or a path of it that could not be followed.

    Notes
    -----
    About D^3 operations for D columns, for "fr" as for "omp". Steps that cost nothing go first.
    """
    return sequencer(gram, groups, method, cost_blind, doubling, epsilon, first)(alpha)


def sequencer(
    gram: Gram,
    groups: FeatureGroups,
    method: Method = "fr",
    cost_blind: bool = False,
    doubling: bool = False,
    epsilon: float | None = None,
    first: Many[int] = (),
) -> Callable[[float], FactoredSequence]:
    """`sequence` as a function of the penalty alone; the order of "sparse", which has none, is learned once."""
    check_sparse(method, doubling, epsilon=epsilon)
    if method == "sparse":
        return partial(
            given_sequence, gram, groups, led_by(first, sparse_entries(gram, groups, cost_blind).steps, groups)
        )
    return partial(_greedy, gram, groups, method, cost_blind, doubling, epsilon, first)


def _greedy(
    gram: Gram,
    groups: FeatureGroups,
    method: Method,
    cost_blind: bool,
    doubling: bool,
    epsilon: float | None,
    first: Many[int],
    alpha: float,
) -> FactoredSequence:
    """The sequence of a criterion."""
    with single_blas_thread():
        if method == "fr" and not (doubling or first) and epsilon is None and are_single_columns(groups):
            return single_columns(gram, groups, alpha, cost_blind=cost_blind)
        criterion = CRITERIA[method](gram)
        sweep = Sweep(gram, groups.slices, alpha, blocks=criterion.needs_blocks)
        search = _Swept(sweep, Candidates(groups, sweep, criterion, cost_blind))
        found = greedy(search, groups, doubling=doubling, epsilon=epsilon, first=first)
        columns, factor, z = sweep.factor()
    return FactoredSequence(found.steps, found.doubling_until, columns, found.ends, factor, z, longest=found.longest)


class _Swept:
    """Least squares: taking a group is selecting it in the sweep."""

    def __init__(self, sweep: Sweep, candidates: Candidates) -> None:
        self._sweep, self.candidates = sweep, candidates
        self._explained = 0.0

    def take(self, adds: tuple[int, ...]) -> float:
        self._explained += sum(self._sweep.select(group) for group in adds)
        return self._explained
