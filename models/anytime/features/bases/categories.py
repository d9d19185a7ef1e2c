"""Basis `categories`: indicators of the levels of a factor."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Self

from anytime.errors import GroupsError
from anytime.features.bases.basis import Basis, Choice, Clamp, ColumnSample, Kind
from anytime.features.operations import Category, Other, Term
from anytime.features.readers import Levels
from anytime.groups import ColumnBasis
from anytime.types import Label

MAX_LEVELS = 256
EXACT = 2**53
"""Floats represent all smaller whole numbers; levels are read as floats where a table or a client has no integers."""


@dataclass(frozen=True)
class Categories(Basis):
    """An indicator for each level, the most frequent first, and for `other` where it exists.

    Attributes
    ----------
    level_rows : tuple[int, ...]
        Rows of each level, where cross-validation is to select how many it needs.
    """

    name: ClassVar[str] = "categories"
    fits: ClassVar[frozenset[Kind]] = frozenset({"text", "factor", "bool", "integer"})
    default_for: ClassVar[frozenset[Kind]] = frozenset({"text", "factor"})
    parts: ClassVar[frozenset[str]] = frozenset({"levels", "other", "level_rows"})
    clamp: ClassVar[Clamp] = None

    levels: tuple[Label, ...]
    other: bool
    level_rows: tuple[int, ...] = ()

    @classmethod
    def learn(cls, size: float, given: ColumnBasis, sample: ColumnSample) -> Self:  # noqa: ARG003
        # Integers with gaps are read as floats.
        found, weights = (part.tolist() for part in sample.counts)
        broken = next((value for value in found if isinstance(value, float) and not value.is_integer()), None)
        if broken is not None:
            raise GroupsError(f"it holds {broken:g} and has basis {cls.name!r}; expected text or whole numbers")
        counts = {int(value) if isinstance(value, float) else value: w for value, w in zip(found, weights, strict=True)}
        levels, rows = given.levels, (given.model_extra or {}).get("level_rows") or ()
        if levels is None:
            by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            levels = tuple(level for level, count in by_count if count >= min(sample.min_level_rows))[:MAX_LEVELS]
            if levels and counts[levels[-1]] < max(sample.min_level_rows):  # these are to be selected from
                rows = tuple(int(counts[level]) for level in levels)
        elif len(levels) > MAX_LEVELS or not (levels or given.other):
            raise GroupsError(f"it has {len(levels)} levels; expected 1 to {MAX_LEVELS}")
        elif counts and any(isinstance(level, str) != isinstance(next(iter(counts)), str) for level in levels):
            raise GroupsError(f"its levels are {list(levels)} and a value is {next(iter(counts))!r}; expected one type")
        if rounded := [level for level in levels if isinstance(level, int) and abs(level) >= EXACT]:
            raise GroupsError(
                f"it has level {rounded[0]}, and numbers of 2^53 or more are rounded; expected smaller whole numbers, "
                "or text"
            )
        if twice := [level for level, count in Counter(levels).items() if count > 1]:
            raise GroupsError(f"it has level {twice[0]!r} twice; expected each level once")
        # A column without values, or with rare ones only, has the one term `other`.
        other = given.other if given.other is not None else not levels or bool(set(counts).difference(levels))
        if rows and (not isinstance(rows, tuple) or [*rows] != sorted(rows, reverse=True) or len(rows) != len(levels)):
            raise GroupsError(f"its level_rows are {rows}; expected a number for each level, the largest first")
        return cls(levels, other, rows)

    def described(self) -> ColumnBasis:
        described = ColumnBasis(basis=self.name, levels=self.levels, other=self.other)
        return described.model_copy(update={"level_rows": self.level_rows}) if self.level_rows else described

    @property
    def terms(self) -> list[Term]:
        levels = [Term(Category(), f"={level}", code, label=level) for code, level in enumerate(self.levels)]
        return levels + [Term(Other(), " is other", -1.0)] * self.other

    @property
    def reader(self) -> Levels:
        return Levels(self.levels, self.other)

    def reduced(self, choice: Choice) -> tuple[Basis, list[tuple[int, int]]]:
        least = choice.level_rows
        if not self.level_rows or least is None:
            return super().reduced(choice)
        kept = sum(count >= least for count in self.level_rows)
        rest = [(kept, len(self.terms))] * (kept < len(self.terms))
        basis = Categories(self.levels[:kept], self.other or kept < len(self.levels))
        return basis, [*((k, k + 1) for k in range(kept)), *rest]
