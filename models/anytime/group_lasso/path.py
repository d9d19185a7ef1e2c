"""The path of the cost-weighted Group Lasso, the paper's Sparse (section 5.2), on moments.

The paper minimises, on standardised columns,

    |Y - Xw|^2 + lambda sum_j c(G_j) |w_j|_F;

divided by 2n this is, in the scale of the mean loss that this library keeps everywhere,

    1/2 tr(w'Sw) - tr(q'w) + 1/2 sum(yy) + mu sum_j c(G_j) |w_j|_F,   mu = lambda/(2n).

`mu`, the penalty for a unit of cost, is what is computed with; `lambdas` tells the paper's scale. There is no root of
the group's size in the weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anytime.arrays import Bool, Float
from anytime.errors import TrainingError
from anytime.gram import Gram
from anytime.group_lasso.descent import Descent
from anytime.group_lasso.problem import Problem
from anytime.threads import single_blas_thread

__all__ = ["GroupLassoPath", "Point", "Tracer", "group_lasso_path"]

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
