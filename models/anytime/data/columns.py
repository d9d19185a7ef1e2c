"""Feature columns as matrices: conversion of a batch, and selection of columns from an array or a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anytime.data.formats.table import Batch, Text
from anytime.errors import GroupsError, TableError, listed, suggestion, unusable
from anytime.features.bases import Categories
from anytime.features.expansion import Expansion
from anytime.features.learning import are_mostly, converts, observed
from anytime.groups import FeatureGroups, singletons
from anytime.types import Bool, Float, Index

TIMES = "mM"
"""Dtype kinds of numpy's durations and dates."""

GivenGroups: TypeAlias = str | Path | dict[str, Any] | FeatureGroups | None
"""Groups as an estimator accepts them: the path of a file, its content, or None for each column at cost 1."""


def feature_matrix(batch: Batch, features: Sequence[str], categories: Mapping[int, Categories] | None = None) -> Float:
    """Return columns of a batch as a matrix (rows, features), C-contiguous and writable; see `numbers`.

    Columns of categories, by their index, contain the indices of levels.
    """
    X = np.empty((batch.rows, len(features)))
    for j, name in enumerate(features):
        basis = None if categories is None else categories.get(j)
        X[:, j] = numbers(batch, name) if basis is None else codes(name, batch.columns[name], basis)
    return X


def codes(name: str, values: NDArray[Any], basis: Categories) -> Float:
    """Return the indices of levels (rows,); raise TableError if the column is not of the type of the levels."""
    wrong = next((value for value in set(observed(values).tolist()) if not basis.accepts(value)), None)
    if wrong is not None:
        raise TableError(f"column {name!r} holds {wrong!r}; expected {basis.holds} in every row, as in training")
    return basis.coded(values.tolist())


def numbers(batch: Batch, name: str) -> Float:
    """Return one column as (rows,) float64, NaN where missing; raise TableError if it contains text or infinities."""
    if name not in batch.columns:
        raise TableError(f"column {name!r} was not read; {suggestion(name, tuple(batch.columns))}")
    column = batch.columns[name]
    if column.dtype == object:
        text = batch.culprits.get(name) or _first_text(batch, name)
        if text is not None:
            shown = text.value if len(text.value) <= 40 else text.value[:37] + "..."
            raise TableError(
                f"column {name!r} holds text, as {shown!r} in row {text.row} (counted from 0); "
                "expected numbers: fix it, leave the column out, or give it the basis 'categories' in the groups file"
            )
        return np.full(batch.rows, np.nan)
    values: Float = column.astype(np.float64, copy=False)
    infinite = np.isinf(values)
    if infinite.any():
        count, first = int(infinite.sum()), batch.start + int(infinite.argmax())
        raise TableError(
            f"column {name!r} holds {count} infinite {'value' if count == 1 else 'values'}, the first in row {first} "
            "(counted from 0); expected finite numbers, or no value where one is missing"
        )
    return values


def _first_text(batch: Batch, name: str) -> Text | None:
    """Return the first cell that is not a number, or the first of all if each is."""
    cells = [Text(row, str(value)) for row, value in enumerate(batch.columns[name], batch.start) if value is not None]
    return next((cell for cell in cells if not converts(float, cell.value)), cells[0] if cells else None)


def picked_columns(X: Any, groups: FeatureGroups | None) -> Any:
    """Return the columns of a DataFrame that the groups name; return anything else unchanged.

    Raises GroupsError if the groups name no column, TableError for dates, and for text that is not a number.
    """
    if not hasattr(X, "columns"):
        check_no_times("X", X)
        return X
    if groups is None:
        return X
    missing = [f for f in groups.features if f not in X.columns]
    if missing:
        raise GroupsError(f"the table has no column {listed(missing)}, which the groups name; expected every feature")
    return X[list(groups.features)]


def has_floats_only(X: Any) -> bool:
    """Return whether all columns of a DataFrame are floats of one type, which one array may store."""
    dtypes = set(X.dtypes)
    return len(dtypes) == 1 and all(_is_numeric(dtype) and dtype.kind == "f" for dtype in dtypes)


def is_frame(X: Any) -> bool:
    return hasattr(X, "columns") and all(isinstance(name, str) for name in X.columns)


