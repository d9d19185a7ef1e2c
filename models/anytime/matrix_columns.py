"""Which columns of an array or a DataFrame are the features of the groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from anytime.arrays import Index
from anytime.errors import GroupsError, listed
from anytime.groups import FeatureGroups, singletons

__all__ = ["GivenGroups", "ordered_columns", "picked_columns", "settled_columns"]

GivenGroups: TypeAlias = str | Path | dict[str, Any] | FeatureGroups | None
"""Groups as an estimator takes them: the path of a file, its content, or None for each column at cost 1."""


def picked_columns(X: Any, groups: FeatureGroups | None) -> Any:
    """Columns of a DataFrame picked by the names in the groups; anything else as it is.

    Raises
    ------
    GroupsError
        A feature of the groups is no column.
    """
    if groups is None or not hasattr(X, "columns"):
        return X
    lost = [f for f in groups.features if f not in X.columns]
    if lost:
        raise GroupsError(f"the table has no column {listed(lost)}, which the groups name; expected every feature")
    return X[list(groups.features)]


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
