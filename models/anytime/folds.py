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
from anytime.types import Float, Index


@dataclass(eq=False)
class FoldStream:
    """Fold numbers of consecutive rows: each run of `count` rows has every fold once, in random order."""

    count: int
    _rng: np.random.Generator
    _ready: Index = field(default_factory=np.empty(0, dtype=np.intp).copy)

    def take(self, rows: int) -> Index:
        runs = -(-(rows - len(self._ready)) // self.count)
        if runs > 0:
            self._ready = np.append(self._ready, self._rng.random((runs, self.count)).argsort(axis=1))
        folds, self._ready = self._ready[:rows], self._ready[rows:]
        return folds

    def skip(self, rows: int) -> None:
        ready = min(rows, len(self._ready))
        self._ready = self._ready[ready:]
        runs, remainder = divmod(rows - ready, self.count)
        self._rng.bit_generator.advance(runs * self.count)  # type: ignore[attr-defined]  # PCG64 draws once per number
        self.take(remainder)


@dataclass(frozen=True)
class FoldCounts:
    """Summary of some rows that fold assignment needs to continue after them."""

    rows: int = 0
    classes: Mapping[int | None, int] = field(default_factory=dict)
    """Number of rows of each class, by its code; None is any class, where folds are not stratified."""
    queries: tuple[Hashable, ...] = ()
    """Distinct queries in order of appearance, where rows have queries."""


class FoldAssigner:
    """Assignment of consecutive rows to folds: by query, else if `stratified` by class; with one fold, none.

    Each class has its own stream, so that folds have equal shares of it and batches do not matter. Rows with one query
    share a fold, which is drawn when the query first appears.
    """

    def __init__(self, folds: int, seed: int, *, stratified: bool) -> None:
        rng = np.random.default_rng(seed)
        self.folds, self.stratified = folds, stratified
        self._seed = int(rng.integers(2**63))
        self._streams: dict[int | None, FoldStream] = {None: FoldStream(folds, rng)}
        self._of_query: dict[Hashable, int] = {}

    def take(self, Y: Float, query: NDArray[Any] | None) -> Index | None:
        """Return the folds (rows,) of the next rows by responses (rows, P) and queries (rows,); None with one fold."""
        if self.folds == 1:
            return None
        if query is not None:
            return np.array([self._fold(key) for key in query.tolist()], dtype=np.intp)
        if not self.stratified:
            return self._streams[None].take(len(Y))
        codes, folds = class_codes(Y), np.empty(len(Y), dtype=np.intp)
        for code, rows in Counter(codes.tolist()).items():
            folds[codes == code] = self._stream(code).take(rows)
        return folds

    def tally(self, parts: Iterable[tuple[Float, NDArray[Any] | None]]) -> FoldCounts:
        """Return the summary of some rows, given in parts: responses and queries as in `take`."""
        rows, classes, queries = 0, Counter[int | None](), dict[Hashable, None]()
        for Y, query in parts:
            rows += len(Y)
            if query is not None:
                queries |= dict.fromkeys(query.tolist())
            else:
                classes.update(class_codes(Y).tolist() if self.stratified else {None: len(Y)})
        return FoldCounts(rows, classes, tuple(queries))

    def skip(self, before: FoldCounts) -> None:
        if self.folds == 1:
            return
        for key in before.queries:
            self._fold(key)
        for code, rows in before.classes.items():
            self._stream(code).skip(rows)

    def copy(self) -> Self:
        return deepcopy(self)

    def split(self, parts: Iterable[FoldCounts]) -> list[Self]:
        """Return an independent assigner for each of some consecutive parts of the next rows."""
        assigners = []
        for part in parts:
            assigner = copy(self)
            assigner._streams = deepcopy(self._streams)
            self.skip(part)
            assigner._of_query = {key: self._of_query[key] for key in part.queries if self.folds > 1}
            assigners.append(assigner)
        return assigners

    def _fold(self, key: Hashable) -> int:
        if key not in self._of_query:
            self._of_query[key] = int(self._streams[None].take(1)[0])
        return self._of_query[key]

    def _stream(self, code: int | None) -> FoldStream:
        if code is not None and code not in self._streams:
            self._streams[code] = FoldStream(self.folds, np.random.default_rng([self._seed, code]))
        return self._streams[code]
