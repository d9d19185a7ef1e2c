"""How the values of columns that hold no numbers are read: levels of a factor, and dates.

A reader turns a value into the raw number that terms are computed from: the index of a level, or seconds since 1970
UTC. A time without a zone is UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from anytime.errors import GroupsError
from anytime.types import Float, Label


def is_missing(value: Any) -> bool:
    """Return whether a value of a column of categories is missing: None or NaN."""
    return value is None or (isinstance(value, float | np.floating) and math.isnan(value))


@dataclass(frozen=True)
class Levels:
    """Levels of a factor. A raw number is the index of a level, -1 for every other level, and NaN where missing.

    Attributes
    ----------
    labels : tuple[Label, ...]
        The most frequent first.
    other : bool
        Whether levels that are not stated share a term; otherwise they count as missing.
    """

    labels: tuple[Label, ...]
    other: bool

    @cached_property
    def _codes(self) -> dict[Any, float]:
        return {level: float(code) for code, level in enumerate(self.labels)}

    def coded(self, values: Iterable[Any]) -> Float:
        """Return the index of the level of each value; missing values are None, NaN or an empty text, as in a table."""
        codes, unknown = self._codes, (-1.0 if self.other else math.nan)
        return np.array([codes[v] if v in codes else math.nan if is_missing(v) or v == "" else unknown for v in values])

    @cached_property
    def holds(self) -> str:
        """Return what a value is, for messages."""
        kinds = {*map(type, self.labels)}
        return "text" if kinds <= {str} else "true or false" if kinds <= {bool} else "a whole number"

    def accepts(self, value: Any) -> bool:
        """Return whether a value is missing or of the type of the levels; without levels, of any type."""
        if self.holds == "text":
            return isinstance(value, str) or is_missing(value) or not self.labels
        if self.holds == "true or false":
            is_number = isinstance(value, int | float)
            return isinstance(value, bool | np.bool_) or (is_number and value in (0, 1)) or is_missing(value)
        return is_missing(value) or (isinstance(value, int | float | np.number) and float(value).is_integer())

    def invalid(self, codes: Float) -> tuple[float, str] | None:
        """Return a number that is no index, and what was expected."""
        right = (codes == np.trunc(codes)) & (codes >= -1) & (codes < len(self.labels)) | np.isnan(codes)
        expected = f"the index of a level, 0 to {len(self.labels) - 1}, or -1 for another level"
        return None if right.all() or not self.labels else (codes[~right][0], expected)

    def shown(self, code: float) -> Label | None:
        return self.labels[int(code)] if code >= 0 else None

    def known(self, codes: Float) -> Float:
        """Return the indices (rows,) that terms are computed from: of other levels -1, or NaN if these have no term.

        An index beyond the levels is that of a rarer level, before those were joined.
        """
        return np.where((codes < 0) | (codes >= len(self.labels)), -1.0 if self.other else math.nan, codes)


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
        if isinstance(value, int | float | np.number) and not isinstance(value, bool):
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

Reader: TypeAlias = Levels | Dates
"""How the values of a column are read where they are not numbers."""
