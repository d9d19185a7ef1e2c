"""Sequences for least squares: by a criterion, by entry on the Group Lasso path, or in a given order.

The sweep is the block Cholesky of C = S + alpha I in selection order, with the remaining part downdated. With G
selected, it stores for every remaining column

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from math import sqrt
from typing import Any, TypeAlias

import numpy as np
from scipy.linalg.blas import dger, dtrsm

from anytime._linalg import RANK_TOLERANCE, Factor, factorise, single_blas_thread
from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram
from anytime.selection.criteria import TIE, PathMethod, SelectionMethod, SelectionState
from anytime.selection.greedy import NOISE, GroupOrder, Rule, Search, Step, cost_of, greedy
from anytime.types import Bool, Float, Index, Method

PANEL = 128
"""Columns factored before the matrix is updated."""


class Panels:
    """The matrix C of the remaining columns at the last flush, the panel V since, and the factor L of the selected.

    Attributes
    ----------
    C, V : Float
        (D, D) and (D, panel), with `width` columns in use; `columns` (D,) are the columns of C.
    order : list[int]
        The selected columns; `dropped` marks those that add nothing.
    """

    def __init__(self, C: Float, panel: int = PANEL) -> None:
        D = len(C)
        self.C, self.columns = C, np.arange(D)
        self.V, self.width = np.zeros((D, min(panel, D)), order="F"), 0
        self.order: list[int] = []
        self._L, self.dropped = np.zeros((D, D), order="F"), np.zeros(D, dtype=np.bool_)

    def store(self) -> None:
        """Copy the panel, columns of the factor, into L."""
        done = len(self.order)
        self._L[self.columns, done - self.width : done] = self.V[:, : self.width]

    def flush(self, keep: Index) -> None:
        """Update the matrix, and keep some of its columns only, which are not selected."""
        self.store()
        V = self.V[:, : self.width].T.take(keep, axis=1).T
        C = self.C.T.take(keep, axis=0).take(keep, axis=1)  # symmetric: complete rows of the transpose are faster
        C -= V @ V.T  # numpy computes half of it
        self.C, self.columns = C.T, self.columns[keep]
        self.V, self.width = np.zeros((len(keep), min(self.V.shape[1], len(keep))), order="F"), 0

    def factor(self) -> Factor:
        """Return the factor of C for the selected columns, in selection order."""
        self.store()
        dropped = self.dropped[: len(self.order)]
        L = self._L[np.array(self.order, dtype=np.intp), : len(self.order)]
        L[dropped] = 0.0
        L[dropped, dropped] = 1.0
        return Factor(L, dropped)


class Sweep(SelectionState):
    """Groups selected one by one, and the remaining groups given the selection. Use it with one BLAS thread.

    `blocks` states whether the conditional blocks of the remaining groups are stored.
    """

    def __init__(self, gram: Gram, slices: Sequence[slice], alpha: float, *, blocks: bool) -> None:
        C, b = gram.penalised(alpha)
        self._keep_blocks = blocks
        ridge = np.asarray(gram.constant + alpha, dtype=np.float64)
        super().__init__(slices, b, np.diagonal(C).copy(), ridge, C if blocks else None)
        self._weight = gram.weight
        self._residual = float(gram.yy.sum())
        self.noise = self._residual / self._weight
        self._panels, self._z = Panels(C, max(PANEL, *self.sizes, 1)), np.zeros_like(b)
        self._selected_rows: Bool = np.zeros(len(C), dtype=np.bool_)

    def conditional(self, rows: Index) -> Float:
        V = self._panels.V[rows, : self._panels.width]
        return np.asarray(self._panels.C[np.ix_(rows, rows)] - V @ V.T)

    def select(self, group: int) -> float:
        """Select a group; return its gain in explained variance F."""
        d, panels = int(self.sizes[group]), self._panels
        if d == 0:
            self.selected[group] = True
            return 0.0
        if panels.width + d > panels.V.shape[1]:
            self._flush()
        rows, V = slice(int(self.starts[group]), int(self.starts[group]) + d), panels.V[:, : panels.width]
        U = np.asfortranarray(panels.C[:, rows] - V @ V[rows].T)
        factor = factorise(U[rows], self.reference[rows])
        r = np.where(factor.dropped[:, np.newaxis], 0.0, self.b[rows])
        z = dtrsm(1.0, factor.L, r, lower=1)
        U[:, factor.dropped] = 0.0
        W = dtrsm(1.0, factor.L, U, side=1, lower=1, trans_a=1, overwrite_b=1)
        W[self._selected_rows] = 0.0
        W[rows] = factor.L
        done = len(panels.order)
        self._z[done : done + d] = z
        panels.dropped[done : done + d] = factor.dropped
        panels.order += self.columns[rows].tolist()
        panels.V[:, panels.width : panels.width + d] = W
        panels.width += d
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

    def _flush(self) -> None:
        """Update the matrix and remove the rows of selected groups."""
        keep = np.flatnonzero(~self._selected_rows)
        self._panels.flush(keep)
        self.b, self.reference, self.columns = self.b[keep], self.reference[keep], self.columns[keep]
        self.ridge = self.ridge[keep]
        self._selected_rows = np.zeros(len(keep), dtype=np.bool_)
        sizes = np.where(self.selected, 0, self.sizes)
        self.starts = np.cumsum(sizes) - sizes
        self.stack(self._panels.C if self._keep_blocks else None)  # directly after a flush, C is conditional

    @property
    def solved(self) -> Factored:
        """Return the factor of C for the selected columns, in selection order, and z = L^-1 q."""
        return Factored(self._panels.factor(), self._z[: len(self._panels.order)])


@dataclass(frozen=True, eq=False)
class Factored:
    """The Cholesky factor of C in the order of a sequence, and z = L^-1 q (columns, P).

    A leading block of the factor is the factor of a prefix.
    """

    factor: Factor
    z: Float


FactoredOrder: TypeAlias = GroupOrder
"""A sequence for least squares, whose state is `Factored`."""


def sequence(
    gram: Gram, groups: FeatureGroups, method: Method | SelectionMethod = "fr", alpha: float = 1e-5, **rule: Any
) -> FactoredOrder:
    """Order the groups so that each prefix explains as much as its cost allows. Steps that cost nothing go first.

    About D^3 operations for D columns, for "fr" as for "omp". `method` and the rest are the fields of `Rule`; G-OMP is
    "omp" cost-blind. Raise TrainingError if the method does not support the rule, or if the path of "sparse" does not
    converge.
    """
    return sequencer(gram, groups, Rule(method, **rule))(alpha)


def sequencer(gram: Gram, groups: FeatureGroups, rule: Rule) -> Callable[[float], FactoredOrder]:
    """Return `sequence` as a function of the penalty; that of a `PathMethod`, which has none, is learned once."""
    method = rule.by
    if isinstance(method, PathMethod):
        steps = method.steps(gram, groups, cost_blind=rule.cost_blind)
        return partial(given_sequence, gram, groups, _put_first(rule.first, steps, groups))
    restricted = rule.doubling or rule.first or rule.epsilon is not None or any(groups.prerequisites)
    short = rule.scores_gains and not restricted and all(len(group.features) == 1 for group in groups.groups)

    @single_blas_thread()
    def order(alpha: float) -> FactoredOrder:
        if short:
            return single_columns(gram, groups, alpha, cost_blind=rule.cost_blind)
        scored = method.on(gram)
        sweep = Sweep(gram, groups.slices, alpha, blocks=scored.needs_blocks)
        found = greedy(SweepSearch(groups, sweep, scored), rule)
        return replace(found, state=sweep.solved)

    return order


@dataclass
class SweepSearch(Search):
    """Greedy search for least squares: selecting a group is selecting it in the sweep."""

    state: Sweep
    explained: float = 0.0

    def select(self, adds: tuple[int, ...]) -> float:
        self.explained += sum(map(self.state.select, adds))
        return self.explained


@single_blas_thread()
def given_sequence(gram: Gram, groups: FeatureGroups, order: Sequence[tuple[int, ...]], alpha: float) -> FactoredOrder:
    """Sweep the groups in the order of some steps, which add every group at most once. About D^3/3 operations."""
    sweep = Sweep(gram, groups.slices, alpha, blocks=False)
    explained = accumulate(sum(map(sweep.select, adds), 0.0) for adds in order)
    steps = [Step(adds, cost_of(groups, adds), F) for adds, F in zip(order, explained, strict=True)]
    return replace(GroupOrder.of(steps, groups), state=sweep.solved)


def swept(gram: Gram, groups: FeatureGroups, found: GroupOrder, alpha: float) -> FactoredOrder:
    """Return a sequence with the factor of its order, as `given_sequence`."""
    given = given_sequence(gram, groups, [step.adds for step in found.steps], alpha)
    return replace(given, doubling_until=found.doubling_until, longest=found.longest)


def _put_first(first: Sequence[str], order: Sequence[tuple[int, ...]], groups: FeatureGroups) -> list[tuple[int, ...]]:
    """Return the steps of an order with some groups before all others, each after its unpaid prerequisites."""
    steps: list[tuple[int, ...]] = []
    selected = np.zeros(len(groups), dtype=np.bool_)
    for group in map(groups.position, first):
        if not selected[group]:
            steps.append(groups.step([group], selected))
            selected[list(steps[-1])] = True
    rest = (tuple(group for group in adds if not selected[group]) for adds in order)
    return [*steps, *filter(None, rest)]


@np.errstate(divide="ignore", invalid="ignore")  # free groups have no price, copies no remaining variance
def single_columns(gram: Gram, groups: FeatureGroups, alpha: float, *, cost_blind: bool) -> FactoredOrder:
    """Return the sequence of all groups by forward regression, where each is one column and requires no other.

    The caller limits BLAS to one thread.
    """
    costs = groups.costs
    columns = _RemainingColumns(gram, costs, alpha)
    free = np.empty(0, dtype=np.intp) if cost_blind else np.flatnonzero(costs == 0)
    columns.select_among(free, np.ones(len(costs)))
    columns.select_among(np.setdiff1d(np.arange(len(costs)), free), np.ones(len(costs)) if cost_blind else 1.0 / costs)
    order = np.array(columns.order, dtype=np.intp)
    gained = np.cumsum(0.5 * np.square(columns.z).sum(axis=1))
    steps = tuple(map(Step, ((group,) for group in columns.order), costs[order].tolist(), gained.tolist()))
    return GroupOrder(steps, None, order, np.arange(len(order) + 1), state=Factored(columns.factor(), columns.z))


class _RemainingColumns(Panels):
    """The remaining columns, in the order of the table, given the selection: the sweep without blocks.

    With columns G selected, each remaining column has

        b  the gradient,  d  the conditional variance,  gain = 1/2 |b|^2 / d.

    Selecting column j with u = C_|G[:, j] / sqrt(d_j), z = b_j / sqrt(d_j) updates them to

        b - u z,  d - u^2.

    A step is a dozen operations on vectors. The order, including ties, is that of `greedy`. Training from moments at
    one penalty is 3.7 times as fast as by the sweep for 500 columns, and 1.6 times for 2,000.
    """

    def __init__(self, gram: Gram, costs: Float, alpha: float) -> None:
        C, b = gram.penalised(alpha)
        super().__init__(C)
        self._b, self._d = b.T.copy(), np.diagonal(C).copy()
        self._least_pivots = RANK_TOLERANCE * self._d
        self._costs = costs
        self.z = np.zeros_like(b)  # L^-1 q of the selected columns, in their order
        self._selected_rows: list[int] = []

    def select_among(self, columns: Index, prices: Float) -> None:
        """Select some columns one by one, the one with the largest gain times price (D,) first."""
        requested = np.isin(np.arange(len(prices)), columns)
        while requested.any():
            if self.width == self.V.shape[1]:
                self._flush()
            price = np.where(requested[self.columns], prices[self.columns], 0.0)
            for _ in range(min(self.V.shape[1] - self.width, int(requested.sum()))):
                row = self._best(price)
                price[row] = 0.0
                self._select(row)
                requested[self.order[-1]] = False

    def _best(self, price: Float) -> int:
        """Return the row with the best score among those with a price; ties by cost, then by the order of the table."""
        while True:
            scores = self._squares()
            scores *= price
            row = int(scores.argmax())
            top = scores[row]
            if not top > 2.0 * NOISE * price[row]:
                return self._best_of_noise(price)
            if self._d[row] > self._least_pivots[row]:
                break
            self._d[row] = np.inf  # permanently: variances only shrink
        near = scores >= top * (1.0 - TIE)
        if np.count_nonzero(near) == 1:
            return row
        tied = np.flatnonzero(near)
        return int(tied[np.argmin(self._costs[tied])])

    def _best_of_noise(self, price: Float) -> int:
        """Return the best row when no remaining gain exceeds rounding; gains of rounding size count as 0."""
        self._d[self._d <= self._least_pivots] = np.inf
        squares = self._squares()
        squares[squares < 2.0 * NOISE] = 0.0
        scores = np.where(price > 0.0, squares * price, -1.0)
        tied = np.flatnonzero(scores >= scores.max() * (1.0 - TIE))
        return int(tied[np.argmin(self._costs[tied])])

    def _squares(self) -> Float:
        """Return the squared length of the residuals' projection on each row, (rows,): twice its gain."""
        squares: Float = np.square(self._b[0])
        for b in self._b[1:]:
            squares += np.square(b)
        squares /= self._d
        return squares

    def _select(self, row: int) -> None:
        V, done = self.V.T, len(self.order)
        u = V[self.width]
        np.subtract(self.C[:, row], V[: self.width, row] @ V[: self.width], out=u)
        pivot = float(u[row])
        if pivot <= self._least_pivots[row]:
            u[:] = 0.0
            self.dropped[done] = True
        else:
            u /= sqrt(pivot)
            z = self._b[:, row] / u[row]
            self._b = dger(-1.0, u, z, a=self._b.T, overwrite_a=1).T
            self._d -= u * u
            self.z[done] = z
        self._b[:, row] = 0.0
        self._d[row] = np.inf
        self._selected_rows.append(row)
        self.order.append(int(self.columns[row]))
        self.width += 1

    def store(self) -> None:
        """Copy the panel into L; entries above the diagonal become zero."""
        panel = self.V[:, : self.width]
        panel[self._selected_rows] = np.tril(panel[self._selected_rows])
        super().store()

    def _flush(self) -> None:
        keep = np.delete(np.arange(len(self.columns)), self._selected_rows)
        self.flush(keep)
        self._b, self._d, self._least_pivots = self._b[:, keep], self._d[keep], self._least_pivots[keep]
        self._costs, self._selected_rows = self._costs[keep], []
