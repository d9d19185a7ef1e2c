"""Split-conformal calibration of every prefix: intervals and label sets with the requested coverage.

Each row of a calibration table, which took no part in training, is scored by its distance from the prediction. If a new
row is exchangeable with the m rows of calibration, and no two scores tie, then their order statistic `threshold` has

    P(score <= threshold) = ceil((m + 1) coverage) / (m + 1),

which is at least `coverage` and less than 1/(m + 1) above it; ties only add to it (Vovk, Gammerman & Shafer 2005; Lei,
G'Sell, Rinaldo, Tibshirani & Wasserman 2018, section 2.2). Every prefix has its own threshold. The guarantee is
marginal: it covers the average row, not every subset of rows, and not all prefixes at once. It applies to whichever
prefix answers, provided that the interruption does not depend on the row.

Numbers are scored in standard deviations: of the training responses for least squares, else those that the family
expects of a response with this mean. Classes are scored by one minus the probability of the true class. `predicted` is
what a model outputs: probabilities (rows, classes), or expected responses (rows, P).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import compress

import numpy as np

from anytime.errors import TrainingError
from anytime.families import family_of
from anytime.model.model import Model
from anytime.target import class_codes
from anytime.types import Bool, Float, Index, Label

SCORE_ROUNDING = 1e-12
"""Margin added to intervals and sets, relative to prediction and width.

A row at the boundary must stay inside if its prediction is rounded differently, on another processor or in another
batch. Where many rows tie, as classes and counts do at the base rate, the last digit would decide for all of them.
"""


def conformal_rank(rows: int, coverage: float) -> int:
    """Return the rank of the threshold among the sorted scores, counted from 1: ceil((rows + 1) coverage).

    Raises TrainingError if the coverage is invalid, or there are too few rows for a finite threshold.
    """
    if not 0 < coverage < 1:
        raise TrainingError(f"coverage is {coverage}; expected a share between 0 and 1, such as 0.9")
    # Use the decimal that was written, not the float: 0.55 * 100 is 55.00000000000001, whose ceiling is 56.
    share = Fraction(str(float(coverage)))
    rank = math.ceil((rows + 1) * share)
    if rank > rows:
        raise TrainingError(
            f"{rows} row{'s are' if rows != 1 else ' is'} too few to calibrate a coverage of {coverage}; expected "
            f"{math.ceil(share / (1 - share))} or more: add rows, or request less coverage"
        )
    return rank


def conformal_level(rows: int, coverage: float) -> float:
    """Return the exact coverage of the threshold, ceil((rows + 1) coverage) / (rows + 1); raise as `conformal_rank`."""
    return conformal_rank(rows, coverage) / (rows + 1)


def conformal_threshold(scores: Float, coverage: float) -> float:
    """Return the ceil((m + 1) coverage)-th smallest of a prefix's scores (m,) (Lei et al. 2018, algorithm 2), in O(m).

    Raises TrainingError as `conformal_rank`, or if the threshold is not finite. NaN counts as infinity.
    """
    rank = conformal_rank(len(scores), coverage)
    threshold = float(np.partition(scores, rank - 1)[rank - 1])
    if not math.isfinite(threshold):
        raise TrainingError(
            f"{np.sum(~np.isfinite(scores))} of {len(scores)} rows have no finite score, too many for a coverage of "
            f"{coverage}; look for extreme values in the calibration table"
        )
    return threshold


def residual_scores(Y: Float, fitted: Float, scale: Float) -> Float:
    """Return scores (m,) of numbers: max over p of |y_p - fitted_p| / scale_p, which covers all responses jointly.

    `Y` and `fitted` are (m, P). `scale` is positive: (P,) training standard deviations, or those of a family
    (m, 1), with which the scores are Pearson residuals.
    """
    return np.asarray((np.abs(Y - fitted) / scale).max(axis=1))


def residual_intervals(fitted: Float, threshold: float, scale: Float) -> Float:
    """Return boxes (rows, P, 2) of lower and upper ends, fitted_p -+ threshold scale_p; callers check for overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        radius = threshold * scale
        wide = radius + SCORE_ROUNDING * (np.abs(fitted) + radius)
        return np.stack([fitted - wide, fitted + wide], axis=-1)


def class_scores(probabilities: Float, codes: Index) -> Float:
    """Return scores (m,) for classes: 1 - p_y, as for the least ambiguous sets (LAC; Sadinle, Lei & Wasserman 2019)."""
    return (1.0 - probabilities)[np.arange(len(codes)), codes]


