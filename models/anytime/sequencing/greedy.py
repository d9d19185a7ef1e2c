"""The greedy search: the paper's Algorithm 1 with any criterion, and Algorithm 2 (doubling) as a restriction."""

from __future__ import annotations

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
    """What a search found: steps, the columns at which each prefix ends, and how far doubling reached."""

    steps: tuple[Step, ...]
    ends: Index
    doubling_until: int | None


def greedy(search: Search, groups: FeatureGroups, *, doubling: bool = False) -> Found:
    """Take the best step for its cost until all groups are taken.

    Parameters
    ----------
    doubling : take no step that costs more than all before it together (Algorithm 2).
    """
    steps: list[Step] = []
    ends = [0]
    spent = 0.0
    doubling_until: int | None = None
    while len(search.candidates.remaining()):
        candidates = search.candidates
        costs = candidates.step_costs()
        allowed = ~candidates.left.taken
        if doubling:
            allowed, capable = within_doubling(costs, candidates.remaining(), spent)
            if not capable and doubling_until is None:
                doubling_until = len(steps)
        adds = candidates.choose(allowed, costs)
        explained = search.take(adds)
        cost = float(groups.costs[list(adds)].sum())
        spent += cost
        steps.append(Step(adds, cost, explained))
        ends.append(ends[-1] + sum(len(groups.groups[g].features) for g in adds))
    if doubling and doubling_until is None:
        doubling_until = len(steps)
    return Found(tuple(steps), np.array(ends, dtype=np.intp), doubling_until)
