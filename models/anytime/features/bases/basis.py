"""The interface of bases: what a raw column becomes, one or several terms.

A basis is one class in one file of this folder, listed in `anytime.features.bases`. Its class has everything that the
library knows of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from anytime.errors import GroupsError
from anytime.groups import ColumnBasis
from anytime.types import Float, Label

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

"auto" chooses among nothing, the training range and "outliers", and None is the default of each basis.
"""

OUTLYING = 2.0
"""An extreme is an outlier from this many times q99 - q1 beyond q99 or q1."""

CURVE = 41
"""Number of points of a drawn curve, or of a period."""


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


class Form(NamedTuple):
    """A term as exports state it.

    Attributes
    ----------
    document : dict[str, Any]
        Its form in the JSON document.
    code : int | str
        In C, what the term is of the value u: k > 0, ((u - a) / b) to the power k; 0, the larger of u - a and 0; -1,
        whether u is a; -2, whether u is missing; otherwise an expression in C of u, a and b, with `NAME` for the prefix
        of the model's names.
    a, b : float
        Numbers of the code.
    helper : str
        C function that the expression calls; exports define it once.
    """

    document: dict[str, Any]
    code: int | str
    a: float = 0.0
    b: float = 1.0
    helper: str = ""


VALUE = Form({"form": "value"}, 1)


class ShapeLevel(NamedTuple):
    """A value that has a contribution of its own.

    Attributes
    ----------
    label : Label | None
        None for all other levels.
    term : int
        The basis's term whose mean is its share of the rows.
    x : float
        A raw value that has the level.
    own : slice | None
        The terms that count; None for all.
    """

    label: Label | None
    term: int
    x: float
    own: slice | None = None


class Reader(Protocol):
    """How the values of a column are read where they are not numbers."""

    @property
    def holds(self) -> str:
        """Return what a value is, for messages."""

    def accepts(self, value: Any) -> bool:
        """Return whether a value is missing or of the right type."""

    def coded(self, values: Iterable[Any]) -> Float:
        """Return the raw number of each value; missing values are None or NaN."""

    def invalid(self, codes: Float) -> tuple[float, str] | None:
        """Return a number that no value has, of some (rows,), and what was expected; None if all are valid."""

    def shown(self, code: float) -> Label | None:
        """Return the value of a raw number, as a request in JSON states it."""


