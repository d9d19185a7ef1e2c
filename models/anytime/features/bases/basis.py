"""The interface of bases: which terms a raw column becomes; the simplest of them; and the basis of each column.

A basis is one class in one file of this folder, registered in `anytime.features.bases`. Its class has everything that
the library knows of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from anytime.errors import GroupsError
from anytime.features.operations import VALUE, Term
from anytime.features.readers import Reader
from anytime.groups import ColumnBasis
from anytime.types import Float

MIN_LEVEL_ROWS = 10
"""Rows of the sample that a level, or a common value, needs for an indicator: no indicator discloses a single row."""
LEVEL_ROWS = (10, 5, 2)
"""Numbers of rows from which cross-validation selects how many a level needs."""
MIN_MISSING = 0.01
"""Share of the rows from which missing values of a column have an indicator."""
MAX_WHOLE = 2.0**53
"""Every larger float is a whole number, so that weights of this size do not count rows."""
COUNT_TOLERANCE = 1e-12
"""Rounding of a sum of equal weights, as a share of it."""

Kind: TypeAlias = Literal["number", "integer", "bool", "text", "date", "factor"]
"""Type of a raw column; a factor is a dictionary-encoded column of any type. Each may have missing values."""

NUMERIC: frozenset[Kind] = frozenset({"number", "integer", "date"})
"""Types of columns whose raw values are numbers; a date is seconds since 1970 UTC."""

Clamp: TypeAlias = float | Literal["auto", "off", "outliers"] | None
"""What values are clamped to, see `ColumnSample.ends`; None is the default of each basis.

