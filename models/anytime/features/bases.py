"""Bases: what a raw column becomes, one or several terms.

To add a basis, write a class like those below, list it in `BASES`, and add it to `model/export.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anytime.errors import GroupsError
from anytime.groups import ColumnBasis
from anytime.types import Float, Label

DEGREE = 3
"""Degree of a polynomial that states none."""
KNOTS = 4
"""Knots of a hinge basis that states none."""
COMMON_SHARE = 0.1
"""A value that more than this share of the rows have gets an indicator."""
MAX_INDICATORS = 5
MIN_ROWS = 10
"""Rows of the sample that a level, or a common value, needs for an indicator: no indicator discloses a single row."""
MAX_LEVELS = 256
COUNT_TOLERANCE = 1e-12
"""Rounding of a sum of equal weights, as a share of it."""
EXACT = 2**53
"""Floats represent all smaller whole numbers; levels are read as floats where a table or a client has no integers."""

Kind: TypeAlias = Literal["number", "integer", "bool", "text", "factor"]
"""Type of a raw column; a factor is a dictionary-encoded column of any type. Each may have missing values."""

NUMERIC: frozenset[Kind] = frozenset({"number", "integer"})


@dataclass(frozen=True)
class ColumnSample:
    """Values of a column in a sample of the rows, without missing ones; a row of weight 3 counts as three rows.

    Attributes
    ----------
    values : (observed,) of numbers, booleans or text.
    rows : weight of all rows of the sample, also of those that miss the value.
    weights : (observed,) above 0, or None for weight 1.
    """

    values: NDArray[Any]
    rows: float
    weights: Float | None = None

    @property
    def observed(self) -> float:
        """Return the weight of the rows that have a value."""
        return float(len(self.values)) if self.weights is None else float(self.weights.sum())

    def mean(self) -> float:
        return float(np.average(self.values, weights=self.weights))

    def deviation(self) -> float:
        return math.sqrt(float(np.average(np.square(self.values - self.mean()), weights=self.weights)))

    def quantiles(self, levels: Many[float] | Float) -> tuple[float, ...]:
        """Return quantiles, interpolated as by `numpy.quantile` of as many copies of each value as its weight states.

        A unit of weight is 1 where all weights are whole numbers, else the smallest weight.
        """
        if self.weights is None or (self.weights == 1).all():
            return tuple(np.quantile(self.values, levels).tolist())
        order = np.argsort(self.values, kind="stable")
        unit = 1.0 if are_whole(self.weights) else float(self.weights.min())
        ends, sorted_values = np.cumsum(self.weights[order]) / unit, self.values[order]
        nearest = np.rint(ends)
        ends = np.where(np.abs(ends - nearest) <= COUNT_TOLERANCE * ends, nearest, ends)
        at = np.asarray(levels) * (ends[-1] - 1.0)
        low = np.floor(at)
        below, above = (
            sorted_values[np.searchsorted(ends, copy, side="right").clip(max=len(ends) - 1)]
            for copy in (low, np.ceil(at))
        )
        share, step = at - low, above - below
        # From the nearer of both, as numpy does, so that equal samples have equal quantiles.
        return tuple(np.where(share < 0.5, below + share * step, above - (1 - share) * step).tolist())

    def counts(self) -> tuple[NDArray[Any], Float]:
        """Return the different values, ascending, and the weight of each."""
        found, places = np.unique(self.values, return_inverse=True)
        return found, np.bincount(places, self.weights, len(found)).astype(np.float64)


def are_whole(weights: Float) -> bool:
    return bool((weights == np.floor(weights)).all())


class Basis(Protocol):
    """What the values of one column become."""

    name: ClassVar[str]
    fits: ClassVar[frozenset[Kind]]
    """Types of the columns that may have this basis."""
    sizes: ClassVar[range]
    """Valid K of `name:K`; empty if the basis has no size."""

    @classmethod
    def learn(cls, size: int | None, given: ColumnBasis, sample: ColumnSample) -> Self:
        """Return the basis of a column; what `given` states is not learned, and `size` is K of `name:K`, or None.

        Raise GroupsError, without the name of the column, if what `given` states is invalid.
        """

    def names(self, column: str) -> list[str]:
        """Return the names of the terms of a column."""

    def expand(self, x: Float, out: Float) -> None:
        """Write the terms (terms, rows) of the values (rows,); a missing value, NaN, makes every term NaN."""

    def described(self) -> ColumnBasis:
        """Return the basis as a groups file states it, complete."""


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
    """Return which of some ascending numbers are another value than the one before."""
    lows = same_values(values)[:, 0]
    return np.concatenate([np.ones(min(1, len(lows)), dtype=np.bool_), lows[1:] != lows[:-1]])


@dataclass(frozen=True)
class Linear:
    """One term, the column itself; booleans are 0 and 1."""

    name: ClassVar[str] = "linear"
    fits: ClassVar[frozenset[Kind]] = NUMERIC | {"bool"}
    sizes: ClassVar[range] = range(0)

    @classmethod
    def learn(cls, size: int | None, given: ColumnBasis, sample: ColumnSample) -> Self:  # noqa: ARG003
        return cls()

    def names(self, column: str) -> list[str]:
        return [column]

    def expand(self, x: Float, out: Float) -> None:
        out[0] = x

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=self.name)


@dataclass(frozen=True)
class Polynomial:
    """Terms z, z^2, ..., z^P of z = (x - centre) / scale (Group-OMP, section 6)."""

    name: ClassVar[str] = "poly"
    fits: ClassVar[frozenset[Kind]] = NUMERIC
    sizes: ClassVar[range] = range(1, 11)

    degree: int
    centre: float
    scale: float

    @classmethod
    def learn(cls, size: int | None, given: ColumnBasis, sample: ColumnSample) -> Self:
        known = len(sample.values) > 0
        centre = given.centre if given.centre is not None else sample.mean() if known else 0.0
        scale = given.scale if given.scale is not None else sample.deviation() if known else 1.0
        if not scale > 0:
            if given.scale is not None:
                raise GroupsError(f"its scale is {scale:g}; expected a number > 0")
            scale = 1.0  # a constant column, whose terms are constant whatever the scale
        return cls(size or DEGREE, centre, scale)

    def names(self, column: str) -> list[str]:
        return [column, *(f"{column}^{power}" for power in range(2, self.degree + 1))]

    def expand(self, x: Float, out: Float) -> None:
        np.subtract(x, self.centre, out=out[0])
        out[0] /= self.scale
        with np.errstate(over="ignore"):  # extreme values; the caller checks the result
            for power in range(1, self.degree):
                np.multiply(out[power - 1], out[0], out=out[power])

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=f"{self.name}:{self.degree}", centre=self.centre, scale=self.scale)


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
    def learn(cls, size: int | None, given: ColumnBasis, sample: ColumnSample) -> Self:
        K = KNOTS if size is None else size
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
    def learn(cls, size: int | None, given: ColumnBasis, sample: ColumnSample) -> Self:  # noqa: ARG003
        octiles = quantiles(sample, 7) if given.knots is None else given.knots
        if len(octiles) not in (0, 7) or list(octiles) != sorted(octiles):
            raise GroupsError(f"its knots are {list(octiles)}; expected seven octiles in ascending order")
        return cls(7, distinct(octiles), cls._levels(given, sample), octiles)

    def hinge(self, size: int) -> Hinge:
        """Return the basis `hinge:K` of the same values."""
        every = 8 // (size + 1)
        return Hinge(size, distinct(self.octiles[every - 1 :: every] if size else ()), self.levels)

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=self.name, knots=self.octiles, levels=self.levels)


def quantiles(sample: ColumnSample, count: int) -> tuple[float, ...]:
    """Return the quantiles k/(count + 1), k = 1..count."""
    if not len(sample.values) or not count:
        return ()
    return sample.quantiles(np.arange(1, count + 1) / (count + 1))


def distinct(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sorted(set(values)))


def common_values(sample: ColumnSample) -> tuple[float, ...]:
    """Return the values that more than a tenth of the rows have, and 10 rows or more: at most five, ascending."""
    found, counts = sample.counts()
    if len(found):  # forms of one value in float32 and float64 are counted together; the most frequent one names it
        firsts = np.flatnonzero(distinct_values(found))
        order = np.lexsort((-counts, np.repeat(firsts, np.diff(firsts, append=len(found)))))
        found, counts = found[order[firsts]], np.add.reduceat(counts, firsts)
    common = np.flatnonzero((counts > COMMON_SHARE * sample.rows) & (counts >= MIN_ROWS))
    most = common[np.argsort(-counts[common], kind="stable")][:MAX_INDICATORS]
    return tuple(np.sort(found[most]).tolist())


def is_missing(value: Any) -> bool:
    """Return whether a value of a column of categories is missing: None or NaN."""
    return value is None or (isinstance(value, float | np.floating) and math.isnan(value))


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
    def learn(cls, size: int | None, given: ColumnBasis, sample: ColumnSample) -> Self:  # noqa: ARG003
        if given.range is not None:
            raise GroupsError(f"it has the range {list(given.range)} and basis {cls.name!r}; expected no range")
        # Integers with gaps are read as floats.
        found, weights = (part.tolist() for part in sample.counts())
        broken = next((value for value in found if isinstance(value, float) and not value.is_integer()), None)
        if broken is not None:
            raise GroupsError(f"it holds {broken:g} and has basis {cls.name!r}; expected text or whole numbers")
        counts = {int(value) if isinstance(value, float) else value: w for value, w in zip(found, weights, strict=True)}
        levels = given.levels
        if levels is None:
            by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            levels = tuple(level for level, count in by_count if count >= MIN_ROWS)[:MAX_LEVELS]
        elif len(levels) > MAX_LEVELS or not (levels or given.other):
            raise GroupsError(f"it has {len(levels)} levels; expected 1 to {MAX_LEVELS}")
        elif counts and any(isinstance(level, str) != isinstance(next(iter(counts)), str) for level in levels):
            raise GroupsError(f"its levels are {list(levels)} and a value is {next(iter(counts))!r}; expected one type")
        rounded = [level for level in levels if isinstance(level, int) and abs(level) >= EXACT]
        if rounded:
            what = f"it has level {rounded[0]}, and numbers of 2^53 or more are rounded"
            raise GroupsError(f"{what}; expected smaller whole numbers, or text")
        if len(set(levels)) < len(levels):
            twice = next(level for level, count in Counter(levels).items() if count > 1)
            raise GroupsError(f"it has level {twice!r} twice; expected each level once")
        # A column without values, or with rare ones only, has the one term `other`.
        other = given.other if given.other is not None else not levels or bool(set(counts).difference(levels))
        return cls(levels, other)

    @cached_property
    def _codes(self) -> dict[Any, float]:
        return {level: float(code) for code, level in enumerate(self.levels)}

    def coded(self, values: Iterable[Any]) -> Float:
        """Return the index of the level of each value; missing values are None or NaN."""
        codes, unknown = self._codes, -1.0 if self.other else math.nan
        return np.array([math.nan if is_missing(v) else codes.get(v, unknown) for v in values])

    @cached_property
    def holds(self) -> str:
        """Return what a value is, for messages."""
        if all(isinstance(level, str) for level in self.levels):
            return "text"
        return "true or false" if all(isinstance(level, bool) for level in self.levels) else "a whole number"

    def accepts(self, value: Any) -> bool:
        """Return whether a value is missing or of the type of the levels, whichever of them it is."""
        if is_missing(value):
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


BASES: Mapping[str, type[Basis]] = {basis.name: basis for basis in (Linear, Hinge, Polynomial, Categories, Octiles)}
"""Every basis by its name on the command line and in the groups file."""


def parsed_basis(text: str) -> tuple[type[Basis], int | None]:
    """Return the basis and the K that a text such as "hinge:4" names; raise GroupsError if it is invalid."""
    name, colon, size = text.partition(":")
    basis = BASES.get(name)
    if basis is None:
        raise GroupsError(f"there is no basis {text!r}; expected one of {', '.join(BASES)}")
    if not colon:
        return basis, None
    if not (size.isascii() and size.isdigit() and int(size) in basis.sizes):
        sizes = f"{name}:K with K from {basis.sizes[0]} to {basis.sizes[-1]}" if basis.sizes else repr(name)
        raise GroupsError(f"basis {text!r} is invalid; expected {sizes}")
    return basis, int(size)


def default_basis(kind: Kind) -> str:
    """Return the basis of a column for which the user gives none."""
    return Categories.name if kind in ("text", "factor") else Linear.name


def learned(given: ColumnBasis, kind: Kind, option: str | None, sample: ColumnSample) -> Basis:
    """Return the basis of a column; raise GroupsError, without its name, if the basis does not fit its type.

    `given` is what the groups file states of the column, `option` the basis of all columns of a fitting type, or None.
    """
    text = given.basis
    if text is None:
        text = option if option is not None and kind in parsed_basis(option)[0].fits else default_basis(kind)
    basis, size = parsed_basis(text)
    if kind not in basis.fits:
        fitting = [each.name for each in BASES.values() if kind in each.fits]
        raise GroupsError(f"it holds {_HOLDS[kind]} and has basis {text!r}; expected {' or '.join(fitting)}")
    return basis.learn(size, given, sample)


_HOLDS: Mapping[Kind, str] = {
    "number": "numbers",
    "integer": "whole numbers",
    "bool": "booleans",
    "text": "text",
    "factor": "levels of a dictionary",
}
