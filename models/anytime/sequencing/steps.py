"""A sequence: the steps in the order in which they are computed, and what each buys."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from anytime.arrays import Float, Index
from anytime.cholesky import Factor

__all__ = ["FactoredSequence", "Sequence", "Step"]


@dataclass(frozen=True)
class Step:
    """What is chosen at once: a group, with what it requires and nobody has paid yet.

    Attributes
    ----------
    adds : groups in order of computation, the chosen one last.
    cost : their joint cost.
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
    steps : the steps; together they add every group once, unless the search stopped before.
    doubling_until : number of steps up to which the set was doubling-capable (Definition 4.2); None if not restricted.
    columns : columns in selection order: (D,), or those of the steps alone where the search stopped.
    ends : (steps + 1,) how many columns each prefix has.
    longest : length of the longest projection left where the search stopped; None where all groups are taken.
    """

    steps: tuple[Step, ...]
    doubling_until: int | None
    columns: Index
    ends: Index
    longest: float | None = field(default=None, kw_only=True)

    @cached_property
    def costs(self) -> Float:
        """Cumulative cost of each prefix, (steps + 1,); element 0 is 0."""
        return np.cumsum([0.0, *(step.cost for step in self.steps)])

    @cached_property
    def explained_variance(self) -> Float:
        """F of each prefix on the training data, (steps + 1,); element 0 is 0."""
        return np.array([0.0, *(step.explained_variance for step in self.steps)])

    def upto(self, steps: int) -> Self:
        """The sequence of the first steps alone."""
        capable = None if self.doubling_until is None else min(self.doubling_until, steps)
        columns, ends = self.columns[: self.ends[steps]], self.ends[: steps + 1]
        return replace(self, steps=self.steps[:steps], doubling_until=capable, columns=columns, ends=ends)


@dataclass(frozen=True, eq=False)
class FactoredSequence(Sequence):
    """A sequence by least squares, with the factor of C in its order.

    Attributes
    ----------
    factor : Cholesky factor of C in selection order, of `columns`.
    z : (columns, P) L^-1 q, whose first rows belong to every prefix alike.
    """

    factor: Factor
    z: Float

    def upto(self, steps: int) -> Self:
        """The sequence of the first steps alone; a leading block of the factor is that of the columns of a prefix."""
        end = self.ends[steps]
        factor = Factor(self.factor.L[:end, :end], self.factor.dropped[:end])
        return replace(super().upto(steps), factor=factor, z=self.z[:end])
