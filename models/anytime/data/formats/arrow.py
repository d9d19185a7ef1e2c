"""Tables read as Arrow record batches: the base class, and Parquet and Arrow files.

Arrow files are IPC files (also known as Feather) or IPC streams. A Parquet table is a file or a directory of files.
`type_of` and `read_as` are where Arrow's types become those of a table.
"""

from __future__ import annotations

import json
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anytime.data.formats.cells import (
    PLAIN,
    NumberStyle,
    booleans_of,
    first_without,
    foreign_number,
    missing,
    numbers_of,
    with_missing_words,
)
from anytime.data.formats.table import Batch, ReadAs, Table, damaged, pa, pc, required, visible
from anytime.errors import AnytimeError, TableError, clipped, listed, unusable
from anytime.features.readers import DATES
from anytime.types import ColumnType


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


def decoded(column: pa.Array) -> pa.Array:
    """Return a column without an encoding of its values."""
    if pa.types.is_run_end_encoded(column.type):
        return pc.run_end_decode(column)
    if not pa.types.is_dictionary(column.type):
        return column
    # Arrow has no `take` for views of strings, the levels of polars.
    is_view = pa.types.is_string_view(column.type.value_type)
    return (column.dictionary.cast(pa.string()) if is_view else column.dictionary).take(column.indices)


def read_as(name: str, column: pa.Array, kind: ReadAs, row: int = 0) -> NDArray[Any]:
    """Return a column as (rows,) of a type, as `Batch` holds it; the array may share memory and be read-only.

    Raises TableError, which names the cell, if a value does not fit the type; `row` is the table's row of the first.
    """
    column = decoded(column)
    own = type_of(column.type)
    if kind == "date":
        return _dates(name, column, own, row)
    if kind in ("key", "text"):
        whole = kind == "key" and own in ("integer", "bool") and not column.null_count
        return _array(column if whole else _texts(name, column))
    if own == "text":
        column = parsed(name, column, kind, row)
        own = type_of(column.type)
    elif own not in ("number", "integer", "bool"):
        raise TableError(f"column {name!r} is {column.type}; expected numbers, as elsewhere in the data")
    return _numbers(name, column, kind, row)


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
        seconds = _numbers(name, column, "number", row)
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
    """Return a column as text, null where it is empty; whole numbers stored as floats have no decimals."""
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), missing(column.type), column)
        if pc.all(pc.equal(column, pc.trunc(column))).as_py() and (pc.max(pc.abs(column)).as_py() or 0) < 2**63:
            column = column.cast(pa.int64())
    if pa.types.is_nested(column.type):
        raise TableError(unusable(repr(name), column.type))
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
    at = first_without(cells, style)
    raise not_numbers(name, cells[at].as_py(), row + at)


def not_numbers(name: str, cell: str, row: int) -> TableError:
    """Return the error for text in a column of numbers."""
    remedy = "give --decimal and --thousands as the file has them" if foreign_number([cell]) else "fix it"
    return TableError(
        f"column {name!r} holds text, as {clipped(cell, 40)!r} in row {row} (counted from 0); expected numbers: "
        f"{remedy}, leave the column out, or state `types: {{{name}: text}}` in the groups file if it holds levels"
    )


def _numbers(name: str, column: pa.Array, kind: ReadAs, row: int) -> NDArray[Any]:
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


