"""Columns and cells of Arrow as a table has them, and the tables that pyarrow reads: Parquet and Arrow files.

Arrow files are IPC files (also known as Feather) or IPC streams.
`type_of` and `read_as` are where Arrow's types become those of a table.

A cell of a text column is missing only if it is empty; a cell of numbers or dates also where it is one of pyarrow's
words (NA, N/A, NaN, null, NULL ...). Numbers are decimal, with an optional exponent and blanks around them.
"""

from __future__ import annotations

import json
import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from anytime.data.formats.table import (
    PLAIN,
    Batch,
    NumberStyle,
    ReadAs,
    Table,
    damaged,
    pa,
    pa_csv,
    pa_ipc,
    pa_parquet,
    pc,
)
from anytime.errors import AnytimeError, TableError, clipped, unusable
from anytime.features.readers import DATES
from anytime.types import ColumnType


def numbers_of(cells: pa.Array, kind: pa.DataType, style: NumberStyle = PLAIN) -> pa.Array | None:
    """Return cells of text as numbers of a type, null where missing; None if some cell is no such number."""
    with suppress(pa.ArrowInvalid):
        if style == PLAIN:
            return cells.cast(kind)
    cells = with_missing_words(cells)  # rare, and so only after a failure
    with suppress(pa.ArrowInvalid):
        return (cells if style == PLAIN else style.plain(cells)).cast(kind)
    return None


def booleans_of(cells: pa.Array) -> pa.Array | None:
    """Return cells `true` and `false`, in any case, as booleans, null where missing; None if a cell is another word."""
    cells = with_missing_words(cells)
    is_word = pc.match_substring_regex(cells, "^(true|false)$", ignore_case=True)
    return pc.match_substring_regex(cells, "^true$", ignore_case=True) if pc.all(is_word).as_py() else None


def with_missing_words(cells: pa.Array) -> pa.Array:
    """Return the cells without blanks around them, null where they are empty or a word for missing."""
    cells = pc.utf8_trim_whitespace(cells)
    null = pa.nulls(1, cells.type)[0]  # `pa.scalar` imports pandas, .2 s
    return pc.if_else(pc.is_in(cells, value_set=_missing_words()), null, cells)


@cache
def missing_words() -> frozenset[str]:
    """Return the words that are missing among numbers, booleans and dates; the empty text is one of them."""
    return frozenset(pa_csv.ConvertOptions().null_values)


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
    codes: int = 0
    """Number of whole numbers with a leading zero, minus that of others."""

    @property
    def kind(self) -> ColumnType:
        is_code = self.kinds == {"integer"} and self.codes >= 0
        if "text" in self.kinds or self.kinds > {"bool"} or is_code:
            return "text"
        return next((kind for kind in ("bool", "number", "integer") if kind in self.kinds), "number")

    def add(self, cells: pa.Array) -> pa.Array:
        """Add a piece of a column, cells of text; return it converted, unless it holds text or codes."""
        if "text" in self.kinds or cells.null_count == len(cells):
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
        codes = 2 * int(pc.sum(zero).as_py() or 0) - (len(integers) - integers.null_count)
        self.codes += codes
        return cells if codes >= 0 else integers


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity)", re.ASCII | re.IGNORECASE)
_CURRENCY = r"(?:[$€£¥₹]|(?:USD|EUR|GBP|CHF|JPY)\b)"
_FOREIGN = re.compile(
    rf"""\(?[-+−]?\s?(?P<currency>{_CURRENCY})?\s?[-+−]?
    (?P<number>\d{{1,3}}(?:[.,'’\u00a0\u202f\ ]\d{{3}})+(?:[.,]\d+)?|\d+(?:[.,]\d+)?|[.,]\d+)
    (?P<exponent>[eEdD][-+]?\d+)?
    \s?(?P<unit>[%‰°]|{_CURRENCY}|[A-Za-zµ°]+(?:[/²³][A-Za-z0-9]*)?)?\)?""",
    re.VERBOSE | re.ASCII,
)
_ORDINALS = frozenset({"st", "nd", "rd", "th"})
_SAME_UNIT = 0.8
"""Share of the cells with a unit that have the most frequent one where they are numbers, and not levels such as 2b."""
_NUMBERED_LEVELS = 2
"""Numbers next to a word up to which these are levels."""


def is_number(cell: str) -> bool:
    return _NUMBER.fullmatch(cell.strip()) is not None


