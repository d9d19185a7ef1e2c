"""Slabs: the rows of a table in standard units, kept for the many passes of a likelihood.

They are float64, feature by feature, whatever came in, and take as much memory as the table has numbers. Beyond
`HELD_BYTES` they are in a temporary file, which is mapped, and let go of after each use.

The design matrix of a likelihood in this process: rows in standard units, slab by slab.

Between the passes of a step of Newton's method, along a line, no pass is needed: predictors are kept. A pass goes slab
by slab through joblib, with BLAS held to one thread around it. A slab has its rows as columns, so that
the features of a prefix are contiguous; its first row is ones, the intercept. Sums are taken in the order of the slabs
and do not depend on the number of threads.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs

from anytime.errors import TableError, file_error
from anytime.glm.design import Design, Evaluation, Predictors, Totals, View
from anytime.moments.accumulate import Block
from anytime.moments.gram import Gram
from anytime.types import Bool, Float, Index

__all__ = [
    "HELD_BYTES",
    "BlockDesign",
    "BlockView",
    "RowBlock",
    "row_blocks_of",
]

ROWS = 16_000
"""Rows of a slab at most; no power of two, whose columns would fall on the same lines of the cache."""

HELD_BYTES = 3 * 2**27
"""Bytes of slabs that stay in memory: 384 MiB."""


@dataclass(frozen=True, eq=False)
class RowBlock:
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


def row_blocks_of(blocks: Iterable[Block], gram: Gram, *, held_bytes: int = HELD_BYTES) -> tuple[RowBlock, ...]:
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
            slabs.append(RowBlock(Z, Y, part.weights, part.folds, gaps, mapped))
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


CHUNK_VALUES = 2**17
"""Values of a chunk of rows: 1 MiB, which stay in the cache from one product to the next."""

ALONE = 2**20
"""Values of a pass under which threads cost more than they save."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class BlockDesign(Design):
    """Rows that this process has.

    Attributes
    ----------
    slabs : the rows, in the standard units of the whole table.
    n_jobs : threads, as joblib counts them.
    """

    slabs: tuple[RowBlock, ...] = ()
    n_jobs: int | None = None

    @property
    def fold_jobs(self) -> int | None:
        """Where the rows are one slab, a pass leaves the other cores to the other folds."""
        return self.n_jobs if len(self.slabs) == 1 else 1

    @cached_property
    def totals(self) -> Totals:
        """Sums over all rows."""
        saturated = 0.0
        for slab in self.slabs:
            losses = self.family.saturated(slab.Y)
            saturated += float(losses.sum() if slab.weights is None else slab.weights @ losses)
        responses = np.sum([slab.Y.sum(axis=0) for slab in self.slabs], axis=0)
        return Totals(sum(len(slab.Y) for slab in self.slabs), responses, saturated)

    def view(self, columns: Index) -> BlockView:
        """The same rows with some columns only, in that order."""
        return BlockView(self, columns)

    @cached_property
    def weights(self) -> list[Float | None]:
        """Weights (rows,) of each slab, 0 in the fold held out; None for weight 1."""
        if self.held is None:
            return [slab.weights for slab in self.slabs]
        return [slab.weights_where(lambda folds: folds != self.held) for slab in self.slabs]


