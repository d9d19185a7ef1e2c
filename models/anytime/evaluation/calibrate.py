"""Calibrating a model on a table that took no part in training: a threshold for every prefix, and what it is worth.

A first pass over the table takes the score of each row by each prefix, (steps + 1, rows); the thresholds are order
statistics of these. Another tells how large intervals or sets are by them, and for classes a third how reliable the
probabilities are. What is promised is told in `anytime.inference.conformal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from anytime.data.dataset import Dataset, Rows
from anytime.data.formats import Table
from anytime.evaluation.held_out import held_out
from anytime.inference.conformal import (
    conformal_level,
    conformal_rank,
    conformal_threshold,
    conformity_scores,
    coverings,
    expected_calibration_error,
    told_of,
)
from anytime.model.manifest import FORMAT, Calibration
from anytime.model.model import Model
from anytime.target import class_codes
from anytime.types import Float

__all__ = [
    "Measured",
    "calibrate",
    "calibrated",
    "measured",
]


@dataclass(frozen=True, eq=False)
class Measured:
    """Intervals or sets of every prefix on a table, element 0 being the base rate.

    Attributes
    ----------
    coverage : (steps + 1,) share of the rows whose interval or set holds the truth; of several responses, all of them.
    size : (steps + 1,) mean width, over rows and responses and in target units, or mean number of classes.

    Where rows have weights, share and mean are weighted.
    """

    coverage: Float
    size: Float


def calibrate(model: Model, table: Table, coverage: float = 0.9, *, drop_missing: bool = False) -> Model:
    """The model with intervals, or sets of classes, that cover as often as asked; it has no version until it is saved.

    Parameters
    ----------
    model : trained on other rows.
    table : rows like those that will be predicted: exchangeable with them, gaps in the features included.
    coverage : the share of rows that each prefix is to cover.
    drop_missing : leave out rows without a target (they are an error otherwise).

    Raises
    ------
    TrainingError
        The coverage is no share, or the rows are too few for it.
    TableError, GroupsError
        The table lacks a column of the model, or holds what the model cannot take.
    """
    dataset, rows = held_out(model, table, drop_missing=drop_missing)
    conformal_rank(rows, coverage)
    return calibrated(model, dataset, coverage)


def calibrated(model: Model, dataset: Dataset, coverage: float = 0.9) -> Model:
    """As `calibrate`, on a checked dataset with the model's features and target."""
    rows, thresholds = _thresholds(model, dataset, coverage)
    found = Calibration(
        coverage=float(coverage),
        level=conformal_level(rows, coverage),
        rows=rows,
        data=Path(dataset.table.name).name,
        thresholds=thresholds,
        sizes=tuple(measured(model, dataset, thresholds).size.tolist()),
        reliability=None if model.manifest.classes is None else _reliability(model, dataset),
    )
    changes = {"format": FORMAT, "version": "", "calibration": found}
    return replace(model, manifest=model.manifest.model_copy(update=changes))


def measured(model: Model, dataset: Dataset, thresholds: Sequence[float]) -> Measured:
    """How often and how widely a checked dataset is covered, given the threshold of each prefix (steps + 1,)."""
    covered, size, finite, total = (np.zeros(model.steps + 1) for _ in range(4))
    for rows, tellings in _tellings(model, dataset):
        w = rows.row_weights
        for prefix, (told, threshold) in enumerate(zip(tellings, thresholds, strict=True)):
            inside, sizes = coverings(model, told, rows.Y, threshold)
            known = np.isfinite(sizes)
            covered[prefix] += w @ inside
            size[prefix] += w[known] @ sizes[known]
            finite[prefix] += w[known].sum()
            total[prefix] += w.sum()
    return Measured(covered / total, np.divide(size, finite, out=np.zeros_like(size), where=finite > 0))


def _thresholds(model: Model, dataset: Dataset, coverage: float) -> tuple[int, tuple[float, ...]]:
    """How many rows there are, and the threshold of each prefix."""
    scores = _collected(model, dataset, lambda told, Y: conformity_scores(model, told, Y))
    return len(scores[0]), tuple(conformal_threshold(each, coverage) for each in scores)


def _reliability(model: Model, dataset: Dataset) -> tuple[float, ...]:
    """Expected calibration error of each prefix, from confidences alone: whether one comes true is a class of two."""

    def confidence(told: Float, Y: Float) -> Float:
        codes = class_codes(Y)
        likely = np.ones_like(codes) if told.shape[1] == 2 else told.argmax(axis=1)
        return np.array([told[np.arange(len(Y)), likely], codes == likely])

    errors = []
    for confident, right in _collected(model, dataset, confidence):
        known = np.isfinite(confident)
        two = np.column_stack([1 - confident[known], confident[known]])
        errors.append(expected_calibration_error(two, right[known].astype(np.intp)))
    return tuple(errors)


def _collected(model: Model, dataset: Dataset, of: Callable[[Float, Float], Float]) -> list[Float]:
    """What `of` makes of what each prefix tells of each row, (..., rows)."""
    parts: list[list[Float]] = [[] for _ in range(model.steps + 1)]
    for rows, tellings in _tellings(model, dataset):
        for part, told in zip(parts, tellings, strict=True):
            part.append(of(told, rows.Y))
    # The parts of a prefix go when they are joined, so that not all is there twice.
    return [np.concatenate(parts.pop(0), axis=-1) for _ in range(model.steps + 1)]


def _tellings(model: Model, dataset: Dataset) -> Iterator[tuple[Rows, Iterator[Float]]]:
    """Yield batches of rows, each with the predictions of every prefix."""
    for rows in dataset.rows_for(model.prefixes.scores):
        with np.errstate(over="ignore", invalid="ignore"):
            scores = model.prefixes.predict_all(rows.filled(model.prefixes.mean))
        yield rows, (told_of(model, each) for each in scores)