class Basis(ABC):
    """What the values of one column become. A member is a frozen dataclass of what it learns.

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
    by_level : bool
        Whether raw values are indices of `labels`, -1 for every other level.
    """

    name: ClassVar[str]
    fits: ClassVar[frozenset[Kind]]
    example: ClassVar[str] = ""
    default_for: ClassVar[frozenset[Kind]] = frozenset()
    sizes: ClassVar[range] = range(0)
    parts: ClassVar[frozenset[str]] = frozenset()
    clamp: ClassVar[Clamp] = "off"
    choices: ClassVar[tuple[int, ...]] = ()
    by_level: ClassVar[bool] = False

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
    def names(self, column: str) -> list[str]:
        """Return the names of the terms of a column."""

    @abstractmethod
    def expand(self, x: Float, out: Float) -> None:
        """Write the terms (terms, rows) of the values (rows,); a missing value, NaN, makes every term NaN."""

    @abstractmethod
    def described(self) -> ColumnBasis:
        """Return the basis as a groups file states it, complete."""

    @abstractmethod
    def forms(self) -> list[Form]:
        """Return each term as exports state it."""

    @property
    def is_identity(self) -> bool:
        """Return whether the only term is the column itself."""
        return False

    @property
    def pieces(self) -> tuple[Sequence[float], Float] | None:
        """Return knots, and ends (levels, 2) of the common values, if the terms are x, max(x - knot, 0) and indicators.

        Such terms of all columns are computed at once, by `Columns`. None if the terms are others.
        """
        return ((), np.empty((0, 2))) if self.is_identity else None

    @property
    def labels(self) -> tuple[Label, ...]:
        """Return the levels whose indices are the raw values."""
        return ()

    @property
    def open_levels(self) -> tuple[int, ...]:
        """Return the rows of each level, descending, where cross-validation is to select how many a level needs."""
        return ()

    def with_min_level_rows(self, rows: int) -> tuple[Basis, int]:
        """Return the basis without rarer levels, and how many of its terms remain before the one that they share."""
        raise NotImplementedError(f"basis {self.name!r} has no levels of fewer than {rows} rows to share a term")

    @property
    def has_other(self) -> bool:
        """Return whether levels that are not stored share a term; otherwise they count as missing."""
        return False

    @property
    def reader(self) -> Reader | None:
        """Return how values are read; None for numbers."""
        return None

    def with_size(self, size: int) -> tuple[Basis, NDArray[np.bool_]]:
        """Return the basis with one of the `choices`, and which terms of this one it has."""
        raise NotImplementedError(f"basis {self.name!r} has no choice {size}")

    def line(self, low: float, high: float, mean: Float) -> Float | None:  # noqa: ARG002
        """Return the values from low to high between which the terms are linear, or near it, for a drawing.

        None if every value is a level. `mean` is that of the terms in training.
        """
        return np.array([low, high])

    @property
    def off_line(self) -> slice:
        """Return the terms that the line leaves out, because levels show them."""
        return slice(0)

    def shape_levels(self) -> list[ShapeLevel]:
        """Return the values that have a contribution of their own."""
        return []

    def drawn(self, p: Float, mean: Float, scale: Float, ends: tuple[float, float] | None) -> Float:  # noqa: ARG002
        """Return the raw values at probabilities p (n,) of the training rows, from means and deviations of the terms.

        `ends` is the range of the column. By default the first term is the value, and it is normal.
        """
        return np.asarray(mean[0] + scale[0] * ndtri(p))


def distinct_names(column: str, sign: str, values: Iterable[float]) -> list[str]:
    """Return a name such as `age>45` for each of some different numbers."""
    numbers = list(values)
    short = [f"{column}{sign}{value:.6g}" for value in numbers]
    return short if len(set(short)) == len(short) else [f"{column}{sign}{value!r}" for value in numbers]


SINGLE = (2.0**-126, 2.0**24)
"""Float32 keeps a number of at least the first size within 6e-8 of it, and whole numbers below the second exactly."""


def same_values(values: Iterable[float]) -> Float:
    """Return the smallest and the largest number (values, 2) that is the same value as each of some numbers.

    A value is itself in float32 and in float64: numbers with the same float32 form are the same. Where float32 does not
    keep whole numbers apart, and below its normal range, only equal numbers are the same.
    """
    exact = np.array(list(values), dtype=np.float64)
    ends = np.stack([exact, exact], axis=1)
    with np.errstate(over="ignore", under="ignore"):
        form = exact.astype(np.float32)
    near = (np.abs(form) >= SINGLE[0]) & (np.abs(form) < SINGLE[1])
    form = form[near]
    for end, towards in enumerate((-np.inf, np.inf)):
        middle = 0.5 * (form.astype(np.float64) + np.nextafter(form, np.float32(towards)))
        # A tie belongs to the form whose last bit is 0.
        ends[near, end] = np.where(middle.astype(np.float32) == form, middle, np.nextafter(middle, -towards))
    return ends


def distinct_values(values: Float) -> NDArray[np.bool_]:
    """Return which of some ascending numbers are another value than the one before, by `same_values`."""
    with np.errstate(over="ignore", under="ignore"):
        form = values.astype(np.float32)
    near = (np.abs(form) >= SINGLE[0]) & (np.abs(form) < SINGLE[1])
    same = (values[1:] == values[:-1]) | (near[1:] & (form[1:] == form[:-1]))
    return np.concatenate([np.ones(min(1, len(values)), dtype=np.bool_), ~same])


def quantiles(sample: ColumnSample, count: int) -> tuple[float, ...]:
    """Return the quantiles k/(count + 1), k = 1..count."""
    return sample.quantiles(np.arange(1, count + 1) / (count + 1)) if count and len(sample.values) else ()


def distinct(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sorted(set(values)))
