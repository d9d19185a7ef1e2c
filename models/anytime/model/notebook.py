"""Values as notebooks show them: tables in HTML, and frames of whatever library is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from anytime.errors import TableError

FRAMES = ("pandas", "polars", "pyarrow")
"""Libraries of frames, in the order in which they are tried; one that the program has imported comes first."""


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]], words: Sequence[int] = ()) -> str:
    """Return a table in HTML; the columns `words` are text, the others numbers."""

    def cells(tag: str, row: Sequence[object]) -> str:
        marks = (' class="words"' if k in words else "" for k in range(len(row)))
        return "".join(f"<{tag}{mark}>{escape(str(cell))}</{tag}>" for mark, cell in zip(marks, row, strict=True))

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', columns)}</tr></thead><tbody>{lines}</tbody></table>"


def captioned(caption: str, table: str = "") -> str:
    """Return a line of text above a table, in HTML."""
    return f"<div><p>{escape(caption)}</p>{table}</div>"


def digits(value: float | None) -> str:
    """Return a number with four digits, a dash for None."""
    return "-" if value is None else f"{value:.4g}"


def frame_of(columns: Mapping[str, Any]) -> Any:
    """Return columns as a frame of pandas, polars or pyarrow.

    Raises
    ------
    TableError
        None of them is installed.
    """
    found = next((name for name in FRAMES if name in sys.modules), None)
    found = found or next((name for name in FRAMES if find_spec(name) is not None), None)
    if found is None:
        raise TableError("a frame needs pandas, polars or pyarrow; install one of them: pip install pandas")
    library = import_module(found)
    return library.table(dict(columns)) if found == "pyarrow" else library.DataFrame(dict(columns))
