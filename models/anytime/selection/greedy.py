"""The greedy search: the paper's Algorithm 1 with any criterion (FR, OMP), and Algorithm 2 (doubling) as a restriction.

With doubling, no step costs more than all steps before it together, which gives Theorem 4.3's bound at all budgets.

A group's step adds its unpaid prerequisites, and products that it completes. Its score is that of the union. Where
several groups share a prerequisite that is not paid, none of them may be worth its price alone. The density of a group
is therefore that of the best bundle: the group, what it requires, and other groups that need nothing else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from anytime.errors import GroupsError, TrainingError, refuse
from anytime.groups import COST_TOLERANCE, FeatureGroups
from anytime.selection.criteria import (
    TIE,
    Criterion,
    ForwardRegression,
    PathMethod,
    SelectionMethod,
    SelectionState,
    best,
    method_of,
    methods,
)
from anytime.types import Float, Index, Method

NOISE = 1e-14
"""Scores below this, where the variance of a response is 1, are rounding."""


@dataclass(frozen=True)
class Rule:
    """How the groups are ordered.

    Attributes
    ----------
    method : Method | SelectionMethod
        A name of `methods`, or an object that states what it needs, as `anytime.selection.Criterion`.
    cost_blind : bool
        Ignore the costs in selection.
    doubling : bool
        Select no step that costs more than all before it (Algorithm 2).
    epsilon : float | None
        Stop when the residual's projection on every remaining group is at most this long, in standard units
        (`Criterion.lengths`; Group-OMP, Figure 1).
    first : tuple[str, ...]
        Groups placed before all others, in this order, each after its requirements.
    without : tuple[str, ...]
        Groups that are left out.
    """

    method: Method | SelectionMethod = "fr"
    _: KW_ONLY
    cost_blind: bool = False
    doubling: bool = False
    epsilon: float | None = None
    first: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option, stated in (("doubling", self.doubling), ("epsilon", self.epsilon is not None)):
            if not getattr(self.by, option) and stated:  # a method that does not exist is an error, whatever is stated
                others = ", ".join(name for name, kind in methods().items() if getattr(kind, option))
                raise TrainingError(
                    f"method {self.by.name!r} does not support {option}; turn {option} off, or choose one of {others}"
                )
        valid = self.epsilon is None or (math.isfinite(self.epsilon) and self.epsilon > 0)
        refuse({f"epsilon is {self.epsilon}; expected a finite number above 0": not valid})
        if both := [name for name in self.first if name in self.without]:
            raise GroupsError(f"group {both[0]!r} is both placed first and left out; choose one")

    @cached_property
    def by(self) -> Criterion | PathMethod:
        """Return the method itself."""
        return method_of(self.method)

    @property
    def criterion(self) -> Criterion:
        """Return the method, which scores groups; raise TrainingError for a path, which does not."""
        if not isinstance(self.by, Criterion):
            raise TrainingError(
                f"method {self.by.name!r} states the whole order; expected one that scores the next group"
            )
        return self.by

    @property
    def scores_gains(self) -> bool:
        """Return whether scores are gains of F, so that searches by other computations of these are equal."""
        return type(self.by) is ForwardRegression

    def remaining(self, groups: FeatureGroups) -> FeatureGroups:
        """Return the groups that are not left out; raise GroupsError if the rule does not fit them."""
        for name in (*self.without, *self.first):
            groups.position(name)
        if set(groups.names) <= set(self.without):
            raise GroupsError("all groups are left out; keep at least one")
        return without(groups, self.without, ", which is left out; leave out both")


def without(groups: FeatureGroups, names: Iterable[str], why: str) -> FeatureGroups:
    """Return the groups without some that no other may require; `why` explains the error."""
    absent = set(names)
    remaining = [g for g, name in enumerate(groups.names) if name not in absent]
    for g in remaining:
        if missing := [name for name in groups.groups[g].requires if name in absent]:
            raise GroupsError(f"group {groups.names[g]!r} requires {missing[0]!r}{why}")
    return groups.only(remaining) if absent else groups


@dataclass(frozen=True)
class Step:
    """A selected group after its requirements that earlier steps do not include; F is that of all steps so far."""

    adds: tuple[int, ...]
    cost: float
    explained_variance: float


@dataclass(frozen=True, eq=False)
class GroupOrder:
    """Steps of one sequence.

    Attributes
    ----------
    steps : tuple[Step, ...]
        The steps; together they add every group once, unless the search stopped early.
    doubling_until : int | None
        Number of steps up to which the set was doubling-capable (Definition 4.2); None without doubling.
    columns : Index
        Columns in selection order: (D,), or those of the steps only if the search stopped.
    ends : Index
        (steps + 1,) number of columns of each prefix.
    longest : float | None
        Length of the longest remaining projection if the search stopped; None if all groups are selected.
    state : Any
        What the solver has of these steps, and perhaps of further ones; None if the order has no solver.
    """

    steps: tuple[Step, ...]
    doubling_until: int | None
    columns: Index
    ends: Index
    longest: float | None = field(default=None, kw_only=True)
    state: Any = field(default=None, kw_only=True)

    @staticmethod
    def of(
        steps: Sequence[Step], groups: FeatureGroups, *, doubling_until: int | None = None, longest: float | None = None
    ) -> GroupOrder:
        slices = [groups.slices[group] for step in steps for group in step.adds]
        columns = np.concatenate([np.empty(0, dtype=np.intp), *(np.arange(s.start, s.stop) for s in slices)])
        sizes = [sum(len(groups.groups[group].features) for group in step.adds) for step in steps]
        return GroupOrder(tuple(steps), doubling_until, columns, np.cumsum([0, *sizes]), longest=longest)

    @cached_property
    def costs(self) -> Float:
        """Return the cumulative cost of each prefix, (steps + 1,); element 0 is 0."""
        return np.cumsum([0.0, *(step.cost for step in self.steps)])

    @cached_property
    def explained_variance(self) -> Float:
        """Return F of each prefix on the training data, (steps + 1,); element 0 is 0."""
        return np.array([0.0, *(step.explained_variance for step in self.steps)])

    def upto(self, steps: int) -> Self:
        return replace(
            self,
            steps=self.steps[:steps],
            doubling_until=None if self.doubling_until is None else min(self.doubling_until, steps),
            columns=self.columns[: self.ends[steps]],
            ends=self.ends[: steps + 1],
        )


def cost_of(groups: FeatureGroups, adds: tuple[int, ...]) -> float:
    return float(groups.costs[list(adds)].sum())


@dataclass
class Search(ABC):
    """A problem whose groups are selected step by step, and its remaining groups; `groups` are all groups."""

    groups: FeatureGroups
    state: SelectionState
    criterion: Criterion
    noise: float = NOISE
    """Scores below this are rounding: `NOISE` times the size of the empty model's scores."""

    @abstractmethod
    def select(self, adds: tuple[int, ...]) -> float:
        """Select the groups of a step; return the explained variance F of all selected groups."""

    def adds(self, *chosen: int) -> tuple[int, ...]:
        return self.groups.step(chosen, self.state.selected)

    def unpaid(self, group: int) -> set[int]:
        return {p for p in self.groups.prerequisites[group] if not self.state.selected[p]}

    def choose(
        self, among: Index, costs: Float, scores: Float, locked: Iterable[int], *, cost_blind: bool
    ) -> tuple[int, ...]:
        """Return the best step `among` some groups: groups in order of computation, the selected one last.

        `costs` and `scores` (groups,) are those of each group's step; `locked` groups are not alone in theirs.
        """
        free = among[costs[among] == 0]
        if cost_blind or len(free):
            return self.adds(best(scores, costs, among if cost_blind else free))
        with np.errstate(invalid="ignore", divide="ignore"):  # selected groups may be free
            densities = scores / costs
        bundles: dict[int, list[int]] = {}
        for group in {*locked}.intersection(among.tolist()):
            bundles[group], densities[group] = self._bundle(group, densities[group])
        chosen = best(densities, costs, among)
        if len(bundles.get(chosen, ())) > 1:
            chosen = self._first(chosen, among[np.isin(among, bundles[chosen])], costs)
        return self.adds(chosen)

    def union(self, groups: tuple[int, ...]) -> float:
        """Return the score of the union of some groups."""
        rows = [self.state.rows(g) for g in groups if self.state.sizes[g]]
        return self.criterion.union_score(self.state, np.concatenate(rows)) if rows else 0.0

    def _bundle(self, group: int, density: float) -> tuple[list[int], float]:
        """Return `group` and the groups that maximise the density with it and its prerequisites, and that density."""
        bundle, opened, union = [group], self.unpaid(group), self.adds(group)
        score, cost = None, cost_of(self.groups, union)
        while True:
            needs = {g: self.unpaid(g) for g in self.groups.linked if not self.state.selected[g] and g not in union}
            # Dependents of `opened`, outside the union, that need nothing beyond the union.
            dependents = [g for g, need in needs.items() if need & opened and need <= set(union)]
            if not dependents:
                return bundle, density
            score = self.union(union) if score is None else score
            gains = {g: self.union(self.adds(*bundle, g)) - score for g in dependents}
            per_cost = {g: self._per_cost(gain, g) for g, gain in gains.items()}
            richest = max(per_cost, key=per_cost.__getitem__)  # the first of equal ones
            grown = (score + gains[richest]) / (cost + self.groups.costs[richest])
            # A free group never lowers the density, so it must not end the growth even if it adds nothing.
            if self.groups.costs[richest] > 0 and grown <= density * (1 + TIE):
                return bundle, density
            bundle.append(richest)
            union = self.adds(*bundle)
            score, cost, density = score + gains[richest], cost + self.groups.costs[richest], grown

    def _first(self, chosen: int, bundle: Index, costs: Float) -> int:
        """Return the group of a bundle with the largest gain per cost once the prerequisites of `chosen` are paid."""
        paid = [p for p in self.adds(chosen) if p in self.unpaid(chosen)]
        score = self.union(self.adds(*paid))
        per_cost = np.full(len(self.groups), -np.inf)
        for g in bundle.tolist():
            union = self.adds(*paid, g) if self.unpaid(g) <= set(paid) else (*paid, g)
            per_cost[g] = self._per_cost(self.union(union) - score, g)
        return best(per_cost, costs, bundle)

    def _per_cost(self, gain: float, group: int) -> float:
        """Return the gain per cost; free groups are first, whatever they add, so that rounding does not decide."""
        return gain / float(self.groups.costs[group]) if self.groups.costs[group] > 0 else np.inf


