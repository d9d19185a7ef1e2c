"""Basis `categories`: indicators of the levels of a factor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from anytime.errors import GroupsError
from anytime.features.bases.basis import LEVEL_ROWS, Basis, Clamp, ColumnSample, Form, Kind, ShapeLevel
from anytime.groups import ColumnBasis
from anytime.types import Float, Label

MAX_LEVELS = 256
EXACT = 2**53
"""Floats represent all smaller whole numbers; levels are read as floats where a table or a client has no integers."""


_FLOATS = (float, np.floating)


def is_missing(value: Any) -> bool:
    """Return whether a value of a column of categories is missing: None or NaN."""
    return value is None or (isinstance(value, _FLOATS) and math.isnan(value))


@dataclass(frozen=True)
class Categories(Basis):
    """An indicator for each level, and for `other` where it exists.

    The raw value of such a column is the index of its level, -1 for every other level, and NaN where missing. An index
    beyond the levels is that of a rarer level, before those were joined.

    Attributes
    ----------
    levels : tuple[Label, ...]
        The most frequent first.
    level_rows : tuple[int, ...]
        Rows of each, where cross-validation is to select how many a level needs (`with_min_level_rows`).
    """

    name: ClassVar[str] = "categories"
    fits: ClassVar[frozenset[Kind]] = frozenset({"text", "factor", "bool", "integer"})
    default_for: ClassVar[frozenset[Kind]] = frozenset({"text", "factor"})
    parts: ClassVar[frozenset[str]] = frozenset({"levels", "other", "level_rows"})
    clamp: ClassVar[Clamp] = None
    by_level: ClassVar[bool] = True

    levels: tuple[Label, ...]
    other: bool
    level_rows: tuple[int, ...] = ()

    @classmethod
    def learn(cls, size: float | None, given: ColumnBasis, sample: ColumnSample) -> Self:  # noqa: ARG003
        # Integers with gaps are read as floats.
        found, weights = (part.tolist() for part in sample.counts)
        broken = next((value for value in found if isinstance(value, float) and not value.is_integer()), None)
        if broken is not None:
            raise GroupsError(f"it holds {broken:g} and has basis {cls.name!r}; expected text or whole numbers")
        counts = {int(value) if isinstance(value, float) else value: w for value, w in zip(found, weights, strict=True)}
        levels, rows = given.levels, (given.model_extra or {}).get("level_rows") or ()
        if levels is None:
            by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            least = min(LEVEL_ROWS) if sample.selects_levels else sample.min_level_rows
            levels = tuple(level for level, count in by_count if count >= least)[:MAX_LEVELS]
            if sample.selects_levels and levels and counts[levels[-1]] < max(LEVEL_ROWS):
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
        if len(set(levels)) < len(levels):
            twice = next(level for level, count in Counter(levels).items() if count > 1)
            raise GroupsError(f"it has level {twice!r} twice; expected each level once")
        # A column without values, or with rare ones only, has the one term `other`.
        other = given.other if given.other is not None else not levels or bool(set(counts).difference(levels))
        if rows and (not isinstance(rows, tuple) or [*rows] != sorted(rows, reverse=True) or len(rows) != len(levels)):
            raise GroupsError(f"its level_rows are {rows}; expected a number for each level, the largest first")
        return cls(levels, other, rows)

    @property
    def open_levels(self) -> tuple[int, ...]:
        return self.level_rows

    def with_min_level_rows(self, rows: int) -> tuple[Categories, int]:
        kept = sum(count >= rows for count in self.level_rows)
        return Categories(self.levels[:kept], self.other or kept < len(self.levels)), kept

    @property
    def labels(self) -> tuple[Label, ...]:
        return self.levels

    @property
    def has_other(self) -> bool:
        return self.other

    @property
    def reader(self) -> Categories:
        return self

    @cached_property
    def _codes(self) -> dict[Any, float]:
        return {level: float(code) for code, level in enumerate(self.levels)}

    def coded(self, values: Iterable[Any]) -> Float:
        """Return the index of the level of each value; missing values are None or NaN."""
        codes, unknown = self._codes, -1.0 if self.other else math.nan
        return np.array([codes[v] if v in codes else math.nan if is_missing(v) else unknown for v in values])

    @cached_property
    def holds(self) -> str:
        """Return what a value is, for messages."""
        if all(isinstance(level, str) for level in self.levels):
            return "text"
        return "true or false" if all(isinstance(level, bool) for level in self.levels) else "a whole number"

    def accepts(self, value: Any) -> bool:
        """Return whether a value is missing or of the type of the levels, whichever of them it is."""
        if self.holds == "text":
            return isinstance(value, str) or is_missing(value)
        if self.holds == "true or false":
            is_bool = isinstance(value, bool | np.bool_) or (isinstance(value, int | float) and value in (0, 1))
            return is_bool or is_missing(value)
        return is_missing(value) or (isinstance(value, int | float | np.number) and float(value).is_integer())

    def invalid(self, codes: Float) -> tuple[float, str] | None:
        """Return a number that is no index, and what was expected."""
        right = (codes == np.trunc(codes)) & (codes >= -1) & (codes < len(self.levels)) | np.isnan(codes)
        last = len(self.levels) - 1
        return (
            None if right.all() else (codes[~right][0], f"the index of a level, 0 to {last}, or -1 for another level")
        )

    def shown(self, code: float) -> Label | None:
        return self.levels[int(code)] if code >= 0 else None

    def names(self, column: str) -> list[str]:
        return [*(f"{column}={level}" for level in self.levels), *([f"{column} is other"] if self.other else [])]

    def expand(self, x: Float, out: Float) -> None:
        missing = np.isnan(x) if self.other else ~(x >= 0)
        code = np.where(missing, 0.0, x).astype(np.intp)  # -1 is the last term, which is `other`
        code[code >= len(self.levels)] = -1
        out[:] = 0.0
        out[code, np.arange(len(x))] = 1.0
        out[:, missing] = np.nan

    def described(self) -> ColumnBasis:
        described = ColumnBasis(basis=self.name, levels=self.levels, other=self.other)
        return described.model_copy(update={"level_rows": self.level_rows}) if self.level_rows else described

    def forms(self) -> list[Form]:
        return [
            *(Form({"form": "level", "level": level}, -1, code) for code, level in enumerate(self.levels)),
            *([Form({"form": "other"}, -1, -1)] if self.other else []),
        ]

    def line(self, low: float, high: float, mean: Float) -> None:
        del low, high, mean

    def shape_levels(self) -> list[ShapeLevel]:
        return [
            *(ShapeLevel(level, code, code) for code, level in enumerate(self.levels)),
            *([ShapeLevel(None, len(self.levels), -1.0)] if self.other else []),
        ]

    def drawn(self, p: Float, mean: Float, scale: Float, ends: tuple[float, float] | None) -> Float:  # noqa: ARG002
        if not self.levels:
            return np.full(len(p), np.nan)
        shares = np.cumsum(mean[: len(self.levels)])
        # A large p is the first, most frequent level.
        return np.asarray(np.searchsorted(shares, (1 - p) * shares[-1]), dtype=np.float64)
