"""Moments of folds as named arrays, for files: `0.mean`, `0.scatter` ... of the first fold, and so on.

Moments as files: what a site has learned from its rows, without the rows.

Moments add up, so sites that may not share rows share these: merged, they are the moments of all rows, and the model is
the one that all rows together would have given. They are sums over rows, not rows; yet they are exact. Whoever holds
the moments of n rows and of n - 1 of them holds the row between, and moments of few rows may tell all of them: send
none of fewer rows than features, and let whoever merges them be trusted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anytime._files import Kind, holds, read, write
from anytime.errors import ArtifactError, TableError
from anytime.groups import FeatureGroups
from anytime.moments.moments import Moments
from anytime.target import Target
from anytime.types import Label, Task

__all__ = [
    "FORMAT",
    "MomentsRecord",
    "StoredMoments",
    "are_moments",
    "packed",
    "sound_counts",
    "unpacked",
]


def packed(parts: Sequence[Moments]) -> dict[str, NDArray[Any]]:
    """Arrays of the moments of each fold."""
    return {f"{fold}.{name}": array for fold, part in enumerate(parts) for name, array in _arrays(part).items()}


def unpacked(arrays: Mapping[str, NDArray[Any]], folds: int, features: int, responses: int) -> tuple[Moments, ...]:
    """Moments of each fold.

    Raises
    ------
    ArtifactError
        Arrays are missing or not of the shapes that so many features and responses ask for.
    """
    return tuple(_part(arrays, fold, features, responses) for fold in range(folds))


def sound_counts(part: Moments) -> bool:
    """Whether rows and weight are 0 or more, and the features that have an indicator are some of all, ascending."""
    gaps = part.missing
    ascending = list(gaps) == sorted(set(gaps)) and all(0 <= j < part.features for j in gaps)
    return ascending and part.rows >= 0 and part.weight >= 0


def _arrays(part: Moments) -> dict[str, NDArray[Any]]:
    return {
        "rows": np.array([part.rows], dtype=np.int64),
        "weight": np.array([part.weight]),
        "mean": part.mean,
        "scatter": part.scatter,
        "fill": part.fill,
        "missing": np.array(part.missing, dtype=np.int64),
    }


def _part(arrays: Mapping[str, NDArray[Any]], fold: int, D: int, P: int) -> Moments:
    found = {name: arrays.get(f"{fold}.{name}") for name in ("rows", "weight", "mean", "scatter", "fill", "missing")}
    missing = found["missing"]
    width = D + P + (0 if missing is None else missing.size)
    shapes: dict[str, tuple[Sequence[int], type[np.generic]]] = {
        "rows": ((1,), np.int64),
        "weight": ((1,), np.float64),
        "mean": ((width,), np.float64),
        "scatter": ((width, width), np.float64),
        "fill": ((D,), np.float64),
        "missing": ((width - D - P,), np.int64),
    }
    for name, (shape, kind) in shapes.items():
        array = found[name]
        if array is None or array.shape != tuple(shape) or array.dtype != kind or not np.isfinite(array).all():
            raise ArtifactError(f"has no sound array '{fold}.{name}'")
    given = {name: array for name, array in found.items() if array is not None}
    part = Moments(
        features=D,
        responses=P,
        rows=int(given["rows"][0]),
        weight=float(given["weight"][0]),
        mean=given["mean"],
        scatter=given["scatter"],
        fill=given["fill"],
        missing=tuple(given["missing"].tolist()),
    )
    if not sound_counts(part):
        raise ArtifactError(f"has counts in fold {fold} that cannot be")
    return part


FORMAT = 1
"""Number of the format that this library writes."""

KIND = Kind("anytime.moments.moments", "moments", "anytime moments", "make or copy it again")


class MomentsRecord(BaseModel):
    """What moments are of.

    `data` names the tables, in the order in which they were added; `folds` is the number of parts, each of which holds
    the rows of one fold. `weights` is the column of the row weights, or None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    format: int = FORMAT
    created: str
    library: str
    data: tuple[str, ...] = Field(min_length=1)
    task: Task
    target: tuple[str, ...] = Field(min_length=1)
    classes: tuple[Label, ...] | None = None
    query: str | None = None
    weights: str | None = None
    groups: FeatureGroups
    folds: int = Field(ge=1)


