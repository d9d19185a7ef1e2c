"""Piecewise-linear basis: hinges at quantiles, and indicators of values that many rows share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from anytime.errors import GroupsError
from anytime.features.basis import NUMERIC, Kind, distinct_names
from anytime.groups import ColumnBasis
from anytime.types import Float

KNOTS = 4
COMMON_SHARE = 0.1
"""A value that more than this share of the rows have gets an indicator."""
MAX_INDICATORS = 5


@dataclass(frozen=True)
class Hinge:
    """The column, max(x - knot, 0) for each knot, and an indicator for each common value.

    Attributes
    ----------
    knots : different values, ascending; `size` states how many quantiles they come from.
    levels : the common values, ascending.
    """

    name: ClassVar[str] = "hinge"
    fits: ClassVar[frozenset[Kind]] = NUMERIC
    sizes: ClassVar[range] = range(65)

    size: int
    knots: tuple[float, ...]
    levels: tuple[float, ...]

    @classmethod
    def learn(cls, size: int | None, given: ColumnBasis, values: NDArray[Any], rows: int) -> Self:
        K = KNOTS if size is None else size
        knots = distinct(quantiles(values, K)) if given.knots is None else given.knots
        if knots != distinct(knots):
            raise GroupsError(f"its knots are {list(knots)}; expected different numbers in ascending order")
        return cls(K, knots, cls._levels(given, values, rows))

    @classmethod
    def _levels(cls, given: ColumnBasis, values: Float, rows: int) -> tuple[float, ...]:
        if given.levels is None:
            return common_values(values, rows)
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in given.levels):
            raise GroupsError(f"its levels are {list(given.levels)}; expected numbers for basis {cls.name!r}")
        return distinct(tuple(map(float, given.levels)))

    @cached_property
    def _knots(self) -> Float:
        return np.array(self.knots)[:, np.newaxis]

    def names(self, column: str) -> list[str]:
        return [column, *distinct_names(column, ">", self.knots), *distinct_names(column, "=", self.levels)]

    def expand(self, x: Float, out: Float) -> None:
        knots = len(self.knots)
        out[0] = x
        hinges = out[1 : 1 + knots]
        np.subtract(x, self._knots, out=hinges)
        np.maximum(hinges, 0.0, out=hinges)
        if self.levels:
            indicators = out[1 + knots :]
            np.equal(x, np.array(self.levels)[:, np.newaxis], out=indicators)
            indicators[:, np.isnan(x)] = np.nan

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=f"{self.name}:{self.size}", knots=self.knots, levels=self.levels)


@dataclass(frozen=True)
class Octiles(Hinge):
    """Hinges at the octiles; cross-validation selects K = 0, 1, 3 or 7 of them (`Expansion.with_hinges`).

    Attributes
    ----------
    octiles : all seven, with duplicates, so that the quantiles of a smaller K are among them; none without values.
    """

    name: ClassVar[str] = "auto"
    sizes: ClassVar[range] = range(0)
    choices: ClassVar[tuple[int, ...]] = (0, 1, 3, 7)

    octiles: tuple[float, ...]

    @classmethod
    def learn(cls, size: int | None, given: ColumnBasis, values: NDArray[Any], rows: int) -> Self:  # noqa: ARG003
        octiles = quantiles(values, 7) if given.knots is None else given.knots
        if len(octiles) not in (0, 7) or list(octiles) != sorted(octiles):
            raise GroupsError(f"its knots are {list(octiles)}; expected seven octiles in ascending order")
        return cls(7, distinct(octiles), cls._levels(given, values, rows), octiles)

    def hinge(self, size: int) -> Hinge:
        """Return the basis `hinge:K` of the same values."""
        every = 8 // (size + 1)
        return Hinge(size, distinct(self.octiles[every - 1 :: every] if size else ()), self.levels)

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=self.name, knots=self.octiles, levels=self.levels)


def quantiles(values: Float, count: int) -> tuple[float, ...]:
    """Return the quantiles k/(count + 1), k = 1..count."""
    if not len(values) or not count:
        return ()
    return tuple(np.quantile(values, np.arange(1, count + 1) / (count + 1)).tolist())


def distinct(values: tuple[float, ...]) -> tuple[float, ...]:
    """Return the different values, ascending."""
    return tuple(sorted(set(values)))


def common_values(values: Float, rows: int) -> tuple[float, ...]:
    """Return the values that more than a tenth of the rows have, the five most frequent at most, ascending."""
    found, counts = np.unique(values, return_counts=True)
    common = np.flatnonzero(counts > COMMON_SHARE * rows)
    most = common[np.argsort(-counts[common], kind="stable")][:MAX_INDICATORS]
    return tuple(np.sort(found[most]).tolist())
