"""What the target's values stand for: read first and alone, so that classes are known before the long pass begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anytime.errors import TrainingError, listed
from anytime.types import FamilyName, Float, Index, Label, Task

__all__ = ["FAMILY_TASKS", "Target", "check_family", "class_codes"]


FAMILY_TASKS: dict[FamilyName, Task] = {"binomial": "binary", "multinomial": "multiclass", "poisson": "count"}
"""The task of each family that has one of its own; "gaussian" serves regression and classes alike."""


@dataclass(frozen=True)
class Target:
    """What is predicted: the task, the columns that tell it, and the classes where there are any."""

    task: Task
    columns: tuple[str, ...]
    classes: tuple[Label, ...] | None = None

    @property
    def responses(self) -> tuple[str, ...]:
        """What is fitted: the columns, or an indicator for each class; two classes share that of the second."""
        if self.classes is None:
            return self.columns
        return tuple(map(str, self.classes[1:] if len(self.classes) == 2 else self.classes))

    @property
    def sound(self) -> bool:
        """Whether it has the classes that its task takes: two, more of them, or none."""
        match self.task:
            case "binary":
                return self.classes is not None and len(self.classes) == 2
            case "multiclass":
                return self.classes is not None and len(self.classes) > 2
            case _:
                return self.classes is None


def check_family(family: FamilyName, target: Target) -> None:
    """Refuse a family that does not fit the target.

    Raises
    ------
    TrainingError
        The family is for another task.
    """
    if family == "gaussian" and target.task == "count":
        raise TrainingError("family gaussian is no family of counts; choose poisson, or task regression")
    if family != "gaussian" and FAMILY_TASKS[family] != target.task:
        kind = f"task {target.task}" if target.classes is None else f"{len(target.classes)} classes"
        fitting = [name for name, task in FAMILY_TASKS.items() if task == target.task]
        raise TrainingError(
            f"family {family} does not fit target {listed(target.columns)} ({kind}); "
            f"choose {' or '.join([*fitting, *(['gaussian'] if target.task != 'count' else [])])}"
        )


def class_codes(Y: Float) -> Index:
    """Index of the class that indicators (rows, P) tell; one response stands for the second of two."""
    if Y.shape[1] == 1:
        return (Y[:, 0] > 0.5).astype(np.intp)
    return np.asarray(Y.argmax(axis=1))
