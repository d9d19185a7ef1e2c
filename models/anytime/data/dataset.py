"""A table with the meaning of its columns: features, target, query and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anytime.data.columns import feature_matrix, numbers
from anytime.data.formats import ROWS, Batch, Table, fingerprint
from anytime.data.survey import absent, without_target
from anytime.errors import GroupsError, TableError, listed, suggestion
from anytime.folds import FoldAssigner, FoldCounts
from anytime.groups import FeatureGroups
from anytime.moments.accumulate import Block, Reached, UnusableColumnError, accumulate
from anytime.moments.checkpoint import Checkpoint, Place
from anytime.moments.moments import Moments
from anytime.target import Target
from anytime.types import Bool, Float

__all__ = ["Dataset", "Progress", "Rows", "ignored"]

BLOCK_VALUES = 2**22
"""Numbers of features in a block, or of scores, of which a few are in memory at a time: 32 MiB."""

MIN_ROWS = 1024

END = 2**62
"""A row behind every table."""

Progress: TypeAlias = Callable[[int], None]
"""Told how many rows have just been read."""


def ignored(_rows: int) -> None:
    """Progress that nobody follows."""


@dataclass(frozen=True)
class Dataset:
    """A table with the meaning of its columns.

    Attributes
    ----------
    table, groups, target : the rows, the features among their columns, and what is predicted.
    query : column whose rows belong together, or None.  weights : column of row weights, or None.
    drop_missing : leave out rows without a target (they are an error otherwise).
    """

    table: Table
    groups: FeatureGroups
    target: Target
    query: str | None = None
    weights: str | None = None
    drop_missing: bool = False

    def check(self) -> list[str]:
        """Columns of the table that nothing uses.

        Raises
        ------
        GroupsError
            A feature that the table lacks, or that is also target, query or weight.
        """
        others = [*self.target.columns, *(name for name in (self.query, self.weights) if name is not None)]
        for name in others:
            if not self.table.has(name):
                raise TableError(f"{self.table.name} has no column {name!r}; {suggestion(name, self.table.columns)}")
            if name in self.groups.features:
                raise GroupsError(
                    f"column {name!r} is a feature of a group and also target, query or weight; drop it from one"
                )
        lost = [feature for feature in self.groups.features if not self.table.has(feature)]
        if lost:
            hint = f"; {suggestion(lost[0], self.table.columns)}" if len(lost) == 1 else ""
            raise GroupsError(f"{self.table.name} lacks {listed(lost)}, which the groups name{hint}")
        used = {*self.groups.features, *others}
        return [name for name in self.table.columns if name not in used]

    def rows(self, batch_rows: int = ROWS, *, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """The table's rows that have a target, batch by batch; of rows `start` to `stop` of the table."""
        return self._rows(self.groups.features, batch_rows, start, stop)

    def rows_for(self, numbers: int) -> Iterator[Rows]:
        """The same, in batches for which `numbers` numbers a row take little memory."""
        return self.rows(max(1, min(ROWS, BLOCK_VALUES // numbers)))

    def tally(self, deal: FoldAssigner, *, start: int = 0, stop: int | None = None) -> FoldCounts:
        """What dealing must know of a range of rows, by their targets and queries alone."""
        return deal.tally((rows.Y, rows.query) for rows in self._rows((), ROWS, start, stop))

    def _rows(self, features: Many[str], batch_rows: int, start: int, stop: int | None) -> Iterator[Rows]:
        """Rows with some of the features."""
        extra = [name for name in (*self.target.columns, self.query, self.weights) if name is not None]
        numeric = features if self.weights is None else [*features, self.weights]
        for batch in self.table.batches([*features, *extra], batch_rows, start=start, stop=stop, numeric=numeric):
            keep = ~without_target(batch, self.target.columns)
            if not keep.all() and not self.drop_missing:
                row = batch.start + int(np.flatnonzero(~keep)[0])
                raise TableError(
                    f"{self.table.name}: row {row} (counted from 0) has no target; mend it or leave it out"
                )
            if keep.any():
                yield self._kept(batch, features, keep)

    def _kept(self, batch: Batch, features: Many[str], keep: Bool) -> Rows:
        try:
            X = feature_matrix(batch, features)
        except TableError as error:
            raise TableError(f"{self.table.name}: {error}") from None
        weights = None if self.weights is None else self._weights(batch)
        query = None if self.query is None else batch.columns[self.query]
        if query is not None and absent(query).any():
            raise TableError(f"{self.table.name}: column {self.query!r} is missing in some rows; a query needs a name")
        Y, end = self._responses(batch, keep), batch.start + batch.rows
        if keep.all():
            return Rows(X, Y, weights, query, end)
        some = None if weights is None else weights[keep]
        return Rows(X[keep], Y, some, None if query is None else query[keep], end)

    def _weights(self, batch: Batch) -> Float:
        weights = numbers(batch, str(self.weights))
        if not (weights >= 0).all():
            row = batch.start + int(np.flatnonzero(~(weights >= 0))[0])
            raise TableError(f"{self.table.name}: weight in row {row} is missing or negative; expected 0 or more")
        return weights

    def _responses(self, batch: Batch, keep: Bool) -> Float:
        """(rows kept, P): numbers, or indicators of the classes."""
        classes = self.target.classes
        if classes is None:
            Y = np.column_stack([numbers(batch, name)[keep] for name in self.target.columns])
            if self.target.task == "count" and (Y < 0).any():
                row = batch.start + int(np.flatnonzero(keep)[np.flatnonzero((Y < 0).any(axis=1))[0]])
                name = self.target.columns[0]
                raise TableError(f"{self.table.name}: target {name!r} is negative in row {row}; expected counts")
            return Y
        column = batch.columns[self.target.columns[0]][keep]
        told = classes[1:] if len(classes) == 2 else classes
        Y = np.column_stack([column == label for label in told]).astype(np.float64)
        known = Y.any(axis=1) | (column == classes[0])
        if not known.all():
            value = column[~known].tolist()[0]
            seen = ", ".join(map(repr, classes[:10]))
            raise TableError(f"{self.table.name}: target {value!r} was never seen in training; known: {seen}")
        return Y

    def moments(
        self,
        folds: int = 1,
        *,
        seed: int = 0,
        stratified: bool = False,
        n_jobs: int | None = None,
        progress: Progress = ignored,
        checkpoint: Checkpoint | None = None,
    ) -> list[Moments]:
        """Moments of each fold of the table, in one pass; rows of one query share a fold.

        Parameters
        ----------
        stratified : deal the rows of each class out by themselves, where rows have no query.
        progress : called with the number of rows of each batch as it is read.
        checkpoint : where the pass is remembered, and taken up again from where an earlier one was stopped.
        """
        deal = FoldAssigner(folds, seed, stratified=stratified)
        place = None if checkpoint is None else self._place(checkpoint, deal, seed)
        if checkpoint is None or place is None:
            reached = None if checkpoint is None else checkpoint.reached
            found = self.summed(self.blocks(deal, progress=progress), folds, n_jobs=n_jobs, reached=reached)
        else:
            before = self.tally(deal, stop=place.row)
            deal.skip(before)
            progress(before.rows)
            left = self.blocks(deal, start=place.row, progress=progress)
            found = self.summed(left, folds, n_jobs=n_jobs, before=place.parts, reached=checkpoint.reached)
        if checkpoint is not None:
            checkpoint.save(END, found)
        return found

    def _place(self, checkpoint: Checkpoint, deal: FoldAssigner, seed: int) -> Place | None:
        """Where an earlier pass came to."""
        identity = {
            "table": fingerprint(self.table.name),
            "features": self.groups.features,
            "target": [*self.target.columns, self.target.task, self.target.classes],
            "query": self.query,
            "weights": self.weights,
            "missing targets": self.drop_missing,
            "folds": deal.folds,
            "stratified": deal.stratified,
            "seed": seed,
        }
        return checkpoint.begin(identity, len(self.groups.features), len(self.target.responses))

    def no_moments(self) -> Moments:
        """Moments of none of its rows."""
        features = len(self.groups.features)
        return Moments.empty(features, len(self.target.responses), np.zeros(features))

    def summed(
        self,
        blocks: Iterable[Block],
        folds: int,
        *,
        n_jobs: int | None = None,
        before: list[Moments] | None = None,
        reached: Reached | None = None,
    ) -> list[Moments]:
        """Moments of each fold of some of its blocks, as `accumulate`; a column that cannot be summed is named."""
        try:
            return accumulate(blocks, folds, n_jobs=n_jobs, before=before, reached=reached)
        except UnusableColumnError as error:
            name = (*self.groups.features, *self.target.columns)[error.column]
            raise TableError(f"{self.table.name}: column {name!r} {error.why}") from None

    def blocks(
        self, deal: FoldAssigner, *, start: int = 0, stop: int | None = None, progress: Progress = ignored
    ) -> Iterator[Block]:
        """The rows as the trainer takes them, with their folds; of rows `start` to `stop` of the table.

        Parameters
        ----------
        deal : deals these rows next; it is gone through as they are.
        """
        batch_rows = min(max(BLOCK_VALUES // max(len(self.groups.features), 1), MIN_ROWS), ROWS)

        def block(rows: Rows) -> Block:
            progress(len(rows.Y))
            return Block(rows.X, rows.Y, rows.weights, deal.take(rows.Y, rows.query), rows.end)

        return map(block, self.rows(batch_rows, start=start, stop=stop))  # which keeps none of them


@dataclass(frozen=True)
class Rows:
    """Rows of a dataset.

    Attributes
    ----------
    X, Y : features (rows, D) and responses (rows, P).
    weights, query : (rows,), or None.
    end : the row of the table behind the last of them.
    """

    X: Float
    Y: Float
    weights: Float | None
    query: NDArray[Any] | None
    end: int

    @property
    def row_weights(self) -> Float:
        """Weights (rows,) of the rows, 1 where the table has no column of weights."""
        return np.ones(len(self.Y)) if self.weights is None else self.weights

    def filled(self, mean: Float) -> Float:
        """X (rows, D) with `mean` (D,), of the training rows, where a value is missing."""
        return np.where(np.isnan(self.X), mean, self.X)
