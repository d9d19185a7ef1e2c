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
from contextlib import AbstractContextManager, contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial, reduce
from importlib import import_module
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from anytime._linalg import single_blas_thread
from anytime.data.dataset import Dataset, Progress, ignored
from anytime.errors import EnvironmentFailure, TableError, TrainingError
from anytime.families import Family
from anytime.features.expansion import Expansion
from anytime.folds import FoldAssigner, FoldCounts
from anytime.glm.design import Design, Predictors, Totals, View
from anytime.glm.row_blocks import BlockDesign, BlockView, row_blocks_of
from anytime.moments.accumulate import Block
from anytime.moments.moments import Gram, Moments
from anytime.target import Target
from anytime.training.likelihood import Observations, Observed
from anytime.training.pairs import Screened
from anytime.types import Float, Index

if TYPE_CHECKING:
    from distributed import Client

PARTS_PER_THREAD = 4
"""Parts of a table for each worker thread, so that a slow or lost part delays little."""

GATHERED_VALUES = 2**22
"""Rows times terms up to which the client fits a likelihood itself: a pass takes it less than messages to workers."""

CONNECT_S = 10.0


class Cluster:
    """Workers behind a Dask scheduler."""

    def __init__(self, client: Client, gathered_values: int = GATHERED_VALUES) -> None:
        self._client: Any = client
        self._gathered_values = gathered_values

    def moments(
        self,
        dataset: Dataset,
        folds: int = 1,
        *,
        seed: int = 0,
        stratified: bool = False,
        progress: Progress = ignored,
        drawn: Screened | None = None,
    ) -> list[Moments]:
        """Return the moments of each fold, as `Dataset.moments`; `progress` gets the number of rows of each part.

        `drawn` draws from the rows.
        """
        parts, tallies = self._parts(dataset, folds, seed, stratified=stratified)
        draws = [None] * len(parts) if drawn is None else drawn.split([tally.rows for tally in tallies])
        futures = [
            self._client.submit(moments_of_part, part, draw, pure=False)
            for part, draw in zip(parts, draws, strict=True)
        ]
        sizes = {future.key: tally.rows for future, tally in zip(futures, tallies, strict=True)}
        for future in distributed().as_completed(futures):
            with cluster_errors():
                future.result()
            progress(sizes[future.key])
        while len(futures) > 1:
            pairs = [futures[i : i + 2] for i in range(0, len(futures), 2)]
            futures = [self._client.submit(merged, *pair, pure=False) if pair[1:] else pair[0] for pair in pairs]
        with cluster_errors():
            found, of_parts = futures[0].result()
        if drawn is not None:
            drawn.extend(of_parts)
        return list(found)

    def observed(self, dataset: Dataset, folds: int = 1, *, seed: int = 0, stratified: bool = False) -> Observations:
        """Return the rows to fit a likelihood on: here if they are few, or with the workers that read them."""
        parts, tallies = self._parts(dataset, folds, seed, stratified=stratified)
        full = tuple(part for part, tally in zip(parts, tallies, strict=True) if tally.rows)
        if sum(tally.rows for tally in tallies) * dataset.terms.size > self._gathered_values:
            return ClusterObserved(self._client, full, dataset.target)
        with cluster_errors():
            blocks = self._client.gather([self._client.submit(blocks_of_part, part, pure=False) for part in full])
        return Observed(list(chain.from_iterable(blocks)), dataset.target)

    def _parts(
        self, dataset: Dataset, folds: int, seed: int, *, stratified: bool
    ) -> tuple[list[Part], list[FoldCounts]]:
        threads = sum(self._client.nthreads().values())
        if not threads:
            raise EnvironmentFailure("the cluster has no workers; start workers, or train with --backend local")
        assigner = FoldAssigner(folds, seed, stratified=stratified)
        ranges = spans(dataset.table.starts, PARTS_PER_THREAD * threads)
        submit = self._client.submit
        futures = [submit(dataset.tally, assigner, start=start, stop=stop, pure=False) for start, stop in ranges]
        with cluster_errors():
            tallies: list[FoldCounts] = self._client.gather(futures)
        if not any(tally.rows for tally in tallies):
            raise TableError("there are no rows to learn from; expected at least one with a target")
        assigners = assigner.split(tallies)
        return [Part(dataset, *span, own) for span, own in zip(ranges, assigners, strict=True)], tallies


