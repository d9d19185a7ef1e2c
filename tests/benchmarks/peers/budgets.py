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
        return Points(*(np.concatenate([vars(self)[name], vars(other)[name]]) for name in vars(self)))


def cost_of(used: Bool, groups: FeatureGroups) -> Float:
    """Return the cost of models that use some features (m, D), (m,)."""
    costs = np.zeros(len(used))
    for row, features in enumerate(used):
        active = [g for g, columns in enumerate(groups.slices) if features[columns].any()]
        costs[row] = groups.costs[sorted({h for g in active for h in (*groups.prerequisites[g], g)})].sum()
    return costs


def prices(groups: FeatureGroups) -> tuple[Float, Float]:
    """Return two prices of each feature, if only features have prices: its share of its group, or all of it."""
    sizes = np.array([len(group.features) for group in groups.groups])
    return np.repeat(groups.costs / np.maximum(sizes, 1), sizes), np.repeat(groups.costs, sizes)


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
    for i, affordable in enumerate(np.searchsorted(costs, budgets * (1 + 1e-9), side="right")):
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
    generator, n = np.random.default_rng(seed), len(weight)
    counts = (np.bincount(generator.integers(n, size=n), minlength=n) for _ in range(draws))
    return float(np.std([count @ difference / (count @ weight) for count in counts], ddof=1))
