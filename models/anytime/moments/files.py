"""Moments files: what a site has learned from its rows, without the rows.

Moments are additive, so sites that may not share rows share moments files instead. The merged moments are those of all
rows, and the model is the one that all rows together would give. Moments are sums over rows, but exact ones: anyone
with the moments of n rows and of n - 1 of them can compute the remaining row, and moments of few rows may reveal all of
them. Do not send moments of fewer rows than features, and send them only to a trusted party.

A file stores the moments of each fold as named arrays: `0.mean`, `0.scatter` ... of the first fold, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from anytime._files import Arrays, FileKind, check_arrays, read, write
from anytime.errors import ArtifactError, TableError, clipped
from anytime.features.bases import UNSTATED
from anytime.features.expansion import Expansion
from anytime.groups import ColumnBasis, FeatureGroups
from anytime.moments.moments import Moments
from anytime.target import Target
from anytime.types import Label, Task

FORMAT = 1
"""Format number that this library writes."""

KIND = FileKind("anytime.moments", "moments", "anytime moments", "make or copy it again")


class MomentsRecord(BaseModel):
    """Description of moments: their tables, columns and folds.

    `data` names the tables, in the order in which they were added. `folds` is the number of parts, each with the rows
    of one fold. `weights` is the column of the row weights, or None.
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
    """Moments of each fold of some rows, with the description of their columns."""

    record: MomentsRecord
    parts: tuple[Moments, ...]

    @property
    def target(self) -> Target:
        return Target(self.record.task, self.record.target, self.record.classes)

    @cached_property
    def total(self) -> Moments:
        return Moments.merged(self.parts)

    def merge(self, other: StoredMoments) -> StoredMoments:
        """Return the moments of the rows of both, fold by fold; raise TableError if their columns differ.

        Each may lack classes of the other.
        """
        ours, theirs = self.record.classes, other.record.classes
        text = {isinstance(each, str) for each in (*(ours or ()), *(theirs or ()))}
        if ours is not None and theirs is not None and ours != theirs and len(text) == 1:  # all text, or all numbers
            classes = sorted({*ours, *theirs})
            return self.with_classes(classes).merge(other.with_classes(classes))
        self._check_alike(other)
        parts = tuple(a.merge(b) for a, b in zip(self.parts, other.parts, strict=True))
        update = {"data": (*self.record.data, *other.record.data)}
        return StoredMoments(self.record.model_copy(update=update), parts)

    def with_classes(self, classes: Sequence[Label]) -> StoredMoments:
        """Return the moments for classes that include those of the rows, in this order."""
        ours = self.record.classes
        assert ours is not None  # noqa: S101
        # The indicators of all classes are linear in the responses: of two classes, only the second is stored.
        size, own = len(classes), np.eye(len(ours))
        weights, shift = (own, np.zeros(len(ours))) if len(ours) != 2 else (np.array([[-1.0], [1.0]]), own[0])
        place = [list(classes).index(each) for each in ours]
        A, b = np.zeros((size, weights.shape[1])), np.zeros(size)
        A[place], b[place] = weights, shift
        if size == 2:
            A, b = A[1:], b[1:]
        target = Target.of_classes(self.record.target, classes)
        record = self.record.model_copy(update={"task": target.task, "classes": target.classes})
        return StoredMoments(record, tuple(part.with_responses(A, b) for part in self.parts))

    def without(self, other: StoredMoments) -> StoredMoments:
        """Return the moments of the rows that are not among those of `other`.

        If the tables of `other` are among ours, this undoes `merge`, fold by fold. Otherwise its rows may be in any
        fold, and the result has one fold. Raise TableError if the columns differ, or its rows are not all among ours.
        """
        if self.record.classes is not None and set(other.record.classes or ()) < set(self.record.classes):
            other = other.with_classes(self.record.classes)
        if len(self.parts) > 1 and Counter(other.record.data) <= Counter(self.record.data):
            self._check_alike(other)
            ours, theirs = self.parts, other.parts
        else:
            self._check_alike(other, folds=False)
            ours, theirs = (self.total,), (other.total,)
        parts = tuple(a.without(b) for a, b in zip(ours, theirs, strict=True))
        if not any(part.weight > 0 for part in parts):
            raise TableError(f"no rows remain of {self.total.rows} after removing {other.total.rows}")
        data = list(self.record.data)
        for name in other.record.data:
            if name in data:
                data.remove(name)
        update = {"data": tuple(data) or self.record.data, "folds": len(parts)}
        return StoredMoments(self.record.model_copy(update=update), parts)

    def decayed(self, factor: float) -> StoredMoments:
        return replace(self, parts=tuple(part.decayed(factor) for part in self.parts))

    def save(self, path: str | Path) -> None:
        arrays = {name: array for k, part in enumerate(self.parts) for name, array in part.packed(f"{k}.").items()}
        write(Path(path), KIND, self.record.model_dump_json(), arrays)

    @classmethod
    def load(cls, path: str | Path) -> StoredMoments:
        """Read and check a file; raise ArtifactError if it is missing, invalid, or of another kind or newer format."""
        record, arrays = read(Path(path), KIND, MomentsRecord)
        try:
            return cls(record, tuple(_parts(record, arrays)))
        except ArtifactError as error:
            raise ArtifactError(f"{str(path)!r} {error}") from None

    def _check_alike(self, other: StoredMoments, *, folds: bool = True) -> None:
        ours, theirs = self.record, other.record
        names = ("target", "classes", "query", "weights", *(["folds"] if folds else []))
        pairs: dict[str, tuple[Any, Any]] = {"features": (ours.groups.features, theirs.groups.features)}
        pairs["pairs"] = ours.groups.pairs, theirs.groups.pairs
        pairs |= {name: (getattr(ours, name), getattr(theirs, name)) for name in names}
        found = [(f"their {what} are", *pair, "the same groups file and options") for what, pair in pairs.items()]
        for name in ours.groups.features:
            one, two = (_basis(record.groups.bases.get(name)) for record in (ours, theirs))
            found += [
                (
                    f"{part} of column {name!r} is",
                    one.get(part),
                    two.get(part),
                    "a groups file that 'anytime basis' wrote",
                )
                for part in sorted({*one, *two})
            ]
        for what, a, b, how in found:
            if a != b:
                raise TableError(
                    f"moments of {theirs.data[0]} do not match those of {ours.data[0]}: {what} {_shown(b)}, expected "
                    f"{_shown(a)}; make both with {how}"
                )


def _basis(given: ColumnBasis | None) -> dict[str, Any]:
    """Return what determines the terms of a column, as in a groups file."""
    return (given or ColumnBasis(basis=UNSTATED)).model_dump(exclude_none=True, exclude={"quantiles"})


def _parts(record: MomentsRecord, arrays: Arrays) -> Iterator[Moments]:
    """Yield the moments of each fold; raise ArtifactError if something does not fit the record."""
    target = Target(record.task, record.target, record.classes)
    alone = record.task == "multiclass" and record.classes is not None and len(record.classes) == 1
    if not (alone or target.is_consistent):
        raise ArtifactError(f"has classes that do not fit its task; {KIND.remedy}")
    sizes = Expansion.of(record.groups).plain.size, len(target.responses)
    for fold in range(record.folds):
        check_arrays(arrays, Moments.packed_shapes(arrays, f"{fold}.", *sizes), KIND)
        part = Moments.unpacked(arrays, f"{fold}.", *sizes)
        if part is None:
            raise ArtifactError(f"has invalid counts in fold {fold}; {KIND.remedy}")
        yield part


def _shown(value: Any) -> str:
    return clipped(repr(list(value)) if isinstance(value, tuple) else repr(value), 200)
