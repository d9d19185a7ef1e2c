"""Families of generalised linear models: E[y|x] = grad phi(W x) (appendix B of the paper).

A family is defined by its convex phi. Training minimises the mean of phi(eta) - y'eta over the rows, with eta = W x and
an unpenalised intercept, plus alpha/2 |W|^2.

- Gaussian: phi(eta) = |eta|^2 / 2, least squares. Training uses moments for it; this class completes the set.
- Binomial: phi(eta) = log(1 + exp eta), the logistic regression of the second of two classes.
- Multinomial: phi(eta) = log sum_k exp(s_k), the softmax regression of K classes.
- Poisson: phi(eta) = exp eta, the log-linear regression of counts.

The scores s of the classes of a multinomial are known only up to a constant. With a penalty their coefficients sum to 0
over the classes. K - 1 free predictors in an orthonormal basis B of the vectors that sum to 0 therefore suffice:
s = B eta, and |W_s|_F = |W_eta|_F, so the penalty and the optimum are those of the symmetric model.

A new family also needs its name in `anytime.types`, its task in `target.py` and its link in `model/prefixes.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import ClassVar

import numpy as np
from scipy.linalg import helmert
from scipy.special import expit, logit, xlogy

from anytime.types import FamilyName, Float, Link


class Family(ABC):
    """phi with its derivatives.

    A row has P responses y and Q free predictors eta. Q is P except for the multinomial, whose P predictors sum to 0.
    """

    name: ClassVar[FamilyName]
    link: ClassVar[Link]

    def predictors(self, responses: int) -> int:
        """Return Q for P responses."""
        return responses

    @abstractmethod
    def start(self, mean: Float) -> Float:
        """Return the predictors (Q,) of the base rate: the link of the mean responses (P,)."""

    @abstractmethod
    def saturated(self, Y: Float) -> Float:
        """Return the smallest possible loss (rows,) of responses Y (rows, P): that of a perfect fit."""

    @abstractmethod
    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """Return phi(eta) - y'eta (rows,), and its negative gradient in eta, y - grad phi (rows, Q)."""

    @abstractmethod
    def hessian(self, eta: Float) -> Float:
        """Return the second derivatives of phi, (rows, Q, Q), positive semi-definite."""

    @abstractmethod
    def bend(self, eta: Float) -> Callable[[Float], Float]:
        """Return the product of the second derivatives with directions (rows, Q), row by row."""

    def scores(self, eta: Float) -> Float:
        """Return the predictors (rows, P) of the responses from the free ones (rows, Q); linear."""
        return eta

    @abstractmethod
    def mean(self, scores: Float) -> Float:
        """Return E[y|x] (rows, P) from scores (rows, P): the inverse link."""


class _Gaussian(Family):
    name = "gaussian"
    link = "identity"

    def start(self, mean: Float) -> Float:
        return mean

    def saturated(self, Y: Float) -> Float:
        return np.asarray(-0.5 * np.square(Y).sum(axis=1))

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        return (eta * (0.5 * eta - Y)).sum(axis=1), Y - eta

    def hessian(self, eta: Float) -> Float:
        rows, Q = eta.shape
        return np.broadcast_to(np.eye(Q), (rows, Q, Q))

    def bend(self, eta: Float) -> Callable[[Float], Float]:  # noqa: ARG002
        return lambda direction: direction

    def mean(self, scores: Float) -> Float:
        return scores


class _OneResponse(Family):
    """A family of one response, whose second derivative is a number per row."""

    @abstractmethod
    def curvature(self, eta: Float) -> Float:
        """Return the second derivative of phi, (rows, 1)."""

    def hessian(self, eta: Float) -> Float:
        return self.curvature(eta)[:, :, np.newaxis]

    def bend(self, eta: Float) -> Callable[[Float], Float]:
        h = self.curvature(eta)
        return lambda direction: h * direction


class _Binomial(_OneResponse):
    """One response in [0, 1]: the second class, or its share."""

    name = "binomial"
    link = "logit"

    def start(self, mean: Float) -> Float:
        return np.asarray(logit(mean))

    def saturated(self, Y: Float) -> Float:
        """Return -(y log y + (1 - y) log(1 - y)); 0 for classes."""
        return np.asarray(-(xlogy(Y, Y) + xlogy(1.0 - Y, 1.0 - Y)).sum(axis=1))

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        tail = np.exp(-np.abs(eta))  # one exponential for both: a third of the time of logaddexp and expit
        value = np.maximum(eta, 0.0) + np.log1p(tail) - Y * eta
        return value[:, 0], Y - np.where(eta >= 0.0, 1.0, tail) / (1.0 + tail)

    def curvature(self, eta: Float) -> Float:
        """Return p (1 - p), without the cancellation in 1 - p."""
        return np.asarray(expit(eta) * expit(-eta))

    def mean(self, scores: Float) -> Float:
        return np.asarray(expit(scores))


