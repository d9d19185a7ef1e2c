"""The best of all sets within every budget, by trying them all, or by dynamic programming where gains add up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anytime.arrays import Float, Index

__all__ = ["SLACK", "Optimum", "best_of_sets", "knapsack"]

SLACK = 1 + 1e-9
"""Costs are sums: one that is over a budget by this share only is within it."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """The optimum as a function of the budget: a staircase.

    Attributes
    ----------
    costs : (steps,) costs at which a better set comes within reach, rising, from 0 on.
    values : (steps,) the best value of any set of at most that cost.
    """

    costs: Float
    values: Float

    def within(self, budgets: Float) -> Float:
        """The best value of any set that costs at most so much, for each of some budgets."""
        best: Float = self.values[np.searchsorted(self.costs, budgets * SLACK, side="right") - 1]
        return best


def best_of_sets(values: Float, costs: Float) -> Optimum:
    """The optimum over all sets of groups.

    Parameters
    ----------
    values : (2^groups,) value of every set, bit g of the index standing for group g, as `subset_values` gives it.
    costs : (groups,) cost of each group.
    """
    sets = np.arange(len(values))
    totals = sum(((sets >> g & 1) * cost for g, cost in enumerate(costs)), start=np.zeros(len(values)))
    order: Index = np.argsort(totals, kind="stable")
    best = np.maximum.accumulate(values[order])
    better = np.append(True, best[1:] > best[:-1])
    return Optimum(totals[order][better], best[better])


def knapsack(values: Float, costs: Index) -> Float:
    """The best sum of values within each whole budget from 0 to the sum of the costs, (budgets,).

    Parameters
    ----------
    values, costs : (items,) value and cost, a positive whole number, of each item; an item is taken once at the most.
    """
    best = np.zeros(int(costs.sum()) + 1)
    for value, cost in zip(values, costs, strict=True):
        best[cost:] = np.maximum(best[cost:], best[:-cost] + value)
    return best
