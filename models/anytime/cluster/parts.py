"""Parts of a table: ranges of its rows that one worker reads, with what it needs to deal them into folds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from anytime.accumulate import Block
from anytime.dataset import Dataset
from anytime.dealing import Deal, Tally
from anytime.moments import Moments
from anytime.threads import single_blas_thread

__all__ = ["Part", "Span", "merged", "moments_of_part", "settled", "spans", "tally_of_span"]


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
    deal: Deal

    def blocks(self) -> Iterator[Block]:
        """Its rows; there may be none with a target."""
        return self.dataset.blocks(self.deal.copy(), start=self.span.start, stop=self.span.stop)


def spans(starts: Sequence[int], most: int) -> list[Span]:
    """Consecutive ranges of rows, at most so many, each from one of the rows at which a table can be read from."""
    count = min(most, len(starts))
    edges = [starts[round(i * len(starts) / count)] for i in range(count)]
    return [Span(start, stop) for start, stop in zip(edges, [*edges[1:], None], strict=True)]


def tally_of_span(dataset: Dataset, deal: Deal, span: Span) -> Tally:
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
