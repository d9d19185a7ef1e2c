"""Pairs of columns: products that explain most of what a sum over columns leaves.

Least squares on the selected terms leaves residuals. A sample of these screens all pairs of columns
(`anytime.features.screening`), and one more pass over the rows adds the products of the best as terms. With "auto", only pairs whose gain is no chance
are candidates, in descending order of gain. The folds choose the smallest number whose error is within a standard error
of the least, that of the difference within folds, and none unless it is clearly less. The error is that of all groups
by least squares; a likelihood must have a clearly smaller deviance, too (`anytime.training.likelihood`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from anytime._linalg import factorise
from anytime.errors import TrainingError
from anytime.features.bases import Choice
from anytime.features.expansion import Expansion
from anytime.features.learning import Sample, sample_of
from anytime.features.screening import screened_pairs, screened_rows
from anytime.groups import FeatureGroups, Pair
from anytime.model.prefixes import prefix_models
from anytime.moments.accumulate import Block, dense
from anytime.moments.moments import Moments
from anytime.training.least_squares import split
from anytime.training.model_selection import HINGES_GAIN, Errors, Terms
from anytime.training.options import Options
from anytime.types import Index

AUTO_PAIRS = 32
"""Maximum number of pairs that "auto" keeps."""

MIN_ROWS = 500
"""Rows from which "auto" looks for pairs, if there are also as many rows as coefficients."""

CHANCE = 0.05
"""Probability that "auto" takes one pair or more for a candidate where no pair has an effect."""

SLICE = 65_536
"""Rows that are made dense at once."""


class Rows(Protocol):
    """A table for training. Its iteration reads the rows."""

    def __iter__(self) -> Iterator[Block]: ...

    def moments(self, groups: FeatureGroups) -> Sequence[Moments]: ...


def with_pairs(terms: Terms, rows: Rows, options: Options) -> tuple[Terms, str] | None:
    """Return terms with the products of the pairs that `options.pairs` requests, and what they gain in words.

    None if it requests none, if the groups state pairs, or if "auto" finds none that are clearly better.
    """
    moments, count, is_auto = terms.moments, options.pairs or 0, options.pairs == "auto"
    few = moments.rows < max(MIN_ROWS, moments.features * moments.responses)
    if not count or terms.expansion.products or (is_auto and (few or len(terms.parts) == 1)):
        return None
    found = _screened(terms, rows, options, AUTO_PAIRS if isinstance(count, str) else count)
    if not found:
        return None
    groups = terms.expansion.groups.with_pairs(found)
    parts = rows.moments(groups)
    whole = Terms(Expansion.of(groups), parts, Moments.merged(parts)).reduced(Choice())
    expansion = whole.expansion
    spans = {
        tuple(side.name for side in product.sides): np.arange(start, stop)
        for product, (start, stop) in zip(expansion.products, expansion.product_spans, strict=True)
    }
    blocks = [np.arange(expansion.column_terms), *(spans[a.column, b.column] for a, b in found)]
    if len(parts) == 1:
        return whole, f"products of {len(found)} pairs of columns are terms (--pairs {count})"
    errors = _errors(whole, blocks, options)
    kept = len(found)
    if is_auto:
        rise = errors.between(int(errors.mean.argmin()))
        kept = int(np.flatnonzero(rise.mean <= rise.standard_error)[0])
        with_kept, without = (Errors(errors.folds[:, k], errors.weights) for k in (kept, 0))
        if not with_kept.is_clearly_less(without, HINGES_GAIN):
            return None
    before, after = errors.mean[[0, kept]].tolist()
    said = (
        f"products of {kept} pair{'s' * (kept != 1)} of columns are terms (--pairs): by least squares, the "
        f"cross-validated error of all groups is {after:.4g} instead of {before:.4g}; the theorem's constant does not "
        "cover them"
    )
    return _reduced(whole, found[:kept], np.sort(np.concatenate(blocks[: kept + 1]))), said


def _reduced(terms: Terms, pairs: Sequence[Pair], columns: Index) -> Terms:
    """Return the terms (ascending) of all columns and of some pairs only."""
    groups = terms.expansion.groups.with_pairs(pairs)
    names = {(a.column, b.column) for a, b in pairs}
    products = tuple(each for each in terms.expansion.products if tuple(side.name for side in each.sides) in names)
    expansion = replace(terms.expansion, groups=groups, products=products)
    return Terms(expansion, [part.restricted(columns) for part in terms.parts], terms.moments.restricted(columns))


def _errors(terms: Terms, blocks: Sequence[Index], options: Options) -> Errors:
    """Return the errors of least squares on ever more blocks of terms, (K, blocks), each at its best penalty."""
    columns, ends = np.concatenate(blocks), np.cumsum(list(map(len, blocks)))
    folds = split(terms.parts)
    found = [fold.errors(columns, ends, options.grid[::4]) for fold in folds]
    return Errors(np.array(found), np.array([fold.weight for fold in folds])).at_least()


def _screened(terms: Terms, rows: Rows, options: Options, count: int) -> list[Pair]:
    """Return the pairs that explain most of the residual of least squares on all terms, at most `count`."""
    sample = sample_of(_batches(rows), screened_rows(len(terms.expansion.columns)), seed=options.seed).columns
    X, Y, weights = (np.asarray(sample[name], dtype=np.float64) for name in ("X", "Y", "weights"))
    if not len(Y):
        raise TrainingError("no row that pairs are screened on has a positive weight; expected some")
    gram, every = terms.gram, np.arange(terms.moments.features)
    alpha = options.grid[0]
    if len(options.grid) > 1:
        folds = split(terms.parts)
        errors = np.array([fold.errors(every, np.array([len(every)]), options.grid[::4]) for fold in folds])
        alpha = options.grid[::4][int(np.average(errors, axis=0, weights=[f.weight for f in folds])[:, 0].argmin())]
    C, q = gram.penalised(alpha)
    W = factorise(C, np.diagonal(C).copy()).solve(q)[np.newaxis]
    model = prefix_models(gram, every, np.array([len(every)]), W)
    residuals = Y - replace(model, expansion=terms.expansion).predict(X, 0)
    chance = CHANCE if options.pairs == "auto" else None
    return [pair for pair, _ in screened_pairs(terms.expansion, X, residuals, weights, count, chance)]


def _batches(blocks: Iterable[Block]) -> Iterator[Sample]:
    """Yield the rows that have weight."""
    for block in blocks:
        used = block.row_weights > 0
        for start in range(0, len(used), SLICE):
            rows = start + np.flatnonzero(used[start : start + SLICE])
            yield Sample({"X": dense(block.X[rows]), "Y": block.Y[rows], "weights": block.row_weights[rows]})
