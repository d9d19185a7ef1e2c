"""Datasets: a table whose columns have a meaning (features, target, query and weights).

`survey_target` reads the target columns once, and `settle_target` derives the task and the classes from what it found.
A `Dataset` then reads rows of features and responses, batch by batch, and sums them into the moments of each fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anytime.data.columns import feature_matrix, numbers
from anytime.data.formats import ROWS, Batch, Table, fingerprint
from anytime.errors import GroupsError, TableError, listed, suggestion
from anytime.features.bases import Kind
from anytime.features.expansion import Expansion
from anytime.features.learning import Clamp, Columns, are_mostly, kind_of, learned_groups, needs_sample, sample_of
from anytime.folds import FoldAssigner, FoldCounts
from anytime.groups import FeatureGroups
from anytime.moments.accumulate import Block, Reached, UnusableColumnError, accumulate
from anytime.moments.files import Checkpoint, CheckpointState
from anytime.moments.moments import Moments
from anytime.target import FAMILY_TASKS, Target, check_family
from anytime.types import Bool, FamilyName, Float, Label, Task

MAX_CLASSES = 1000
"""Maximum number of different values of a class target."""

BLOCK_VALUES = 2**22
"""Numbers of features or scores in a block: 32 MiB. A few blocks are in memory at a time."""

Progress: TypeAlias = Callable[[int], None]
"""Callback that receives the number of rows just read."""


def ignored(_rows: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True)
class Survey:
    """Result of a pass over the target columns of a table."""

    table: str
    columns: tuple[str, ...]
    rows: int
    """Number of rows of the table, including `missing` rows without a target."""
    missing: int
    kinds: tuple[str, ...]
    """Dtype kind of each column, as numpy abbreviates it."""
    values: tuple[frozenset[Any], ...]
    """The different values of each column; complete only up to the maximum number of classes."""


def survey_target(table: Table, columns: Many[str], *, drop_missing: bool = False) -> Survey:
    """Read the target columns.

    Raises TableError if a column does not exist or is named twice, a value is infinite, or rows have no target (with
    `drop_missing`: all rows).
    """
    for name in columns:
        if not table.has(name):
            raise TableError(f"{table.name} has no column {name!r} for the target; {suggestion(name, table.columns)}")
    if len(set(columns)) < len(columns):
        raise TableError(f"the target {columns[0]!r} is named more than once; name each column once")
    values: list[set[Any]] = [set() for _ in columns]
    kinds: tuple[str, ...] = ()
    rows = missing = 0
    first: list[int] = []
    for batch in table.batches(list(columns)):
        gaps = _without_target(batch, columns)
        missing += int(gaps.sum())
        first += (batch.start + np.flatnonzero(gaps)[: 5 - len(first)]).tolist()
        rows += batch.rows
        kinds = tuple(batch.columns[name].dtype.kind for name in columns)
        for name, seen in zip(columns, values, strict=True):
            _check_finite(table, batch, name)
            if len(seen) <= MAX_CLASSES:
                seen.update(np.unique(batch.columns[name][~gaps]).tolist())
    if missing and not drop_missing:
        where = ", ".join(map(str, first)) + (", ..." if missing > len(first) else "")
        raise TableError(
            f"{table.name}: {missing} of {rows} rows have no target (rows {where}, counted from 0); "
            "fix them or skip them with --drop-missing-target"
        )
    if missing == rows:
        raise TableError(f"{table.name}: no row has a target; expected at least one")
    return Survey(table.name, tuple(columns), rows, missing, kinds, tuple(map(frozenset, values)))


def _check_finite(table: Table, batch: Batch, name: str) -> None:
    column = batch.columns[name]
    if column.dtype.kind == "f" and np.isinf(column).any():
        row = batch.start + int(np.isinf(column).argmax())
        raise TableError(f"{table.name}: target {name!r} is infinite in row {row} (counted from 0); expected a number")


def _without_target(batch: Batch, columns: Many[str]) -> Bool:
    return reduce(or_, (_absent(batch.columns[name]) for name in columns), np.zeros(batch.rows, dtype=np.bool_))


def _absent(column: NDArray[Any]) -> Bool:
    """Return where a column of text is None, or a column of floats NaN."""
    if column.dtype.kind == "O":
        return np.array([value is None for value in column])
    return np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), dtype=np.bool_)


def settle_target(
    survey: Survey, task: Task | Literal["auto"] = "auto", family: FamilyName | None = None, *, partial: bool = False
) -> Target:
    """Return the target: the task and the classes.

    "auto" chooses the task of the family, if one is given. Otherwise two values are binary, text is multiclass, and all
    other targets are regression. Floats count as two values only where they are whole numbers with gaps.

    With `partial`, other rows will follow, so one value is enough, and text is one class. Raises TableError if the
    target has one value only, or does not fit the task.
    """
    columns, several = survey.columns, len(survey.columns) > 1
    if task == "auto" and family in FAMILY_TASKS:
        task = FAMILY_TASKS[family]
    for name, kind, values in zip(columns, survey.kinds, survey.values, strict=True):
        if len(values) < 2 and not partial:
            (only,) = values
            raise TableError(f"{survey.table}: target {name!r} is {only!r} in every row; expected at least 2 values")
        if kind == "O" and (task in ("regression", "count") or several):
            raise TableError(f"{survey.table}: target {name!r} is text; expected numbers")
    if several and task not in ("auto", "regression"):
        raise TableError(f"{len(columns)} targets make a regression; give one target for task {task}")
    if task == "auto":
        task = "regression" if several else _guessed_task(survey)
    if task == "count" and min(survey.values[0]) < 0:
        raise TableError(
            f"{survey.table}: target {columns[0]!r} holds {min(survey.values[0])}; expected counts, 0 or more"
        )
    target = Target(task, columns) if task in ("regression", "count") else _class_target(survey, task, partial=partial)
    if family is not None:
        check_family(family, target)
    return target


def _guessed_task(survey: Survey) -> Task:
    kind, values = survey.kinds[0], survey.values[0]
    # Whole numbers with gaps are read as floats, because only floats can have gaps.
    whole = kind != "f" or (survey.missing > 0 and all(value.is_integer() for value in values))
    if whole and len(values) == 2:
        return "binary"
    return "multiclass" if kind == "O" else "regression"


def _class_target(survey: Survey, task: Task, *, partial: bool) -> Target:
    name, values = survey.columns[0], survey.values[0]
    if len(values) > MAX_CLASSES:
        raise TableError(f"{survey.table}: target {name!r} has over {MAX_CLASSES} values; choose --task regression")
    if task == "binary" and len(values) != 2 and not (partial and len(values) < 2):
        raise TableError(f"{survey.table}: target {name!r} has {len(values)} values; expected 2 for task binary")
    classes: list[Label] = sorted(int(v) if isinstance(v, float) and v.is_integer() else v for v in values)
    return Target.of_classes(survey.columns, classes)


@dataclass(frozen=True)
class Rows:
    """Rows of a dataset: features X (rows, D), responses Y (rows, P), weights and queries (rows,)."""

    X: Float
    Y: Float
    weights: Float | None
    query: NDArray[Any] | None
    end: int
    """Number of the table's row after the last of them."""

    @property
    def row_weights(self) -> Float:
        return np.ones(len(self.Y)) if self.weights is None else self.weights


