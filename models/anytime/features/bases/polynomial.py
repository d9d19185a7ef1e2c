"""Basis `poly:P`: powers of the standardised column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from anytime.errors import GroupsError
from anytime.features.bases.basis import NUMERIC, Basis, Clamp, ColumnSample, Kind
from anytime.features.operations import Power, Term
from anytime.groups import ColumnBasis


@dataclass(frozen=True)
class Polynomial(Basis):
    """Terms z, z^2, ..., z^P of z = (x - centre) / scale (Group-OMP, section 6)."""

    name: ClassVar[str] = "poly"
    fits: ClassVar[frozenset[Kind]] = NUMERIC
    example: ClassVar[str] = "poly:2"
    sizes: ClassVar[range] = range(1, 11)
    default: ClassVar[float | None] = 3
    parts: ClassVar[frozenset[str]] = frozenset({"centre", "scale"})
    clamp: ClassVar[Clamp] = 0.0

    degree: int
    centre: float
    scale: float

    @classmethod
    def learn(cls, size: float, given: ColumnBasis, sample: ColumnSample) -> Self:
        if given.scale is not None and not given.scale > 0:
            raise GroupsError(f"its scale is {given.scale:g}; expected a number > 0")
        known = len(sample.values) > 0
        centre = given.centre if given.centre is not None else sample.mean() if known else 0.0
        deviation = sample.deviation() if known and given.scale is None else 0.0
        # The terms of a constant column are constant whatever the scale.
        return cls(int(size), centre, given.scale or (deviation if deviation > 0 else 1.0))

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=f"{self.name}:{self.degree}", centre=self.centre, scale=self.scale)

    @property
    def terms(self) -> list[Term]:
        powers = range(1, self.degree + 1)
        return [Term(Power(), f"^{k}" if k > 1 else "", self.centre, self.scale, power=k) for k in powers]
