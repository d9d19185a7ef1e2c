"""Datasets: a table whose columns have a meaning (features, target, query and weights), and their columns as numbers.

A `Dataset` reads rows of features and responses, batch by batch, and sums them into the moments of each fold. Columns
are read as the types that the groups and the target have (`anytime.data.survey` finds them in the training table).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anytime.data.formats import BLOCK_VALUES, ROWS, Batch, ReadAs, Table
from anytime.errors import GroupsError, TableError, TrainingError, listed, suggestion
from anytime.features.expansion import Expansion
from anytime.features.learning import present
from anytime.features.readers import Reader
from anytime.folds import FoldAssigner, FoldCounts
from anytime.groups import PATTERN, FeatureGroups
from anytime.moments.accumulate import Block, UnusableColumnError, accumulate, dense, jobs_of
from anytime.moments.moments import Moments
from anytime.target import Target, class_codes
from anytime.types import Bool, Float, Label

MIN_WEIGHT, MAX_WEIGHT = 1e-100, 1e100
"""Range of the weights above 0: their products with squares of numbers keep all digits."""
WEIGHTS = f"0, or {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"


def feature_matrix(batch: Batch, features: Sequence[str], categories: Mapping[int, Reader] = {}) -> Any:
    """Return columns of a batch as a matrix (rows, features), NaN where missing; that of a matrix is as it is stored.

    Columns of categories, by their index, contain the indices of levels.
    """
    if batch.stored is not None and not categories and batch.places.keys() >= set(features):
        places = [batch.places[name] for name in features]
        return batch.stored if places == list(range(batch.stored.shape[1])) else batch.stored[:, places]
    X = np.empty((batch.rows, len(features)), order="F")
    for j, name in enumerate(features):
        values = batch.column(name)
        X[:, j] = codes(name, values, categories[j]) if j in categories else values
    return X


def codes(name: str, values: NDArray[Any], reader: Reader) -> Float:
    """Return the raw numbers (rows,) of a column; raise TableError if a value has another type than in training."""
    wrong = next((value for value in set(values[present(values)].tolist()) if not reader.accepts(value)), None)
    if wrong is not None:
        raise TableError(f"column {name!r} holds {wrong!r}; expected {reader.holds} in every row, as in training")
    return reader.coded(values.tolist())


def array_columns(count: int, groups: FeatureGroups) -> list[str]:
    """Return the names of the columns of an array: x0, x1, ..., or the features in the order of the groups.

    Raises GroupsError if the features are not among the former, and their number differs or they have patterns.
    """
    names = [f"x{j}" for j in range(count)]
    if set(groups.features) <= set(names):
        return names
    if len(groups.features) == count and not any(map(PATTERN.search, groups.features)):
        return list(groups.features)
    raise GroupsError(
        f"X has {count} columns without names and the groups have {len(groups.features)} features; "
        "expected one column per feature, in the order of the groups, or features named x0, x1, ...; after a "
        'transformer, set_output(transform="pandas") keeps names'
    )


class ColumnError(TableError):
    """Invalid values of one column; `column` is its name."""

    def __init__(self, message: str, column: str = "") -> None:
        super().__init__(message)
        self.column = column


def check_finite(batch: Batch, name: str, kind: ReadAs = "number") -> None:
    """Raise TableError, with the first row, if a column of numbers or dates contains infinities."""
    values = batch.column(name)
    if values.dtype.kind == "f" and np.isinf(values).any():
        raise next(_infinite([batch], {name: kind}))


def infinite_columns(table: Table, names: Sequence[str], types: Mapping[str, ReadAs]) -> list[ColumnError]:
    """Return an error for each column of a table with infinite values, with their number and the first row."""
    batches = table.batches(names, types=types) if names else ()
    found = _infinite(batches, {name: types.get(name, "number") for name in names})
    return [ColumnError(f"{table.name}: {error}", error.column) for error in found]


def _infinite(batches: Iterable[Batch], kinds: Mapping[str, ReadAs]) -> Iterator[ColumnError]:
    found: dict[str, tuple[int, int]] = {}
    for batch in batches:
        for name in kinds:
            values = batch.column(name)
            if values.dtype.kind == "f" and (infinite := np.isinf(values)).any():
                count, first = found.get(name, (0, batch.start + int(infinite.argmax())))
                found[name] = count + int(infinite.sum()), first
    for name, (count, first) in found.items():
        what, valid = f"infinite value{'s' * (count > 1)}", "finite numbers"
        if kinds[name] == "date":
            what, valid = f"date{'s' * (count > 1)} beyond the years 1 to 9999", "dates of these years"
        yield ColumnError(
            f"column {name!r} holds {count} {what}, the first in row {first} (counted from 0); expected {valid}, or no "
            "value where one is missing",
            name,
        )


def rows_to_learn_from(
    batch: Batch, target: Sequence[str], weights_column: str | None
) -> tuple[Bool, Float | None, Bool]:
    """Return which rows miss a target, the weights, if any, and which rows have a target and no weight of 0: (rows,).

    Raises TableError for a weight that is missing, negative, tiny or huge.
    """
    gaps = np.zeros(batch.rows, dtype=np.bool_)
    for name in target:
        gaps |= ~present(batch.column(name))
    if weights_column is None:
        return gaps, None, ~gaps
    check_finite(batch, weights_column)
    weights = np.asarray(batch.column(weights_column), dtype=np.float64)
    valid = valid_weights(weights)
    if not valid.all():
        at = int(valid.argmin())
        what = f"{weights[at]:g}" if abs(weights[at]) > 0 else "missing"
        raise TableError(f"weight in row {batch.start + at} is {what}; expected {WEIGHTS}")
    return gaps, weights, ~gaps & (weights > 0)


def valid_weights(weights: Float) -> Bool:
    """Return which weights (rows,) are 0, or neither so small nor so large that products with them lose digits."""
    return np.asarray((weights == 0) | ((weights >= MIN_WEIGHT) & (weights <= MAX_WEIGHT)))


def responses(batch: Batch, target: Target, kept: Bool) -> Float:
    """Return the responses of the `kept` rows (rows,), as (kept rows, P): numbers, or indicators of the classes.

    Raises TableError for an infinite target, a response that the family excludes, or a class that is not the target's.
    """
    classes, name = target.classes, target.columns[0]
    if classes is None:
        for column in target.columns:
            check_finite(batch, column)
        Y = np.column_stack([np.asarray(batch.column(column), dtype=np.float64)[kept] for column in target.columns])
        valid = target.family.valid(Y)
        if not valid.all():
            place = np.flatnonzero(~valid.all(axis=1))[0]
            row, value = batch.start + int(np.flatnonzero(kept)[place]), Y[place, 0]
            raise TableError(f"target {name!r} is {value:.6g} in row {row}; expected {target.family.expected}")
        return Y
    labels = batch.column(name)[kept]
    indicators = [labels == label for label in (classes[1:] if len(classes) == 2 else classes)]
    Y = np.column_stack(indicators).astype(np.float64)
    known = Y.any(axis=1) | (labels == classes[0])
    if not known.all():
        raise TableError(
            f"target {labels[~known].tolist()[0]!r} was never seen in training; known: "
            f"{', '.join(map(repr, classes[:10]))}"
        )
    return Y


Progress: TypeAlias = Callable[[int], None]
"""Callback that receives the number of rows just read."""


def ignored(_rows: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True)
class Dataset:
    """A table whose columns have a meaning.

    Attributes
    ----------
    query : str | None
        Column whose equal values mark rows that belong together.
    weights : str | None
        Column of the weights of rows; a row of weight 0 is left out.
    drop_missing : bool
        Whether to skip rows without a target; otherwise they are an error.
    fold : str | None
        Column of fold numbers, if they are given.
    class_weights : tuple[float, ...] | None
        Factors of the weights of rows, one for each class of the target; None is 1.
    """

    table: Table
    groups: FeatureGroups
    target: Target
    query: str | None = None
    weights: str | None = None
    drop_missing: bool = False
    fold: str | None = None
    class_weights: tuple[float, ...] | None = None

    @cached_property
    def terms(self) -> Expansion:
        """Return what the raw columns become, without indicators of missing values."""
        return Expansion.of(self.groups).plain

    @cached_property
    def types(self) -> dict[str, ReadAs]:
        """Return what each used column is read as: the types of training, whatever this table holds."""
        given: tuple[tuple[str | None, ReadAs], ...] = (
            *self.groups.column_types.items(),
            *((name, self.target.type) for name in self.target.columns),
            (self.query, "key"),
            (self.weights, "number"),
            (self.fold, "integer"),
        )
        return {name: kind for name, kind in given if name is not None}

    def check(self) -> list[str]:
        """Return the columns that nothing uses; raise if the table lacks a column, or a feature has another use."""
        others = [*self.target.columns, *(name for name in (self.query, self.weights) if name is not None)]
        self.table.require(others)
        for name in others:
            if name in self.groups.features:
                raise GroupsError(
                    f"column {name!r} is a feature of a group and also target, query or weight; remove one use"
                )
        if lost := [feature for feature in self.groups.features if not self.table.has(feature)]:
            hint = f"; {suggestion(lost[0], self.table.columns)}" if len(lost) == 1 else ""
            raise GroupsError(f"{self.table.name} lacks {listed(lost)}, which the groups name{hint}")
        used = {*self.groups.features, *others}
        return [name for name in self.table.columns if name not in used]

    def rows_for(self, numbers: int) -> Iterator[Block]:
        """Yield the rows in batches small enough for `numbers` numbers per row to fit in little memory, X dense.

        Raises TableError for infinite values.
        """
        for rows in self.rows(max(1, min(ROWS, BLOCK_VALUES // numbers))):
            X = np.asarray(dense(rows.X), dtype=np.float64)
            if np.isinf(X).any():
                name = self.groups.features[int(np.isinf(X).any(axis=0).argmax())]
                raise infinite_columns(self.table, [name], self.types)[0]
            yield replace(rows, X=X)

    def tally(self, assigner: FoldAssigner, *, start: int = 0, stop: int | None = None) -> FoldCounts:
        """Return the summary of a range of rows that fold assignment needs; read their targets and queries only."""
        return assigner.tally((rows.Y, rows.query) for rows in self.rows(start=start, stop=stop, features=()))

    def rows(
        self, batch_rows: int = ROWS, *, start: int = 0, stop: int | None = None, features: Sequence[str] | None = None
    ) -> Iterator[Block]:
        """Yield the rows that have a target and no weight of 0, from row `start` to before row `stop` of the table."""
        features = self.groups.features if features is None else features
        extra = [name for name in (*self.target.columns, self.query, self.weights, self.fold) if name is not None]
        for batch in self.table.batches([*features, *extra], batch_rows, start=start, stop=stop, types=self.types):
            try:
                rows = self._selected(batch, features)
            except TableError as error:
                raise TableError(f"{self.table.name}: {error}") from None
            if len(rows.Y):
                yield rows

    def _selected(self, batch: Batch, features: Sequence[str]) -> Block:
        missing, weights, kept = rows_to_learn_from(batch, self.target.columns, self.weights)
        if missing.any() and not self.drop_missing:
            raise TableError(
                f"row {batch.start + int(missing.argmax())} (counted from 0) has no target; fix or remove it"
            )
        X = feature_matrix(batch, features, self.terms.categories if features else {})
        query, folds = (None if name is None else batch.column(name) for name in (self.query, self.fold))
        if query is not None and not present(query).all():
            raise TableError(f"query column {self.query!r} has missing values; expected a query in every row")
        Y = responses(batch, self.target, kept)
        if not kept.all():
            X = X[kept]
            weights, query, folds = (None if each is None else each[kept] for each in (weights, query, folds))
        if self.class_weights is not None and len(Y):
            factors = np.array(self.class_weights)[class_codes(Y)]
            weights, used = factors if weights is None else weights * factors, factors > 0
            if not used.all():
                X, Y, weights = X[used], Y[used], weights[used]
                query, folds = (None if each is None else each[used] for each in (query, folds))
        return Block(X, Y, weights, folds, query=query)

    def weighted(self, by_class: Literal["balanced"] | Mapping[Label, float]) -> Dataset:
        """Return the dataset with weights of classes; for "balanced", all are equally heavy, and the targets are read.

        Balanced weights keep the sum of the weights of all rows. Raises TrainingError if the target has no classes, or
        for an unknown class or an invalid weight.
        """
        classes = self.target.classes
        if classes is None:
            raise TrainingError(
                f"class weights require classes; target {', '.join(self.target.columns)} is {self.target.task}"
            )
        if isinstance(by_class, str):  # n / (classes * count), given the weights of their rows; 0 for an empty class
            counts = np.zeros(len(classes))
            for rows in self.rows(features=()):
                counts += np.bincount(class_codes(rows.Y), rows.row_weights, minlength=len(classes))
            weights = np.divide(counts.sum() / (counts > 0).sum(), counts, out=np.zeros_like(counts), where=counts > 0)
        else:
            if unknown := [label for label in by_class if label not in classes]:
                known = ", ".join(map(repr, classes[:5])) + ", ..." * (len(classes) > 5)
                raise TrainingError(f"class_weight has {unknown[0]!r}; expected classes of the target: {known}")
            weights = np.array([by_class.get(label, 1.0) for label in classes], dtype=np.float64)
            valid = valid_weights(weights)
            if not valid.all():
                at = int(valid.argmin())
                raise TrainingError(f"class_weight of {classes[at]!r} is {weights[at]:g}; expected {WEIGHTS}")
        return replace(self, class_weights=tuple(weights.tolist()))

    def moments(
        self, folds: int = 1, *, seed: int = 0, stratified: bool = False, n_jobs: int | None = None
    ) -> list[Moments]:
        """Return the moments of each fold of the table, in one pass."""
        blocks = self.blocks(FoldAssigner(folds, seed, stratified=stratified), n_jobs=n_jobs)
        return self.summed(blocks, folds, n_jobs=n_jobs)

    def summed(
        self, blocks: Iterable[Block], folds: int, *, n_jobs: int | None = None, before: list[Moments] | None = None
    ) -> list[Moments]:
        """Return the moments of each fold of some blocks, as `accumulate`; errors name the column."""
        try:
            return accumulate(blocks, folds, n_jobs=n_jobs, before=before)
        except UnusableColumnError as error:
            pairs = (f"{a.column} * {b.column}" for a, b in self.groups.pairs)
            name = (*self.groups.features, *pairs, *self.target.columns)[error.column]
            if name in self.types and (infinite := infinite_columns(self.table, [name], self.types)):
                raise infinite[0] from None  # which names a row
            raise ColumnError(f"{self.table.name}: column {name!r} {error.why}", name) from None

    def infinite(self) -> list[ColumnError]:
        """Return an error for each feature with infinite values in the rows to learn from."""
        features = np.array(self.groups.features)
        wild = np.zeros(len(features), dtype=np.bool_)
        for rows in self.rows(max(1, BLOCK_VALUES // len(features))):
            wild |= np.isinf(np.asarray(dense(rows.X), dtype=np.float64)).any(axis=0)
        return infinite_columns(self.table, features[wild].tolist(), self.types)

    def blocks(
        self,
        assigner: FoldAssigner,
        *,
        start: int = 0,
        stop: int | None = None,
        n_jobs: int | None = 1,
        progress: Progress = ignored,
    ) -> Iterator[Block]:
        """Yield the rows from `start` to before `stop` as blocks; `progress` gets the number of each block's rows.

        `assigner` is at the first row and advances with them.
        """
        batch_rows = self.table.block_rows(len(self.groups.features), jobs_of(n_jobs))
        expansion = None if self.terms.is_identity else self.terms
        for rows in self.rows(batch_rows, start=start, stop=stop):
            progress(len(rows.Y))
            folds = assigner.take(rows.Y, rows.query) if rows.folds is None else rows.folds
            yield Block(rows.X, rows.Y, rows.weights, folds, expansion)
