"""Basis `cyclic:P`: sine and cosine of a value that recurs with a period, such as an hour, a weekday or an angle."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from anytime.errors import GroupsError
from anytime.features.bases.basis import NUMERIC, Basis, Clamp, ColumnSample, Kind
from anytime.features.operations import Cosine, Sine, Term
from anytime.groups import ColumnBasis


@dataclass(frozen=True)
class Cyclic(Basis):
    """Terms sin(2 pi x / P) and cos(2 pi x / P): values that differ by the period P are the same."""

    name: ClassVar[str] = "cyclic"
    fits: ClassVar[frozenset[Kind]] = NUMERIC
    example: ClassVar[str] = "cyclic:24"
    default: ClassVar[float | None] = None
    clamp: ClassVar[Clamp] = None

    period: float

    @classmethod
    def sized(cls, text: str) -> float:
        try:
            period = float(text)
        except ValueError:
            period = math.nan
        if not (1e-100 <= period <= 1e100):
            raise GroupsError(f"{cls.name}:P with the period P, a number above 0, such as {cls.example}")
        return period

    @classmethod
    def learn(cls, size: float, given: ColumnBasis, sample: ColumnSample) -> Self:  # noqa: ARG003
        return cls(size)

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=f"{self.name}:{repr(self.period).removesuffix('.0')}")

    @property
    def terms(self) -> list[Term]:
        return [Term(Sine(), " sine", b=self.period), Term(Cosine(), " cosine", b=self.period)]
