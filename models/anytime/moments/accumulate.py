"""Accumulation of moments from rows: one pass in float64, whatever the dtype, with threads over parts of the table.

A part is read in chunks that fit the cache. Each chunk is copied into a buffer after subtraction of a shift, and one
symmetric product accumulates it. The buffer is stored by rows or by columns, as the table is. The shift is the mean of
the part's first rows, so that a column with mean 1e8 and deviation 1 keeps its digits. Missing values are stored as
`fill` and marked in indicator columns (see `anytime.moments.moments`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing import current_process
from typing import Any, Literal, TypeVar

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import NDArray

from anytime._files import memory_limit
from anytime._linalg import add_outer, single_blas_thread
from anytime.errors import TableError, TrainingError
from anytime.features.expansion import Expansion
from anytime.moments.moments import Moments
from anytime.types import Float, Index

MAX_PART_ROWS = 65_536
"""Rows that one task accumulates in memory before merging; longer sums would lose digits to their shift."""

MIN_SCATTER = 1e-300
"""Smallest sum of squares of a column that varies: smaller ones lose digits, or are 0."""
SMALL_SPREAD = 1e-99
"""A column with a smaller sum, also with the smallest weights, has values closer together than this."""


class UnusableColumnError(TableError):
    """A column of a block with an invalid sum; `column` counts features, then responses, and `why` is the reason."""

    def __init__(self, column: int, features: int, why: str) -> None:
        named = f"feature number {column}" if column < features else f"target number {column - features}"
        super().__init__(f"{named} (counted from 0) {why}")
        self.column, self.why = column, why


CENTRE_ROWS = 512
"""Rows examined to find the shift, or more where a column is missing in all of them."""


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table.

    Attributes
    ----------
    X : array of shape (rows, columns)
        Of any numeric dtype, or scipy sparse; NaN where missing.
    Y : NDArray[Any]
        (rows, P) responses, none missing.
    weights : Float | None
        (rows,) or None for weight 1.
    folds : Index | None
        (rows,) fold of each row, or None with one fold.
    expansion : Expansion | None
        The D terms of the columns; None if each column is its own term.
    query : NDArray[Any] | None
        (rows,) query of each row, if they have queries.
    """

    X: Any
    Y: NDArray[Any]
    weights: Float | None = None
    folds: Index | None = None
    expansion: Expansion | None = None
    query: NDArray[Any] | None = None

    @property
    def row_weights(self) -> Float:
        return np.ones(len(self.Y)) if self.weights is None else self.weights


def rows_of(values: NDArray[Any] | None, rows: slice | Index) -> Any:
    """Return some rows of an optional array; None without it."""
    return None if values is None else values[rows]


def moments_of(
    X: Any, Y: Any, weights: Any = None, *, n_jobs: int | None = None, chunk_rows: int | None = None
) -> Moments:
    """Return the moments of a table in memory; X, Y ((n,) or (n, P)) and weights otherwise as in `Block`.

    By default, a chunk of `chunk_rows` fits the cache. Raise TableError if a value is infinite, or too large to square.
    """
    return fold_moments_of(X, Y, weights, n_jobs=n_jobs, chunk_rows=chunk_rows)[0]


