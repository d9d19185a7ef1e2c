"""Polynomial basis: powers of the standardised column, as in the Boston Housing experiment of Group-OMP (section 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from anytime.errors import GroupsError
from anytime.features.basis import NUMERIC, Kind
from anytime.groups import ColumnBasis
from anytime.types import Float

DEGREE = 3


@dataclass(frozen=True)
class Polynomial:
    """Terms z, z^2, ..., z^P of z = (x - centre) / scale."""

    name: ClassVar[str] = "poly"
    fits: ClassVar[frozenset[Kind]] = NUMERIC
    sizes: ClassVar[range] = range(1, 11)

    degree: int
    centre: float
    scale: float

    @classmethod
    def learn(cls, size: int | None, given: ColumnBasis, values: NDArray[Any], rows: int) -> Self:  # noqa: ARG003
        centre = given.centre if given.centre is not None else float(values.mean()) if len(values) else 0.0
        scale = given.scale if given.scale is not None else float(values.std()) if len(values) else 1.0
        if not scale > 0:
            if given.scale is not None:
                raise GroupsError(f"its scale is {scale:g}; expected a number > 0")
            scale = 1.0  # a constant column, whose terms are constant whatever the scale
        return cls(size or DEGREE, centre, scale)

    def names(self, column: str) -> list[str]:
        return [column, *(f"{column}^{power}" for power in range(2, self.degree + 1))]

    def expand(self, x: Float, out: Float) -> None:
        np.subtract(x, self.centre, out=out[0])
        out[0] /= self.scale
        with np.errstate(over="ignore"):  # extreme values; the caller checks the result
            for power in range(1, self.degree):
                np.multiply(out[power - 1], out[0], out=out[power])

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=f"{self.name}:{self.degree}", centre=self.centre, scale=self.scale)
