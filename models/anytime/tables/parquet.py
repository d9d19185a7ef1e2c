"""Parquet: a file, or a directory of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from anytime.errors import TableError, listed
from anytime.tables.arrow import ArrowTable
from anytime.tables.optional import required

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["ParquetTable"]

_BUFFER = 1 << 16
"""Bytes read ahead for each column: a row group is streamed, however large, and 500 columns take 32 MiB."""


class _RowGroup(NamedTuple):
    """Where some consecutive rows of the table are: a file, and which of its row groups."""

    file: Path
    number: int
    rows: int


class ParquetTable(ArrowTable):
    """A Parquet file, its row groups streamed one after the other; or all `*.parquet` of a directory, by name.

    The statistics in its footer would tell of missing values at less cost than a survey, but pyarrow ends the process
    when asked for them in a damaged file.
    """

    format = "Parquet"

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each row group."""
        return self._starts

    def _open(self) -> dict[str, pa.DataType]:
        paths = sorted(self.path.glob("*.parquet")) if self.path.is_dir() else [self.path]
        if not paths:
            raise TableError(f"{self.name} is a directory without a file *.parquet; expected at least one")
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
        left: dict[Path, list[int]] = {}
        for group in self._groups[self._starts.index(begin) :]:
            left.setdefault(group.file, []).append(group.number)
        for path, numbers in left.items():
            with _file(path) as file:
                yield from file.iter_batches(batch_size=rows, row_groups=numbers, columns=list(names))


def _file(path: Path) -> pq.ParquetFile:
    # Pre-buffering would hold the columns of the whole file.
    return required("pyarrow.parquet").ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)
