"""Row blocks: a likelihood's rows in standard units, stored in this process for many passes, and their design.

Values are float64, feature by feature, whatever the dtype of the input, and take as much memory as the table has
numbers. Beyond `HELD_BYTES` they are in a mapped temporary file, whose memory is released after each use. A block has
its rows as columns, so that the features of a prefix are contiguous. Its first row is ones, for the intercept. Where
many rows of a block are equal, it stores them once, with their sum of weights: losses and derivatives are the same.
Features that are 0 in nearly all rows, as indicators of rare levels are, are sparse: a block stores their difference
from their value at 0. A pass takes about as long as without them.

A pass visits the blocks in threads, with BLAS limited to one thread by the caller. Predictors are stored, so the
line search of a Newton step needs no pass. Sums are accumulated in the order of the blocks and do not depend on the
number of threads.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import pairwise
from operator import iadd
from typing import IO, Any, Self, TypeAlias, TypeVar

import numpy as np
from scipy.sparse import csr_array

from anytime.errors import TableError, file_error
from anytime.features.expansion import Expansion
from anytime.glm.design import Derivatives, Design, DType, FoldSums, HeldOutRows, Predictors, Totals, View
from anytime.moments.accumulate import Block, dense, in_threads, rows_of
from anytime.moments.moments import Gram
from anytime.target import class_codes
from anytime.types import Bool, Float, Index

ROWS = 16_000
"""Maximum number of rows of a block; not a power of two, whose columns would share cache lines."""

HELD_BYTES = 3 * 2**27
"""Maximum size of the blocks in memory: 384 MiB."""

REPEATED = 0.1
"""Least share of the rows of a block that must repeat others to store equal rows once."""

SPARSE_SHARE, MIN_SPARSE = 0.05, 32
"""Largest share of the rows in which a sparse feature is not 0, and least number of sparse features."""


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Some rows of a table, sorted by fold; `Y`, `weights` and `folds` as in `Block`.

    Attributes
    ----------
    Z : Float
        (D + 1, rows) ones, then the features in standard units, 0 where missing.
    gaps : dict[int, Bool]
        For each feature with missing values, (rows,) marks them.
    counts : Float | None
        (rows,) the number of equal rows of the table that each row stands for; None if it is 1 for all.
    mapped : mmap.mmap | None
        The part of the temporary file that stores Z, or None.
    sparse, at_zero
        (rows, R) the sparse features, which are not in Z, less `at_zero` (R,), their values at 0 in standard units.
    """

    Z: Float
    Y: Float
    weights: Float | None
    folds: Index | None
    gaps: dict[int, Bool]
    counts: Float | None = None
    mapped: mmap.mmap | None = None
    sparse: Any = None
    at_zero: Float = field(default_factory=lambda: np.empty(0))
    _tiled: dict[int, Float] = field(default_factory=dict)

    @cached_property
    def single(self) -> RowBlock:
        """Return the block in single precision, unless it is mapped."""
        if self.mapped is not None or self.Z.dtype == np.float32:
            return self
        return replace(
            self,
            Z=self.Z.astype(np.float32),
            Y=self.Y.astype(np.float32, order="F"),
            sparse=None if self.sparse is None else self.sparse.astype(np.float32),
            _tiled={},
        )

    def in_order(self, columns: Index, apart: Index) -> RowBlock:
        """Return the block with some columns of Z and of the sparse features only, in that order."""
        return replace(
            self,
            Z=self.Z[np.append(0, columns + 1)],
            sparse=None if self.sparse is None else self.sparse[:, apart],
            at_zero=self.at_zero[apart],
            _tiled={},
        )

    @cached_property
    def ignored(self) -> Index:
        """Return the rows of weight 0."""
        return np.flatnonzero(self.weights == 0)

    def merged(self) -> RowBlock:
        """Return the block with equal rows of a fold once, or as it is if they are less than `REPEATED` of all.

        Rows are compared where a sum of their values with random coefficients is equal.
        """
        Z, Y = self.Z, self.Y
        folds = np.zeros(len(Y), dtype=np.intp) if self.folds is None else self.folds
        rng, marks = np.random.default_rng(0), [*Y.T, *self.gaps.values()]
        keys = rng.standard_normal(len(Z)) @ Z + sum(rng.standard_normal() * mark for mark in marks)
        order = np.lexsort((keys, folds))
        alike = (np.diff(keys[order]) == 0) & (np.diff(folds[order]) == 0)
        if np.count_nonzero(alike) < REPEATED * len(Y):
            return self
        for values in (*Z, *marks):
            ordered = values[order]
            alike &= ordered[1:] == ordered[:-1]
        starts = np.flatnonzero(np.append(True, ~alike))
        first, counts = order[starts], np.diff(np.append(starts, len(Y))).astype(np.float64)
        weights = counts if self.weights is None else np.add.reduceat(self.weights[order], starts)
        gaps = {j: missing[first] for j, missing in self.gaps.items()}
        return RowBlock(Z[:, first], np.asfortranarray(Y[first]), weights, rows_of(self.folds, first), gaps, counts)

    def in_file(self, file: IO[bytes]) -> RowBlock:
        """Append the values to a file, with their disk space reserved, and map them; return the block with the map."""
        end, step = os.fstat(file.fileno()).st_size, mmap.ALLOCATIONGRANULARITY
        size = -(-self.Z.nbytes // step) * step
        try:
            if hasattr(os, "posix_fallocate"):  # writing to a map beyond the disk's space would kill the process
                os.posix_fallocate(file.fileno(), end, size)
            else:
                file.truncate(end + size)
            mapped = mmap.mmap(file.fileno(), size, offset=end)
        except OSError as error:
            doing = f"store {end + size:,} bytes of rows in {tempfile.gettempdir()!r}"
            raise file_error(TableError, doing, error, "; set TMPDIR to a larger disk") from error
        Z: Float = np.ndarray(self.Z.shape, buffer=mapped)
        Z[:] = self.Z
        return replace(self, Z=Z, mapped=mapped)

    def total(self, values: Float) -> float:
        """Return the weighted sum of some values (rows,)."""
        return float(values.sum() if self.weights is None else self.weights @ values)

    def tiled(self, times: int) -> Float:
        """Return the responses repeated, (times rows, P)."""
        if times not in self._tiled:
            self._tiled[times] = np.tile(self.Y.T, (1, times)).T
        return self._tiled[times]

    def inside(self, fold: HeldOutRows) -> list[tuple[int, int]]:
        """Return starts and stops of the rows of a fold, ascending; without folds, all are in 0.

        The rows of `retained` classes are outside.
        """
        start, stop = 0, len(self.Y) if fold.number == 0 else 0
        if self.folds is not None:
            start, stop = np.searchsorted(self.folds, [fold.number, fold.number + 1]).tolist()
        if not fold.retained:
            return [(start, stop)]
        kept = start + np.flatnonzero(np.isin(class_codes(self.Y[start:stop]), fold.retained))
        return list(zip([start, *(kept + 1).tolist()], [*kept.tolist(), stop], strict=True))

    def part(self, rows: slice) -> RowBlock:
        """Return some of the rows, as views."""
        weights, folds, counts, sparse = (
            rows_of(each, rows) for each in (self.weights, self.folds, self.counts, self.sparse)
        )
        gaps = {j: missing[rows] for j, missing in self.gaps.items()}
        Z, Y = self.Z[:, rows], self.Y[rows]
        return RowBlock(Z, Y, weights, folds, gaps, counts, self.mapped, sparse, self.at_zero)

    def spans(self, folds: Sequence[HeldOutRows]) -> Iterator[tuple[slice, int]]:
        """Yield disjoint spans of all rows, in order, each with the place of the fold that it is inside, or -1."""
        end = 0
        inside = [(start, stop, f) for f, fold in enumerate(folds) for start, stop in self.inside(fold)]
        for start, stop, f in [*sorted(inside), (len(self.Y), len(self.Y), -1)]:
            if start > end:
                yield slice(end, start), -1
            if stop > start:
                yield slice(start, stop), f
            end = stop

    def release(self) -> None:
        """Release the memory of a mapped block; the next use reads it from the file."""
        if self.mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)


