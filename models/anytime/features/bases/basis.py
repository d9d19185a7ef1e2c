"""The interface of bases: which terms a raw column becomes.

A basis is one class in one file of this folder, listed in `anytime.features.bases`. Its class has everything that the
library knows of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anytime.errors import GroupsError
from anytime.features.operations import Term
from anytime.features.readers import Reader
from anytime.groups import ColumnBasis
from anytime.types import Float

MIN_LEVEL_ROWS = 10
"""Rows of the sample that a level, or a common value, needs for an indicator: no indicator discloses a single row."""
LEVEL_ROWS = (10, 5, 2)
"""Numbers of rows from which cross-validation selects how many a level needs."""
COUNT_TOLERANCE = 1e-12
"""Rounding of a sum of equal weights, as a share of it."""

Kind: TypeAlias = Literal["number", "integer", "bool", "text", "date", "factor"]
"""Type of a raw column; a factor is a dictionary-encoded column of any type. Each may have missing values."""

NUMERIC: frozenset[Kind] = frozenset({"number", "integer", "date"})
"""Types of columns whose raw values are numbers; a date is seconds since 1970 UTC."""

Clamp: TypeAlias = float | Literal["auto", "off", "outliers"] | None
"""What values are clamped to: the quantiles Q and 1 - Q; nothing; or the ends of `ColumnSample.without_outliers`.

