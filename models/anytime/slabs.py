"""Slabs: the rows of a table in standard units, kept for the many passes of a likelihood.

They are float64, feature by feature, whatever came in, and take as much memory as the table has numbers. Beyond
`HELD_BYTES` they are kept in a temporary file, which the system reads ahead of the passes and forgets as it likes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from anytime.accumulate import Block
from anytime.arrays import Bool, Float, Index
from anytime.errors import TableError
from anytime.gram import Gram

__all__ = ["HELD_BYTES", "Slab", "slabs_of"]

ROWS = 16_000
"""Rows of a slab at most; no power of two, whose columns would fall on the same lines of the cache."""

HELD_BYTES = 2**30
"""Bytes of slabs that stay in memory."""


@dataclass(frozen=True, eq=False)
class Slab:
    """Consecutive rows of a table.

    Attributes
    ----------
    Z : (D + 1, rows) ones, then the features in standard units, 0 where missing.
    Y : (rows, P) responses.
    weights : (rows,), or None for weight 1.
    folds : (rows,) fold of each row, or None when there is one.
    """

    Z: Float
    Y: Float
    weights: Float | None
    folds: Index | None

    def weights_where(self, chosen: Callable[[Index], Bool]) -> Float:
        """Weights (rows,), 0 outside the chosen folds."""
        folds = np.zeros(len(self.Y), dtype=np.intp) if self.folds is None else self.folds
        inside = chosen(folds).astype(np.float64)
        return inside if self.weights is None else inside * self.weights


def slabs_of(blocks: Iterable[Block], gram: Gram, *, held_bytes: int = HELD_BYTES) -> tuple[Slab, ...]:
    """The rows of some blocks, once read, in the units of their normal equations.

    Raises
    ------
    TableError
        There is no room for the temporary file.
    """
    kept, store = 0, None
    slabs = []
    for block in blocks:
        for part in _cut(block):
            size = 8 * (len(gram.x_mean) + 1) * len(part.Y)
            kept += size
            if kept > held_bytes and store is None:
                store = _Store()
            Z = (
                np.empty((len(gram.x_mean) + 1, len(part.Y)))
                if store is None
                else store.room(len(gram.x_mean) + 1, part)
            )
            _fill(Z, part, gram)
            Y = np.ascontiguousarray(part.Y, dtype=np.float64)
            slabs.append(Slab(Z, Y, part.weights, part.folds))
    return tuple(slabs)


def _cut(block: Block) -> Iterator[Block]:
    """Pieces of at most `ROWS` rows."""
    for start in range(0, len(block.Y), ROWS):
        rows = slice(start, start + ROWS)
        weights = None if block.weights is None else block.weights[rows]
        yield Block(block.X[rows], block.Y[rows], weights, None if block.folds is None else block.folds[rows])


def _fill(Z: Float, part: Block, gram: Gram) -> None:
    X: Any = part.X.toarray() if hasattr(part.X, "toarray") else np.asarray(part.X)
    Z[0] = 1.0
    np.subtract(X.T, gram.x_mean[:, np.newaxis], out=Z[1:])
    Z[1:] /= gram.x_scale[:, np.newaxis]
    Z[1:][gram.constant] = 0.0
    if np.isnan(Z.sum()):
        np.nan_to_num(Z, copy=False)


class _Store:
    """A temporary file without a name, gone with the process, that slabs are mapped from."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="anytime-")  # noqa: SIM115  (lives as long as its maps)
        self._end = 0

    def room(self, width: int, part: Block) -> Float:
        """Room for a slab of `width` x rows numbers."""
        shape = (width, len(part.Y))
        size = 8 * width * len(part.Y)
        try:
            self._file.truncate(self._end + size)
            mapped: Float = np.memmap(self._file, np.float64, "r+", self._end, shape)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise TableError(
                f"no room for {self._end + size:,} bytes of rows in {tempfile.gettempdir()!r}: {why}; set TMPDIR"
            ) from error
        self._end += size
        return mapped
