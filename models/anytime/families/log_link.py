"""The families with a log link: log-linear regressions of counts and of positive amounts."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from math import log, nan
from typing import ClassVar, Self

import numpy as np
from scipy.special import xlogy

from anytime.errors import TrainingError
from anytime.families.family import Family, Link
from anytime.types import Bool, FamilyName, Float, Task

MAX_SCORE = 500.0
"""Maximum score, beyond which the mean stays constant and finite; exp(500) is 1e217."""

MIN_DISPERSION, MAX_DISPERSION = 1e-6, 1e6
"""Range of the dispersion, in which the loss has at least nine digits."""


class LogLink(Family):
    """A family of one response, 0 or more, whose expectation is exp(eta); of counts, unless it says otherwise."""

    tasks: ClassVar[tuple[Task, ...]] = ("count",)
    noun = "count"
    expected = "counts, 0 or more"
    link = Link(
        "log",
        "logarithm of the expected value",
        """\
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        output[r] = exp(scores[r] > 500 ? 500 : scores[r]);""",
    )
    extrapolates = False
    least = 0.0

    @abstractmethod
    def variance(self, mean: Float) -> Float:
        """Return the variance of a response with this mean, up to a constant factor."""

    def start(self, mean: Float) -> Float:
        return np.log(mean)

    @np.errstate(under="ignore")
    def mean(self, scores: Float) -> Float:
        return np.exp(np.minimum(scores, MAX_SCORE))

    def deviation(self, mean: Float, scale: Float) -> Float:  # noqa: ARG002
        """Return standard deviations (rows, 1) of the responses, with which scores are Pearson residuals."""
        return np.sqrt(self.variance(mean))


class Poisson(LogLink):
    """The Poisson family, of counts: phi(eta) = exp eta.

    One response, 0 or more: a count, or a rate with its exposure as weight.
    """

    name = "poisson"

    def saturated(self, Y: Float) -> Float:
        """Return y - y log y."""
        return np.asarray((Y - xlogy(Y, Y)).sum(axis=1))

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        mean = np.exp(eta)
        return (mean - Y * eta)[:, 0], Y - mean

    def curvature(self, eta: Float, Y: Float) -> Float:  # noqa: ARG002
        return np.exp(eta)

    def variance(self, mean: Float) -> Float:
        return mean


class Gamma(LogLink):
    """The gamma family, of amounts and durations whose standard deviation is proportional to their mean.

    One response above 0. The loss is log mean + y/mean; the shape parameter divides it and changes no optimum.
    """

    name = "gamma"
    tasks = ("regression",)
    known_variance = False
    noun = "amount"
    expected = "amounts above 0"

    def valid(self, Y: Float) -> Bool:
        return np.asarray(Y > 0.0)

    def saturated(self, Y: Float) -> Float:
        """Return 1 + log y."""
        return np.asarray((1.0 + np.log(Y)).sum(axis=1))

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        ratio = Y * np.exp(-eta)
        return (eta + ratio)[:, 0], ratio - 1.0

    def curvature(self, eta: Float, Y: Float) -> Float:
        return np.asarray(Y * np.exp(-eta))

    def variance(self, mean: Float) -> Float:
        return np.square(mean)


@dataclass(frozen=True)
class NegativeBinomial(LogLink):
    """The negative binomial family, of counts that vary more than those of a Poisson.

    One response, 0 or more: a count. The loss is (y + 1/a) log(1 + a mean) - y log mean, for dispersion a. The variance
    is mean + a mean^2 ("NB2"; Cameron and Trivedi, "Regression Analysis of Count Data", section 3.3). The dispersion is
    stated, not learned: a Poisson has 0, a geometric distribution 1.
    """

    dispersion: float = 1.0

    name: ClassVar[FamilyName] = "negative-binomial"

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

    @cached_property
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
