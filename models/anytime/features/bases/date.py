"""Basis `date`: trend, month, weekday and hour of a date or a timestamp; and how dates are read.

A date is seconds since 1970 UTC; a time without a zone is UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from anytime.errors import GroupsError
from anytime.features.bases.basis import Basis, Clamp, ColumnSample, Form, Kind, ShapeLevel
from anytime.groups import ColumnBasis
from anytime.types import Float, Index

DAY, YEAR = 86_400.0, 31_556_952.0
"""Seconds of a day, and of the mean year of the calendar."""

FIRST, LAST = -62_135_596_800.0, 253_402_300_799.0
"""The first and the last second of the years 1 to 9999."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?\s?(Z|z|UTC|[+-]\d{2}(:?\d{2})?)?)?", re.ASCII)
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_OTHER_FORM = re.compile(
    rf"""(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,?\s+)?
    (?: \d{{4}}[./-]\d{{1,2}}[./-]\d{{1,2}} | \d{{1,2}}[./-]\d{{1,2}}[./-]\d{{4}} | \d{{1,2}}/\d{{1,2}}/\d{{2}}
      | \d{{2}}[.-]\d{{2}}[.-]\d{{2}} | \d{{1,2}}[\s./-]*{_MONTH}[\s.,/-]*(?:\d{{4}}|\d{{2}})
      | {_MONTH}\s*\d{{1,2}}(?:st|nd|rd|th)?,?\s+\d{{4}} | \d{{4}}[\s./-]+{_MONTH}[\s./-]+\d{{1,2}} )
    (?:[T\s,]+\d{{1,2}}[:.]\d{{2}}(?:[:.]\d{{2}}(?:[.,]\d+)?)?(?:\s*[ap]\.?m\.?)?(?:\s*[A-Z]{{1,4}})?(?:\s*[+-]\d\d:?\d\d)?)?
    """,
    re.VERBOSE | re.ASCII | re.IGNORECASE,
)


def seconds_of(value: Any) -> float:
    """Return a date, a datetime, a date of NumPy or a text in ISO form as seconds; NaN for anything else."""
    if isinstance(value, np.datetime64):
        whole = value.astype("M8[us]")
        return math.nan if np.isnat(whole) else float(whole.astype(np.int64) / 1e6)
    if isinstance(value, str):
        text = value.strip()
        if not _ISO.fullmatch(text):
            return math.nan
        try:
            value = datetime.fromisoformat(text.removesuffix("UTC").strip().replace("z", "Z"))
        except ValueError:
            return math.nan
    if not isinstance(value, date) or type(value).__name__ == "NaTType":
        return math.nan
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    return float((value.replace(tzinfo=UTC) if value.tzinfo is None else value).__sub__(_EPOCH).total_seconds())


