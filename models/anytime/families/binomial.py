"""Binomial: phi(eta) = log(1 + exp eta), the logistic regression of the second of two classes."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logit

from anytime.arrays import Float
from anytime.manifest import FamilyName, Link

__all__ = ["Binomial"]


class Binomial:
    """One response in [0, 1]: the second class, or a share of it."""

    name: FamilyName = "binomial"
    link: Link = "logit"

    def predictors(self, responses: int) -> int:
        """One."""
        return responses

    def start(self, mean: Float) -> Float:
        """The log-odds of the second class."""
        odds: Float = logit(mean)
        return odds

    def saturated(self, Y: Float) -> Float:
        """-Sum of y log y + (1 - y) log(1 - y); 0 for classes."""
        safe = np.clip(Y, 1e-300, 1.0)
        other = np.clip(1.0 - Y, 1e-300, 1.0)
        least: Float = -(Y * np.log(safe) + (1.0 - Y) * np.log(other)).sum(axis=1)
        return least

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """log(1 + exp eta) - y eta, and y - p."""
        return (np.logaddexp(0.0, eta) - Y * eta).sum(axis=1), Y - expit(eta)

    def hessian(self, eta: Float) -> Float:
        """P (1 - p), without the cancellation of 1 - p."""
        weight: Float = expit(eta) * expit(-eta)
        return weight[:, :, np.newaxis]

    def bend(self, eta: Float, direction: Float) -> Float:
        """The second derivatives times a direction."""
        curved: Float = expit(eta) * expit(-eta) * direction
        return curved

    def scores(self, eta: Float) -> Float:
        """The predictor itself."""
        return eta

    def mean(self, scores: Float) -> Float:
        """The probability of the second class."""
        probability: Float = expit(scores)
        return probability
