"""The gamma family with a log link: amounts and durations whose standard deviation is proportional to their mean."""

from __future__ import annotations

import numpy as np

from anytime.families.family import LogLink
from anytime.types import Bool, Float


class Gamma(LogLink):
    """One response above 0. The loss is log mean + y/mean; the shape parameter divides it and changes no optimum."""

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
