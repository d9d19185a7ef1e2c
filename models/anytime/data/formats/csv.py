"""CSV files, plain or gzipped, and the recognition of their column types.

The first rows may mislead: a column of integers has decimals later, a column of numbers contains one word. So the first
request for a column reads all of it and recognises its type. The converted cells stay in a store, so that the file is
parsed once; one that does not fit the store is parsed again by each pass.

A column is integer if every cell is an integer, number if every cell is a number, bool if every cell is `true` or
`false` (in any case), and text otherwise. Whole numbers are text if most of them have a leading zero ("01"). Cells of
numbers and booleans are missing where they are empty or a usual word (NA, N/A, NaN, null, NULL ...), quoted or not;
cells of text only where they are empty.

A first line such as `sep=;`, as spreadsheets write it, names the separator; `.tsv` files have tabs.
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
from weakref import finalize

from anytime.data.formats.arrow import ArrowTable, Recognition, is_written_as
from anytime.data.formats.table import PLAIN, NumberStyle, ReadAs, damaged, pa, pa_csv, pa_ipc
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
    """Cells of some columns, block by block: in memory, then in a temporary file, or nowhere."""

    types: dict[str, set[pa.DataType]] = field(default_factory=dict)
    """What the blocks of each column are stored as."""
    _blocks: list[pa.RecordBatch] | None = field(default_factory=list)
    _bytes: int = 0
    _file: IO[bytes] | None = None

    def add(self, columns: Mapping[str, pa.Array]) -> None:
        if self._blocks is None:
            return
        block = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        for name, column in columns.items():
            self.types.setdefault(name, set()).add(column.type)
        self._bytes += block.nbytes
        if self._bytes <= STORE_BYTES:
            self._blocks.append(block)
            return
        try:
            self._write(block)
        except OSError:  # the temporary folder is full or not writable: each pass parses the file again
            self._blocks, self._file, self.types = None, None, {}

    def _write(self, block: pa.RecordBatch) -> None:
        if self._file is None:
            self._file = tempfile.NamedTemporaryFile(prefix="anytime-", suffix=".arrow")  # noqa: SIM115
            finalize(self, self._file.close)
            self._limit = STORE_BYTES + STORE_SHARE * shutil.disk_usage(self._file.name).free
        if self._bytes > self._limit:
            raise OSError("the temporary folder has too little space")
        with pa_ipc.new_stream(self._file, block.schema) as stream:  # its own: blocks have different types
            stream.write_batch(block)

    def blocks(self) -> Iterator[pa.RecordBatch]:
        yield from self._blocks or ()
        if self._file is not None:
            self._file.flush()
            with pa.memory_map(self._file.name) as source:
                while source.tell() < source.size():
                    yield from pa_ipc.open_stream(source)


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
        self._separator = separator
        self._compression = "gzip" if path.suffix.lower() == ".gz" else None
        self._store, self._found = Store(), dict[str, ColumnType]()
        super().__init__(path)
        self.style = style

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_store": Store()}

    def _open(self) -> pa.Schema:
        with pa.input_stream(self.path, compression=self._compression) as stream:
            head = stream.read(1 << 16)
        if not head.strip():
            raise TableError(f"{self.path} is empty; expected a header line and rows")
        if b"\0" in head or head[:2] == b"\x1f\x8b":
            raise damaged(str(self.path), self.format, "it is binary or UTF-16, not UTF-8 text")
        text = head.decode("utf-8-sig", errors="replace")
        named = re.match(r'"?sep=(.)"?\r?\n', text)
        self._skipped = int(named is not None)
        if named is not None:
            text, self._separator = text[named.end() :], self._separator or named[1]
        elif self._separator is None and self.path.name.lower().removesuffix(".gz").endswith(".tsv"):
            self._separator = "\t"
        header, _, body = text.lstrip().partition("\n")
        if self._separator is None:  # a comma, or the other mark that the header has, outside of quotes
            names = re.sub(r'"[^"]*"', "", header)
            others = [mark for mark in (";", "\t", "|") if mark in names]
            self._separator = others[0] if len(others) == 1 and "," not in names else ","
        self.layout = "" if self._separator == "," else f" (cells are separated by {self._separator!r})"
        with self._reader() as reader:
            schema = reader.schema
        mark = re.escape(self._separator)
        cells = re.findall(rf'("(?:[^"]|"")*"|[^"{mark}\r\n]*)(?:{mark}|\r?\n|$)', body.lstrip())
        self.quoted = frozenset(name for name, cell in zip(schema.names, cells, strict=False) if cell[:1] == '"')
        return pa.schema([(name, pa.string()) for name in schema.names])

    @contextmanager
    def _reader(self, names: Sequence[str] = ()) -> Iterator[Any]:
        """Open the file for pyarrow, which parses these columns, all by default, as text."""
        with (
            pa.input_stream(self.path, compression=self._compression) as stream,
            pa_csv.open_csv(
                stream,
                # With one thread, pyarrow reports the number of a broken row; several threads are not faster here.
                read_options=pa_csv.ReadOptions(use_threads=False, block_size=BLOCK, skip_rows=self._skipped),
                parse_options=pa_csv.ParseOptions(newlines_in_values=True, delimiter=self._separator),
                convert_options=pa_csv.ConvertOptions(
                    include_columns=list(names),
                    column_types=dict.fromkeys(names, pa.string()),
                    strings_can_be_null=True,
                    null_values=[""],
                ),
            ) as reader,
        ):
            yield reader

    def cell_types(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        kinds = {name: [pa.int64(), pa.float64(), pa.bool_()] for name in names}
        for batch in self.batches(names, types=dict.fromkeys(names, "cells")):
            for name, cells in batch.columns.items():
                kinds[name] = [kind for kind in kinds[name] if is_written_as(cells, kind)]
        return {name: [*found, pa.string()][0] for name, found in kinds.items()}

    def _types(self, names: tuple[str, ...], stated: Mapping[str, ReadAs]) -> dict[str, ReadAs]:
        seen = {name: Recognition(self.style) for name in names if name not in stated}
        if not seen.keys() <= self._found.keys():  # find the types in one pass, which stores the cells
            self._store = Store()
            with self._reading(), self._reader(names) as reader:
                for cells in reader:
                    columns = dict(zip(names, cells.columns, strict=True))
                    self._store.add(columns | {name: found.add(columns[name]) for name, found in seen.items()})
            self._found |= {name: found.kind for name, found in seen.items()}
        return {name: self._found[name] for name in seen}

    def _pieces(self, types: Mapping[str, ReadAs], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  (blocks are parsed by bytes)
        numeric = [name for name, kind in types.items() if kind not in ("text", "key", "cells")]  # or dates
        stored = [
            n for n, found in self._store.types.items() if n in types and (n in numeric or found == {pa.string()})
        ]
        others = [name for name in types if name not in stored]
        blocks = self._store.blocks()
        if not others:
            yield from blocks
            return
        with self._reader(others) as reader:
            for cells in reader:
                block = next(blocks) if stored else cells  # blocks have the same rows whatever columns are parsed
                arrays = [(block if name in stored else cells).column(name) for name in types]
                yield pa.RecordBatch.from_arrays(arrays, names=list(types))

    def _complaint(self, error: Exception) -> AnytimeError:
        message = str(error)
        if broken := re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", message):
            # pyarrow counts from 1, and counts the lines before.
            where = f"row {int(broken[1]) - 2 - self._skipped} (counted from 0)" if broken[1] else "a row"
            return TableError(f"{self.name}: {where} has {broken[3]} cells; expected {broken[2]}, as in the header")
        if "Empty CSV file" in message:
            return self.no_rows()
        if "straddling" in message:
            return TableError(f"{self.name} has a row of more than {BLOCK >> 20} MiB; look for an unclosed quote")
        if isinstance(error, UnicodeDecodeError) or "UTF8" in message:
            return TableError(f"{self.name} is not UTF-8 text; save it in that encoding")
        return super()._complaint(error)
