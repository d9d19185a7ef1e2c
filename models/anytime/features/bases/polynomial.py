"""Basis `poly:P`: powers of the standardised column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from anytime.errors import GroupsError
from anytime.features.bases.basis import CURVE, NUMERIC, Basis, ColumnSample, Form, Kind
from anytime.groups import ColumnBasis
from anytime.types import Float

DEGREE = 3
"""Degree of a polynomial that states none."""


@dataclass(frozen=True)
class Polynomial(Basis):
    """Terms z, z^2, ..., z^P of z = (x - centre) / scale (Group-OMP, section 6)."""

    name: ClassVar[str] = "poly"
    fits: ClassVar[frozenset[Kind]] = NUMERIC
    example: ClassVar[str] = "poly:2"
    sizes: ClassVar[range] = range(1, 11)
    parts: ClassVar[frozenset[str]] = frozenset({"centre", "scale"})

    degree: int
    centre: float
    scale: float

    @classmethod
    def learn(cls, size: float | None, given: ColumnBasis, sample: ColumnSample) -> Self:
        known = len(sample.values) > 0
        centre = given.centre if given.centre is not None else sample.mean() if known else 0.0
        scale = given.scale if given.scale is not None else sample.deviation() if known else 1.0
        if not scale > 0:
            if given.scale is not None:
                raise GroupsError(f"its scale is {scale:g}; expected a number > 0")
            scale = 1.0  # a constant column, whose terms are constant whatever the scale
        return cls(int(size or DEGREE), centre, scale)

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

    def forms(self) -> list[Form]:
        shape = {"centre": self.centre, "scale": self.scale}
        return [
            Form({"form": "power", "power": k, **shape}, k, self.centre, self.scale) for k in range(1, self.degree + 1)
        ]

    def line(self, low: float, high: float, mean: Float) -> Float:  # noqa: ARG002
        return np.linspace(low, high, CURVE)

    def drawn(self, p: Float, mean: Float, scale: Float, ends: tuple[float, float] | None) -> Float:
        return np.asarray(self.centre + self.scale * super().drawn(p, mean, scale, ends))
