"""Datasets: a table whose columns have a meaning (features, target, query and weights)."""

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
from anytime.moments.checkpoint import Checkpoint, CheckpointState
from anytime.moments.moments import Moments
from anytime.target import Target
from anytime.types import Bool, Float

__all__ = ["Dataset", "Progress", "Rows", "ignored"]

BLOCK_VALUES = 2**22
"""Numbers of features or scores in a block: 32 MiB. A few blocks are in memory at a time."""

MIN_ROWS = 1024

END = 2**62
"""A row number beyond every table."""

Progress: TypeAlias = Callable[[int], None]
"""Callback that receives the number of rows just read."""


def ignored(_rows: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True)
class Dataset:
    """A table whose columns have a meaning.

    Attributes
    ----------
    table, groups, target : the rows, the features among their columns, and the prediction target.
    query : column whose rows belong together, or None.  weights : column of row weights, or None.
    drop_missing : skip rows without a target (otherwise they are an error).
    """

    table: Table
    groups: FeatureGroups
    target: Target
    query: str | None = None
    weights: str | None = None
    drop_missing: bool = False

    def check(self) -> list[str]:
        """Return the columns of the table that nothing uses.

        Raises
        ------
        GroupsError
            The table lacks a feature, or a feature is also target, query or weight.
        """
        others = [*self.target.columns, *(name for name in (self.query, self.weights) if name is not None)]
        for name in others:
            if not self.table.has(name):
                raise TableError(f"{self.table.name} has no column {name!r}; {suggestion(name, self.table.columns)}")
            if name in self.groups.features:
                raise GroupsError(
                    f"column {name!r} is a feature of a group and also target, query or weight; remove one use"
                )
        lost = [feature for feature in self.groups.features if not self.table.has(feature)]
        if lost:
            hint = f"; {suggestion(lost[0], self.table.columns)}" if len(lost) == 1 else ""
            raise GroupsError(f"{self.table.name} lacks {listed(lost)}, which the groups name{hint}")
        used = {*self.groups.features, *others}
        return [name for name in self.table.columns if name not in used]

    def rows(self, batch_rows: int = ROWS, *, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """Yield the rows that have a target, batch by batch, from row `start` to before row `stop` of the table."""
        return self._rows(self.groups.features, batch_rows, start, stop)

    def rows_for(self, numbers: int) -> Iterator[Rows]:
        """Yield the rows in batches small enough for `numbers` numbers per row to fit in little memory."""
        return self.rows(max(1, min(ROWS, BLOCK_VALUES // numbers)))

    def tally(self, assigner: FoldAssigner, *, start: int = 0, stop: int | None = None) -> FoldCounts:
        """Return the summary of a range of rows that fold assignment needs; read their targets and queries only."""
        return assigner.tally((rows.Y, rows.query) for rows in self._rows((), ROWS, start, stop))

    def _rows(self, features: Many[str], batch_rows: int, start: int, stop: int | None) -> Iterator[Rows]:
        """Yield rows with some of the features."""
        extra = [name for name in (*self.target.columns, self.query, self.weights) if name is not None]
        numeric = features if self.weights is None else [*features, self.weights]
        for batch in self.table.batches([*features, *extra], batch_rows, start=start, stop=stop, numeric=numeric):
            keep = ~without_target(batch, self.target.columns)
            if not keep.all() and not self.drop_missing:
                row = batch.start + int(np.flatnonzero(~keep)[0])
                raise TableError(f"{self.table.name}: row {row} (counted from 0) has no target; fix or remove it")
            if keep.any():
                yield self._selected(batch, features, keep)

    def _selected(self, batch: Batch, features: Many[str], keep: Bool) -> Rows:
        try:
            X = feature_matrix(batch, features)
        except TableError as error:
            raise TableError(f"{self.table.name}: {error}") from None
        weights = None if self.weights is None else self._weights(batch)
        query = None if self.query is None else batch.columns[self.query]
        if query is not None and absent(query).any():
            raise TableError(
                f"{self.table.name}: query column {self.query!r} has missing values; expected a query in every row"
            )
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
        """Return the responses of the selected rows, (selected rows, P): numbers, or indicators of the classes."""
        classes = self.target.classes
        if classes is None:
            Y = np.column_stack([numbers(batch, name)[keep] for name in self.target.columns])
            if self.target.task == "count" and (Y < 0).any():
                row = batch.start + int(np.flatnonzero(keep)[np.flatnonzero((Y < 0).any(axis=1))[0]])
                name = self.target.columns[0]
                raise TableError(f"{self.table.name}: target {name!r} is negative in row {row}; expected counts")
            return Y
        column = batch.columns[self.target.columns[0]][keep]
        indicated = classes[1:] if len(classes) == 2 else classes
        Y = np.column_stack([column == label for label in indicated]).astype(np.float64)
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
        """Return the moments of each fold of the table, in one pass; rows of one query share a fold.

        Parameters
        ----------
        stratified : stratify the folds by class, where rows have no query.
        progress : called with the number of rows of each batch as it is read.
        checkpoint : file that records the state of the pass; the pass resumes from an earlier, interrupted one.
        """
        assigner = FoldAssigner(folds, seed, stratified=stratified)
        state = None if checkpoint is None else self._resume_state(checkpoint, assigner, seed)
        if checkpoint is None or state is None:
            reached = None if checkpoint is None else checkpoint.reached
            found = self.summed(self.blocks(assigner, progress=progress), folds, n_jobs=n_jobs, reached=reached)
        else:
            before = self.tally(assigner, stop=state.row)
            assigner.skip(before)
            progress(before.rows)
            remaining = self.blocks(assigner, start=state.row, progress=progress)
            found = self.summed(remaining, folds, n_jobs=n_jobs, before=state.parts, reached=checkpoint.reached)
        if checkpoint is not None:
            checkpoint.save(END, found)
        return found

    def _resume_state(self, checkpoint: Checkpoint, assigner: FoldAssigner, seed: int) -> CheckpointState | None:
        """Return the state of an earlier pass, or None."""
        identity = {
            "table": fingerprint(self.table.name),
            "features": self.groups.features,
            "target": [*self.target.columns, self.target.task, self.target.classes],
            "query": self.query,
            "weights": self.weights,
            "missing targets": self.drop_missing,
            "folds": assigner.folds,
            "stratified": assigner.stratified,
            "seed": seed,
        }
        return checkpoint.begin(identity, len(self.groups.features), len(self.target.responses))

    def no_moments(self) -> Moments:
        """Return the moments of no rows."""
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
        """Return the moments of each fold of some blocks, as `accumulate`; errors name the column."""
        try:
            return accumulate(blocks, folds, n_jobs=n_jobs, before=before, reached=reached)
        except UnusableColumnError as error:
            name = (*self.groups.features, *self.target.columns)[error.column]
            raise TableError(f"{self.table.name}: column {name!r} {error.why}") from None

    def blocks(
        self, assigner: FoldAssigner, *, start: int = 0, stop: int | None = None, progress: Progress = ignored
    ) -> Iterator[Block]:
        """Yield the rows, with their folds, as blocks for the trainer: from row `start` to before row `stop`.

        Parameters
        ----------
        assigner : fold assigner positioned at the first of these rows; it advances with them.
        """
        batch_rows = min(max(BLOCK_VALUES // max(len(self.groups.features), 1), MIN_ROWS), ROWS)

        def block(rows: Rows) -> Block:
            progress(len(rows.Y))
            return Block(rows.X, rows.Y, rows.weights, assigner.take(rows.Y, rows.query), rows.end)

        return map(block, self.rows(batch_rows, start=start, stop=stop))  # lazily: no block is stored


@dataclass(frozen=True)
class Rows:
    """Rows of a dataset.

    Attributes
    ----------
    X, Y : features (rows, D) and responses (rows, P).
    weights, query : (rows,), or None.
    end : number of the table's row after the last of them.
    """

    X: Float
    Y: Float
    weights: Float | None
    query: NDArray[Any] | None
    end: int

    @property
    def row_weights(self) -> Float:
        """Return the weights (rows,) of the rows, 1 if the table has no weight column."""
        return np.ones(len(self.Y)) if self.weights is None else self.weights

    def filled(self, mean: Float) -> Float:
        """Return X (rows, D) with missing values replaced by `mean` (D,), the training means."""
        return np.where(np.isnan(self.X), mean, self.X)