class BlockView(View):
    """Some columns of slabs; predictors are (rows, Q) for each slab."""

    def __init__(self, design: BlockDesign, columns: Index) -> None:
        super().__init__(columns, design.ridge[columns])
        self.design = design
        self._runs = _runs(np.concatenate([[0], columns + 1]))

    def predictors(self, theta: Float) -> Predictors:
        """Linear predictors of all rows at coefficients (d + 1, Q), 0 where the weight is: one pass.

        A row held out may be so unlike the others that its loss is infinite, which times a weight of 0 is no number.
        """
        return list(self._map(lambda i: self._weighed(i, theta)))

    def moved(self, etas: Predictors, share: float, directions: Predictors) -> Predictors:
        """Predictors a share of the way along others: no pass."""
        return [eta + share * direction for eta, direction in zip(etas, directions, strict=True)]

    def loss(self, etas: Predictors) -> float:
        """Mean loss at some predictors."""
        return self._along(etas, None)[0]

    def slope(self, etas: Predictors, directions: Predictors) -> tuple[float, float]:
        """Mean loss at some predictors, and its derivative in a direction."""
        return self._along(etas, directions)

    def evaluate(self, etas: Predictors, *, hessian: bool = False) -> Evaluation:
        """Loss and score at some predictors, and on demand the second derivatives, n (d Q)^2 operations: one pass."""
        n, Q = self.design.weight, self.design.predictors
        loss, score, curvature = 0.0, np.zeros((self.width, Q)), None
        for own_loss, own_score, own_curvature in self._map(lambda i: self._evaluated(i, etas[i], hessian)):
            loss += own_loss
            score += own_score
            if own_curvature is not None:
                curvature = own_curvature if curvature is None else np.add(curvature, own_curvature, out=curvature)
        return Evaluation(loss / n, score / n, None if curvature is None else curvature / n)

    def products(self, etas: Predictors) -> Callable[[Float], Float]:
        """The Hessian at some predictors as a function of a direction (d + 1, Q), one pass of 4 n d Q operations."""

        def product(direction: Float) -> Float:
            total = np.zeros_like(direction)
            for own in self._map(lambda i: self._product(i, etas[i], direction)):
                total += own
            return total / self.design.weight

        return product

    def weighted_gram(self, etas: Predictors) -> Float:
        """Z'hZ/n (d + 1, d + 1) with the mean curvature h over the predictors, one number a row."""
        total = np.zeros((self.width, self.width))
        for own in self._map(lambda i: self._weighted_gram(i, etas[i])):
            total += own
        return total / self.design.weight

    def held_deviance(self, theta: Float) -> float:
        """Sum over the rows of the fold held out of weight times deviance."""
        return sum(self._map(lambda i: self._held_deviance(i, theta)))

    def _map(self, task: Callable[[int], T]) -> Iterator[T]:
        """A task for every slab, by its number; results in their order."""
        slabs = self.design.slabs
        few = len(slabs) == 1 or sum(len(slab.Y) for slab in slabs) * self.width < ALONE
        if few or effective_n_jobs(self.design.n_jobs) == 1:
            yield from map(self._released(task), range(len(slabs)))
            return
        run = Parallel(n_jobs=self.design.n_jobs, prefer="threads", return_as="generator", pre_dispatch="n_jobs + 1")
        yield from run(delayed(self._released(task))(i) for i in range(len(slabs)))

    def _released(self, task: Callable[[int], T]) -> Callable[[int], T]:
        """A task that lets go of its slab."""

        def released(number: int) -> T:
            try:
                return task(number)
            finally:
                self.design.slabs[number].release()

        return released

    def _chunks(self, number: int) -> Iterator[tuple[Float, slice]]:
        """Z (d + 1, rows) of the chunks of a slab; valid until the next."""
        Z, gaps = self.design.slabs[number].Z, self._gaps(number)
        total = Z.shape[1]
        step = min(max(256, CHUNK_VALUES // self.width), total)
        buffer = None if len(self._runs) == 1 and not gaps else np.empty((self.width, step))
        for start in range(0, total, step):
            rows = slice(start, min(start + step, total))
            if buffer is None:
                yield Z[: self.width, rows], rows
                continue
            chunk = buffer[:, : rows.stop - start]
            for to, out_of in self._runs:
                chunk[to] = Z[out_of, rows]
            for row, missing, mean in gaps:
                chunk[row, missing[rows]] = mean
            yield chunk, rows

    def _gaps(self, number: int) -> list[tuple[int, Bool, float]]:
        """Where a slab lacks features of the view, and their means where these are not 0."""
        gaps, centre = self.design.slabs[number].gaps, self.design.centre
        if not gaps or centre is None:
            return []
        place = {int(column): row for row, column in enumerate(self.columns, start=1)}
        return [(place[j], missing, float(centre[j])) for j, missing in gaps.items() if j in place]

    def _predictors(self, number: int, theta: Float) -> Float:
        """Z'theta (rows, Q) of a slab, run by run, without a copy."""
        Z = self.design.slabs[number].Z
        eta = np.zeros((Z.shape[1], theta.shape[1]))
        with np.errstate(over="ignore", invalid="ignore"):  # a step too far is seen by its loss
            for to, out_of in self._runs:
                eta += Z[out_of].T @ theta[to]
            for row, missing, mean in self._gaps(number):
                eta[missing] += mean * theta[row]
        return eta

    def _weighed(self, number: int, theta: Float) -> Float:
        eta, w = self._predictors(number, theta), self.design.weights[number]
        if w is not None:
            eta[w == 0] = 0.0
        return eta

    def _score(self, number: int, residual: Float) -> Float:
        """Z residual (d + 1, Q) of a slab, likewise."""
        Z = self.design.slabs[number].Z
        score = np.empty((self.width, residual.shape[1]))
        for to, out_of in self._runs:
            score[to] = Z[out_of] @ residual
        for row, missing, mean in self._gaps(number):
            score[row] += mean * residual[missing].sum(axis=0)
        return score

    def _along(self, etas: Predictors, directions: Predictors | None) -> tuple[float, float]:
        loss, slope = 0.0, 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for i, (slab, w) in enumerate(zip(self.design.slabs, self.design.weights, strict=True)):
                losses, residual = self.design.family.loss(etas[i], slab.Y)
                loss += float(losses.sum() if w is None else w @ losses)
                if directions is not None:
                    own = (residual * directions[i]).sum(axis=1)
                    slope -= float(own.sum() if w is None else w @ own)
        return loss / self.design.weight, slope / self.design.weight

    def _evaluated(self, number: int, eta: Float, hessian: bool) -> tuple[float, Float, Float | None]:
        slab, w, family = self.design.slabs[number], self.design.weights[number], self.design.family
        losses, residual = family.loss(eta, slab.Y)
        if w is not None:
            losses, residual = losses * w, residual * w[:, np.newaxis]
        Q = eta.shape[1]
        H = np.zeros((self.width, Q, self.width, Q)) if hessian else None
        if H is not None:
            for Z, rows in self._chunks(number):
                _add_hessian(H, Z, self._curvature(number, eta[rows], rows))
        score = self._score(number, residual)
        return float(losses.sum()), score, None if H is None else H.reshape(self.width * Q, -1)

    def _product(self, number: int, eta: Float, direction: Float) -> Float:
        w = self.design.weights[number]
        curved = self.design.family.bend(eta, self._predictors(number, direction))
        return self._score(number, curved if w is None else curved * w[:, np.newaxis])

    def _weighted_gram(self, number: int, eta: Float) -> Float:
        total = np.zeros((self.width, 1, self.width, 1))
        for Z, rows in self._chunks(number):
            h = self._curvature(number, eta[rows], rows)
            mean = np.einsum("iaa->i", h) / h.shape[1]
            _add_hessian(total, Z, mean[:, np.newaxis, np.newaxis])
        return total.reshape(self.width, self.width)

    def _curvature(self, number: int, eta: Float, rows: slice) -> Float:
        """Second derivatives (rows, Q, Q) in the predictors, times the weights of the rows."""
        h, w = self.design.family.hessian(eta), self.design.weights[number]
        return h if w is None else h * w[rows, np.newaxis, np.newaxis]

    def _held_deviance(self, number: int, theta: Float) -> float:
        slab, family = self.design.slabs[number], self.design.family
        weights = slab.weights_where(lambda folds: folds == self.design.held)
        with np.errstate(over="ignore", invalid="ignore"):
            losses = family.loss(self._predictors(number, theta), slab.Y)[0] - family.saturated(slab.Y)
        counted = weights > 0  # an infinite loss of no weight counts for nothing
        return 2.0 * float(weights[counted] @ losses[counted])


def _runs(rows: Index) -> list[tuple[slice, slice]]:
    """Runs of consecutive rows: where each goes, and where it comes from. Groups are contiguous, so there are few."""
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    edges = [0, *cuts.tolist(), len(rows)]
    return [(slice(a, b), slice(int(rows[a]), int(rows[a]) + b - a)) for a, b in pairwise(edges)]


def _add_hessian(H: Float, Z: Float, h: Float) -> None:
    """Add sum_i h_i (x) z_i z_i' to H (d + 1, Q, d + 1, Q); Z is (d + 1, rows)."""
    Q = h.shape[1]
    if Q == 1:
        B = Z * np.sqrt(h[:, 0, 0])
        H[:, 0, :, 0] += B @ B.T
        return
    for a in range(Q):
        for b in range(a + 1):
            block = (Z * h[:, a, b]) @ Z.T
            H[:, a, :, b] += block
            if a != b:
                H[:, b, :, a] += block
