"""Good sets within a budget: fill it up in some order, then drop a group and fill up anew as long as that helps.

Nothing here is needed for a bound to hold; good sets close more nodes.

Nodes of the search: some groups are taken, some left out, the others open; and a bound on what that can reach.

What is taken holds all it requires; what is left out, all that requires it. What no longer fits into the budget is left
out at once, and what costs nothing is taken. The bound is the least of the parent's, F of all that is not left out, and
the relaxation of what is open given what is taken. A group whose other side of the price would push the bound under
the best set known is settled without branching, and the node is bounded anew.

Branch and bound for one budget: the best set within it, or how much better than what is known it can be.

The node with the largest bound is opened first, so that whenever the search stops the largest open bound holds for
every set.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from anytime.evaluation.certificate.problem import COST_TOLERANCE, Conditional, Problem
from anytime.evaluation.certificate.relaxation import Relaxed, Split, first_split, relax
from anytime.types import Bool, Float, Index

__all__ = [
    "SAME",
    "Found",
    "Incumbent",
    "Node",
    "Nodes",
    "Search",
    "Stopped",
    "filled",
    "improved",
]

DROPPED = 12
"""How many of the groups that are missed least for their cost are dropped in turn."""


def filled(problem: Problem, taken: Bool, order: Index, limit: float) -> Bool:
    """The set with the groups of `order`, each with what it requires, that still fit."""
    members, spent = taken.copy(), problem.cost(taken)
    for group in order:
        extra = float(problem.costs[problem.closure[group] & ~members].sum())
        if spent + extra <= limit:
            members |= problem.closure[group]
            spent += extra
    return members


def improved(problem: Problem, members: Bool, limit: float, late: Callable[[], bool]) -> tuple[Bool, float]:
    """A set at least as good, and its F: no exchange of a group that was tried makes it better."""
    explained = problem.explained(members)
    tried = _exchanged(problem, members, limit)
    while not late():
        other = next(tried, None)
        if other is None:
            break
        better = problem.explained(other)
        if better > explained * (1 + 1e-9):
            members, explained = other, better
            tried = _exchanged(problem, members, limit)
    return members, explained


def _exchanged(problem: Problem, members: Bool, limit: float) -> Iterator[Bool]:
    """Sets in which a group has made room for others: the densest of them, or those that add most."""
    present = np.flatnonzero(members & problem.with_columns & (problem.costs > 0))
    if len(present) == 0:
        return
    loss = problem.losses(members)[present] / problem.costs[present]
    for group in present[np.argsort(loss, kind="stable")[:DROPPED]]:
        gone = problem.closure[:, group]
        rest = members & ~gone
        extra = problem.extra_costs(rest)
        able = ~rest & ~gone & problem.with_columns & (problem.cost(rest) + extra <= limit)
        if not able.any():
            continue
        gains = np.zeros(len(members))
        gains[able] = problem.given(rest, able).gains()
        for score in (gains / np.maximum(extra, 1e-300), gains):
            yield filled(problem, rest, _ordered(score, able), limit)


def _ordered(score: Float, among: Bool) -> Index:
    groups = np.flatnonzero(among)
    return groups[np.argsort(-score[groups], kind="stable")]


SAME = 1e-9
"""Two values of F that differ by this share are one: a node that promises no more is closed."""

ROUNDING = 1e-14
"""Values of F under this, where the variance of a response is 1, are rounding."""

ROUNDS = 4
"""How often a node is bounded, as long as its bound settles groups."""

UNDECIDED = 0.25
"""Weight of a share being far from 0 and 1 when the group to branch on is chosen; what a group counts for has weight 1.
"""

FROM_AFAR = ((5e-3, 8), (5e-4, 3), (1e-4, 2), (3e-5, 2), (1e-5, 2), (3e-6, 2))
"""Barrier, and the largest number of steps at it, for a problem of its own."""

FROM_NEIGHBOUR = ((1e-4, 3), (2e-5, 2), (4e-6, 2))
"""The same for all sets, from the point of a larger budget."""

FROM_PARENT = ((1e-4, 2), (1e-5, 2))
"""The same for a node, from the point of its parent."""


@dataclass(frozen=True, eq=False)
class Node:
    """A node that may hold something better than what is known.

    Attributes
    ----------
    taken, open : (J,) masks of the groups that are taken, and of those not decided.
    bound : F of no set of this node is larger, unless the best set known is.
    split : a point of its relaxation on all columns and groups, nan where they are not open; None without one.
    branch : the group to decide next; all that it requires is taken.
    """

    taken: Bool
    open: Bool
    bound: float
    split: Split | None
    branch: int


@dataclass(frozen=True, eq=False)
class _Part:
    """What is left to decide at a node.

    Attributes
    ----------
    taken, open : (J,) masks; open groups fit, and have columns or are required by some that do.
    groups : (k,) the open groups with columns.
    shared : (k,) their shared costs.
    budget : what is left to spend.
    left : the columns of the open groups, given what is taken.
    """

    taken: Bool
    open: Bool
    groups: Index
    shared: Float
    budget: float
    left: Conditional

    def most(self, value: float) -> float:
        """F where the open groups add this share of what all of them add."""
        return self.left.explained + self.left.top * value


@dataclass(eq=False)
class Incumbent:
    """The best set that turned up so far.

    Attributes
    ----------
    explained : its F, or what was known before.
    best : the set, a mask (J,); None as long as nothing is better than what was known.
    """

    explained: float
    best: Bool | None = None

    def beaten(self, bound: float) -> bool:
        """Whether a bound leaves room for a better set."""
        return bool(self.beaten_by(np.float64(bound)))

    def beaten_by(self, bounds: Float | np.float64) -> Bool | np.bool_:
        """The same of several bounds."""
        return bounds > self.explained * (1 + SAME) + ROUNDING

    def offer(self, members: Bool, explained: float) -> None:
        """A set within the budget, and its F."""
        if self.beaten(explained):
            self.best, self.explained = members.copy(), explained


class Nodes:
    """Bounds nodes for one budget, and remembers the best set that turns up.

    Parameters
    ----------
    problem, budget : which sets are to be bounded.
    incumbent : the best set known; kept up to date.
    late : whether the time is over.

    Attributes
    ----------
    wide : a point of the relaxation of all sets, to begin that of a smaller budget from; None before there is one.
    """

    def __init__(self, problem: Problem, budget: float, incumbent: Incumbent, late: Callable[[], bool]) -> None:
        self._problem, self._incumbent, self._late = problem, incumbent, late
        self._limit = budget * (1 + COST_TOLERANCE)
        self.wide: Split | None = None

    def root(self, begin: Split | None) -> Node | None:
        """The node of all sets, begun at the `wide` of a larger budget; None where nothing better is in it."""
        self.wide = begin
        nothing = np.zeros(len(self._problem.costs), dtype=np.bool_)
        return self._bounded(nothing, ~nothing, np.inf, begin, root=True)

    def children(self, node: Node) -> Iterator[Node | None]:
        """The two nodes with the branching group taken and left out; None for one that holds nothing better."""
        group = self._problem.mask([node.branch])
        without = self._problem.dependents(group)
        for taken, open_ in ((node.taken | group, node.open & ~group), (node.taken, node.open & ~without)):
            yield self._bounded(taken, open_, node.bound, node.split, root=False)

    def _bounded(self, taken: Bool, open_: Bool, bound: float, split: Split | None, *, root: bool) -> Node | None:
        """Bound a node, again as long as that settles groups; None where it holds nothing better than what is known."""
        rounds = 0
        while True:
            rounds += 1
            part = self._part(taken, open_)
            if part is None:
                return None
            bound = min(bound, part.most(1.0))
            if self._finished(part) or not self._incumbent.beaten(bound):
                return None
            wide = root and rounds == 1
            levels = FROM_AFAR if split is None else FROM_NEIGHBOUR if wide else FROM_PARENT
            relaxed = self._relaxed(part, split, levels)
            if relaxed is None:
                return self._node(part, bound, None, part.left.gains())
            self.wide = relaxed.split if wide else self.wide
            self._complete(part, relaxed, thorough=wide)
            bound = min(bound, part.most(relaxed.value))
            if not self._incumbent.beaten(bound):
                return None
            split = relaxed.split
            settled = None if rounds == ROUNDS or self._late() else self._settled(part, relaxed)
            if settled is None:
                score = relaxed.p * (relaxed.z * (1 - relaxed.z)) ** UNDECIDED
                return self._node(part, bound, split, score)
            taken, open_ = settled

    def _part(self, taken: Bool, open_: Bool) -> _Part | None:
        """What is left to decide; None where too much is taken."""
        problem = self._problem
        if problem.cost(taken) > self._limit:
            return None
        taken, open_ = problem.trimmed(taken, open_, self._limit)
        groups = np.flatnonzero(open_ & problem.with_columns)
        shared = problem.shared_costs(taken, open_)[groups]
        return _Part(taken, open_, groups, shared, self._limit - problem.cost(taken), problem.given(taken, open_))

    def _finished(self, part: _Part) -> bool:
        """Whether the best set of a node is plain: all that is open, or, where no two groups fit, the best of them."""
        incumbent, explained = self._incumbent, part.left.explained
        incumbent.offer(part.taken, explained)
        if self._problem.cost(part.open) <= part.budget:
            incumbent.offer(part.taken | part.open, part.most(1.0))
            return True
        if np.sort(part.shared)[:2].sum() <= part.budget:
            return False
        gains = part.left.gains()
        best = int(np.argmax(gains))
        incumbent.offer(part.taken | self._problem.closure[part.groups[best]], explained + float(gains[best]))
        return True

    def _relaxed(self, part: _Part, split: Split | None, levels: tuple[tuple[float, int], ...]) -> Relaxed | None:
        """The relaxation of a node, its split on all columns; None where C cannot be split or shared costs all fit."""
        left, costs = part.left, part.shared / part.budget
        if costs.sum() <= 1.0 or left.factor.dropped.any():
            return None
        columns = self._problem.columns(part.open)
        if split is None:
            begin = first_split(left.C, costs)
        else:
            begin = Split(split.delta[columns], split.z[part.groups], split.price)
        if begin is None:
            return None

        def enough(value: float) -> bool:
            return not self._incumbent.beaten(part.most(value)) or self._late()

        relaxed = relax(left.C, left.b / np.sqrt(left.top), left.starts, costs, begin, levels, enough)
        delta, z = np.full(len(self._problem.own), np.nan), np.full(len(part.open), np.nan)
        delta[columns], z[part.groups] = relaxed.split.delta, relaxed.split.z
        return replace(relaxed, split=Split(delta, z, relaxed.split.price))

    def _settled(self, part: _Part, relaxed: Relaxed) -> tuple[Bool, Bool] | None:
        """What is taken and open once every group is where a better set must have it; None where this settles none."""
        other_side = part.left.explained + part.left.top * (relaxed.value - np.abs(relaxed.surplus))
        settled = ~self._incumbent.beaten_by(other_side)
        if not settled.any():
            return None
        dense = self._problem.mask(part.groups[settled & (relaxed.surplus > 0)])
        thin = self._problem.mask(part.groups[settled & (relaxed.surplus <= 0)])
        taken = part.taken | self._problem.closed(dense)
        return taken, part.open & ~taken & ~self._problem.dependents(thin)

    def _complete(self, part: _Part, relaxed: Relaxed, *, thorough: bool) -> None:
        """Fill up the budget, the densest group first; improve the set where it is the best one, or if asked to."""
        order = part.groups[np.argsort(-relaxed.p / part.shared, kind="stable")]
        members = filled(self._problem, part.taken, order, self._limit)
        explained = self._problem.explained(members)
        if thorough or self._incumbent.beaten(explained):
            members, explained = improved(self._problem, members, self._limit, self._late)
        self._incumbent.offer(members, explained)

    def _node(self, part: _Part, bound: float, split: Split | None, score: Float) -> Node:
        """A node that branches on the group with the largest score, or on the first thing that it requires."""
        unpaid = self._problem.closure & ~part.taken
        needed = np.flatnonzero(unpaid[part.groups[np.argmax(score)]])
        branch = int(needed[np.argmin(unpaid[needed].sum(axis=1))])
        return Node(part.taken, part.open, bound, split, branch)


Stopped: TypeAlias = Literal["solved", "nodes", "seconds"]
"""Why a search ended: the best set is known, or a limit was reached."""


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found.

    Attributes
    ----------
    bound : no set within the budget has a larger F.
    explained, best : F of the best set known, and the set as in `Incumbent`.
    nodes : number of nodes that were bounded.
    stopped : why the search ended.
    """

    bound: float
    explained: float
    best: Bool | None
    nodes: int
    stopped: Stopped


