"""The Poisson family: phi(eta) = exp eta, the log-linear regression of counts."""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy

from anytime.families.family import LogLink
from anytime.types import Float


class Poisson(LogLink):
    """One response, 0 or more: a count, or a rate with its exposure as weight."""

    name = "poisson"
    tasks = ("count",)
    noun = "count"
    expected = "counts, 0 or more"

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
