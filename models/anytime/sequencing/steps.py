"""A sequence: the steps in the order in which they are computed, and what each buys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
    steps : the steps; together they add every group once.
    doubling_until : number of steps up to which the set was doubling-capable (Definition 4.2); None if not restricted.
    columns : (D,) columns in selection order.
    ends : (steps + 1,) how many columns each prefix has.
    """

    steps: tuple[Step, ...]
    doubling_until: int | None
    columns: Index
    ends: Index

    @cached_property
    def costs(self) -> Float:
        """Cumulative cost of each prefix, (steps + 1,); element 0 is 0."""
        return np.cumsum([0.0, *(step.cost for step in self.steps)])

    @cached_property
    def explained_variance(self) -> Float:
        """F of each prefix on the training data, (steps + 1,); element 0 is 0."""
        return np.array([0.0, *(step.explained_variance for step in self.steps)])


@dataclass(frozen=True, eq=False)
class FactoredSequence(Sequence):
    """A sequence by least squares, with the factor of C in its order.

    Attributes
    ----------
    factor : Cholesky factor of C in selection order.
    z : (D, P) L^-1 q, whose first rows belong to every prefix alike.
    """

    factor: Factor
    z: Float
