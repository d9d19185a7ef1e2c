"""Multinomial: phi(eta) = log sum_k exp(s_k), the softmax regression of K classes.

The scores s of the classes are known up to a constant only. With a penalty their coefficients sum to 0 over the
classes, so nothing is lost in keeping K - 1 free predictors in an orthonormal basis B of the vectors that sum to 0:
s = B eta, and |W_s|_F = |W_eta|_F, so that the penalty, and with it the optimum, is that of the symmetric model.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.linalg import helmert

from anytime.arrays import Float
from anytime.manifest import FamilyName, Link

__all__ = ["Multinomial"]


@cache
def _basis(classes: int) -> Float:
    """(K - 1, K) rows of a Helmert matrix: orthonormal, each summing to 0."""
    rows: Float = helmert(classes)
    return rows


class Multinomial:
    """K responses that are 0 or more and sum to 1: the indicators of the classes."""

    name: FamilyName = "multinomial"
    link: Link = "softmax"

    def predictors(self, responses: int) -> int:
        """One less than classes."""
        return responses - 1

    def start(self, mean: Float) -> Float:
        """The logarithms of the shares, less what is common to them."""
        predictors: Float = _basis(len(mean)) @ np.log(mean)
        return predictors

    def saturated(self, Y: Float) -> Float:
        """0 for classes; shares have their entropy."""
        least: Float = -(Y * np.log(np.clip(Y, 1e-300, 1.0))).sum(axis=1)
        return least

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """Log sum exp s - y's, and B'(y - p)."""
        scores = self.scores(eta)
        scores -= scores.max(axis=1, keepdims=True)
        powers = np.exp(scores)
        total = powers.sum(axis=1, keepdims=True)
        value: Float = np.log(total[:, 0]) - np.einsum("ik,ik->i", Y, scores)
        return value, (Y - powers / total) @ _basis(Y.shape[1]).T

    def hessian(self, eta: Float) -> Float:
        """B'(diag p - p p')B."""
        rows, Q = eta.shape
        B = _basis(Q + 1)
        p = self.mean(self.scores(eta))
        squares = (B[:, np.newaxis] * B).reshape(Q * Q, Q + 1)
        mean = p @ B.T
        curvature: Float = (p @ squares.T).reshape(rows, Q, Q) - mean[:, :, np.newaxis] * mean[:, np.newaxis, :]
        return curvature

    def bend(self, eta: Float, direction: Float) -> Float:
        """The second derivatives times a direction."""
        p = self.mean(self.scores(eta))
        s = self.scores(direction)
        curved: Float = (p * (s - np.einsum("ik,ik->i", p, s)[:, np.newaxis])) @ _basis(p.shape[1]).T
        return curved

    def scores(self, eta: Float) -> Float:
        """B eta."""
        scores: Float = eta @ _basis(eta.shape[1] + 1)
        return scores

    def mean(self, scores: Float) -> Float:
        """The probabilities of the classes."""
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities: Float = powers / powers.sum(axis=1, keepdims=True)
        return probabilities
