"""Linear basis: the column itself; booleans are 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from numpy.typing import NDArray

from anytime.features.basis import NUMERIC, Kind
from anytime.groups import ColumnBasis
from anytime.types import Float


@dataclass(frozen=True)
class Linear:
    """One term, the column."""

    name: ClassVar[str] = "linear"
    fits: ClassVar[frozenset[Kind]] = NUMERIC | {"bool"}
    sizes: ClassVar[range] = range(0)

    @classmethod
    def learn(cls, size: int | None, given: ColumnBasis, values: NDArray[Any], rows: int) -> Self:  # noqa: ARG003
        return cls()

    def names(self, column: str) -> list[str]:
        return [column]

    def expand(self, x: Float, out: Float) -> None:
        out[0] = x

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=self.name)
