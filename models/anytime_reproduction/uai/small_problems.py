"""Small problems for which every set of groups is enumerated, and the best set within every budget.

The optimum comes from enumeration, or from dynamic programming if gains are additive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anytime.groups import FeatureGroup, FeatureGroups
from anytime.moments.accumulate import moments_of
from anytime.moments.gram import Gram
from anytime.types import Float, Index
from anytime_reproduction.experiment import Setting
from anytime_reproduction.sets import RealSet, SetName, load_set, regrouped

__all__ = [
    "PROBLEMS",
    "SLACK",
    "Optimum",
    "ProblemName",
    "SmallProblem",
    "best_of_sets",
    "cheapest",
    "drawn_costs",
    "knapsack",
    "recosted",
    "small_problem",
]

SLACK = 1 + 1e-9
"""Costs are sums: a cost above a budget by this share only is within it."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """The optimum as a function of the budget: a staircase.

    Attributes
    ----------
    costs : (steps,) costs at which a better set becomes affordable, increasing, from 0 on.
    values : (steps,) the best value of any set of at most that cost.
    """

    costs: Float
    values: Float

    def within(self, budgets: Float) -> Float:
        """Return the best value of any set within each of some budgets."""
        best: Float = self.values[np.searchsorted(self.costs, budgets * SLACK, side="right") - 1]
        return best


def best_of_sets(values: Float, costs: Float) -> Optimum:
    """Return the optimum over all sets of groups.

    Parameters
    ----------
    values : (2^groups,) value of every set; bit g of the index marks group g, as in `subset_values`.
    costs : (groups,) cost of each group.
    """
    sets = np.arange(len(values))
    totals = sum(((sets >> g & 1) * cost for g, cost in enumerate(costs)), start=np.zeros(len(values)))
    order: Index = np.argsort(totals, kind="stable")
    best = np.maximum.accumulate(values[order])
    better = np.append(True, best[1:] > best[:-1])
    return Optimum(totals[order][better], best[better])


def knapsack(values: Float, costs: Index) -> Float:
    """Return the best sum of values within each integer budget from 0 to the sum of the costs, (budgets,).

    Parameters
    ----------
    values, costs : (items,) value and cost, a positive integer, of each item; an item is used at most once.
    """
    best = np.zeros(int(costs.sum()) + 1)
    for value, cost in zip(values, costs, strict=True):
        best[cost:] = np.maximum(best[cost:], best[:-cost] + value)
    return best


ProblemName = Literal[
    "mq2008", "boston_housing", "kddcup99", "yahoo_sample", "nearly independent", "one cause", "families"
]

PROBLEMS: tuple[ProblemName, ...] = (
    "mq2008",
    "boston_housing",
    "kddcup99",
    "yahoo_sample",
    "nearly independent",
    "one cause",
    "families",
)

ROWS = 2000
"""Number of rows of the synthetic problems."""


@dataclass(frozen=True, eq=False)
class SmallProblem:
    """A problem whose sets are enumerated.

    Attributes
    ----------
    what : description in the report.
    gram, groups : the problem, with its own costs.
    """

    what: str
    gram: Gram
    groups: FeatureGroups


def small_problem(setting: Setting, name: ProblemName, max_groups: int) -> SmallProblem:
    """Return a problem of at most `max_groups` groups: the cheapest groups of a larger data set."""
    if name in _SYNTHETIC:
        X, y, sizes = _SYNTHETIC[name](np.random.default_rng([setting.seed, PROBLEMS.index(name)]), max_groups)
        built = [_group(g, size) for g, size in enumerate(sizes)]
        groups = recosted(
            FeatureGroups(groups=tuple(built)), drawn_costs(np.random.default_rng(setting.seed), max_groups, 0)
        )
        return SmallProblem(
            f"synthetic: {len(groups)} groups of {X.shape[1]} features", Gram.of(moments_of(X, y)), groups
        )
    data = load_set(_SETS[name], setting)
    if name == "yahoo_sample":
        data = regrouped(data, 20, np.random.default_rng([setting.seed, 20]))
    few = cheapest(data, max_groups)
    selection = "" if few is data else f"; its {max_groups} cheapest groups, {few.X.shape[1]} features"
    return SmallProblem(data.what + selection, Gram.of(moments_of(few.X, few.y)), few.groups)


def cheapest(data: RealSet, max_groups: int) -> RealSet:
    """Return the cheapest groups of a data set, in the order of its groups file."""
    if len(data.groups) <= max_groups:
        return data
    selected = sorted(np.argsort(data.groups.costs, kind="stable")[:max_groups].tolist())
    columns = np.concatenate([np.arange(s.start, s.stop) for s in (data.groups.slices[g] for g in selected)])
    groups = FeatureGroups(cost_unit=data.groups.cost_unit, groups=tuple(data.groups.groups[g] for g in selected))
    return RealSet(data.name, data.what, groups, data.X[:, columns], data.y, data.part, data.splits)


def drawn_costs(rng: np.random.Generator, count: int, number: int) -> Float:
    """Return random costs: alternately integers with the smallest occurring twice, and any numbers from 1 to 100."""
    if number % 2 == 0:
        integers = rng.choice([1.0, 2.0, 3.0, 5.0, 8.0, 13.0], count)
        integers[rng.choice(count, 2, replace=False)] = 1.0
        return integers
    drawn: Float = np.exp(rng.uniform(0.0, np.log(100.0), count))
    return drawn


def recosted(groups: FeatureGroups, costs: Float) -> FeatureGroups:
    """Return the same groups at other costs."""
    built = [group.model_copy(update={"cost": float(cost)}) for group, cost in zip(groups.groups, costs, strict=True)]
    return FeatureGroups(cost_unit=groups.cost_unit, groups=tuple(built))


def _group(g: int, size: int) -> FeatureGroup:
    return FeatureGroup(name=f"g{g}", features=tuple(f"g{g}x{d}" for d in range(size)), cost=1.0)


def _nearly_independent(rng: np.random.Generator, count: int) -> tuple[Float, Float, list[int]]:
    """Return single features that are nearly independent."""
    X = rng.normal(size=(ROWS, count)) + 0.2 * rng.normal(size=(ROWS, 1))
    return X, X @ rng.normal(size=count) + rng.normal(size=ROWS), [1] * count


def _one_cause(rng: np.random.Generator, count: int) -> tuple[Float, Float, list[int]]:
    """Return single features with a common cause that the response does not depend on: each helps only with others."""
    common = rng.normal(size=(ROWS, 1))
    X = rng.normal(size=(ROWS, count)) + 2.0 * common
    weights = rng.normal(size=count)
    return X, X @ (weights - weights.mean()) + rng.normal(size=ROWS), [1] * count


def _families(rng: np.random.Generator, count: int) -> tuple[Float, Float, list[int]]:
    """Return groups of ten measurements of one quantity each, with correlated quantities."""
    size = 10
    quantity = rng.normal(size=(ROWS, count)) * 0.4 + rng.normal(size=(ROWS, 1))
    X = np.repeat(quantity, size, axis=1) + 1.2 * rng.normal(size=(ROWS, count * size))
    return X, quantity @ rng.normal(size=count) + rng.normal(size=ROWS), [size] * count


_SYNTHETIC: dict[str, Callable[[np.random.Generator, int], tuple[Float, Float, list[int]]]] = {
    "nearly independent": _nearly_independent,
    "one cause": _one_cause,
    "families": _families,
}

_SETS: dict[str, SetName] = {name: name for name in ("mq2008", "boston_housing", "kddcup99", "yahoo_sample")}