def foreign_number(cells: Sequence[str]) -> str | None:
    """Return a cell that is a number in another form, if at least half of some cells are numbers and one is so.

    Other forms are those of other locales ("1.234,56", "1,234.5", "12 %", "$3"), with a unit ("5 kg") and with an
    exponent as in Fortran ("1D3"). A letter next to a whole number is part of a code, as "12a", and so is a word next
    to one or two of them, as "1Story" and "2Story".
    """
    found = [(cell, match) for cell in cells if not is_number(cell) and (match := _FOREIGN.fullmatch(cell.strip()))]
    units = Counter(unit for _, match in found if (unit := match["unit"]) and unit.isalpha())
    common, count = units.most_common(1)[0] if units else ("", 0)
    if count < _SAME_UNIT * units.total() or common in _ORDINALS:
        common = ""
    several = len({match["number"] for _, match in found if match["unit"] == common}) > _NUMBERED_LEVELS

    def is_foreign(match: re.Match[str]) -> bool:
        unit = match["unit"] or ""
        apart = (len(unit) > 1 and several) or " " in match.group() or "." in match["number"]
        return not unit.isalpha() or re.fullmatch(_CURRENCY, unit) is not None or (unit == common and apart)

    foreign = [cell for cell, match in found if is_foreign(match)]
    return foreign[0] if foreign and 2 * (len(foreign) + sum(map(is_number, cells))) >= len(cells) else None


@cache
def type_of(arrow_type: pa.DataType) -> ColumnType | None:
    """Return the type of a column as Arrow states it; None if it is neither number, text nor date."""
    types = pa.types
    if types.is_dictionary(arrow_type) or types.is_run_end_encoded(arrow_type):
        return type_of(arrow_type.value_type)
    kinds: Mapping[ColumnType, tuple[Callable[[pa.DataType], bool], ...]] = {
        "bool": (types.is_boolean,),
        "integer": (types.is_integer,),
        "number": (types.is_floating, types.is_decimal, types.is_null),
        "text": (types.is_string, types.is_large_string, types.is_string_view),
        "date": (types.is_date, types.is_timestamp),
    }
    return next((kind for kind, tests in kinds.items() if any(test(arrow_type) for test in tests)), None)


def read_as(
    name: str, column: pa.Array, kind: ReadAs, row: int = 0, style: NumberStyle = PLAIN
) -> NDArray[Any] | pa.Array:
    """Return a column as (rows,) of a type, as `Batch` holds it; the array may share memory and be read-only.

    Raises TableError, which names the cell, if a value does not fit the type; `row` is the table's row of the first.
    """
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    elif pa.types.is_dictionary(column.type):
        # Arrow has no `take` for views of strings, the levels of polars.
        is_view = pa.types.is_string_view(column.type.value_type)
        column = (column.dictionary.cast(pa.string()) if is_view else column.dictionary).take(column.indices)
    own = type_of(column.type)
    if kind == "cells":
        return column
    if kind == "date":
        return _dates(name, column, own, row)
    if kind in ("key", "text"):
        whole = kind == "key" and own in ("integer", "bool") and not column.null_count
        return _array(column if whole else _texts(name, column))
    if own == "text":
        column = parsed(name, column, kind, row, style)
    elif own not in ("number", "integer", "bool"):
        raise TableError(f"column {name!r} is {column.type}; expected numbers, as elsewhere in the data")
    is_bool = pa.types.is_boolean(column.type)
    if kind == "bool" and is_bool and not column.null_count:
        return _array(column)
    if kind == "integer" and pa.types.is_integer(column.type) and not column.null_count:
        with suppress(pa.ArrowInvalid):  # beyond int64
            return _array(column.cast(pa.int64()))
    # Unsafe, because integers past 2^53 should round.
    values = _array(column.cast(pa.float64(), safe=False))
    if kind == "bool" and not is_bool:
        other = ~(np.isnan(values) | (values == 0) | (values == 1))
        if other.any():
            at = int(other.argmax())
            raise TableError(
                f"column {name!r} holds {values[at]:g} in row {row + at} (counted from 0); "
                "expected true or false, or 1 and 0"
            )
        return values if np.isnan(values).any() else values.astype(np.bool_)
    return values


