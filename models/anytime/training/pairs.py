"""Pairs of columns: a second fit, with the products that explain most of the residual of the first.

The first fit is additive. A sample of its residuals screens all pairs (`anytime.features.screening`), and another pass
over the rows adds the products of the best as terms. With "auto", part of the folds screens, and the other folds choose
how many pairs the model keeps: the smallest number whose error is within a standard error of the least, that of the
difference within folds. These are the best of all rows. The error is that of all groups by least squares, for a
likelihood too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from anytime._linalg import single_blas_thread
from anytime.errors import TrainingError
from anytime.features.bases import Choice
from anytime.features.expansion import Expansion
from anytime.features.learning import Sample, sample_of
from anytime.features.screening import screened_pairs, screened_rows
from anytime.groups import FeatureGroups, Pair
from anytime.moments.accumulate import Block, dense
from anytime.moments.moments import Moments
from anytime.training.fit import Fit, fit
from anytime.training.least_squares import split
from anytime.training.likelihood import Observations
from anytime.training.model_selection import Errors, Terms, Validation, with_rows
from anytime.training.options import Options
from anytime.types import Index

AUTO_PAIRS = 32
"""Maximum number of pairs that "auto" keeps."""

MIN_FOLDS = 3
"""Folds that "auto" needs: one screens, and the standard error of the others needs two."""

SLICE = 65_536
"""Rows that are made dense at once."""


class Rows(Protocol):
    """A table for training. Its iteration reads the rows, with their folds."""

    @property
    def folds(self) -> int: ...

    @property
    def options(self) -> Options: ...

    def __iter__(self) -> Iterator[Block]: ...

    def moments(self, groups: FeatureGroups) -> Sequence[Moments]: ...

    def observed(self) -> Observations | None: ...


def fit_with_pairs(additive: Fit, rows: Rows, *, validation: Validation | None = None) -> Fit:
    """Return the fit with the pairs that `additive.options.pairs` requests; the additive fit itself if it keeps none.

    Curves and levels are those that were selected without pairs. `validation` is as in `fit`.
    """
    options, folds, seed = additive.options, rows.folds, rows.options.seed
    screening = folds - (folds // 2 + 1) if options.pairs == "auto" else folds
    count = AUTO_PAIRS if not isinstance(options.pairs, int) else options.pairs
    found = _screened(additive, rows, screening, count, seed)

    def with_pairs(pairs: Sequence[Pair]) -> tuple[FeatureGroups, Sequence[Moments]]:
        groups = additive.expansion.groups.with_pairs(pairs)
        return groups, rows.moments(groups)

    if options.pairs == "auto":
        by_gain = [tuple(side.column for side in pair) for pair in found]
        count = _chosen_count(with_pairs(found), by_gain, screening, options) if found else 0
        found = _screened(additive, rows, folds, count, seed) if count else []
    if not found:
        return additive
    groups, parts = with_pairs(found)
    fitted = fit(parts, groups, options, rows.observed(), validation=validation)
    return replace(fitted, decisions=additive.decisions, selected_terms=additive.selected_terms)


def _screened(additive: Fit, rows: Rows, folds: int, count: int, seed: int) -> list[Pair]:
    """Return the pairs that explain most of the residual of the first folds, at most `count`."""
    columns = sample_of(_batches(rows, folds), screened_rows(len(additive.expansion.columns)), seed=seed).columns
    X, Y, weights = (np.asarray(columns[name], dtype=np.float64) for name in ("X", "Y", "weights"))
    if not len(Y):
        what = f"of the folds, the first {folds}, which screen pairs, have no rows of positive weight"
        raise TrainingError(f"{what}; expected rows in every fold")
    with single_blas_thread():
        scores = additive.prefixes.predict(X, additive.prefixes.steps)
        residuals = Y - additive.options.fitted_family.mean(scores)
        # All columns: a stopping rule may have left out groups whose columns explain something in pairs only.
        found = screened_pairs(additive.expansion, X, residuals, weights, count)
    return [pair for pair, _ in found]


def _batches(blocks: Iterable[Block], folds: int) -> Iterator[Sample]:
    """Yield the rows of the first folds that have weight."""
    for block in blocks:
        used = (block.row_weights > 0) & (True if block.folds is None else block.folds < folds)
        for start in range(0, len(used), SLICE):
            rows = start + np.flatnonzero(used[start : start + SLICE])
            yield Sample({"X": dense(block.X[rows]), "Y": block.Y[rows], "weights": block.row_weights[rows]})


def _chosen_count(
    of_pairs: tuple[FeatureGroups, Sequence[Moments]],
    by_gain: Sequence[tuple[str, ...]],
    screening: int,
    options: Options,
) -> int:
    """Return the smallest number of pairs, in descending order of gain, whose error is not clearly above the least."""
    groups, parts = of_pairs
    terms = Terms(Expansion.of(groups), parts, Moments.merged(parts)).reduced(Choice())
    expansion = terms.expansion
    spans = {
        tuple(side.name for side in product.sides): np.arange(start, stop)
        for product, (start, stop) in zip(expansion.products, expansion.product_spans, strict=True)
    }
    blocks = [np.arange(expansion.column_terms), *(spans[pair] for pair in by_gain)]
    ends: Index = np.cumsum([0, *map(len, blocks)])
    judging = [fold for f, fold in zip(with_rows(terms.parts), split(terms.parts), strict=True) if f >= screening]
    if len(judging) < MIN_FOLDS - 1:
        raise TrainingError(f"folds with rows that choose the number of pairs: {len(judging)}; expected 2 or more")
    with single_blas_thread():
        folds = [fold.errors(np.concatenate(blocks), ends[1:], options.grid) for fold in judging]
    errors = Errors(np.array(folds), np.array([fold.weight for fold in judging]))
    least = errors.mean.argmin(axis=0)
    of_counts = Errors(errors.folds[:, least, np.arange(len(blocks))], errors.weights)
    rise = of_counts.between(int(of_counts.mean.argmin()))
    return int(np.flatnonzero(rise.mean <= rise.standard_error)[0])
