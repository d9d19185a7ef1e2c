"""What can be chosen next: each group left, with what it requires, and how much it promises for its cost.

A group whose prerequisites are paid is scored by its own columns and cost. Otherwise its step adds the prerequisites
too, and it is scored by the best density it opens: alone with them, or with them and the densest bundle of their other
dependents. Otherwise one dear visit with ten cheap tests would never be bought. If a bundle wins, its first group is
taken, the one with the largest gain per cost once the prerequisites are paid, with what that group itself requires; the
others, now cheap, follow of themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from anytime.groups import FeatureGroups
from anytime.selection.criteria import Criterion
from anytime.selection.state import SelectionState
from anytime.types import Bool, Float, Index

__all__ = [
    "NOISE",
    "TIE",
    "Candidates",
    "best",
]

TIE = 1e-9
"""Scores that differ by less than this share are equal."""

NOISE = 1e-14
"""Scores under this, where the variance of a response is 1, are rounding."""


def best(scores: Float, costs: Float, among: Index) -> int:
    """The group with the best score; ties by cost, then by the order of the groups file. `among` is not empty."""
    top = scores[among].max()
    tied = among[scores[among] >= top - TIE * abs(top)]
    return int(tied[np.argmin(costs[tied])])


@dataclass(frozen=True)
class Candidates:
    """The groups left at one step of a sequence.

    Attributes
    ----------
    groups : all groups.
    left : the groups left, with what is known of them given what is taken.
    criterion : how groups are scored.
    cost_blind : forget the costs in selection.
    """

    groups: FeatureGroups
    left: SelectionState
    criterion: Criterion
    cost_blind: bool

    def adds(self, group: int) -> tuple[int, ...]:
        """The group after those of its prerequisites that nobody has paid."""
        return (*(p for p in self.groups.prerequisites[group] if not self.left.taken[p]), group)

    def remaining(self) -> Index:
        """Groups not taken yet."""
        return np.flatnonzero(~self.left.taken)

    def step_costs(self) -> Float:
        """Joint cost of each group's step, (groups,)."""
        costs = self.groups.costs.copy()
        for group in self._locked():
            costs[group] = self._cost(self.adds(group))
        return costs

    def scores(self, among: Bool) -> Float:
        """What each group's step promises, (groups,): by the group's columns and those that it must add with them.

        Parameters
        ----------
        among : (groups,) which of the groups left are scored so; of the others nothing is known.
        """
        scores = self.criterion.scores(self.left)
        for group in self._locked():
            if among[group]:
                scores[group] = self._union(self.adds(group))
        scores[scores < NOISE] = 0.0
        return scores

    def longest(self, scores: Float) -> float:
        """Length of the longest projection of the residual on the step of a group left, whatever steps cost."""
        return float(self.criterion.lengths(scores[self.remaining()]).max(initial=0.0))

    def choose(self, allowed: Bool, costs: Float, scores: Float) -> tuple[int, ...]:
        """The step to take: groups in order of computation, the chosen one last.

        Parameters
        ----------
        allowed : (groups,) which groups' steps may be taken; at least one.
        costs : (groups,) the `step_costs`.
        scores : (groups,) the `scores`, of those allowed at least.
        """
        among = np.flatnonzero(allowed)
        free = among[costs[among] == 0]
        if self.cost_blind:
            return self.adds(best(scores, costs, among))
        if len(free):
            return self.adds(best(scores, costs, free))
        with np.errstate(invalid="ignore", divide="ignore"):  # groups taken may cost nothing
            densities = scores / costs
        bundles: dict[int, list[int]] = {}
        for group in self._locked():
            if allowed[group]:
                bundles[group], densities[group] = self._bundle(group, densities[group])
        chosen = best(densities, costs, among)
        if len(bundles.get(chosen, ())) > 1:
            chosen = self._first(chosen, [g for g in bundles[chosen] if allowed[g]], costs)
        return self.adds(chosen)

    def _locked(self) -> list[int]:
        """Groups left that have a prerequisite nobody has paid."""
        if not self._any_requires:
            return []
        return [int(g) for g in self.remaining() if len(self.adds(int(g))) > 1]

    @cached_property
    def _any_requires(self) -> bool:
        """Whether any group requires another; asked at every step, so found once."""
        return any(self.groups.prerequisites)

    def _cost(self, groups: tuple[int, ...]) -> float:
        return float(self.groups.costs[list(groups)].sum())

    def _union(self, groups: tuple[int, ...]) -> float:
        """Score of several groups at once."""
        rows = [np.arange(r.start, r.stop) for g in groups if self.left.sizes[g] for r in (self.left.rows(g),)]
        return self.criterion.union_score(self.left, np.concatenate(rows)) if rows else 0.0

    def _bundle(self, group: int, density: float) -> tuple[list[int], float]:
        """The groups that make `group` with its prerequisites densest, itself first, and that density."""
        union = self.adds(group)
        score, cost = self._union(union), self._cost(union)
        opened = set(union[:-1])
        bundle = [group]
        while True:
            gains = {g: self._union((*union, g)) - score for g in self._opened(opened, union)}
            if not gains:
                return bundle, density
            richest = max(gains, key=lambda g: (_per_cost(gains[g], self.groups.costs[g]), -g))
            grown = (score + gains[richest]) / (cost + self.groups.costs[richest])
            # What costs nothing cannot lower the density, and must not end the growth by adding nothing.
            if self.groups.costs[richest] > 0 and grown <= density * (1 + TIE):
                return bundle, density
            bundle.append(richest)
            union = (*union, richest)
            score, cost, density = score + gains[richest], cost + self.groups.costs[richest], grown

    def _opened(self, opened: set[int], union: tuple[int, ...]) -> list[int]:
        """Dependents of `opened`, outside the union, that need nothing more than the union."""
        needs = {int(g): set(self.groups.prerequisites[int(g)]) for g in self.remaining() if int(g) not in union}
        return [g for g, need in needs.items() if need & opened and set(self.adds(g)[:-1]) <= set(union)]

    def _first(self, chosen: int, bundle: list[int], costs: Float) -> int:
        """The group of a bundle with the largest gain per cost once the prerequisites of `chosen` are paid."""
        paid = self.adds(chosen)[:-1]
        score = self._union(paid)
        per_cost = np.full(len(self.groups), -np.inf)
        for g in bundle:
            per_cost[g] = _per_cost(self._union((*paid, g)) - score, self.groups.costs[g])
        return best(np.minimum(per_cost, np.finfo(float).max), costs, np.array(sorted(bundle)))


def _per_cost(gain: float, cost: Any) -> float:
    """Gain per cost; what is free comes first, whatever it adds, so that rounding has no say."""
    return float(gain / cost) if cost > 0 else np.inf
