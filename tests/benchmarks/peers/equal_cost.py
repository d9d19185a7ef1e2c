"""Paths of coefficients as curves of explained variance against cost.

Solvers return coefficients, one vector for each penalty or size. The cost of a vector is that of every group with a
nonzero coefficient; its explained variance, on the problem's own normal equations, is

    F(w) = q'w - 1/2 w'S w,

at most one half. For the refitted curve, the active groups are swept in their order of entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram
from anytime.selection import given_sequence
from anytime.types import Bool, Float, Index

__all__ = ["Line", "active_groups", "area", "entry_order", "explained", "line_of", "refitted"]


@dataclass(frozen=True, eq=False)
class Line:
    """Explained variance against cost; the first point is the empty set."""

    costs: Float
    explained: Float


def active_groups(coef: Float, sizes: Index) -> Bool:
    """Return which groups each row of coefficients (L, D) uses, (L, groups)."""
    starts = np.cumsum(sizes) - sizes
    used: Bool = np.add.reduceat(coef != 0, starts, axis=1) > 0
    return used


def explained(coef: Float, S: Float, q: Float) -> Float:
    """Return F of each row of coefficients (L, D), with their shrinkage."""
    found: Float = coef @ q - 0.5 * np.einsum("ld,ld->l", coef @ S, coef)
    return found


def line_of(coef: Float, sizes: Index, costs: Float, S: Float, q: Float) -> Line:
    """Return the curve of a path: at each cost its best point that costs no more."""
    spent = active_groups(coef, sizes) @ costs
    values = explained(coef, S, q)
    order = np.argsort(spent, kind="stable")
    best = np.maximum.accumulate(np.concatenate([[0.0], values[order]]))
    return Line(np.concatenate([[0.0], spent[order]]), best)


def entry_order(coef: Float, sizes: Index, costs: Float) -> list[int]:
    """Return the groups in the order in which they enter a path; of simultaneous ones, the cheaper first."""
    active = active_groups(coef, sizes)
    ever = np.flatnonzero(active.any(axis=0))
    first = active.argmax(axis=0)
    return sorted(ever.tolist(), key=lambda g: (int(first[g]), float(costs[g])))


def refitted(order: list[int], gram: Gram, groups: FeatureGroups, alpha: float) -> Line:
    """Return the curve of groups in some order, each prefix at its optimum."""
    found = given_sequence(gram, groups, [(g,) for g in order], alpha)
    return Line(found.costs, found.explained_variance)


def area(line: Line, maximum: float, stop: float) -> float:
    """Return the mean of F over the costs up to `stop`, for an interrupted client, as a share of `maximum`."""
    inside = line.costs < stop
    edges = np.append(line.costs[inside], stop)
    return float(np.diff(edges) @ line.explained[inside]) / (stop * maximum)
