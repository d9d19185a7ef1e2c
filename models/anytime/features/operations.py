"""Operations: everything that a term can be of the value of its column.

A term is data: an operation, its parameters and a name. A basis learns the terms of a column. The operation has
everything else: how NumPy computes it for one row and for many, how a JSON document and C state it, and where its curve
is drawn.

To add an operation, write a class like the others, list it in `OPERATIONS`, and explain its form at the head of
`anytime.model.export`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anytime.features.readers import DAY, FIRST, LAST
from anytime.types import Bool, Float, Index, Label

CURVE = 41
"""Number of points of a drawn curve, or of a period."""


@dataclass(frozen=True)
class Operation(ABC):
    """What a term is of the value u of its column and of two numbers, a and b.

    Attributes
    ----------
    form : str
        Its name in the JSON document.
    code : int | str
        In C: 1, ((u - a) / b) to the power of the term; 0, the larger of u - a and 0; -1, whether u is a; -2, whether u
        is missing; otherwise an expression in C of u, a, b and `raw`, the value before it was clamped, with `NAME` for
        the prefix of the model's names.
    helper : str
        C function that the expression calls; exports define it once.
    stated : Mapping[str, str]
        What the JSON document states of a term besides its form: names, each with the field of the term.
    floor : float | None
        Of an operation max(u - a, floor): these are computed at once, for all columns. None for others.
    part : str | None
        For an indicator, what its levels are of: "value", or a part of it that recurs. None for others.
    by_column : bool
        Whether the terms of one column, which may be many, are computed together.
    raw : bool
        Whether it is of the value before it was clamped, as the parts of a date are, which recur.
    straight : bool
        Whether it is drawn as a straight line, but for levels, which are drawn apart.
    """

    form: ClassVar[str]
    code: ClassVar[int | str]
    helper: ClassVar[str] = ""
    stated: ClassVar[Mapping[str, str]] = {}
    floor: ClassVar[float | None] = None
    part: ClassVar[str | None] = None
    by_column: ClassVar[bool] = False
    raw: ClassVar[bool] = False
    straight: ClassVar[bool] = False

    @abstractmethod
    def values(self, x: Float, of: Operands) -> NDArray[Any]:
        """Return the terms (terms, rows); NaN where a value is missing.

        x are the values of their columns, (terms, rows), or (rows,) if they have one column.
        """

    def write(self, x: Float, of: Operands, out: Float) -> None:
        """Write all terms of this operation, of the values x (columns, rows), into the terms out (all terms, rows)."""
        if not self.by_column:
            out[of.terms] = self.values(x[of.columns], of)
            return
        for column, places, own in of.runs:
            out[places] = self.values(x[column], own)

    def corners(self, term: Term, low: float, high: float) -> Sequence[float] | Float:  # noqa: ARG002
        """Return the values from low to high between which the term is drawn as straight lines."""
        return (low, high) if self.straight else np.linspace(low, high, CURVE)

    def of_level(self, a: float) -> float:
        """Return a value that has the level a."""
        return a

    def drawn(self, term: Term, p: Float, t: Float) -> Float:  # noqa: ARG002
        """Return the values at probabilities p (n,), if the quantiles of the term, a line of u, would be t (n,)."""
        return term.a + term.b * t


class Term(NamedTuple):
    """A term of a column.

    Attributes
    ----------
    suffix : str
        What follows the column's name in the name of the term.
    a, b : float
        Parameters of the operation.
    label : Label | None
        Of an indicator: its level as it is shown, or None for all other levels.
    power : int
        To which ((u - a) / b) is raised, if the operation is that.
    """

    operation: Operation
    suffix: str = ""
    a: float = 0.0
    b: float = 1.0
    label: Label | None = None
    power: int = 1

    @property
    def code(self) -> int | str:
        """Return `Operation.code`, or the power."""
        return self.power if self.operation.code == 1 else self.operation.code

    @property
    def document(self) -> dict[str, Any]:
        stated = self.operation.stated
        return {"form": self.operation.form, **{name: getattr(self, field) for name, field in stated.items()}}


class Operands:
    """Terms of an operation in some columns: their places (terms,), their columns, and their parameters (terms, 1)."""

    def __init__(self, found: Iterable[tuple[int, int, Term]]) -> None:
        """Store a place, a column and a term each, in ascending order of the places."""
        self.listed = list(found)
        self.terms: Index = np.array([place for place, _, _ in self.listed], dtype=np.intp)
        self.columns: Index = np.array([column for _, column, _ in self.listed], dtype=np.intp)
        self.a = np.array([[term.a] for *_, term in self.listed], dtype=np.float64)
        self.b = np.array([[term.b] for *_, term in self.listed], dtype=np.float64)
        self.powers: Index = np.array([term.power for *_, term in self.listed], dtype=np.intp)
        self.floors = np.array([[term.operation.floor] for *_, term in self.listed], dtype=np.float64)
        self.floors[np.isnan(self.floors)] = -np.inf

    @cached_property
    def same(self) -> tuple[Float, Float]:
        """Return the smallest and the largest number (terms, 1) that is the same value as a, by `same_values`."""
        ends = same_values(self.a[:, 0])
        return ends[:, :1], ends[:, 1:]

    @cached_property
    def runs(self) -> list[tuple[int, slice, Operands]]:
        """Return each column with the places of its terms, which follow each other, and these terms."""
        own = [Operands(of_column) for _, of_column in groupby(self.listed, key=lambda each: each[1])]
        return [(int(each.columns[0]), slice(int(each.terms[0]), int(each.terms[-1]) + 1), each) for each in own]


@dataclass(frozen=True)
class Value(Operation):
    """The value itself; true and false are 1 and 0."""

    form = "value"
    code = 1
    floor: ClassVar[float | None] = -math.inf
    straight = True

    def values(self, x: Float, of: Operands) -> Float:
        return np.maximum(x - of.a, of.floors)


@dataclass(frozen=True)
class Line(Value):
    """The value itself, before it was clamped."""

    floor = None
    raw = True


@dataclass(frozen=True)
class Hinge(Value):
    """The larger of u - a and 0."""

    form = "hinge"
    code = 0
    stated: ClassVar[Mapping[str, str]] = {"knot": "a"}
    floor = 0.0

    def corners(self, term: Term, low: float, high: float) -> Sequence[float]:
        return [term.a] if low < term.a < high else []


@dataclass(frozen=True)
class Power(Operation):
    """((u - a) / b) to the power of the term."""

    form = "power"
    code = 1
    stated: ClassVar[Mapping[str, str]] = {"power": "power", "centre": "a", "scale": "b"}
    by_column = True

    def values(self, x: Float, of: Operands) -> Float:
        z = (x - of.a[0]) / of.b[0]  # the powers of a column have one z
        with np.errstate(over="ignore"):  # extreme values; the caller checks the result
            return np.multiply.accumulate(np.broadcast_to(z, (of.powers.max(), len(z))))[of.powers - 1]

    def corners(self, term: Term, low: float, high: float) -> Sequence[float] | Float:
        return (low, high) if term.power == 1 else super().corners(term, low, high)


@dataclass(frozen=True)
class Sine(Operation):
    """The sine of 2 pi u / b."""

    form = "sine"
    code = f"sin({2 * math.pi!r} * (fmod(u, b) / b))"
    stated: ClassVar[Mapping[str, str]] = {"period": "b"}
    function: ClassVar[np.ufunc] = np.sin

    def values(self, x: Float, of: Operands) -> Float:
        return np.asarray(self.function(2 * math.pi * (np.fmod(x, of.b) / of.b)))

    def corners(self, term: Term, low: float, high: float) -> Float:  # noqa: ARG002
        """Return values of one period."""
        start = math.floor(low / term.b) * term.b
        return np.linspace(start, start + term.b, CURVE)

    def drawn(self, term: Term, p: Float, t: Float) -> Float:  # noqa: ARG002
        """Return values of one period, each as likely."""
        return p * term.b


@dataclass(frozen=True)
class Cosine(Sine):
    """The cosine of 2 pi u / b."""

    form = "cosine"
    code = f"cos({2 * math.pi!r} * (fmod(u, b) / b))"
    function = np.cos


@dataclass(frozen=True)
class Level(Operation):
    """Whether the number u is the same value as a, by `same_values`."""

    form = "level"
    code: ClassVar[int | str] = -1
    stated: ClassVar[Mapping[str, str]] = {"level": "label"}
    part = "value"
    straight = True

    def values(self, x: Float, of: Operands) -> Float:
        low, high = of.same
        return np.asarray(((x >= low) & (x <= high)) + 0.0 * x)  # NaN where missing


@dataclass(frozen=True)
class Category(Level):
    """Whether u is the index a of a level."""

    by_column = True

    def part_of(self, x: Float) -> Float | Index:
        """Return the level of each value (...) that is not missing."""
        return x

    def values(self, x: Float, of: Operands) -> NDArray[Any]:
        missing = np.isnan(x)
        if not missing.any():
            return np.asarray(self.part_of(x) == of.a)
        return np.where(missing, np.nan, self.part_of(np.where(missing, 0.0, x)) == of.a)


@dataclass(frozen=True)
class Other(Category):
    """Whether u is -1, which stands for every level without a term."""

    form = "other"
    stated: ClassVar[Mapping[str, str]] = {}


@dataclass(frozen=True)
class Missing(Operation):
    """Whether u is missing."""

    form = "missing"
    code = -2

    def values(self, x: Float, of: Operands) -> Float:  # noqa: ARG002
        return np.isnan(x).astype(np.float64)


CALENDAR = """
/* Return the month (1 to 12), the weekday (0 is Monday) or the hour of seconds since 1970 UTC, as `part` is 0, 1, 2. */
static int NAME_calendar(double seconds, int part)
{
    seconds = seconds < -62135596800.0 ? -62135596800.0 : seconds > 253402300799.0 ? 253402300799.0 : seconds;
    const double day = floor(seconds / 86400);
    if (part == 2)
        return (int)((seconds - day * 86400) / 3600);
    const long days = (long)day + 719162; /* since 1 January of year 1, a Monday */
    if (part == 1)
        return (int)(days % 7);
    static const int starts[13] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365};
    const long cycle = days % 146097; /* 400 years */
    const long century = cycle / 36524 - cycle / 146096, rest = cycle - century * 36524;
    const long four = rest / 1461, year = (rest - four * 1461) / 365 - (rest - four * 1461) / 1460;
    const int leap = year == 3 && (four != 24 || century == 3);
    const long of_year = rest - four * 1461 - year * 365;
    int month = 1;
    while (of_year >= starts[month] + (leap && month >= 2))
        month++;
    return month;
}
"""


@dataclass(frozen=True)
class Part(Category):
    """Whether a part of the date u that recurs is a; `first` and `last` are its least and largest value."""

    helper = CALENDAR
    stated: ClassVar[Mapping[str, str]] = {"level": "a"}
    raw = True
    first: ClassVar[int]
    last: ClassVar[int]
    words: ClassVar[tuple[str, ...]] = ()

    def named(self, value: int) -> str:
        return f"{self.form}={self.words[value] if self.words else value}"

    def of_level(self, a: float) -> float:
        hours = np.arange(365.0 * 24) * 3600
        return float(hours[self.part_of(hours) == a][0])


@dataclass(frozen=True)
class Month(Part):
    """Whether the month of the date u is a, from 1."""

    form = part = "month"
    code = "NAME_calendar(raw, 0) == a"
    first, last = 1, 12

    def part_of(self, x: Float) -> Index:
        return _days(x).astype("M8[D]").astype("M8[M]").astype(np.intp) % 12 + 1


@dataclass(frozen=True)
class Weekday(Part):
    """Whether the weekday of the date u is a; 0 is Monday."""

    form = part = "weekday"
    code = "NAME_calendar(raw, 1) == a"
    first, last = 0, 6
    words = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

    def part_of(self, x: Float) -> Index:
        return (_days(x).astype(np.intp) + 3) % 7


@dataclass(frozen=True)
class Hour(Part):
    """Whether the hour of the date u is a."""

    form = part = "hour"
    code = "NAME_calendar(raw, 2) == a"
    first, last = 0, 23

    def part_of(self, x: Float) -> Index:
        return ((np.clip(x, FIRST, LAST) - _days(x) * DAY) / 3600).astype(np.intp)


def _days(x: Float) -> Float:
    return np.asarray(np.floor(np.clip(x, FIRST, LAST) / DAY))


@dataclass(frozen=True)
class Ramp(Operation):
    """The distance of u from a, at most that of b: min(max(u, a), b) - a. A factor of pairs."""

    form = "ramp"
    code = 0
    stated: ClassVar[Mapping[str, str]] = {"knot": "a", "end": "b"}

    def values(self, x: Float, of: Operands) -> Float:
        return np.asarray(np.clip(x, of.a, of.b) - of.a)


OPERATIONS: dict[str, type[Operation]] = {
    each.__name__: each
    for each in (Value, Line, Hinge, Power, Sine, Cosine, Level, Category, Other, Missing, Month, Weekday, Hour, Ramp)
}
"""Every operation by the name of its class."""

VALUE, LINE, MISSING = Term(Value()), Term(Line(), " as a line"), Term(Missing(), " is missing")


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


def distinct_values(values: Float) -> Bool:
    """Return which of some ascending numbers are another value than the one before, by `same_values`."""
    with np.errstate(over="ignore", under="ignore"):
        form = values.astype(np.float32)
    near = (np.abs(form) >= SINGLE[0]) & (np.abs(form) < SINGLE[1])
    same = (values[1:] == values[:-1]) | (near[1:] & (form[1:] == form[:-1]))
    return np.concatenate([np.ones(min(1, len(values)), dtype=np.bool_), ~same])
