"""Tables written in batches: CSV, Parquet and Arrow files, complete or not there at all."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from anytime._files import replacing
from anytime.data.formats.table import Table, pa, pa_csv, pa_ipc, pa_parquet
from anytime.errors import TableError, file_error

TEXTS = {".csv": ",", ".tsv": "\t", ".gz": ","}
"""The mark between cells of text files, by suffix; `.gz` is that of `.csv.gz`."""

WRITABLE = (*TEXTS, ".parquet", ".arrow", ".feather")
"""Suffixes of tables that can be written."""

ROW_GROUP = 1 << 18
"""Rows of a row group of a Parquet file."""


def types_to_write(table: Table, columns: Sequence[str], path: Path) -> dict[str, pa.DataType]:
    """Return what some columns of a table are written as to keep their cells as they stand: text in a file of text."""
    if path.suffix.lower() in TEXTS or not columns:
        return dict.fromkeys(columns, pa.string())
    return table.cell_types(columns)


def write_table(path: Path, batches: Iterable[Mapping[str, Any]], types: Mapping[str, pa.DataType] = {}) -> None:
    """Write a table, at least one batch of arrays (rows,) by name; NaN stays a number, and None is missing.

    Columns have the types that are stated, the others that of their first batch. The file gets its name when it is
    complete.

    Raises
    ------
    TableError
        Writing the file fails, or it cannot have a value.
    """
    suffix = path.suffix.lower()
    schema: pa.Schema = None
    writer: Any = None
    waiting: list[pa.RecordBatch] = []
    try:
        with replacing(path) as temporary, ExitStack() as opened:
            for columns in batches:
                arrays = {name: pa.array(values) for name, values in columns.items()}
                if schema is None:
                    schema = pa.schema({name: types.get(name, array.type) for name, array in arrays.items()})
                    writer = opened.enter_context(_writer(temporary, suffix, schema, opened))
                cells = [_as_type(name, array, schema.field(name).type, path) for name, array in arrays.items()]
                waiting.append(pa.RecordBatch.from_arrays(cells, schema=schema))
                if suffix != ".parquet" or sum(batch.num_rows for batch in waiting) >= ROW_GROUP:
                    writer.write_table(pa.Table.from_batches(waiting))
                    waiting = []
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting))
    except OSError as error:
        raise file_error(TableError, f"write {str(path)!r}", error) from error
    except pa.ArrowException as error:
        raise TableError(f"cannot write {str(path)!r}: {' '.join(str(error).split())}") from error


def _as_type(name: str, array: pa.Array, kind: pa.DataType, path: Path) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowException:
        raise TableError(
            f"column {name!r} is {array.type}, which {str(path)!r} cannot store; write Parquet or Arrow "
            "(*.parquet, *.arrow), or leave the column out"
        ) from None


def _writer(path: Path, suffix: str, schema: pa.Schema, opened: ExitStack) -> Any:
    """Return a writer of Arrow for a file; `opened` closes the file after it."""
    if suffix == ".parquet":
        return pa_parquet.ParquetWriter(path, schema)
    sink = opened.enter_context(pa.output_stream(path, compression="gzip" if suffix == ".gz" else None))
    if suffix not in TEXTS:
        return pa_ipc.new_file(sink, schema)
    header = io.StringIO()  # Arrow quotes every name of a header that it writes
    csv.writer(header, delimiter=TEXTS[suffix], lineterminator="\n").writerow(schema.names)
    sink.write(header.getvalue().encode())
    options = pa_csv.WriteOptions(include_header=False, delimiter=TEXTS[suffix])
    return pa_csv.CSVWriter(sink, schema, write_options=options)
