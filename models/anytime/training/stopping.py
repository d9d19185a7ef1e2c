"""Stopping rules that end a sequence early: by precision, or by the error on a validation table.

The rules are those of Group-OMP (Lozano, Swirszcz and Abe, NIPS 2009). With the precision epsilon (Figure 1) the search
stops before the step at which

    max_j |X_Gj'(X beta - y)|_2 <= epsilon

for groups of orthonormal columns. Here each criterion defines its own length, in standard units (`lengths`). With a
hold-out (section 4) the number of steps is the one with the smallest error on a validation table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anytime.errors import TrainingError
from anytime.model.manifest import Stopped
from anytime.model.prefixes import PrefixModels
from anytime.selection import Sequence
from anytime.types import Float

__all__ = [
    "HeldBest",
    "HoldOut",
    "check_epsilon",
    "check_steps",
    "stopped",
]

EQUAL = 1e-12
"""Errors that differ by less than this share of the base rate's are equal, and the shorter prefix is chosen."""


@dataclass(frozen=True, eq=False)
class HeldBest:
    """Result on a validation table.

    Attributes
    ----------
    name : name of the table.
    errors : (steps + 1,) error of every prefix of the complete sequence.
    steps : number of steps selected.
    """

    name: str
    errors: Float
    steps: int


@dataclass(frozen=True, eq=False)
class HoldOut:
    """Rows that choose the number of steps.

    Attributes
    ----------
    name : name of the table.
    errors : mean error (steps + 1,) of prefix models on its rows: of squares, or of deviances for a likelihood.
    """

    name: str
    errors: Callable[[PrefixModels], Float]

    def best(self, models: PrefixModels) -> HeldBest:
        """Return the shortest prefix with the smallest error.

        Raises
        ------
        TrainingError
            The shortest prefix is the base rate, so no step remains.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # the error of a prefix may overflow on some row
            errors = self.errors(models)
        errors = np.where(np.isnan(errors), np.inf, errors)
        steps = int(np.flatnonzero(errors <= errors.min() + EQUAL * errors[0])[0])
        if steps == 0:
            raise TrainingError(
                f"on {self.name} the base rate is the best prefix (error {errors[0]:.4g}), so no step remains; "
                "use more rows, other groups, or no validation"
            )
        return HeldBest(self.name, errors, steps)


def check_epsilon(epsilon: float | None) -> None:
    """Raise unless the precision is a finite number above 0."""
    if epsilon is not None and not (math.isfinite(epsilon) and epsilon > 0):
        raise TrainingError(f"epsilon is {epsilon}; expected a finite number above 0")


def check_steps(sequence: Sequence, epsilon: float | None) -> None:
    """Raise if a sequence stopped before its first step."""
    if not sequence.steps:
        raise TrainingError(
            f"epsilon is {epsilon:g}, and no group's projection of the responses is longer: the longest is "
            f"{sequence.longest:.4g}; choose a smaller epsilon"
        )


def stopped(sequence: Sequence, names: tuple[str, ...], epsilon: float | None, held: HeldBest | None) -> Stopped | None:
    """Return the record of the stopping rule of a sequence; None if no rule was active.

    Parameters
    ----------
    sequence : the selected steps.  names : names of all groups.
    """
    if epsilon is None and held is None:
        return None
    selected = {g for step in sequence.steps for g in step.adds}
    cut = held is not None and held.steps < len(held.errors) - 1
    by_epsilon = sequence.longest is not None and not cut
    return Stopped(
        rule="validation" if cut else "epsilon" if by_epsilon else None,
        steps=len(sequence.steps),
        epsilon=epsilon,
        longest=sequence.longest if by_epsilon else None,
        validation=None if held is None else held.name,
        errors=None if held is None else tuple(e if math.isfinite(e) else None for e in held.errors.tolist()),
        left_out=tuple(name for g, name in enumerate(names) if g not in selected),
    )
