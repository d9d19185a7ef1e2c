"""Tables of results: one object for the command line, JSON, pages and notebooks, and frames of any library.

A column states once what its values are, how its numbers are shown, and its name. `None` as heading or field leaves the
column out where people, or programs, read the table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from importlib import import_module
from importlib.util import find_spec
from itertools import zip_longest
from textwrap import wrap
from typing import Any, Self
from unicodedata import east_asian_width

import numpy as np

from anytime.errors import TableError

FRAMES = ("pandas", "polars", "pyarrow")
"""Libraries of frames, in the order in which they are tried; one that the program has imported comes first."""

NUMBER, R2, SHARE = ".4g", "z.4f", ".3g%"
"""Formats of numbers, as in Python; after those of shares stands a space before the percent sign."""

STYLE = (
    "<style>.tabulated :is(td, th) {text-align: right; padding: 0 0.5em; font-variant-numeric: tabular-nums} "
    ".tabulated .words {text-align: left}</style>"
)
"""Style of tables in notebooks, whose own differ in where they align numbers; pages have theirs."""

MIN_WIDTH = 20
"""Minimum width, in characters, of a folded column of words: a terminal may be narrower than the numbers."""


def shown(value: Any, form: str = NUMBER) -> str:
    """Return a value as text: words as they are, names with commas, a dash for None, NaN and no names."""
    if value is None or value != value:  # noqa: PLR0124  (NaN)
        return "-"
    if isinstance(value, Sequence):
        return value if isinstance(value, str) else ", ".join(value) or "-"
    if isinstance(value, int):
        return format(value, "," if form == "," else "")
    return f"{100 * value:{form[:-1]}} %" if form.endswith("%") else format(value, form)


@dataclass(frozen=True, eq=False)
class Series:
    """A column of results.

    Attributes
    ----------
    heading : str | None
        Its name in text and HTML, with the unit if there is one; None leaves it out there.
    values : Any
        A sequence or array of numbers, words, sequences of names, or None; other objects need a format.
    field : str | None
        Its name in JSON and frames, the heading by default; None leaves it out there.
    form : str
        Format of its numbers.
    missing : str
        Text of a value that is None.
    """

    heading: str | None
    values: Any
    field: str | None = ""
    form: str = NUMBER
    missing: str = "-"

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values.tolist() if isinstance(self.values, np.ndarray) else self.values)

    @property
    def name(self) -> str | None:
        """Return the name in JSON and frames."""
        return self.heading if self.field == "" else self.field

    @cached_property
    def is_words(self) -> bool:
        """Return whether the column is aligned as text: a value is one."""
        return any(isinstance(each, Sequence) for each in self)

    @property
    def cells(self) -> list[str]:
        """Return the values as text."""
        return [self.missing if each is None else shown(each, self.form) for each in self]

    def lines(self) -> list[str]:
        """Return heading and cells as text; numbers are aligned at their points, below the end of the heading."""
        heading, cells = self.heading or "", self.cells
        if self.is_words:
            return [heading, *cells]
        whole = [len(re.split("[.e ]", cell)[0]) for cell in cells]
        cells = [" " * (max(whole) - count) + cell for count, cell in zip(whole, cells, strict=True)]
        width = max(map(len, cells), default=0)
        return [each.rjust(max(width, len(heading))) for each in (heading, *(cell.ljust(width) for cell in cells))]


@dataclass(frozen=True, eq=False, repr=False)
class Tabulated:
    """A table of results: columns (a shorter one ends in empty cells), a caption above it and notes below it."""

    columns: tuple[Series, ...]
    caption: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, *columns: Series, caption: str = "", notes: Iterable[str] = ()) -> Self:
        """Return a table of the columns that have values."""
        return cls(tuple(each for each in columns if each.values is not None), caption, tuple(notes))

    @classmethod
    def of_rows(
        cls, headings: Iterable[str], rows: Iterable[Iterable[Any]], form: str = NUMBER, missing: str = "-", **more: Any
    ) -> Self:
        """Return a table of rows, all of whose numbers have one format; `more` are its other fields."""
        columns = zip_longest(headings, zip(*rows, strict=True), fillvalue=())
        return cls(tuple(Series(str(each), values, "", form, missing) for each, values in columns), **more)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Return the values of each row."""
        return list(zip_longest(*self.columns))

    def take(self, rows: Iterable[int], *before: Series) -> Self:
        """Return some rows, after other columns."""
        chosen = list(rows)
        taken = (replace(each, values=[*map(list(each).__getitem__, chosen)]) for each in self.columns)
        return replace(self, columns=(*before, *taken))

    def records(self) -> list[dict[str, Any]]:
        """Return each row by the fields of its values, for JSON."""
        named = {each.name: each for each in self.columns if each.name is not None}
        return [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]

    def frame(self) -> Any:
        """Return the fields as a frame of pandas, polars or pyarrow; raise TableError if none of them is installed."""
        names = sorted(FRAMES, key=lambda name: name not in sys.modules)
        found = next((name for name in names if find_spec(name) is not None), None)
        if found is None:
            raise TableError("a frame needs pandas, polars or pyarrow; install one of them: pip install pandas")
        columns = {each.name: each.values for each in self.columns if each.name is not None}
        return getattr(import_module(found), "table" if found == "pyarrow" else "DataFrame")(columns)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return STYLE + self.html()

    def html(self) -> str:
        """Return the table in HTML: cells of words have this class."""
        visible = [each for each in self.columns if each.heading is not None]

        def line(tag: str, row: int, cells: Iterable[str | None]) -> str:
            marks = (f' class="{name}"' if (name := self.mark(each, row)) else "" for each in visible)
            parts = (f"<{tag}{mark}>{escape(cell or '')}</{tag}>" for mark, cell in zip(marks, cells, strict=True))
            return f"<tr>{''.join(parts)}</tr>"

        head = line("th", -1, (each.heading for each in visible))
        rows = enumerate(zip_longest(*(each.cells for each in visible)))
        body = "".join(line("td", number, cells) for number, cells in rows)
        caption, *notes = (f"<p>{escape(each)}</p>" if each else "" for each in (self.caption, *self.notes))
        table = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
        return f'<div class="tabulated">{caption}{table}{"".join(notes)}</div>'

    def mark(self, column: Series, row: int) -> str:  # noqa: ARG002
        """Return the class of a cell in HTML; row -1 is that of the headings."""
        return "words" if column.is_words else ""

    def text(self, width: int = 200) -> str:
        """Return the table as lines of text; columns of words are folded to a width, numbers are not."""
        visible = [each for each in self.columns if each.heading is not None]
        numbers = sum(len(each.lines()[0]) + 2 for each in visible if not each.is_words)
        limit = max((width - numbers) // max(sum(each.is_words for each in visible), 1) - 2, MIN_WIDTH)
        grid = [
            [wrap(line, limit, break_on_hyphens=False) or [""] if each.is_words else [line] for line in each.lines()]
            for each in visible
        ]
        sizes = [max(_width(part) for cell in cells for part in cell) for cells in grid]
        lines = (
            "  ".join(part + " " * (size - _width(part)) for part, size in zip(parts, sizes, strict=True)).rstrip()
            for row in zip_longest(*grid, fillvalue=[""])
            for parts in zip_longest(*row, fillvalue="")
        )
        return "\n".join([*([self.caption, ""] if self.caption else []), *lines, *self.notes])


class Tabular:
    """A value that is shown as its table."""

    @property
    def table(self) -> Tabulated:
        """Return the table."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """Return the table as a frame of whatever library of frames is installed."""
        return self.table.frame()

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def _width(text: str) -> int:
    """Return the columns of a terminal that a text takes."""
    return sum(1 + (east_asian_width(character) in "WF") for character in text)
