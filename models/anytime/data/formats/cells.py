"""Cells of text: which are missing, and which are numbers.

A cell of a text column is missing only if it is empty; a cell of numbers or dates also where it is one of pyarrow's
words (NA, N/A, NaN, null, NULL ...). Numbers are decimal, with an optional exponent and blanks around them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate

from anytime.data.formats.table import pa, pc, required
from anytime.errors import TableError
from anytime.types import ColumnType


@dataclass(frozen=True)
class NumberStyle:
    """How the numbers of a CSV file are written: the decimal mark, and the mark between groups of three digits."""

    decimal: str = "."
    thousands: str | None = None

    def __post_init__(self) -> None:
        for option, mark in (("--decimal", self.decimal), ("--thousands", self.thousands)):
            if mark is not None and (len(mark) != 1 or mark.isalnum() or mark in '+-"\r\n'):
                raise TableError(f"{option} is {mark!r}; expected one character, such as ',' or '.'")
        if self.decimal == self.thousands:
            raise TableError(f"--decimal and --thousands are both {self.decimal!r}; expected different marks")

    def plain(self, cells: pa.Array) -> pa.Array:
        """Return the cells with the numbers of this style in the usual form; other cells become a word."""
        decimal, thousands = re.escape(self.decimal), "" if self.thousands is None else re.escape(self.thousands)
        whole = rf"(\d{{1,3}}({thousands}\d{{3}})+|\d*)" if thousands else r"\d*"
        fits = pc.match_substring_regex(cells, rf"^[+-]?{whole}({decimal}\d*)?([eE][+-]?\d+)?$")
        changed = pc.replace_substring(cells, self.thousands, "") if self.thousands else cells
        return pc.if_else(fits, pc.replace_substring(changed, self.decimal, "."), pa.scalar("text"))


PLAIN = NumberStyle()


def numbers_of(cells: pa.Array, kind: pa.DataType, style: NumberStyle = PLAIN) -> pa.Array | None:
    """Return cells of text as numbers of a type, null where missing; None if some cell is no such number."""
    try:
        if style == PLAIN:
            return cells.cast(kind)
    except pa.ArrowInvalid:
        pass
    cells = with_missing_words(cells)  # rare, and so only after a failure
    try:
        return (cells if style == PLAIN else style.plain(cells)).cast(kind)
    except pa.ArrowInvalid:
        return None


def booleans_of(cells: pa.Array) -> pa.Array | None:
    """Return cells `true` and `false`, in any case, as booleans, null where missing; None if a cell is another word."""
    cells = with_missing_words(cells)
    if not pc.all(pc.match_substring_regex(cells, "^(true|false)$", ignore_case=True)).as_py():
        return None
    return pc.match_substring_regex(cells, "^true$", ignore_case=True)


def with_missing_words(cells: pa.Array) -> pa.Array:
    """Return the cells without blanks around them, null where they are empty or a word for missing."""
    cells = pc.utf8_trim_whitespace(cells)
    return pc.if_else(pc.is_in(cells, value_set=_missing_words()), missing(cells.type), cells)


@cache
def missing_words() -> frozenset[str]:
    """Return the words that are missing among numbers, booleans and dates; the empty text is one of them."""
    return frozenset(required("pyarrow.csv").ConvertOptions().null_values)


def missing(kind: pa.DataType) -> pa.Scalar:
    """Return a missing value; `pa.scalar` imports pandas, .2 s."""
    return pa.nulls(1, kind)[0]


@cache
def _missing_words() -> pa.Array:
    """Return the words; made from buffers, since pyarrow imports pandas to convert text of Python: .2 s."""
    words = [word.encode() for word in missing_words()]
    offsets = b"".join(end.to_bytes(4, "little") for end in accumulate(map(len, words), initial=0))
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(offsets), pa.py_buffer(b"".join(words)))


@dataclass
class Recognition:
    """The type of the cells of a column seen so far; independent of how the column is split into pieces."""

    style: NumberStyle = PLAIN
    kinds: set[ColumnType] = field(default_factory=set)
    wholes: int = 0
    """Number of cells in the pieces of whole numbers."""
    codes: int = 0
    """Number of these that have a leading zero."""

    @property
    def kind(self) -> ColumnType:
        is_code = self.kinds == {"integer"} and 2 * self.codes >= self.wholes
        if "text" in self.kinds or self.kinds > {"bool"} or is_code:
            return "text"
        return next((kind for kind in ("bool", "number", "integer") if kind in self.kinds), "number")

    def add(self, cells: pa.Array) -> pa.Array:
        """Add a piece of a column, cells of text; return it converted, unless it holds text or codes."""
        if "text" in self.kinds:
            return cells
        numbers = numbers_of(cells, pa.float64(), self.style)
        if numbers is None:
            words = booleans_of(cells)
            self.kinds.add("text" if words is None else "bool")
            return cells if words is None else words
        if numbers.null_count == len(numbers):
            return numbers
        # Only numbers are tested for integers: the cast also accepts 0x1F, which is text here.
        integers = None if "number" in self.kinds else numbers_of(cells, pa.int64(), self.style)
        self.kinds.add("number" if integers is None else "integer")
        if integers is None:
            return numbers
        # Cells with a leading zero, as "01", are the digits of a code.
        zero = pc.and_(pc.starts_with(cells, "0"), pc.greater(pc.binary_length(cells), 1))
        codes, wholes = int(pc.sum(zero).as_py() or 0), len(integers) - integers.null_count
        self.codes, self.wholes = self.codes + codes, self.wholes + wholes
        return cells if 2 * codes >= wholes else integers


def first_without(cells: pa.Array, style: NumberStyle = PLAIN) -> int:
    """Return the index of the first cell that is no number, by bisection: two conversions of all cells in total."""
    low, high = 0, len(cells)
    while high - low > 1:
        middle = (low + high) // 2
        if numbers_of(cells.slice(low, middle - low), pa.float64(), style) is None:
            high = middle
        else:
            low = middle
    return low


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity)", re.ASCII | re.IGNORECASE)
_CURRENCY = r"(?:[$€£¥₹]|(?:USD|EUR|GBP|CHF|JPY)\b)"
_FOREIGN = re.compile(
    rf"""\(?[-+−]?\s?(?P<currency>{_CURRENCY})?\s?[-+−]?
    (?P<number>\d{{1,3}}(?:[.,'’\u00a0\u202f\ ]\d{{3}})+(?:[.,]\d+)?|\d+(?:[.,]\d*)?|[.,]\d+)
    (?P<exponent>[eEdD][-+]?\d+)?
    \s?(?P<unit>[%‰°]|{_CURRENCY}|[A-Za-zµ°]+(?:[/²³][A-Za-z0-9]*)?)?\)?""",
    re.VERBOSE | re.ASCII,
)
_ORDINALS = frozenset({"st", "nd", "rd", "th"})
_SAME_UNIT = 0.8
"""Share of the cells with a unit that have the most frequent one where they are numbers, and not levels such as 2b."""


def is_number(cell: str) -> bool:
    return _NUMBER.fullmatch(cell.strip()) is not None


def foreign_number(cells: Sequence[str]) -> str | None:
    """Return a cell that is a number in another form, if at least half of some cells are numbers and one is so.

    Other forms are those of other locales ("1.234,56", "1,234.5", "12 %", "$3"), with a unit ("5 kg") and with an
    exponent as in Fortran ("1D3").
    """
    found = [(cell, match) for cell in cells if not is_number(cell) and (match := _FOREIGN.fullmatch(cell.strip()))]
    units = Counter(unit for _, match in found if (unit := match["unit"]) and unit.isalpha())
    common, count = units.most_common(1)[0] if units else ("", 0)
    if count < _SAME_UNIT * units.total() or common in _ORDINALS:
        common = ""

    def is_foreign(match: re.Match[str]) -> bool:
        unit = match["unit"]
        if not unit or not unit.isalpha() or re.fullmatch(_CURRENCY, unit):
            return True
        # A letter next to a whole number is part of a code, as 12a.
        apart = len(unit) > 1 or " " in match.group() or "." in match["number"]
        return unit == common and apart

    foreign = [cell for cell, match in found if is_foreign(match)]
    plain = sum(map(is_number, cells))
    return foreign[0] if foreign and 2 * (len(foreign) + plain) >= len(cells) else None
