"""Poisson: phi(eta) = exp eta, the log-linear regression of counts."""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy

from anytime.arrays import Float
from anytime.manifest import FamilyName, Link

__all__ = ["Poisson"]

LARGEST = 500.0
"""Largest score whose mean is told as it is; exp(500) is 1e217, and what is told must be finite."""


class Poisson:
    """One response, 0 or more: a count, or a rate with its exposure as weight."""

    name: FamilyName = "poisson"
    link: Link = "log"

    def predictors(self, responses: int) -> int:
        """One."""
        return responses

    def start(self, mean: Float) -> Float:
        """The logarithm of the mean count."""
        return np.log(mean)

    def saturated(self, Y: Float) -> Float:
        """The sum of y - y log y."""
        least: Float = (Y - xlogy(Y, Y)).sum(axis=1)
        return least

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """exp(eta) - y eta, and y - exp(eta)."""
        mean = np.exp(eta)
        return (mean - Y * eta).sum(axis=1), Y - mean

    def hessian(self, eta: Float) -> Float:
        """exp(eta)."""
        weight: Float = np.exp(eta)
        return weight[:, :, np.newaxis]

    def bend(self, eta: Float, direction: Float) -> Float:
        """The second derivatives times a direction."""
        curved: Float = np.exp(eta) * direction
        return curved

    def scores(self, eta: Float) -> Float:
        """The predictor itself."""
        return eta

    def mean(self, scores: Float) -> Float:
        """The expected count."""
        return np.exp(np.minimum(scores, LARGEST))
