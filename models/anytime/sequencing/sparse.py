"""Sparse: the groups in the order in which they enter the cost-weighted Group Lasso path (section 5.2 of the paper).

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
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from anytime.arrays import Bool, Float
from anytime.errors import TrainingError
from anytime.gram import Gram, Held
from anytime.group_lasso import GroupLassoPath, Point, Tracer
from anytime.groups import FeatureGroups
from anytime.manifest import FamilyName, Method
from anytime.sequencing.candidates import best
from anytime.sequencing.given import given_sequence
from anytime.sequencing.steps import FactoredSequence
from anytime.threads import single_blas_thread

__all__ = ["Entries", "check_sparse", "shrunken_curve", "sparse_entries", "sparse_sequence", "sparse_weights"]

HALVINGS = 6
"""How often an interval is halved to tell entries apart: with the default grid to .2 % of a penalty."""

SUFFICIENT = 1e-6
"""Duality gap, as a share of 1/2 sum(yy), from which on an order of entry is not to be trusted. The path aims at
`anytime.group_lasso.path.TOLERANCE`, far below."""


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
