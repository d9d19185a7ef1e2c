"""CSV files, plain or gzipped, and the recognition of their column types.

The first rows may mislead: a column of integers has decimals later, a column of numbers contains one word. So the first
request for a column reads all of it and recognises its type. The converted cells stay in a store, so that the file is
parsed once; one that does not fit the store is parsed again by each pass.

A column is integer if every cell is an integer, number if every cell is a number, bool if every cell is `true` or
`false` (in any case), and text otherwise. Whole numbers are text if most of them have a leading zero ("01"). Cells of
numbers and booleans are missing where they are empty or a usual word (NA, N/A, NaN, null, NULL ...), quoted or not;
cells of text only where they are empty.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from anytime.data.formats.arrow import PLAIN, ArrowTable, NumberStyle, Recognition, parsed
from anytime.data.formats.table import ReadAs, damaged, pa, required
from anytime.errors import AnytimeError, TableError
from anytime.types import ColumnType

BLOCK = 1 << 21
"""Bytes parsed at a time, and so the length of the longest readable row; pyarrow reads 32 blocks ahead."""

STORE_BYTES = 1 << 28
"""Converted cells of a file that stay in memory; more go to a file in the temporary folder."""

STORE_SHARE = 0.5
"""Share of the free space of the temporary folder that the file may take."""


@dataclass(eq=False)
class Store:
    """Converted cells of some columns, block by block: in memory, else in a temporary file, else nowhere.

    A column has the type of its first block. One with another type later is not in the store, nor one that is
    requested as text after its cells were converted to numbers.
    """

    _schema: pa.Schema | None = None
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _bytes: int = 0
    _file: IO[bytes] | None = None
    _writer: Any = None
    _lost: set[str] = field(default_factory=set)
    is_full: bool = False

    def add(self, columns: Mapping[str, pa.Array]) -> None:
        if self.is_full:
            return
        if self._schema is None:
            self._schema = pa.schema({name: column.type for name, column in columns.items()})
        other = {kept.name for kept in self._schema if columns[kept.name].type != kept.type}
        self._lost |= {name for name in other if columns[name].null_count < len(columns[name])}
        arrays = [
            pa.nulls(len(columns[kept.name]), kept.type) if kept.name in other else columns[kept.name]
            for kept in self._schema
        ]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._bytes += self._batches[-1].nbytes
        if self._bytes > STORE_BYTES:
            try:
                self._write()
            except OSError:  # the temporary folder is full or not writable: each pass parses the file again
                self.is_full, self._batches, self._schema, self._file, self._writer = True, [], None, None, None

    def _write(self) -> None:
        """Move the cells in memory to the file."""
        if self._file is None:
            self._file = tempfile.NamedTemporaryFile(prefix="anytime-", suffix=".arrow")  # noqa: SIM115
            self._free = STORE_SHARE * shutil.disk_usage(self._file.name).free
            self._writer = required("pyarrow.ipc").new_stream(self._file, self._schema)
        if self._bytes > self._free:
            raise OSError("the temporary folder has too little space")
        for batch in self._batches:
            self._writer.write_batch(batch)
        self._batches = []

    def has(self, name: str, kind: ReadAs) -> bool:
        if self._schema is None or name in self._lost or name not in self._schema.names:
            return False
        return bool(pa.types.is_string(self._schema.field(name).type)) == (kind in ("text", "key", "date"))

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._file is None:
            yield from self._batches
            return
        self._file.flush()
        with pa.memory_map(self._file.name) as source:
            yield from required("pyarrow.ipc").open_stream(source)


class CsvTable(ArrowTable):
    """A file of separated cells with a header line, in UTF-8; the docstring of this module describes the types.

    Parameters
    ----------
    separator : str | None
        Character between cells; None recognises comma, semicolon, tab and `|` by the first lines.
    style : NumberStyle
        How numbers are written.
    """

    format = "CSV"

    def __init__(self, path: Path, separator: str | None = None, style: NumberStyle = PLAIN) -> None:
        if separator is not None and (len(separator) != 1 or separator in '"\r\n' or separator == style.decimal):
            raise TableError(f"--separator is {separator!r}; expected one character other than the decimal mark")
        self._separator, self._style = separator, style
        self._compression = "gzip" if path.suffix.lower() == ".gz" else None
        self._store, self._found = Store(), dict[str, ColumnType]()
        super().__init__(path)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_store": Store()}

    def _open(self) -> dict[str, pa.DataType]:
        with pa.input_stream(self.path, compression=self._compression) as stream:
            head = stream.read(1 << 16)
        if not head.strip():
            raise TableError(f"{self.path} is empty; expected a header line and rows")
        if b"\0" in head or head[:2] == b"\x1f\x8b":
            raise damaged(str(self.path), self.format, "it is binary or UTF-16, not UTF-8 text")
        if self._separator is None:  # a comma, or the other mark that the header has, outside of quotes
            header = re.sub(r'"[^"]*"', "", head.decode(errors="replace").lstrip().partition("\n")[0])
            others = [mark for mark in (";", "\t", "|") if mark in header]
            self._separator = others[0] if len(others) == 1 and "," not in header else ","
        self.layout = "" if self._separator == "," else f" (cells are separated by {self._separator!r})"
        with self._reader() as reader:
            names = reader.schema.names
            self._check_names(names)
            if not any(batch.num_rows for batch in reader):
                raise self._no_rows()
        return dict.fromkeys(names, pa.string())

    @contextmanager
    def _reader(self, names: Sequence[str] = ()) -> Iterator[Any]:
        """Open the file for pyarrow, which parses these columns, all by default, as text."""
        csv = required("pyarrow.csv")
        with (
            pa.input_stream(self.path, compression=self._compression) as stream,
            csv.open_csv(
                stream,
                # With one thread, pyarrow reports the number of a broken row; several threads are not faster here.
                read_options=csv.ReadOptions(use_threads=False, block_size=BLOCK),
                parse_options=csv.ParseOptions(newlines_in_values=True, delimiter=self._separator),
                convert_options=csv.ConvertOptions(
                    include_columns=list(names),
                    column_types=dict.fromkeys(names, pa.string()),
                    strings_can_be_null=True,
                    null_values=[""],
                ),
            ) as reader,
        ):
            yield reader

    def _types(self, names: tuple[str, ...], stated: Mapping[str, ReadAs]) -> dict[str, ReadAs]:
        seen = {name: Recognition(self._style) for name in names if name not in stated}
        if not seen.keys() <= self._found.keys():  # find the types in one pass, which stores the cells
            self._store, row = Store(), 0
            with self._reading(), self._reader(names) as reader:
                for cells in reader:
                    self._store.add(
                        {
                            name: seen[name].add(column)
                            if name in seen
                            else self._converted(name, column, stated[name], row)
                            for name, column in zip(names, cells.columns, strict=True)
                        }
                    )
                    row += cells.num_rows
            self._found |= {name: recognition.kind for name, recognition in seen.items()}
        return {name: self._found[name] for name in seen}

    def _pieces(self, types: Mapping[str, ReadAs], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  (blocks are parsed by bytes)
        stored = [name for name, kind in types.items() if self._store.has(name, kind)]
        others = [name for name in types if name not in stored]
        if not others:
            yield from self._store.batches()
            return
        row = 0
        blocks = self._store.batches()
        with self._reader(others) as reader:
            for cells in reader:
                block = next(blocks) if stored else cells  # blocks have the same rows whatever columns are parsed
                yield pa.RecordBatch.from_arrays(
                    [
                        block.column(name) if name in stored else self._converted(name, cells.column(name), kind, row)
                        for name, kind in types.items()
                    ],
                    names=list(types),
                )
                row += cells.num_rows

    def _converted(self, name: str, cells: pa.Array, kind: ReadAs, row: int) -> pa.Array:
        """Return cells as booleans, or as numbers of the file's style; as they are for text."""
        if kind in ("text", "key", "date"):
            return cells
        try:
            return parsed(name, cells, kind, row, self._style)
        except TableError as error:
            raise TableError(f"{self.name}: {error}") from None

    def _complaint(self, error: Exception, path: Path | None) -> AnytimeError:
        message = str(error)
        if broken := re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", message):
            # pyarrow counts from 1 and counts the header.
            where = f"row {int(broken[1]) - 2} (counted from 0)" if broken[1] else "a row"
            return TableError(f"{self.name}: {where} has {broken[3]} cells; expected {broken[2]}, as in the header")
        if "Empty CSV file" in message:
            return self._no_rows()
        if "straddling" in message:
            return TableError(f"{self.name} has a row of more than {BLOCK >> 20} MiB; look for an unclosed quote")
        if isinstance(error, UnicodeDecodeError) or "UTF8" in message:
            return TableError(f"{self.name} is not UTF-8 text; save it in that encoding")
        return super()._complaint(error, path)
