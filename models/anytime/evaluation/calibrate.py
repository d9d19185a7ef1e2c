"""Calibration of a model on a table that took no part in training: a threshold for every prefix.

A first pass over the table computes the score of each row by each prefix, (steps + 1, rows); the thresholds are order
statistics of these scores. A second pass measures the size of the intervals or sets, and for classes a third the
reliability of the probabilities. `anytime.inference.conformal` states the guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anytime.data.dataset import Dataset
from anytime.data.survey import Survey, checked_dataset
from anytime.evaluation import COVERAGE
from anytime.inference.conformal import (
    confidence,
    conformal_level,
    conformal_rank,
    conformal_threshold,
    conformity_scores,
    coverings,
    expected_calibration_error,
    model_outputs,
)
from anytime.inference.tables import as_table
from anytime.model.manifest import FORMAT, Calibration
from anytime.model.model import Model, manifest_of
from anytime.moments.accumulate import Block
from anytime.target import class_codes
from anytime.types import Float


def held_out(
    model: Model, table: Any, *, weights: str | None = None, drop_missing: bool = False
) -> tuple[Dataset, Survey]:
    """Return a checked dataset of a table of any type with the model's columns, and what the table holds."""
    manifest, opened = manifest_of(model), as_table(table, model.groups)
    return checked_dataset(Dataset(opened, model.groups, manifest.learned, manifest.query, weights, drop_missing))


def calibrate(model: Model, table: Any, coverage: float = COVERAGE, *, drop_missing: bool = False) -> Model:
    """Return the model with intervals, or sets of classes, of the requested coverage; its version is empty until saved.

    Parameters
    ----------
    model : Model
        Trained on other rows.
    table
        Rows like those to predict: exchangeable with them, including missing values of features. Of any type that
        `LoadedModel` accepts, with the target.
    coverage : float
        Share of rows that each prefix must cover.
    drop_missing : bool
        Whether to leave out rows without a target (an error otherwise).

    Raises
    ------
    TrainingError
        The coverage is not between 0 and 1, or there are too few rows for it.
    TableError, GroupsError
        The table lacks a column of the model, or contains values that the model does not accept.
    ValuesError
        `model` is not a `Model`.
    """
    dataset, found = held_out(model, table, drop_missing=drop_missing)
    conformal_rank(found.used, coverage)
    return calibrated(model, dataset, coverage)


def calibrated(model: Model, dataset: Dataset, coverage: float = COVERAGE) -> Model:
    """Calibrate on a checked dataset with the model's features and target, as `calibrate`."""
    scores = _collected(model, dataset, lambda outputs, Y: conformity_scores(model, outputs, Y))
    rows, thresholds = len(scores[0]), tuple(conformal_threshold(each, coverage) for each in scores)
    del scores  # the next passes need memory
    calibration = Calibration(
        coverage=float(coverage),
        level=conformal_level(rows, coverage),
        rows=rows,
        data=Path(dataset.table.name).name,
        thresholds=thresholds,
        sizes=tuple(measured(model, dataset, thresholds)[1].tolist()),
        reliability=None if model.manifest.classes is None else _reliability(model, dataset),
    )
    return replace(
        model, manifest=model.manifest.model_copy(update={"format": FORMAT, "version": "", "calibration": calibration})
    )


def measured(model: Model, dataset: Dataset, thresholds: Sequence[float]) -> tuple[Float, Float]:
    """Return coverage and size (steps + 1,) of intervals or sets with these thresholds, weighted as the rows.

    The coverage is the share of the rows whose interval or set contains the truth; of several responses, all of them.
    The size is the mean width, over rows and responses and in target units, or the mean number of classes.
    """
    covered, size, finite, total = (np.zeros(model.steps + 1) for _ in range(4))
    for rows, by_prefix in _outputs(model, dataset):
        w = rows.row_weights
        for prefix, (outputs, threshold) in enumerate(zip(by_prefix, thresholds, strict=True)):
            inside, sizes = coverings(model, outputs, rows.Y, threshold)
            known = np.isfinite(sizes)
            covered[prefix] += w @ inside
            size[prefix] += w[known] @ sizes[known]
            finite[prefix] += w[known].sum()
            total[prefix] += w.sum()
    return covered / total, np.divide(size, finite, out=np.zeros_like(size), where=finite > 0)


def _reliability(model: Model, dataset: Dataset) -> tuple[float, ...]:
    found = _collected(model, dataset, lambda outputs, Y: confidence(outputs, class_codes(Y)))
    return tuple(expected_calibration_error(*each[:, np.isfinite(each[0])]) for each in found)


def _collected(model: Model, dataset: Dataset, of: Callable[[Float, Float], Float]) -> list[Float]:
    """Return the function `of` of the outputs of each prefix for each row, (..., rows)."""
    parts: list[list[Float]] = [[] for _ in range(model.steps + 1)]
    for rows, by_prefix in _outputs(model, dataset):
        for part, outputs in zip(parts, by_prefix, strict=True):
            part.append(of(outputs, rows.Y))
    # The parts of a prefix are freed when they are joined, so that memory holds only one prefix twice.
    return [np.concatenate(parts.pop(0), axis=-1) for _ in range(model.steps + 1)]


def _outputs(model: Model, dataset: Dataset) -> Iterator[tuple[Block, Iterator[Float]]]:
    for rows in dataset.rows_for(model.prefixes.scores):
        with np.errstate(over="ignore", invalid="ignore"):
            scores = model.prefixes.predict_all(rows.X)
        yield rows, (model_outputs(model, each) for each in scores)
