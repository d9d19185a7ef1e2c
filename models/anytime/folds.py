"""Which fold a row belongs to: balanced, seeded, and the same however the table is cut into batches.

Dealing the rows of a table into folds, from its first row on or from any other.

Whoever begins in the middle has to know what went before: how many rows, and where folds follow classes or queries,
which. That is a tally, which tells of a range of rows at the price of reading one or two columns.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from anytime.target import class_codes
from anytime.types import FamilyName, Float, Index

__all__ = [
    "FoldAssigner",
    "FoldCounts",
    "FoldStream",
    "GroupedFolds",
    "StratifiedFolds",
    "fold_count",
    "stratified",
]


class FoldStream:
    """Fold numbers for one row after another: each run of `count` rows has every fold once, in random order."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.count = count
        self._rng = rng
        self._ready = np.empty(0, dtype=np.intp)

    def take(self, rows: int) -> Index:
        """Folds of the next `rows` rows, (rows,)."""
        runs = -(-(rows - len(self._ready)) // self.count)
        if runs > 0:
            more = self._rng.random((runs, self.count)).argsort(axis=1).ravel()
            self._ready = np.concatenate([self._ready, more])
        taken, self._ready = self._ready[:rows], self._ready[rows:]
        return taken

    def skip(self, rows: int) -> None:
        """Go on behind the next `rows` rows, without drawing for them."""
        ready = min(rows, len(self._ready))
        self._ready = self._ready[ready:]
        runs, rest = divmod(rows - ready, self.count)
        self._rng.bit_generator.advance(runs * self.count)  # type: ignore[attr-defined]  # of PCG64: a draw a number
        self.take(rest)


class StratifiedFolds:
    """Fold numbers by a class: each class is dealt out by itself, so that two rows of one are in two folds."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._count, self._seed = count, int(rng.integers(2**63))
        self._streams: dict[Hashable, FoldStream] = {}

    def take(self, labels: Index) -> Index:
        """Folds of the next rows by the codes of their classes, (rows,)."""
        folds = np.empty(len(labels), dtype=np.intp)
        for label in np.unique(labels).tolist():
            rows = np.flatnonzero(labels == label)
            folds[rows] = self._of(label).take(len(rows))
        return folds

    def skip(self, counts: Mapping[int, int]) -> None:
        """Go on behind so many rows of each class."""
        for label, rows in counts.items():
            self._of(label).skip(rows)

    def _of(self, label: int) -> FoldStream:
        if label not in self._streams:  # a generator of its own, so that batches change nothing
            self._streams[label] = FoldStream(self._count, np.random.default_rng([self._seed, label]))
        return self._streams[label]


class GroupedFolds:
    """Fold numbers by a key (a query): rows of one key share a fold, keys are dealt out as they appear."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._stream = FoldStream(count, rng)
        self._fold: dict[Hashable, int] = {}

    def take(self, keys: Iterable[Hashable]) -> Index:
        """Folds of the next rows by their keys, (rows,)."""
        return np.array([self._of(key) for key in keys], dtype=np.intp)

    def only(self, keys: Iterable[Hashable]) -> Self:
        """The same folds for some keys, which have theirs already, and for no others."""
        some = copy(self)
        some._fold = {key: self._fold[key] for key in keys}
        return some

    def _of(self, key: Hashable) -> int:
        if key not in self._fold:
            self._fold[key] = int(self._stream.take(1)[0])
        return self._fold[key]


@dataclass(frozen=True)
class FoldCounts:
    """What dealing must know of some rows.

    Attributes
    ----------
    rows : how many.
    classes : how many of each class, by its code, where folds are stratified.
    queries : the different queries, as they appear, where rows have them.
    """

    rows: int = 0
    classes: Mapping[int, int] = field(default_factory=dict)
    queries: tuple[Hashable, ...] = ()


def fold_count(folds: int, rows: int) -> int:
    """Return how many folds some rows are dealt into: at most one for each row, and at least 1."""
    return max(min(folds, max(rows, 2)), 1)


def stratified(family: FamilyName) -> bool:
    """Return whether the rows of each class are dealt out by themselves."""
    return family in ("binomial", "multinomial")


class FoldAssigner:
    """The fold of one row after another.

    Parameters
    ----------
    folds : how many; nothing is dealt into one.
    stratified : deal the rows of each class out by themselves, where rows have no query.
    """

    def __init__(self, folds: int, seed: int, *, stratified: bool) -> None:
        rng = np.random.default_rng(seed)
        self.folds, self.stratified = folds, stratified
        self._by_row, self._by_query = FoldStream(folds, rng), GroupedFolds(folds, rng)
        self._by_class = StratifiedFolds(folds, rng)

    def take(self, Y: Float, query: NDArray[Any] | None) -> Index | None:
        """Folds of the next rows (rows,), by their responses (rows, P) and queries (rows,); None for one fold."""
        if self.folds == 1:
            return None
        if query is not None:
            return self._by_query.take(query.tolist())
        return self._by_class.take(class_codes(Y)) if self.stratified else self._by_row.take(len(Y))

    def tally(self, parts: Iterable[tuple[Float, NDArray[Any] | None]]) -> FoldCounts:
        """What is to be known of some rows, given part by part: responses and queries as for `take`."""
        rows, classes, queries = 0, dict[int, int](), dict[Hashable, None]()
        for Y, query in parts:
            rows += len(Y)
            if query is not None:
                queries |= dict.fromkeys(query.tolist())
            elif self.stratified:
                for code, count in zip(*np.unique(class_codes(Y), return_counts=True), strict=True):
                    classes[int(code)] = classes.get(int(code), 0) + int(count)
        return FoldCounts(rows, classes, tuple(queries))

    def skip(self, before: FoldCounts) -> None:
        """Go on behind some rows."""
        if self.folds == 1:
            return
        if before.queries:
            self._by_query.take(before.queries)
        elif self.stratified:
            self._by_class.skip(before.classes)
        else:
            self._by_row.skip(before.rows)

    def copy(self) -> Self:
        """Another that goes on from the same row."""
        return deepcopy(self)

    def split(self, parts: Iterable[FoldCounts]) -> list[Self]:
        """One for each of some consecutive parts of the rows to come, that needs none of the others."""
        deals = []
        for part in parts:
            here = copy(self)
            here._by_row, here._by_class = deepcopy((self._by_row, self._by_class))
            self.skip(part)
            if self.folds > 1:
                here._by_query = self._by_query.only(part.queries)
            deals.append(here)
        return deals
