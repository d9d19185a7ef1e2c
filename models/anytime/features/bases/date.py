"""Basis `date`: trend, month, weekday and hour of a date or a timestamp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from anytime.errors import GroupsError
from anytime.features.bases.basis import Basis, Clamp, ColumnSample, Kind
from anytime.features.operations import Hour, Month, Part, Power, Term, Weekday
from anytime.features.readers import DATES, YEAR
from anytime.groups import ColumnBasis

PARTS: dict[str, Part] = {"months": Month(), "weekdays": Weekday(), "hours": Hour()}
"""The parts of a date that recur, by their fields in a groups file."""


@dataclass(frozen=True)
class Date(Basis):
    """The years since `centre`, and an indicator for each month, weekday and hour that enough rows have.

    A part that does not vary has no terms, and one of two values has one term.
    """

    name: ClassVar[str] = "date"
    fits: ClassVar[frozenset[Kind]] = frozenset({"date", "number", "integer"})
    default_for: ClassVar[frozenset[Kind]] = frozenset({"date"})
    parts: ClassVar[frozenset[str]] = frozenset({"centre", *PARTS})
    clamp: ClassVar[Clamp] = 0.0

    centre: float
    values: tuple[tuple[int, ...], ...]

    @classmethod
    def learn(cls, size: float, given: ColumnBasis, sample: ColumnSample) -> Self:  # noqa: ARG003
        DATES.check(sample.values.astype(np.float64))
        centre = given.centre if given.centre is not None else sample.mean() if len(sample.values) else 0.0
        varies = len(np.unique(sample.values)) > 2
        return cls(centre, tuple(cls._values(name, given, sample, varies=varies) for name in PARTS))

    @staticmethod
    def _values(name: str, given: ColumnBasis, sample: ColumnSample, *, varies: bool) -> tuple[int, ...]:
        part = PARTS[name]
        if (stated := (given.model_extra or {}).get(name)) is not None:
            whole = isinstance(stated, tuple) and all(type(v) is int and part.first <= v <= part.last for v in stated)
            if not whole or list(stated) != sorted(set(stated)):
                raise GroupsError(
                    f"its {name} are {stated}; expected different whole numbers from {part.first} to {part.last}, "
                    "ascending"
                )
            return tuple(stated)
        counts = np.bincount(part.part_of(sample.values.astype(np.float64)), sample.weights, part.last + 1)
        if not varies or np.count_nonzero(counts) == 1:
            return ()
        frequent = np.flatnonzero(counts >= sample.min_level_rows[0]).tolist()
        return tuple(frequent[1:] if len(frequent) == np.count_nonzero(counts) == 2 else frequent)

    def described(self) -> ColumnBasis:
        own: dict[str, Any] = dict(zip(PARTS, self.values, strict=True))
        return ColumnBasis(basis=self.name, centre=self.centre, **own)

    @property
    def terms(self) -> list[Term]:
        of_parts = [(part, v) for part, values in zip(PARTS.values(), self.values, strict=True) for v in values]
        return [
            Term(Power(), " in years", self.centre, YEAR),
            *(Term(part, f" {part.named(v)}", v, label=part.named(v)) for part, v in of_parts),
        ]
