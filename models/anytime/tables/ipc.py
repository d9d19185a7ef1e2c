"""Arrow files: IPC file format (also known as Feather) and IPC streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from anytime.errors import TableError
from anytime.tables.arrow import ArrowTable
from anytime.tables.optional import required

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowFileTable"]


class ArrowFileTable(ArrowTable):
    """An Arrow file or stream, mapped into memory, one record batch at hand at a time."""

    format = "Arrow"

    def _open(self) -> dict[str, pa.DataType]:
        with self.path.open("rb") as file:
            if file.read(4) == b"FEA1":
                raise TableError(
                    f"{self.name} is a Feather file of version 1; write it again as version 2 or as Parquet"
                )
        with self._batches(None) as (schema, batches):
            self._check_names(schema.names)
            if not any(batch.num_rows for batch in batches):
                raise self._no_rows()
        return {field.name: field.type for field in schema}

    def _pieces(self, names: Sequence[str], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:
        del rows, begin  # the batches of the file are taken as they are, from its start
        fields = sorted(self.columns.index(name) for name in names)
        with self._batches(fields) as (_, batches):
            for batch in batches:
                # Offsets of text that point outside the file would crash the process rather than raise.
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
