"""Bases `hinge:K` and `auto`: the column, its hinges, and indicators of common values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, ClassVar, Literal, Self

import numpy as np

from anytime.errors import GroupsError
from anytime.features import operations
from anytime.features.bases.basis import NUMERIC, Basis, Choice, Clamp, ColumnSample, Kind, Linear, suffixes
from anytime.features.operations import LINE, VALUE, Level, Term, distinct_values
from anytime.groups import ColumnBasis
from anytime.types import Float

COMMON_SHARE = 0.1
"""A value that more than this share of the rows have gets an indicator."""
MAX_INDICATORS = 5


@dataclass(frozen=True)
class Hinge(Basis):
    """The column, max(x - knot, 0) for each knot, and an indicator for each common value.

    Attributes
    ----------
    knots : tuple[float, ...]
        The different quantiles k/(size + 1), k = 1..size, or those that are stated, ascending.
    levels : tuple[float, ...]
        The common values, ascending: those that more than a tenth of the rows have, and enough rows, at most five.
    """

    name: ClassVar[str] = "hinge"
    fits: ClassVar[frozenset[Kind]] = NUMERIC
    sizes: ClassVar[range] = range(65)
    default: ClassVar[float | None] = 4
    parts: ClassVar[frozenset[str]] = frozenset({"knots", "levels"})
    clamp: ClassVar[Clamp] = 0.0

    size: int
    knots: tuple[float, ...]
    levels: tuple[float, ...]

    @classmethod
    def learn(cls, size: float, given: ColumnBasis, sample: ColumnSample) -> Self:
        found, counts = _different(sample)
        K, levels = int(size), given.levels
        if given.knots is None and levels is None and len(found) <= 2:
            return cls(K, (), ())  # all terms but the column itself are collinear with it
        knots = sample.quantiles(np.arange(1, K + 1) / (K + 1)) if given.knots is None else given.knots
        ordered = tuple(sorted(knots if cls.choices else {*knots}))
        if given.knots is not None and (knots != ordered or (cls.choices and len(knots) not in (0, K))):
            raise GroupsError(
                f"its knots are {list(knots)}; expected {'seven octiles' if cls.choices else 'different numbers'} in "
                "ascending order"
            )
        if levels is None:
            common = np.flatnonzero((counts > COMMON_SHARE * sample.rows) & (counts >= sample.min_level_rows[0]))
            most = common[np.argsort(-counts[common], kind="stable")][:MAX_INDICATORS]
            return cls(K, ordered, tuple(np.sort(found[most]).tolist()))
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in levels):
            raise GroupsError(f"its levels are {list(levels)}; expected numbers for basis {cls.name!r}")
        stated = sorted({*map(float, levels)})
        return cls(K, ordered, tuple(compress(stated, distinct_values(np.array(stated)))))

    def described(self) -> ColumnBasis:
        own: dict[str, Any] = {} if self.line is None else {"line": self.line}
        name = self.name if self.choices else f"{self.name}:{self.size}"
        return ColumnBasis(basis=name, knots=self.knots, levels=self.levels, **own)

    @property
    def terms(self) -> list[Term]:
        knots = sorted({*self.knots})
        return [
            VALUE,
            *(Term(operations.Hinge(), name, knot) for name, knot in zip(suffixes(">", knots), knots, strict=True)),
            *(Term(Level(), name, v, label=v) for name, v in zip(suffixes("=", self.levels), self.levels, strict=True)),
            *[LINE] * (self.line == "own"),
        ]


@dataclass(frozen=True)
class Octiles(Hinge):
    """Hinges at the octiles; cross-validation selects K = 0, 1, 3 or 7 of them.

    Attributes
    ----------
    knots : tuple[float, ...]
        All seven, with duplicates, so that the quantiles of a smaller K are among them; none without values.
    """

    name: ClassVar[str] = "auto"
    fits: ClassVar[frozenset[Kind]] = NUMERIC - {"date"}
    sizes: ClassVar[range] = range(0)
    default: ClassVar[float | None] = 7
    parts: ClassVar[frozenset[str]] = frozenset({"knots", "levels", "line"})
    clamp: ClassVar[Clamp] = "auto"
    choices: ClassVar[tuple[int, ...]] = (0, 1, 3, 7)

    line: Literal["own", "same"] | None = None

    @classmethod
    def learn(cls, size: float, given: ColumnBasis, sample: ColumnSample) -> Self:
        line = (given.model_extra or {}).get("line")
        if line not in (None, "own", "same"):
            raise GroupsError(f"its line is {line!r}; expected 'own' or 'same'")
        return replace(super().learn(size, given, sample), line=line)

    def reduced(self, choice: Choice) -> tuple[Basis, list[tuple[int, int]]]:
        """Return the basis `hinge:K` of the same values, or `linear` for 0."""
        if choice.size is None:
            return super().reduced(choice)
        if not choice.size:
            line = len(self.terms) - 1 if self.line == "own" and not choice.clamp else 0
            return Linear(), [(line, line + 1)]
        every = 8 // (choice.size + 1)
        hinge = Hinge(choice.size, tuple(sorted({*self.knots[every - 1 :: every]})), self.levels)
        kept = [True, *np.isin(sorted({*self.knots}), hinge.knots), *(True for _ in self.levels)]
        return hinge, [(k, k + 1) for k in np.flatnonzero(kept).tolist()]


def _different(sample: ColumnSample) -> tuple[Float, Float]:
    """Return the different values, ascending, and the weight of each.

    Forms of one value in float32 and float64 are counted together; the most frequent one names it.
    """
    found, counts = sample.counts
    firsts = np.flatnonzero(distinct_values(found))
    order = np.lexsort((-counts, np.repeat(firsts, np.diff(firsts, append=len(found)))))
    return found[order[firsts]], np.add.reduceat(counts, firsts)
