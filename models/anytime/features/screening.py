"""Screening of pairs of columns: which products explain most of the residual of an additive model.

This is FAST (Lou, Caruana, Gehrke and Hooker, "Accurate intelligible models with pairwise interactions", KDD 2013):
the values of each column are cut at their octiles, and the gain of a pair is that of the best two cuts, one of each
column. With four quadrants of weights n and mean residuals m, the gain is that of the interaction alone,

    (m_11 - m_10 - m_01 + m_00)^2 / (1/n_11 + 1/n_10 + 1/n_01 + 1/n_00),

because the residual of a linear basis still has main effects. Categories are cut into each frequent level and the rest.
All quadrants of all pairs follow from products of the matrix of all cuts with itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri

from anytime.features.bases import ColumnSample
from anytime.features.expansion import Column, Expansion
from anytime.groups import Pair, PairSide
from anytime.types import Bool, Float, Index

CELLS = 8
"""Cells of a column."""

SCREENED_ROWS = 10_000
SCREENED_CUTS = 2**28
"""Largest number of rows times cuts of a sample, 256 MiB: a sample of a wide table has fewer rows."""

MIN_SHARE = 0.005
"""Share of the weights that each quadrant has at least: the mean of a few rows is noise."""

KNOTS = (0.01, 1 / 3, 2 / 3, 0.99)
"""Quantiles of the knots of a column of numbers: two bend the line, and values beyond the others count as these."""

MAX_LEVELS = 5
"""Maximum number of levels of a column of categories in a pair."""

DIFFERENT = 10
"""Number of independent gains that the best cuts of a pair are like the best of."""

COARSE_CUTS = 3
REFINED = 500
"""Where there are over four times as many pairs, the quartiles or the three most frequent levels select so many of them
first."""

BLOCK = 448
"""Cuts whose products with as many others are computed at once."""


def screened_rows(columns: int) -> int:
    return min(SCREENED_ROWS, max(1, SCREENED_CUTS // (CELLS * max(columns, 1))))


@dataclass(frozen=True, eq=False)
class Screen:
    """Rows in which pairs of columns are compared: clamped values x (columns, n), and the cuts of columns that vary.

    `places` are the indices of these columns.
    """

    expansion: Expansion
    x: Float
    cuts: _Cuts
    places: Index

    @staticmethod
    def of(expansion: Expansion, X: Float) -> Screen:
        """Return the screen of rows X (n, columns)."""
        x = expansion.clamped(X)[0]
        cuts = [_cuts(column, values) for column, values in zip(expansion.columns, x, strict=True)]
        places = np.flatnonzero([len(each) for each in cuts])
        return Screen(
            expansion, x, _Cuts(np.concatenate(cuts), np.cumsum([0, *(len(cuts[j]) for j in places)])), places
        )

    def ranked(
        self, residuals: Float, weights: Float, count: int, *, chance: float | None = None, rows: slice = slice(None)
    ) -> list[tuple[tuple[int, int], float]]:
        """Return the pairs with the largest gains, at most `count`, in descending order, each with its gain.

        It is the reduction of the sum of squares, in variances of the residual, over all responses. Rows count by their
        weights, scaled to a mean of 1. With `chance`, the gain must be one that the best of all pairs without an effect
        has with at most this probability.

        Parameters
        ----------
        residuals : Float
            (n, P) responses less their estimates.
        weights : Float
            (n,) at least one of them above 0.
        rows : slice
            The rows to compare pairs in.
        """
        weights = weights[rows]
        if len(self.places) < 2 or not len(weights):
            return []
        parts = _parts(residuals[rows], weights / weights.mean())  # 32-bit floats overflow from weights of 1e38
        if len(parts) < 2:
            return []
        cuts = replace(self.cuts, inside=self.cuts.inside[:, rows])
        first, second = np.triu_indices(len(self.places), 1)
        least = 0.0 if chance is None else float(chdtri(len(parts) - 1, chance / (DIFFERENT * len(first))))
        if len(first) <= 4 * REFINED:
            found = cuts.all_gains(parts)[first, second]
        else:
            coarse = cuts.of_columns(np.arange(len(self.places)), COARSE_CUTS).all_gains(parts)[first, second]
            promising = np.sort(np.argsort(-coarse, kind="stable")[:REFINED])
            first, second = first[promising], second[promising]
            found = np.empty(len(first))
            for i in np.unique(first):
                of = first == i
                found[of] = cuts.some(i, i + 1).gains(cuts.of_columns(second[of]), parts)[0]
        best = np.argsort(-found, kind="stable")[:count].tolist()
        places = self.places.tolist()
        return [((places[first[k]], places[second[k]]), float(found[k])) for k in best if found[k] > least]

    def pair(self, places: tuple[int, int]) -> Pair:
        """Return the pair of two columns that vary."""
        a, b = (_side(self.expansion.columns[j], self.x[j]) for j in places)
        return a, b


def _parts(residuals: Float, weights: Float) -> NDArray[np.float32]:
    """Return the weights of the rows, and the weighted residuals of each response that vary, in deviations: (.., n)."""
    spread = residuals - weights @ residuals / weights.sum()
    variance = weights @ np.square(spread) / weights.sum()
    scaled = spread[:, variance > 0] / np.sqrt(variance[variance > 0])
    return np.column_stack([weights, weights[:, np.newaxis] * scaled]).T.astype(np.float32)


@dataclass(frozen=True)
class _Cuts:
    """Which rows are inside the cuts of some columns: (cuts, n), those of column k from `starts[k]`."""

    inside: Bool
    starts: Index

    def of_columns(self, columns: Index, most: int = CELLS) -> _Cuts:
        """Return the first cuts, at most so many, of each of some columns."""
        starts, counts = self.starts[columns], np.minimum(np.diff(self.starts)[columns], most)
        ends = np.cumsum([0, *counts])
        return _Cuts(self.inside[np.repeat(starts - ends[:-1], counts) + np.arange(ends[-1])], ends)

    def some(self, start: int, stop: int) -> _Cuts:
        first = self.starts[start]
        return _Cuts(self.inside[first : self.starts[stop]], self.starts[start : stop + 1] - first)

    def blocks(self) -> list[tuple[int, int]]:
        """Return columns from one to before another whose cuts are compared at once."""
        edges = np.searchsorted(self.starts, np.arange(0, self.starts[-1], BLOCK))
        return [*pairwise(np.unique([*edges, len(self.starts) - 1]).tolist())]

    def all_gains(self, parts: NDArray[np.float32]) -> Float:
        """Return the gains (columns, columns) of all pairs, defined above the diagonal."""
        count = len(self.starts) - 1
        gains = np.zeros((count, count))
        for a, b in self.blocks():
            gains[a:b, a:] = self.some(a, b).gains(self.some(a, count), parts)
        return gains

    def gains(self, other: _Cuts, parts: NDArray[np.float32]) -> Float:
        """Return the gain of the best cuts of each of these columns and each of the others, (columns, columns)."""
        return np.hstack([self._gains(other.some(a, b), parts) for a, b in other.blocks()])

    def _gains(self, other: _Cuts, parts: NDArray[np.float32]) -> Float:
        inside = other.inside.astype(np.float32)
        n, *sums = (self._quadrants(inside, part) for part in parts)
        least = MIN_SHARE * n.sum(axis=0)[0, 0]
        inverse = 1.0 / np.maximum(n, least)
        squares = np.zeros(n.shape[1:])
        for s in sums:
            squares += np.square(np.einsum("z,zij,zij->ij", SIGNS, s, inverse))
        best = np.where((n >= least).all(axis=0), squares / inverse.sum(axis=0), 0.0)
        best = np.maximum.reduceat(best, other.starts[:-1], axis=1)
        return np.asarray(np.maximum.reduceat(best, self.starts[:-1], axis=0))

    def _quadrants(self, other: NDArray[np.float32], part: NDArray[np.float32]) -> Float:
        """Return the sums (4, cuts, cuts) inside both cuts, in the first only, in the second only, and in neither."""
        both = ((self.inside * part) @ other.T).astype(np.float64)
        first, second = (self.inside @ part).astype(np.float64)[:, np.newaxis], other @ part
        return np.stack([both, first - both, second - both, part.sum(dtype=np.float64) - first - second + both])


SIGNS = np.array([1.0, -1.0, -1.0, 1.0])


def _cuts(column: Column, x: Float) -> Bool:
    """Return which values (n,) are inside each cut, (cuts, n), the coarse cuts first; none if they do not vary."""
    found = np.sort(x[~np.isnan(x)])
    if not len(found) or found[0] == found[-1]:
        return np.zeros((0, len(x)), dtype=np.bool_)
    if column.levels is not None:
        levels = _frequent(x, CELLS)
        return np.asarray(x == levels[: 1 if len(levels) == 2 else None, np.newaxis])
    eighths = ColumnSample(found, len(x)).quantiles(np.arange(1, CELLS) / CELLS)
    ends = np.unique(eighths)
    # Where seven eighths of the values are the largest one, the only cut is between it and all others.
    ends = ends[ends < found[-1]] if ends[0] < found[-1] else found[found < found[-1]][-1:]
    ends = np.concatenate([ends[1::2], ends[::2]])  # the quartiles first
    return np.asarray(np.where(np.isnan(x), eighths[CELLS // 2 - 1], x) > ends[:, np.newaxis])


def _side(column: Column, x: Float) -> PairSide:
    """Return the factors of a column whose values (n,) vary."""
    if (levels := column.levels) is not None:
        # The other levels are those without a factor; one level is the complement of the others.
        count = min(MAX_LEVELS, len(levels.labels) if levels.other else len(levels.labels) - 1)
        first, *codes = [code for code in _frequent(x, count + 1).astype(int).tolist() if code >= 0]
        codes = [first, *(code for code in codes if np.mean(x == code) >= MIN_SHARE)]
        return PairSide(column=column.name, levels=tuple(levels.labels[code] for code in codes[:count]))
    present = x[~np.isnan(x)]
    knots = tuple(sorted({*np.quantile(present, KNOTS).tolist()}))
    return PairSide(column=column.name, knots=knots if len(knots) > 1 else (float(present.min()), float(present.max())))


def _frequent(x: Float, count: int) -> Float:
    values, counts = np.unique(x[~np.isnan(x)], return_counts=True)
    return np.asarray(values[np.argsort(-counts, kind="stable")][:count])
