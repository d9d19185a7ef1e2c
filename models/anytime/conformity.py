"""Conformity of truths to predictions, by task, and what a threshold makes of predictions.

Numbers are scored in training deviations, counts in Poisson deviations, classes by what the true one lacks of
certainty. That is decided here alone, so that what is calibrated, answered and measured is the same. What a model tells
is `told`: probabilities (rows, classes), or expected responses (rows, P).
"""

from __future__ import annotations

import numpy as np

from anytime.arrays import Bool, Float
from anytime.calibration import (
    class_members,
    class_scores,
    pearson_intervals,
    pearson_scores,
    residual_intervals,
    residual_scores,
)
from anytime.model import AnytimeModel
from anytime.probabilities import class_codes, class_probabilities, expected_responses

__all__ = ["conformity_scores", "covering_intervals", "coverings", "told_of"]


def told_of(model: AnytimeModel, scores: Float) -> Float:
    """What a model tells, from the scores (rows, P) of one of its prefixes."""
    family = model.manifest.family
    return expected_responses(scores, family) if model.manifest.classes is None else class_probabilities(scores, family)


def conformity_scores(model: AnytimeModel, told: Float, Y: Float) -> Float:
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


def covering_intervals(model: AnytimeModel, told: Float, threshold: float) -> Float:
    """Lower and upper ends (rows, P, 2), for numbers and counts; what overflows, whoever tells it sees."""
    with np.errstate(over="ignore"):
        if model.manifest.task == "count":
            return pearson_intervals(told, threshold)
        return residual_intervals(told, threshold, model.prefixes.response_scale)


def coverings(model: AnytimeModel, told: Float, Y: Float, threshold: float) -> tuple[Bool, Float]:
    """Whether interval or set cover the truth (rows,), and their sizes (rows,): mean width, or number of classes."""
    if model.manifest.classes is not None:
        members = class_members(told, threshold)
        return members[np.arange(len(Y)), class_codes(Y)], members.sum(axis=1).astype(np.float64)
    ends = covering_intervals(model, told, threshold)
    with np.errstate(over="ignore", invalid="ignore"):
        widths = (ends[..., 1] - ends[..., 0]).mean(axis=1)
    return np.all((ends[..., 0] <= Y) & (ends[..., 1] >= Y), axis=1), widths
