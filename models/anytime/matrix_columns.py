"""Which columns of an array or a DataFrame are the features of the groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from anytime.arrays import Index
from anytime.errors import GroupsError, TableError, listed, unusable
from anytime.groups import FeatureGroups, singletons

__all__ = ["GivenGroups", "check_no_times", "ordered_columns", "picked_columns", "settled_columns"]

TIMES = "mM"
"""Kinds of numpy's durations and dates."""

GivenGroups: TypeAlias = str | Path | dict[str, Any] | FeatureGroups | None
"""Groups as an estimator takes them: the path of a file, its content, or None for each column at cost 1."""


def picked_columns(X: Any, groups: FeatureGroups | None) -> Any:
    """Return the columns of a DataFrame that the groups name; anything else as it is.

    Raises
    ------
    GroupsError
        A feature of the groups is no column.
    TableError
        A column of a DataFrame, or an array, has no numbers: it has dates, or text that is no number.
    """
    if not hasattr(X, "columns"):
        check_no_times("X", X)
        return X
    if groups is None:
        _check_numbers(X)
        return X
    lost = [f for f in groups.features if f not in X.columns]
    if lost:
        raise GroupsError(f"the table has no column {listed(lost)}, which the groups name; expected every feature")
    picked = X[list(groups.features)]
    _check_numbers(picked)
    return picked


def check_no_times(name: str, values: Any) -> None:
    """Refuse an array or a Series of dates, times or durations."""
    dtype = getattr(values, "dtype", None)
    if getattr(dtype, "kind", "f") in TIMES:
        raise TableError(f"{name} is {dtype}; expected numbers: convert dates to days since a fixed date, for example")


def _check_numbers(X: Any) -> None:
    """Refuse a DataFrame with a column that has no numbers; scikit-learn would not name the column."""
    kinds = [getattr(dtype, "kind", "O") for dtype in X.dtypes]
    for name in (name for name, kind in zip(X.columns, kinds, strict=True) if kind not in "biuf"):
        values = np.asarray(X[name])
        if values.dtype.kind in TIMES:
            raise TableError(f"X: {unusable(repr(name), values.dtype, numeric=True)}")
        for row, value in enumerate(values.tolist() if values.dtype.kind in "OUS" else ()):
            try:
                np.float64(value)
            except (TypeError, ValueError):
                how = "convert it" + " (a date to days since a fixed date, for example)" * (not isinstance(value, str))
                raise TableError(
                    f"X: column {name!r} has {value!r} in row {row} (counted from 0); expected numbers: {how}, "
                    "or leave the column out"
                ) from None


def settled_columns(names: list[str], groups: FeatureGroups | None) -> tuple[FeatureGroups, Index]:
    """The groups, and the place of each of their features among columns of these names.

    Raises
    ------
    GroupsError
        The features are not among the names, nor as many.
    """
    settled = singletons(names) if groups is None else groups
    place = {name: j for j, name in enumerate(names)}
    if all(feature in place for feature in settled.features):
        return settled, np.array([place[feature] for feature in settled.features], dtype=np.intp)
    if len(settled.features) == len(names):  # an array without names: columns in the order of the groups
        return settled, np.arange(len(names))
    raise GroupsError(
        f"X has {len(names)} columns without names and the groups have {len(settled.features)} features; "
        "expected as many, in the order of the groups, or features called x0, x1, ..."
    )


def ordered_columns(X: Any, columns: Index) -> Any:
    """Columns in the order of the groups; X itself where they are."""
    in_place = len(columns) == X.shape[1] and (np.diff(columns) == 1).all() and columns[0] == 0
    return X if in_place else X[:, columns]
