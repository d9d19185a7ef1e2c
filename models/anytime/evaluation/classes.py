"""Measures of predicted classes at every prefix: accuracy and balanced accuracy, AUC, log loss and Brier score.

AUC needs the probabilities of all rows at once. Where those of all prefixes and classes exceed a bound, the table is
read several times, each time for some of the prefixes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from anytime.data.dataset import Dataset
from anytime.model.prefixes import PrefixModels
from anytime.target import Target, class_codes
from anytime.types import Float, Index

MAX_STORED = 2**26
"""Most probabilities in memory at a time, 512 MiB."""

LEAST = float(np.finfo(np.float64).eps)
"""Least probability of the true class in the log loss, as in scikit-learn's `log_loss`."""


@dataclass(frozen=True, eq=False)
class ClassMeasures:
    """Measures of each prefix (steps + 1,), weighted as the rows.

    Attributes
    ----------
    accuracy : Float
        Share of the rows whose most likely class is the true one.
    balanced_accuracy : Float
        The mean over the classes of the table of the share of their rows that are recognised.
    auc : Float | None
        Area under the ROC curve, for more than two classes the mean over the classes, each against the others; None if
        the table has one class only.
    log_loss : Float
        Mean of -log of the probability of the true class.
    brier : Float
        Mean squared error of the probability of the second class; of several classes, the sum over the classes.
    majority : float
        Share of the most frequent class of the table.
    """

    accuracy: Float
    balanced_accuracy: Float
    auc: Float | None
    log_loss: Float
    brier: Float
    majority: float

    def by_name(self) -> dict[str, Float]:
        """Return the measures of each prefix by name, without those that the table does not have."""
        names = ("accuracy", "balanced_accuracy", "auc", "log_loss", "brier")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def note(self) -> str | None:
        """Return a sentence if no prefix, or none of the first, is right more often than the most frequent class."""
        better = np.flatnonzero(self.accuracy > self.majority * (1 + 1e-12))
        last = len(self.accuracy) - 1
        until = int(better[0]) - 1 if len(better) else last
        if until < 1:
            return None
        where = "at every prefix" if until == last else f"up to step {until} of {last}"
        return (
            f"accuracy is at most {self.majority:.4g}, the share of the most frequent class, {where}; "
            "AUC, log loss and balanced accuracy show what the model has learned"
        )


def class_measures(models: PrefixModels, target: Target, dataset: Dataset) -> ClassMeasures:
    """Return the measures of a checked dataset with the target's classes and a row of positive weight."""
    classes = len(target.classes or ())
    steps = models.steps + 1
    parts = [(class_codes(rows.Y), rows.row_weights) for rows in dataset.rows(features=())]
    codes, weights = (np.concatenate(each) for each in zip(*parts, strict=True))
    shares = np.bincount(codes, weights, minlength=classes) / weights.sum()
    stored = len(codes) * (1 if classes == 2 else classes)
    at_once = max(1, MAX_STORED // max(stored, 1))
    found = [
        measured
        for first in range(0, steps, at_once)
        for measured in _of_prefixes(models, target, dataset, range(first, min(first + at_once, steps)), codes, weights)
    ]
    accuracy, balanced, auc, loss, brier = (np.array(column) for column in zip(*found, strict=True))
    return ClassMeasures(accuracy, balanced, None if (shares > 0).sum() < 2 else auc, loss, brier, float(shares.max()))


def _of_prefixes(
    models: PrefixModels, target: Target, dataset: Dataset, prefixes: range, codes: Index, weights: Float
) -> Iterable[tuple[float, ...]]:
    collected: list[list[Float]] = [[] for _ in prefixes]
    for rows in dataset.rows_for(models.scores):
        with np.errstate(over="ignore", invalid="ignore"):
            scores = models.predict_all(rows.X)
            for part, prefix in zip(collected, prefixes, strict=True):
                outputs = target.family.probabilities(scores[prefix])
                part.append(outputs if outputs.shape[1] > 2 else outputs[:, 1:])
    for part in collected:
        P = np.concatenate(part)
        part.clear()
        yield _measures(np.hstack([1.0 - P, P]) if P.shape[1] == 1 else P, codes, weights)


def _measures(P: Float, codes: Index, weights: Float) -> tuple[float, ...]:
    """Return accuracy, balanced accuracy, AUC, log loss and Brier score of probabilities (n, classes)."""
    total, classes = weights.sum(), P.shape[1]
    right = P.argmax(axis=1) == codes
    counts = np.bincount(codes, weights, minlength=classes)
    recognised = np.bincount(codes, weights * right, minlength=classes)
    there = counts > 0
    likely = P[np.arange(len(P)), codes]
    errors = P.copy()
    errors[np.arange(len(P)), codes] -= 1.0
    squares = np.square(errors).sum(axis=1) * (0.5 if classes == 2 else 1.0)
    against = [1] if classes == 2 else np.flatnonzero(there & (counts < total)).tolist()
    areas = [roc_auc(codes == c, P[:, c], weights) for c in against]
    return (
        float(weights @ right / total),
        float((recognised[there] / counts[there]).mean()),
        float(np.mean(areas)) if areas else np.nan,
        float(weights @ -np.log(np.clip(likely, LEAST, 1.0)) / total),
        float(weights @ squares / total),
    )


def roc_auc(positive: np.typing.NDArray[np.bool_], scores: Float, weights: Float) -> float:
    """Return the share of pairs of a positive and a negative row that the scores order right; ties count half.

    `positive`, `scores` and `weights` are (n,). NaN without a row of either kind.
    """
    x, y = roc_curve(positive, scores, weights)
    return float(np.trapezoid(y, x))


def roc_curve(positive: np.typing.NDArray[np.bool_], scores: Float, weights: Float) -> tuple[Float, Float]:
    """Return the false and the true positive rates at each threshold, from (0, 0) to (1, 1), each (thresholds + 1,)."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)
    totals = (np.cumsum(weights[order] * kind[order])[last] for kind in (~positive, positive))
    with np.errstate(invalid="ignore"):
        x, y = (np.concatenate([[0.0], total / total[-1]]) for total in totals)
    return x, y
