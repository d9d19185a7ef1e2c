"""The greedy search: the paper's Algorithm 1 with any criterion (FR, OMP), and Algorithm 2 (doubling) as a restriction.

With doubling, no step costs more than all steps before it together, which gives Theorem 4.3's bound at all budgets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from anytime.groups import COST_TOLERANCE, FeatureGroups
from anytime.selection.requirements import Candidates, cost_of
from anytime.selection.rule import Rule
from anytime.types import Bool, Float, Index


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
    """

    steps: tuple[Step, ...]
    doubling_until: int | None
    columns: Index
    ends: Index
    longest: float | None = field(default=None, kw_only=True)

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
        capable = None if self.doubling_until is None else min(self.doubling_until, steps)
        columns, ends = self.columns[: self.ends[steps]], self.ends[: steps + 1]
        return replace(self, steps=self.steps[:steps], doubling_until=capable, columns=columns, ends=ends)


class SolverState(Protocol):
    """What a solver knows about the prefixes of a sequence."""

    def upto(self, steps: int, columns: int) -> Self:
        """Return the state of the first steps, which have so many columns."""


S = TypeVar("S", bound=SolverState)


@dataclass(frozen=True, eq=False)
class SolvedOrder(GroupOrder, Generic[S]):
    """Steps of one sequence, and the state of its solver."""

    state: S

    @staticmethod
    def of_order(order: GroupOrder, state: S) -> SolvedOrder[S]:
        return SolvedOrder(**{known.name: getattr(order, known.name) for known in fields(GroupOrder)}, state=state)

    def upto(self, steps: int) -> Self:
        return replace(super().upto(steps), state=self.state.upto(steps, int(self.ends[steps])))


def within_doubling(costs: Float, remaining: Index, spent: float, c_min: float | None = None) -> tuple[Bool, bool]:
    """Return which steps are allowed, and whether the set is doubling-capable here (Definition 4.2).

    While nothing is spent the limit is `c_min`, by default the smallest positive cost of a step. If no step is within
    the limit, only the cheapest step is allowed (the first of them in the groups file), and the guarantee ends. `costs`
    (groups,) are those of the groups' steps; at least one group is `remaining`.
    """
    paid = costs[remaining]
    limit = spent if spent > 0 else c_min or paid[paid > 0].min(initial=np.inf)
    within = remaining[paid <= limit * (1 + COST_TOLERANCE)]
    allowed = np.zeros(len(costs), dtype=np.bool_)
    allowed[within if len(within) else remaining[[np.argmin(paid)]]] = True
    return allowed, len(within) > 0


class Search(Protocol):
    """A problem whose groups are selected step by step."""

    @property
    def candidates(self) -> Candidates: ...

    def select(self, adds: tuple[int, ...]) -> float:
        """Select the groups of a step; return the explained variance F of all selected groups."""


def greedy(search: Search, groups: FeatureGroups, rule: Rule) -> GroupOrder:
    """Select the best step for its cost until all groups are selected, or a rule stops the search.

    The search stops before the step at which no remaining group has a projection of the residual longer than
    `rule.epsilon`. Costs do not affect this; while one group's projection is longer, the densest group goes first.
    No rule applies to the steps of `rule.first`.
    """
    steps: list[Step] = []
    spent = 0.0
    doubling_until: int | None = 0 if rule.doubling and rule.first else None
    longest: float | None = None
    forced_groups = deque(rule.forced(groups))
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
            if rule.doubling:
                allowed, capable = within_doubling(costs, candidates.remaining(), spent, rule.c_min)
                if not capable and doubling_until is None:
                    doubling_until = len(steps)
            scores = candidates.scores(allowed if rule.epsilon is None else remaining)
            if rule.epsilon is not None and (length := candidates.longest(scores)) <= rule.epsilon:
                longest = length
                break
            adds = candidates.choose(allowed, costs, scores)
        explained = search.select(adds)
        cost = cost_of(groups, adds)
        spent += cost
        steps.append(Step(adds, cost, explained))
    if rule.doubling and doubling_until is None:
        doubling_until = len(steps)
    return GroupOrder.of(steps, groups, doubling_until=doubling_until, longest=longest)
