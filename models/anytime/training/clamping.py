"""Clamps to choose from, and their moments as new rows will meet them.

The least and the largest training value of a column decide where a clamp moves other values. A clamp that was learned
from all rows moves none of them, or few, so held-out rows would say nothing of what it does to new ones. Each fold is
therefore held out with clamps that the other folds determine. That changes few rows: those with a value outside. All
others are summed once, and these rows once more for each clamp.

The ends of the clamps come from a uniform sample of the rows, as knots and levels do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anytime.data.dataset import Dataset
from anytime.features.bases import Clamp, ColumnSample
from anytime.features.expansion import Expansion
from anytime.features.learning import Sample, sample_of, sample_size
from anytime.groups import ColumnBasis, FeatureGroups
from anytime.moments.accumulate import Block, dense
from anytime.moments.moments import Moments
from anytime.types import Bool, Float, Index

HELD_VALUES = 2**22
"""Number of values of rows outside a clamp that are collected before they are summed, 32 MiB."""

CLAMPS: tuple[Clamp, ...] = ("off", 0.0, "outliers")
"""The clamps of "auto": none, the range of the training rows, and that without outliers."""


class Clamped(NamedTuple):
    """Groups with one clamp, and the moments of each fold: to learn from, and to measure errors on."""

    clamp: Clamp
    groups: FeatureGroups
    parts: Sequence[Moments]
    held: Sequence[Moments]


def clamped_moments(
    dataset: Dataset,
    columns: Sequence[str],
    blocks: Callable[[Dataset], Iterator[Block]],
    folds: int,
    *,
    seed: int,
    clamps: Sequence[Clamp] = CLAMPS,
    n_jobs: int | None = None,
) -> list[Clamped]:
    """Return the moments of each of some clamps that columns may have, without those that move no value; at least one.

    Parameters
    ----------
    blocks : Callable[[Dataset], Iterator[Block]]
        Reads the rows of a data set, with their folds.
    seed : int
        Of the sample that the clamps are learned from.
    """
    groups = dataset.groups
    given = {name: groups.bases.get(name, ColumnBasis()) for name in columns}
    free = groups.with_bases({**groups.bases, **{n: b.model_copy(update={"range": None}) for n, b in given.items()}})
    unclamped = replace(dataset, groups=free)
    place = np.array([groups.features.index(name) for name in columns], dtype=np.intp)
    ends = _learned_ends(blocks(unclamped), place, folds, seed)
    outside = _Outside(unclamped, place, ends, folds, clamps, n_jobs)
    expansion = None if unclamped.terms.is_identity else unclamped.terms
    none = [Moments.empty(unclamped.terms.size, len(dataset.target.responses)) for _ in range(folds)]
    inner = unclamped.summed(outside.without(blocks(unclamped), expansion), folds, n_jobs=n_jobs, before=none)
    found, sums, known = list[Clamped](), outside.sums, _Wholes(inner)
    for clamp, learned in zip(CLAMPS, [None, *ends], strict=True):
        of_clamp = sums.pop(clamp, None)
        if of_clamp is None or (learned is not None and learned.is_idle):
            continue
        parts, held = map(known.of, of_clamp)
        own = free if learned is None else _with_ranges(free, columns, learned.every)
        found.append(Clamped(clamp, own, parts, parts if learned is None else held))
    return found


class _Wholes:
    """The moments of all rows of each fold, in the memory of those outside a clamp; clamps with the same share them.

    A clamp to the range of all rows, for example, moves none of these.
    """

    def __init__(self, inner: list[Moments]) -> None:
        self._inner = inner
        self._merged: dict[tuple[int, int], Moments] = {}
        self._lists: list[list[Moments]] = []

    def of(self, outer: list[Moments]) -> list[Moments]:
        """Return the moments of all rows, the same list for the same moments of the rows outside."""
        places = [(fold, id(part.scatter)) for fold, part in enumerate(outer)]
        for place, a, b in zip(places, self._inner, outer, strict=True):
            if place not in self._merged:
                self._merged[place] = a.merge(b, into=b.scatter)
        parts = [self._merged[place] for place in places]
        self._lists.append(next((one for one in self._lists if all(map(is_, one, parts))), parts))
        return self._lists[-1]


@dataclass(frozen=True)
class _Ends:
    """Ends of one clamp: (2, columns) of all rows, (2, folds, columns) of the rows of other folds; infinite: none."""

    every: Float
    others: Float

    @property
    def is_idle(self) -> bool:
        return not np.isfinite(self.every).any()


def _with_ranges(groups: FeatureGroups, columns: Sequence[str], ends: Float) -> FeatureGroups:
    bases = dict(groups.bases)
    for name, low, high in zip(columns, *ends.tolist(), strict=True):
        if np.isfinite(low):
            bases[name] = bases.get(name, ColumnBasis()).model_copy(update={"range": (low, high)})
    return groups.with_bases(bases)


def _learned_ends(blocks: Iterable[Block], place: Index, folds: int, seed: int) -> tuple[_Ends, _Ends]:
    """Return the ends of the training range, and of that without outliers, from a sample of the rows."""

    def batches() -> Iterator[Sample]:
        for block in blocks:
            rows = len(block.Y)
            weights = np.ones(rows) if block.weights is None else block.weights
            own = np.zeros(rows, dtype=np.intp) if block.folds is None else block.folds
            for start in range(0, rows, step := max(1, HELD_VALUES // len(place))):
                part = slice(start, start + step)
                yield Sample({"X": dense(block.X[part][:, place]), "weights": weights[part], "folds": own[part]})

    sample = sample_of(batches(), sample_size(len(place)), seed=seed).columns
    X, weights, own = np.asarray(sample["X"], dtype=np.float64), sample["weights"], sample["folds"]
    weighted = None if (weights == 1).all() else weights
    ranges = np.array([_range_of(X[own == f]) for f in range(folds)]).transpose(1, 0, 2)
    others = np.stack([_others(ranges[0], np.fmin), _others(ranges[1], np.fmax)])
    every = np.stack([np.fmin.reduce(ranges[0]), np.fmax.reduce(ranges[1])])
    outliers, of_others = np.full_like(every, np.nan), np.full_like(others, np.nan)
    for j, x in enumerate(X.T):
        # Quantiles of infinite values are undefined; such a value ends the second pass.
        found = None if np.isnan(x).all() or np.isinf(x).any() else _sampled(x, weighted).without_outliers()
        if found is None:
            continue
        outliers[:, j] = found
        far = outliers[:, j] != every[:, j]  # all rows say which end is an outlier: it may be in one fold only
        for f in range(folds):
            rest = (own != f) & ~np.isnan(x)
            if rest.any():
                bulk = _sampled(x[rest], None if weighted is None else weighted[rest]).bulk()
                of_others[:, f, j] = np.where(far, bulk, others[:, f, j])
    return _Ends(_bounded(every), _bounded(others)), _Ends(_bounded(outliers), _bounded(of_others))


def _bounded(ends: Float) -> Float:
    """Return ends (2, ...), infinite where a column has no clamp."""
    return np.stack([np.where(np.isnan(ends[0]), -np.inf, ends[0]), np.where(np.isnan(ends[1]), np.inf, ends[1])])


def _range_of(X: Float) -> tuple[Float, Float]:
    return np.fmin.reduce(X, axis=0, initial=np.nan), np.fmax.reduce(X, axis=0, initial=np.nan)


def _others(of_folds: Float, least: np.ufunc) -> Float:
    """Return the extreme (folds, columns) over the other folds."""
    return np.array([least.reduce(np.delete(of_folds, f, axis=0)) for f in range(len(of_folds))])


def _sampled(x: Float, weights: Float | None) -> ColumnSample:
    observed = ~np.isnan(x)
    return ColumnSample(x[observed], len(x), None if weights is None else weights[observed])


class _Outside:
    """Rows with a value outside some clamp, apart from all others; and their sums with each clamp."""

    def __init__(
        self,
        dataset: Dataset,
        place: Index,
        ends: tuple[_Ends, _Ends],
        folds: int,
        clamps: Sequence[Clamp],
        n_jobs: int | None,
    ) -> None:
        self._dataset, self._place, self._folds, self._n_jobs = dataset, place, folds, n_jobs
        self._clamps = clamps
        self._ends = dict(zip(CLAMPS[1:], ends, strict=True))
        bounds = [(each.every[:, np.newaxis], each.others) for each in ends]
        self._low = np.max([np.maximum(every[0], others[0]) for every, others in bounds], axis=0)
        self._high = np.min([np.minimum(every[1], others[1]) for every, others in bounds], axis=0)
        self._blocks: list[Block] = []
        self._values = 0
        self._sums: dict[tuple[Clamp, bool], list[Moments]] = {}

    def without(self, blocks: Iterable[Block], expansion: Expansion | None) -> Iterator[Block]:
        """Yield blocks of the rows with no value outside any clamp, and collect the other rows."""
        for block in blocks:
            outside = self._is_outside(block)
            if outside.any():
                rows = np.flatnonzero(outside)
                kept = _rows_of(block, rows)
                self._blocks.append(replace(kept, X=np.asarray(dense(kept.X), dtype=np.float64), expansion=expansion))
                self._values += self._blocks[-1].X.size
                if self._values > HELD_VALUES:
                    self._sum()
                block = _rows_of(block, np.flatnonzero(~outside))  # noqa: PLW2901
            if len(block.Y):
                yield block

    def _is_outside(self, block: Block) -> Bool:
        outside = np.zeros(len(block.Y), dtype=np.bool_)
        for start in range(0, len(block.Y), step := max(1, HELD_VALUES // len(self._place))):
            part = slice(start, start + step)
            X = dense(block.X[part])[:, self._place]
            own = np.zeros(len(X), dtype=np.intp) if block.folds is None else block.folds[part]
            outside[part] = (np.less(X, self._low[own]) | np.greater(X, self._high[own])).any(axis=1)
        return outside

    @property
    def sums(self) -> dict[Clamp, tuple[list[Moments], list[Moments]]]:
        """Return the moments of the collected rows by fold, as training and as held-out rows have them."""
        self._sum()
        sums, self._sums = self._sums, {}
        return {clamp: (sums[clamp, False], sums[clamp, True]) for clamp in self._clamps}

    def _sum(self) -> None:
        """Add the rows collected so far to the sums, and forget them."""
        blocks, self._blocks, self._values = self._blocks, [], 0
        known: list[tuple[list[NDArray[Any]], list[Moments]]] = []
        for clamp in self._clamps:
            for held in (False, True):
                before = self._sums.get((clamp, held))
                moved = [self._clamped(block, clamp, held=held) for block in blocks]
                sums = next((s for X, s in known if all(map(_are_equal, X, moved))), None)
                if sums is None:
                    none = Moments.empty(self._dataset.terms.size, len(self._dataset.target.responses))
                    pairs = zip(blocks, moved, strict=True)
                    rows = (replace(block, X=X) for block, X in pairs)
                    sums = self._dataset.summed(rows, self._folds, n_jobs=self._n_jobs, before=[none] * self._folds)
                    known.append((moved, sums))
                total = sums if before is None else [a.merge(b) for a, b in zip(before, sums, strict=True)]
                self._sums[clamp, held] = total

    def _clamped(self, block: Block, clamp: Clamp, *, held: bool) -> NDArray[Any]:
        """Return the values (rows, columns) of a block with one clamp: that of all rows, or of the other folds."""
        if clamp == "off":
            return block.X  # type: ignore[no-any-return]
        ends = self._ends[clamp]
        if held:
            own = np.zeros(len(block.Y), dtype=np.intp) if block.folds is None else block.folds
            low, high = ends.others[0, own], ends.others[1, own]
        else:
            low, high = ends.every
        X = block.X.copy()
        X[:, self._place] = np.clip(X[:, self._place], low, high)
        return X  # type: ignore[no-any-return]


def _are_equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a is b or np.array_equal(a, b, equal_nan=True)


def _rows_of(block: Block, rows: Index) -> Block:
    weights = None if block.weights is None else block.weights[rows]
    folds = None if block.folds is None else block.folds[rows]
    return replace(block, X=block.X[rows], Y=block.Y[rows], weights=weights, folds=folds)
