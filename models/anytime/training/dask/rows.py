"""Parts of a table on the workers: row ranges with their fold assignment, and rows stored for likelihood passes.

Stored rows are never transferred: a worker that receives or loses a part reads it from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from anytime._linalg import single_blas_thread
from anytime.data.dataset import Dataset
from anytime.errors import TrainingError
from anytime.folds import FoldAssigner, FoldCounts
from anytime.glm.row_blocks import row_blocks_of
from anytime.moments.accumulate import Block
from anytime.moments.gram import Gram
from anytime.moments.moments import Moments

__all__ = [
    "Part",
    "Span",
    "StoredRows",
    "cluster_errors",
    "distributed",
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
