"""A table with the meaning of its columns: features, target, query and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anytime.accumulate import Block, UnusableColumnError, accumulate
from anytime.arrays import Bool, Float
from anytime.errors import GroupsError, TableError, listed, suggestion
from anytime.folds import FoldStream, GroupedFolds, StratifiedFolds
from anytime.groups import FeatureGroups
from anytime.model import AnytimeModel
from anytime.moments import Moments
from anytime.probabilities import class_codes
from anytime.tables import Batch, Table, feature_matrix, numbers
from anytime.targets import Target, absent, survey_target, without_target

__all__ = ["Dataset", "Rows", "held_out"]


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

    def rows(self, batch_rows: int | None = None) -> Iterator[Rows]:
        """The table's rows that have a target, batch by batch."""
        extra = [name for name in (*self.target.columns, self.query, self.weights) if name is not None]
        columns = [*self.groups.features, *extra]
        batches = self.table.batches(columns) if batch_rows is None else self.table.batches(columns, batch_rows)
        for batch in batches:
            keep = ~without_target(batch, self.target.columns)
            if not keep.all() and not self.drop_missing:
                row = batch.start + int(np.flatnonzero(~keep)[0])
                raise TableError(
                    f"{self.table.name}: row {row} (counted from 0) has no target; mend it or leave it out"
                )
            if keep.any():
                yield self._kept(batch, keep)

    def _kept(self, batch: Batch, keep: Bool) -> Rows:
        try:
            X = feature_matrix(batch, self.groups.features)
        except TableError as error:
            raise TableError(f"{self.table.name}: {error}") from None
        weights = None if self.weights is None else self._weights(batch)
        query = None if self.query is None else batch.columns[self.query]
        if query is not None and absent(query).any():
            raise TableError(f"{self.table.name}: column {self.query!r} is missing in some rows; a query needs a name")
        Y = self._responses(batch, keep)
        if keep.all():
            return Rows(X, Y, weights, query)
        return Rows(X[keep], Y, None if weights is None else weights[keep], None if query is None else query[keep])

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
        progress: Callable[[int], None] = lambda _: None,
    ) -> list[Moments]:
        """Moments of each fold of the table, in one pass; rows of one query share a fold.

        Parameters
        ----------
        stratified : deal the rows of each class out by themselves, where rows have no query.
        progress : called with the number of rows of each batch as it is read.
        """
        try:
            return accumulate(
                self.blocks(folds, seed=seed, stratified=stratified, progress=progress), folds, n_jobs=n_jobs
            )
        except UnusableColumnError as error:
            name = (*self.groups.features, *self.target.columns)[error.column]
            raise TableError(f"{self.table.name}: column {name!r} {error.why}") from None

    def blocks(
        self,
        folds: int = 1,
        *,
        seed: int = 0,
        stratified: bool = False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Iterator[Block]:
        """The rows as the trainer takes them, with their folds: the same each time for the same arguments."""
        rng = np.random.default_rng(seed)
        by_row, by_query, by_class = FoldStream(folds, rng), GroupedFolds(folds, rng), StratifiedFolds(folds, rng)
        for rows in self.rows():
            ids = None
            if folds > 1 and rows.query is not None:
                ids = by_query.take(rows.query.tolist())
            elif folds > 1:
                ids = by_class.take(class_codes(rows.Y)) if stratified else by_row.take(len(rows.Y))
            yield Block(rows.X, rows.Y, rows.weights, ids)
            progress(len(rows.Y))


@dataclass(frozen=True)
class Rows:
    """Rows of a dataset: features (rows, D), responses (rows, P), weights (rows,) or None, queries (rows,) or None."""

    X: Float
    Y: Float
    weights: Float | None
    query: NDArray[Any] | None

    def filled(self, mean: Float) -> Float:
        """X (rows, D) with `mean` (D,), of the training rows, where a value is missing."""
        return np.where(np.isnan(self.X), mean, self.X)


def held_out(model: AnytimeModel, table: Table, *, drop_missing: bool = False) -> tuple[Dataset, int]:
    """A table to measure a model on, with the model's columns, checked; and how many of its rows have a target.

    Raises
    ------
    TableError, GroupsError
        The table lacks a column of the model, or a target.
    """
    manifest = model.manifest
    query = manifest.query if manifest.query is not None and table.has(manifest.query) else None
    survey = survey_target(table, manifest.target, drop_missing=drop_missing)
    target = Target(manifest.task, manifest.target, manifest.classes)
    dataset = Dataset(table, model.groups, target, query, drop_missing=drop_missing)
    dataset.check()
    return dataset, survey.rows - survey.missing
