"""Split-conformal calibration of every prefix: intervals and label sets that cover as often as asked.

Rows of a table that took no part in training are scored by how far each is from its prediction; a threshold is an
order statistic of those scores. If a new row is exchangeable with the m of calibration, and no two scores tie, then

    P(score <= threshold) = ceil((m + 1) coverage) / (m + 1),

which is at least `coverage` and less than 1/(m + 1) above it; ties only add to it (Vovk, Gammerman & Shafer 2005; Lei,
G'Sell, Rinaldo, Tibshirani & Wasserman 2018, section 2.2). Every prefix has a threshold and a promise of its own: about
the average row, not every kind of row, and not about all prefixes at once. Whichever prefix answers keeps it, provided
that what interrupts does not depend on the row.

Conformity of truths to predictions, by task, and what a threshold makes of predictions.

Numbers are scored in training deviations, counts in Poisson deviations, classes by what the true one lacks of
certainty. That is decided here alone, so that what is calibrated, answered and measured is the same. What a model tells
is `told`: probabilities (rows, classes), or expected responses (rows, P).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import compress
from typing import TypeVar

import numpy as np

from anytime.errors import TrainingError
from anytime.model.model import Model
from anytime.model.probabilities import class_probabilities, expected_responses
from anytime.target import class_codes
from anytime.types import Bool, Float, Index

__all__ = [
    "ROUNDING",
    "class_members",
    "class_scores",
    "conformal_level",
    "conformal_rank",
    "conformal_threshold",
    "conformity_scores",
    "covering_intervals",
    "coverings",
    "expected_calibration_error",
    "label_sets",
    "pearson_intervals",
    "pearson_scores",
    "residual_intervals",
    "residual_scores",
    "told_of",
]

ROUNDING = 1e-12
"""By how much, relative to prediction and width, intervals and sets are wider than the threshold says.

