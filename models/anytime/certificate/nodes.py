"""Nodes of the search: some groups are taken, some left out, the others open; and a bound on what that can reach.

What is taken holds all it requires; what is left out, all that requires it. What no longer fits into the budget is left
out at once, and what costs nothing is taken. The bound is the least of the parent's, F of all that is not left out, and
the relaxation of what is open given what is taken. A group whose other side of the price would push the bound under
the best set known is settled without branching, and the node is bounded anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from anytime.arrays import Bool, Float, Index
from anytime.certificate.completion import filled, improved
from anytime.certificate.problem import COST_TOLERANCE, Conditional, Problem
from anytime.certificate.relaxation import Relaxed, Split, first_split, relax

__all__ = ["SAME", "Node", "Nodes"]

SAME = 1e-9
"""Two values of F that differ by this share are one: a node that promises no more is closed."""

ROUNDS = 4
"""How often a node is bounded, as long as its bound settles groups."""

FROM_AFAR = ((5e-3, 8), (5e-4, 3), (1e-4, 2), (3e-5, 2), (1e-5, 2), (3e-6, 2))
"""Barrier, and the largest number of steps at it, for a problem of its own."""

FROM_PARENT = ((1e-4, 2), (1e-5, 2), (3e-6, 2))
"""The same from the point of a larger problem."""


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


class Nodes:
    """Bounds nodes for one budget, and remembers the best set that turns up.

    Attributes
    ----------
    best, explained : the best set, a mask (J,), or None as long as nothing is better than what was known; and its F.
    count : how many nodes were bounded.
    """

    def __init__(self, problem: Problem, budget: float, known: float, late: Callable[[], bool]) -> None:
        self._problem, self._late = problem, late
        self._limit = budget * (1 + COST_TOLERANCE)
        self.best: Bool | None = None
        self.explained = known
        self.count = 0

    def promises(self, bound: float) -> bool:
        """Whether a bound leaves room for a better set."""
        return bound > self.explained * (1 + SAME)

    def root(self) -> Node | None:
        """The node of all sets; None where none is better than what is known."""
        nothing = np.zeros(len(self._problem.costs), dtype=np.bool_)
        return self._bounded(nothing, ~nothing, np.inf, None)

    def children(self, node: Node) -> Iterator[Node]:
        """The two nodes with the branching group taken and left out, but for those that hold nothing better."""
        group = self._problem.mask([node.branch])
        without = self._problem.dependents(group)
        for taken, open_ in ((node.taken | group, node.open & ~group), (node.taken, node.open & ~without)):
            child = self._bounded(taken, open_, node.bound, node.split)
            if child is not None:
                yield child

    def _bounded(self, taken: Bool, open_: Bool, bound: float, split: Split | None) -> Node | None:
        self.count += 1
        for remaining in reversed(range(ROUNDS)):
            if self._problem.cost(taken) > self._limit:
                return None
            taken, open_ = self._problem.trimmed(taken, open_, self._limit)
            left = self._problem.given(taken, open_)
            self._offer(taken, left.explained)
            bound = min(bound, left.explained + left.top)
            if self._problem.cost(taken | open_) <= self._limit:
                self._offer(taken | open_, left.explained + left.top)
            if not self.promises(bound):
                return None
            groups = np.flatnonzero(open_ & self._problem.with_columns)
            shared = self._problem.shared_costs(taken, open_)
            relaxed = self._relaxed(taken, open_, shared, left, split)
            if relaxed is None:
                return Node(taken, open_, bound, None, self._next(taken, groups, left.gains()))
            self._complete(taken, groups, relaxed.p / shared[groups])
            bound = min(bound, left.explained + left.top * relaxed.value)
            if not self.promises(bound):
                return None
            split = relaxed.split
            wrong = left.explained + left.top * (relaxed.value - np.abs(relaxed.surplus))
            settled = wrong <= self.explained * (1 + SAME)
            if not (settled.any() and remaining) or self._late():
                break
            taken = taken | self._problem.closed(self._problem.mask(groups[settled & (relaxed.surplus > 0)]))
            thin = self._problem.mask(groups[settled & (relaxed.surplus <= 0)])
            open_ = open_ & ~taken & ~self._problem.dependents(thin)
        return Node(taken, open_, bound, split, self._next(taken, groups, relaxed.z * (1 - relaxed.z) * relaxed.p))

    def _relaxed(
        self, taken: Bool, open_: Bool, shared: Float, left: Conditional, split: Split | None
    ) -> Relaxed | None:
        """The relaxation of a node, its split on all columns; None where C cannot be split or shared costs all fit."""
        problem, groups = self._problem, np.flatnonzero(open_ & self._problem.with_columns)
        costs = shared[groups] / (self._limit - problem.cost(taken))
        if costs.sum() <= 1.0 or left.factor.dropped.any():
            return None
        columns = problem.columns(open_)
        if split is None:
            begin = first_split(left.C, costs)
        else:
            begin = Split(split.delta[columns], split.z[groups], split.price)
        if begin is None:
            return None

        def enough(value: float) -> bool:
            return not self.promises(left.explained + left.top * value) or self._late()

        levels = FROM_AFAR if split is None else FROM_PARENT
        relaxed = relax(left.C, left.b / np.sqrt(left.top), left.starts, costs, begin, levels, enough)
        whole = Split(np.full(len(problem.own), np.nan), np.full(len(open_), np.nan), relaxed.split.price)
        whole.delta[columns], whole.z[groups] = relaxed.split.delta, relaxed.split.z
        return replace(relaxed, split=whole)

    def _complete(self, taken: Bool, groups: Index, density: Float) -> None:
        """Fill up the budget, the densest group first; improve the set if it is the first one or the best."""
        members = filled(self._problem, taken, groups[np.argsort(-density, kind="stable")], self._limit)
        explained = self._problem.explained(members)
        if self.count == 1 or self.promises(explained):
            members, explained = improved(self._problem, members, self._limit, self._late)
        self._offer(members, explained)

    def _next(self, taken: Bool, groups: Index, score: Float) -> int:
        """The group with the largest score, or the first thing that it requires."""
        unpaid = self._problem.closure & ~taken
        needed = np.flatnonzero(unpaid[groups[np.argmax(score)]])
        return int(needed[np.argmin(unpaid[needed].sum(axis=1))])

    def _offer(self, members: Bool, explained: float) -> None:
        """A set within the budget, and its F."""
        if self.promises(explained):
            self.best, self.explained = members.copy(), explained
