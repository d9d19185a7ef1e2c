"""The likelihoods of classes."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.linalg import helmert
from scipy.special import expit, logit, xlogy

from anytime.families.family import Family, Link
from anytime.types import Float


class Binomial(Family):
    """The binomial family, the logistic regression of the second of two classes: phi(eta) = log(1 + exp eta).

    One response in [0, 1]: the second class, or its share.
    """

    name = "binomial"
    tasks = ("binary",)
    link = Link(
        "logit",
        "log-odds",
        """\
    output[1] = 1 / (1 + exp(-scores[0]));
    output[0] = 1 - output[1];""",
    )
    by_class = True

    def start(self, mean: Float) -> Float:
        return np.asarray(logit(mean))

    def saturated(self, Y: Float) -> Float:
        """Return -(y log y + (1 - y) log(1 - y)); 0 for classes."""
        return np.asarray(-(xlogy(Y, Y) + xlogy(1.0 - Y, 1.0 - Y)).sum(axis=1))

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        tail = np.exp(-np.abs(eta))  # a sixth of the time of logaddexp and expit; `where` takes as long as both
        value = np.maximum(eta, 0.0) + np.log1p(tail) - Y * eta
        return value[:, 0], Y - np.exp(np.minimum(eta, 0.0)) / (1.0 + tail)

    def curvature(self, eta: Float, Y: Float) -> Float:  # noqa: ARG002
        """Return p (1 - p), without the cancellation in 1 - p."""
        tail = np.exp(-np.abs(eta))
        return np.asarray(tail / np.square(1.0 + tail))

    @np.errstate(under="ignore")
    def mean(self, scores: Float) -> Float:
        return np.asarray(expit(scores))


@cache
def _basis(classes: int) -> Float:
    """Return the (K - 1, K) rows of a Helmert matrix: orthonormal, each with sum 0."""
    return np.asarray(helmert(classes))


class Multinomial(Family):
    """The multinomial family, the softmax regression of K classes: phi(eta) = log sum_k exp(s_k).

    K responses that are 0 or more and sum to 1: the indicators of the classes. Their scores s are known only up to a
    constant. With a penalty their coefficients sum to 0 over them. K - 1 free predictors in an orthonormal basis B of
    the vectors that sum to 0 therefore suffice: s = B eta, and |W_s|_F = |W_eta|_F, so the penalty and the optimum are
    those of the symmetric model.
    """

    name = "multinomial"
    tasks = ("multiclass",)
    link = Link(
        "softmax",
        "log-odds",
        """\
    ANYTIME_REAL largest = scores[0], total = 0;
    for (size_t r = 1; r < ${NAME}_OUTPUTS; r++)
        largest = scores[r] > largest ? scores[r] : largest;
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        total += output[r] = exp(scores[r] - largest);
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        output[r] /= total;""",
    )
    by_class = True
    shares = True

    def predictors(self, responses: int) -> int:
        return responses - 1

    def contrasts(self, predictors: int) -> Float:
        return _basis(predictors + 1)

    def start(self, mean: Float) -> Float:
        """Return the logarithms of the shares in the basis B, which removes their common constant."""
        return np.asarray(_basis(len(mean)) @ np.log(mean))

    def saturated(self, Y: Float) -> Float:
        """Return 0 for classes, and the entropy for shares."""
        return np.asarray(-xlogy(Y, Y).sum(axis=1))

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """Return log sum exp s - y's, and B'(y - p)."""
        B, y = _basis(Y.shape[1]).astype(eta.dtype), Y.T
        s = B.T @ eta.T
        s -= s.max(axis=0)
        powers = np.exp(s)
        total = powers.sum(axis=0)
        value: Float = np.log(total) - np.einsum("ki,ki->i", y, s)
        powers /= total
        return value, (B @ (y - powers)).T

    def curvature(self, eta: Float, Y: Float) -> Float:  # noqa: ARG002
        return _softmax(self.contrasts(eta.shape[1]).astype(eta.dtype).T @ eta.T).T

    def mean(self, scores: Float) -> Float:
        return _softmax(scores.T).T


@np.errstate(under="ignore")
def _softmax(scores: Float) -> Float:
    """Return probabilities (K, rows) from scores (K, rows)."""
    powers = np.exp(scores - scores.max(axis=0))
    powers /= powers.sum(axis=0)
    return np.asarray(powers)
