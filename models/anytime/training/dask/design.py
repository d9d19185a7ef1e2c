"""The design of a likelihood on a cluster: a pass is one task per part, and returns sums of derivatives.

Linear predictors are represented by their coefficients and recomputed where needed. That costs a product with the rows,
but transfers nothing and survives the loss of a worker. A mean over all rows is the sum of the parts' results, because
each part divides by the weight of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from typing import Any

import numpy as np

from anytime._linalg import single_blas_thread
from anytime.data.dataset import Dataset
from anytime.errors import TrainingError
from anytime.folds import FoldAssigner, FoldCounts
from anytime.glm.design import Design, Evaluation, Predictors, Totals, View
from anytime.glm.families import FAMILIES
from anytime.glm.row_blocks import BlockDesign, BlockView, row_blocks_of
from anytime.moments.accumulate import Block
from anytime.moments.moments import Gram, Moments
from anytime.types import FamilyName, Float, Index

__all__ = [
    "ClusterDesign",
    "Part",
    "Span",
    "StoredRows",
    "cluster_errors",
    "distributed",
    "light",
    "merged",
    "moments_of_part",
    "spans",
    "stored_rows",
    "tally_of_span",
    "use_one_blas_thread",
]


@dataclass(frozen=True)
class Span:
    """Rows `start` to `stop` of a table, to its end if None."""

    start: int
    stop: int | None


@dataclass(frozen=True)
class Part:
    """Rows of a dataset.

    Attributes
    ----------
    assigner : fold assigner positioned at the first row; not changed.
    """

    dataset: Dataset
    span: Span
    assigner: FoldAssigner

    def blocks(self) -> Iterator[Block]:
        """Yield the rows that have a target, possibly none."""
        return self.dataset.blocks(self.assigner.copy(), start=self.span.start, stop=self.span.stop)


def spans(starts: Sequence[int], limit: int) -> list[Span]:
    """Return at most `limit` consecutive ranges of rows, each starting at one of the readable `starts`."""
    count = min(limit, len(starts))
    edges = [starts[round(i * len(starts) / count)] for i in range(count)]
    return [Span(start, stop) for start, stop in zip(edges, [*edges[1:], None], strict=True)]


def tally_of_span(dataset: Dataset, assigner: FoldAssigner, span: Span) -> FoldCounts:
    """Return the summary of some rows that fold assignment needs."""
    return dataset.tally(assigner, start=span.start, stop=span.stop)


def moments_of_part(part: Part) -> list[Moments]:
    """Return the moments of each fold of a part."""
    use_one_blas_thread()
    dataset, folds = part.dataset, part.assigner.folds
    empty = dataset.no_moments()
    return dataset.summed(part.blocks(), folds, n_jobs=1, before=[empty] * folds)


def merged(one: list[Moments], other: list[Moments]) -> list[Moments]:
    """Return the moments of each fold of the rows of both."""
    use_one_blas_thread()
    return [a.merge(b) for a, b in zip(one, other, strict=True)]


@cache
def use_one_blas_thread() -> None:
    """Limit BLAS to one thread in this process permanently: a worker has its own threads."""
    single_blas_thread().__enter__()


class StoredRows:
    """The row blocks of a part, in the units of a table's normal equations."""

    def __init__(self, part: Part, gram: Gram) -> None:
        self._recipe = part, gram
        self.row_blocks = row_blocks_of(part.blocks(), gram, held_bytes=0)  # mapped: a worker may store many parts

    def __reduce__(self) -> tuple[Callable[..., StoredRows], tuple[Any, ...]]:
        return StoredRows, self._recipe

    def __sizeof__(self) -> int:
        return sum(block.Y.nbytes for block in self.row_blocks)


def stored_rows(part: Part, gram: Gram) -> StoredRows:
    """Read a part and store it."""
    use_one_blas_thread()
    return StoredRows(part, gram)


