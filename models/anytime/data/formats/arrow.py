"""Tables read as Arrow record batches: the base class, which CSV files share, and Parquet and Arrow files.

Arrow files are IPC files (also known as Feather) or IPC streams. A Parquet table is a file or a directory of files.
Arrow's many types map to the four dtypes of a table (`ColumnKind`).
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anytime.data.formats.table import Batch, Table, Text, damaged, required
from anytime.errors import TableError, listed, unusable

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

INT64_MAX = int(np.iinfo(np.int64).max)


class ColumnKind(Enum):
    """The type of a column in batches, as Arrow names it."""

    BOOL = "bool"
    INT = "int64"
    FLOAT = "float64"
    TEXT = "string"


def kind_of(arrow_type: pa.DataType) -> ColumnKind | None:
    """Return the kind of an Arrow type without missing values; None if it is neither number nor text.

    Missing values turn BOOL and INT into FLOAT, the only numeric kind that represents them.
    """
    types = required("pyarrow").types
    if types.is_dictionary(arrow_type):
        return kind_of(arrow_type.value_type)
    if types.is_boolean(arrow_type):
        return ColumnKind.BOOL
    if types.is_integer(arrow_type):
        return ColumnKind.INT
    if types.is_floating(arrow_type) or types.is_decimal(arrow_type) or types.is_null(arrow_type):
        return ColumnKind.FLOAT
    if types.is_string(arrow_type) or types.is_large_string(arrow_type) or types.is_string_view(arrow_type):
        return ColumnKind.TEXT
    return None


def decoded(column: pa.Array) -> pa.Array:
    is_coded = required("pyarrow").types.is_dictionary(column.type)
    return column.dictionary_decode() if is_coded else column


def to_numpy(column: pa.Array, kind: ColumnKind) -> NDArray[Any]:
    """Return one column of a record batch as (rows,) of its kind's dtype; it may share memory and be read-only."""
    # Unsafe, because integers past 2^53 should round when their column has gaps; ColumnKind.INT is known to fit.
    array: NDArray[Any] = decoded(column).cast(kind.value, safe=False).to_numpy(zero_copy_only=False)
    return array


