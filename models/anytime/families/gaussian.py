"""Gaussian: phi(eta) = |eta|^2 / 2, least squares. Training takes it from moments; here it is one family more."""

from __future__ import annotations

import numpy as np

from anytime.arrays import Float
from anytime.manifest import FamilyName, Link

__all__ = ["Gaussian"]


class Gaussian:
    """Real responses with errors of one variance."""

    name: FamilyName = "gaussian"
    link: Link = "identity"

    def predictors(self, responses: int) -> int:
        """As many as responses."""
        return responses

    def start(self, mean: Float) -> Float:
        """The means."""
        return mean

    def saturated(self, Y: Float) -> Float:
        """-|y|^2 / 2."""
        least: Float = -0.5 * np.square(Y).sum(axis=1)
        return least

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """|eta|^2 / 2 - y'eta, and the residual."""
        return (eta * (0.5 * eta - Y)).sum(axis=1), Y - eta

    def hessian(self, eta: Float) -> Float:
        """The identity."""
        rows, Q = eta.shape
        return np.broadcast_to(np.eye(Q), (rows, Q, Q))

    def bend(self, eta: Float, direction: Float) -> Float:  # noqa: ARG002
        """The second derivatives times a direction."""
        return direction

    def scores(self, eta: Float) -> Float:
        """The predictors themselves."""
        return eta

    def mean(self, scores: Float) -> Float:
        """The scores."""
        return scores