@dataclass(frozen=True, eq=False)
class StoredMoments:
    """Moments of each fold of some rows, with what their columns mean."""

    record: MomentsRecord
    parts: tuple[Moments, ...]

    @property
    def target(self) -> Target:
        """What is predicted."""
        return Target(self.record.task, self.record.target, self.record.classes)

    @cached_property
    def total(self) -> Moments:
        """Moments of all rows."""
        return Moments.merged(self.parts)

    def merge(self, other: StoredMoments) -> StoredMoments:
        """Moments of the rows of both, fold by fold.

        Raises
        ------
        TableError
            The columns of the other mean something else.
        """
        self._check_alike(other)
        parts = tuple(a.merge(b) for a, b in zip(self.parts, other.parts, strict=True))
        data = (*self.record.data, *other.record.data)
        return StoredMoments(self.record.model_copy(update={"data": data}), parts)

    def without(self, other: StoredMoments) -> StoredMoments:
        """Moments of the rows that are not among those of the other.

        Fold by fold, which undoes `merge`, where the tables of the other are among ours. Else its rows may be in any
        fold: what is left is one.

        Raises
        ------
        TableError
            The columns of the other mean something else, or its rows are not all here.
        """
        added = not Counter(other.record.data) - Counter(self.record.data)
        if added and len(self.parts) > 1:
            self._check_alike(other)
            ours, theirs = self.parts, other.parts
        else:
            self._check_alike(other, folds=False)
            ours, theirs = (self.total,), (other.total,)
        parts = tuple(a.without(b) for a, b in zip(ours, theirs, strict=True))
        if not any(part.weight > 0 for part in parts):
            raise TableError(f"nothing is left of {self.total.rows} rows when {other.total.rows} are taken away")
        left = list(self.record.data)
        for name in other.record.data:
            if name in left:
                left.remove(name)
        told = {"data": tuple(left) or self.record.data, "folds": len(parts)}
        return StoredMoments(self.record.model_copy(update=told), parts)

    def decayed(self, factor: float) -> StoredMoments:
        """The same rows, each counting `factor` times as much."""
        return replace(self, parts=tuple(part.decayed(factor) for part in self.parts))

    def save(self, path: str | Path) -> None:
        """Write a file.

        Raises
        ------
        ArtifactError
            It cannot be written.
        """
        write(Path(path), KIND, self.record.model_dump_json(), packed(self.parts))

    @classmethod
    def load(cls, path: str | Path) -> StoredMoments:
        """Read and check a file.

        Raises
        ------
        ArtifactError
            It is not there, holds something else, is of a newer format, or is not whole.
        """
        text, arrays = read(Path(path), KIND)
        try:
            record = _record(text)
            target = Target(record.task, record.target, record.classes)
            parts = unpacked(arrays, record.folds, len(record.groups.features), len(target.responses))
        except ArtifactError as error:
            raise ArtifactError(f"{str(path)!r} {error}; {KIND.remedy}") from None
        return cls(record, parts)

    def _check_alike(self, other: StoredMoments, *, folds: bool = True) -> None:
        """Refuse moments of other columns, or in other folds."""
        ours, theirs = self.record, other.record
        for what, a, b in (
            ("features", ours.groups.features, theirs.groups.features),
            ("target", ours.target, theirs.target),
            ("classes", ours.classes, theirs.classes),
            ("query", ours.query, theirs.query),
            ("weights", ours.weights, theirs.weights),
            ("folds", ours.folds, theirs.folds),
        ):
            if a != b and (folds or what != "folds"):
                raise TableError(
                    f"moments of {theirs.data[0]} do not go with those of {ours.data[0]}: their {what} are "
                    f"{_shown(b)}, expected {_shown(a)}; make them by the same groups file and options"
                )


def are_moments(path: Path) -> bool:
    """Whether a file says that it holds moments."""
    return holds(path, KIND)


def _shown(value: Any) -> str:
    text = repr(list(value)) if isinstance(value, tuple) else repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _record(text: str) -> MomentsRecord:
    try:
        number = json.loads(text)["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError("has a record that is not one of this library") from error
    if type(number) is int and number > FORMAT:
        raise ArtifactError(f"has format {number}; this library reads up to {FORMAT}: install a newer anytime-linear")
    try:
        record = MomentsRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ArtifactError(f"has a damaged record ({where}: {first['msg'].lower()})") from error
    if not Target(record.task, record.target, record.classes).sound:
        raise ArtifactError("has classes that are not those of its task")
    return record
