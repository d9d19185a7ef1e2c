"""Which steps of a sequence are right, where only rounding tells some scores apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from anytime.groups import FeatureGroups
from anytime.selection import GroupOrder
from models import literal
from models.literal import Method, Problem, columns_of, cost_of, literal_step, unpaid

__all__ = ["NEAR", "NOISE", "Judge", "check_every_step"]

NEAR = 1e-6
"""Scores that differ by less, relatively, may differ by rounding alone."""

NOISE = 1e-11
"""Scores under this are rounding."""


def contenders(scores: Mapping[int, float], order: Mapping[int, tuple[float, int]]) -> list[int]:
    """Who may be taken for the best: all that rounding cannot tell from it, less those that lose a clear tie."""
    best = max(scores.values())
    near = [i for i, s in scores.items() if s == best or s >= best - NEAR * abs(best) - NOISE]

    def loses(i: int) -> bool:
        same = [j for j in near if scores[j] == scores[i] or abs(scores[j] - scores[i]) <= 1e-12 * abs(best)]
        return best > 1e-4 and any(order[j] < order[i] for j in same)

    return [i for i in near if not loses(i)]


@dataclass(frozen=True, repr=False)
class Judge:
    """Which steps are right after a prefix, near ties included."""

    problem: Problem
    groups: FeatureGroups
    method: Method
    cost_blind: bool
    doubling: bool

    def right_steps(self, selected: Sequence[int]) -> set[tuple[int, ...]]:
        groups, there = self.groups, columns_of(self.groups, selected)

        @cache
        def value(members: frozenset[int]) -> float:
            return literal.criterion(self.problem, self.method, there, columns_of(groups, sorted(members)))

        running = literal.in_the_running(groups, selected, cost_blind=self.cost_blind, doubling=self.doubling)
        alone = {g: (*unpaid(groups, g, selected), g) for g in running.groups}
        order = {g: (cost_of(groups, alone[g]), g) for g in running.groups}
        if running.undivided:
            return {alone[g] for g in contenders({g: value(frozenset(alone[g])) for g in alone}, order)}

        outcomes: dict[int, dict[frozenset[int], float]] = {}
        for g in running.groups:
            outcomes[g] = {}
            density = value(frozenset(alone[g])) / cost_of(groups, alone[g])
            self._grow(value, selected, alone[g][:-1], frozenset({g}), density, outcomes[g])
        best = max(min(found.values()) for found in outcomes.values())
        right: set[tuple[int, ...]] = set()
        for g in contenders({g: min(max(o.values()), best) for g, o in outcomes.items()}, order):
            for bundle, density in outcomes[g].items():
                if density >= best - NEAR * abs(best) - NOISE:
                    right |= self._firsts(value, selected, alone[g], bundle, running.limit)
        return right

    def _grow(
        self,
        value: Callable[[frozenset[int]], float],
        selected: Sequence[int],
        before: tuple[int, ...],
        bundle: frozenset[int],
        density: float,
        found: dict[frozenset[int], float],
    ) -> None:
        """Every bundle at which the growth may have ended."""
        others = literal.joiners(self.groups, selected, before, sorted(bundle))
        paid = bundle.union(before)
        if not others:
            found[bundle] = density
            return
        costs = {h: cost_of(self.groups, [h]) for h in others}
        gains = {h: literal.gain_per_cost(value(paid | {h}) - value(paid), costs[h]) for h in others}
        for h in contenders(gains, {h: (0.0, h) for h in others}):
            wider = value(paid | {h}) / cost_of(self.groups, paid | {h})
            slack = NEAR * abs(density) + NOISE
            if wider <= density + slack:
                found[bundle] = density
            if wider >= density - slack and bundle | {h} not in found:
                self._grow(value, selected, before, bundle | {h}, wider, found)

    def _firsts(
        self,
        value: Callable[[frozenset[int]], float],
        selected: Sequence[int],
        alone: tuple[int, ...],
        bundle: frozenset[int],
        limit: float,
    ) -> set[tuple[int, ...]]:
        """The steps that a winning bundle may lead to."""
        if len(bundle) == 1:
            return {alone}
        before = frozenset(alone[:-1])
        steps = {h: (*unpaid(self.groups, h, selected), h) for h in bundle}
        affordable = [h for h in bundle if cost_of(self.groups, steps[h]) <= limit]
        costs = {h: cost_of(self.groups, [h]) for h in affordable}
        gains = {h: literal.gain_per_cost(value(before | {h}) - value(before), costs[h]) for h in affordable}
        order = {h: (cost_of(self.groups, steps[h]), h) for h in affordable}
        return {steps[h] for h in contenders(gains, order)}


def check_every_step(
    problem: Problem,
    groups: FeatureGroups,
    learned: GroupOrder,
    *,
    method: Method,
    cost_blind: bool,
    doubling: bool,
    atol: float,
) -> None:
    """The whole comparison of one sequence; its F may be wrong by `atol`."""
    judge = Judge(problem, groups, method, cost_blind, doubling)
    selected: list[int] = []
    exceptions: list[int] = []
    for k, step in enumerate(learned.steps):
        choice = literal_step(problem, groups, selected, method=method, cost_blind=cost_blind, doubling=doubling)
        if step.adds != choice.adds:  # as a rule they are equal, and the costlier judgement is not needed
            right = judge.right_steps(selected)
            assert step.adds in right, f"after {selected} came {step.adds}, right is {right}: {choice.candidates}"
        if choice.unaffordable:
            exceptions.append(k)
        selected.extend(step.adds)
        assert step.cost == pytest.approx(cost_of(groups, step.adds), rel=1e-12, abs=0)
        F = problem.explained_variance(columns_of(groups, selected))
        assert step.explained_variance == pytest.approx(F, rel=0, abs=atol), (k, selected)
    assert sorted(selected) == list(range(len(groups)))
    capable = exceptions[0] if exceptions else len(learned.steps)
    assert learned.doubling_until == (capable if doubling else None)
