"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from anytime.tables.arrow import ArrowTable
from anytime.tables.optional import required

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["ParquetTable"]

_BUFFER = 1 << 16
"""Bytes read ahead for each column: a row group is streamed, however large, and 500 columns take 32 MiB."""


class ParquetTable(ArrowTable):
    """A Parquet file, its row groups streamed one after the other.

    The statistics in its footer would tell of missing values at less cost than a survey, but pyarrow ends the process
    when asked for them in a damaged file.
    """

    format = "Parquet"

    def _file(self) -> pq.ParquetFile:
        # Pre-buffering would hold the columns of the whole file.
        return required("pyarrow.parquet").ParquetFile(self.path, pre_buffer=False, buffer_size=_BUFFER)

    def _open(self) -> dict[str, pa.DataType]:
        with self._file() as file:
            self._check_names(file.schema_arrow.names)
            if not file.metadata.num_rows:
                raise self._no_rows()
            return {field.name: field.type for field in file.schema_arrow}

    def _pieces(self, names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        with self._file() as file:
            yield from file.iter_batches(batch_size=rows, columns=list(names))
