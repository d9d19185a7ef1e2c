"""The negative binomial family with a log link: counts that vary more than those of a Poisson.

The variance is mean + dispersion mean^2 ("NB2"; Cameron and Trivedi, "Regression Analysis of Count Data", section 3.3).
The dispersion is stated, not learned: a Poisson has 0, a geometric distribution 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, nan
from typing import ClassVar, Self

import numpy as np
from scipy.special import xlogy

from anytime.errors import TrainingError
from anytime.families.family import LogLink
from anytime.types import FamilyName, Float

MIN_DISPERSION, MAX_DISPERSION = 1e-6, 1e6
"""Range of the dispersion, in which the loss has at least nine digits."""


@dataclass(frozen=True)
class NegativeBinomial(LogLink):
    """One response, 0 or more: a count. The loss is (y + 1/a) log(1 + a mean) - y log mean, for dispersion a."""

    dispersion: float = 1.0

    name: ClassVar[FamilyName] = "negative-binomial"
    tasks = ("count",)
    noun = "count"
    expected = "counts, 0 or more"

    @classmethod
    def of(cls, parameter: str | None) -> Self:
        if parameter is None:
            return cls()
        try:
            dispersion = float(parameter)
        except ValueError:
            dispersion = nan
        if not MIN_DISPERSION <= dispersion <= MAX_DISPERSION:
            raise TrainingError(
                f"family is {f'{cls.name}:{parameter}'!r}; expected a dispersion from {MIN_DISPERSION:g} to "
                f"{MAX_DISPERSION:g}, such as {cls.name}:0.5"
            )
        return cls(dispersion)

    @property
    def label(self) -> FamilyName:
        return f"{self.name}:{str(self.dispersion).removesuffix('.0')}"

    def saturated(self, Y: Float) -> Float:
        a = self.dispersion
        return np.asarray(((Y + 1.0 / a) * np.log1p(a * Y) - xlogy(Y, Y)).sum(axis=1))

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """Return the loss, and (y - mean)/(1 + a mean).

        Both use exp(-|eta + log a|) alone, so that an extreme predictor gives a finite loss.
        """
        a = self.dispersion
        shifted = eta + log(a)  # a mean = exp(shifted)
        tail = np.exp(-np.abs(shifted))
        logs = np.maximum(shifted, 0.0) + np.log1p(tail)
        share = np.where(shifted >= 0.0, 1.0, tail) / (1.0 + tail)  # a mean / (1 + a mean)
        return ((Y + 1.0 / a) * logs - Y * eta)[:, 0], Y - (Y + 1.0 / a) * share

    def curvature(self, eta: Float, Y: Float) -> Float:
        """Return (y + 1/a) s (1 - s) with s = a mean / (1 + a mean)."""
        tail = np.exp(-np.abs(eta + log(self.dispersion)))
        return np.asarray((Y + 1.0 / self.dispersion) * tail / np.square(1.0 + tail))

    def variance(self, mean: Float) -> Float:
        return mean * (1.0 + self.dispersion * mean)