class Dates:
    """How the values of a column of dates are read, whatever its basis."""

    holds = "seconds since 1970 UTC or an ISO date, of the years 1 to 9999"

    def accepts(self, value: Any) -> bool:
        is_nat = type(value).__name__ in ("NaTType", "NAType") or (isinstance(value, np.datetime64) and np.isnat(value))
        if value is None or is_nat:
            return True
        if isinstance(value, bool | np.bool_):
            return False
        if isinstance(value, int | float | np.number):
            return bool(math.isnan(value) or FIRST <= value <= LAST)
        return FIRST <= seconds_of(value) <= LAST

    def coded(self, values: Iterable[Any]) -> Float:
        is_number = (int, float, np.number)
        return np.array([float(v) if isinstance(v, is_number) else seconds_of(v) for v in values], dtype=np.float64)

    def invalid(self, codes: Float) -> tuple[float, str] | None:
        wrong = codes[(codes < FIRST) | (codes > LAST)]
        return (float(wrong[0]), self.holds) if len(wrong) else None

    def bounded(self, codes: Float) -> Float:
        """Return seconds, infinite where they are beyond the years 1 to 9999, as are numbers too large for a float."""
        return np.where(codes < FIRST, -np.inf, np.where(codes > LAST, np.inf, codes))

    def has_other_form(self, text: str) -> bool:
        """Return whether a text is a date in another form than ISO, such as 17.05.2024 or May 17, 2024."""
        return math.isnan(seconds_of(text)) and _OTHER_FORM.fullmatch(text.strip()) is not None

    def check(self, codes: Float) -> None:
        """Raise GroupsError if dates of a column are numbers of another kind than seconds: 20240517, or years."""
        days = codes[~np.isnan(codes)]
        whole = len(days) > 0 and bool((days == np.floor(days)).all())
        if whole and days.min() >= 1000 and days.max() <= 99_991_231:
            month, day = days // 100 % 100, days % 100
            is_day = days.min() >= 10_000_101 and ((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all()
            if is_day or days.max() < 3000:
                what = "days written as numbers" if is_day else "years"
                raise GroupsError(
                    f"its values, as {days[0]:.0f}, look like {what}; expected {self.holds}: write them as 2024-05-17, "
                    "or state another basis"
                )

    def shown(self, code: float) -> str:
        """Return a date as text: without its time where that is midnight."""
        seconds = min(max(code, FIRST), LAST)
        moment = np.datetime64(round(seconds), "s").item()
        return str(moment.isoformat() + "Z" if seconds % DAY else moment.date().isoformat())


DATES = Dates()

_CALENDAR = """
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


class _Part(NamedTuple):
    """A part of a date that recurs: its field in a groups file, its name, its code in C, its least and last value."""

    field: str
    name: str
    code: int
    first: int
    last: int
    words: tuple[str, ...] = ()

    def label(self, value: int) -> str:
        return f"{self.name}={self.words[value] if self.words else value}"

    def of(self, x: Float) -> Index:
        """Return the part of some dates (rows,)."""
        x = np.clip(x, FIRST, LAST)
        days = np.floor(x / DAY)
        if self.name == "hour":
            return ((x - days * DAY) / 3600).astype(np.intp)
        if self.name == "weekday":
            return (days.astype(np.intp) + 3) % 7
        return days.astype("M8[D]").astype("M8[M]").astype(np.intp) % 12 + 1


PARTS = (
    _Part("months", "month", 0, 1, 12),
    _Part("weekdays", "weekday", 1, 0, 6, ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")),
    _Part("hours", "hour", 2, 0, 23),
)


@dataclass(frozen=True)
class Date(Basis):
    """The years since `centre`, and an indicator for each month, weekday and hour that enough rows have.

    A part that does not vary has no terms, and one of two values has one term.
    """

    name: ClassVar[str] = "date"
    fits: ClassVar[frozenset[Kind]] = frozenset({"date", "number", "integer"})
    default_for: ClassVar[frozenset[Kind]] = frozenset({"date"})
    parts: ClassVar[frozenset[str]] = frozenset({"centre", *(part.field for part in PARTS)})
    clamp: ClassVar[Clamp] = None

    centre: float
    values: tuple[tuple[int, ...], ...]

    @classmethod
    def learn(cls, size: float | None, given: ColumnBasis, sample: ColumnSample) -> Self:  # noqa: ARG003
        DATES.check(sample.values.astype(np.float64))
        centre = given.centre if given.centre is not None else sample.mean() if len(sample.values) else 0.0
        varies = len(np.unique(sample.values)) > 2
        return cls(centre, tuple(cls._values(part, given, sample, varies=varies) for part in PARTS))

    @staticmethod
    def _values(part: _Part, given: ColumnBasis, sample: ColumnSample, *, varies: bool) -> tuple[int, ...]:
        if (stated := (given.model_extra or {}).get(part.field)) is not None:
            whole = isinstance(stated, tuple) and all(type(v) is int and part.first <= v <= part.last for v in stated)
            if not whole or list(stated) != sorted(set(stated)):
                raise GroupsError(
                    f"its {part.field} are {stated}; expected different whole numbers from {part.first} to "
                    f"{part.last}, ascending"
                )
            return tuple(stated)
        counts = np.bincount(part.of(sample.values.astype(np.float64)), sample.weights, part.last + 1)
        if not varies or np.count_nonzero(counts) == 1:
            return ()
        frequent = np.flatnonzero(counts >= sample.min_level_rows).tolist()
        return tuple(frequent[1:] if len(frequent) == np.count_nonzero(counts) == 2 else frequent)

    @cached_property
    def _slices(self) -> tuple[slice, ...]:
        return tuple(slice(a, b) for a, b in pairwise(accumulate(map(len, self.values), initial=1)))

    def names(self, column: str) -> list[str]:
        return [f"{column} in years", *(f"{column} {part.label(v)}" for part, v in self._levels)]

    @property
    def _levels(self) -> list[tuple[_Part, int]]:
        return [(part, v) for part, values in zip(PARTS, self.values, strict=True) for v in values]

    def expand(self, x: Float, out: Float) -> None:
        np.subtract(x, self.centre, out=out[0])
        out[0] /= YEAR
        missing = np.isnan(x)
        known = np.where(missing, 0.0, x)
        for part, values, own in zip(PARTS, self.values, self._slices, strict=True):
            if values:
                out[own] = part.of(known) == np.array(values)[:, np.newaxis]
        out[:, missing] = np.nan

    def described(self) -> ColumnBasis:
        own: dict[str, Any] = {part.field: values for part, values in zip(PARTS, self.values, strict=True)}
        return ColumnBasis(basis=self.name, centre=self.centre, **own)

    def forms(self) -> list[Form]:
        return [
            Form({"form": "power", "power": 1, "centre": self.centre, "scale": YEAR}, 1, self.centre, YEAR),
            *(
                Form({"form": part.name, "level": v}, f"NAME_calendar(u, {part.code}) == a", v, helper=_CALENDAR)
                for part, v in self._levels
            ),
        ]

    @property
    def off_line(self) -> slice:
        return slice(1, None)

    def shape_levels(self) -> list[ShapeLevel]:
        """Return months, weekdays and hours; days of 1970 that are 31 days apart are in one month each."""
        found = []
        for term, (part, v) in enumerate(self._levels, 1):
            x = {"month": (v - 1) * 31.0 * DAY, "weekday": (v + 4) % 7 * DAY, "hour": v * 3600.0}[part.name]
            found.append(ShapeLevel(part.label(v), term, x, self._slices[part.code]))
        return found

    def drawn(self, p: Float, mean: Float, scale: Float, ends: tuple[float, float] | None) -> Float:
        return np.asarray(np.clip(self.centre + YEAR * super().drawn(p, mean, scale, ends), FIRST, LAST))
