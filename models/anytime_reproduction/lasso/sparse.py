"""The path of the cost-weighted Group Lasso on moments, and Sparse: the order in which groups enter it (section 5.2).

The paper minimises, on standardised columns,

    |Y - Xw|^2 + lambda sum_j c(G_j) |w_j|_F;

divided by 2n this is, in the scale of the mean loss that this library uses everywhere,

    1/2 tr(w'Sw) - tr(q'w) + 1/2 sum(yy) + mu sum_j c(G_j) |w_j|_F,   mu = lambda/(2n).

The code computes with `mu`, the penalty per unit of cost. The weight does not include the root of the group's size.
Each penalty of the path is solved to a duality gap.

The path is computed once per problem; it has no alpha. Its order is then refitted: the coefficients of every prefix are
those of ridge regression at alpha, as for every other method. The paper uses the shrunken weights of the path instead:
`shrunken_curve`.

*Weights.* The weight of a group is the cost of computing it alone: its own cost and that of all its requirements.
Without requirements, which the paper does not have, this is the cost. If the weight were only its own cost, a cheap
test would enter early and drag an expensive visit in. Groups of weight 0 are free and precede the path.

*Ties.* If several groups enter between two penalties, the interval is halved (geometrically) until they separate, or
up to a maximum number of times. Then the group with the larger dual ratio |b_g|/c_g at the penalty before goes first,
because it is closer to entering at mu. Groups that never enter come last, by that ratio at the last penalty; equal ones
by cost, then by the groups file.

*Requirements.* A group enters with its unpaid prerequisites, as one step. Groups that have become free go next.
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
from anytime.moments.moments import Gram, HeldOutMoments
from anytime.selection.criteria import PathMethod, best
from anytime.types import Bool, Float
from anytime_reproduction.lasso.group_lasso import Descent, PathPoint

COUNT = 100
"""Number of penalties of a path."""

SMALLEST = 1e-5
"""The last penalty as a share of the first."""

TOLERANCE = 1e-12
"""Target duality gap, as a share of 1/2 sum(yy)."""

ROUNDS = 300
"""Maximum number of rounds (cycles and Newton steps) at one penalty; a handful is usual."""


@dataclass(frozen=True, eq=False)
class GroupLassoPath:
    """Optima at decreasing penalties.

    Attributes
    ----------
    mu : Float
        (L,) penalties per unit of cost, in the scale of the mean loss, decreasing.
    coef : Float
        (L, D, P) coefficients in standard units.
    gaps : Float
        (L,) duality gap reached at each, an upper bound of the distance to the optimum; `target` is the target.
    active : Bool
        (L, groups) marks nonzero groups; groups of weight 0 that have columns are always active.
    """

    mu: Float
    coef: Float
    gaps: Float
    active: Bool
    target: float

    @property
    def reached(self) -> Bool:
        """Return whether the target gap was reached within the rounds allowed, (L,)."""
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
    """Return the optima along a decreasing geometric grid; each solve starts from the previous optimum.

    Where columns are collinear the optimum is one of several; predictions and the norms' weighted sum are unique.
    A penalty costs a few times d^3/3 + d D P operations for d columns that are not zero. Where no column explains
    anything, the path is the single penalty 0.

    Parameters
    ----------
    weights : Float
        (groups,) weight of each group's norm, its cost; a group of weight 0 is not penalised and always active.
    count, smallest
        Number of penalties, from the smallest at which all penalised groups are zero, down to this share of it.
    mu : Sequence[float] | None
        Explicit penalties instead of the grid, decreasing.
    tolerance : float
        Target duality gap, as a share of 1/2 sum(yy).
    rounds : int
        Maximum number of rounds at one penalty; `GroupLassoPath.reached` marks where they sufficed.
    """
    with single_blas_thread():
        descent = _descent(gram, slices, weights, tolerance, rounds)
        return _path(descent, _trace(descent, count, smallest, mu), len(slices))


def _descent(
    gram: Gram, slices: Sequence[slice], weights: Float, tolerance: float = TOLERANCE, rounds: int = ROUNDS
) -> Descent:
    if len(weights) != len(slices) or not (np.isfinite(weights) & (weights >= 0)).all():
        raise TrainingError(f"weights are {weights}; expected {len(slices)} finite numbers, 0 or more")
    return Descent(gram, slices, weights, tolerance * 0.5 * float(gram.yy.sum()), rounds)


def _trace(
    descent: Descent, count: int = COUNT, smallest: float = SMALLEST, mu: Sequence[float] | None = None
) -> list[PathPoint]:
    if mu is not None and not (len(mu) and np.isfinite(mu).all() and min(mu) > 0):
        raise TrainingError(f"mu is {list(mu)}; expected penalties above 0, decreasing")
    first = descent.largest()
    grid = first * np.geomspace(1.0, smallest, count) if first > 0 else np.zeros(1)
    points: list[PathPoint] = []
    for penalty in grid.tolist() if mu is None else map(float, mu):
        points.append(descent.at(penalty, points[-1] if points else None))
    return points


def _path(descent: Descent, points: Sequence[PathPoint], groups: int) -> GroupLassoPath:
    active = np.zeros((len(points), groups), dtype=np.bool_)
    active[:, descent.free] = True
    active[:, descent.members] = [point.active for point in points]
    return GroupLassoPath(
        mu=np.array([point.mu for point in points]),
        coef=np.stack([descent.all_columns(point.w) for point in points]),
        gaps=np.array([point.gap for point in points]),
        active=active,
        target=descent.target,
    )


HALVINGS = 6
"""Maximum number of halvings of an interval to separate entries: with the default grid to 0.2 % of a penalty."""

SUFFICIENT = 1e-6
"""Duality gap, as a share of 1/2 sum(yy), above which an order of entry is unreliable; `TOLERANCE` is far below."""


@dataclass(frozen=True, eq=False)
class Entries:
    """A path on the grid of penalties, and the groups that each step adds, in order of computation."""

    path: GroupLassoPath
    steps: tuple[tuple[int, ...], ...]


class Sparse(PathMethod):
    """The order of entry on the path of the cost-weighted Group Lasso."""

    name = "sparse"

    def steps(self, gram: Gram, groups: FeatureGroups, *, cost_blind: bool) -> tuple[tuple[int, ...], ...]:
        return sparse_entries(gram, groups, cost_blind).steps


def sparse_entries(gram: Gram, groups: FeatureGroups, cost_blind: bool = False) -> Entries:
    """Return the path and its order of entry, which do not depend on the penalty alpha.

    Raise TrainingError if the duality gap stayed too large for a reliable order at some penalty.
    """
    weights = (
        np.ones(len(groups))
        if cost_blind
        else np.array([groups.costs[[*before, g]].sum() for g, before in enumerate(groups.prerequisites)])
    )
    with single_blas_thread():
        descent = _descent(gram, groups.slices, weights)
        points = _trace(descent)
        entered: list[int] = []
        between = [p for before, after in pairwise(points) for p in _separated(descent, before, after, entered)]
        _enter(descent, points[-1], np.ones(len(descent.members), dtype=np.bool_), entered)
        path = _path(descent, points, len(groups))
    worst = max([*points, *between], key=lambda point: point.gap)
    if worst.gap > SUFFICIENT * 0.5 * float(gram.yy.sum()):
        raise TrainingError(
            f"the sparse path reached a duality gap of only {worst.gap:.2g} at lambda "
            f"{2 * gram.weight * worst.mu:.3g}, too large for a reliable order; choose another method, such as 'fr'"
        )
    # Groups of weight 0 come first, those without columns last.
    free, by_weight = np.flatnonzero(weights == 0), np.argsort(weights, kind="stable")
    order = dict.fromkeys([*free.tolist(), *descent.members[entered].tolist(), *by_weight.tolist()])
    return Entries(path, _steps(groups, order, cost_blind))


def _separated(
    descent: Descent, before: PathPoint, after: PathPoint, entered: list[int], halvings: int = HALVINGS
) -> list[PathPoint]:
    """Append the groups that enter between two points to `entered`; return the points computed to separate them."""
    new = after.active.copy()
    new[entered] = False
    if new.sum() <= 1 or halvings == 0:
        _enter(descent, before, new, entered)
        return []
    middle = descent.at(math.sqrt(before.mu * after.mu), before)
    sides = ((before, middle), (middle, after))
    return [middle, *(p for side in sides for p in _separated(descent, *side, entered, halvings - 1))]


def _enter(descent: Descent, at: PathPoint, new: Bool, entered: list[int]) -> None:
    """Append the `new` groups (k,) that have not entered, those with the largest dual ratios at a point first."""
    remaining = np.setdiff1d(np.flatnonzero(new), entered)
    while len(remaining):
        entered.append(best(at.ratios, descent.weights, remaining))
        remaining = remaining[remaining != entered[-1]]


def _steps(groups: FeatureGroups, order: Iterable[int], cost_blind: bool) -> tuple[tuple[int, ...], ...]:
    """Return a step for each group with its unpaid requirements, each followed by groups that have become free."""
    steps: list[tuple[int, ...]] = []
    selected = np.zeros(len(groups), dtype=np.bool_)
    if_free = [] if cost_blind else [(group, True) for group in range(len(groups))]
    for group, only_free in [*if_free, *(each for chosen in order for each in ((chosen, False), *if_free))]:
        adds = groups.step([group], selected)
        if not selected[group] and not (only_free and groups.costs[list(adds)].any()):
            steps.append(adds)
            selected[list(adds)] = True
    return tuple(steps)


def shrunken_curve(path: GroupLassoPath, groups: FeatureGroups, held: HeldOutMoments) -> tuple[Float, Float]:
    """Return the paper's own curve of Sparse, from the path's shrunken weights: costs (L + 1,) and F (L + 1, P).

    After the empty prefix ordered is one point for each penalty: F of each response, without penalty, on a table's
    moments, and the cost of all groups that were active at this or a larger penalty, with their requirements. A group
    that leaves the path has been computed nevertheless, so costs never fall. Between two entries they are constant
    while F changes with the shrinkage. `held` is the table to measure on; `gram.own` is training itself.
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
