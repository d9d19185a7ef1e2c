"""Where a sequence ends before all groups are taken: by precision, or by the error on rows held out.

The rules are those of Group-OMP (Lozano, Swirszcz and Abe, NIPS 2009). By its precision epsilon (Figure 1) the search
stops before the step at which

    max_j |X_Gj'(X beta - y)|_2 <= epsilon

for groups of orthonormal columns; here each criterion has the length that it sees, in standard units (`lengths`). By
its hold-out (section 4) the number of steps is the one with the least error on a validation table.
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
"""Errors that differ by less than this share of the base rate's are equal, and the shorter prefix is kept."""


@dataclass(frozen=True, eq=False)
class HeldBest:
    """What a validation table found.

    Attributes
    ----------
    name : of the table.
    errors : (steps + 1,) its error of every prefix of the whole sequence.
    steps : how many steps are kept.
    """

    name: str
    errors: Float
    steps: int


@dataclass(frozen=True, eq=False)
class HoldOut:
    """Rows that choose how many steps are kept.

    Attributes
    ----------
    name : of the table.
    errors : the mean error (steps + 1,) of prefix models on its rows: of squares, or of deviances for a likelihood.
    """

    name: str
    errors: Callable[[PrefixModels], Float]

    def best(self, models: PrefixModels) -> HeldBest:
        """The shortest prefix with the least error.

        Raises
        ------
        TrainingError
            It is the base rate, so that there is nothing to keep.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # a prefix may be hopeless on some row
            errors = self.errors(models)
        errors = np.where(np.isnan(errors), np.inf, errors)
        steps = int(np.flatnonzero(errors <= errors.min() + EQUAL * errors[0])[0])
        if steps == 0:
            raise TrainingError(
                f"on {self.name} the base rate is the best prefix (error {errors[0]:.4g}), so that no step is kept; "
                "give more rows, other groups, or no validation"
            )
        return HeldBest(self.name, errors, steps)


def check_epsilon(epsilon: float | None) -> None:
    """Refuse a precision that is none."""
    if epsilon is not None and not (math.isfinite(epsilon) and epsilon > 0):
        raise TrainingError(f"epsilon is {epsilon}; expected a finite number above 0")


def check_steps(sequence: Sequence, epsilon: float | None) -> None:
    """Refuse a sequence that stopped before its first step."""
    if not sequence.steps:
        raise TrainingError(
            f"epsilon is {epsilon:g}, and no group's projection of the responses is longer: the longest has "
            f"{sequence.longest:.4g}; give a smaller epsilon"
        )


def stopped(sequence: Sequence, names: tuple[str, ...], epsilon: float | None, held: HeldBest | None) -> Stopped | None:
    """The record of where a sequence of some of the groups ended, and why; None where nothing could stop it.

    Parameters
    ----------
    sequence : as it is kept.  names : of all groups.
    """
    if epsilon is None and held is None:
        return None
    taken = {g for step in sequence.steps for g in step.adds}
    cut = held is not None and held.steps < len(held.errors) - 1
    by_epsilon = sequence.longest is not None and not cut
    return Stopped(
        rule="validation" if cut else "epsilon" if by_epsilon else None,
        steps=len(sequence.steps),
        epsilon=epsilon,
        longest=sequence.longest if by_epsilon else None,
        validation=None if held is None else held.name,
        errors=None if held is None else tuple(e if math.isfinite(e) else None for e in held.errors.tolist()),
        left_out=tuple(name for g, name in enumerate(names) if g not in taken),
    )
