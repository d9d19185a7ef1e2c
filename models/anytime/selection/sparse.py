"""The path of the cost-weighted Group Lasso, the paper's Sparse (section 5.2), on moments.

The paper minimises, on standardised columns,

    |Y - Xw|^2 + lambda sum_j c(G_j) |w_j|_F;

divided by 2n this is, in the scale of the mean loss that this library keeps everywhere,

    1/2 tr(w'Sw) - tr(q'w) + 1/2 sum(yy) + mu sum_j c(G_j) |w_j|_F,   mu = lambda/(2n).

`mu`, the penalty for a unit of cost, is what is computed with; `lambdas` tells the paper's scale. There is no root of
the group's size in the weight.

The cost-weighted Group Lasso on moments: its path of penalties, each solved to a duality gap.

Sparse: the groups in the order in which they enter the cost-weighted Group Lasso path (section 5.2 of the paper).

The path is found once for a problem; it has no alpha. Its order is then refitted: coefficients of every prefix are
those of ridge regression at alpha, as of every other method. The paper keeps the shrunken weights of the path instead:
`shrunken_curve`.

*Weights.* A group is weighted by what it takes to compute it, alone: its own cost and that of all it requires. Without
requirements, which the paper does not know, this is the cost. By its own cost, a cheap test would enter early and drag
a dear visit in. What weighs nothing is free, and stands before the path.

*Ties.* Where several groups enter between two penalties, the interval is halved (geometrically) until they part, or to
its smallest; then the larger dual ratio |b_g|/c_g at the penalty before goes first, being nearer to entering at mu.
Groups that never enter come last, by that ratio at the last penalty; equal ones by cost, then by the groups file.

*Requirements.* A group enters with those of its prerequisites that nobody has paid, as one step. What has become free
by that goes next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from anytime._linalg import single_blas_thread
from anytime.errors import TrainingError
from anytime.groups import FeatureGroups
from anytime.moments.gram import Gram, Held
from anytime.selection.candidates import best
from anytime.selection.group_lasso import Descent, Problem
from anytime.selection.sequence import FactoredSequence, given_sequence
from anytime.types import Bool, FamilyName, Float, Method

__all__ = [
    "Entries",
    "GroupLassoPath",
    "Point",
    "Tracer",
    "check_sparse",
    "group_lasso_path",
    "shrunken_curve",
    "sparse_entries",
    "sparse_sequence",
    "sparse_weights",
]

COUNT = 100
"""Penalties of a path."""

SMALLEST = 1e-5
"""The last penalty as a share of the first."""

TOLERANCE = 1e-12
"""Duality gap to reach, as a share of 1/2 sum(yy)."""

ROUNDS = 300
"""Cycles and Newton's steps at one penalty; a handful is usual."""


@dataclass(frozen=True, eq=False)
class GroupLassoPath:
    """Optima at falling penalties.

    Attributes
    ----------
    mu : (L,) penalties per unit of cost beside the mean loss, falling.
    coef : (L, D, P) coefficients in standard units.
    gaps : (L,) duality gap reached at each, an upper bound of what is missing to the optimum.
    active : (L, groups) which groups are not zero; groups of weight 0 that have columns always are.
    target : the gap that was asked for.
    weight : the sum of the row weights, n.
    """

    mu: Float
    coef: Float
    gaps: Float
    active: Bool
    target: float
    weight: float

    @property
    def lambdas(self) -> Float:
        """The penalties in the paper's scale, 2 n mu, (L,)."""
        return 2.0 * self.weight * self.mu

    @property
    def reached(self) -> Bool:
        """(L,) whether the gap that was asked for was reached within the rounds allowed."""
        return self.gaps <= self.target


def group_lasso_path(
    gram: Gram,
    slices: Sequence[slice],
    weights: Float,
    *,
    count: int = COUNT,
    smallest: float = SMALLEST,
    mu: Sequence[float] | None = None,
    tolerance: float = TOLERANCE,
    rounds: int = ROUNDS,
) -> GroupLassoPath:
    """Optima along a falling geometric grid, each begun where the one before ended.

    Parameters
    ----------
    gram : standardised normal equations; not changed.
    slices : columns of each group.
    weights : (groups,) weight of each group's norm, its cost; at 0 a group is not penalised, and always in.
    count, smallest : penalties from the least at which all else is zero down to this share of it.
    mu : the penalties themselves instead, falling.
    tolerance : duality gap to reach, as a share of 1/2 sum(yy).
    rounds : how often to cycle at one penalty; `GroupLassoPath.reached` tells where they did not do.

    Raises
    ------
    TrainingError
        Weights or penalties that are none.

    Notes
    -----
    Where columns are collinear the optimum is one of several; predictions and norms' weighted sum are unique.
    A penalty costs a few times d^3/3 + d D P operations for d columns that are not zero. Where no column explains
    anything, the path is the single penalty 0.
    """
    with single_blas_thread():
        tracer = Tracer(gram, slices, weights, tolerance, rounds)
        grid = tracer.grid(count, smallest) if mu is None else _checked(mu)
        return tracer.path(tracer.trace(grid))


