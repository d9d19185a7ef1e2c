"""What a table means: which columns are features, target, query and weights, and what the target's values stand for.

The target is read first and alone, so that classes are known, and missing targets told, before the long pass begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anytime.accumulate import Block, accumulate
from anytime.arrays import Bool, Float
from anytime.errors import GroupsError, TableError, listed, suggestion
from anytime.folds import FoldStream, GroupedFolds
from anytime.groups import FeatureGroups
from anytime.manifest import Label, Task
from anytime.moments import Moments
from anytime.tables import Batch, Table, feature_matrix, numbers
from anytime.training import Target

__all__ = ["Dataset", "TargetScan", "scan_target"]

MOST_CLASSES = 1000
"""A target with more different values than this is no class."""


@dataclass(frozen=True)
class TargetScan:
    """What a first pass over the target found.

    Attributes
    ----------
    target : task, columns and classes.
    rows : rows of the table, those without a target among them.
    missing : rows without a target, which training leaves out.
    """

    target: Target
    rows: int
    missing: int


def scan_target(
    table: Table, columns: Many[str], task: Task | Literal["auto"] = "auto", *, drop_missing: bool = False
) -> TargetScan:
    """Read the target columns and settle the task.

    "auto": floats are regression; two values, binary; text, multiclass; other integers, regression.

    Raises
    ------
    TableError
        A target is missing in some rows (unless `drop_missing`), constant, or not what the task needs.
    """
    for name in columns:
        if not table.has(name):
            raise TableError(f"{table.name} has no column {name!r} for the target; {suggestion(name, table.columns)}")
    values: set[Any] = set()
    dtype: np.dtype[Any] = np.dtype(np.float64)
    rows = missing = 0
    first: list[int] = []
    for batch in table.batches(list(columns)):
        gaps = _missing(batch, columns)
        missing += int(gaps.sum())
        first += (batch.start + np.flatnonzero(gaps)[: 5 - len(first)]).tolist()
        rows += batch.rows
        dtype = batch.columns[columns[0]].dtype
        if len(columns) == 1 and len(values) <= MOST_CLASSES:
            values.update(np.unique(batch.columns[columns[0]][~gaps]).tolist())
    if missing and not drop_missing:
        where = ", ".join(map(str, first)) + (", ..." if missing > len(first) else "")
        raise TableError(
            f"{table.name}: {missing} of {rows} rows have no target (rows {where}, counted from 0); "
            "mend them or leave them out with --drop-missing-target"
        )
    if missing == rows:
        raise TableError(f"{table.name}: no row has a target; expected at least 2")
    return TargetScan(_settled(table, tuple(columns), task, dtype, values), rows, missing)


def _missing(batch: Batch, columns: Many[str]) -> Bool:
    """Rows of a batch in which some target is missing."""
    gaps = np.zeros(batch.rows, dtype=np.bool_)
    for name in columns:
        column = batch.columns[name]
        if column.dtype.kind in "fO":
            gaps |= _absent(column)
    return gaps


def _absent(column: NDArray[Any]) -> Bool:
    """Where a column of text is None, or one of floats NaN."""
    return np.array([value is None for value in column]) if column.dtype == object else np.isnan(column)


def _settled(
    table: Table, columns: tuple[str, ...], task: Task | Literal["auto"], dtype: np.dtype[Any], values: set[Any]
) -> Target:
    """The target's task and classes from its type and values."""
    if len(columns) > 1:
        if task not in ("auto", "regression"):
            raise TableError(f"{len(columns)} targets make a regression; give one target for task {task}")
        return Target("regression", columns)
    text, whole = dtype.kind == "O", dtype.kind in "biu"
    if task == "auto":
        task = "binary" if (text or whole) and len(values) == 2 else "multiclass" if text else "regression"
    if len(values) < 2:
        only = next(iter(values), None)
        raise TableError(f"{table.name}: target {columns[0]!r} is {only!r} in every row; expected at least 2 values")
    if task == "regression":
        if text:
            raise TableError(f"{table.name}: target {columns[0]!r} is text; expected numbers for a regression")
        return Target("regression", columns)
    if len(values) > MOST_CLASSES:
        raise TableError(
            f"{table.name}: target {columns[0]!r} has over {MOST_CLASSES} values; choose --task regression"
        )
    if task == "binary" and len(values) != 2:
        raise TableError(f"{table.name}: target {columns[0]!r} has {len(values)} values; expected 2 for task binary")
    classes: list[Label] = sorted(int(v) if isinstance(v, float) and v.is_integer() else v for v in values)
    return Target("binary" if len(classes) == 2 else "multiclass", columns, tuple(classes))


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
            keep = ~_missing(batch, self.target.columns)
            if not keep.all() and not self.drop_missing:
                row = batch.start + int(np.flatnonzero(~keep)[0])
                raise TableError(
                    f"{self.table.name}: row {row} (counted from 0) has no target; mend it or leave it out"
                )
            if keep.any():
                yield self._kept(batch, keep)

    def _kept(self, batch: Batch, keep: Bool) -> Rows:
        X = feature_matrix(batch, self.groups.features)
        weights = None if self.weights is None else self._weights(batch)
        query = None if self.query is None else batch.columns[self.query]
        if query is not None and query.dtype.kind in "fO" and _absent(query).any():
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
            return np.column_stack([numbers(batch, name)[keep] for name in self.target.columns])
        column = batch.columns[self.target.columns[0]][keep]
        told = classes[1:] if len(classes) == 2 else classes
        Y = np.column_stack([column == label for label in told]).astype(np.float64)
        known = Y.any(axis=1) | (column == classes[0])
        if not known.all():
            value = column[~known][0]
            raise TableError(
                f"{self.table.name}: target {value!r} was never seen in training; known: {listed(classes)}"
            )
        return Y

    def moments(
        self,
        folds: int = 1,
        *,
        seed: int = 0,
        n_jobs: int | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> list[Moments]:
        """Moments of each fold of the table, in one pass; rows of one query share a fold.

        Parameters
        ----------
        progress : called with the number of rows of each batch as it is read.
        """
        rng = np.random.default_rng(seed)
        by_row, by_query = FoldStream(folds, rng), GroupedFolds(folds, rng)

        def blocks() -> Iterator[Block]:
            for rows in self.rows():
                ids = None
                if folds > 1:
                    ids = by_row.take(len(rows.Y)) if rows.query is None else by_query.take(rows.query.tolist())
                yield Block(rows.X, rows.Y, rows.weights, ids)
                progress(len(rows.Y))

        return accumulate(blocks(), folds, n_jobs=n_jobs)


@dataclass(frozen=True)
class Rows:
    """Rows of a dataset: features (rows, D), responses (rows, P), weights (rows,) or None, queries (rows,) or None."""

    X: Float
    Y: Float
    weights: Float | None
    query: NDArray[Any] | None