@dataclass(frozen=True, eq=False)
class ClusterObserved:
    """Rows to fit a likelihood on, which workers read and store."""

    client: Client
    parts: tuple[Part, ...]
    target: Target

    def design(self, gram: Gram, family: Family, weight: float, expansion: Expansion | None = None) -> Design:
        units = light(gram)
        rows = tuple(self.client.submit(StoredRows, part, units, expansion, pure=False) for part in self.parts)
        return ClusterDesign(gram, family, weight, np.ones(len(gram.x_mean)), client=self.client, rows=rows)


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to the scheduler at an address; raise EnvironmentFailure if none answers, TrainingError without Dask."""
    module = distributed()
    logging.getLogger("distributed").setLevel(logging.ERROR)
    try:
        client = module.Client(address, timeout=CONNECT_S)
    except (OSError, ValueError, TimeoutError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        kind = EnvironmentFailure if isinstance(error, OSError) else TrainingError
        remedy = "start it, or correct the address (for example tcp://host:8786)"
        raise kind(f"no Dask scheduler answers at {address!r} ({message}); {remedy}") from error
    with client:
        yield Cluster(client)


@dataclass(frozen=True)
class Part:
    """Rows of a dataset; the fold assigner is positioned at the first of them, and not changed."""

    dataset: Dataset
    start: int
    stop: int | None
    assigner: FoldAssigner

    def blocks(self) -> Iterator[Block]:
        return self.dataset.blocks(self.assigner.copy(), start=self.start, stop=self.stop)


def spans(starts: Sequence[int], limit: int) -> list[tuple[int, int | None]]:
    """Return at most `limit` consecutive ranges of rows, from one of the readable `starts` each; None is the end."""
    count = min(limit, len(starts))
    edges = [starts[round(i * len(starts) / count)] for i in range(count)]
    return list(zip(edges, [*edges[1:], None], strict=True))


def blocks_of_part(part: Part) -> list[Block]:
    return list(part.blocks())


Summed: TypeAlias = tuple[list[Moments], Screened | None]
"""The moments of each fold of some rows, and what was drawn from these."""


def moments_of_part(part: Part, draw: Screened | None) -> Summed:
    use_one_blas_thread()
    data, folds, draw = part.dataset, part.assigner.folds, deepcopy(draw)  # for another worker, if this one is lost
    empty = Moments.empty(data.terms.size, len(data.target.responses))
    blocks = part.blocks() if draw is None else draw.drawing_from(part.blocks())
    return data.summed(blocks, folds, n_jobs=1, before=[empty] * folds), draw


def merged(one: Summed, other: Summed) -> Summed:
    use_one_blas_thread()
    (parts, drawn), (more, further) = one, other
    if drawn is not None and further is not None:
        drawn = copy(drawn)
        drawn.extend(further)
    return [a.merge(b) for a, b in zip(parts, more, strict=True)], drawn


@cache
def use_one_blas_thread() -> AbstractContextManager[None]:
    """Limit BLAS to one thread in this process, whose threads are those of a worker; the cache retains the limit."""
    limit = single_blas_thread()
    limit.__enter__()
    return limit


class StoredRows:
    """The row blocks of a part, in the units of a table's normal equations."""

    def __init__(self, part: Part, gram: Gram, expansion: Expansion | None) -> None:
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
    try:
        return import_module("distributed")
    except ImportError as error:
        raise TrainingError(
            "--backend dask needs distributed; install it with: pip install 'anytime-linear[dask]'"
        ) from error


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Translate failures of the cluster while the caller waits for tasks; pass on errors in the rows."""
    module = distributed()
    try:
        yield
    except ImportError as error:
        raise EnvironmentFailure(
            f"a worker failed to import a package ({error}); install anytime-linear there"
        ) from error
    except module.KilledWorker as error:
        raise EnvironmentFailure(
            "several workers died reading a part of the table; give them more memory, or write smaller row groups"
        ) from error
    except (CancelledError, module.comm.CommClosedError) as error:
        raise EnvironmentFailure(
            "the connection to the Dask scheduler is lost; restart it, and run the command again"
        ) from error


def light(gram: Gram) -> Gram:
    """Return normal equations without the products, which parts do not need: a few numbers per column."""
    return replace(gram, S=np.empty((0, 0)), q=np.empty((0, gram.q.shape[1])))


@dataclass(frozen=True, eq=False)
class _At:
    """Predictors, represented by the coefficients (d + 1, Q) of some columns."""

    columns: Index
    theta: Float


@dataclass(frozen=True, eq=False)
class ClusterDesign(Design):
    """Rows that workers store: futures of `StoredRows`, in the order of the table."""

    client: Any = None
    rows: tuple[Any, ...] = ()

    @cached_property
    def totals(self) -> Totals:
        totals = self.over(attrgetter("totals"))
        return Totals(
            sum(part.rows for part in totals),
            np.sum([part.responses for part in totals], axis=0),
            sum(part.saturated for part in totals),
        )

    def view(self, columns: Index) -> ClusterView:
        return ClusterView(self, columns)

    def over(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        kept = self.weight, self.ridge, self.held, self.dtype
        design = BlockDesign(light(self.gram), self.family, *kept, n_jobs=1)
        futures = [self.client.submit(_at_part, rows, design, task, arguments, pure=False) for rows in self.rows]
        with cluster_errors():
            return list(self.client.gather(futures))


def _summed(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of a `ClusterView` that sums what a method of `BlockView` returns for each part.

    That is an array, or a tuple of numbers and arrays.
    """

    def over(view: ClusterView, *arguments: Any, **options: Any) -> Any:
        found = view.design.over(_in_view, view.columns, partial(method, **options), arguments)
        if not isinstance(found[0], tuple):
            return reduce(np.add, found)
        sums = [None if parts[0] is None else reduce(np.add, parts) for parts in zip(*found, strict=True)]
        return getattr(type(found[0]), "_make", tuple)(sums)

    return over


