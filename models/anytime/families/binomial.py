"""The binomial family: phi(eta) = log(1 + exp eta), the logistic regression of the second of two classes."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logit, xlogy

from anytime.families.family import Link, OneResponse
from anytime.types import Float


class Binomial(OneResponse):
    """One response in [0, 1]: the second class, or its share."""

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

    def mean(self, scores: Float) -> Float:
        return np.asarray(expit(scores))
