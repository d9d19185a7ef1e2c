"""Sequences: steps in the order in which they are computed, with the cost and explained variance of each.

The module also has the oracle order, which sorts a sequence's own gains by gain per cost as if they were constant
(section 5.2), and least squares in a given order.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from anytime._linalg import Factor, single_blas_thread
from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram
from anytime.selection.sweep import Sweep
from anytime.types import Float, Index

__all__ = [
    "FactoredSequence",
    "Sequence",
    "Step",
    "given_sequence",
    "led_by",
    "oracle_order",
]


@dataclass(frozen=True)
class Step:
    """A selected group together with its requirements that earlier steps do not include.

    Attributes
    ----------
    adds : groups in order of computation, the selected one last.
    cost : their total cost.
    explained_variance : F of all steps up to this one.
    """

    adds: tuple[int, ...]
    cost: float
    explained_variance: float


@dataclass(frozen=True, eq=False)
class Sequence:
    """Steps of one sequence.

    Attributes
    ----------
    steps : the steps; together they add every group once, unless the search stopped early.
    doubling_until : number of steps up to which the set was doubling-capable (Definition 4.2); None without doubling.
    columns : columns in selection order: (D,), or those of the steps only if the search stopped.
    ends : (steps + 1,) number of columns of each prefix.
    longest : length of the longest remaining projection if the search stopped; None if all groups are selected.
    """

    steps: tuple[Step, ...]
    doubling_until: int | None
    columns: Index
    ends: Index
    longest: float | None = field(default=None, kw_only=True)

    @cached_property
    def costs(self) -> Float:
        """Return the cumulative cost of each prefix, (steps + 1,); element 0 is 0."""
        return np.cumsum([0.0, *(step.cost for step in self.steps)])

    @cached_property
    def explained_variance(self) -> Float:
        """Return F of each prefix on the training data, (steps + 1,); element 0 is 0."""
        return np.array([0.0, *(step.explained_variance for step in self.steps)])

    def upto(self, steps: int) -> Self:
        """Return the sequence of the first steps only."""
        capable = None if self.doubling_until is None else min(self.doubling_until, steps)
        columns, ends = self.columns[: self.ends[steps]], self.ends[: steps + 1]
        return replace(self, steps=self.steps[:steps], doubling_until=capable, columns=columns, ends=ends)


@dataclass(frozen=True, eq=False)
class FactoredSequence(Sequence):
    """A sequence for least squares, with the factor of C in its order.

    Attributes
    ----------
    factor : Cholesky factor of C in selection order, of `columns`.
    z : (columns, P) L^-1 q; its first rows are shared by all longer prefixes.
    """

    factor: Factor
    z: Float

    def upto(self, steps: int) -> Self:
        """Return the sequence of the first steps only; a leading block of the factor is the factor of a prefix."""
        end = self.ends[steps]
        factor = Factor(self.factor.L[:end, :end], self.factor.dropped[:end])
        return replace(super().upto(steps), factor=factor, z=self.z[:end])


def oracle_order(gains: Float, costs: Float) -> Index:
    """Return the order of steps by decreasing gain per cost, ties in the given order: a reference curve, not a model.

    Parameters
    ----------
    gains, costs : (steps,) gain and cost of each step of a sequence; free steps come first.
    """
    density = np.divide(gains, costs, out=np.full(len(gains), np.inf), where=costs > 0)
    return np.argsort(-density, kind="stable")


def given_sequence(gram: Gram, groups: FeatureGroups, order: Many[tuple[int, ...]], alpha: float) -> FactoredSequence:
    """Sweep the groups in the order of some steps, at the penalty alpha. About D^3/3 operations.

    Parameters
    ----------
    gram : standardised normal equations, columns in the order of the groups file.
    order : the groups that each step adds, in order of computation; together every group at most once.
    """
    steps: list[Step] = []
    ends = [0]
    explained = 0.0
    with single_blas_thread():
        sweep = Sweep(gram, groups.slices, alpha, blocks=False)
        for adds in order:
            explained += sum(sweep.select(group) for group in adds)
            steps.append(Step(adds, float(groups.costs[list(adds)].sum()), explained))
            ends.append(ends[-1] + sum(len(groups.groups[g].features) for g in adds))
        columns, factor, z = sweep.factor()
    return FactoredSequence(tuple(steps), None, columns, np.array(ends, dtype=np.intp), factor, z)


def led_by(first: Many[int], order: Many[tuple[int, ...]], groups: FeatureGroups) -> list[tuple[int, ...]]:
    """Return the steps of an order with some groups before all others, each after its unpaid requirements."""
    led: list[tuple[int, ...]] = []
    selected: set[int] = set()
    for group in first:
        if group not in selected:
            led.append((*(g for g in groups.prerequisites[group] if g not in selected), group))
            selected.update(led[-1])
    rest = (tuple(group for group in adds if group not in selected) for adds in order)
    return [*led, *filter(None, rest)]
