"""Branch and bound for one budget: the best set within it, or an upper bound on how much better a set can be.

The node with the largest bound is opened first, so that whenever the search stops, the largest open bound holds for
every set. Bounds are valid without any good set; good sets close more nodes. A good set fills the budget in some order,
then drops a group and refills the budget as long as that improves it.

At a node some groups are selected, some are left out, and the others are open. A selected group's prerequisites are
selected too; a group that requires a left-out one is left out too. A group that no longer fits the budget is left out
at once, and one that costs nothing is selected. The bound is the minimum of the parent's, of F of all groups that are
not left out, and of the relaxation of the open groups given the selected ones. If moving a group to the other side of
the price would push the bound below the best known set, the group is settled without branching and the node is bounded
once more.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from anytime.evaluation.certificate.relaxation import Conditional, Relaxed, SelectionProblem, Split, first_split, relax
from anytime.groups import COST_TOLERANCE
from anytime.types import Bool, Float, Index

Stopped: TypeAlias = Literal["solved", "nodes", "seconds"]
"""Why a search ended: the best set is known, or a limit was reached."""

SAME_F_TOLERANCE = 1e-9
"""Relative difference below which two values of F are equal: a node with no larger bound is closed."""

F_ROUNDING = 1e-14
"""Values of F below this, if the variance of a response is 1, are rounding errors."""

ROUNDS = 4
"""How often a node is bounded, while its bound settles groups."""

UNDECIDED = 0.25
"""Weight of a share's distance from 0 and 1 when choosing the group to branch on; a group's value has weight 1."""

FROM_SCRATCH = ((5e-3, 8), (5e-4, 3), (1e-4, 2), (3e-5, 2), (1e-5, 2), (3e-6, 2))
"""Barrier values, and the maximum number of steps at each, without a starting point."""

FROM_NEIGHBOUR = ((1e-4, 3), (2e-5, 2), (4e-6, 2))
"""The same for the root, from the point of a larger budget."""

FROM_PARENT = ((1e-4, 2), (1e-5, 2))
"""The same for a node, from the point of its parent."""

DROPPED = 12
"""Number of groups, those with the least loss per cost, that are dropped in turn."""


def filled(problem: SelectionProblem, selected: Bool, order: Index, limit: float) -> Bool:
    """Return the set with those groups of `order`, each with its prerequisites, that still fit."""
    members, spent = selected.copy(), problem.cost(selected)
    for group in order:
        extra = float(problem.costs[problem.closure[group] & ~members].sum())
        if spent + extra <= limit:
            members |= problem.closure[group]
            spent += extra
    return members


def improved(problem: SelectionProblem, members: Bool, limit: float, late: Callable[[], bool]) -> tuple[Bool, float]:
    """Return a set at least as good, and its F: no attempted exchange of a group improves it."""
    explained = problem.explained(members)
    tried = _exchanged(problem, members, limit)
    while not late() and (other := next(tried, None)) is not None:
        better = problem.explained(other)
        if better > explained * (1 + 1e-9):
            members, explained = other, better
            tried = _exchanged(problem, members, limit)
    return members, explained


def _exchanged(problem: SelectionProblem, members: Bool, limit: float) -> Iterator[Bool]:
    """Yield sets in which others replace a group: the densest of them, or those with the largest gain."""
    present = np.flatnonzero(members & problem.with_columns & (problem.costs > 0))
    if len(present) == 0:
        return
    loss = problem.losses(members)[present] / problem.costs[present]
    for group in present[np.argsort(loss, kind="stable")[:DROPPED]]:
        dropped = problem.closure[:, group]
        rest = members & ~dropped
        extra = problem.extra_costs(rest)
        able = ~rest & ~dropped & problem.with_columns & (problem.cost(rest) + extra <= limit)
        candidates = np.flatnonzero(able)
        if len(candidates) == 0:
            continue
        gains = np.zeros(len(members))
        gains[able] = problem.given(rest, able).gains()
        for score in (gains / np.maximum(extra, 1e-300), gains):
            yield filled(problem, rest, candidates[np.argsort(-score[candidates], kind="stable")], limit)


@dataclass(frozen=True, eq=False)
class Node:
    """A node that may contain a set better than the best known one: masks (J,) of selected and undecided groups."""

    selected: Bool
    open: Bool
    bound: float
    """Upper bound on F of the sets of this node, except for the best known set."""
    split: Split | None
    """A point of its relaxation on all columns and groups, nan for those that are not open."""
    branch: int
    """The group to decide next; all its prerequisites are selected."""


@dataclass(frozen=True, eq=False)
class _Part:
    """The undecided part of a node: its open groups, given the selected ones, within the remaining budget.

    Open groups fit, and have columns or are prerequisites of some that do. `groups` (k,) are those with columns, and
    `shared` (k,) their shared costs.
    """

    selected: Bool
    open: Bool
    groups: Index
    shared: Float
    budget: float
    conditional: Conditional

    def explained_at(self, value: float) -> float:
        """Return F if the open groups add this share of what all of them add."""
        return self.conditional.explained + self.conditional.top * value


@dataclass(eq=False)
class Incumbent:
    """The F of the best set so far, and its mask (J,); None until a set is better than the F known before."""

    explained: float
    best: Bool | None = None

    @property
    def closing_bound(self) -> float:
        """Return the largest bound that allows no better set."""
        return self.explained * (1 + SAME_F_TOLERANCE) + F_ROUNDING

    def beaten(self, bound: float) -> bool:
        return bound > self.closing_bound

    def offer(self, members: Bool, explained: float) -> None:
        if self.beaten(explained):
            self.best, self.explained = members.copy(), explained


class Nodes:
    """The nodes of the search for one budget: bounds them and updates the incumbent until it is `late`.

    `wide` is a point of the relaxation of all sets, to start that of a smaller budget from; None until there is one.
    """

    def __init__(
        self, problem: SelectionProblem, budget: float, incumbent: Incumbent, late: Callable[[], bool]
    ) -> None:
        self._problem, self._incumbent, self._late = problem, incumbent, late
        self._limit = budget * (1 + COST_TOLERANCE)
        self.wide: Split | None = None

    def root(self, begin: Split | None) -> Node | None:
        """Return the node of all sets, started at the `wide` of a larger budget; None if no set in it is better."""
        self.wide = begin
        nothing = np.zeros(len(self._problem.costs), dtype=np.bool_)
        return self._bounded(nothing, ~nothing, np.inf, begin, root=True)

    def children(self, node: Node) -> Iterator[Node | None]:
        """Yield the two nodes with the branching group selected and left out; None for one without a better set."""
        group = self._problem.mask([node.branch])
        without = self._problem.dependents(group)
        for selected, open_ in ((node.selected | group, node.open & ~group), (node.selected, node.open & ~without)):
            yield self._bounded(selected, open_, node.bound, node.split, root=False)

    def _bounded(self, selected: Bool, open_: Bool, bound: float, split: Split | None, *, root: bool) -> Node | None:
        """Bound a node, repeatedly while that settles groups; None if no set in it is better than the best known."""
        rounds = 0
        while True:
            rounds += 1
            part = self._part(selected, open_)
            if part is None:
                return None
            bound = min(bound, part.explained_at(1.0))
            if self._finished(part) or not self._incumbent.beaten(bound):
                return None
            wide = root and rounds == 1
            levels = FROM_SCRATCH if split is None else FROM_NEIGHBOUR if wide else FROM_PARENT
            relaxed = self._relaxed(part, split, levels)
            if relaxed is None:
                return self._node(part, bound, None, part.conditional.gains())
            self.wide = relaxed.split if wide else self.wide
            self._complete(part, relaxed, thorough=wide)
            bound = min(bound, part.explained_at(relaxed.value))
            if not self._incumbent.beaten(bound):
                return None
            split = relaxed.split
            settled = None if rounds == ROUNDS or self._late() else self._settled(part, relaxed)
            if settled is None:
                score = relaxed.p * (relaxed.z * (1 - relaxed.z)) ** UNDECIDED
                return self._node(part, bound, split, score)
            selected, open_ = settled

    def _part(self, selected: Bool, open_: Bool) -> _Part | None:
        """Return the undecided part of a node; None if the selected groups exceed the budget."""
        problem = self._problem
        if problem.cost(selected) > self._limit:
            return None
        selected, open_ = problem.trimmed(selected, open_, self._limit)
        groups = np.flatnonzero(open_ & problem.with_columns)
        shared = problem.shared_costs(selected, open_)[groups]
        return _Part(
            selected, open_, groups, shared, self._limit - problem.cost(selected), problem.given(selected, open_)
        )

    def _finished(self, part: _Part) -> bool:
        """Return whether the best set of a node is known.

        It is all open groups or, if no two of them fit, the best one.
        """
        incumbent, explained = self._incumbent, part.conditional.explained
        incumbent.offer(part.selected, explained)
        if self._problem.cost(part.open) <= part.budget:
            incumbent.offer(part.selected | part.open, part.explained_at(1.0))
            return True
        if np.sort(part.shared)[:2].sum() <= part.budget:
            return False
        gains = part.conditional.gains()
        best = int(np.argmax(gains))
        incumbent.offer(part.selected | self._problem.closure[part.groups[best]], explained + float(gains[best]))
        return True

    def _relaxed(self, part: _Part, split: Split | None, levels: tuple[tuple[float, int], ...]) -> Relaxed | None:
        """Return the relaxation of a node, its split on all columns; None if C has no split or shared costs all fit."""
        conditional, costs = part.conditional, part.shared / part.budget
        if costs.sum() <= 1.0 or conditional.factor.dropped.any():
            return None
        columns = self._problem.columns(part.open)
        begin = (
            first_split(conditional.C, costs)
            if split is None
            else Split(split.delta[columns], split.z[part.groups], split.price)
        )
        if begin is None:
            return None

        def enough(value: float) -> bool:
            return not self._incumbent.beaten(part.explained_at(value)) or self._late()

        relaxed = relax(
            conditional.C, conditional.b / np.sqrt(conditional.top), conditional.starts, costs, begin, levels, enough
        )
        delta, z = np.full(len(self._problem.own), np.nan), np.full(len(part.open), np.nan)
        delta[columns], z[part.groups] = relaxed.split.delta, relaxed.split.z
        return replace(relaxed, split=Split(delta, z, relaxed.split.price))

    def _settled(self, part: _Part, relaxed: Relaxed) -> tuple[Bool, Bool] | None:
        """Return the selected and open groups after settling those that a better set determines; None if none."""
        other_side = part.conditional.explained + part.conditional.top * (relaxed.value - np.abs(relaxed.surplus))
        settled = other_side <= self._incumbent.closing_bound
        if not settled.any():
            return None
        dense = self._problem.mask(part.groups[settled & (relaxed.surplus > 0)])
        thin = self._problem.mask(part.groups[settled & (relaxed.surplus <= 0)])
        selected = part.selected | self._problem.closed(dense)
        return selected, part.open & ~selected & ~self._problem.dependents(thin)

    def _complete(self, part: _Part, relaxed: Relaxed, *, thorough: bool) -> None:
        """Fill the budget, the densest group first; improve the set if it is the best one or `thorough` is true."""
        order = part.groups[np.argsort(-relaxed.p / part.shared, kind="stable")]
        members = filled(self._problem, part.selected, order, self._limit)
        explained = self._problem.explained(members)
        if thorough or self._incumbent.beaten(explained):
            members, explained = improved(self._problem, members, self._limit, self._late)
        self._incumbent.offer(members, explained)

    def _node(self, part: _Part, bound: float, split: Split | None, score: Float) -> Node:
        """Return a node that branches on the group with the largest score, or on its first prerequisite."""
        unpaid = self._problem.closure & ~part.selected
        needed = np.flatnonzero(unpaid[part.groups[np.argmax(score)]])
        branch = int(needed[np.argmin(unpaid[needed].sum(axis=1))])
        return Node(part.selected, part.open, bound, split, branch)


class BranchAndBound:
    """A search within a budget that can be resumed, given a `known` lower bound on the best F.

    No set within the budget has an F above `bound`. `nodes` counts those that were bounded, `stopped` is why the last
    run ended, and `wide` is as in `Nodes`.
    """

    def __init__(self, budget: float, known: float) -> None:
        self.budget = budget
        self.incumbent = Incumbent(known)
        self.bound = np.inf
        self.nodes = 0
        self.stopped: Stopped = "nodes"
        self.wide: Split | None = None
        self._heap: list[tuple[float, int, Node]] = []

    def run(
        self, problem: SelectionProblem, *, nodes: int, late: Callable[[], bool], begin: Split | None = None
    ) -> None:
        """Continue the search until `nodes` nodes have been bounded in total, or one or two more, or it is `late`.

        `begin` is the `wide` of a search with a larger budget, as starting point.
        """
        bounding = Nodes(problem, self.budget, self.incumbent, late)
        if self.nodes == 0:
            self._push(bounding.root(begin))
            self.wide = bounding.wide
        self.stopped = "solved"
        while self._heap and self.incumbent.beaten(-self._heap[0][0]):
            if self.nodes >= nodes or late():
                self.stopped = "nodes" if self.nodes >= nodes else "seconds"
                break
            for child in bounding.children(heapq.heappop(self._heap)[2]):
                self._push(child)
        known = self.incumbent.explained
        self.bound = known if self.stopped == "solved" else max(known, -self._heap[0][0])

    def _push(self, node: Node | None) -> None:
        self.nodes += 1
        if node is not None:
            heapq.heappush(self._heap, (-node.bound, self.nodes, node))
