"""Doubling: no step costs more than all before it together (Algorithm 2, for Theorem 4.3's bound at all budgets)."""

from __future__ import annotations

import numpy as np

from anytime.arrays import Bool, Float, Index

__all__ = ["within_doubling"]

SLACK = 1 + 1e-9
"""Costs are sums; one may fall short of another by rounding and still be equal."""


def within_doubling(costs: Float, left: Index, spent: float) -> tuple[Bool, bool]:
    """Which steps may be taken, and whether the set is doubling-capable here (Definition 4.2).

    While nothing is spent the limit is c_min, the smallest positive cost of a step. Where nothing is within the limit
    the cheapest step is taken (the first of them in the groups file), and the guarantee ends.

    Parameters
    ----------
    costs : (groups,) cost of each group's step.
    left : groups not taken yet, at least one.
    spent : cost of the sequence so far.
    """
    paid = costs[left]
    limit = spent if spent > 0 else paid[paid > 0].min(initial=np.inf)
    within = left[paid <= limit * SLACK]
    allowed = np.zeros(len(costs), dtype=np.bool_)
    allowed[within if len(within) else left[[np.argmin(paid)]]] = True
    return allowed, len(within) > 0