A row at the boundary must stay inside where its prediction is rounded otherwise, by another processor or among other
rows. Where many rows tie, as classes and counts do at the base rate, a last digit would decide about all of them.
"""

_Label = TypeVar("_Label")


def conformal_rank(rows: int, coverage: float) -> int:
    """Which of the sorted scores is the threshold, counted from 1: ceil((rows + 1) coverage).

    Raises
    ------
    TrainingError
        The coverage is not between 0 and 1, or so few rows can only promise it by an infinite threshold.
    """
    if not 0 < coverage < 1:
        raise TrainingError(f"coverage is {coverage}; expected a share between 0 and 1, such as 0.9")
    # The decimal that was written, not the float: 0.55 * 100 is 55.00000000000001, of which the ceiling is 56.
    share = Fraction(str(float(coverage)))
    rank = math.ceil((rows + 1) * share)
    if rank > rows:
        raise TrainingError(
            f"{rows} rows are too few to calibrate a coverage of {coverage}; expected {math.ceil(share / (1 - share))}"
            " or more: add rows, or ask for less coverage"
        )
    return rank


def conformal_level(rows: int, coverage: float) -> float:
    """Exact coverage that the threshold gives: ceil((rows + 1) coverage) / (rows + 1); raises as `conformal_rank`."""
    return conformal_rank(rows, coverage) / (rows + 1)


def conformal_threshold(scores: Float, coverage: float) -> float:
    """The ceil((m + 1) coverage)-th smallest of one prefix's scores (m,) (Lei et al. 2018, algorithm 2), in O(m).

    Raises
    ------
    TrainingError
        As by `conformal_rank`; or that score is not finite, NaN being as far as infinity.
    """
    rank = conformal_rank(len(scores), coverage)
    threshold = float(np.partition(scores, rank - 1)[rank - 1])
    if not math.isfinite(threshold):
        far = len(scores) - int(np.isfinite(scores).sum())
        raise TrainingError(
            f"{far} of {len(scores)} rows have no finite score, too many for a coverage of {coverage}; look for absurd"
            " values in the calibration table"
        )
    return threshold


def residual_scores(Y: Float, fitted: Float, scale: Float) -> Float:
    """Scores (m,) for regression: max over p of |y_p - fitted_p| / scale_p, so that all responses are covered jointly.

    `Y` and `fitted` are (m, P), and `scale` (P,) the responses' deviations in training, which are positive.
    """
    scores: Float = (np.abs(Y - fitted) / scale).max(axis=1)
    return scores


def residual_intervals(fitted: Float, threshold: float, scale: Float) -> Float:
    """Box (rows, P, 2) of lower and upper ends: fitted_p -+ threshold scale_p, for `fitted` (rows, P)."""
    return _around(fitted, threshold * scale)


def pearson_scores(y: Float, mean: Float) -> Float:
    """Scores (m,) for counts: |y - mean| / sqrt(mean), the Pearson residual of a Poisson of that mean.

    `y` and `mean` are (m,): the counts, and their predicted means, which are positive.
    """
    return np.abs(y - mean) / np.sqrt(mean)


def pearson_intervals(mean: Float, threshold: float) -> Float:
    """Intervals (rows, 2) of counts: [max(0, mean - threshold sqrt(mean)), mean + threshold sqrt(mean)]."""
    return np.maximum(_around(mean, threshold * np.sqrt(mean)), 0.0)


def class_scores(probabilities: Float, codes: Index) -> Float:
    """Scores (m,) for classes: 1 - p_y, those of the least ambiguous sets (LAC; Sadinle, Lei & Wasserman 2019).

    `probabilities` are (m, classes), and `codes` (m,) the index of each row's true class.
    """
    return (1.0 - probabilities)[np.arange(len(codes)), codes]


def class_members(probabilities: Float, threshold: float) -> Bool:
    """Which classes (rows, classes) are in the set of each row: those with 1 - p_c <= threshold.

    A set may be empty: no class is as likely as the true one nearly always was in calibration. Such a row is stranger
    than `coverage` allows for and counts as not covered; its most likely class is still the best guess.
    """
    # The expression of the scores: p_c >= 1 - threshold rounds otherwise, and may drop the class at the boundary.
    return 1.0 - probabilities <= threshold + ROUNDING


def label_sets(members: Bool, labels: Sequence[_Label]) -> list[tuple[_Label, ...]]:
    """Set of each row as a tuple of labels, in the order of `labels`; `members` is (rows, classes)."""
    return [tuple(compress(labels, row)) for row in members.tolist()]


def expected_calibration_error(probabilities: Float, codes: Index, bins: int = 15) -> float:
    """Mean over bins, by rows, of |share that came true - mean confidence| (Guo et al. 2017, section 2), in [0, 1].

    Confidence is the probability of the most likely class, and it comes true if that is the true one; of two classes it
    is the probability of the second. Bins have equal mass, not equal width: few rows would fill some of those.

    `probabilities` are (rows, classes), and `codes` (rows,) the index of each row's true class.
    """
    rows, classes = probabilities.shape
    told = np.ones(rows, dtype=np.intp) if classes == 2 else probabilities.argmax(axis=1)
    confidence = probabilities[np.arange(rows), told]
    _, tied, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    # Equal confidences share a bin, that of the middle of their ranks, so that the order of the rows plays no part.
    middle = 2 * np.cumsum(counts) - counts
    bin_of = (middle * bins // (2 * rows))[tied]
    return float(np.abs(np.bincount(bin_of, weights=(codes == told) - confidence)).sum() / rows)


def _around(centre: Float, radius: Float) -> Float:
    """Ends centre -+ radius on a new last axis, wider by `ROUNDING`; what overflows, whoever tells it will see."""
    with np.errstate(over="ignore", invalid="ignore"):
        wide = radius + ROUNDING * (np.abs(centre) + radius)
        return np.stack([centre - wide, centre + wide], axis=-1)


def told_of(model: Model, scores: Float) -> Float:
    """What a model tells, from the scores (rows, P) of one of its prefixes."""
    family = model.manifest.family
    return expected_responses(scores, family) if model.manifest.classes is None else class_probabilities(scores, family)


def conformity_scores(model: Model, told: Float, Y: Float) -> Float:
    """How far (rows,) the truth is from what is told: 0 or more; NaN and infinity where that is absurd.

    `Y` are the responses (rows, P), or indicators of the classes; of two classes, of the second.
    """
    # What is absurd, whoever takes the threshold sees.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        match model.manifest.task:
            case "regression":
                return residual_scores(Y, told, model.prefixes.response_scale)
            case "count":
                return pearson_scores(Y[:, 0], told[:, 0])
            case _:
                return class_scores(told, class_codes(Y))


def covering_intervals(model: Model, told: Float, threshold: float) -> Float:
    """Lower and upper ends (rows, P, 2), for numbers and counts; what overflows, whoever tells it sees."""
    with np.errstate(over="ignore"):
        if model.manifest.task == "count":
            return pearson_intervals(told, threshold)
        return residual_intervals(told, threshold, model.prefixes.response_scale)


def coverings(model: Model, told: Float, Y: Float, threshold: float) -> tuple[Bool, Float]:
    """Whether interval or set cover the truth (rows,), and their sizes (rows,): mean width, or number of classes."""
    if model.manifest.classes is not None:
        members = class_members(told, threshold)
        return members[np.arange(len(Y)), class_codes(Y)], members.sum(axis=1).astype(np.float64)
    ends = covering_intervals(model, told, threshold)
    with np.errstate(over="ignore", invalid="ignore"):
        widths = (ends[..., 1] - ends[..., 0]).mean(axis=1)
    return np.all((ends[..., 0] <= Y) & (ends[..., 1] >= Y), axis=1), widths
