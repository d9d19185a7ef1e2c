"""CSV files, plain or gzipped, and the inference of their column types.

The first rows may mislead: a column of integers has decimals later, a column of numbers contains one word. So the first
request for a column reads all of it once and infers its type; a second pass then returns it. Both passes parse cells as
text and convert them with the same code, so they agree, and the file is never in memory as a whole.

A column is int64 if every cell is an integer, float64 if every cell is a number, bool if every cell is `true` or
`false` (in any case), and text otherwise. Empty cells and the usual spellings (NA, N/A, NaN, null, NULL ...) are
missing, quoted or not, in text as well. Where numbers and text are mixed, the first cell that is not a number is
recorded, and errors name it if the column is used as numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anytime.data.formats.arrow import ArrowTable, ColumnKind
from anytime.data.formats.table import Text, damaged, required
from anytime.errors import TableError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Evidence:
    """The kinds of cells seen so far in a column; independent of how the column was split into pieces."""

    kinds: set[ColumnKind] = field(default_factory=set)
    gaps: bool = False
    first_text: Text | None = None

    @property
    def kind(self) -> ColumnKind:
        if ColumnKind.TEXT in self.kinds or self.kinds > {ColumnKind.BOOL}:
            return ColumnKind.TEXT
        if self.kinds == {ColumnKind.BOOL}:
            return ColumnKind.BOOL
        return ColumnKind.INT if self.kinds == {ColumnKind.INT} and not self.gaps else ColumnKind.FLOAT

    def add(self, cells: pa.Array, start: int) -> None:
        """Add a piece of a column; `start` is the row of its first cell."""
        pa, pc = required("pyarrow"), required("pyarrow.compute")
        if self.kind is ColumnKind.TEXT:
            return
        self.gaps |= cells.null_count > 0
        floats = _converted_or_none(cells, pa.float64())
        if floats is None:
            if self.first_text is None:
                row = _first_text(cells)
                self.first_text = Text(start + row, cells[row].as_py())
            present = _trimmed(cells).drop_null()
            self.gaps |= len(present) < len(cells)
            words = pc.match_substring_regex(present, "^(true|false)$", ignore_case=True)
            self.kinds.add(ColumnKind.BOOL if pc.all(words).as_py() else ColumnKind.TEXT)
            return
        self.gaps |= floats.null_count > 0
        if ColumnKind.FLOAT not in self.kinds and floats.null_count < len(floats):
            # Only numbers are tested for integers: the cast also accepts 0x1F, which is text here.
            are_integers = _converted_or_none(cells, pa.int64()) is not None
            self.kinds.add(ColumnKind.INT if are_integers else ColumnKind.FLOAT)


def converted(cells: pa.Array, target: pa.DataType) -> pa.Array:
    """Return cells of text as type `target`; raise ArrowInvalid if a cell does not convert."""
    pa, pc = required("pyarrow"), required("pyarrow.compute")
    if target == pa.string():
        return cells
    if target == pa.bool_():
        return pc.match_substring_regex(_trimmed(cells), "^true$", ignore_case=True)
    try:
        return cells.cast(target)
    except pa.ArrowInvalid:
        # Blanks around numbers are rare, so they are trimmed only after a failure.
        return _trimmed(cells).cast(target)


def _converted_or_none(cells: pa.Array, target: pa.DataType) -> pa.Array | None:
    try:
        return converted(cells, target)
    except required("pyarrow").ArrowInvalid:
        return None


def _trimmed(cells: pa.Array) -> pa.Array:
    """Return the cells without blanks around them, null where a word for missing remains.

    By a pattern, not by comparison: pyarrow imports pandas to convert a word of Python, 0.2 s at each start.
    """
    pa, pc, csv = required("pyarrow"), required("pyarrow.compute"), required("pyarrow.csv")
    cells = pc.utf8_trim_whitespace(cells)
    words = "|".join(map(re.escape, csv.ConvertOptions().null_values))
    missing = pc.match_substring_regex(cells, f"^({words})$")
    return pc.if_else(missing, pa.nulls(len(cells), pa.string()), cells)


def _first_text(cells: pa.Array) -> int:
    """Return the index of the first cell that is not a number, by bisection: two conversions of all cells in total."""
    pa = required("pyarrow")
    low, high = 0, len(cells)
    while high - low > 1:
        middle = (low + high) // 2
        if _converted_or_none(cells.slice(low, middle - low), pa.float64()) is None:
            high = middle
        else:
            low = middle
    return low


BLOCK = 1 << 21
"""Bytes parsed at a time, and so the length of the longest readable row; pyarrow reads 32 blocks ahead."""


class CsvTable(ArrowTable):
    """A comma-separated file with a header line, in UTF-8; the docstring of this module describes the types."""

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
            # With one thread, pyarrow reports the number of a broken row; several threads are not faster here.
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
        del numeric  # text columns must be detected in any case
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
            kind = evidence.kind
            if kind is ColumnKind.TEXT and evidence.first_text is not None:
                self._culprits[name] = evidence.first_text
            self._types[name] = required("pyarrow").type_for_alias(kind.value)
            self._kinds[name] = ColumnKind.FLOAT if kind is ColumnKind.BOOL and evidence.gaps else kind

    def _complaint(self, error: Exception) -> TableError:
        message = str(error)
        if broken := re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", message):
            # pyarrow counts from 1 and counts the header.
            where = f"row {int(broken[1]) - 2} (counted from 0)" if broken[1] else "a row"
            return TableError(f"{self.name}: {where} has {broken[3]} cells; expected {broken[2]}, as in the header")
        if "straddling" in message:
            return TableError(f"{self.name} has a row of more than {BLOCK >> 20} MiB; look for an unclosed quote")
        if isinstance(error, UnicodeDecodeError) or "UTF8" in message:
            return TableError(f"{self.name} is not UTF-8 text; save it in that encoding")
        return damaged(self.name, self.format, error)