@cache
def _basis(classes: int) -> Float:
    """Return the (K - 1, K) rows of a Helmert matrix: orthonormal, each with sum 0."""
    return np.asarray(helmert(classes))


class _Multinomial(Family):
    """K responses that are 0 or more and sum to 1: the indicators of the classes."""

    name = "multinomial"
    link = "softmax"

    def predictors(self, responses: int) -> int:
        return responses - 1

    def start(self, mean: Float) -> Float:
        """Return the logarithms of the shares in the basis B, which removes their common constant."""
        return np.asarray(_basis(len(mean)) @ np.log(mean))

    def saturated(self, Y: Float) -> Float:
        """Return 0 for classes, and the entropy for shares."""
        return np.asarray(-xlogy(Y, Y).sum(axis=1))

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """Return log sum exp s - y's, and B'(y - p).

        Classes are rows here and below: sums over a few classes take a tenth of the time.
        """
        B, y = _basis(Y.shape[1]).astype(eta.dtype), Y.T
        s = B.T @ eta.T
        s -= s.max(axis=0)
        powers = np.exp(s)
        total = powers.sum(axis=0)
        value: Float = np.log(total) - np.einsum("ki,ki->i", y, s)
        powers /= total
        return value, (B @ (y - powers)).T

    def hessian(self, eta: Float) -> Float:
        """Return B'(diag p - p p')B."""
        rows, Q = eta.shape
        B = _basis(Q + 1).astype(eta.dtype)
        p = _softmax(B.T @ eta.T)
        squares = (B[:, np.newaxis] * B).reshape(Q * Q, Q + 1)
        mean = B @ p
        h = (squares @ p).reshape(Q, Q, rows)
        h -= mean[:, np.newaxis] * mean
        return np.asarray(h.transpose(2, 0, 1))

    def bend(self, eta: Float) -> Callable[[Float], Float]:
        B = _basis(eta.shape[1] + 1).astype(eta.dtype)
        p = _softmax(B.T @ eta.T)

        def product(direction: Float) -> Float:
            s = B.T @ direction.T
            return np.asarray((B @ (p * (s - np.einsum("ki,ki->i", p, s)))).T)

        return product

    def scores(self, eta: Float) -> Float:
        return np.asarray(eta @ _basis(eta.shape[1] + 1))

    def mean(self, scores: Float) -> Float:
        return _softmax(scores.T).T


def _softmax(scores: Float) -> Float:
    """Return probabilities (K, rows) from scores (K, rows)."""
    powers = np.exp(scores - scores.max(axis=0))
    powers /= powers.sum(axis=0)
    return np.asarray(powers)


MAX_SCORE = 500.0
"""Maximum score, beyond which the mean stays constant and finite; exp(500) is 1e217."""


class _Poisson(_OneResponse):
    """One response, 0 or more: a count, or a rate with its exposure as weight."""

    name = "poisson"
    link = "log"

    def start(self, mean: Float) -> Float:
        return np.log(mean)

    def saturated(self, Y: Float) -> Float:
        """Return y - y log y."""
        return np.asarray((Y - xlogy(Y, Y)).sum(axis=1))

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        mean = np.exp(eta)
        return (mean - Y * eta)[:, 0], Y - mean

    def curvature(self, eta: Float) -> Float:
        return np.exp(eta)

    def mean(self, scores: Float) -> Float:
        return np.exp(np.minimum(scores, MAX_SCORE))


FAMILIES: dict[FamilyName, Family] = {
    "gaussian": _Gaussian(),
    "binomial": _Binomial(),
    "multinomial": _Multinomial(),
    "poisson": _Poisson(),
}
"""Every family by name."""


def deviances(family: Family, scores: Float, Y: Float) -> Float:
    """Return the deviance 2 (loss - saturated loss) of each row, from scores and responses (rows, P)."""
    basis = family.scores(np.eye(family.predictors(scores.shape[1])))
    # The basis is orthonormal, so its transpose maps scores to the free predictors.
    with np.errstate(over="ignore", invalid="ignore"):
        loss, _ = family.loss(scores @ basis.T, Y)
    return 2.0 * (loss - family.saturated(Y))