def row_blocks_of(
    blocks: Iterable[Block], gram: Gram, expansion: Expansion | None = None, *, held_bytes: int = HELD_BYTES
) -> tuple[RowBlock, ...]:
    """Return the terms of the rows of some blocks, read once, in the units of their normal equations.

    Raise TableError if the disk has too little space for the temporary file.
    """
    stored, width = 0, len(gram.x_mean) + 1
    file: IO[bytes] | None = None
    row_blocks = []
    try:
        for part in (part for block in blocks for part in _cut(block)):
            Z: Float = np.empty((width, len(part.Y)))
            gaps = _fill(Z, part, gram, expansion)
            Y = np.asfortranarray(part.Y, dtype=np.float64)  # a response is contiguous
            row_block = RowBlock(Z, Y, part.weights, part.folds, gaps).merged()
            stored += row_block.Z.nbytes
            if stored > held_bytes:
                file = file or tempfile.TemporaryFile(prefix="anytime-")  # noqa: SIM115  (closed below)
                row_block = row_block.in_file(file)
            row_blocks.append(row_block)
            row_block.release()
    finally:
        if file is not None:
            file.close()  # the maps remain valid
    return tuple(row_blocks)


def with_sparse(row_blocks: Sequence[RowBlock], gram: Gram) -> tuple[tuple[RowBlock, ...], Index | None]:
    """Return blocks whose sparse features are apart, and `places` of their design; as they are if there are few.

    Features with missing values stay where they are, and so do all features of mapped blocks.
    """
    at_zero = -gram.x_mean / gram.x_scale
    counts = sum(
        np.count_nonzero(each.Z[1:] != at_zero[:, np.newaxis], axis=1) for each in row_blocks if each.mapped is None
    )
    is_sparse = (counts <= SPARSE_SHARE * sum(len(each.Y) for each in row_blocks)) & ~gram.constant
    is_sparse[np.unique([j for each in row_blocks for j in each.gaps]).astype(np.intp)] = False
    if np.count_nonzero(is_sparse) < MIN_SPARSE or any(each.mapped is not None for each in row_blocks):
        return tuple(row_blocks), None
    columns, at_zero = np.append(True, ~is_sparse), at_zero[is_sparse]
    apart = [csr_array((each.Z[~columns] - at_zero[:, np.newaxis]).T) for each in row_blocks]
    return tuple(
        replace(each, Z=each.Z[columns], sparse=own, at_zero=at_zero)
        for each, own in zip(row_blocks, apart, strict=True)
    ), _places(is_sparse)