class ArrowTable(Table):
    """A table that pyarrow reads; it stores names, types and kinds only."""

    format: ClassVar[str]

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._kinds: dict[str, ColumnKind] = {}
        self._culprits: dict[str, Text] = {}
        with self._reading():
            self._columns = self._types = self._open()

    @property
    def factors(self) -> frozenset[str]:
        is_dictionary = required("pyarrow").types.is_dictionary
        return frozenset(name for name, arrow_type in self._types.items() if is_dictionary(arrow_type))

    @abstractmethod
    def _open(self) -> dict[str, pa.DataType]:
        """Run cheap checks of the file; return its columns and their types."""

    @abstractmethod
    def _pieces(self, names: Sequence[str], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:
        """Read these columns, in any order, from one of the `starts`; pieces may have any length."""

    def _read(self, names: tuple[str, ...], rows: int, begin: int, numeric: frozenset[str]) -> Iterator[Batch]:
        culprits = {name: self._culprits[name] for name in names if name in self._culprits}
        kinds = {name: self._kind(name, numeric) for name in names}
        with self._reading():
            for piece in self._pieces(names, rows, begin):
                for first in range(0, piece.num_rows, rows):
                    part = piece.slice(first, rows)
                    arrays = {name: to_numpy(part.column(name), kind) for name, kind in kinds.items()}
                    yield Batch(begin, arrays, culprits)
                    begin += part.num_rows

    def _kind(self, name: str, numeric: frozenset[str]) -> ColumnKind:
        kind = self._kinds.get(name, ColumnKind.FLOAT)
        return ColumnKind.FLOAT if name in numeric and kind is not ColumnKind.TEXT else kind

    def _prepare(self, names: tuple[str, ...], numeric: frozenset[str]) -> None:
        """Determine a kind for each column.

        A column of integers is int64 only if no row of the file is missing. Its type does not show that, so only such
        columns are surveyed first; the result is stored.
        """
        unsettled = []
        for name in names:
            kind = kind_of(self._types[name])
            if kind is None:
                raise TableError(f"{self.name}: {unusable(repr(name), self._types[name], numeric=name in numeric)}")
            if kind in (ColumnKind.FLOAT, ColumnKind.TEXT):
                self._kinds[name] = kind
            elif name not in self._kinds and name not in numeric:
                unsettled.append(name)
        if unsettled:
            with self._reading():
                self._survey(unsettled)

    def _survey(self, names: list[str]) -> None:
        """Determine the kind of integer and boolean columns: FLOAT if a value is missing or too large."""
        pc = required("pyarrow.compute")
        kinds = {name: kind_of(self._types[name]) or ColumnKind.FLOAT for name in names}
        for piece in self._pieces(names, rows=1 << 16):
            for name in [name for name, kind in kinds.items() if kind is not ColumnKind.FLOAT]:
                column = decoded(piece.column(name))
                if column.null_count or (kinds[name] is ColumnKind.INT and (pc.max(column).as_py() or 0) > INT64_MAX):
                    kinds[name] = ColumnKind.FLOAT
        self._kinds |= kinds

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Convert pyarrow's errors to one line that names the file."""
        pa = required("pyarrow")
        try:
            yield
        except MemoryError as error:  # also an ArrowException
            size = re.search(r"size (\d+)", str(error))
            if size is None or int(size[1]) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
                raise
            raise self._complaint(error) from error  # the size is invalid: it exceeds the machine's memory
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._complaint(error) from error

    def _complaint(self, error: Exception) -> TableError:
        return damaged(self.name, self.format, error)


class ArrowFileTable(ArrowTable):
    """An Arrow file or stream, memory-mapped, read one record batch at a time."""

    format = "Arrow"

    def _open(self) -> dict[str, pa.DataType]:
        with self.path.open("rb") as file:
            if file.read(4) == b"FEA1":
                raise TableError(f"{self.name} is a Feather file of version 1; convert it to version 2 or Parquet")
        with self._batches(None) as (schema, batches):
            self._check_names(schema.names)
            if not any(batch.num_rows for batch in batches):
                raise self._no_rows()
        return {field.name: field.type for field in schema}

    def _pieces(self, names: Sequence[str], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:
        del rows, begin  # yields the batches of the file unchanged, from its start
        fields = sorted(self.columns.index(name) for name in names)
        with self._batches(fields) as (_, batches):
            for batch in batches:
                # Without validation, text offsets that point outside the file would crash the process.
                batch.validate(full=True)
                yield batch

    @contextmanager
    def _batches(self, fields: list[int] | None) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        ipc = required("pyarrow.ipc")
        options = ipc.IpcReadOptions(included_fields=fields)
        with required("pyarrow").memory_map(self.name, "r") as source:
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
    """A Parquet file, or all `*.parquet` files of a directory by name; row groups are streamed one after the other.

    The statistics in the footer would show missing values at less cost than a survey, but in a damaged file pyarrow
    crashes the process when it reads them.
    """

    format = "Parquet"

    @property
    def starts(self) -> tuple[int, ...]:
        return self._starts

    def _open(self) -> dict[str, pa.DataType]:
        paths = sorted(self.path.glob("*.parquet")) if self.path.is_dir() else [self.path]
        if not paths:
            raise TableError(f"{self.name} is a directory without *.parquet files; expected at least one")
        types: dict[str, pa.DataType] = {}
        self._groups: list[_RowGroup] = []
        for path in paths:
            with _file(path) as file:
                found = {field.name: field.type for field in file.schema_arrow}
                if not types:
                    self._check_names(file.schema_arrow.names)
                    types = found
                elif found != types:
                    other = [name for name in {**types, **found} if found.get(name) != types.get(name)]
                    raise TableError(f"{path} has other columns or types than {paths[0].name}: {listed(other)}")
                sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
            self._groups += [_RowGroup(path, number, size) for number, size in enumerate(sizes) if size]
        if not self._groups:
            raise self._no_rows()
        self._starts = tuple(accumulate((group.rows for group in self._groups[:-1]), initial=0))
        return types

    def _pieces(self, names: Sequence[str], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:
        selected: dict[Path, list[int]] = {}
        for group in self._groups[self._starts.index(begin) :]:
            selected.setdefault(group.file, []).append(group.number)
        for path, numbers in selected.items():
            with _file(path) as file:
                yield from file.iter_batches(batch_size=rows, row_groups=numbers, columns=list(names))


def _file(path: Path) -> pq.ParquetFile:
    # Pre-buffering would keep the columns of the whole file in memory.
    return required("pyarrow.parquet").ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)
