"""Bases `hinge:K` and `auto`: the column, its hinges, and indicators of common values."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import Any, ClassVar, Literal, Self

import numpy as np

from anytime.errors import GroupsError
from anytime.features import operations
from anytime.features.bases.basis import NUMERIC, Basis, Choice, Clamp, ColumnSample, Kind, quantiles, suffixes
from anytime.features.bases.linear import Linear
from anytime.features.operations import LINE, VALUE, Level, Term, distinct_values
from anytime.groups import ColumnBasis

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
        knots = tuple(sorted({*quantiles(sample, K)})) if given.knots is None else given.knots
        if knots != tuple(sorted({*knots})):
            raise GroupsError(f"its knots are {list(knots)}; expected different numbers in ascending order")
        return cls(K, knots, cls._levels(given, sample))

    @classmethod
    def _levels(cls, given: ColumnBasis, sample: ColumnSample) -> tuple[float, ...]:
        if given.levels is None:
            return common_values(sample)
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in given.levels):
            raise GroupsError(f"its levels are {list(given.levels)}; expected numbers for basis {cls.name!r}")
        levels = sorted({*map(float, given.levels)})
        return tuple(compress(levels, distinct_values(np.array(levels))))

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=f"{self.name}:{self.size}", knots=self.knots, levels=self.levels)

    @property
    def terms(self) -> list[Term]:
        knots, levels = suffixes(">", self.knots), suffixes("=", self.levels)
        return [
            VALUE,
            *(Term(operations.Hinge(), name, knot) for name, knot in zip(knots, self.knots, strict=True)),
            *(Term(Level(), name, v, label=v) for name, v in zip(levels, self.levels, strict=True)),
        ]


@dataclass(frozen=True)
class Octiles(Hinge):
    """Hinges at the octiles; cross-validation selects K = 0, 1, 3 or 7 of them.

    Attributes
    ----------
    octiles : tuple[float, ...]
        All seven, with duplicates, so that the quantiles of a smaller K are among them; none without values.
    """

    name: ClassVar[str] = "auto"
    fits: ClassVar[frozenset[Kind]] = NUMERIC - {"date"}
    example: ClassVar[str] = "auto"
    sizes: ClassVar[range] = range(0)
    parts: ClassVar[frozenset[str]] = frozenset({"knots", "levels", "line"})
    choices: ClassVar[tuple[int, ...]] = (0, 1, 3, 7)

    octiles: tuple[float, ...]
    line: Literal["own", "same"] | None = None

    @classmethod
    def learn(cls, size: float | None, given: ColumnBasis, sample: ColumnSample) -> Self:  # noqa: ARG003
        line = (given.model_extra or {}).get("line")
        if line not in (None, "own", "same"):
            raise GroupsError(f"its line is {line!r}; expected 'own' or 'same'")
        if given.knots is None and given.levels is None and has_two_values(sample):
            return cls(7, (), (), (), line)
        octiles = quantiles(sample, 7) if given.knots is None else given.knots
        if len(octiles) not in (0, 7) or list(octiles) != sorted(octiles):
            raise GroupsError(f"its knots are {list(octiles)}; expected seven octiles in ascending order")
        return cls(7, tuple(sorted({*octiles})), cls._levels(given, sample), octiles, line)

    @property
    def terms(self) -> list[Term]:
        return super().terms + [LINE] * (self.line == "own")

    def reduced(self, choice: Choice) -> tuple[Basis, list[tuple[int, int]]]:
        """Return the basis `hinge:K` of the same values, or `linear` for 0."""
        if choice.size is None:
            return super().reduced(choice)
        if not choice.size:
            line = len(self.terms) - 1 if self.line == "own" and not choice.clamp else 0
            return Linear(), [(line, line + 1)]
        every = 8 // (choice.size + 1)
        hinge = Hinge(choice.size, tuple(sorted({*self.octiles[every - 1 :: every]})), self.levels)
        kept = [True, *np.isin(self.knots, hinge.knots), *(True for _ in self.levels)]
        return hinge, [(k, k + 1) for k in np.flatnonzero(kept).tolist()]

    def described(self) -> ColumnBasis:
        own: dict[str, Any] = {} if self.line is None else {"line": self.line}
        return ColumnBasis(basis=self.name, knots=self.octiles, levels=self.levels, **own)


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
