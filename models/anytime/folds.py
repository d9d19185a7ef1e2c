"""Which fold a row belongs to: balanced, seeded, and the same however the table is cut into batches."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from copy import copy
from typing import Self

import numpy as np

from anytime.arrays import Index

__all__ = ["FoldStream", "GroupedFolds", "StratifiedFolds"]


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
