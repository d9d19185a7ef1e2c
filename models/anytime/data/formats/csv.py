"""Cells of text: what they turn out to hold, and turning them into it.

CSV files, plain or gzipped.

A CSV file does not say what its columns hold, and its first thousand rows may lie: a column of integers turns to
decimals later, a column of numbers holds one word. So types are not guessed from the start of the file. The first time
a column is asked for, all of it is read once and typed; then it is read again and handed out. Both passes parse cells
as text and convert them with the same code, so they cannot disagree, and the file is never held.

A column is int64 if every cell is an integer, float64 if every cell is a number, bool if every cell is `true` or
`false` (in any case), and text otherwise. Empty cells and the usual spellings (NA, N/A, NaN, null, NULL ...) are
missing, quoted or not, in text as well. Where cells of numbers and of text are mixed, the first that is no number is
remembered, and named if the column is used as numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anytime.data.formats.arrow import ArrowTable, Kind
from anytime.data.formats.table import Text, damaged, required
from anytime.errors import TableError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CsvTable",
    "Evidence",
    "converted",
]


@dataclass
class Evidence:
    """What has been seen of a column so far; it does not depend on how the column was cut into pieces."""

    integers: bool = False
    decimals: bool = False
    booleans: bool = False
    words: bool = False
    gaps: bool = False
    first_text: Text | None = None

    @property
    def text(self) -> bool:
        """Whether the column can only be text."""
        return self.words or (self.booleans and (self.integers or self.decimals))

    def add(self, cells: pa.Array, start: int) -> None:
        """Add what a piece of a column shows; `start` is the row of its first cell."""
        pa = required("pyarrow")
        if self.text:
            return
        self.gaps |= cells.null_count > 0
        try:
            floats = converted(cells, pa.float64())
        except pa.ArrowInvalid:
            if self.first_text is None:
                row = _first_text(cells)
                self.first_text = Text(start + row, cells[row].as_py())
            present = _trimmed(cells).drop_null()
            self.gaps |= len(present) < len(cells)
            if _are_booleans(present):
                self.booleans = True
            else:
                self.words = True
            return
        self.gaps |= floats.null_count > 0
        if self.decimals or floats.null_count == len(floats):
            return
        # Integers are looked for among numbers only: the cast also takes 0x1F, which is text here.
        try:
            converted(cells, pa.int64())
        except pa.ArrowInvalid:
            self.decimals = True
        else:
            self.integers = True


def converted(cells: pa.Array, target: pa.DataType) -> pa.Array:
    """Cells of text as `target`; ArrowInvalid if one cannot be."""
    pa, pc = required("pyarrow"), required("pyarrow.compute")
    if target == pa.string():
        return cells
    if target == pa.bool_():
        return pc.equal(pc.utf8_lower(_trimmed(cells)), "true")
    try:
        return cells.cast(target)
    except pa.ArrowInvalid:
        # Blanks around numbers are rare enough to be looked for only now.
        return _trimmed(cells).cast(target)


def _trimmed(cells: pa.Array) -> pa.Array:
    pa, pc, csv = required("pyarrow"), required("pyarrow.compute"), required("pyarrow.csv")
    cells = pc.utf8_trim_whitespace(cells)
    missing = pc.is_in(cells, value_set=pa.array(csv.ConvertOptions().null_values, pa.string()))
    return pc.if_else(missing, pa.scalar(None, pa.string()), cells)


def _are_booleans(cells: pa.Array) -> bool:
    pa, pc = required("pyarrow"), required("pyarrow.compute")
    return bool(pc.all(pc.is_in(pc.utf8_lower(cells), value_set=pa.array(["true", "false"]))).as_py())


def _first_text(cells: pa.Array) -> int:
    """Index of the first cell that is not a number, by halving: the casts together cost about two of the whole."""
    pa = required("pyarrow")
    low, high = 0, len(cells)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            converted(cells.slice(low, middle - low), pa.float64())
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    return low


BLOCK = 1 << 21
"""Bytes parsed at a time, and so the longest row that can be read; pyarrow reads 32 blocks ahead."""


class CsvTable(ArrowTable):
    """A comma-separated file with a header line, in UTF-8; the head of this module says how it is typed."""

    format = "CSV"

    def _open(self) -> dict[str, pa.DataType]:
        pa = required("pyarrow")
        with self._stream() as stream:
            head = stream.read(4096)
        if not head.strip():
            raise TableError(f"{self.name} is empty; expected a header line and rows")
        if b"\0" in head or head[:2] == b"\x1f\x8b":
            raise damaged(self.name, self.format, "it is binary or UTF-16, not UTF-8 text")
        with self._stream() as stream, self._reader(stream) as reader:
            names = reader.schema.names
            self._check_names(names)
            if len(names) == 1 and (separator := re.search(r"[;\t|]", names[0])):
                raise TableError(f"{self.name} separates cells by {separator[0]!r}; expected commas")
            if not any(batch.num_rows for batch in reader):
                raise self._no_rows()
        return dict.fromkeys(names, pa.string())

    def _stream(self) -> pa.NativeFile:
        compression = "gzip" if self.path.suffix.lower() == ".gz" else None
        return required("pyarrow").input_stream(self.path, compression=compression)

    def _reader(self, stream: pa.NativeFile, names: Sequence[str] = ()) -> Any:
        pa, csv = required("pyarrow"), required("pyarrow.csv")
        return csv.open_csv(
            stream,
            # One thread, because only then a broken row is reported with its number; it is no slower here.
            read_options=csv.ReadOptions(use_threads=False, block_size=BLOCK),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                include_columns=list(names), column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True
            ),
        )

    def _cells(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with self._stream() as stream, self._reader(stream, names) as reader:
            yield from reader

    def _pieces(self, names: Sequence[str], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:
        del rows, begin  # blocks are parsed by bytes, from the start
        pa = required("pyarrow")
        for cells in self._cells(names):
            arrays = [converted(cells.column(name), self._types[name]) for name in names]
            yield pa.RecordBatch.from_arrays(arrays, names=list(names))

    def _prepare(self, names: tuple[str, ...], numeric: frozenset[str]) -> None:
        del numeric  # whether a column is text has to be found out anyway
        seen = {name: Evidence() for name in names if name not in self._kinds}
        if not seen:
            return
        start = 0
        with self._reading():
            for cells in self._cells(tuple(seen)):
                for name, evidence in seen.items():
                    evidence.add(cells.column(name), start)
                start += cells.num_rows
        for name, evidence in seen.items():
            self._settle(name, evidence)

    def _settle(self, name: str, evidence: Evidence) -> None:
        pa = required("pyarrow")
        if evidence.text:
            self._types[name], self._kinds[name] = pa.string(), Kind.TEXT
            if evidence.first_text is not None:
                self._culprits[name] = evidence.first_text
        elif evidence.booleans:
            self._types[name], self._kinds[name] = pa.bool_(), Kind.FLOAT if evidence.gaps else Kind.BOOL
        elif evidence.integers and not evidence.decimals and not evidence.gaps:
            self._types[name], self._kinds[name] = pa.int64(), Kind.INT
        else:
            self._types[name], self._kinds[name] = pa.float64(), Kind.FLOAT

    def _complaint(self, error: Exception) -> TableError:
        said = str(error)
        if broken := re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", said):
            # pyarrow counts from 1 and counts the header.
            where = f"row {int(broken[1]) - 2} (counted from 0)" if broken[1] else "a row"
            return TableError(f"{self.name}: {where} has {broken[3]} cells; expected {broken[2]}, as in the header")
        if "straddling" in said:
            return TableError(
                f"{self.name} has a row of more than {BLOCK >> 20} MiB; look for a quote that is never closed"
            )
        if isinstance(error, UnicodeDecodeError) or "UTF8" in said:
            return TableError(f"{self.name} is not UTF-8 text; save it in that encoding")
        return damaged(self.name, self.format, error)