def _dates(name: str, column: pa.Array, own: ColumnType | None, row: int) -> NDArray[Any]:
    """Return dates, text in ISO form or seconds since 1970 UTC as seconds, NaN where missing."""
    if own == "date":
        whole = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return DATES.bounded(_array(whole.cast(pa.float64(), safe=False)) / 1e6)
    if own == "text" and (numbers := numbers_of(column.cast(pa.string()), pa.float64())) is not None:
        seconds = _array(numbers)
    elif own == "text":
        values = with_missing_words(column.cast(pa.string())).to_pylist()
        known = {value: DATES.coded([value])[0] for value in set(values) if DATES.accepts(value)}
        other = next((at for at, value in enumerate(values) if value not in known), None)
        if other is not None:
            raise TableError(
                f"column {name!r} holds {clipped(values[other], 40)!r} in row {row + other} (counted from 0); expected "
                f"dates in ISO form, such as 2024-05-17 or 2024-05-17T09:30:00Z: fix it, or state "
                f"`types: {{{name}: text}}` in the groups file if it holds levels"
            )
        seconds = np.array([known[value] for value in values], dtype=np.float64)
    elif own in ("number", "integer"):
        seconds = read_as(name, column, "number", row)
    else:
        raise TableError(f"column {name!r} is {column.type}; expected dates, as elsewhere in the data")
    if (wrong := DATES.invalid(seconds)) is not None:
        at = row + int((seconds == wrong[0]).argmax())
        raise TableError(f"column {name!r} holds {wrong[0]:.10g} in row {at} (counted from 0); expected {wrong[1]}")
    return seconds


def _array(column: pa.Array) -> NDArray[Any]:
    """Return a column as `to_numpy` does, numbers without that: it imports pandas where that is installed, .2 s."""
    if pa.types.is_boolean(column.type) and not column.null_count:
        return _array(column.cast(pa.uint8())).view(np.bool_)
    if not (pa.types.is_integer(column.type) or pa.types.is_float64(column.type)):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.from_dlpack(pc.fill_null(column, _nan()) if column.null_count else column)


@cache
def _nan() -> pa.Scalar:
    return pa.Array.from_buffers(pa.float64(), 1, [None, pa.py_buffer(np.array([np.nan]))])[0]


def _texts(name: str, column: pa.Array) -> pa.Array:
    """Return a column as text, null where it is empty; Arrow writes whole numbers stored as floats without decimals."""
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.nulls(1, column.type)[0], column)
    try:
        cells = column.cast(pa.string())
    except pa.ArrowException as error:
        raise TableError(unusable(repr(name), column.type)) from error
    return pc.if_else(pc.equal(cells, ""), pa.scalar(None, cells.type), cells)


def parsed(name: str, cells: pa.Array, kind: ReadAs, row: int, style: NumberStyle = PLAIN) -> pa.Array:
    """Return cells of text as booleans or numbers; raise TableError, which names the cell, if one is neither."""
    cells = cells.cast(pa.string())
    if kind == "bool" and (words := booleans_of(cells)) is not None:
        return words
    for arrow_type in (pa.int64(), pa.float64()) if kind == "integer" else (pa.float64(),):
        if (found := numbers_of(cells, arrow_type, style)) is not None:
            return found
    at = next(at for at in range(len(cells)) if numbers_of(cells.slice(at, 1), pa.float64(), style) is None)
    raise not_numbers(name, cells[at].as_py(), row + at)


def not_numbers(name: str, cell: str, row: int) -> TableError:
    """Return the error for text in a column of numbers."""
    remedy = "give --decimal and --thousands as the file has them" if foreign_number([cell]) else "fix it"
    return TableError(
        f"column {name!r} holds text, as {clipped(cell, 40)!r} in row {row} (counted from 0); expected numbers: "
        f"{remedy}, leave the column out, or state `types: {{{name}: text}}` in the groups file if it holds levels"
    )


def is_written_as(cells: pa.Array, kind: pa.DataType) -> bool:
    """Return whether values of a type are written exactly as some cells of text: 007, 1.10 and TRUE are no values."""
    try:
        values = cells.cast(kind)
    except pa.ArrowInvalid:
        return False
    if not pa.types.is_floating(kind):
        return bool(values.cast(pa.string()).equals(cells))
    pairs = zip(cells.to_pylist(), values.to_pylist(), strict=True)
    return all(cell is None or cell in (repr(value), repr(value).removesuffix(".0")) for cell, value in pairs)