def distributed() -> Any:
    """Return Dask's package.

    Raises
    ------
    TrainingError
        The package is not installed.
    """
    try:
        return import_module("distributed")
    except ImportError as error:
        raise TrainingError(
            "--backend dask needs distributed; install it with: pip install 'anytime-linear[dask]'"
        ) from error


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Translate failures of the cluster while the caller waits for tasks; pass on errors in the rows.

    Raises
    ------
    TrainingError
        Workers lack a package or memory, or the scheduler is not reachable.
    """
    module = distributed()
    try:
        yield
    except ImportError as error:
        raise TrainingError(
            f"a worker failed to import a package ({error}); install anytime-linear there", environment=True
        ) from error
    except module.KilledWorker as error:
        raise TrainingError(
            "several workers died reading a part of the table; give them more memory, or write smaller row groups",
            environment=True,
        ) from error
    except (CancelledError, module.comm.CommClosedError) as error:
        raise TrainingError(
            "the connection to the Dask scheduler is lost; restart it, and run the command again", environment=True
        ) from error


def light(gram: Gram) -> Gram:
    """Return normal equations without the products, which parts do not need: a few numbers per column."""
    return replace(gram, S=np.empty((0, 0)), q=np.empty((0, gram.q.shape[1])))


@dataclass(frozen=True)
class _Fit:
    """Description of a fit that a worker needs in addition to its rows."""

    gram: Gram
    family: FamilyName
    weight: float
    ridge: Float
    held: int | None
    centre: Float | None

    def design(self, rows: StoredRows) -> BlockDesign:
        """Return the design of a part."""
        family = FAMILIES[self.family]
        return BlockDesign(
            self.gram, family, self.weight, self.ridge, self.held, self.centre, row_blocks=rows.row_blocks, n_jobs=1
        )


@dataclass(frozen=True, eq=False)
class _At:
    """Predictors, represented by the coefficients (d + 1, Q) of some columns."""

    columns: Index
    theta: Float

    def of(self, design: BlockDesign) -> Predictors:
        """Return the predictors of the rows of a part."""
        return design.view(self.columns).predictors(self.theta)


@dataclass(frozen=True, eq=False)
class ClusterDesign(Design):
    """Rows that workers store.

    Attributes
    ----------
    client : the `distributed.Client`.  rows : futures of `StoredRows`, in the order of the table.
    """

    client: Any = None
    rows: tuple[Any, ...] = ()

    @property
    def fold_jobs(self) -> int:
        """Return 1: one pass keeps all workers busy."""
        return 1

    @cached_property
    def totals(self) -> Totals:
        """Return the sums over all rows."""
        found = list(self.over(_totals))
        return Totals(
            sum(each.rows for each in found),
            np.sum([each.responses for each in found], axis=0),
            sum(each.saturated for each in found),
        )

    def view(self, columns: Index) -> ClusterView:
        """Return the same rows with some columns only, in that order."""
        return ClusterView(self, columns)

    def over(self, task: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        """Yield the results of a function of a part's design, in the order of the table."""
        client, fit = self.client, self._fit
        futures = [client.submit(_at_part, rows, fit, task, arguments, pure=False) for rows in self.rows]
        with cluster_errors():
            found: list[Any] = client.gather(futures)
        yield from found

    @cached_property
    def _fit(self) -> _Fit:
        return _Fit(light(self.gram), self.family.name, self.weight, self.ridge, self.held, self.centre)


class ClusterView(View):
    """Some columns of rows on a cluster."""

    def __init__(self, design: ClusterDesign, columns: Index) -> None:
        super().__init__(columns, design.ridge[columns])
        self._design = design

    def predictors(self, theta: Float) -> Predictors:
        """Return the linear predictors of all rows at coefficients (d + 1, Q), without a pass."""
        return _At(self.columns, theta)

    def moved(self, etas: Predictors, share: float, directions: Predictors) -> Predictors:
        """Return predictors moved by `share` times the directions."""
        return _At(etas.columns, etas.theta + share * directions.theta)

    def loss(self, etas: Predictors) -> float:
        """Return the mean loss at some predictors: one pass."""
        return float(sum(self._over(_loss, etas)))

    def slope(self, etas: Predictors, directions: Predictors) -> tuple[float, float]:
        """Return the mean loss at some predictors, and its derivative in a direction: one pass."""
        losses, slopes = zip(*self._over(_slope, etas, directions), strict=True)
        return float(sum(losses)), float(sum(slopes))

    def evaluate(self, etas: Predictors, *, hessian: bool = False) -> Evaluation:
        """Return loss and score at some predictors, and optionally the second derivatives: one pass."""
        found: list[Evaluation] = list(self._over(_evaluation, etas, hessian))
        score, curvature = np.zeros_like(found[0].score), None
        for each in found:
            score += each.score
            if each.hessian is not None:
                curvature = each.hessian.copy() if curvature is None else np.add(curvature, each.hessian, out=curvature)
        return Evaluation(sum(each.loss for each in found), score, curvature)

    def products(self, etas: Predictors) -> Callable[[Float], Float]:
        """Return the Hessian at some predictors as a function of a direction (d + 1, Q), one pass per call."""

        def product(direction: Float) -> Float:
            total: Float = np.sum(list(self._over(_product, etas, direction)), axis=0)
            return total

        return product

    def weighted_gram(self, etas: Predictors) -> Float:
        """Return Z'hZ/n (d + 1, d + 1) with the mean curvature h over the predictors: one pass."""
        total: Float = np.sum(list(self._over(_weighted_gram, etas)), axis=0)
        return total

    def held_deviance(self, theta: Float) -> float:
        """Return the sum of weight times deviance over the rows of the held-out fold: one pass."""
        return float(sum(self._over(_held_deviance, theta)))

    def _over(self, task: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        return self._design.over(_in_view, self.columns, task, arguments)


def _at_part(rows: StoredRows, fit: _Fit, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a task on the design of a part, on the worker."""
    use_one_blas_thread()
    return task(fit.design(rows), *arguments)


def _totals(design: BlockDesign) -> Totals:
    return design.totals


def _in_view(design: BlockDesign, columns: Index, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return task(design.view(columns), *arguments)


def _loss(view: BlockView, at: _At) -> float:
    return view.loss(at.of(view.design))


def _slope(view: BlockView, at: _At, directions: _At) -> tuple[float, float]:
    return view.slope(at.of(view.design), directions.of(view.design))


def _evaluation(view: BlockView, at: _At, hessian: bool) -> Evaluation:
    return view.evaluate(at.of(view.design), hessian=hessian)


def _product(view: BlockView, at: _At, direction: Float) -> Float:
    return view.products(at.of(view.design))(direction)


def _weighted_gram(view: BlockView, at: _At) -> Float:
    return view.weighted_gram(at.of(view.design))


def _held_deviance(view: BlockView, theta: Float) -> float:
    return view.held_deviance(theta)
