"""Cells of text: what they turn out to hold, and turning them into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anytime.tables.optional import required
from anytime.tables.table import Text

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Evidence", "converted"]


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
