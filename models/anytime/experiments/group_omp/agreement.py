"""Whether a published mean agrees with ours, and which way a paired difference points."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anytime.experiments.experiment import Estimate

__all__ = ["FEW", "Compared", "direction", "verdict"]

ERRORS = 3.0
"""Standard errors within which means agree: a table has dozens of cells, one in twenty of which is outside 95 %."""

FEW = 20
"""Runs under which there is no verdict on published means: all would agree with errors as large."""


@dataclass(frozen=True)
class Compared:
    """A published mean beside ours.

    Attributes
    ----------
    where, row : the cell: experiment and measure, and the row of the table.
    published, ours : what was printed, and what we found.
    rounding : half a unit of the last digit printed.
    """

    where: str
    row: str
    published: Estimate
    ours: Estimate
    rounding: float = 0.0005

    @property
    def away(self) -> float:
        """How far apart the means are, less the rounding."""
        return max(abs(self.published.mean - self.ours.mean) - self.rounding, 0.0)

    @property
    def strict(self) -> bool:
        """Published within ours, plus or minus three of our standard errors."""
        return self.away <= ERRORS * (self.ours.error or 0.0)

    @property
    def agrees(self) -> bool:
        """The difference is within three of its standard errors, to which the published mean adds its own."""
        return self.away <= ERRORS * math.hypot(self.ours.error or 0.0, self.published.error or 0.0)

    @property
    def verdict(self) -> str:
        """In words, for a table."""
        return "yes" if self.strict else "by both errors" if self.agrees else "no"


def verdict(agrees: bool, runs: int) -> bool | None:
    """What a comparison with published means says, or None where it rests on too few runs to say it."""
    return agrees if runs >= FEW else None


def direction(difference: Estimate) -> int:
    """1 or -1 where the 95 % interval of a difference is all above or all below 0, otherwise 0: not told apart."""
    if difference.runs < 2 or abs(difference.mean) <= difference.margin:
        return 0
    return 1 if difference.mean > 0.0 else -1
