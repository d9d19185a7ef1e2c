"""The target: its task, its columns and its classes, settled before training starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from anytime.errors import TrainingError, listed
from anytime.types import ColumnType, FamilyName, Float, Index, Label, Task

FAMILY_TASKS: dict[FamilyName, Task] = {"binomial": "binary", "multinomial": "multiclass", "poisson": "count"}
"""The task of each family that has its own; "gaussian" serves both regression and classes."""


@dataclass(frozen=True)
class Target:
    """The task, the target columns and the classes, if any."""

    task: Task
    columns: tuple[str, ...]
    classes: tuple[Label, ...] | None = None

    @classmethod
    def of_classes(cls, columns: tuple[str, ...], classes: Iterable[Label]) -> Target:
        """Return the target of some classes; one class alone is that of moments which others will join."""
        found = tuple(classes)
        return cls("binary" if len(found) == 2 else "multiclass", columns, found)

    @property
    def responses(self) -> tuple[str, ...]:
        """Return the names of the fitted responses: the columns, or the classes; of two classes, the second."""
        if self.classes is None:
            return self.columns
        return tuple(map(str, self.classes[1:] if len(self.classes) == 2 else self.classes))

    @property
    def type(self) -> ColumnType:
        """Return the type of the target columns: that of the classes, if there are some."""
        if self.classes is None or isinstance(self.classes[0], float):
            return "number"
        if isinstance(self.classes[0], str):
            return "text"
        return "bool" if isinstance(self.classes[0], bool) else "integer"

    @property
    def is_consistent(self) -> bool:
        """Return whether the number of classes fits the task: 2 (binary), more than 2 (multiclass) or None (others)."""
        match self.task:
            case "binary":
                return self.classes is not None and len(self.classes) == 2
            case "multiclass":
                return self.classes is not None and len(self.classes) > 2
            case _:
                return self.classes is None


def check_family(family: FamilyName, target: Target) -> None:
    if family == "gaussian" and target.task == "count":
        raise TrainingError("family gaussian does not fit task count; choose family poisson, or task regression")
    if family != "gaussian" and FAMILY_TASKS[family] != target.task:
        kind = f"task {target.task}" if target.classes is None else f"{len(target.classes)} classes"
        fitting = [name for name, task in FAMILY_TASKS.items() if task == target.task]
        raise TrainingError(
            f"family {family} does not fit target {listed(target.columns)} ({kind}); "
            f"choose {' or '.join([*fitting, *(['gaussian'] if target.task != 'count' else [])])}"
        )


def class_shares(means: Float) -> Float:
    """Return the share of each class (classes,), given the means (P,) of the responses."""
    return np.array([1 - means[0], means[0]]) if len(means) == 1 else means


def class_codes(Y: Float) -> Index:
    """Return the class index (rows,) that indicators Y (rows, P) encode; a single response marks the second of two."""
    if Y.shape[1] == 1:
        return (Y[:, 0] > 0.5).astype(np.intp)
    return np.asarray(Y.argmax(axis=1))
