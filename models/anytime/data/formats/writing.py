"""Tables written in batches: CSV, Parquet and Arrow files, complete or not there at all."""

from __future__ import annotations

import csv
import io
import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from anytime.data.formats.table import pa, required
from anytime.errors import TableError, file_error

WRITABLE = (".csv", ".gz", ".parquet", ".arrow", ".feather")
"""Suffixes of tables that can be written; `.gz` is that of `.csv.gz`."""

ROW_GROUP = 1 << 18
"""Rows of a row group of a Parquet file."""


class TableWriter:
    """A new table, which gets its name when the `with` block ends without an error; the first batch states the types.

    Raises
    ------
    TableError
        Writing the file fails.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        self._writer: Any = None
        self._opened = ExitStack()
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def __enter__(self) -> Self:
        return self

    def add(self, columns: Mapping[str, NDArray[Any] | pa.Array]) -> None:
        """Write some rows: arrays (rows,) by name; NaN stays a number, and None is missing."""
        arrays = {name: pa.array(values) for name, values in columns.items()}
        try:
            if self._writer is None:
                self._open(pa.schema({name: array.type for name, array in arrays.items()}))
            else:  # a column without values in a batch has no type of its own
                arrays = {name: array.cast(self._schema.field(name).type) for name, array in arrays.items()}
            batch = pa.RecordBatch.from_arrays(list(arrays.values()), schema=self._schema)
            self._waiting.append(batch)
            self._rows += batch.num_rows
            if self.path.suffix.lower() != ".parquet" or self._rows >= ROW_GROUP:
                self._flush()
        except OSError as error:
            raise file_error(TableError, f"write {str(self.path)!r}", error) from error

    def _open(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._temporary.open("xb").close()  # Arrow's errors name the temporary file
        suffix = self.path.suffix.lower()
        if suffix == ".parquet":
            writer = required("pyarrow.parquet").ParquetWriter(self._temporary, schema)
        else:
            compression = "gzip" if suffix == ".gz" else None
            sink = self._opened.enter_context(pa.output_stream(self._temporary, compression=compression))
            if suffix in (".csv", ".gz"):
                # Arrow quotes every name of a header that it writes.
                header = io.StringIO()
                csv.writer(header, lineterminator="\n").writerow(schema.names)
                sink.write(header.getvalue().encode())
                files = required("pyarrow.csv")
                writer = files.CSVWriter(sink, schema, write_options=files.WriteOptions(include_header=False))
            else:
                writer = required("pyarrow.ipc").new_file(sink, schema)
        self._writer = self._opened.enter_context(writer)

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._rows = [], 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
            self._opened.close()
            if kind is None and self._writer is not None:
                os.replace(self._temporary, self.path)
        except OSError as failed:
            if kind is None:
                raise file_error(TableError, f"write {str(self.path)!r}", failed) from failed
        finally:
            self._temporary.unlink(missing_ok=True)
