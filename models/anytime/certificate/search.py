"""Branch and bound for one budget: the best set within it, or how much better than what is known it can be.

The node with the largest bound is opened first, so that whenever the search stops the largest open bound holds for
every set.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from anytime.arrays import Bool
from anytime.certificate.nodes import Incumbent, Node, Nodes
from anytime.certificate.problem import Problem
from anytime.certificate.relaxation import Split

__all__ = ["Found", "Search", "Stopped"]

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
