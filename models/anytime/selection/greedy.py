"""Doubling: no step costs more than all before it together (Algorithm 2, for Theorem 4.3's bound at all budgets).

The greedy search: the paper's Algorithm 1 with any criterion, and Algorithm 2 (doubling) as a restriction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from anytime.groups import FeatureGroups
from anytime.selection.candidates import Candidates
from anytime.selection.sequence import Step
from anytime.types import Bool, Float, Index

__all__ = [
    "Found",
    "Search",
    "greedy",
    "within_doubling",
]

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


class Search(Protocol):
    """A problem from which groups are taken step by step."""

    @property
    def candidates(self) -> Candidates:
        """What can be taken next."""

    def take(self, adds: tuple[int, ...]) -> float:
        """Take the groups of a step; returns the explained variance F of all that is taken."""


@dataclass(frozen=True)
class Found:
    """What a search found: steps, where each prefix ends, how far doubling reached, and the longest projection left."""

    steps: tuple[Step, ...]
    ends: Index
    doubling_until: int | None
    longest: float | None


def greedy(
    search: Search,
    groups: FeatureGroups,
    *,
    doubling: bool = False,
    epsilon: float | None = None,
    first: Many[int] = (),
) -> Found:
    """Take the best step for its cost until all groups are taken, or none left is worth it.

    Parameters
    ----------
    doubling : take no step that costs more than all before it together (Algorithm 2).
    epsilon : stop before the step at which no group left has a projection of the residual longer than this (Group-OMP,
        Figure 1). Costs have no part in it; while one group is longer, whichever is densest goes first.
    first : groups taken before all others, in this order, each after what it requires; no rule holds for their steps.
    """
    steps: list[Step] = []
    ends = [0]
    spent = 0.0
    doubling_until: int | None = 0 if doubling and first else None
    longest: float | None = None
    forced = deque(first)
    while len(search.candidates.remaining()):
        candidates = search.candidates
        costs = candidates.step_costs()
        left = ~candidates.left.taken
        if forced:
            group = forced.popleft()
            if not left[group]:
                continue
            adds = candidates.adds(group)
        else:
            allowed = left
            if doubling:
                allowed, capable = within_doubling(costs, candidates.remaining(), spent)
                if not capable and doubling_until is None:
                    doubling_until = len(steps)
            scores = candidates.scores(allowed if epsilon is None else left)
            if epsilon is not None and candidates.longest(scores) <= epsilon:
                longest = candidates.longest(scores)
                break
            adds = candidates.choose(allowed, costs, scores)
        explained = search.take(adds)
        cost = float(groups.costs[list(adds)].sum())
        spent += cost
        steps.append(Step(adds, cost, explained))
        ends.append(ends[-1] + sum(len(groups.groups[g].features) for g in adds))
    if doubling and doubling_until is None:
        doubling_until = len(steps)
    return Found(tuple(steps), np.array(ends, dtype=np.intp), doubling_until, longest)
