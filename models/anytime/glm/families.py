"""Families of generalised linear models: E[y|x] = grad phi(W x) (appendix B of the paper).

A family is defined by its convex phi. Training minimises the mean of phi(eta) - y'eta over the rows, with eta = W x and
an unpenalised intercept, plus alpha/2 |W|^2.

- Gaussian: phi(eta) = |eta|^2 / 2, smallest squares. Training uses moments for it; this class completes the set.
- Binomial: phi(eta) = log(1 + exp eta), the logistic regression of the second of two classes.
- Multinomial: phi(eta) = log sum_k exp(s_k), the softmax regression of K classes.
- Poisson: phi(eta) = exp eta, the log-linear regression of counts.

The scores s of the classes of a multinomial are known only up to a constant. With a penalty their coefficients sum to 0
over the classes. K - 1 free predictors in an orthonormal basis B of the vectors that sum to 0 therefore suffice:
s = B eta, and |W_s|_F = |W_eta|_F, so the penalty and the optimum are those of the symmetric model.

To add a family, write a class like `Poisson`, and add its name to `anytime.types.FamilyName` and to `FAMILIES`.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import numpy as np
from scipy.linalg import helmert
from scipy.special import expit, logit, xlogy

from anytime.types import FamilyName, Float, Link

__all__ = [
    "FAMILIES",
    "Binomial",
    "Family",
    "Gaussian",
    "Multinomial",
    "Poisson",
    "deviances",
]


class Gaussian:
    """Real responses with errors of equal variance."""

    name: FamilyName = "gaussian"
    link: Link = "identity"

    def predictors(self, responses: int) -> int:
        """Return the number of responses."""
        return responses

    def start(self, mean: Float) -> Float:
        """Return the means."""
        return mean

    def saturated(self, Y: Float) -> Float:
        """Return -|y|^2 / 2."""
        smallest: Float = -0.5 * np.square(Y).sum(axis=1)
        return smallest

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """Return |eta|^2 / 2 - y'eta, and the residual."""
        return (eta * (0.5 * eta - Y)).sum(axis=1), Y - eta

    def hessian(self, eta: Float) -> Float:
        """Return the identity."""
        rows, Q = eta.shape
        return np.broadcast_to(np.eye(Q), (rows, Q, Q))

    def bend(self, eta: Float, direction: Float) -> Float:  # noqa: ARG002
        """Return the second derivatives times a direction."""
        return direction

    def scores(self, eta: Float) -> Float:
        """Return the predictors."""
        return eta

    def mean(self, scores: Float) -> Float:
        """Return the scores."""
        return scores


class Binomial:
    """One response in [0, 1]: the second class, or its share."""

    name: FamilyName = "binomial"
    link: Link = "logit"

    def predictors(self, responses: int) -> int:
        """Return 1."""
        return responses

    def start(self, mean: Float) -> Float:
        """Return the log-odds of the second class."""
        odds: Float = logit(mean)
        return odds

    def saturated(self, Y: Float) -> Float:
        """Return -(y log y + (1 - y) log(1 - y)); 0 for classes."""
        safe = np.clip(Y, 1e-300, 1.0)
        other = np.clip(1.0 - Y, 1e-300, 1.0)
        smallest: Float = -(Y * np.log(safe) + (1.0 - Y) * np.log(other)).sum(axis=1)
        return smallest

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """Return log(1 + exp eta) - y eta, and y - p."""
        return (np.logaddexp(0.0, eta) - Y * eta).sum(axis=1), Y - expit(eta)

    def hessian(self, eta: Float) -> Float:
        """Return p (1 - p), without the cancellation in 1 - p."""
        weight: Float = expit(eta) * expit(-eta)
        return weight[:, :, np.newaxis]

    def bend(self, eta: Float, direction: Float) -> Float:
        """Return the second derivatives times a direction."""
        curved: Float = expit(eta) * expit(-eta) * direction
        return curved

    def scores(self, eta: Float) -> Float:
        """Return the predictor."""
        return eta

    def mean(self, scores: Float) -> Float:
        """Return the probability of the second class."""
        probability: Float = expit(scores)
        return probability


@cache
def _basis(classes: int) -> Float:
    """Return the (K - 1, K) rows of a Helmert matrix: orthonormal, each with sum 0."""
    rows: Float = helmert(classes)
    return rows