def within_doubling(costs: Float, remaining: Index, spent: float) -> tuple[Index, bool]:
    """Return the allowed groups, ascending, and whether the set is doubling-capable here (Definition 4.2).

    While nothing is spent the limit is the smallest positive cost of a step. If no step is within
    the limit, only the cheapest step is allowed (the first of them in the groups file), and the guarantee ends. `costs`
    (groups,) are those of the groups' steps; at least one group is `remaining`.
    """
    paid = costs[remaining]
    limit = spent if spent > 0 else paid[paid > 0].min(initial=np.inf)
    within = remaining[paid <= limit * (1 + COST_TOLERANCE)]
    return within if len(within) else remaining[[np.argmin(paid)]], len(within) > 0


def greedy(search: Search, rule: Rule) -> GroupOrder:
    """Select the best step for its cost until all groups are selected, or a rule stops the search.

    The search stops before the step at which no remaining group has a projection of the residual longer than
    `rule.epsilon`. Costs do not affect this; while one group's projection is longer, the densest group goes first.
    No rule applies to the steps of `rule.first`.
    """
    groups, steps = search.groups, list[Step]()
    spent = 0.0
    doubling_until: int | None = 0 if rule.doubling and rule.first else None
    longest: float | None = None
    forced_groups = deque(map(groups.position, rule.first))
    while (remaining := ~search.state.selected).any():
        if forced_groups:
            group = forced_groups.popleft()
            if not remaining[group]:
                continue
            adds = search.adds(group)
        else:
            # The groups whose step adds unpaid prerequisites or products, too, with all that it adds.
            locked = {g: step for g in groups.linked if remaining[g] and len(step := search.adds(g)) > 1}
            costs, scores = groups.costs.copy(), search.criterion.scores(search.state)
            for group, adds in locked.items():
                costs[group] = cost_of(groups, adds)
                scores[group] = search.union(adds)
            scores[np.abs(scores) < search.noise] = 0.0
            among = np.flatnonzero(remaining)
            if rule.doubling:
                among, capable = within_doubling(costs, among, spent)
                if not capable and doubling_until is None:
                    doubling_until = len(steps)
            if rule.epsilon is not None:
                length = float(search.criterion.lengths(scores[remaining]).max(initial=0.0))
                if length <= rule.epsilon:
                    longest = length
                    break
            adds = search.choose(among, costs, scores, locked, cost_blind=rule.cost_blind)
        cost = cost_of(groups, adds)
        spent += cost
        steps.append(Step(adds, cost, search.select(adds)))
    if rule.doubling and doubling_until is None:
        doubling_until = len(steps)
    return GroupOrder.of(steps, groups, doubling_until=doubling_until, longest=longest)