def _checked(mu: Sequence[float]) -> Float:
    grid = np.array(mu, dtype=np.float64)
    if len(grid) == 0 or not (np.isfinite(grid) & (grid > 0)).all():
        raise TrainingError(f"mu is {list(mu)}; expected penalties above 0, falling")
    return grid


@dataclass(frozen=True, eq=False)
class Point:
    """The optimum at one penalty, of the penalised groups that have columns (`Problem`).

    Attributes
    ----------
    mu, gap : the penalty and the duality gap reached.
    w, ratios, active : coefficients (d, P); |b_g|_F/c_g of each group (k,); which groups are not zero (k,).
    """

    mu: float
    gap: float
    w: Float
    ratios: Float
    active: Bool


class Tracer:
    """Solves one problem at any penalties, from any point. Small linear algebra: hold BLAS to one thread around it.

    Parameters
    ----------
    gram, slices, weights, tolerance, rounds : as in `group_lasso_path`.

    Raises
    ------
    TrainingError
        Weights that are negative or not finite, or not one for each group.
    """

    def __init__(
        self,
        gram: Gram,
        slices: Sequence[slice],
        weights: Float,
        tolerance: float = TOLERANCE,
        rounds: int = ROUNDS,
    ) -> None:
        if len(weights) != len(slices) or not (np.isfinite(weights) & (weights >= 0)).all():
            raise TrainingError(f"weights are {weights}; expected {len(slices)} finite numbers, 0 or more")
        self.problem = Problem.of(gram, slices, weights)
        self._gram, self._slices = gram, slices
        self._free = [s.stop > s.start and weight == 0 for s, weight in zip(slices, weights, strict=True)]
        self.target = tolerance * 0.5 * float(gram.yy.sum())
        self._rounds = rounds
        self._descent = Descent(self.problem)

    def grid(self, count: int = COUNT, smallest: float = SMALLEST) -> Float:
        """Falling penalties, the first the least at which all penalised groups are zero."""
        first = self.problem.largest()
        return first * np.geomspace(1.0, smallest, count) if first > 0 else np.zeros(1)

    def trace(self, grid: Float) -> list[Point]:
        """Optima at falling penalties."""
        points: list[Point] = []
        for mu in grid.tolist():
            points.append(self.at(mu, points[-1] if points else None))
        return points

    def at(self, mu: float, near: Point | None = None) -> Point:
        """The optimum at one penalty, searched for from a point near it; else from zero."""
        descent, problem = self._descent, self.problem
        descent.start(np.zeros_like(problem.q) if near is None else near.w)
        gap = descent.solve(mu, self.target, self._rounds)
        ratios = problem.norms(descent.b) / problem.weights
        return Point(mu, gap, descent.w.copy(), ratios, problem.norms(descent.w) > 0)

    def path(self, points: Sequence[Point]) -> GroupLassoPath:
        """The same points in the columns and groups of the whole."""
        active = np.zeros((len(points), len(self._slices)), dtype=np.bool_)
        active[:, self._free] = True
        for k, point in enumerate(points):
            active[k, self.problem.members] = point.active
        return GroupLassoPath(
            mu=np.array([point.mu for point in points]),
            coef=np.stack([self.problem.whole(point.w) for point in points]),
            gaps=np.array([point.gap for point in points]),
            active=active,
            target=self.target,
            weight=self._gram.weight,
        )


HALVINGS = 6
"""How often an interval is halved to tell entries apart: with the default grid to .2 % of a penalty."""

SUFFICIENT = 1e-6
"""Duality gap, as a share of 1/2 sum(yy), from which on an order of entry is not to be trusted. The path aims at
`anytime.selection.sparse.TOLERANCE`, far below."""


@dataclass(frozen=True, eq=False)
class Entries:
    """A path and the order that it gives.

    Attributes
    ----------
    path : the optima on the grid of penalties, without those between that only told entries apart.
    steps : groups that each step adds, in order of computation; together every group once.
    """

    path: GroupLassoPath
    steps: tuple[tuple[int, ...], ...]


def check_sparse(method: Method, doubling: bool, family: FamilyName = "gaussian", epsilon: float | None = None) -> None:
    """Refuse options that do not go with "sparse".

    Raises
    ------
    TrainingError
        Doubling or a precision, which restrict a greedy search, or a family that moments alone do not fit.
    """
    if method == "sparse" and doubling:
        raise TrainingError("method 'sparse' follows a path and cannot double; leave doubling out, or choose 'fr'")
    if method == "sparse" and epsilon is not None:
        raise TrainingError("method 'sparse' follows a path and has no precision; leave epsilon out, or choose 'omp'")
    if method == "sparse" and family != "gaussian":
        raise TrainingError(f"method 'sparse' is for family gaussian, not {family}; choose 'fr', or the other family")


def sparse_weights(groups: FeatureGroups, cost_blind: bool = False) -> Float:
    """Weight of each group in the path, (groups,): see the head of this module; all 1 where costs are forgotten."""
    if cost_blind:
        return np.ones(len(groups))
    return np.array([groups.costs[[*before, g]].sum() for g, before in enumerate(groups.prerequisites)])