"auto" is the training range without outliers for curves and dates, and nothing for lines of numbers; None is the
default of each basis.
"""

OUTLYING = 2.0
"""An extreme is an outlier from this many times q99 - q1 beyond q99 or q1."""


@dataclass(frozen=True)
class ColumnSample:
    """Values of a column in a sample of the rows, without missing ones; a row of weight 3 counts as three rows.

    Attributes
    ----------
    values : NDArray[Any]
        (observed,) of numbers, booleans or text.
    rows : float
        Weight of all rows of the sample, also of those that miss the value.
    weights : Float | None
        (observed,) above 0, or None for weight 1.
    min_level_rows : int
        Rows that a level, or a common value, needs for an indicator.
    selects_levels : bool
        Whether cross-validation selects that number for levels, from `LEVEL_ROWS`.
    """

    values: NDArray[Any]
    rows: float
    weights: Float | None = None
    min_level_rows: int = MIN_LEVEL_ROWS
    selects_levels: bool = False

    @property
    def observed(self) -> float:
        """Return the weight of the rows that have a value."""
        return float(len(self.values)) if self.weights is None else float(self.weights.sum())

    def mean(self) -> float:
        return float(np.average(self.values, weights=self.weights))

    def deviation(self) -> float:
        return math.sqrt(float(np.average(np.square(self.values - self.mean()), weights=self.weights)))

    def quantiles(self, levels: Sequence[float] | Float) -> tuple[float, ...]:
        """Return quantiles, interpolated as by `numpy.quantile` of as many copies of each value as its weight states.

        A unit of weight is 1 where all weights are whole numbers, else the smallest weight.
        """
        below, above, share = self._neighbours(levels)
        step = np.subtract(above, below, dtype=np.float64)  # a difference of small integers may exceed their type
        # From the nearer of both, as numpy does, so that equal samples have equal quantiles.
        return tuple(np.where(share < 0.5, below + share * step, above - (1 - share) * step).tolist())

    @cached_property
    def _ordered(self) -> NDArray[Any]:
        return np.sort(self.values)

    def _neighbours(self, levels: Sequence[float] | Float) -> tuple[Float, Float, Float]:
        """Return the values below and above each quantile, and where it is between them, from 0 to 1."""
        if self.weights is None or (self.weights == 1).all():
            at = np.asarray(levels) * (len(self.values) - 1.0)
            low, high = np.floor(at).astype(np.intp), np.ceil(at).astype(np.intp)
            return self._ordered[low], self._ordered[high], at - low
        weights = self.weights
        order = np.argsort(self.values, kind="stable")
        unit = 1.0 if are_whole(weights) else float(weights.min())
        ends, sorted_values = np.cumsum(weights[order]) / unit, self.values[order]
        nearest = np.rint(ends)
        ends = np.where(np.abs(ends - nearest) <= COUNT_TOLERANCE * ends, nearest, ends)
        at = np.asarray(levels) * (ends[-1] - 1.0)
        low = np.floor(at)
        below, above = (
            sorted_values[np.searchsorted(ends, copy, side="right").clip(max=len(ends) - 1)]
            for copy in (low, np.ceil(at))
        )
        return below, above, at - low

    def bulk(self) -> tuple[float, float]:
        """Return the quantiles .01 and .99, or where they are between two values, the inner one.

        So one outlier among fewer than a hundred rows changes neither.
        """
        below, above, _ = self._neighbours([0.01, 0.99])
        return float(above[0]), float(below[1])

    def without_outliers(self) -> tuple[float, float] | None:
        """Return the range with q99 or q1 of the bulk for an end that is an outlier; None if neither is."""
        (q1, q99), low, high = self.bulk(), float(self.values.min()), float(self.values.max())
        far = OUTLYING * (q99 - q1)
        ends = q1 if q1 - low > far > 0 else low, q99 if high - q99 > far > 0 else high
        return None if ends == (low, high) else ends

    def ends(self, clamp: Clamp) -> tuple[float, float] | None:
        """Return the ends that a clamp moves values to; None if it moves none."""
        if clamp is None or clamp in ("auto", "off") or not len(self.values):
            return None
        if clamp == "outliers":
            return self.without_outliers()
        if clamp == 0:  # a quantile of fractional weights may lie within
            return float(self.values.min()), float(self.values.max())
        low, high = self.quantiles([float(clamp), 1.0 - float(clamp)])
        return low, high

    @cached_property
    def counts(self) -> tuple[NDArray[Any], Float]:
        """Return the different values, ascending, and the weight of each."""
        if self.weights is None:
            ordered = self._ordered  # `numpy.unique` would sort once more
            firsts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
            return ordered[firsts], np.diff(np.append(firsts, len(ordered))).astype(np.float64)
        found, places = np.unique(self.values, return_inverse=True)
        return found, np.bincount(places, self.weights, len(found)).astype(np.float64)


def are_whole(weights: Float) -> bool:
    return bool((weights == np.floor(weights)).all())


class Choice(NamedTuple):
    """What cross-validation selects of the bases of all columns; None of what it does not select.

    `size` is the number of hinges, `clamp` whether lines are clamped as curves are, and `level_rows` the least number
    of rows of a level.
    """

    size: int | None = None
    clamp: bool | None = None
    level_rows: int | None = None


class Basis(ABC):
    """The terms of one column. A member is a frozen dataclass of what it learns.

    Attributes
    ----------
    name : str
        On the command line and in groups files.
    example : str
        A complete name, such as "poly:2"; the name itself where there is no K.
    fits, default_for : frozenset[Kind]
        Types of the columns that may have this basis, and that have it where the user states none.
    sizes : range
        Valid K of `name:K`; empty if the basis has no size.
    parts : frozenset[str]
        Fields of its own in a groups file, which are learned where they are absent.
    clamp : Clamp
        The default clamp; None if values are never clamped.
    choices : tuple[int, ...]
        K that cross-validation selects from; empty if it selects nothing.
    line : Literal["own", "same"] | None
        Where it selects between a clamp and a line without one: whether that line is a term of its own, or the same,
        because no training row is outside the clamp.
    level_rows : tuple[int, ...]
        Rows of each level, descending, where it selects how many a level needs.
    """

    name: ClassVar[str]
    fits: ClassVar[frozenset[Kind]]
    example: ClassVar[str] = ""
    default_for: ClassVar[frozenset[Kind]] = frozenset()
    sizes: ClassVar[range] = range(0)
    parts: ClassVar[frozenset[str]] = frozenset()
    clamp: ClassVar[Clamp] = "off"
    choices: ClassVar[tuple[int, ...]] = ()
    line: Literal["own", "same"] | None = None
    level_rows: tuple[int, ...] = ()

    @classmethod
    def sized(cls, text: str) -> float:
        """Return K of `name:K`; raise GroupsError, with what was expected, if it is invalid."""
        if not (text.isascii() and text.isdigit() and int(text) in cls.sizes):
            raise GroupsError(f"{cls.name}:K with K from {cls.sizes[0]} to {cls.sizes[-1]}" if cls.sizes else cls.name)
        return int(text)

    @classmethod
    def default_size(cls) -> float | None:
        """Return K of `name` alone; raise GroupsError, with what was expected, if it needs one."""
        return None

    @classmethod
    @abstractmethod
    def learn(cls, size: float | None, given: ColumnBasis, sample: ColumnSample) -> Self:
        """Return the basis of a column; what `given` states is not learned, and `size` is K of `name:K`, or None.

        Raise GroupsError, without the name of the column, if what `given` states is invalid.
        """

    @abstractmethod
    def described(self) -> ColumnBasis:
        """Return the basis as a groups file states it, complete."""

    @property
    @abstractmethod
    def terms(self) -> list[Term]:
        """Return the terms of the column."""

    @property
    def reader(self) -> Reader | None:
        """Return how values are read; None for numbers."""
        return None

    def reduced(self, choice: Choice) -> tuple[Basis, list[tuple[int, int]]]:  # noqa: ARG002
        """Return the basis of one choice, and the terms of this one, (start, stop), whose sum each of its terms is."""
        return self, [(k, k + 1) for k in range(len(self.terms))]


def suffixes(sign: str, values: Iterable[float]) -> list[str]:
    """Return what follows the name of a column, such as >45, for each of some different numbers."""
    numbers = list(values)
    short = [f"{sign}{value:.6g}" for value in numbers]
    return short if len(set(short)) == len(short) else [f"{sign}{value!r}" for value in numbers]


def quantiles(sample: ColumnSample, count: int) -> tuple[float, ...]:
    """Return the quantiles k/(count + 1), k = 1..count."""
    return sample.quantiles(np.arange(1, count + 1) / (count + 1)) if count and len(sample.values) else ()