class Multinomial:
    """K responses that are 0 or more and sum to 1: the indicators of the classes."""

    name: FamilyName = "multinomial"
    link: Link = "softmax"

    def predictors(self, responses: int) -> int:
        """Return the number of classes minus 1."""
        return responses - 1

    def start(self, mean: Float) -> Float:
        """Return the logarithms of the shares in the basis B, which removes their common constant."""
        predictors: Float = _basis(len(mean)) @ np.log(mean)
        return predictors

    def saturated(self, Y: Float) -> Float:
        """Return 0 for classes, and the entropy for shares."""
        smallest: Float = -(Y * np.log(np.clip(Y, 1e-300, 1.0))).sum(axis=1)
        return smallest

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """Return log sum exp s - y's, and B'(y - p)."""
        scores = self.scores(eta)
        scores -= scores.max(axis=1, keepdims=True)
        powers = np.exp(scores)
        total = powers.sum(axis=1, keepdims=True)
        value: Float = np.log(total[:, 0]) - np.einsum("ik,ik->i", Y, scores)
        return value, (Y - powers / total) @ _basis(Y.shape[1]).T

    def hessian(self, eta: Float) -> Float:
        """Return B'(diag p - p p')B."""
        rows, Q = eta.shape
        B = _basis(Q + 1)
        p = self.mean(self.scores(eta))
        squares = (B[:, np.newaxis] * B).reshape(Q * Q, Q + 1)
        mean = p @ B.T
        curvature: Float = (p @ squares.T).reshape(rows, Q, Q) - mean[:, :, np.newaxis] * mean[:, np.newaxis, :]
        return curvature

    def bend(self, eta: Float, direction: Float) -> Float:
        """Return the second derivatives times a direction."""
        p = self.mean(self.scores(eta))
        s = self.scores(direction)
        curved: Float = (p * (s - np.einsum("ik,ik->i", p, s)[:, np.newaxis])) @ _basis(p.shape[1]).T
        return curved

    def scores(self, eta: Float) -> Float:
        """Return B eta."""
        scores: Float = eta @ _basis(eta.shape[1] + 1)
        return scores

    def mean(self, scores: Float) -> Float:
        """Return the probabilities of the classes."""
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities: Float = powers / powers.sum(axis=1, keepdims=True)
        return probabilities


MAX_SCORE = 500.0
"""Maximum score, beyond which the mean stays constant and finite; exp(500) is 1e217."""


class Poisson:
    """One response, 0 or more: a count, or a rate with its exposure as weight."""

    name: FamilyName = "poisson"
    link: Link = "log"

    def predictors(self, responses: int) -> int:
        """Return 1."""
        return responses

    def start(self, mean: Float) -> Float:
        """Return the logarithm of the mean count."""
        return np.log(mean)

    def saturated(self, Y: Float) -> Float:
        """Return y - y log y."""
        smallest: Float = (Y - xlogy(Y, Y)).sum(axis=1)
        return smallest

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """Return exp(eta) - y eta, and y - exp(eta)."""
        mean = np.exp(eta)
        return (mean - Y * eta).sum(axis=1), Y - mean

    def hessian(self, eta: Float) -> Float:
        """Return exp(eta)."""
        weight: Float = np.exp(eta)
        return weight[:, :, np.newaxis]

    def bend(self, eta: Float, direction: Float) -> Float:
        """Return the second derivatives times a direction."""
        curved: Float = np.exp(eta) * direction
        return curved

    def scores(self, eta: Float) -> Float:
        """Return the predictor."""
        return eta

    def mean(self, scores: Float) -> Float:
        """Return the expected count."""
        return np.exp(np.minimum(scores, MAX_SCORE))


class Family(Protocol):
    """phi with its derivatives.

    A row has P responses y and Q free predictors eta. Q is P except for the multinomial, whose P predictors sum to 0.
    """

    name: FamilyName
    link: Link

    def predictors(self, responses: int) -> int:
        """Return Q for P responses."""

    def start(self, mean: Float) -> Float:
        """Return the predictors (Q,) of the base rate: the link of the mean responses (P,)."""

    def saturated(self, Y: Float) -> Float:
        """Return the smallest possible loss (rows,) of responses Y (rows, P): that of a perfect fit."""

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """Return phi(eta) - y'eta (rows,), and its negative gradient in eta, y - grad phi (rows, Q)."""

    def hessian(self, eta: Float) -> Float:
        """Return the second derivatives of phi, (rows, Q, Q), positive semi-definite."""

    def bend(self, eta: Float, direction: Float) -> Float:
        """Return the second derivatives times a direction (rows, Q), row by row."""

    def scores(self, eta: Float) -> Float:
        """Return the predictors (rows, P) of the responses from the free ones (rows, Q); linear."""

    def mean(self, scores: Float) -> Float:
        """Return E[y|x] (rows, P) from scores (rows, P): the inverse link."""


FAMILIES: dict[FamilyName, Family] = {
    "gaussian": Gaussian(),
    "binomial": Binomial(),
    "multinomial": Multinomial(),
    "poisson": Poisson(),
}
"""Every family by name."""


def deviances(family: Family, scores: Float, Y: Float) -> Float:
    """Return the deviance 2 (loss - saturated loss) of each row, from scores and responses (rows, P)."""
    basis = family.scores(np.eye(family.predictors(scores.shape[1])))
    # The basis is orthonormal, so its transpose maps scores to the free predictors.
    with np.errstate(over="ignore", invalid="ignore"):
        loss, _ = family.loss(scores @ basis.T, Y)
    found: Float = 2.0 * (loss - family.saturated(Y))
    return found
