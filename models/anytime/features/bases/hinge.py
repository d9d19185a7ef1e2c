"""Bases `hinge:K` and `auto`: the column, its hinges, and indicators of common values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from anytime.errors import GroupsError
from anytime.features.bases.basis import (
    NUMERIC,
    VALUE,
    Basis,
    Clamp,
    ColumnSample,
    Form,
    Kind,
    ShapeLevel,
    distinct,
    distinct_names,
    distinct_values,
    quantiles,
    same_values,
)
from anytime.features.bases.linear import Linear
from anytime.groups import ColumnBasis
from anytime.types import Float

KNOTS = 4
"""Knots of a hinge basis that states none."""
COMMON_SHARE = 0.1
"""A value that more than this share of the rows have gets an indicator."""
MAX_INDICATORS = 5


@dataclass(frozen=True)
class Hinge(Basis):
    """The column, max(x - knot, 0) for each knot, and an indicator for each common value.

    Attributes
    ----------
    knots : tuple[float, ...]
        Different values, ascending; `size` states how many quantiles they come from.
    levels : tuple[float, ...]
        The common values, ascending.
    """

    name: ClassVar[str] = "hinge"
    fits: ClassVar[frozenset[Kind]] = NUMERIC
    example: ClassVar[str] = "hinge"
    sizes: ClassVar[range] = range(65)
    parts: ClassVar[frozenset[str]] = frozenset({"knots", "levels"})
    clamp: ClassVar[Clamp] = 0.0

    size: int
    knots: tuple[float, ...]
    levels: tuple[float, ...]

    @classmethod
    def learn(cls, size: float | None, given: ColumnBasis, sample: ColumnSample) -> Self:
        K = KNOTS if size is None else int(size)
        if given.knots is None and given.levels is None and has_two_values(sample):
            return cls(K, (), ())
        knots = distinct(quantiles(sample, K)) if given.knots is None else given.knots
        if knots != distinct(knots):
            raise GroupsError(f"its knots are {list(knots)}; expected different numbers in ascending order")
        return cls(K, knots, cls._levels(given, sample))

    @classmethod
    def _levels(cls, given: ColumnBasis, sample: ColumnSample) -> tuple[float, ...]:
        if given.levels is None:
            return common_values(sample)
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in given.levels):
            raise GroupsError(f"its levels are {list(given.levels)}; expected numbers for basis {cls.name!r}")
        levels = distinct(tuple(map(float, given.levels)))
        return tuple(compress(levels, distinct_values(np.array(levels))))

    @cached_property
    def same(self) -> Float:
        """Return the ends (levels, 2) of the numbers that are each common value, by `same_values`."""
        return same_values(self.levels)

    @cached_property
    def _knots(self) -> Float:
        return np.array(self.knots)[:, np.newaxis]

    @property
    def is_identity(self) -> bool:
        return not self.knots and not self.levels

    @property
    def pieces(self) -> tuple[Sequence[float], Float]:
        return self.knots, self.same

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
            np.logical_and(x >= self.same[:, :1], x <= self.same[:, 1:], out=indicators)
            indicators[:, np.isnan(x)] = np.nan

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=f"{self.name}:{self.size}", knots=self.knots, levels=self.levels)

    def forms(self) -> list[Form]:
        return [
            VALUE,
            *(Form({"form": "hinge", "knot": knot}, 0, knot) for knot in self.knots),
            *(Form({"form": "level", "level": u}, -1, u) for u in self.levels),
        ]

    @property
    def off_line(self) -> slice:
        return slice(1 + len(self.knots), 1 + len(self.knots) + len(self.levels))

    def shape_levels(self) -> list[ShapeLevel]:
        return [ShapeLevel(level, 1 + len(self.knots) + k, level) for k, level in enumerate(self.levels)]

    def line(self, low: float, high: float, mean: Float) -> Float | None:
        if mean[self.off_line].sum() > 1 - 1e-9:  # every value is a common one
            return None
        return np.array([low, *(knot for knot in self.knots if low < knot < high), high])

    def drawn(self, p: Float, mean: Float, scale: Float, ends: tuple[float, float] | None) -> Float:
        if not self.knots or ends is None:
            return super().drawn(p, mean, scale, ends)
        values = np.array([ends[0], *self.knots, ends[1]])
        return np.asarray(np.interp(p, np.linspace(0, 1, len(values)), values))


@dataclass(frozen=True)
class Octiles(Hinge):
    """Hinges at the octiles; cross-validation selects K = 0, 1, 3 or 7 of them (`Expansion.with_size`).

    Attributes
    ----------
    octiles : tuple[float, ...]
        All seven, with duplicates, so that the quantiles of a smaller K are among them; none without values.
    """

    name: ClassVar[str] = "auto"
    fits: ClassVar[frozenset[Kind]] = NUMERIC - {"date"}
    example: ClassVar[str] = "auto"
    sizes: ClassVar[range] = range(0)
    choices: ClassVar[tuple[int, ...]] = (0, 1, 3, 7)

    octiles: tuple[float, ...]

    @classmethod
    def learn(cls, size: float | None, given: ColumnBasis, sample: ColumnSample) -> Self:  # noqa: ARG003
        if given.knots is None and given.levels is None and has_two_values(sample):
            return cls(7, (), (), ())
        octiles = quantiles(sample, 7) if given.knots is None else given.knots
        if len(octiles) not in (0, 7) or list(octiles) != sorted(octiles):
            raise GroupsError(f"its knots are {list(octiles)}; expected seven octiles in ascending order")
        return cls(7, distinct(octiles), cls._levels(given, sample), octiles)

    def with_size(self, size: int) -> tuple[Basis, NDArray[np.bool_]]:
        """Return the basis `hinge:K` of the same values, or `linear` for 0, and which terms of this one it has."""
        terms = np.arange(1 + len(self.knots) + len(self.levels)) == 0
        if not size:
            return Linear(), terms
        every = 8 // (size + 1)
        hinge = Hinge(size, distinct(self.octiles[every - 1 :: every]), self.levels)
        terms[1:] = np.append(np.isin(self.knots, hinge.knots), np.ones(len(self.levels), dtype=np.bool_))
        return hinge, terms

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=self.name, knots=self.octiles, levels=self.levels)


def has_two_values(sample: ColumnSample) -> bool:
    """Return whether a column has two values at most, so that all terms but itself are collinear with it."""
    return int(distinct_values(sample.counts[0]).sum()) <= 2


def common_values(sample: ColumnSample) -> tuple[float, ...]:
    """Return the values that more than a tenth of the rows have, and enough rows: at most five, ascending."""
    found, counts = sample.counts
    if len(found):  # forms of one value in float32 and float64 are counted together; the most frequent one names it
        firsts = np.flatnonzero(distinct_values(found))
        order = np.lexsort((-counts, np.repeat(firsts, np.diff(firsts, append=len(found)))))
        found, counts = found[order[firsts]], np.add.reduceat(counts, firsts)
    common = np.flatnonzero((counts > COMMON_SHARE * sample.rows) & (counts >= sample.min_level_rows))
    most = common[np.argsort(-counts[common], kind="stable")][:MAX_INDICATORS]
    return tuple(np.sort(found[most]).tolist())