def frame_columns(X: Any, groups: FeatureGroups | None) -> tuple[dict[str, NDArray[Any]], frozenset[str]]:
    """Return the columns of a DataFrame as `Batch` stores them, and the names of the categorical ones.

    Text that is a number in every row is numbers, unless the groups state the basis of the column. Raise TableError for
    a column of dates, or with text among numbers.
    """
    columns, factors = {}, set()
    for name, dtype in zip(X.columns, X.dtypes, strict=True):
        if _is_numeric(dtype):
            columns[name] = np.asarray(X[name])
            continue
        values = np.asarray(X[name])
        if values.dtype.kind in TIMES:
            raise TableError(f"X: {unusable(repr(name), values.dtype, numeric=False)}")
        absent = np.asarray(X[name].isna())
        text = values.astype(object)
        text[absent] = None
        is_text = all(value is None or isinstance(value, str) for value in text) and not absent.all()
        stated = groups is not None and name in groups.bases
        if hasattr(dtype, "categories"):
            factors.add(name)
            columns[name] = text
        elif is_text and (stated or not are_mostly(float, text)):
            columns[name] = text
        else:
            columns[name] = _as_numbers(name, values, absent)
    return columns, frozenset(factors)


def _as_numbers(name: str, values: NDArray[Any], absent: Bool) -> Float:
    numbers = np.full(len(values), np.nan)
    try:
        numbers[~absent] = values[~absent]
    except (TypeError, ValueError):
        row = next(row for row in np.flatnonzero(~absent).tolist() if not converts(float, values[row]))
        how = "convert it" + " (a date to days since a fixed date)" * (not isinstance(values[row], str))
        raise TableError(
            f"X: column {name!r} has {values[row]!r} in row {row} (counted from 0); expected numbers, or text in every "
            f"row: {how}, or leave the column out"
        ) from None
    return numbers


def coded_frame(X: Any, groups: FeatureGroups) -> Any:
    """Return a DataFrame of numbers: columns of categories become the indices of their levels."""
    categories = {groups.features[j]: basis for j, basis in Expansion.of(groups).categories.items()}
    if not categories and all(map(_is_numeric, X.dtypes)):
        return X
    columns, _ = frame_columns(X, groups)
    coded = {name: codes(name, columns[name], basis) for name, basis in categories.items()}
    for name, dtype in zip(X.columns, X.dtypes, strict=True):
        if not _is_numeric(dtype) and name in groups.features and name not in categories:
            coded[name] = _as_numbers(name, columns[name], np.asarray(X[name].isna()))
    return X.assign(**coded) if coded else X


def coded_array(X: Any, expansion: Expansion) -> Any:
    """Return rows (n, columns) of the columns of groups: those of categories become the indices of their levels."""
    if not expansion.categories:
        return X
    if not isinstance(X, np.ndarray):
        name = expansion.columns[min(expansion.categories)].name
        raise TableError(f"X is sparse and column {name!r} has basis 'categories'; expected an array or a DataFrame")
    coded = X.astype(np.float64)
    for j, basis in expansion.categories.items():
        coded[:, j] = codes(expansion.columns[j].name, X[:, j], basis)
    return coded


def _is_numeric(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def check_no_times(name: str, values: Any) -> None:
    dtype = getattr(values, "dtype", None)
    if getattr(dtype, "kind", "f") in TIMES:
        raise TableError(f"{name} is {dtype}; expected numbers: convert dates to days since a fixed date, for example")


def settled_columns(names: list[str], groups: FeatureGroups | None) -> tuple[FeatureGroups, Index]:
    """Return the groups, and the index of each of their features among columns with these names.

    Raises GroupsError if the features are not among the names, and their number differs.
    """
    settled = singletons(names) if groups is None else groups
    place = {name: j for j, name in enumerate(names)}
    if all(feature in place for feature in settled.features):
        return settled, np.array([place[feature] for feature in settled.features], dtype=np.intp)
    if len(settled.features) == len(names):  # an array without names: columns in the order of the groups
        return settled, np.arange(len(names))
    raise GroupsError(
        f"X has {len(names)} columns without names and the groups have {len(settled.features)} features; "
        "expected one column per feature, in the order of the groups, or features named x0, x1, ..."
    )


def ordered_columns(X: Any, columns: Index) -> Any:
    """Return the columns in the order of the groups; X itself if they already are."""
    in_place = len(columns) == X.shape[1] and (np.diff(columns) == 1).all() and columns[0] == 0
    return X if in_place else X[:, columns]
