"""Tables that come as Arrow record batches: what Parquet, Arrow and CSV files share."""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from anytime.errors import TableError, unusable
from anytime.tables.columns import INT64_MAX, Kind, decoded, kind_of, to_numpy
from anytime.tables.optional import required
from anytime.tables.table import Batch, FileTable, Text, damaged

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowTable"]


class ArrowTable(FileTable):
    """A table whose file pyarrow reads; nothing of it is kept but names, types and kinds."""

    format: ClassVar[str]

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._kinds: dict[str, Kind] = {}
        self._culprits: dict[str, Text] = {}
        with self._reading():
            self._types = self._open()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in the order of the file."""
        return tuple(self._types)

    def has(self, name: str) -> bool:
        """Whether a column may be asked for."""
        return name in self._types

    @abstractmethod
    def _open(self) -> dict[str, pa.DataType]:
        """Check the file as far as is cheap; its columns and their types."""

    @abstractmethod
    def _pieces(self, names: Sequence[str], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:
        """Read the file from one of its `starts`, these columns only, in any order; pieces may be of any length."""

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

    def _kind(self, name: str, numeric: frozenset[str]) -> Kind:
        """How a column is handed out that is prepared."""
        kind = self._kinds.get(name, Kind.FLOAT)
        return Kind.FLOAT if name in numeric and kind is not Kind.TEXT else kind

    def _prepare(self, names: tuple[str, ...], numeric: frozenset[str]) -> None:
        """Settle a kind for each column.

        A column of integers is int64 only if no row of the file is missing. The type does not tell, so those columns,
        and only those, are surveyed first; the answer is kept.
        """
        unsettled = []
        for name in names:
            if name in self._kinds:
                continue
            kind = kind_of(self._types[name])
            if kind is None:
                raise TableError(f"{self.name}: {unusable(repr(name), self._types[name], numeric=name in numeric)}")
            if kind in (Kind.BOOL, Kind.INT):
                if name not in numeric:
                    unsettled.append(name)
            else:
                self._kinds[name] = kind
        if unsettled:
            with self._reading():
                self._survey(unsettled)

    def _survey(self, names: Sequence[str]) -> None:
        """Settle columns of integers and booleans: float64 if a value is missing or too large."""
        pc = required("pyarrow.compute")
        kinds = {name: kind_of(self._types[name]) or Kind.FLOAT for name in names}
        for piece in self._pieces(names, rows=1 << 16):
            for name in names:
                column = decoded(piece.column(name))
                if kinds[name] is Kind.FLOAT:
                    continue
                if column.null_count or (kinds[name] is Kind.INT and (pc.max(column).as_py() or 0) > INT64_MAX):
                    kinds[name] = Kind.FLOAT
        self._kinds |= kinds

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn pyarrow's errors into one line that names the file."""
        pa = required("pyarrow")
        try:
            yield
        except MemoryError as error:  # also an ArrowException
            size = re.search(r"size (\d+)", str(error))
            if size is None or int(size[1]) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
                raise
            raise self._complaint(error) from error  # no batch of a table is larger than the machine's memory
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._complaint(error) from error

    def _complaint(self, error: Exception) -> TableError:
        return damaged(self.name, self.format, error)