"auto" clamps curves and dates, and not lines of numbers.
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
    min_level_rows : tuple[int, ...]
        Rows that a level, or a common value, needs for an indicator; of several numbers, the first is that of common
        values, and cross-validation selects that of levels.
    responses : Float | None
        (observed, P) of the same rows, if they are known.
    """

    values: NDArray[Any]
    rows: float
    weights: Float | None = None
    min_level_rows: tuple[int, ...] = (MIN_LEVEL_ROWS,)
    responses: Float | None = None

    @property
    def has_gaps(self) -> bool:
        """Return whether so many rows miss the value that these have an indicator."""
        observed = float(len(self.values)) if self.weights is None else float(self.weights.sum())
        return self.rows - observed >= MIN_MISSING * self.rows > 0

    def mean(self) -> float:
        return float(np.average(self.values, weights=self.weights))

    def deviation(self) -> float:
        return math.sqrt(float(np.average(np.square(self.values - self.mean()), weights=self.weights)))

    def quantiles(self, levels: Sequence[float] | Float) -> tuple[float, ...]:
        """Return quantiles, interpolated as by `numpy.quantile` of as many copies of each value as its weight states.

        A unit of weight is 1 where all weights are whole numbers, else the smallest weight. Empty without values.
        """
        if not len(self.values):
            return ()
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

    def ends(self, clamp: Clamp) -> tuple[float, float] | None:
        """Return the ends that a clamp moves values to; None if it moves none.

        They are the quantiles Q and 1 - Q, or the range of the values. "auto" is the range with q99 or q1 for an end
        that is an outlier, and "outliers" the same, or None if neither end is one.
        """
        if clamp is None or clamp == "off" or not len(self.values):
            return None
        low, high = float(self.values.min()), float(self.values.max())
        if isinstance(clamp, str):
            below, above, _ = self._neighbours([0.01, 0.99])
            # Between two values the inner one, so that one outlier among fewer than a hundred rows changes neither.
            q1, q99 = float(above[0]), float(below[1])
            far = OUTLYING * (q99 - q1)
            found = q1 if q1 - low > far > 0 else low, q99 if high - q99 > far > 0 else high
            return None if clamp == "outliers" and found == (low, high) else found
        if clamp:  # for 0, a quantile of fractional weights may lie within
            low, high = self.quantiles([clamp, 1.0 - clamp])
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
    return bool(((weights == np.floor(weights)) & (weights < MAX_WHOLE)).all())


class Choice(NamedTuple):
    """What cross-validation selects of the bases of all columns; None of what it does not select.

    `size` is the number of hinges, `clamp` whether lines are clamped as curves are, `levels` the least number of rows
    of a level of numbers next to their curve, 0 for no such levels, and `level_rows` that of a level of text. Levels
    without a size have no finer curves.
    """

    size: int | None = None
    clamp: bool | None = None
    levels: int | None = None
    level_rows: int | None = None


CHEAPER = (Choice(levels=min(LEVEL_ROWS)), Choice(levels=0))
"""To select from curves without finer ones, and without levels of numbers, too."""


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
    default : float | None
        K of `name` alone; None if that is invalid.
    parts : frozenset[str]
        Fields of its own in a groups file, which are learned where they are absent.
    clamp : Clamp
        The default clamp of numbers, that of dates being 0; None if values are never clamped.
    line : Literal["own", "same"] | None
        Where it selects between a clamp and a line without one: whether that line is a term of its own, or the same,
        because no training row is outside the clamp.
    level_rows : tuple[int, ...]
        Rows of each level, descending, where it selects how many a level needs.
    points : tuple[float, ...]
        Numbers with an indicator, the most frequent first, where it selects whether they have one; `point_rows` are
        the rows of each, or the number that each needs if that is stated.
    """

    name: ClassVar[str]
    fits: ClassVar[frozenset[Kind]]
    example: ClassVar[str] = ""
    default_for: ClassVar[frozenset[Kind]] = frozenset()
    sizes: ClassVar[range] = range(0)
    default: ClassVar[float | None] = 0
    parts: ClassVar[frozenset[str]] = frozenset()
    clamp: ClassVar[Clamp] = "off"
    line: Literal["own", "same"] | None = None
    level_rows: tuple[int, ...] = ()
    points: tuple[float, ...] = ()
    point_rows: tuple[int, ...] = ()

    @classmethod
    def sized(cls, text: str) -> float:
        """Return K of `name:K`; raise GroupsError, with what was expected, if it is invalid."""
        if not (text.isascii() and text.isdigit() and int(text) in cls.sizes):
            raise GroupsError(f"{cls.name}:K with K from {cls.sizes[0]} to {cls.sizes[-1]}" if cls.sizes else cls.name)
        return int(text)

    @classmethod
    @abstractmethod
    def learn(cls, size: float, given: ColumnBasis, sample: ColumnSample) -> Self:
        """Return the basis of a column; what `given` states is not learned, and `size` is K of `name:K`.

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
    def choices(self) -> tuple[int, ...]:
        """Return the K that cross-validation selects from, ascending; none if it selects nothing."""
        return ()

    @property
    def reader(self) -> Reader | None:
        """Return how values are read; None for numbers."""
        return None

    def reduced(self, choice: Choice) -> tuple[Basis, list[tuple[int, int]]]:  # noqa: ARG002
        """Return the basis of one choice, and the terms of this one, (start, stop), whose sum each of its terms is."""
        return self, [(k, k + 1) for k in range(len(self.terms))]


def suffixes(sign: str, values: Sequence[float]) -> list[str]:
    """Return what follows the name of a column, such as >45, for each of some different numbers."""
    short = [f"{sign}{value:.6g}" for value in values]
    return short if len(set(short)) == len(short) else [f"{sign}{value!r}" for value in values]


@dataclass(frozen=True)
class Linear(Basis):
    """One term, the column itself; booleans are 0 and 1."""

    name: ClassVar[str] = "linear"
    fits: ClassVar[frozenset[Kind]] = NUMERIC | {"bool"}
    default_for: ClassVar[frozenset[Kind]] = frozenset({"number", "integer", "bool"})

    @classmethod
    def learn(cls, size: float, given: ColumnBasis, sample: ColumnSample) -> Self:  # noqa: ARG003
        return cls()

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=self.name)

    @property
    def terms(self) -> list[Term]:
        return [VALUE]


UNSTATED = Linear.name
"""The basis of a column that groups state nothing of once they are learned."""

BASES: dict[str, type[Basis]] = {}
"""Every basis by its name on the command line and in the groups file."""


def register(basis: type[Basis]) -> None:
    """Add a basis; raise TypeError, which names what is absent, if it is incomplete, or if its name is in use."""
    absent = [*(each for each in ("name", "fits") if not hasattr(basis, each)), *sorted(basis.__abstractmethods__)]
    if absent:
        raise TypeError(f"basis {basis.__name__} lacks {', '.join(absent)}; see anytime.features.bases.basis.Basis")
    if BASES.setdefault(basis.name, basis) is not basis:
        raise TypeError(f"two bases have the name {basis.name!r}: {basis.__name__} and {BASES[basis.name].__name__}")


def parsed_basis(text: str) -> tuple[type[Basis], float]:
    """Return the basis and the K that a text such as "hinge:4" names; raise GroupsError if it is invalid."""
    name, colon, size = text.partition(":")
    basis = BASES.get(name)
    if basis is None:
        raise GroupsError(f"there is no basis {text!r}; expected one of {', '.join(BASES)}")
    try:
        return basis, basis.sized(size) if colon or basis.default is None else basis.default
    except GroupsError as error:
        raise GroupsError(f"basis {text!r} is invalid; expected {error}") from None


def default_basis(kind: Kind) -> str:
    """Return the basis of a column for which the user gives none."""
    return next(name for name, basis in BASES.items() if kind in basis.default_for)


def learned(
    name: str, given: ColumnBasis, sample: ColumnSample, kind: Kind | None = None, option: str | None = None
) -> Basis:
    """Return the basis of a column, complete; raise GroupsError, which names the column, if it is invalid.

    Parameters
    ----------
    given : ColumnBasis
        What the groups file states of the column.
    sample : ColumnSample
        Values from which the rest is learned.
    kind : Kind | None
        The type of the column; None accepts any, for groups that are learned.
    option : str | None
        The basis of all columns of a fitting type, or None.
    """
    text = given.basis
    if text is None:
        fitting = kind is not None and option is not None and kind in parsed_basis(option)[0].fits
        text = str(option) if fitting else UNSTATED if kind is None else default_basis(kind)
    try:
        return _checked(text, given, sample, kind)
    except GroupsError as error:
        raise GroupsError(f"column {name!r}: {error}") from None


def _checked(text: str, given: ColumnBasis, sample: ColumnSample, kind: Kind | None) -> Basis:
    """Return the basis that a text names; raise GroupsError if what is stated or learned is invalid."""
    basis, size = parsed_basis(text)
    stated = given.model_dump(exclude_none=True, exclude={"basis", "range", "missing", "quantiles"})
    other = next((part for part in stated if part not in basis.parts), None)
    if other is not None:
        fields = ", ".join([*sorted(basis.parts), *([] if basis.clamp is None else ["range"]), "missing"])
        raise GroupsError(f"it states {other}, which basis {text!r} lacks; expected some of {fields}")
    if given.range is not None and basis.clamp is None:
        raise GroupsError(f"it states the range {list(given.range)}, but basis {text!r} has none; omit the range")
    if kind is not None and kind not in basis.fits:
        fitting = [each.name for each in BASES.values() if kind in each.fits]
        raise GroupsError(f"it holds {_HOLDS[kind]} and has basis {text!r}; expected {' or '.join(fitting)}")
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not finite, and refused below
        found = basis.learn(size, given, sample)
    try:
        found.described()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = f"{first['loc'][0]} {first['input']!r}" if first["loc"] else "an invalid value"
        raise GroupsError(
            f"basis {text!r} learned {what} from its values, which are too large or too small; rescale the column"
        ) from None
    return found


_HOLDS: Mapping[Kind, str] = {
    "number": "numbers",
    "integer": "whole numbers",
    "bool": "booleans",
    "text": "text",
    "date": "dates",
    "factor": "levels of a dictionary",
}
