"""Conversion of scores to class probabilities and expected responses."""

from __future__ import annotations

import numpy as np

from anytime.glm.families import FAMILIES
from anytime.types import FamilyName, Float

__all__ = ["class_probabilities", "expected_responses"]


def class_probabilities(scores: Float, family: FamilyName = "gaussian") -> Float:
    """Return class probabilities (rows, classes) from scores (rows, P); a single score is that of the second of two.

    Least-squares estimates of one-hot classes are clipped at 0 and scaled to sum to 1.
    """
    if scores.shape[1] == 1:
        second = np.clip(scores, 0.0, 1.0) if family == "gaussian" else FAMILIES[family].mean(scores)
        return np.hstack([1.0 - second, second])
    if family != "gaussian":
        # Overflowed scores give NaN; the code that sends answers checks for it.
        with np.errstate(invalid="ignore"):
            return FAMILIES[family].mean(scores)
    positive = np.clip(scores, 0.0, None)
    total = positive.sum(axis=1, keepdims=True)
    # One-hot estimates sum to 1, so at least one is positive unless rounding of extremely large values removes it.
    even = np.full_like(positive, 1.0 / scores.shape[1])
    shares: Float = np.divide(positive, total, out=even, where=total > 0)
    return shares


def expected_responses(scores: Float, family: FamilyName = "gaussian") -> Float:
    """Return E[y|x] (rows, P) from scores (rows, P): the inverse link."""
    return scores if family == "gaussian" else FAMILIES[family].mean(scores)