def sparse_sequence(gram: Gram, groups: FeatureGroups, alpha: float, cost_blind: bool = False) -> FactoredSequence:
    """The order of entry, refitted at the penalty alpha; `cost_blind` forgets the costs in the path.

    Raises
    ------
    TrainingError
        As `sparse_entries`.
    """
    return given_sequence(gram, groups, sparse_entries(gram, groups, cost_blind).steps, alpha)


def sparse_entries(gram: Gram, groups: FeatureGroups, cost_blind: bool = False) -> Entries:
    """The path and its order of entry, whatever the penalty alpha.

    Raises
    ------
    TrainingError
        The duality gap stayed too large at some penalty for the order to be trusted.
    """
    weights = sparse_weights(groups, cost_blind)
    with single_blas_thread():
        tracer = Tracer(gram, groups.slices, weights)
        points = tracer.trace(tracer.grid())
        entering = _Entering(tracer, weights)
        for before, after in pairwise(points):
            entering.between(before, after, HALVINGS)
        entering.rest(points[-1])
        path = tracer.path(points)
    worst = max([*points, *entering.between_grid], key=lambda point: point.gap)
    if worst.gap > SUFFICIENT * 0.5 * float(gram.yy.sum()):
        raise TrainingError(
            f"the sparse path is solved to a duality gap of {worst.gap:.2g} only at lambda "
            f"{2 * gram.weight * worst.mu:.3g}, too coarse to order groups by; choose another method, such as 'fr'"
        )
    return Entries(path, _steps(groups, entering.order, cost_blind))


class _Entering:
    """Groups in the order in which they enter, as the path is followed."""

    def __init__(self, tracer: Tracer, weights: Float) -> None:
        self._tracer, self._weights = tracer, weights
        self.between_grid: list[Point] = []
        self._entered = np.zeros(len(tracer.problem.members), dtype=np.bool_)
        self.order: list[int] = np.flatnonzero(weights == 0).tolist()

    def between(self, before: Point, after: Point, halvings: int) -> None:
        """Add what enters between two points."""
        new = after.active & ~self._entered
        if new.sum() > 1 and halvings > 0:
            middle = self._tracer.at(math.sqrt(before.mu * after.mu), before)
            self.between_grid.append(middle)
            self.between(before, middle, halvings - 1)
            self.between(middle, after, halvings - 1)
        elif new.any():
            self._add(before, new)

    def rest(self, last: Point) -> None:
        """Add what never entered; groups without columns, which have nothing to enter with, at the very end."""
        self._add(last, ~self._entered)
        there = set(self.order)
        self.order += [g for g in np.argsort(self._weights, kind="stable").tolist() if g not in there]

    def _add(self, at: Point, new: Bool) -> None:
        left = np.flatnonzero(new)
        self._entered[left] = True
        while len(left):
            chosen = best(at.ratios, self._tracer.problem.weights, left)
            self.order.append(int(self._tracer.problem.members[chosen]))
            left = left[left != chosen]


def _steps(groups: FeatureGroups, order: Iterable[int], cost_blind: bool) -> tuple[tuple[int, ...], ...]:
    """Each group with what it requires and nobody has paid; then whatever costs nothing more."""
    steps: list[tuple[int, ...]] = []
    taken: set[int] = set()

    def unpaid(group: int) -> tuple[int, ...]:
        return (*(p for p in groups.prerequisites[group] if p not in taken), group)

    def take(group: int) -> None:
        if group not in taken:
            steps.append(unpaid(group))
            taken.update(steps[-1])

    def take_free() -> None:
        for group in range(len(groups)):
            if group not in taken and not groups.costs[list(unpaid(group))].any():
                take(group)

    if not cost_blind:
        take_free()
    for group in order:
        take(group)
        if not cost_blind:
            take_free()
    return tuple(steps)


def shrunken_curve(path: GroupLassoPath, groups: FeatureGroups, held: Held) -> tuple[Float, Float]:
    """Return the paper's own curve of Sparse, of the path's shrunken weights: costs (L + 1,) and F (L + 1, P).

    One point for each penalty, after the empty prefix: F of each response, without penalty, on a table's moments, and
    the cost of all groups that were active at this or a larger penalty, with what they require. A group that leaves the
    path has been computed all the same, so that costs never fall; between two entries they stand still while F moves
    with the shrinkage.

    Parameters
    ----------
    path : optima of the training problem.
    held : the table measured on, in training units; `gram.own` is training itself.
    """
    costs, explained = [0.0], [np.zeros(len(held.yy))]
    paid = np.zeros(len(groups), dtype=np.bool_)
    for active, w in zip(path.active, path.coef, strict=True):
        for group in np.flatnonzero(active & ~paid).tolist():
            paid[[*groups.prerequisites[group], group]] = True
        costs.append(float(groups.costs[paid].sum()))
        columns = np.flatnonzero(w.any(axis=1))
        explained.append(held.explained(columns, w[columns]))
    return np.array(costs), np.array(explained)
