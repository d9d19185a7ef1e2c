"""Slabs: the rows of a table in standard units, kept for the many passes of a likelihood.

They are float64, feature by feature, whatever came in, and take as much memory as the table has numbers. Beyond
`HELD_BYTES` they are in a temporary file, which is mapped, and let go of after each use.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from anytime.accumulate import Block
from anytime.arrays import Bool, Float, Index
from anytime.errors import TableError, file_error
from anytime.gram import Gram

__all__ = ["HELD_BYTES", "Slab", "slabs_of"]

ROWS = 16_000
"""Rows of a slab at most; no power of two, whose columns would fall on the same lines of the cache."""

HELD_BYTES = 3 * 2**27
"""Bytes of slabs that stay in memory: 384 MiB."""


@dataclass(frozen=True, eq=False)
class Slab:
    """Consecutive rows of a table.

    Attributes
    ----------
    Z : (D + 1, rows) ones, then the features in standard units, 0 where missing.
    Y : (rows, P) responses.
    weights : (rows,), or None for weight 1.
    folds : (rows,) fold of each row, or None when there is one.
    gaps : for each feature that is missing in some of these rows, (rows,) where.
    mapped : the part of the temporary file where Z is, or None.
    """

    Z: Float
    Y: Float
    weights: Float | None
    folds: Index | None
    gaps: dict[int, Bool]
    mapped: mmap.mmap | None = None

    def weights_where(self, chosen: Callable[[Index], Bool]) -> Float:
        """Weights (rows,), 0 outside the chosen folds."""
        folds = np.zeros(len(self.Y), dtype=np.intp) if self.folds is None else self.folds
        inside = chosen(folds).astype(np.float64)
        return inside if self.weights is None else inside * self.weights

    def release(self) -> None:
        """Let go of the memory of what is in a file; it is read again when needed."""
        if self.mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)


def slabs_of(blocks: Iterable[Block], gram: Gram, *, held_bytes: int = HELD_BYTES) -> tuple[Slab, ...]:
    """The rows of some blocks, once read, in the units of their normal equations.

    Raises
    ------
    TableError
        There is no room for the temporary file.
    """
    kept, width = 0, len(gram.x_mean) + 1
    store: _Store | None = None
    slabs = []
    try:
        for part in (part for block in blocks for part in _cut(block)):
            kept += 8 * width * len(part.Y)
            if kept > held_bytes and store is None:
                store = _Store()
            mapped = None if store is None else store.room(8 * width * len(part.Y))
            Z = np.empty((width, len(part.Y))) if mapped is None else _array(mapped, width, len(part.Y))
            gaps = _fill(Z, part, gram)
            Y = np.ascontiguousarray(part.Y, dtype=np.float64)
            slabs.append(Slab(Z, Y, part.weights, part.folds, gaps, mapped))
            slabs[-1].release()
    finally:
        if store is not None:
            store.close()  # the maps keep what they need
    return tuple(slabs)


def _array(mapped: mmap.mmap, width: int, rows: int) -> Float:
    """The numbers at the head of a part of the file."""
    return np.frombuffer(mapped, dtype=np.float64, count=width * rows).reshape(width, rows)


def _cut(block: Block) -> Iterator[Block]:
    """Pieces of at most `ROWS` rows."""
    for start in range(0, len(block.Y), ROWS):
        rows = slice(start, start + ROWS)
        weights = None if block.weights is None else block.weights[rows]
        yield Block(block.X[rows], block.Y[rows], weights, None if block.folds is None else block.folds[rows])


def _fill(Z: Float, part: Block, gram: Gram) -> dict[int, Bool]:
    """Put rows in standard units; returns where features are missing, which become 0."""
    X: Any = part.X.toarray() if hasattr(part.X, "toarray") else np.asarray(part.X)
    Z[0] = 1.0
    np.subtract(X.T, gram.x_mean[:, np.newaxis], out=Z[1:])
    Z[1:] /= gram.x_scale[:, np.newaxis]
    Z[1:][gram.constant] = 0.0
    gaps: dict[int, Bool] = {}
    for row in np.flatnonzero(np.isnan(Z.sum(axis=1))).tolist():
        gaps[row - 1] = np.isnan(Z[row])
        Z[row, gaps[row - 1]] = 0.0
    return gaps


class _Store:
    """A temporary file without a name, gone with the process, that slabs are mapped from."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="anytime-")  # noqa: SIM115  (closed by whoever made it)
        self._end = 0

    def room(self, size: int) -> mmap.mmap:
        """Map some bytes at the end of the file, which has room for them."""
        step = mmap.ALLOCATIONGRANULARITY
        size = -(-size // step) * step
        try:
            if hasattr(os, "posix_fallocate"):  # a map of a file without room would end the process
                os.posix_fallocate(self._file.fileno(), self._end, size)
            else:
                self._file.truncate(self._end + size)
            mapped = mmap.mmap(self._file.fileno(), size, offset=self._end)
        except OSError as error:
            doing = f"store {self._end + size:,} bytes of rows in {tempfile.gettempdir()!r}"
            raise file_error(TableError, doing, error, "; set TMPDIR to a larger disk") from error
        self._end += size
        return mapped

    def close(self) -> None:
        """Let go of the file; its maps stay."""
        self._file.close()
