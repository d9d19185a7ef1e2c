"""Basis `linear`: the column itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from anytime.features.bases.basis import NUMERIC, VALUE, Basis, ColumnSample, Form, Kind
from anytime.groups import ColumnBasis
from anytime.types import Float


@dataclass(frozen=True)
class Linear(Basis):
    """One term, the column itself; booleans are 0 and 1."""

    name: ClassVar[str] = "linear"
    fits: ClassVar[frozenset[Kind]] = NUMERIC | {"bool"}
    default_for: ClassVar[frozenset[Kind]] = frozenset({"number", "integer", "bool"})

    @classmethod
    def learn(cls, size: float | None, given: ColumnBasis, sample: ColumnSample) -> Self:  # noqa: ARG003
        return cls()

    @property
    def is_identity(self) -> bool:
        return True

    def names(self, column: str) -> list[str]:
        return [column]

    def expand(self, x: Float, out: Float) -> None:
        out[0] = x

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=self.name)

    def forms(self) -> list[Form]:
        return [VALUE]