@dataclass(frozen=True)
class Dataset:
    """A table whose columns have a meaning."""

    table: Table
    groups: FeatureGroups
    target: Target
    query: str | None = None
    """Column whose equal values mark rows that belong together."""
    weights: str | None = None
    drop_missing: bool = False
    """Whether to skip rows without a target; otherwise they are an error."""

    @cached_property
    def terms(self) -> Expansion:
        """Return what the raw columns become, without indicators of missing values."""
        return Expansion.of(self.groups).plain

    def check(self) -> list[str]:
        """Return the columns that nothing uses; raise if the table lacks a column, or a feature has another use."""
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

    def with_learned_bases(
        self, option: str | None = None, clamp: Clamp = None, *, seed: int = 0, complete: bool = False
    ) -> Dataset:
        """Return the dataset with the bases of its columns learned from a sample of its rows that have a target.

        With `complete` the groups have the basis of every column. Raise GroupsError for a basis that does not fit its
        column, TableError for text among numbers or an infinite value.
        """
        features = self.groups.features
        first = next(self.table.batches(features, 1))
        factors = self.table.factors
        kinds: dict[str, Kind] = {f: "factor" if f in factors else kind_of(first.columns[f]) for f in features}
        if not (complete or needs_sample(self.groups, kinds.values(), option, clamp)):
            return self
        sample, rows = sample_of(self._columns_with_target(), seed=seed)
        for name in features:
            if kinds[name] == "text" and name not in self.groups.bases and are_mostly(float, sample[name]):
                for batch in self.table.batches([name]):
                    numbers(batch, name)  # raises, and names a cell
        groups = learned_groups(self.groups, sample, rows, option, clamp, factors=factors, complete=complete)
        return replace(self, groups=groups)

    def _columns_with_target(self) -> Iterator[Columns]:
        for batch in self.table.batches([*self.groups.features, *self.target.columns]):
            keep = ~_without_target(batch, self.target.columns)
            for name in self.groups.features:
                if batch.columns[name].dtype.kind == "f":
                    numbers(batch, name)  # raises for an infinite value
            yield {name: batch.columns[name][keep] for name in self.groups.features}

    def rows_for(self, numbers: int) -> Iterator[Rows]:
        """Yield the rows in batches small enough for `numbers` numbers per row to fit in little memory."""
        return self.rows(max(1, min(ROWS, BLOCK_VALUES // numbers)))

    def tally(self, assigner: FoldAssigner, *, start: int = 0, stop: int | None = None) -> FoldCounts:
        """Return the summary of a range of rows that fold assignment needs; read their targets and queries only."""
        return assigner.tally((rows.Y, rows.query) for rows in self.rows(start=start, stop=stop, features=()))

    def rows(
        self, batch_rows: int = ROWS, *, start: int = 0, stop: int | None = None, features: Many[str] | None = None
    ) -> Iterator[Rows]:
        """Yield the rows that have a target, batch by batch, from row `start` to before row `stop` of the table."""
        features = self.groups.features if features is None else features
        extra = [name for name in (*self.target.columns, self.query, self.weights) if name is not None]
        numeric = features if self.weights is None else [*features, self.weights]
        for batch in self.table.batches([*features, *extra], batch_rows, start=start, stop=stop, numeric=numeric):
            keep = ~_without_target(batch, self.target.columns)
            if not keep.all() and not self.drop_missing:
                row = batch.start + int(np.flatnonzero(~keep)[0])
                raise TableError(f"{self.table.name}: row {row} (counted from 0) has no target; fix or remove it")
            if keep.any():
                yield self._selected(batch, features, keep)

    def _selected(self, batch: Batch, features: Many[str], keep: Bool) -> Rows:
        try:
            X = feature_matrix(batch, features, self.terms.categories)
        except TableError as error:
            raise TableError(f"{self.table.name}: {error}") from None
        weights = None if self.weights is None else self._weights(batch)
        query = None if self.query is None else batch.columns[self.query]
        if query is not None and _absent(query).any():
            raise TableError(
                f"{self.table.name}: query column {self.query!r} has missing values; expected a query in every row"
            )
        if not keep.all():
            X = X[keep]
            weights = None if weights is None else weights[keep]
            query = None if query is None else query[keep]
        return Rows(X, self._responses(batch, keep), weights, query, batch.start + batch.rows)

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
        """Return the moments of each fold of the table, in one pass; `progress` gets the rows of each batch.

        With a `checkpoint`, the pass resumes from an earlier, interrupted one.
        """
        assigner = FoldAssigner(folds, seed, stratified=stratified)
        if checkpoint is None:
            return self.summed(self.blocks(assigner, progress=progress), folds, n_jobs=n_jobs)
        row, before = 0, None
        state = self._resume_state(checkpoint, assigner, seed)
        if state is not None:
            row, before = state.row, state.parts
            skipped = self.tally(assigner, stop=row)
            assigner.skip(skipped)
            progress(skipped.rows)
        blocks = self.blocks(assigner, start=row, progress=progress)
        parts = self.summed(blocks, folds, n_jobs=n_jobs, before=before, reached=checkpoint.reached)
        checkpoint.save(2**62, parts)  # a row beyond every table
        return parts

    def _resume_state(self, checkpoint: Checkpoint, assigner: FoldAssigner, seed: int) -> CheckpointState | None:
        identity = {
            "table": fingerprint(self.table.path),
            "features": self.groups.features,
            "bases": {name: basis.model_dump(mode="json") for name, basis in self.groups.bases.items()},
            "target": [*self.target.columns, self.target.task, self.target.classes],
            "query": self.query,
            "weights": self.weights,
            "missing targets": self.drop_missing,
            "folds": assigner.folds,
            "stratified": assigner.stratified,
            "seed": seed,
        }
        return checkpoint.begin(identity, self.terms.size, len(self.target.responses))

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
            name = (*self.groups.features, *self.groups.pair_names, *self.target.columns)[error.column]
            raise TableError(f"{self.table.name}: column {name!r} {error.why}") from None

    def blocks(
        self, assigner: FoldAssigner, *, start: int = 0, stop: int | None = None, progress: Progress = ignored
    ) -> Iterator[Block]:
        """Yield the rows from `start` to before `stop` as blocks; `assigner` is at the first and advances with them."""
        batch_rows = min(max(BLOCK_VALUES // max(len(self.groups.features), 1), 1024), ROWS)
        expansion = None if self.terms.is_identity else self.terms

        def block(rows: Rows) -> Block:
            progress(len(rows.Y))
            return Block(rows.X, rows.Y, rows.weights, assigner.take(rows.Y, rows.query), rows.end, expansion)

        return map(block, self.rows(batch_rows, start=start, stop=stop))  # lazily: no block is stored


def checked_dataset(dataset: Dataset) -> tuple[Dataset, int]:
    """Check a dataset; return it, without the query if the table lacks it, and its number of rows with a target."""
    survey = survey_target(dataset.table, dataset.target.columns, drop_missing=dataset.drop_missing)
    if dataset.query is not None and not dataset.table.has(dataset.query):
        dataset = replace(dataset, query=None)
    dataset.check()
    return dataset, survey.rows - survey.missing
