"""The target: its task, its columns and its classes, settled before training starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anytime.errors import TrainingError, clipped, listed
from anytime.families import Family, default_family, family_names, family_of
from anytime.types import ColumnType, FamilyName, Float, Index, Label, Task

_TYPES: dict[type, ColumnType] = {bool: "bool", int: "integer", float: "number", str: "text"}


@dataclass(frozen=True)
class Target:
    """The task, the target columns, the classes, if any, and the family, by default that of the task."""

    task: Task
    columns: tuple[str, ...]
    classes: tuple[Label, ...] | None = None
    family_name: FamilyName | None = None

    @classmethod
    def of_classes(cls, columns: tuple[str, ...], classes: Iterable[Label], family: FamilyName | None = None) -> Target:
        """Return the target of some classes; one class alone is that of moments which others will join."""
        found = tuple(classes)
        return cls("binary" if len(found) == 2 else "multiclass", columns, found, family)

    @property
    def family(self) -> Family:
        """Return the family, which states what the responses are."""
        return family_of(self.family_name or default_family(self.task))

    @property
    def responses(self) -> tuple[str, ...]:
        """Return the names of the fitted responses: the columns, or the classes; of two classes, the second."""
        if self.classes is None:
            return self.columns
        return tuple(map(str, self.classes[1:] if len(self.classes) == 2 else self.classes))

    @property
    def type(self) -> ColumnType:
        """Return the type of the target columns: that of the classes, if there are some."""
        return "number" if self.classes is None else _TYPES[type(self.classes[0])]

    @property
    def is_consistent(self) -> bool:
        """Return whether the number of classes fits the task: 2 (binary), more than 2 (multiclass) or None (others)."""
        if self.classes is None:
            return self.task not in ("binary", "multiclass")
        return self.task == ("binary" if len(self.classes) == 2 else "multiclass") and len(self.classes) > 1


def check_family(family: FamilyName, target: Target) -> None:
    """Raise TrainingError if a family does not fit the task or the columns of a target."""
    fitted, task, columns = family_of(family), target.task, target.columns
    if task not in fitted.tasks:
        names = family_names(task)
        if target.classes is not None:
            what = f"target {listed(columns)} ({len(target.classes)} classes)"
        else:
            what = f"target {listed(columns)} (task {task})"
            names += [f"task {each}" for each in fitted.tasks if each in ("regression", "count")]
        raise TrainingError(f"family {family} does not fit {what}; choose {' or '.join(names)}")
    if fitted.one_column and len(columns) > 1:
        raise TrainingError(f"family {family} fits one target, and {len(columns)} are given; name one")


def labels(values: Any) -> NDArray[Any]:
    """Return classes as an array: booleans and whole numbers of their own type, also those of nullable columns.

    Text, and objects of several types, such as text among numbers, stay objects.
    """
    found = np.asarray(values)
    kinds = {type(value.item() if isinstance(value, np.generic) else value) for value in found.flat}
    return np.array(found.tolist()) if found.dtype.kind == "O" and kinds in ({bool}, {int}) else found


def word_in_target(name: str, cell: str, row: int) -> str:
    """Return the message for a word in a target of numbers."""
    return (
        f"target {name!r} holds numbers, and text, as {clipped(cell, 40)!r} in row {row} (counted from 0); expected "
        f"numbers: fix it, leave it empty if the row has no target, or state --text {name} if they are classes"
    )


def class_shares(means: Float) -> Float:
    """Return the share of each class (classes,), given the means (P,) of the responses."""
    return np.array([1 - means[0], means[0]]) if len(means) == 1 else means


def class_codes(Y: Float) -> Index:
    """Return the class index (rows,) that indicators Y (rows, P) encode; a single response marks the second of two."""
    return (Y[:, 0] > 0.5).astype(np.intp) if Y.shape[1] == 1 else np.asarray(Y.argmax(axis=1))
