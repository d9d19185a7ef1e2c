"""The greedy search: the paper's Algorithm 1 with any criterion, and Algorithm 2 (doubling) as a restriction."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from anytime.arrays import Index
from anytime.groups import FeatureGroups
from anytime.sequencing.candidates import Candidates
from anytime.sequencing.doubling import within_doubling
from anytime.sequencing.steps import Step

__all__ = ["Found", "Search", "greedy"]


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