class ArrowTable(Table):
    """A table that pyarrow reads; it stores names and types only."""

    format: ClassVar[str]

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self._reading():
            schema = self._open()
            self._check_names(schema.names)
            self._columns = {field.name: field.type for field in schema}
        if schema.metadata:
            self._stored_index = index_of(schema.metadata)
        self.factors = frozenset(name for name, kind in self._columns.items() if pa.types.is_dictionary(kind))

    @abstractmethod
    def _open(self) -> pa.Schema:
        """Run cheap checks of the file; return its columns."""

    @abstractmethod
    def _pieces(self, types: Mapping[str, ReadAs], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:
        """Read these columns, in any order, from one of the `starts`; pieces may have any length."""

    def _types(self, names: tuple[str, ...], stated: Mapping[str, ReadAs]) -> dict[str, ReadAs]:
        kinds = {name: type_of(self._columns[name]) for name in names if stated.get(name) != "cells"}
        for name, kind in kinds.items():
            if kind is None:
                raise TableError(f"{self.name}: {unusable(repr(name), self.described(name))}")
        return {name: kind for name, kind in kinds.items() if kind is not None and name not in stated}

    def _read(self, types: Mapping[str, ReadAs], rows: int, begin: int) -> Iterator[Batch]:
        with self._reading():
            for piece in self._pieces(types, rows, begin):
                for first in range(0, piece.num_rows, rows):
                    part = piece.slice(first, rows)
                    try:
                        arrays = {n: read_as(n, part.column(n), kind, begin, self.style) for n, kind in types.items()}
                    except TableError as error:
                        raise TableError(f"{self.name}: {error}") from None
                    yield Batch(begin, arrays)
                    begin += part.num_rows

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Convert pyarrow's errors to one line that names the file."""
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
            size = re.search(r"size (\d+)", str(error)) if isinstance(error, MemoryError) else None
            if isinstance(error, MemoryError) and (  # a size beyond the machine's memory is invalid
                size is None or int(size[1]) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            ):
                raise
            raise self._complaint(error) from error

    def _complaint(self, error: Exception) -> AnytimeError:
        return damaged(self.name, self.format, error)


def index_of(metadata: Mapping[bytes, bytes] | None) -> frozenset[str]:
    """Return the columns that pandas wrote as the index of its frame, which it would read as the index again."""
    try:
        found = json.loads((metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
    except (ValueError, AttributeError):
        return frozenset()
    return frozenset(name for name in found if isinstance(name, str))


class ArrowFileTable(ArrowTable):
    """An Arrow file or stream, memory-mapped, read one record batch at a time."""

    format = "Arrow"

    def _open(self) -> pa.Schema:
        with self._batches(None) as (schema, _):
            return schema

    def _pieces(self, types: Mapping[str, ReadAs], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  (from the start)
        with self._batches(sorted(self.columns.index(name) for name in types)) as (_, batches):
            for batch in batches:
                # Without validation, text offsets that point outside the file would crash the process.
                batch.validate(full=True)
                yield batch

    @contextmanager
    def _batches(self, fields: list[int] | None) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        with pa.memory_map(self.name, "r") as source:
            magic = source.read(6)
            source.seek(0)
            if magic[:4] == b"FEA1":
                raise TableError(f"{self.name} is a Feather file of version 1; convert it to version 2 or Parquet")
            is_file = magic == b"ARROW1"
            opened = pa_ipc.open_file if is_file else pa_ipc.open_stream
            with opened(source, options=pa_ipc.IpcReadOptions(included_fields=fields)) as reader:
                batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
                yield reader.schema, batches


_BUFFER = 1 << 16
"""Bytes read ahead for each column: row groups are streamed, however large, and 500 columns take 32 MiB."""


class ParquetTable(ArrowTable):
    """A Parquet file; row groups are streamed one by one.

    Statistics in the footer are not read: in a damaged file pyarrow crashes the process when it reads them.
    """

    format = "Parquet"

    def _open(self) -> pa.Schema:
        with self._file() as file:
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
            self._groups = [i for i, size in enumerate(sizes) if size]
            *starts, self.known_rows = accumulate(filter(None, sizes), initial=0)
            self.starts = tuple(starts) or (0,)
            return file.schema_arrow

    def _pieces(self, types: Mapping[str, ReadAs], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:
        with self._file() as file:
            groups = self._groups[self.starts.index(begin) :]
            yield from file.iter_batches(rows, row_groups=groups, columns=list(types))

    def _file(self) -> Any:
        # Pre-buffering would keep the columns of the whole file in memory.
        return pa_parquet.ParquetFile(self.path, pre_buffer=False, buffer_size=_BUFFER)