def fold_moments_of(
    X: Any,
    Y: Any,
    weights: Any = None,
    folds: Index | None = None,
    count: int = 1,
    *,
    n_jobs: int | None = None,
    chunk_rows: int | None = None,
    expansion: Expansion | None = None,
) -> list[Moments]:
    """Return the moments of each of `count` folds; `folds` (n,) is the fold of each row. Otherwise as `moments_of`."""
    expansion = None if expansion is None or expansion.is_identity else expansion
    X = X.tocsr() if hasattr(X, "tocsr") else np.asarray(X)
    check_memory(X.shape[1] if expansion is None else expansion.size, count)
    Y = np.asarray(Y)
    Y = Y[:, np.newaxis] if Y.ndim == 1 else Y
    w = None if weights is None else np.asarray(weights, dtype=np.float64)
    jobs = jobs_of(n_jobs)
    edges = np.linspace(0, len(Y), jobs * -(-len(Y) // (jobs * MAX_PART_ROWS)) + 1).astype(int)
    parts = (slice(a, b) for a, b in pairwise(edges) if b > a)
    blocks = (Block(X[rows], Y[rows], rows_of(w, rows), rows_of(folds, rows), expansion) for rows in parts)
    return accumulate(blocks, count, n_jobs=n_jobs, chunk_rows=chunk_rows)


def check_memory(terms: int, folds: int) -> None:
    """Raise TrainingError if the moments of so many terms need more memory than there is."""
    matrices = folds + 2  # those of each fold, of a block, and their sum
    needed, limit = 8 * terms**2 * matrices, memory_limit()
    if limit is not None and needed > limit:
        raise TrainingError(
            f"the columns become {terms} terms, whose moments in {folds} folds need {needed} bytes of the {limit} that "
            "this machine has; use fewer columns, levels, knots or folds"
        )


def accumulate(
    blocks: Iterable[Block],
    count: int = 1,
    *,
    n_jobs: int | None = None,
    chunk_rows: int | None = None,
    before: list[Moments] | None = None,
) -> list[Moments]:
    """Return the moments of each of `count` folds of the rows of all blocks, merged in the order of the blocks.

    The next blocks are read while earlier ones are summed, a few ahead at most. `before` are the moments of each fold
    of earlier rows; without them there must be at least one block.
    """
    total, small = before, dict[int, UnusableColumnError]()
    with single_blas_thread() if jobs_of(n_jobs) > 1 else nullcontext():
        for part, varying in in_threads(partial(_part, count=count, chunk_rows=chunk_rows), blocks, n_jobs):
            total = part if total is None else [a.merge(b) for a, b in zip(total, part, strict=True)]
            small |= varying
    if total is None:
        raise TableError("there are no rows to learn from; expected at least one with a target")
    for place, error in small.items():
        if sum(part.scatter[place, place] for part in total) < MIN_SCATTER:
            raise error
    return total


def dense(X: Any) -> NDArray[Any]:
    """Return a sparse matrix as an array, an array unchanged."""
    return X.toarray() if hasattr(X, "toarray") else np.asarray(X)


@np.errstate(all="ignore")  # values that are not finite, or too small to square, raise one error instead
def _part(block: Block, count: int, chunk_rows: int | None) -> tuple[list[Moments], dict[int, UnusableColumnError]]:
    """Return the moments of each fold, and the errors of sums that are too small, unless other rows add to them."""
    X, responses = block.X, block.Y.shape[1]
    features = int(X.shape[1]) if block.expansion is None else block.expansion.size
    moments: list[Moments] = []
    small: dict[int, UnusableColumnError] = {}
    for fold in range(count):
        rows = None if block.folds is None or count == 1 else np.flatnonzero(block.folds == fold)
        size = block.Y.shape[0] if rows is None else len(rows)
        if size == 0:
            moments.append(Moments.empty(features, responses))
            continue
        # About 8 MB of buffer: large enough for the product to run at full speed, small enough to stay in cache.
        step = min(chunk_rows or int(np.clip(2**20 // (features + responses), 512, 8192)), size)
        # Terms are computed a term at a time, each contiguous; selected rows are stored a row at a time.
        stored_by_columns = rows is None and isinstance(X, np.ndarray) and abs(X.strides[0]) < abs(X.strides[1])
        order: Literal["C", "F"] = "F" if block.expansion is not None or stored_by_columns else "C"
        sums = _Sums(block, _centre(block, _chunks(rows, size, CENTRE_ROWS), features + responses), step, order)
        for chunk in _chunks(rows, size, step):
            sums.add(chunk)
        small |= sums.small(slice(None) if rows is None else rows)
        moments.append(sums.moments())
        del sums  # frees its memory before the next fold
    return moments, small


def _chunks(rows: Index | None, size: int, step: int) -> Iterator[slice | Index]:
    """Yield the rows (all `size` rows of a block if None), at most `step` at a time."""
    for start in range(0, size, step):
        span = slice(start, min(start + step, size))
        yield span if rows is None else rows[span]


def _centre(block: Block, chunks: Iterable[slice | Index], width: int) -> Float:
    """Return the means (D + P,) over the first rows where a column is present, 0 if none: close enough to centre by."""
    means: Float = np.full(width, np.nan)
    for chunk in chunks:
        open_columns = np.flatnonzero(np.isnan(means))
        X = dense(block.X[chunk])
        terms = X if block.expansion is None else block.expansion.expand(X)
        Z = np.hstack([terms, block.Y[chunk]], dtype=np.float64)[:, open_columns]
        if block.weights is not None:
            Z = Z[block.weights[chunk] > 0]
        present = np.isfinite(Z)
        count = present.sum(axis=0)
        total = np.where(present, Z, 0.0).sum(axis=0)
        means[open_columns] = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
        if not np.isnan(means).any():
            break
    return np.nan_to_num(means)


class _Sums:
    """Shifted sums and cross-products of [X, Y, U] over chunks of one block.

    Missing values are stored as the shift, which is 0 once shifted.
    """

    def __init__(self, block: Block, shift: Float, chunk_rows: int, order: Literal["C", "F"]) -> None:
        self.features, self.responses = len(shift) - block.Y.shape[1], block.Y.shape[1]
        self.block, self.chunk_rows, self.order = block, chunk_rows, order
        self.spans = (
            [(j, j + 1) for j in range(self.features)]
            if block.expansion is None
            else [*block.expansion.spans, *block.expansion.product_spans]
        )
        self.missing: dict[tuple[int, int], int] = {}  # the column of each indicator
        self.rows, self.weight = 0, 0.0
        self.shift, self.total, self.scatter = shift, np.zeros(0), np.zeros((0, 0))
        self._widen(len(shift))

    def _widen(self, more: int) -> None:
        """Append columns; the sums so far keep their positions."""
        width = len(self.total) + more
        self.buffer = np.empty((self.chunk_rows, width), order=self.order)
        self.product = np.empty((width, width))
        self.total = np.pad(self.total, (0, more))
        self.scatter = np.pad(self.scatter, ((0, more), (0, more)))

    def add(self, rows: slice | Index) -> None:
        block = self.block
        X, Y = dense(block.X[rows]), block.Y[rows]
        B = self._shifted(X, Y)
        total = B.sum(axis=0)
        # Terms may hide an infinity: a clamp moves it to the end of a range.
        if not (np.isfinite(total).all() and (block.expansion is None or np.isfinite(X.sum(dtype=np.float64)))):
            B = self._with_missing(X, Y)
            total = B.sum(axis=0)
        if block.weights is None:
            self.total += total
            self.weight += len(B)
        else:
            root = np.sqrt(block.weights[rows])
            B *= root[:, np.newaxis]
            self.total += root @ B
            self.weight += float(block.weights[rows].sum())
        # numpy recognises B'B, calls the symmetric product and releases the GIL; scipy's dsyrk keeps the GIL.
        if self.rows:
            np.matmul(B.T, B, out=self.product)
            self.scatter += self.product
        else:
            np.matmul(B.T, B, out=self.scatter)
        self.rows += len(B)

    def _shifted(self, X: NDArray[Any], Y: NDArray[Any]) -> Float:
        D, P = self.features, self.responses
        B = self.buffer[: len(Y)]
        if self.block.expansion is None:
            np.subtract(X, self.shift[:D], out=B[:, :D])
        else:
            self.block.expansion.expand(X, B[:, :D].T)
            B[:, :D] -= self.shift[:D]
        np.subtract(Y, self.shift[D : D + P], out=B[:, D : D + P])
        B[:, D + P :] = 0.0
        return B

    def _with_missing(self, X: NDArray[Any], Y: NDArray[Any]) -> Float:
        """Return the chunk with the shift where a feature is NaN, marked in its indicator column."""
        X = np.asarray(X, dtype=np.float64)
        infinite = np.isinf(X)
        if infinite.any():
            j = int(np.flatnonzero(infinite.any(axis=0))[0])
            count = int(infinite[:, j].sum())
            raise UnusableColumnError(
                j, X.shape[1], f"holds {count} infinite {'value' if count == 1 else 'values'}; expected finite numbers"
            )
        B = self._shifted(X, Y)
        gaps = np.isnan(B[:, [start for start, _ in self.spans]])
        found = np.flatnonzero(gaps.any(axis=0)).tolist()
        new = [self.spans[j] for j in found if self.spans[j] not in self.missing]
        if new:
            self.missing |= {span: len(self.total) + k for k, span in enumerate(new)}
            self._widen(len(new))
            B = self._shifted(X, Y)
        for j in found:
            span = self.spans[j]
            B[gaps[:, j], slice(*span)] = 0.0
            B[gaps[:, j], self.missing[span]] = 1.0
        return B

    def moments(self) -> Moments:
        """Return the moments, once: their scatter is made in place of the sums."""
        mean = self.total / self.weight if self.weight > 0 else self.total
        scatter = self.scatter
        add_outer(scatter, -self.total, mean)
        if not np.isfinite(np.diagonal(scatter)).all():
            j = int(np.flatnonzero(~np.isfinite(np.diagonal(scatter)))[0])
            ends = [stop for _, stop in self.spans]
            column = bisect_right(ends, j) if j < self.features else len(ends) + j - self.features
            raise UnusableColumnError(
                column, len(ends), "holds values that are infinite or too large to square; rescale or fix it"
            )
        place = [*range(self.features + self.responses), *(self.missing[span] for span in sorted(self.missing))]
        return Moments(
            self.features,
            self.responses,
            self.rows,
            self.weight,
            (np.pad(self.shift, (0, len(self.missing))) + mean)[place],
            scatter[np.ix_(place, place)] if self.missing else scatter,
            self.shift[: self.features],
            tuple(sorted(self.missing)),
        )

    def small(self, rows: slice | Index) -> dict[int, UnusableColumnError]:
        """Return the sums, by place, of columns that vary by so little that their squares are zero or lose digits."""
        block, columns, width = self.block, len(self.spans), self.features + self.responses
        places = np.array([*(start for start, _ in self.spans), *range(self.features, width)])
        low = np.flatnonzero(np.diagonal(self.scatter)[places] < MIN_SCATTER)
        features = low[low < block.X.shape[1]]  # products of columns are not stored
        values = {int(j): block.Y[rows, j - columns] for j in low[low >= columns]}
        if len(features):
            X = block.X[:, features][rows]
            some = np.flatnonzero(np.asarray((X != 0).sum(axis=0)).ravel())  # most of them are zero in every row
            values |= {int(features[k]): dense(X[:, [k]])[:, 0] for k in some}
        if block.weights is not None:
            values = {j: column[block.weights[rows] > 0] for j, column in values.items()}
        return {
            int(places[j]): UnusableColumnError(j, columns, "holds values that are too small to square; rescale it")
            for j, column in values.items()
            # Other columns may have a constant term: a level that no row has, a clamp.
            if len(column) and 0 < float(np.fmax.reduce(column)) - float(np.fmin.reduce(column)) < SMALL_SPREAD
        }


S = TypeVar("S")
T = TypeVar("T")


def jobs_of(n_jobs: int | None) -> int:
    """Return the number of jobs as joblib does: one in a daemonic process, but without joblib's warning."""
    return 1 if current_process().daemon else effective_n_jobs(n_jobs)


def in_threads(task: Callable[[S], T], items: Iterable[S], n_jobs: int | None) -> Iterator[T]:
    """Yield the results in order; the next items are read while earlier ones are worked on, a few ahead at most."""
    jobs = jobs_of(n_jobs)
    if jobs == 1 or (isinstance(items, Sized) and len(items) == 1):
        yield from map(task, items)
        return
    with ThreadPoolExecutor(jobs) as threads:
        ahead: deque[Future[T]] = deque()
        for item in items:
            ahead.append(threads.submit(task, item))
            del item  # frees its memory once it is worked on
            if len(ahead) > jobs:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
