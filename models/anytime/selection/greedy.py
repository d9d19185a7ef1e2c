"""The greedy search: the paper's Algorithm 1 with any criterion, and Algorithm 2 (doubling) as a restriction.

With doubling, no step costs more than all steps before it together, which gives Theorem 4.3's bound at all budgets.
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
    "GreedyResult",
    "Search",
    "greedy",
    "within_doubling",
]

SLACK = 1 + 1e-9
"""Tolerance for comparing costs: costs are sums, and equal ones may differ by rounding."""


def within_doubling(costs: Float, remaining: Index, spent: float) -> tuple[Bool, bool]:
    """Return which steps are allowed, and whether the set is doubling-capable here (Definition 4.2).

    While nothing is spent the limit is c_min, the smallest positive cost of a step. If no step is within the limit,
    only the cheapest step is allowed (the first of them in the groups file), and the guarantee ends.

    Parameters
    ----------
    costs : (groups,) cost of each group's step.
    remaining : groups not yet selected, at least one.
    spent : cost of the sequence so far.
    """
    paid = costs[remaining]
    limit = spent if spent > 0 else paid[paid > 0].min(initial=np.inf)
    within = remaining[paid <= limit * SLACK]
    allowed = np.zeros(len(costs), dtype=np.bool_)
    allowed[within if len(within) else remaining[[np.argmin(paid)]]] = True
    return allowed, len(within) > 0


class Search(Protocol):
    """A problem whose groups are selected step by step."""

    @property
    def candidates(self) -> Candidates:
        """Return the candidates for the next step."""

    def select(self, adds: tuple[int, ...]) -> float:
        """Select the groups of a step; return the explained variance F of all selected groups."""


@dataclass(frozen=True)
class GreedyResult:
    """Result of a search: steps, prefix ends, number of doubling-capable steps, and longest remaining projection."""

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
) -> GreedyResult:
    """Select the best step for its cost until all groups are selected, or a rule stops the search.

    Parameters
    ----------
    doubling : select no step that costs more than all before it together (Algorithm 2).
    epsilon : stop before the step at which no remaining group has a projection of the residual longer than this
        (Group-OMP, Figure 1). Costs do not affect this rule; while one group's projection is longer, the densest group
        goes first.
    first : groups selected before all others, in this order, each after its requirements; no rule applies to their
        steps.
    """
    steps: list[Step] = []
    ends = [0]
    spent = 0.0
    doubling_until: int | None = 0 if doubling and first else None
    longest: float | None = None
    forced_groups = deque(first)
    while len(search.candidates.remaining()):
        candidates = search.candidates
        costs = candidates.step_costs()
        remaining = ~candidates.state.selected
        if forced_groups:
            group = forced_groups.popleft()
            if not remaining[group]:
                continue
            adds = candidates.adds(group)
        else:
            allowed = remaining
            if doubling:
                allowed, capable = within_doubling(costs, candidates.remaining(), spent)
                if not capable and doubling_until is None:
                    doubling_until = len(steps)
            scores = candidates.scores(allowed if epsilon is None else remaining)
            if epsilon is not None and candidates.longest(scores) <= epsilon:
                longest = candidates.longest(scores)
                break
            adds = candidates.choose(allowed, costs, scores)
        explained = search.select(adds)
        cost = float(groups.costs[list(adds)].sum())
        spent += cost
        steps.append(Step(adds, cost, explained))
        ends.append(ends[-1] + sum(len(groups.groups[g].features) for g in adds))
    if doubling and doubling_until is None:
        doubling_until = len(steps)
    return GreedyResult(tuple(steps), np.array(ends, dtype=np.intp), doubling_until, longest)