class ArrowTable(Table):
    """A table that pyarrow reads; it stores names and types only."""

    format: ClassVar[str]

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._schema_index: frozenset[str] = frozenset()
        with self._reading():
            self._columns = self._stored = self._open()

    @property
    def index(self) -> frozenset[str]:
        return super().index | self._schema_index

    @property
    def factors(self) -> frozenset[str]:
        return frozenset(name for name, arrow_type in self._stored.items() if pa.types.is_dictionary(arrow_type))

    @abstractmethod
    def _open(self) -> dict[str, pa.DataType]:
        """Run cheap checks of the file; return its columns and their types."""

    @abstractmethod
    def _pieces(self, types: Mapping[str, ReadAs], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:
        """Read these columns, in any order, from one of the `starts`; pieces may have any length."""

    def _types(self, names: tuple[str, ...], stated: Mapping[str, ReadAs]) -> dict[str, ReadAs]:
        found: dict[str, ReadAs] = {}
        for name in names:
            kind = type_of(self._stored[name])
            if kind is None:
                raise TableError(f"{self.name}: {unusable(repr(name), self.described(name))}")
            if name not in stated:
                found[name] = kind
        return found

    def described(self, name: str) -> str:
        return str(self._stored[name])

    def _read(self, types: Mapping[str, ReadAs], rows: int, begin: int) -> Iterator[Batch]:
        with self._reading():
            for piece in self._pieces(types, rows, begin):
                for first in range(0, piece.num_rows, rows):
                    part = piece.slice(first, rows)
                    try:
                        arrays = {name: read_as(name, part.column(name), kind, begin) for name, kind in types.items()}
                    except TableError as error:
                        raise TableError(f"{self.name}: {error}") from None
                    yield Batch(begin, arrays)
                    begin += part.num_rows

    @contextmanager
    def _reading(self, path: Path | None = None) -> Iterator[None]:
        """Convert pyarrow's errors to one line that names the file, or the one of several files."""
        try:
            yield
        except MemoryError as error:  # also an ArrowException
            size = re.search(r"size (\d+)", str(error))
            if size is None or int(size[1]) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
                raise
            raise self._complaint(error, path) from error  # the size is invalid: it exceeds the machine's memory
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._complaint(error, path) from error

    def _complaint(self, error: Exception, path: Path | None) -> AnytimeError:
        return damaged(str(path or self.path), self.format, error)


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

    def _open(self) -> dict[str, pa.DataType]:
        with self.path.open("rb") as file:
            if file.read(4) == b"FEA1":
                raise TableError(f"{self.name} is a Feather file of version 1; convert it to version 2 or Parquet")
        with self._batches(None) as (schema, batches):
            self._check_names(schema.names)
            self._schema_index = index_of(schema.metadata)
            if not any(batch.num_rows for batch in batches):
                raise self._no_rows()
        return {field.name: field.type for field in schema}

    def _pieces(self, types: Mapping[str, ReadAs], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  (from the start)
        fields = sorted(self.columns.index(name) for name in types)
        with self._batches(fields) as (_, batches):
            for batch in batches:
                # Without validation, text offsets that point outside the file would crash the process.
                batch.validate(full=True)
                yield batch

    @contextmanager
    def _batches(self, fields: list[int] | None) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        ipc = required("pyarrow.ipc")
        options = ipc.IpcReadOptions(included_fields=fields)
        with pa.memory_map(self.name, "r") as source:
            is_file = source.read(6) == b"ARROW1"
            source.seek(0)
            with (ipc.open_file if is_file else ipc.open_stream)(source, options=options) as reader:
                if is_file:
                    yield reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))
                else:
                    yield reader.schema, iter(reader)


_BUFFER = 1 << 16
"""Bytes read ahead for each column: row groups are streamed, however large, and 500 columns take 32 MiB."""


class _RowGroup(NamedTuple):
    """Location of consecutive rows of the table: a file, and the number of its row group."""

    file: Path
    number: int
    rows: int


class ParquetTable(ArrowTable):
    """A Parquet file, or the visible `*.parquet` files of a directory by name; row groups are streamed one by one.

    Statistics in the footer are not read: in a damaged file pyarrow crashes the process when it reads them.
    """

    format = "Parquet"

    @cached_property
    def starts(self) -> tuple[int, ...]:
        return tuple(accumulate((group.rows for group in self._groups[:-1]), initial=0))

    @property
    def known_rows(self) -> int:
        return sum(group.rows for group in self._groups)

    def _open(self) -> dict[str, pa.DataType]:
        is_folder = self.path.is_dir()
        paths = [path for path in visible(self.path) if path.suffix.lower() == ".parquet"] if is_folder else [self.path]
        if not paths:
            raise TableError(f"{self.name} is a directory without tables; expected files such as *.parquet or *.csv")
        types: dict[str, pa.DataType] = {}
        self._groups: list[_RowGroup] = []
        for path in paths:
            with self._reading(path), _file(path) as file:
                found = {field.name: field.type for field in file.schema_arrow}
                if not types:
                    self._check_names(file.schema_arrow.names)
                    self._schema_index = index_of(file.schema_arrow.metadata)
                    types = found
                elif found != types:
                    other = [name for name in {**types, **found} if found.get(name) != types.get(name)]
                    raise TableError(f"{path} has other columns or types than {paths[0].name}: {listed(other)}")
                sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
            self._groups += [_RowGroup(path, number, size) for number, size in enumerate(sizes) if size]
        if not self._groups:
            raise self._no_rows()
        return types

    def _pieces(self, types: Mapping[str, ReadAs], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:
        for path, groups in groupby(self._groups[self.starts.index(begin) :], key=lambda group: group.file):
            with self._reading(path), _file(path) as file:
                numbers = [group.number for group in groups]
                yield from file.iter_batches(batch_size=rows, row_groups=numbers, columns=list(types))


def _file(path: Path) -> Any:
    # Pre-buffering would keep the columns of the whole file in memory.
    return required("pyarrow.parquet").ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)
