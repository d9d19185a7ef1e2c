"""Branch and bound for one budget: the best set within it, or how much better than what is known it can be.

The node with the largest bound is opened first, so that whenever the search stops the largest open bound holds for
every set.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from anytime.arrays import Bool
from anytime.certificate.nodes import Nodes
from anytime.certificate.problem import Problem

__all__ = ["Found", "Stopped", "search"]

Stopped: TypeAlias = Literal["solved", "nodes", "seconds"]
"""Why a search ended: the best set is known, or a limit was reached."""


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found.

    Attributes
    ----------
    bound : no set within the budget has a larger F.
    explained : F of the best set known.
    best : that set as a mask (J,), or None where nothing better was found than what was known before.
    nodes : number of nodes that were bounded.
    stopped : why the search ended.
    """

    bound: float
    explained: float
    best: Bool | None
    nodes: int
    stopped: Stopped


def search(problem: Problem, budget: float, known: float, *, nodes: int, late: Callable[[], bool]) -> Found:
    """The best set of cost `budget` at most, of which F is known to reach `known`.

    Parameters
    ----------
    nodes : how many nodes may be bounded, at least 1.
    late : whether the time is over.
    """
    bounding = Nodes(problem, budget, known, late)
    root = bounding.root()
    heap = [] if root is None else [(-root.bound, 0, root)]
    stopped: Stopped = "solved"
    while heap and bounding.promises(-heap[0][0]):
        if bounding.count >= nodes or late():
            stopped = "nodes" if bounding.count >= nodes else "seconds"
            break
        parent = heapq.heappop(heap)[2]
        for child in bounding.children(parent):
            heapq.heappush(heap, (-child.bound, bounding.count, child))
    bound = bounding.explained if stopped == "solved" else max(bounding.explained, -heap[0][0])
    return Found(bound, bounding.explained, bounding.best, bounding.count, stopped)
