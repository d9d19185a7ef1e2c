"""Groups that require others: what a step adds and costs, its score, and bundles of groups that share requirements.

A group's step adds its unpaid prerequisites, and products that it completes. Its score is that of the union. Where
several groups share a prerequisite that is not paid, none of them may be worth its price alone. The density of a group
is therefore that of the best bundle: the group, what it requires, and other groups that need nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anytime.groups import FeatureGroups
from anytime.selection.criteria.criterion import TIE, Criterion, best
from anytime.selection.sweep import SelectionState
from anytime.types import Bool, Float, Index

NOISE = 1e-14
"""Scores below this, where the variance of a response is 1, are rounding."""


def cost_of(groups: FeatureGroups, adds: tuple[int, ...]) -> float:
    return float(groups.costs[list(adds)].sum())


@dataclass(frozen=True)
class Candidates:
    """The remaining groups at one step of a sequence; `groups` are all groups."""

    groups: FeatureGroups
    state: SelectionState
    criterion: Criterion
    cost_blind: bool
    noise: float = NOISE
    """Scores below this are rounding: `NOISE` times the size of the empty model's scores."""

    def adds(self, *chosen: int) -> tuple[int, ...]:
        return self.groups.step(chosen, self.state.selected)

    def unpaid(self, group: int) -> set[int]:
        return {p for p in self.groups.prerequisites[group] if not self.state.selected[p]}

    def remaining(self) -> Index:
        return np.flatnonzero(~self.state.selected)

    def step_costs(self) -> Float:
        """Return the total cost of each group's step, (groups,)."""
        costs = self.groups.costs.copy()
        for group in self._locked():
            costs[group] = cost_of(self.groups, self.adds(group))
        return costs

    def scores(self, among: Bool) -> Float:
        """Return the score of each group's step, (groups,), for the group's columns and those that it must add.

        Only the scores of remaining groups `among` (groups,) are defined.
        """
        scores = self.criterion.scores(self.state)
        for group in self._locked():
            if among[group]:
                scores[group] = self._union(self.adds(group))
        scores[np.abs(scores) < self.noise] = 0.0
        return scores

    def longest(self, scores: Float) -> float:
        return float(self.criterion.lengths(scores[self.remaining()]).max(initial=0.0))

    def choose(self, allowed: Bool, costs: Float, scores: Float) -> tuple[int, ...]:
        """Return the best step: groups in order of computation, the selected one last.

        At least one group is `allowed` (groups,); `costs` are the `step_costs`, and `scores` cover the allowed groups.
        """
        among = np.flatnonzero(allowed)
        free = among[costs[among] == 0]
        if self.cost_blind:
            return self.adds(best(scores, costs, among))
        if len(free):
            return self.adds(best(scores, costs, free))
        with np.errstate(invalid="ignore", divide="ignore"):  # selected groups may be free
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
        """Return the remaining groups whose step adds others: unpaid prerequisites, or products that it completes."""
        return [g for g in self.groups.linked if not self.state.selected[g] and len(self.adds(g)) > 1]

    def _union(self, groups: tuple[int, ...]) -> float:
        rows = [np.arange(r.start, r.stop) for g in groups if self.state.sizes[g] for r in (self.state.rows(g),)]
        return self.criterion.union_score(self.state, np.concatenate(rows)) if rows else 0.0

    def _bundle(self, group: int, density: float) -> tuple[list[int], float]:
        """Return `group` and the groups that maximise the density with it and its prerequisites, and that density."""
        bundle, opened, union = [group], self.unpaid(group), self.adds(group)
        score, cost = self._union(union), cost_of(self.groups, union)
        while True:
            gains = {g: self._union(self.adds(*bundle, g)) - score for g in self._opened(opened, union)}
            if not gains:
                return bundle, density
            richest = max(gains, key=lambda g: (_per_cost(gains[g], self.groups.costs[g]), -g))
            grown = (score + gains[richest]) / (cost + self.groups.costs[richest])
            # A free group never lowers the density, so it must not end the growth even if it adds nothing.
            if self.groups.costs[richest] > 0 and grown <= density * (1 + TIE):
                return bundle, density
            bundle.append(richest)
            union = self.adds(*bundle)
            score, cost, density = score + gains[richest], cost + self.groups.costs[richest], grown

    def _opened(self, opened: set[int], union: tuple[int, ...]) -> list[int]:
        """Return the dependents of `opened`, outside the union, that need nothing beyond the union."""
        needs = {g: self.unpaid(g) for g in self.groups.linked if not self.state.selected[g] and g not in union}
        return [g for g, need in needs.items() if need & opened and need <= set(union)]

    def _first(self, chosen: int, bundle: list[int], costs: Float) -> int:
        """Return the group of a bundle with the largest gain per cost once the prerequisites of `chosen` are paid."""
        paid = [p for p in self.adds(chosen) if p in self.unpaid(chosen)]
        score = self._union(self.adds(*paid))
        per_cost = np.full(len(self.groups), -np.inf)
        for g in bundle:
            union = self.adds(*paid, g) if self.unpaid(g) <= set(paid) else (*paid, g)
            per_cost[g] = _per_cost(self._union(union) - score, self.groups.costs[g])
        return best(per_cost, costs, np.array(sorted(bundle)))


def _per_cost(gain: float, cost: Any) -> float:
    """Return the gain per cost; free groups come first, whatever they add, so that rounding does not decide."""
    return float(gain / cost) if cost > 0 else np.inf
