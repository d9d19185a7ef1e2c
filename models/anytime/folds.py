"""Assignment of rows to folds: balanced, seeded, and independent of how the table is cut into batches.

Assignment may start at any row. A worker that starts in the middle of a table needs only `FoldCounts` of the rows
before, which are computed from the target and query columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from anytime.target import class_codes
from anytime.types import FamilyName, Float, Index


class FoldStream:
    """Fold numbers of consecutive rows: each run of `count` rows has every fold once, in random order."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.count = count
        self._rng = rng
        self._ready = np.empty(0, dtype=np.intp)

    def take(self, rows: int) -> Index:
        runs = -(-(rows - len(self._ready)) // self.count)
        if runs > 0:
            more = self._rng.random((runs, self.count)).argsort(axis=1).ravel()
            self._ready = np.concatenate([self._ready, more])
        folds, self._ready = self._ready[:rows], self._ready[rows:]
        return folds

    def skip(self, rows: int) -> None:
        ready = min(rows, len(self._ready))
        self._ready = self._ready[ready:]
        runs, remainder = divmod(rows - ready, self.count)
        self._rng.bit_generator.advance(runs * self.count)  # type: ignore[attr-defined]  # PCG64 draws once per number
        self.take(remainder)


class StratifiedFolds:
    """Fold numbers stratified by class: each class has its own `FoldStream`, so folds have equal shares of it."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._count, self._seed = count, int(rng.integers(2**63))
        self._streams: dict[Hashable, FoldStream] = {}

    def take(self, labels: Index) -> Index:
        """Return the folds (rows,) of the next rows, given the codes of their classes."""
        folds = np.empty(len(labels), dtype=np.intp)
        for label in np.unique(labels).tolist():
            rows = np.flatnonzero(labels == label)
            folds[rows] = self._of(label).take(len(rows))
        return folds

    def skip(self, counts: Mapping[int, int]) -> None:
        for label, rows in counts.items():
            self._of(label).skip(rows)

    def _of(self, label: int) -> FoldStream:
        if label not in self._streams:  # its own generator, so that the batches do not matter
            self._streams[label] = FoldStream(self._count, np.random.default_rng([self._seed, label]))
        return self._streams[label]


class GroupedFolds:
    """Fold numbers by key (a query): rows with one key share a fold, which is drawn when the key first appears."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._stream = FoldStream(count, rng)
        self._fold: dict[Hashable, int] = {}

    def take(self, keys: Iterable[Hashable]) -> Index:
        return np.array([self._of(key) for key in keys], dtype=np.intp)

    def only(self, keys: Iterable[Hashable]) -> Self:
        """Return a copy that knows the folds of some keys only; all of them must have one already."""
        some = copy(self)
        some._fold = {key: self._fold[key] for key in keys}
        return some

    def _of(self, key: Hashable) -> int:
        if key not in self._fold:
            self._fold[key] = int(self._stream.take(1)[0])
        return self._fold[key]


@dataclass(frozen=True)
class FoldCounts:
    """Summary of some rows that fold assignment needs to continue after them."""

    rows: int = 0
    classes: Mapping[int, int] = field(default_factory=dict)
    """Number of rows of each class, by its code, where folds are stratified."""
    queries: tuple[Hashable, ...] = ()
    """Distinct queries in order of appearance, where rows have queries."""


def fold_count(folds: int, rows: int) -> int:
    """Return the number of folds for some rows: at most one per row, and at least 1."""
    return max(min(folds, max(rows, 2)), 1)


def stratified(family: FamilyName) -> bool:
    return family in ("binomial", "multinomial")


class FoldAssigner:
    """Assignment of consecutive rows to folds: by query, else if `stratified` by class; with one fold, none."""

    def __init__(self, folds: int, seed: int, *, stratified: bool) -> None:
        rng = np.random.default_rng(seed)
        self.folds, self.stratified = folds, stratified
        self._by_row, self._by_query = FoldStream(folds, rng), GroupedFolds(folds, rng)
        self._by_class = StratifiedFolds(folds, rng)

    def take(self, Y: Float, query: NDArray[Any] | None) -> Index | None:
        """Return the folds (rows,) of the next rows by responses (rows, P) and queries (rows,); None with one fold."""
        if self.folds == 1:
            return None
        if query is not None:
            return self._by_query.take(query.tolist())
        return self._by_class.take(class_codes(Y)) if self.stratified else self._by_row.take(len(Y))

    def tally(self, parts: Iterable[tuple[Float, NDArray[Any] | None]]) -> FoldCounts:
        """Return the summary of some rows, given in parts: responses and queries as in `take`."""
        rows, classes, queries = 0, Counter[int](), dict[Hashable, None]()
        for Y, query in parts:
            rows += len(Y)
            if query is not None:
                queries |= dict.fromkeys(query.tolist())
            elif self.stratified:
                classes.update(class_codes(Y).tolist())
        return FoldCounts(rows, classes, tuple(queries))

    def skip(self, before: FoldCounts) -> None:
        if self.folds == 1:
            return
        if before.queries:
            self._by_query.take(before.queries)
        elif self.stratified:
            self._by_class.skip(before.classes)
        else:
            self._by_row.skip(before.rows)

    def copy(self) -> Self:
        return deepcopy(self)

    def split(self, parts: Iterable[FoldCounts]) -> list[Self]:
        """Return an independent assigner for each of some consecutive parts of the next rows."""
        assigners = []
        for part in parts:
            assigner = copy(self)
            assigner._by_row, assigner._by_class = deepcopy((self._by_row, self._by_class))
            self.skip(part)
            if self.folds > 1:
                assigner._by_query = self._by_query.only(part.queries)
            assigners.append(assigner)
        return assigners
