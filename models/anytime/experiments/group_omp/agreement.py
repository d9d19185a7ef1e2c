"""Whether a published mean agrees with ours: within three standard errors, ours alone or both."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anytime.experiments.experiment import Estimate

__all__ = ["Compared"]

ERRORS = 3.0
"""Standard errors within which means agree."""


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