class ClusterView(View):
    """Some columns of rows on a cluster."""

    def __init__(self, design: ClusterDesign, columns: Index) -> None:
        super().__init__(design, columns)
        self.design: ClusterDesign = design

    def predictors(self, theta: Float) -> Predictors:
        """Return the linear predictors of all rows at coefficients (d + 1, Q), without a pass."""
        return _At(self.columns, theta)

    def moved(self, etas: Predictors, share: float, directions: Predictors) -> Predictors:
        return _At(etas.columns, etas.theta + share * directions.theta)

    slope = _summed(BlockView.slope)
    evaluate = _summed(BlockView.evaluate)
    weighted_grams = _summed(BlockView.weighted_grams)
    evaluate_folds = _summed(BlockView.evaluate_folds)
    fold_hessians = _summed(BlockView.fold_hessians)

    def hessian_product(self, etas: Predictors) -> Callable[[Float], Float]:
        return partial(_summed(_product), self, etas)


def _at_part(rows: StoredRows, design: BlockDesign, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    use_one_blas_thread()
    return task(replace(design, row_blocks=rows.row_blocks), *arguments)


def _product(view: BlockView, etas: Predictors, direction: Float) -> Float:
    return view.hessian_product(etas)(direction)


def _in_view(design: BlockDesign, columns: Index, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a method on some columns of a part; predictors are recomputed from their coefficients."""
    values = [design.view(a.columns).predictors(a.theta) if isinstance(a, _At) else a for a in arguments]
    return method(design.view(columns), *values)
