"""The Gaussian family: least squares, of numbers or of the indicators of classes."""

from __future__ import annotations

import numpy as np

from anytime.families.family import Family, Link
from anytime.types import Float

SECOND = """\
    if (!isfinite(scores[0]))
        return 0;
    output[1] = scores[0] < 0 ? 0 : scores[0] > 1 ? 1 : scores[0];
    output[0] = 1 - output[1];"""
"""The probabilities of two classes, in C."""

ALL = """\
    ANYTIME_REAL total = 0;
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        total += output[r] = scores[r] < 0 ? 0 : scores[r];
    if (!isfinite(total))
        return 0;
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        output[r] = total > 0 ? output[r] / total : (ANYTIME_REAL)1 / ${NAME}_OUTPUTS;"""
"""The probabilities of more than two classes, in C."""


class Gaussian(Family):
    """Least squares: phi(eta) = |eta|^2 / 2. Moments determine the fit; the derivatives here complete the family."""

    name = "gaussian"
    tasks = ("regression", "binary", "multiclass")
    known_variance = False
    link = Link(
        "identity",
        "score",
        """\
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        output[r] = scores[r];""",
    )
    least_squares = True
    one_column = False
    even_score = 0.5
    explained = "R²"
    error = "error"

    def start(self, mean: Float) -> Float:
        return mean

    def saturated(self, Y: Float) -> Float:
        return np.asarray(-0.5 * np.square(Y).sum(axis=1))

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        return (eta * (0.5 * eta - Y)).sum(axis=1), Y - eta

    def curvature(self, eta: Float, Y: Float) -> Float:  # noqa: ARG002
        return np.ones_like(eta)

    def mean(self, scores: Float) -> Float:
        return scores

    def probabilities(self, scores: Float) -> Float:
        """Return estimates of one-hot classes, clipped at 0 and scaled to sum to 1."""
        if scores.shape[1] == 1:
            second = np.clip(scores, 0.0, 1.0)
            return np.hstack([1.0 - second, second])
        positive = np.clip(scores, 0.0, None)
        total = positive.sum(axis=1, keepdims=True)
        # One-hot estimates sum to 1, so at least one is positive unless rounding of extremely large values removes it.
        even = np.full_like(positive, 1.0 / scores.shape[1])
        return np.asarray(np.divide(positive, total, out=even, where=total > 0))

    def output_code(self, classes: bool, scores: int) -> str:
        if classes:
            return SECOND if scores == 1 else ALL
        return self.link.code
