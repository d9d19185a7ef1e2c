"""Screening of pairs of columns: which products explain most of the residual of an additive model.

This is FAST (Lou, Caruana, Gehrke and Hooker, "Accurate intelligible models with pairwise interactions", KDD 2013):
the values of each column are cut at their octiles, and the gain of a pair is that of the best two cuts, one of each
column. With four quadrants of weights n and mean residuals m, the gain is that of the interaction alone,

    (m_11 - m_10 - m_01 + m_00)^2 / (1/n_11 + 1/n_10 + 1/n_01 + 1/n_00),

because the residual of a linear basis still has main effects. Categories are cut into each frequent level and the rest.
All quadrants of all pairs follow from products of the matrix of all cuts with itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from anytime.features.categories import Categories
from anytime.features.expansion import Column, Expansion
from anytime.features.hinge import distinct, quantiles
from anytime.groups import Pair, PairSide
from anytime.types import Bool, Float, Index

CELLS = 8
"""Cells of a column."""

SCREENED_ROWS = 20_000
SCREENED_CUTS = 2**28
"""Largest number of rows times cuts of a sample, 1 GiB: a sample of a wide table has fewer rows."""

MIN_SHARE = 0.005
"""Share of the weights that each quadrant has at least: the mean of a few rows is noise."""

KNOTS = (0.01, 1 / 3, 2 / 3)
"""Quantiles of the knots of a column of numbers: values below the first count as it, and the others bend the line."""

MAX_LEVELS = 5
"""Maximum number of levels of a column of categories in a pair."""

BLOCK = 448
"""Cuts whose products with all others are computed at once."""


@dataclass(frozen=True)
class Screened:
    """A pair and its gain: the reduction of the sum of squares, in variances of the residual, over all responses."""

    pair: Pair
    gain: float


def screened_rows(columns: int) -> int:
    """Return the number of rows of a sample."""
    return min(SCREENED_ROWS, max(1, SCREENED_CUTS // (CELLS * max(columns, 1))))


def screened_pairs(
    expansion: Expansion, among: Iterable[int], X: Float, residuals: Float, weights: Float, count: int
) -> list[Screened]:
    """Return the pairs with the largest gains, at most `count`, in descending order of gain.

    Parameters
    ----------
    expansion : what the columns of X (n, columns) become.
    among : the columns that pairs may have.
    residuals : (n, P) responses less their estimates.
    weights : (n,) at least one of them above 0.
    """
    x = expansion.clamped(X)[0]
    cuts = [_cuts(expansion.columns[j], x[j]) for j in among]
    places = np.array([j for j, each in zip(among, cuts, strict=True) if len(each)], dtype=np.intp)
    cuts = [each for each in cuts if len(each)]
    if len(places) < 2:
        return []
    gains = pair_gains(cuts, residuals, weights)
    first, second = np.triu_indices(len(places), 1)
    found = gains[first, second]
    best = np.argsort(-found, kind="stable")[:count]
    sides = {j: _side(expansion.columns[j], x[j]) for j in places[np.union1d(first[best], second[best])]}
    return [
        Screened((sides[places[first[k]]], sides[places[second[k]]]), float(found[k])) for k in best if found[k] > 0
    ]


def pair_gains(cuts: list[Bool], residuals: Float, weights: Float) -> Float:
    """Return the gains (columns, columns) of all pairs, defined above the diagonal; `cuts` (cuts, n) of each column."""
    U = np.concatenate(cuts).astype(np.float32)
    starts = np.cumsum([0, *map(len, cuts)])
    spread = residuals - weights @ residuals / weights.sum()
    variance = weights @ np.square(spread) / weights.sum()
    scaled = spread[:, variance > 0] / np.sqrt(variance[variance > 0])
    # Per row: the weight, and the weighted residual of each response; and their sums in each cut and in total.
    parts = np.column_stack([weights, weights[:, np.newaxis] * scaled]).T.astype(np.float32)
    sums, totals = (U @ parts.T).T.astype(np.float64), parts.sum(axis=1, dtype=np.float64)
    gains = np.zeros((len(cuts), len(cuts)))
    for a, b in _blocks(starts):
        rows, columns = slice(starts[a], starts[b]), slice(starts[a], None)
        quadrants = [
            _quadrants((U[rows] * part) @ U[columns].T, each[rows, np.newaxis], each[columns], total)
            for part, each, total in zip(parts, sums, totals, strict=True)
        ]
        n, enough = quadrants[0], (quadrants[0] >= MIN_SHARE * totals[0]).all(axis=0)
        inverse = 1.0 / np.maximum(n, MIN_SHARE * totals[0])
        contrasts = (SIGNS @ (s * inverse).reshape(4, -1) for s in quadrants[1:])
        squares = sum((np.square(c) for c in contrasts), np.zeros(enough.size))
        best = np.where(enough, squares.reshape(enough.shape) / inverse.sum(axis=0), 0.0)
        best = np.maximum.reduceat(best, starts[a:-1] - starts[a], axis=1)
        gains[a:b, a:] = np.maximum.reduceat(best, starts[a:b] - starts[a], axis=0)
    return gains


SIGNS = np.array([1.0, -1.0, -1.0, 1.0])


def _quadrants(both: Float, first: Float, second: Float, total: float) -> Float:
    """Return the sums (4, cuts, cuts) inside both cuts, in the first only, in the second only, and in neither."""
    both = both.astype(np.float64)
    return np.stack([both, first - both, second - both, total - first - second + both])


def _blocks(starts: Index) -> list[tuple[int, int]]:
    """Return ranges of columns with about `BLOCK` cuts each."""
    edges = np.unique([*np.searchsorted(starts, np.arange(0, starts[-1], BLOCK)), len(starts) - 1])
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def _cuts(column: Column, x: Float) -> Bool:
    """Return which values (n,) of a column are inside each cut, (cuts, n); none if it does not vary."""
    found = np.unique(x[~np.isnan(x)])
    if len(found) < 2:
        return np.zeros((0, len(x)), dtype=np.bool_)
    if isinstance(column.basis, Categories):
        levels = _frequent(x, CELLS)
        return np.asarray(x == levels[: 1 if len(found) == 2 else None, np.newaxis])
    present = x[~np.isnan(x)]
    ends = np.unique(quantiles(present, CELLS - 1))
    cuts: Bool = np.where(np.isnan(x), np.median(present), x) > ends[ends < present.max(), np.newaxis]
    return cuts if len(cuts) else np.asarray(x > found[0])[np.newaxis]


def _side(column: Column, x: Float) -> PairSide:
    """Return the factors of a column whose values (n,) vary."""
    if isinstance(basis := column.basis, Categories):
        # The other levels are those without a factor; one level is the complement of the others.
        count = min(MAX_LEVELS, len(basis.levels) if basis.other else len(basis.levels) - 1)
        codes = [code for code in _frequent(x, count + 1).astype(int).tolist() if code >= 0]
        return PairSide(column=column.name, levels=tuple(basis.levels[code] for code in codes[:count]))
    present = x[~np.isnan(x)]
    knots = distinct(tuple(np.quantile(present, KNOTS).tolist()))
    inside = tuple(knot for knot in knots if knot < present.max())
    return PairSide(column=column.name, knots=inside or (float(present.min()),))


def _frequent(x: Float, count: int) -> Float:
    """Return the most frequent values, at most `count`."""
    values, counts = np.unique(x[~np.isnan(x)], return_counts=True)
    return np.asarray(values[np.argsort(-counts, kind="stable")][:count])
