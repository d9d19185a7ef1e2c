"""Training on a Dask cluster: workers read their own part of the table, and only moments and gradients travel.

Each worker needs this library and the table under the same path. If a worker is lost, other workers read its part
again, which costs time but does not change the result.

A pass of a likelihood is one task per part, and returns sums of derivatives. Linear predictors are represented by their
coefficients and recomputed where needed. That costs a product with the rows, but transfers nothing and survives the
loss of a worker. A mean over all rows is the sum of the parts' results, because each part divides by the weight of all
rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from anytime._linalg import single_blas_thread
from anytime.data.dataset import Dataset, Progress, ignored
from anytime.errors import TableError, TrainingError
from anytime.features.expansion import Expansion
from anytime.folds import FoldAssigner, FoldCounts
from anytime.glm.design import Design, Evaluation, Predictors, Totals, View
from anytime.glm.families import Family
from anytime.glm.row_blocks import BlockDesign, BlockView, row_blocks_of
from anytime.moments.accumulate import Block
from anytime.moments.moments import Gram, Moments
from anytime.target import Target
from anytime.types import Float, Index

if TYPE_CHECKING:
    from distributed import Client

PARTS_PER_THREAD = 4
"""Parts of a table for each worker thread, so that a slow or lost part delays little."""

CONNECT_S = 10.0


class Cluster:
    """Workers behind a Dask scheduler."""

    def __init__(self, client: Client) -> None:
        self._client: Any = client

    @property
    def threads(self) -> int:
        """Return the number of threads of all workers."""
        return int(sum(self._client.nthreads().values()))

    def moments(
        self, dataset: Dataset, folds: int = 1, *, seed: int = 0, stratified: bool = False, progress: Progress = ignored
    ) -> list[Moments]:
        """Return the moments of each fold of a table, as `Dataset.moments`; workers merge them.

        Parameters
        ----------
        progress : called with the number of rows of each completed part.
        """
        parts, tallies = self._parts(dataset, folds, seed, stratified=stratified)
        futures = [self._client.submit(moments_of_part, part, pure=False) for part in parts]
        sizes = {future.key: tally.rows for future, tally in zip(futures, tallies, strict=True)}
        for future in distributed().as_completed(futures):
            with cluster_errors():
                future.result()
            progress(sizes[future.key])
        while len(futures) > 1:
            pairs = [futures[i : i + 2] for i in range(0, len(futures), 2)]
            futures = [self._client.submit(merged, *pair, pure=False) if pair[1:] else pair[0] for pair in pairs]
        with cluster_errors():
            found: list[Moments] = futures[0].result()
        return found

    def observed(self, dataset: Dataset, folds: int = 1, *, seed: int = 0, stratified: bool = False) -> ClusterObserved:
        """Return the rows of a table, in the same folds, for a likelihood."""
        parts, tallies = self._parts(dataset, folds, seed, stratified=stratified)
        full = tuple(part for part, tally in zip(parts, tallies, strict=True) if tally.rows)
        return ClusterObserved(self._client, full, dataset.target)

    def _parts(
        self, dataset: Dataset, folds: int, seed: int, *, stratified: bool
    ) -> tuple[list[Part], list[FoldCounts]]:
        """Return the parts of a table, and their fold counts."""
        if not self.threads:
            raise TrainingError(
                "the cluster has no workers; start workers, or train with --backend local", environment=True
            )
        if dataset.query is not None:
            dataset.table.batches([dataset.query])  # determines its kind once, here, and not in every task
        assigner = FoldAssigner(folds, seed, stratified=stratified)
        ranges: list[Span] = spans(dataset.table.starts, PARTS_PER_THREAD * self.threads)
        submit = self._client.submit
        futures = [submit(dataset.tally, assigner, start=s.start, stop=s.stop, pure=False) for s in ranges]
        with cluster_errors():
            tallies: list[FoldCounts] = self._client.gather(futures)
        if not any(tally.rows for tally in tallies):
            raise TableError("there are no rows to learn from; expected at least one with a target")
        assigners = assigner.split(tallies)
        return [Part(dataset, span, own) for span, own in zip(ranges, assigners, strict=True)], tallies


@dataclass(frozen=True, eq=False)
class ClusterObserved:
    """Rows to fit a likelihood on, which workers read and store."""

    client: Client
    parts: tuple[Part, ...]
    target: Target

    def design(self, gram: Gram, family: Family, weight: float, expansion: Expansion) -> Design:
        """Let the workers read the rows."""
        units = light(gram)
        rows = tuple(self.client.submit(StoredRows, part, units, expansion, pure=False) for part in self.parts)
        return ClusterDesign(gram, family, weight, np.ones(len(gram.x_mean)), client=self.client, rows=rows)


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to a cluster by the address of its scheduler, such as `tcp://host:8786`.

    Raises
    ------
    TrainingError
        Dask is not installed, or no scheduler answers.
    """
    module = distributed()
    logging.getLogger("distributed").setLevel(logging.ERROR)
    try:
        client = module.Client(address, timeout=CONNECT_S)
    except (OSError, ValueError, TimeoutError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise TrainingError(
            f"no Dask scheduler answers at {address!r} ({message}); start it, or correct the address (for example tcp://host:8786)",
            environment=isinstance(error, OSError),
        ) from error
    with client:
        yield Cluster(client)


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


def moments_of_part(part: Part) -> list[Moments]:
    """Return the moments of each fold of a part."""
    use_one_blas_thread()
    folds = part.assigner.folds
    return part.dataset.summed(part.blocks(), folds, n_jobs=1, before=[part.dataset.no_moments()] * folds)


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

    def __init__(self, part: Part, gram: Gram, expansion: Expansion) -> None:
        use_one_blas_thread()
        self._recipe = part, gram, expansion
        self.row_blocks = row_blocks_of(
            part.blocks(), gram, expansion, held_bytes=0
        )  # mapped: a worker may store many parts

    def __reduce__(self) -> tuple[Callable[..., StoredRows], tuple[Any, ...]]:
        return StoredRows, self._recipe

    def __sizeof__(self) -> int:
        return sum(block.Y.nbytes for block in self.row_blocks)


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
        submit, design = self.client.submit, self._without_rows
        futures = [submit(_at_part, rows, design, task, arguments, pure=False) for rows in self.rows]
        with cluster_errors():
            found: list[Any] = self.client.gather(futures)
        yield from found

    @cached_property
    def _without_rows(self) -> BlockDesign:
        """Return what a worker needs in addition to its rows."""
        gram = light(self.gram)
        return BlockDesign(gram, self.family, self.weight, self.ridge, self.held, self.centre, n_jobs=1)


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
        return float(sum(self._over(BlockView.loss, etas)))

    def slope(self, etas: Predictors, directions: Predictors) -> tuple[float, float]:
        """Return the mean loss at some predictors, and its derivative in a direction: one pass."""
        losses, slopes = zip(*self._over(BlockView.slope, etas, directions), strict=True)
        return float(sum(losses)), float(sum(slopes))

    def evaluate(self, etas: Predictors, *, hessian: bool = False) -> Evaluation:
        """Return loss and score at some predictors, and optionally the second derivatives: one pass."""
        found: list[Evaluation] = list(self._over(partial(BlockView.evaluate, hessian=hessian), etas))
        score, curvature = np.zeros_like(found[0].score), None
        for each in found:
            score += each.score
            if each.hessian is not None:
                curvature = each.hessian.copy() if curvature is None else np.add(curvature, each.hessian, out=curvature)
        return Evaluation(sum(each.loss for each in found), score, curvature)

    def product(self, etas: Predictors, direction: Float) -> Float:
        """Return the Hessian at some predictors times a direction (d + 1, Q): one pass."""
        total: Float = np.sum(list(self._over(BlockView.product, etas, direction)), axis=0)
        return total

    def weighted_gram(self, etas: Predictors) -> Float:
        """Return Z'hZ/n (d + 1, d + 1) with the mean curvature h over the predictors: one pass."""
        total: Float = np.sum(list(self._over(BlockView.weighted_gram, etas)), axis=0)
        return total

    def held_deviance(self, theta: Float) -> float:
        """Return the sum of weight times deviance over the rows of the held-out fold: one pass."""
        return float(sum(self._over(BlockView.held_deviance, theta)))

    def _over(self, method: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        """Yield the results of a method of the parts' views."""
        return self._design.over(_in_view, self.columns, method, arguments)


def _at_part(rows: StoredRows, design: BlockDesign, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a task on the design of a part, on the worker."""
    use_one_blas_thread()
    return task(replace(design, row_blocks=rows.row_blocks), *arguments)


def _totals(design: BlockDesign) -> Totals:
    return design.totals


def _in_view(design: BlockDesign, columns: Index, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a method on some columns of a part; predictors are recomputed from their coefficients."""
    values = [each.of(design) if isinstance(each, _At) else each for each in arguments]
    return method(design.view(columns), *values)