def _places(is_sparse: Bool) -> Index:
    """Return the places of features in blocks, as those of `BlockDesign`."""
    return np.where(is_sparse, -np.cumsum(is_sparse, dtype=np.intp), np.cumsum(~is_sparse, dtype=np.intp) - 1)


def _cut(block: Block) -> Iterator[Block]:
    """Yield parts of equal size, each sorted by fold, so that the rows of a fold are contiguous."""
    n = len(block.Y)
    for part in np.array_split(np.arange(n), max(1, -(-n // ROWS))):
        rows: Any = slice(part[0], part[-1] + 1) if n else slice(0)
        if block.folds is not None:
            rows = part[np.argsort(block.folds[rows], kind="stable")]
        yield Block(block.X[rows], block.Y[rows], rows_of(block.weights, rows), rows_of(block.folds, rows))


def _fill(Z: Float, part: Block, gram: Gram, expansion: Expansion | None) -> dict[int, Bool]:
    """Fill Z with rows in standard units; return where features are missing, which become 0."""
    Z[0] = 1.0
    if expansion is None:
        Z[1:] = dense(part.X).T
    else:
        expansion.expand(dense(part.X), Z[1:])
    Z[1:] -= gram.x_mean[:, np.newaxis]
    Z[1:] /= gram.x_scale[:, np.newaxis]
    Z[1:][gram.constant] = 0.0
    gaps: dict[int, Bool] = {}
    for row in np.flatnonzero(np.isnan(Z.sum(axis=1))).tolist():
        gaps[row - 1] = np.isnan(Z[row])
        Z[row, gaps[row - 1]] = 0.0
    return gaps


CHUNK_VALUES = 2**17
"""Values in a chunk of rows: 1 MiB, which stays in the cache between products."""

MIN_PARALLEL_VALUES = 2**23
"""Number of values of a pass below which threads cost more than they save.

On two cores, 5 folds of 20,000 rows x 118 columns took 23 s with one thread, and 66 s where two shared out the folds.
"""

PART_ROWS, MIN_PARALLEL_PRODUCTS = 2500, 2**30
"""Rows of a block whose second derivatives one thread adds up, and the number of products from which threads do."""

MAX_PARALLEL_SIZE = 2**22
"""Maximum number of second derivatives that threads add up, 32 MiB for each thread."""

SMALL_PRODUCT, MIN_PIECE = 10**6, 500
"""Number of products up to which OpenBLAS multiplies matrices without copies of them, and least number of rows to split
off for that: the gradients of 20,000 rows x 60 columns for 5 folds take a fourth of the time."""

OWN = 320
"""Maximum number of columns for which each score has a weighted Gram matrix of its own: those of more would take longer
than the products that they save."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class BlockDesign(Design):
    """Rows stored in this process, in the standard units of the whole table.

    `places` (D,) are the places of the columns in the blocks, if these are in another order or some are sparse: -1 - k
    is the place k among the sparse ones.
    """

    row_blocks: tuple[RowBlock, ...] = ()
    places: Index | None = None
    n_jobs: int | None = None

    @cached_property
    def totals(self) -> Totals:
        saturated = sum(each.total(self.family.saturated(each.Y)) for each in self.row_blocks)
        counts = [np.ones(len(each.Y)) if each.counts is None else each.counts for each in self.row_blocks]
        responses = np.sum([count @ each.Y for count, each in zip(counts, self.row_blocks, strict=True)], axis=0)
        return Totals(round(sum(count.sum() for count in counts)), responses, saturated)

    def view(self, columns: Index) -> BlockView:
        return BlockView(self, columns)

    def in_order(self, columns: Index) -> Self:
        if any(row_block.mapped is not None for row_block in self.row_blocks):
            return self
        places, own = np.zeros(len(self.ridge), dtype=np.intp), self.placed(columns)
        apart = own < 0
        places[columns] = _places(apart)
        blocks = tuple(each.in_order(own[~apart], -1 - own[apart]) for each in self.row_blocks)
        return replace(self, row_blocks=blocks, places=places)

    def placed(self, columns: Index) -> Index:
        """Return the places of some columns."""
        return columns if self.places is None else self.places[columns]

    def stored_as(self, other: Self) -> Self:
        return replace(self, row_blocks=other.row_blocks, places=other.places)

    @cached_property
    def training(self) -> list[RowBlock]:
        """Return the rows outside the held-out fold."""
        if self.held is None:
            return self.stored
        return [each.part(rows) for each in self.stored for rows, f in each.spans([self.held]) if f < 0]

    @cached_property
    def stored(self) -> list[RowBlock]:
        return [row_block.single if self.dtype == np.float32 else row_block for row_block in self.row_blocks]

    @cached_property
    def saturated(self) -> list[Float]:
        """Return the smallest possible losses of the rows of each block, times their weights."""
        losses = [self.family.saturated(each.Y) for each in self.stored]
        weights = [1.0 if each.weights is None else each.weights for each in self.stored]
        return [own * w for own, w in zip(losses, weights, strict=True)]


class BlockView(View):
    """Some columns of row blocks; predictors are (rows, Q) for each block."""

    def __init__(self, design: BlockDesign, columns: Index) -> None:
        super().__init__(design, columns)
        self.design: BlockDesign = design
        self.row_blocks = design.training
        places = design.placed(columns)
        self._runs = _runs(np.append(0, 1 + places[places >= 0]))
        # The coefficients of Z come first in sums, then those of the sparse features, whose places these are.
        self._first, self._apart = 1 + int((places >= 0).sum()), -1 - places[places < 0]
        self._stored = np.concatenate([[0], 1 + np.flatnonzero(places >= 0), 1 + np.flatnonzero(places < 0)])
        self._order = np.argsort(self._stored)

    def predictors(self, theta: Float) -> Predictors:
        """Return the linear predictors of all rows at coefficients (d + 1, Q), 0 where the weight is 0: one pass."""
        return list(self._map(lambda i: self._predictors(self.row_blocks[i], theta)))

    def moved(self, etas: Predictors, share: float, directions: Predictors) -> Predictors:
        return [eta + share * direction for eta, direction in zip(etas, directions, strict=True)]

    @np.errstate(all="ignore")
    def slope(self, etas: Predictors, directions: Predictors) -> tuple[float, float]:
        loss, slope = 0.0, 0.0
        for row_block, eta, direction in zip(self.row_blocks, etas, directions, strict=True):
            losses, residual = self.design.family.loss(eta, row_block.Y)
            loss += row_block.total(losses)
            slope -= row_block.total((residual * direction).sum(axis=1))
        return loss / self.design.weight, slope / self.design.weight

    def evaluate(self, etas: Predictors, *, hessian: bool = False) -> Derivatives:
        Q, width = self.design.predictors, self.width
        shapes = [(), (width, Q), *([(Q * (Q + 1) // 2, width, width)] if hessian else [])]
        loss, score, *products = self._means(lambda i: self._evaluated(i, etas[i], hessian), *shapes)
        return Derivatives(float(loss), score, hessian_of(products[0], Q, self.design.dtype) if hessian else None)

    def hessian_product(self, etas: Predictors) -> Callable[[Float], Float]:
        family, blocks = self.design.family, self.row_blocks
        curvatures = [
            *self._map(lambda i: family.hessian_product(etas[i].astype(blocks[i].Z.dtype, copy=False), blocks[i].Y))
        ]

        def product(direction: Float) -> Float:
            def of_block(i: int) -> list[Float]:
                curved, w = curvatures[i](self._predictors(blocks[i], direction)), blocks[i].weights
                return [self._score(blocks[i], curved if w is None else curved * w[:, np.newaxis])]

            return self._means(of_block, direction.shape)[0]

        return product

    def weighted_grams(self, etas: Predictors) -> Float:
        Q, family = self.design.predictors, self.design.family
        own = self.width <= OWN
        shape = (len(self.design.gram.y_mean) if own else 1, self.width, self.width)

        def weights_of(eta: Float, Y: Float) -> Float:
            diagonal = family.diagonal(eta, Y)
            return diagonal.T if own else diagonal.sum(axis=1)[np.newaxis] / Q

        (grams,) = self._means(lambda i: [self._products(self.row_blocks[i], etas[i], shape[0], weights_of)], shape)
        return grams

    def evaluate_folds(self, thetas: Float, folds: Sequence[HeldOutRows]) -> FoldSums:
        stored = self.design.stored
        parts = self._map(lambda i: self._of_folds(i, thetas, folds), stored)
        losses, scores, deviances, held = (np.sum(each, axis=0) for each in zip(*parts, strict=True))
        weights = np.array([fold.weight for fold in folds])
        return FoldSums(losses / weights, scores / weights[:, np.newaxis, np.newaxis], deviances, held)

    def _of_folds(self, number: int, thetas: Float, folds: Sequence[HeldOutRows]) -> tuple[Float, ...]:
        """Return the sums over a block; predictors of a fold are next to those of the others, so each pass is one."""
        row_block, family = self.design.stored[number], self.design.family
        Z = row_block.Z
        (F, _, Q), n = thetas.shape, Z.shape[1]
        packed = np.ascontiguousarray(thetas.transpose(2, 0, 1), Z.dtype).reshape(Q * F, -1)
        lacking, missing, means = self._gaps_of_folds(row_block, folds)
        excess = np.zeros(F)
        scores, held = np.zeros((2, F, self.width, Q))
        eta = self._times(packed, row_block)
        by_fold = eta.reshape(Q, F, n)
        if len(lacking):
            by_fold += (means[:, :, np.newaxis] * thetas[:, lacking]).transpose(2, 0, 1).astype(Z.dtype) @ missing
        eta[:, row_block.ignored] = 0.0
        loss, residual = family.loss(eta.reshape(Q, F * n).T, row_block.tiled(F))
        loss, residual = loss.reshape(F, n), residual.T.reshape(Q, F, n).astype(Z.dtype, copy=False)
        if row_block.weights is not None:
            w = row_block.weights.astype(Z.dtype, copy=False)
            loss, residual = loss * w, residual * w
        for rows, inside in row_block.spans(folds):
            if inside >= 0:
                excess[inside] += loss[inside, rows].sum(dtype=np.float64)
                excess[inside] -= self.design.saturated[number][rows].sum()
                loss[inside, rows] = 0.0
            part = residual[:, :, rows]
            sums = self._against(part.reshape(Q * F, -1), row_block.part(rows)).reshape(Q, F, -1).transpose(1, 2, 0)
            if len(lacking):
                sums[:, lacking] += means[:, :, np.newaxis] * (part @ missing[:, rows].T).transpose(1, 2, 0)
            for f in range(F):
                (held if f == inside else scores)[f] += sums[f]
        return loss.sum(axis=1, dtype=np.float64), scores, 2.0 * excess, held

    def _times(self, theta: Float, row_block: RowBlock) -> Float:
        """Return theta (m, d + 1) times the rows of the view (m, rows), run by run, without a copy of these."""
        Z, theta = row_block.Z, theta[:, self._stored] if len(self._apart) else theta
        product = np.empty((len(theta), Z.shape[1]), Z.dtype)
        for number, (to, out_of) in enumerate(self._runs):
            for rows in _pieces(Z.shape[1], len(theta) * (to.stop - to.start)):
                if number == 0:
                    np.matmul(theta[:, to], Z[out_of, rows], out=product[:, rows])
                else:
                    product[:, rows] += theta[:, to] @ Z[out_of, rows]
        if len(self._apart):
            apart = np.zeros((len(row_block.at_zero), len(theta)), Z.dtype)
            apart[self._apart] = theta[:, self._first :].T
            product += (row_block.sparse @ apart).T + (row_block.at_zero @ apart)[:, np.newaxis]
        return product

    def _against(self, residual: Float, row_block: RowBlock) -> Float:
        """Return residual (m, rows) times the rows of the view, transposed: (m, d + 1)."""
        Z, product = row_block.Z, np.zeros((len(residual), self.width))
        for to, out_of in self._runs:
            for rows in _pieces(Z.shape[1], len(residual) * (to.stop - to.start)):
                if Z.dtype == np.float32:  # half the time, of some coefficients, and longer in double precision
                    product[:, to] += (Z[out_of, rows] @ residual[:, rows].T).T
                else:
                    product[:, to] += residual[:, rows] @ Z[out_of, rows].T
        if len(self._apart):
            apart = (row_block.sparse.T @ residual.T).T + product[:, :1] * row_block.at_zero
            product[:, self._first :] = apart[:, self._apart]
            product = product[:, self._order]
        return product

    @np.errstate(all="ignore")  # solvers of values that are not finite are not used
    def fold_hessians(self, theta: Float, folds: Sequence[HeldOutRows]) -> Float:
        Q = self.design.predictors
        sums = np.zeros((len(folds) + 1, Q * (Q + 1) // 2, self.width, self.width))
        for row_block in self.design.stored:
            for rows, f in row_block.spans(folds):
                part = row_block.part(rows)
                sums[f] += self._curvature(part, self._predictors(part, theta))
            row_block.release()
        sums[-1] += sums[:-1].sum(axis=0)
        return np.array([hessian_of(each, Q, np.float64) for each in sums])

    def _means(self, task: Callable[[int], Sequence[Any]], *shapes: tuple[int, ...]) -> list[Float]:
        """Return the sums over the blocks of some arrays of these shapes, divided by the weight."""
        sums: list[Float] = [np.zeros(shape) for shape in shapes]
        for own in self._map(task):
            for total, part in zip(sums, own, strict=True):
                np.add(total, part, out=total)
        return [total / self.design.weight for total in sums]

    def _map(self, task: Callable[[int], T], row_blocks: Sequence[RowBlock] | None = None) -> Iterator[T]:
        """Run a task for every block, by its index, and release the block; yield the results in order."""
        row_blocks, n_jobs = row_blocks or self.row_blocks, self.design.n_jobs

        @np.errstate(all="ignore")  # the loss reveals a step that is too long, and what underflows is 0
        def run(number: int) -> T:
            try:
                return task(number)
            finally:
                row_blocks[number].release()

        values = sum(len(row_block.Y) for row_block in row_blocks) * self.width
        yield from in_threads(run, range(len(row_blocks)), 1 if values < MIN_PARALLEL_VALUES else n_jobs)

    def _chunks(self, row_block: RowBlock, part: slice) -> Iterator[tuple[Float, slice]]:
        """Yield Z of the chunks of some rows of a block, without sparse features; each is valid until the next."""
        Z, gaps, dtype = row_block.Z, self._gaps(row_block), self.design.dtype
        width = self._first
        step = min(max(256, CHUNK_VALUES // width, width), part.stop - part.start)
        plain = len(self._runs) == 1 and not gaps and dtype == Z.dtype
        buffer = None if plain else np.empty((width, step), dtype)
        for start in range(part.start, part.stop, step):
            rows = slice(start, min(start + step, part.stop))
            if buffer is None:
                yield Z[:width, rows], rows
                continue
            chunk = buffer[:, : rows.stop - start]
            for to, out_of in self._runs:
                chunk[to] = Z[out_of, rows]
            for row, missing, mean in gaps:
                chunk[self._order[row], missing[rows]] = mean
            yield chunk, rows

    def _gaps(self, row_block: RowBlock) -> list[tuple[int, Bool, float]]:
        """Return where a block lacks features of the view, and their means where these are not 0."""
        gaps, held = row_block.gaps, self.design.held
        if not gaps or held is None:
            return []
        place = {int(column): row for row, column in enumerate(self.columns, start=1)}
        return [(place[j], missing, float(held.centre[j])) for j, missing in gaps.items() if j in place]

    def _gaps_of_folds(self, row_block: RowBlock, folds: Sequence[HeldOutRows]) -> tuple[Index, Float, Float]:
        """Return the rows with gaps of the view (g,), where these are (g, rows), and means outside each fold (F, g)."""
        rows = [row for row, column in enumerate(self.columns.tolist(), start=1) if column in row_block.gaps]
        columns = self.columns[np.array(rows, dtype=np.intp) - 1]
        missing = np.array([row_block.gaps[j] for j in columns.tolist()], dtype=row_block.Z.dtype)
        return np.array(rows, dtype=np.intp), missing, np.array([fold.centre[columns] for fold in folds])

    def _predictors(self, row_block: RowBlock, theta: Float) -> Float:
        """Return Z'theta (rows, Q) of a block, run by run, without a copy; 0 where the weight is 0.

        An extreme row may have an infinite loss, which times a weight of 0 would be NaN. Columns of the result are
        contiguous: sums over Q numbers of each row take a third of the time.
        """
        eta = self._times(theta.T.astype(row_block.Z.dtype, copy=False), row_block).T
        for row, missing, mean in self._gaps(row_block):
            eta[missing] += mean * theta[row]
        eta[row_block.ignored] = 0.0
        return eta

    def _score(self, row_block: RowBlock, residual: Float) -> Float:
        """Return Z residual (d + 1, Q) of a block, run by run, without a copy."""
        score = self._against(residual.T.astype(row_block.Z.dtype, copy=False), row_block).T
        for row, missing, mean in self._gaps(row_block):
            score[row] += mean * residual[missing].sum(axis=0)
        return score

    def _evaluated(self, number: int, eta: Float, hessian: bool) -> list[Any]:
        row_block = self.row_blocks[number]
        losses, residual = self.design.family.loss(eta, row_block.Y)
        if (w := row_block.weights) is not None:
            losses, residual = losses * w, residual * w[:, np.newaxis]
        score = self._score(row_block, residual)
        return [losses.sum(dtype=np.float64), score, *([self._curvature(row_block, eta)] if hessian else [])]

    def _curvature(self, row_block: RowBlock, eta: Float) -> Float:
        """Return the sums over a block that `hessian_of` makes the second derivatives of."""
        Q, family = eta.shape[1], self.design.family
        return self._products(row_block, eta, Q * (Q + 1) // 2, lambda eta, Y: _paired(family.hessian(eta, Y)))

    def _products(self, row_block: RowBlock, eta: Float, count: int, weights_of: Weights) -> Float:
        """Return the sums of z_i z_i' (d + 1, d + 1) over the rows of a block with each of `count` weights.

        The products have the precision of the rows, and their sums double precision. Those of a single block are
        computed in threads, unless folds use them.
        """
        w = row_block.weights

        first, at_zero = self._first, row_block.at_zero[self._apart]

        @np.errstate(all="ignore")  # in a thread of its own
        def of_part(part: slice) -> Float:
            sums = np.zeros((count, self.width, self.width))
            for Z, rows in self._chunks(row_block, part):
                apart = row_block.sparse[rows][:, self._apart] if len(at_zero) else None
                for k, weights in enumerate(weights_of(eta[rows], row_block.Y[rows])):
                    own = np.maximum(weights if w is None else weights * w[rows], 0.0)  # negative by rounding only
                    B = Z * np.sqrt(own).astype(Z.dtype)  # numpy recognises BB' and computes half of it
                    sums[k, :first, :first] += B @ B.T
                    if apart is not None:
                        weighted = apart.copy()
                        weighted.data *= np.repeat(own, np.diff(apart.indptr))
                        sums[k, first:, :first] += weighted.T @ Z.T
                        sums[k, first:, first:] += (weighted.T @ apart).toarray()
            if len(at_zero):
                sums[:, :first, first:] = sums[:, first:, :first].transpose(0, 2, 1)
                sums[:, first:] += at_zero[:, np.newaxis] * sums[:, :1]
                sums[:, :, first:] += sums[:, :, :1] * at_zero
                sums = sums[:, self._order[:, np.newaxis], self._order]
            return sums

        size = count * self.width**2
        alone = len(self.design.row_blocks) == 1 and self.design.held is None
        if not alone or size > MAX_PARALLEL_SIZE or len(eta) * size < MIN_PARALLEL_PRODUCTS:
            return of_part(slice(0, len(eta)))
        parts = [slice(start, min(start + PART_ROWS, len(eta))) for start in range(0, len(eta), PART_ROWS)]
        return reduce(iadd, in_threads(of_part, parts, self.design.n_jobs))


def _runs(rows: Index) -> list[tuple[slice, slice]]:
    """Return runs of consecutive rows: destination and source. There are few, because groups are contiguous."""
    edges = [0, *(1 + np.flatnonzero(np.diff(rows) != 1)).tolist(), len(rows)]
    return [(slice(a, b), slice(int(rows[a]), int(rows[a]) + b - a)) for a, b in pairwise(edges)]


def _pieces(rows: int, products: int) -> list[slice]:
    """Return pieces of rows of so many products a row that are multiplied without copies, or all rows."""
    size = max(SMALL_PRODUCT // products, 1)
    if size < MIN_PIECE:
        return [slice(0, rows)]
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


Weights: TypeAlias = Callable[[Float, Float], Iterable[Float]]
"""Weights (rows,) of sums over rows, given their predictors and responses."""


def _paired(h: Float) -> Iterator[Float]:
    """Yield for each pair of predictors a >= b the weights of a, h_aa, and for a > b those of the sum of a and b.

    `hessian_of` follows from the symmetric products with these weights, which are half the work.
    """
    for a in range(h.shape[1]):
        for b in range(a):
            yield h[:, a, a] + h[:, b, b] + 2.0 * h[:, a, b]
        yield h[:, a, a]


def hessian_of(products: Float, Q: int, dtype: DType) -> Float:
    """Return the second derivatives ((d + 1) Q, same) from the products with the weights `_paired`."""
    width = products.shape[1]
    H: Float = np.empty((width, Q, width, Q), dtype)
    for a in range(Q):
        own = products[a * (a + 3) // 2]
        H[:, a, :, a] = own
        for b in range(a):
            across = products[a * (a + 1) // 2 + b]
            H[:, a, :, b] = H[:, b, :, a] = 0.5 * (across - own - products[b * (b + 3) // 2])
    return H.reshape(width * Q, width * Q)