class Search:
    """A search that can be taken up again.

    Parameters
    ----------
    budget : what a set may cost.
    known : an F that is known to be within reach.

    Attributes
    ----------
    incumbent : the best set so far.
    wide : a point of the relaxation, for the search of a smaller budget to begin from; None before there is one.
    """

    def __init__(self, budget: float, known: float) -> None:
        self.budget = budget
        self.incumbent = Incumbent(known)
        self.wide: Split | None = None
        self._heap: list[tuple[float, int, Node]] = []
        self._bounded = 0

    def run(self, problem: Problem, *, nodes: int, late: Callable[[], bool], begin: Split | None = None) -> Found:
        """Search on, until `nodes` nodes have been bounded in all, or one or two more, or the time is over.

        Parameters
        ----------
        nodes : how many, at least 1.
        late : whether the time is over.
        begin : the `wide` of a search with a larger budget, where this one begins.
        """
        bounding = Nodes(problem, self.budget, self.incumbent, late)
        if self._bounded == 0:
            self._push(bounding.root(begin))
            self.wide = bounding.wide
        stopped: Stopped = "solved"
        while self._heap and self.incumbent.beaten(-self._heap[0][0]):
            if self._bounded >= nodes or late():
                stopped = "nodes" if self._bounded >= nodes else "seconds"
                break
            for child in bounding.children(heapq.heappop(self._heap)[2]):
                self._push(child)
        return self._found(stopped)

    def _push(self, node: Node | None) -> None:
        self._bounded += 1
        if node is not None:
            heapq.heappush(self._heap, (-node.bound, self._bounded, node))

    def _found(self, stopped: Stopped) -> Found:
        known = self.incumbent.explained
        bound = known if stopped == "solved" else max(known, -self._heap[0][0])
        return Found(bound, known, self.incumbent.best, self._bounded, stopped)
