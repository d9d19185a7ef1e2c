"""Columns of a batch as numbers: features, responses and weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from anytime.data.formats import Batch, ReadAs, Table
from anytime.errors import GroupsError, TableError
from anytime.features.learning import present
from anytime.features.readers import Reader
from anytime.groups import FeatureGroups, is_pattern
from anytime.target import Target
from anytime.types import Bool, Float

MIN_WEIGHT, MAX_WEIGHT = 1e-100, 1e100
"""Range of the weights above 0: their products with squares of numbers keep all digits."""
WEIGHTS = f"0, or {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"


def feature_matrix(batch: Batch, features: Sequence[str], categories: Mapping[int, Reader] | None = None) -> Any:
    """Return columns of a batch as a matrix (rows, features), NaN where missing; that of a sparse table is sparse.

    Columns of categories, by their index, contain the indices of levels.
    """
    if not categories:
        return batch.matrix(features)
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
    if len(groups.features) == count and not any(map(is_pattern, groups.features)):
        return list(groups.features)
    raise GroupsError(
        f"X has {count} columns without names and the groups have {len(groups.features)} features; "
        "expected one column per feature, in the order of the groups, or features named x0, x1, ...; after a "
        'transformer, set_output(transform="pandas") keeps names'
    )


class ColumnError(TableError):
    """Invalid values of one column; `column` is its name."""

    column = ""

    @classmethod
    def of(cls, column: str, message: str) -> Self:
        error = cls(message)
        error.column = column
        return error


def check_finite(batch: Batch, name: str, kind: ReadAs = "number") -> None:
    """Raise TableError, with the first row, if a column of numbers or dates contains infinities."""
    for error in _infinite([batch], {name: kind}):
        raise error


def infinite_columns(table: Table, names: Sequence[str], types: Mapping[str, ReadAs]) -> list[ColumnError]:
    """Return an error for each column of a table with infinite values, with their number and the first row."""
    batches = table.batches(names, types=types) if names else ()
    found = _infinite(batches, {name: types.get(name, "number") for name in names})
    return [ColumnError.of(error.column, f"{table.name}: {error}") for error in found]


def _infinite(batches: Iterable[Batch], kinds: Mapping[str, ReadAs]) -> list[ColumnError]:
    found: dict[str, tuple[int, int]] = {}
    for batch in batches:
        for name in kinds:
            values = batch.column(name)
            if values.dtype.kind == "f" and (infinite := np.isinf(values)).any():
                count, first = found.get(name, (0, batch.start + int(infinite.argmax())))
                found[name] = count + int(infinite.sum()), first
    errors = []
    for name, (count, first) in found.items():
        what, valid = f"infinite value{'s' * (count > 1)}", "finite numbers"
        if kinds[name] == "date":
            what, valid = f"date{'s' * (count > 1)} beyond the years 1 to 9999", "dates of these years"
        where = f"the first in row {first} (counted from 0)"
        message = f"column {name!r} holds {count} {what}, {where}; expected {valid}, or no value where one is missing"
        errors.append(ColumnError.of(name, message))
    return errors


def without_target(batch: Batch, columns: Sequence[str]) -> Bool:
    """Return which rows miss a target, (rows,)."""
    gaps = np.zeros(batch.rows, dtype=np.bool_)
    for name in columns:
        gaps |= ~present(batch.column(name))
    return gaps


def weights_of(batch: Batch, name: str) -> Float:
    """Return the weights (rows,); raise TableError for one that is missing, negative, tiny or huge."""
    check_finite(batch, name)
    weights = np.asarray(batch.column(name), dtype=np.float64)
    valid = valid_weights(weights)
    if not valid.all():
        at = int(valid.argmin())
        what = f"{weights[at]:g}" if abs(weights[at]) > 0 else "missing"
        raise TableError(f"weight in row {batch.start + at} is {what}; expected {WEIGHTS}")
    return weights


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
    indicated = classes[1:] if len(classes) == 2 else classes
    Y = np.column_stack([labels == label for label in indicated]).astype(np.float64)
    known = Y.any(axis=1) | (labels == classes[0])
    if not known.all():
        raise TableError(
            f"target {labels[~known].tolist()[0]!r} was never seen in training; known: "
            f"{', '.join(map(repr, classes[:10]))}"
        )
    return Y
