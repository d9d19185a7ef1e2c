"""Survey of the target columns of a table, and the target derived from it."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anytime.data.formats import Batch, Table
from anytime.errors import TableError, suggestion
from anytime.target import FAMILY_TASKS, Target, check_family
from anytime.types import Bool, FamilyName, Label, Task

__all__ = ["Survey", "absent", "settle_target", "survey_target", "without_target"]


MAX_CLASSES = 1000
"""Maximum number of different values of a class target."""


@dataclass(frozen=True)
class Survey:
    """Result of a pass over the target columns of a table.

    Attributes
    ----------
    table : its name.  columns : the target columns.
    rows : number of rows of the table, including those without a target.  missing : number of rows without a target.
    kinds : dtype kind of each column, as numpy abbreviates it.
    values : the different values of each column, at most one more than the maximum number of classes.
    """

    table: str
    columns: tuple[str, ...]
    rows: int
    missing: int
    kinds: tuple[str, ...]
    values: tuple[frozenset[Any], ...]


def survey_target(table: Table, columns: Many[str], *, drop_missing: bool = False) -> Survey:
    """Read the target columns.

    Raises
    ------
    TableError
        A column does not exist or is named twice, a value is infinite, or rows have no target (with `drop_missing`: all
        rows).
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
        gaps = without_target(batch, columns)
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


def without_target(batch: Batch, columns: Many[str]) -> Bool:
    """Return the rows of a batch in which a target is missing, (rows,)."""
    gaps = np.zeros(batch.rows, dtype=np.bool_)
    for name in columns:
        gaps |= absent(batch.columns[name])
    return gaps


def absent(column: NDArray[Any]) -> Bool:
    """Return where a column of text is None, or a column of floats NaN."""
    if column.dtype.kind == "O":
        return np.array([value is None for value in column])
    return np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), dtype=np.bool_)


def settle_target(survey: Survey, task: Task | Literal["auto"] = "auto", family: FamilyName | None = None) -> Target:
    """Return the target: the task and the classes.

    "auto" chooses the task of the family, if one is given. Otherwise two values are binary, text is multiclass, and all
    other targets are regression. Floats count as two values only where they are whole numbers with gaps.

    Raises
    ------
    TableError
        The target has one value only, or does not fit the task.
    """
    if task == "auto" and family in FAMILY_TASKS:
        task = FAMILY_TASKS[family]
    for name, kind, values in zip(survey.columns, survey.kinds, survey.values, strict=True):
        if len(values) < 2:
            (only,) = values
            raise TableError(f"{survey.table}: target {name!r} is {only!r} in every row; expected at least 2 values")
        if kind == "O" and (task in ("regression", "count") or len(survey.columns) > 1):
            raise TableError(f"{survey.table}: target {name!r} is text; expected numbers")
    target = _settled(survey, task)
    if family is not None:
        check_family(family, target)
    return target


def _settled(survey: Survey, task: Task | Literal["auto"]) -> Target:
    if len(survey.columns) > 1:
        if task not in ("auto", "regression"):
            raise TableError(f"{len(survey.columns)} targets make a regression; give one target for task {task}")
        return Target("regression", survey.columns)
    if task == "auto":
        task = _guessed(survey)
    if task == "count":
        return _counts(survey)
    return Target("regression", survey.columns) if task == "regression" else _classes(survey, task)


def _counts(survey: Survey) -> Target:
    least = min(survey.values[0])
    if least < 0:
        raise TableError(f"{survey.table}: target {survey.columns[0]!r} holds {least}; expected counts, 0 or more")
    return Target("count", survey.columns)


def _guessed(survey: Survey) -> Task:
    kind, values = survey.kinds[0], survey.values[0]
    # Whole numbers with gaps are read as floats, because only floats can have gaps.
    whole = kind != "f" or (survey.missing > 0 and all(value.is_integer() for value in values))
    if whole and len(values) == 2:
        return "binary"
    return "multiclass" if kind == "O" else "regression"


def _classes(survey: Survey, task: Task) -> Target:
    name, values = survey.columns[0], survey.values[0]
    if len(values) > MAX_CLASSES:
        raise TableError(f"{survey.table}: target {name!r} has over {MAX_CLASSES} values; choose --task regression")
    if task == "binary" and len(values) != 2:
        raise TableError(f"{survey.table}: target {name!r} has {len(values)} values; expected 2 for task binary")
    classes: list[Label] = sorted(int(v) if isinstance(v, float) and v.is_integer() else v for v in values)
    return Target("binary" if len(classes) == 2 else "multiclass", survey.columns, tuple(classes))
