"""Parts of a table: ranges of its rows that one worker reads, with what it needs to deal them into folds.

Rows that a worker keeps for the passes of a likelihood.

They do not travel: who is handed them, or has lost them, reads them again from the table.
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
    "HeldRows",
    "Part",
    "Span",
    "distributed",
    "held_rows",
    "merged",
    "moments_of_part",
    "settled",
    "spans",
    "tally_of_span",
    "told",
]


@dataclass(frozen=True)
class Span:
    """Rows `start` to `stop` of a table, to its end where None."""

    start: int
    stop: int | None


@dataclass(frozen=True)
class Part:
    """Rows of a dataset.

    Attributes
    ----------
    deal : deals its first row next; not changed.
    """

    dataset: Dataset
    span: Span
    deal: FoldAssigner

    def blocks(self) -> Iterator[Block]:
        """Its rows; there may be none with a target."""
        return self.dataset.blocks(self.deal.copy(), start=self.span.start, stop=self.span.stop)


def spans(starts: Sequence[int], most: int) -> list[Span]:
    """Consecutive ranges of rows, at most so many, each from one of the rows at which a table can be read from."""
    count = min(most, len(starts))
    edges = [starts[round(i * len(starts) / count)] for i in range(count)]
    return [Span(start, stop) for start, stop in zip(edges, [*edges[1:], None], strict=True)]


def tally_of_span(dataset: Dataset, deal: FoldAssigner, span: Span) -> FoldCounts:
    """What dealing must know of some rows."""
    return dataset.tally(deal, start=span.start, stop=span.stop)


def moments_of_part(part: Part) -> list[Moments]:
    """Moments of each fold of a part."""
    settled()
    dataset, folds = part.dataset, part.deal.folds
    empty = dataset.no_moments()
    return dataset.summed(part.blocks(), folds, n_jobs=1, before=[empty] * folds)


def merged(one: list[Moments], other: list[Moments]) -> list[Moments]:
    """Moments of each fold of the rows of both."""
    settled()
    return [a.merge(b) for a, b in zip(one, other, strict=True)]


@cache
def settled() -> None:
    """Let BLAS use one thread in this process from now on: a worker has threads of its own."""
    single_blas_thread().__enter__()


class HeldRows:
    """The slabs of a part, in the units of a table's normal equations."""

    def __init__(self, part: Part, gram: Gram) -> None:
        self._recipe = part, gram
        self.slabs = row_blocks_of(part.blocks(), gram, held_bytes=0)  # mapped: a worker may hold many parts

    def __reduce__(self) -> tuple[Callable[..., HeldRows], tuple[Any, ...]]:
        return HeldRows, self._recipe

    def __sizeof__(self) -> int:
        return sum(slab.Y.nbytes for slab in self.slabs)


def held_rows(part: Part, gram: Gram) -> HeldRows:
    """Read a part and keep it."""
    settled()
    return HeldRows(part, gram)


def distributed() -> Any:
    """Dask's package.

    Raises
    ------
    TrainingError
        It is not installed.
    """
    try:
        return import_module("distributed")
    except ImportError as error:
        raise TrainingError(
            "--backend dask needs distributed; install it with: pip install 'anytime-linear[dask]'"
        ) from error


@contextmanager
def told() -> Iterator[None]:
    """Context of waiting for tasks: put failures of the cluster in words, and pass on what is wrong with the rows.

    Raises
    ------
    TrainingError
        Workers lack a package or memory, or the scheduler is gone.
    """
    module = distributed()
    try:
        yield
    except ImportError as error:
        raise TrainingError(
            f"a worker cannot import what it needs ({error}); install anytime-linear there", environment=True
        ) from error
    except module.KilledWorker as error:
        raise TrainingError(
            "a part of the table ended several workers; give them more memory, or the table smaller row groups",
            environment=True,
        ) from error
    except (CancelledError, module.comm.CommClosedError) as error:
        raise TrainingError(
            "the Dask scheduler is gone; restart it, and run the command again", environment=True
        ) from error
