"""What models cost at prediction time, and which of them a budget buys.

A model has to compute every group of which it asks for a feature, with all that those groups require. Many models at
many costs are told apart on rows that took no part in fitting: at each budget the one that is best there, of those
that it can pay, and what that one is worth on the test rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anytime.groups import FeatureGroups
from anytime.types import Bool, Float

__all__ = ["Points", "cost_of", "mean_upto", "prices", "served"]


@dataclass(frozen=True, eq=False)
class Points:
    """Models that a method offers.

    Attributes
    ----------
    costs : (m,) of each.
    validation, test : (m,) how good each is; larger is better.
    """

    costs: Float
    validation: Float
    test: Float

    def joined(self, other: Points) -> Points:
        """The models of both."""
        return Points(
            np.concatenate([self.costs, other.costs]),
            np.concatenate([self.validation, other.validation]),
            np.concatenate([self.test, other.test]),
        )


def cost_of(used: Bool, groups: FeatureGroups) -> Float:
    """(m,) cost of models that use some features, (m, D)."""
    costs = np.zeros(len(used))
    for row, features in enumerate(used):
        needed: set[int] = set()
        for g, columns in enumerate(groups.slices):
            if features[columns].any():
                needed.update((*groups.prerequisites[g], g))
        costs[row] = groups.costs[sorted(needed)].sum()
    return costs


def prices(groups: FeatureGroups) -> tuple[Float, Float]:
    """What each feature may be said to cost, where only features have prices: its share of its group, or all of it."""
    shared, full = np.zeros(len(groups.features)), np.zeros(len(groups.features))
    for group, columns in zip(groups.groups, groups.slices, strict=True):
        shared[columns] = group.cost / max(len(group.features), 1)
        full[columns] = group.cost
    return shared, full


def served(points: Points, budgets: Float, prior: float, *, chosen: bool) -> Float:
    """(budgets,) what each budget buys on the test rows; `prior` where it buys nothing.

    Parameters
    ----------
    chosen : take the model that validates best of those within the budget, never one that validates worse than a
        cheaper one; otherwise the dearest within it, as a server does that knows nothing more.
    """
    order = np.lexsort((points.validation, points.costs))
    costs, validation, test = points.costs[order], points.validation[order], points.test[order]
    bought = np.full(len(budgets), prior)
    for i, budget in enumerate(budgets):
        within = int(np.searchsorted(costs, budget * (1 + 1e-9), side="right"))
        if within:
            bought[i] = test[int(np.argmax(validation[:within])) if chosen else within - 1]
    return bought


def mean_upto(budgets: Float, values: Float, stop: float) -> float:
    """Mean of a curve that holds each value until the next budget, over the budgets up to `stop`."""
    inside = budgets < stop
    edges = np.append(budgets[inside], stop)
    return float(np.diff(edges) @ values[inside]) / stop
