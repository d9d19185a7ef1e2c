"""What the UAI paper claims of the methods' timeliness, and how a measured difference is judged by it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

from anytime.experiments.experiment import Estimate

__all__ = ["ORDER", "Claim", "listed", "ranged"]

ROUNDING = 1e-9
"""Differences of timeliness under this are none."""


@dataclass(frozen=True)
class Claim:
    """The paper's word that one method is at least as timely as another, or more."""

    better: str
    worse: str
    strictly: bool = False

    @property
    def words(self) -> str:
        """The claim in short."""
        return f"{self.better} {'>' if self.strictly else '>='} {self.worse}"

    def difference(self, values: Mapping[str, Many[float]]) -> Estimate:
        """How much better it was, paired over the runs, by the timeliness of each method's runs."""
        return Estimate.of_difference(values[self.better], values[self.worse])

    def judged(self, difference: Estimate) -> bool | None:
        """Whether a paired difference agrees, by its 95 % interval; None where it cannot tell.

        At least as good: the interval does not lie below 0 whole. Better: it lies above 0 whole; it refutes that where
        no part of it is above 0.
        """
        if difference.error is None:
            return None
        low, high = difference.mean - difference.margin, difference.mean + difference.margin
        if not self.strictly:
            return high >= -ROUNDING
        return True if low > 0 else False if high <= ROUNDING else None


ORDER = (
    Claim("CS-G-FR", "CS-G-OMP"),
    Claim("CS-G-OMP", "Single"),
    Claim("CS-G-OMP", "No-Whiten"),
    Claim("CS-G-OMP", "G-OMP", strictly=True),
    Claim("CS-G-OMP", "Sparse (shrunken)", strictly=True),
    Claim("Single", "G-OMP", strictly=True),
    Claim("No-Whiten", "G-OMP", strictly=True),
    Claim("Single", "Sparse (shrunken)", strictly=True),
    Claim("No-Whiten", "Sparse (shrunken)", strictly=True),
)
"""FR >= OMP >= {Single, No-Whiten} > {G-OMP, Sparse}, pair by pair."""


def listed(differences: Mapping[str, Estimate]) -> str:
    """Differences by label, in a line."""
    return ", ".join(f"{label} {d.mean:+.4f} ± {d.error or 0.0:.4f}".strip() for label, d in differences.items())


def ranged(differences: Mapping[str, Estimate]) -> str:
    """From which difference to which."""
    means = sorted(difference.mean for difference in differences.values())
    return f"{means[0]:+.4f}" if len(means) == 1 else f"{means[0]:+.4f} to {means[-1]:+.4f}"