def class_members(probabilities: Float, threshold: float) -> Bool:
    """Return whether each class is in the set of each row (rows, classes): those with 1 - p_c <= threshold.

    A set may be empty: no class is as likely as the true one nearly always was in calibration. Such a row is more
    unusual than `coverage` allows for and counts as not covered; its most likely class is still the best guess.
    """
    # The same expression as for the scores: p_c >= 1 - threshold rounds differently and may drop a boundary class.
    return 1.0 - probabilities <= threshold + SCORE_ROUNDING


def label_sets(members: Bool, labels: Sequence[Label]) -> list[list[Label]]:
    """Return the labels in the set of each row, in the order of `labels`; `members` is (rows, classes)."""
    return [list(compress(labels, row)) for row in members.tolist()]


def confidence(probabilities: Float, codes: Index) -> Float:
    """Return the probability of the most likely class (of two classes, of the second), and whether it is the true one.

    `probabilities` is (rows, classes), `codes` (rows,) the index of the true class, and the result (2, rows).
    """
    chosen = np.ones_like(codes) if probabilities.shape[1] == 2 else probabilities.argmax(axis=1)
    return np.array([probabilities[np.arange(len(codes)), chosen], codes == chosen])


def expected_calibration_error(confidence: Float, right: Float, bins: int = 15) -> float:
    """Return the mean over bins, weighted by rows, of |accuracy - mean confidence| (Guo et al. 2017, section 2).

    Accuracy is the mean of `right` (rows,). Bins have equal mass, not equal width: some bins of equal width would have
    too few rows.
    """
    rows = len(confidence)
    _, tied, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    # Equal confidences share the bin of their middle rank, so that the order of the rows has no effect.
    middle = 2 * np.cumsum(counts) - counts
    bin_of = (middle * bins // (2 * rows))[tied]
    return float(np.abs(np.bincount(bin_of, weights=right - confidence)).sum() / rows)


def model_outputs(model: Model, scores: Float) -> Float:
    """Return the probabilities or expected responses of a prefix with these scores (rows, P)."""
    family = family_of(model.manifest.family)
    return family.mean(scores) if model.manifest.classes is None else family.probabilities(scores)


def _deviation(model: Model, predicted: Float) -> Float:
    """Return the standard deviations that intervals are measured in, which broadcast to `predicted` (rows, P)."""
    return family_of(model.manifest.family).deviation(predicted, model.prefixes.response_scale)


def conformity_scores(model: Model, predicted: Float, Y: Float) -> Float:
    """Return the distance (rows,) of the truth from `predicted`: 0 or more; NaN or infinity if it overflows.

    `Y` is the responses (rows, P), or indicators of the classes; of two classes, of the second.
    """
    # `conformal_threshold` checks that the result is finite.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if model.manifest.classes is not None:
            return class_scores(predicted, class_codes(Y))
        return residual_scores(Y, predicted, _deviation(model, predicted))


def covering_intervals(model: Model, predicted: Float, threshold: float) -> Float:
    """Return lower and upper ends (rows, P, 2) of responses that are not classes; callers check for overflow."""
    return np.maximum(
        residual_intervals(predicted, threshold, _deviation(model, predicted)), family_of(model.manifest.family).least
    )


def covering(model: Model, prefix: int | None, predicted: Float) -> tuple[Float | None, Bool | None]:
    """Return the intervals (rows, 2) of numbers, or (rows, P, 2), and the sets of classes (rows, classes) of a prefix.

    Only one of them is there; both are None if the model is not calibrated, or the prediction is of no prefix.
    """
    classes, calibration = model.manifest.classes, model.manifest.calibration
    if calibration is None or prefix is None:
        return None, None
    threshold = calibration.thresholds[prefix]
    if classes is not None:
        return None, class_members(predicted, threshold)
    ends = covering_intervals(model, predicted, threshold)
    return ends[:, 0] if ends.shape[1] == 1 else ends, None


def coverings(model: Model, predicted: Float, Y: Float, threshold: float) -> tuple[Bool, Float]:
    """Return whether the interval or set covers the truth (rows,), and its size (rows,): width, or number of classes.

    The width is the mean over the responses.
    """
    if model.manifest.classes is not None:
        members = class_members(predicted, threshold)
        return members[np.arange(len(Y)), class_codes(Y)], members.sum(axis=1).astype(np.float64)
    ends = covering_intervals(model, predicted, threshold)
    with np.errstate(over="ignore", invalid="ignore"):
        widths = (ends[..., 1] - ends[..., 0]).mean(axis=1)
    return np.all((ends[..., 0] <= Y) & (ends[..., 1] >= Y), axis=1), widths
