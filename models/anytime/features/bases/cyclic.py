"""Basis `cyclic:P`: sine and cosine of a value that recurs with a period, such as an hour, a weekday or an angle."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from anytime.errors import GroupsError
from anytime.features.bases.basis import CURVE, NUMERIC, Basis, Clamp, ColumnSample, Form, Kind
from anytime.groups import ColumnBasis
from anytime.types import Float


@dataclass(frozen=True)
class Cyclic(Basis):
    """Terms sin(2 pi x / P) and cos(2 pi x / P): values that differ by the period P are the same."""

    name: ClassVar[str] = "cyclic"
    fits: ClassVar[frozenset[Kind]] = NUMERIC
    example: ClassVar[str] = "cyclic:24"
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
    def default_size(cls) -> float:
        return cls.sized("")

    @classmethod
    def learn(cls, size: float | None, given: ColumnBasis, sample: ColumnSample) -> Self:  # noqa: ARG003
        return cls(cls.default_size() if size is None else size)

    def names(self, column: str) -> list[str]:
        return [f"{column} sine", f"{column} cosine"]

    def expand(self, x: Float, out: Float) -> None:
        angle = 2 * math.pi * (np.fmod(x, self.period) / self.period)
        np.sin(angle, out=out[0])
        np.cos(angle, out=out[1])

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=f"{self.name}:{repr(self.period).removesuffix('.0')}")

    def forms(self) -> list[Form]:
        return [
            Form(
                {"form": form, "period": self.period}, f"{function}({2 * math.pi!r} * (fmod(u, b) / b))", 0, self.period
            )
            for form, function in (("sine", "sin"), ("cosine", "cos"))
        ]

    def line(self, low: float, high: float, mean: Float) -> Float:  # noqa: ARG002
        """Return values of one period."""
        start = math.floor(low / self.period) * self.period
        return np.linspace(start, start + self.period, CURVE)

    def drawn(self, p: Float, mean: Float, scale: Float, ends: tuple[float, float] | None) -> Float:  # noqa: ARG002
        """Return values of one period, each as likely."""
        return p * self.period
