"""Tables on disk, read in batches: Parquet, CSV, Arrow and svmlight files of any size.

``open_table`` reads only the head of a file. ``Table.batches`` then reads the requested columns and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from anytime._files import is_pipe
from anytime.data.formats.arrow import ArrowFileTable, ParquetTable
from anytime.data.formats.csv import CsvTable
from anytime.data.formats.memory import SvmlightTable, table_of
from anytime.data.formats.table import BLOCK_VALUES, PLAIN, ROWS, Batch, JoinedTable, NumberStyle, ReadAs, Table
from anytime.errors import TableError

__all__ = ["BLOCK_VALUES", "ROWS", "SUFFIXES", "Batch", "NumberStyle", "ReadAs", "Table", "open_table", "table_of"]

SUFFIXES: dict[str, Callable[..., Table]] = {
    ".parquet": ParquetTable,
    **dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), CsvTable),
    **dict.fromkeys((".arrow", ".feather"), ArrowFileTable),
    **dict.fromkeys((".svm", ".svm.gz", ".svmlight", ".svmlight.gz", ".libsvm", ".libsvm.gz"), SvmlightTable),
}
"""Readers by suffix."""


def open_table(path: str | Path, *, separator: str | None = None, style: NumberStyle = PLAIN) -> Table:
    """Open a file as a table, by its suffix (in any case). The files of a directory, by name, are one table.

    Files whose names begin with `.` or `_` are no tables, nor are others next to Parquet files. Only cheap checks run.
    No file stays open, so a table can be sent to another process.

    Parameters
    ----------
    separator, style
        Of a CSV file, as in `CsvTable`; files of other formats ignore them.

    Raises
    ------
    TableError
        The file does not exist or has no columns, its suffix is unknown or does not fit its content, two columns share
        a name, or a package that reads the format is not installed.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and file.name[0] not in "._")
        files = [file for file in files if file.suffix.lower() == ".parquet"] or files
        if not files:
            raise TableError(f"{path} is a directory without tables; expected files such as *.parquet or *.csv")
        return JoinedTable(path, [open_table(file, separator=separator, style=style) for file in files])
    if not path.exists():
        raise TableError(f"there is no file {str(path)!r}; check the path")
    if is_pipe(path):
        raise TableError(f"{str(path)!r} is a pipe, and tables are read more than once; write it to a file first")
    name = path.name.lower()
    reader = next((reader for suffix, reader in SUFFIXES.items() if name.endswith(suffix)), None)
    if reader is None:
        known = f"expected one of {' '.join(SUFFIXES)}"
        if name.endswith((".txt", ".txt.gz")):
            known += "; rename or link a file of LETOR or svmlight lines ('2 qid:7 1:0.5') to .svm"
        raise TableError(f"{str(path)!r} has an unknown format; {known}")
    return CsvTable(path, separator, style) if reader is CsvTable else reader(path)
