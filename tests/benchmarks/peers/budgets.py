"""Costs of models at prediction time, and the model that each budget allows.

A model computes every group that contains one of its features, with all that those groups require. Of many models
at many costs, the one that validates best within a budget, on rows not used for fitting, gives the value on the
test rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anytime.groups import FeatureGroups
from anytime.types import Bool, Float

__all__ = ["Points", "cost_of", "difference_error", "mean_upto", "prices", "value_at_budgets"]


@dataclass(frozen=True, eq=False)
class Points:
    """Models that a method offers.

    Attributes
    ----------
    costs : (m,) of each.
    validation : (m,) quality of each on the rows to choose by; larger is better.
    test : (m,) quality of each, or (m, u) with one value per test row or query.
    """

    costs: Float
    validation: Float
    test: Float

    def joined(self, other: Points) -> Points:
        """Return the models of both."""
        return Points(
            np.concatenate([self.costs, other.costs]),
            np.concatenate([self.validation, other.validation]),
            np.concatenate([self.test, other.test]),
        )


def cost_of(used: Bool, groups: FeatureGroups) -> Float:
    """Return the cost of models that use some features (m, D), (m,)."""
    costs = np.zeros(len(used))
    for row, features in enumerate(used):
        needed: set[int] = set()
        for g, columns in enumerate(groups.slices):
            if features[columns].any():
                needed.update((*groups.prerequisites[g], g))
        costs[row] = groups.costs[sorted(needed)].sum()
    return costs


def prices(groups: FeatureGroups) -> tuple[Float, Float]:
    """Return two prices of each feature, if only features have prices: its share of its group, or all of it."""
    shared, full = np.zeros(len(groups.features)), np.zeros(len(groups.features))
    for group, cost, columns in zip(groups.groups, groups.costs, groups.slices, strict=True):
        shared[columns] = cost / max(len(group.features), 1)
        full[columns] = cost
    return shared, full


def value_at_budgets(points: Points, budgets: Float, prior: Float | float, *, chosen: bool) -> Float:
    """Return the test value or values of each budget, (budgets,) or (budgets, u); `prior` below the cheapest model.

    Parameters
    ----------
    chosen : use the model that validates best within the budget; otherwise the most expensive one within it, as a
        server without validation data does.
    """
    order = np.lexsort((points.validation, points.costs))
    costs, validation, test = points.costs[order], points.validation[order], points.test[order]
    values = np.tile(prior, (len(budgets), *[1] * (test.ndim - 1)))
    for i, budget in enumerate(budgets):
        affordable = int(np.searchsorted(costs, budget * (1 + 1e-9), side="right"))
        if affordable:
            values[i] = test[int(np.argmax(validation[:affordable])) if chosen else affordable - 1]
    return values


def mean_upto(budgets: Float, values: Float, stop: float) -> Float:
    """Return the mean of a step function of the budget, (budgets,) or (budgets, u), over the budgets up to `stop`."""
    inside = budgets < stop
    mean: Float = np.diff(np.append(budgets[inside], stop)) @ values[inside] / stop
    return mean


def difference_error(difference: Float, weight: Float, draws: int = 1000, seed: int = 0) -> float:
    """Return the bootstrapped standard error of sum(difference) / sum(weight), over test rows or queries, (u,) each."""
    generator = np.random.default_rng(seed)
    found = np.empty(draws)
    for i in range(draws):
        counts = np.bincount(generator.integers(len(weight), size=len(weight)), minlength=len(weight))
        found[i] = counts @ difference / (counts @ weight)
    return float(found.std(ddof=1))
