"""Packages that only training needs, imported when a file asks for them.

What a table is to the rest of the library: named columns, read in batches of rows.

A column has one dtype, the same in every batch:

=========  ==============================================================
bool       booleans, none missing
int64      integers, none missing, that fit
float64    all other numbers; NaN where missing
object     text, as `str`; None where missing
=========  ==============================================================

Rows are counted from 0, the header not among them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from anytime.errors import TableError, environmental, listed, suggestion

__all__ = [
    "ROWS",
    "Batch",
    "FileTable",
    "Table",
    "Text",
    "damaged",
    "required",
]

_DISTRIBUTIONS = {"sklearn": "scikit-learn"}


def required(module: str) -> Any:
    """Import a module of the `train` extra.

    Raises
    ------
    TableError
        It is not installed; the message says what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        name = _DISTRIBUTIONS.get(package, package)
        raise TableError(
            f"reading this file needs {name}; install it with: pip install 'anytime-linear[train]'"
        ) from error


ROWS = 16_384
"""Rows in a batch unless told: 64 MiB at 512 columns."""


class Text(NamedTuple):
    """A cell of text: its row in the table and its value."""

    row: int
    value: str


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of some columns.

    Attributes
    ----------
    start
        Index of the first row in the table.
    columns
        The columns asked for, in that order, each (rows,).
    culprits
        Where a format knows it: the cell that made a text column text, when other cells of it are numbers. It may lie
        outside this batch.
    """

    start: int
    columns: Mapping[str, NDArray[Any]]
    culprits: Mapping[str, Text] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values())))

    def between(self, start: int, stop: int | None) -> Batch:
        """Those of its rows that are in a range of rows of the table; there may be none."""
        low = max(start - self.start, 0)
        high = self.rows if stop is None else min(stop - self.start, self.rows)
        if low == 0 and high == self.rows:
            return self
        columns = {name: column[low : max(high, low)] for name, column in self.columns.items()}
        return Batch(self.start + low, columns, self.culprits)


class Table(Protocol):
    """Named columns that can be read as often as needed; each reading opens the file anew."""

    @property
    def name(self) -> str:
        """The path, for messages."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in the order of the file."""

    def has(self, name: str) -> bool:
        """Whether a column may be asked for; svmlight tables have features beyond `columns`, all zero."""

    def batches(
        self,
        columns: Sequence[str],
        rows: int = ROWS,
        *,
        start: int = 0,
        stop: int | None = None,
        numeric: Collection[str] = (),
    ) -> Iterator[Batch]:
        """Read some columns, at most `rows` rows at a time, at least one.

        Parameters
        ----------
        start, stop : the rows to read, to the end where None; there may be none of them.
        numeric : columns that are wanted as float64 where they are no text: a format that would have to read all of a
            column of integers first, to tell whether it has gaps, need not.

        Raises
        ------
        TableError
            At the call: no such column, or a column of a type that is neither number nor text, such as dates. Later: a
            damaged file.
        """

    @property
    def starts(self) -> tuple[int, ...]:
        """Rows, ascending from 0, from which it can be read without what is before."""


class FileTable(ABC):
    """What all formats share: the checks around reading."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The path, for messages."""
        return str(self.path)

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in the order of the file."""

    def has(self, name: str) -> bool:
        """Whether a column may be asked for."""
        return name in self.columns

    @property
    def starts(self) -> tuple[int, ...]:
        """Rows from which it can be read without what is before: the first."""
        return (0,)

    def batches(
        self,
        columns: Sequence[str],
        rows: int = ROWS,
        *,
        start: int = 0,
        stop: int | None = None,
        numeric: Collection[str] = (),
    ) -> Iterator[Batch]:
        """Read some columns, at most `rows` rows at a time, at least one; see `Table`."""
        names = tuple(dict.fromkeys(columns))
        if not names:
            raise TableError(f"{self.name}: no column was asked for; expected at least one")
        if rows < 1:
            raise TableError(f"{self.name}: batches of {rows} rows were asked for; expected 1 or more")
        for name in names:
            if not self.has(name):
                raise TableError(f"{self.name} has no column {name!r}; {suggestion(name, self.columns)}")
        wanted = frozenset(numeric)
        self._prepare(names, wanted)
        return self._between(names, rows, start, stop, wanted)

    def _between(
        self, names: tuple[str, ...], rows: int, start: int, stop: int | None, numeric: frozenset[str]
    ) -> Iterator[Batch]:
        empty = True
        begin = self.starts[bisect_right(self.starts, start) - 1]
        for batch in self._read(names, rows, begin, numeric):
            empty = False
            if stop is not None and batch.start >= stop:
                return
            part = batch.between(start, stop)
            if part.rows:
                yield part
        if empty and start == 0:
            raise self._no_rows()

    def _prepare(  # noqa: B027 - not every format has something to learn
        self, names: tuple[str, ...], numeric: frozenset[str]
    ) -> None:
        """Learn what must be known of these columns before the first batch; raise for those that cannot be read."""

    @abstractmethod
    def _read(self, names: tuple[str, ...], rows: int, begin: int, numeric: frozenset[str]) -> Iterator[Batch]:
        """Batches of 1 to `rows` rows from row `begin` on, one of `starts`; the names exist and are prepared."""

    def _no_rows(self) -> TableError:
        return TableError(f"{self.name} has no rows; expected at least one")

    def _check_names(self, names: Sequence[str]) -> None:
        if not names:
            raise TableError(f"{self.name} has no columns; expected at least one")
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise TableError(f"{self.name} has more than one column called {listed(twice)}; give each its own name")


def damaged(name: str, kind: str, reason: object) -> TableError:
    """Return the error for content that is not what the file's name says, not whole, or not readable."""
    said = " ".join(str(reason).split()).rstrip(".") or type(reason).__name__
    failed = isinstance(reason, OSError) and environmental(reason)
    return TableError(
        f"{name} cannot be read as {kind} ({said}); check its suffix and that the file is whole", environment=failed
    )
