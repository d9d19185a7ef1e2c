"""Categories: one indicator for each level of a factor, and one for all other levels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from anytime.errors import GroupsError
from anytime.features.basis import Kind
from anytime.groups import ColumnBasis
from anytime.types import Float, Label

MIN_ROWS = 10
"""Rows of the sample that a level needs for an indicator."""
MAX_LEVELS = 256


@dataclass(frozen=True)
class Categories:
    """An indicator for each level, and for `other` where it exists.

    The raw value of such a column is the index of its level, -1 for every other level, and NaN where missing.
    """

    name: ClassVar[str] = "categories"
    fits: ClassVar[frozenset[Kind]] = frozenset({"text", "factor", "bool", "integer"})
    sizes: ClassVar[range] = range(0)

    levels: tuple[Label, ...]
    other: bool

    @classmethod
    def learn(cls, size: int | None, given: ColumnBasis, values: NDArray[Any], rows: int) -> Self:  # noqa: ARG003
        if given.range is not None:
            raise GroupsError(f"it has the range {list(given.range)} and basis {cls.name!r}; expected no range")
        # Integers with gaps are read as floats.
        counts = Counter(int(value) if isinstance(value, float) else value for value in values.tolist())
        levels = given.levels
        if levels is None:
            by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            levels = tuple(level for level, count in by_count if count >= MIN_ROWS)[:MAX_LEVELS]
        elif len(levels) > MAX_LEVELS or not (levels or given.other):
            raise GroupsError(f"it has {len(levels)} levels; expected 1 to {MAX_LEVELS}")
        elif counts and any(isinstance(level, str) != isinstance(next(iter(counts)), str) for level in levels):
            raise GroupsError(f"its levels are {list(levels)} and a value is {next(iter(counts))!r}; expected one type")
        if len(set(levels)) < len(levels):
            twice = next(level for level, count in Counter(levels).items() if count > 1)
            raise GroupsError(f"it has level {twice!r} twice; expected each level once")
        other = given.other if given.other is not None else bool(set(counts).difference(levels))
        return cls(levels, other)

    @cached_property
    def _codes(self) -> dict[Any, float]:
        return {level: float(code) for code, level in enumerate(self.levels)}

    @property
    def _unknown(self) -> float:
        return -1.0 if self.other else math.nan

    def coded(self, values: Iterable[Any]) -> Float:
        """Return the index of the level of each value; missing values are None or NaN."""
        codes, unknown = self._codes, self._unknown
        return np.array([math.nan if v is None or v != v else codes.get(v, unknown) for v in values])  # noqa: PLR0124

    @cached_property
    def holds(self) -> str:
        """Return what a value is, for messages."""
        if all(isinstance(level, str) for level in self.levels):
            return "text"
        return "true or false" if all(isinstance(level, bool) for level in self.levels) else "a whole number"

    def accepts(self, value: Any) -> bool:
        """Return whether a value is missing or of the type of the levels, whichever of them it is."""
        if value is None or value != value:  # noqa: PLR0124  (NaN)
            return True
        match self.holds:
            case "text":
                return isinstance(value, str)
            case "true or false":
                return isinstance(value, bool | np.bool_) or (isinstance(value, int | float) and value in (0, 1))
            case _:
                return isinstance(value, int | float | np.number) and float(value).is_integer()

    def names(self, column: str) -> list[str]:
        return [*(f"{column}={level}" for level in self.levels), *([f"{column} is other"] if self.other else [])]

    def expand(self, x: Float, out: Float) -> None:
        missing = np.isnan(x) if self.other else ~(x >= 0)
        code = np.where(missing, 0.0, x).astype(np.intp)  # -1 is the last term, which is `other`
        out[:] = 0.0
        out[code, np.arange(len(x))] = 1.0
        out[:, missing] = np.nan

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=self.name, levels=self.levels, other=self.other)
