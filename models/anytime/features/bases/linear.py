"""Basis `linear`: the column itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from anytime.features.bases.basis import NUMERIC, Basis, ColumnSample, Kind
from anytime.features.operations import VALUE, Term
from anytime.groups import ColumnBasis


@dataclass(frozen=True)
class Linear(Basis):
    """One term, the column itself; booleans are 0 and 1."""

    name: ClassVar[str] = "linear"
    fits: ClassVar[frozenset[Kind]] = NUMERIC | {"bool"}
    default_for: ClassVar[frozenset[Kind]] = frozenset({"number", "integer", "bool"})

    @classmethod
    def learn(cls, size: float | None, given: ColumnBasis, sample: ColumnSample) -> Self:  # noqa: ARG003
        return cls()

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=self.name)

    @property
    def terms(self) -> list[Term]:
        return [VALUE]
