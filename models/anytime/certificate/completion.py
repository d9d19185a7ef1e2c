"""Good sets within a budget: fill it up in some order, then drop a group and fill up anew as long as that helps.

Nothing here is needed for a bound to hold; good sets close more nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from anytime.arrays import Bool, Float, Index
from anytime.certificate.problem import Problem

__all__ = ["filled", "improved"]

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
