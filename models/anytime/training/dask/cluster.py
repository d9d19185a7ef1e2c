"""A Dask cluster: it computes the moments of a table, and stores its rows for a likelihood."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from anytime.data.dataset import Dataset, Progress, ignored
from anytime.errors import TableError, TrainingError
from anytime.folds import FoldAssigner, FoldCounts
from anytime.glm.design import Design
from anytime.glm.families import Family
from anytime.moments.moments import Gram, Moments
from anytime.target import Target
from anytime.training.dask.design import (
    ClusterDesign,
    Part,
    Span,
    cluster_errors,
    distributed,
    light,
    merged,
    moments_of_part,
    spans,
    stored_rows,
    tally_of_span,
)

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Cluster", "connected"]


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
        futures = [self._client.submit(tally_of_span, dataset, assigner, span, pure=False) for span in ranges]
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

    def design(self, gram: Gram, family: Family, weight: float) -> Design:
        """Let the workers read the rows."""
        light_gram = light(gram)
        rows = tuple(self.client.submit(stored_rows, part, light_gram, pure=False) for part in self.parts)
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
