"""The interface of tables: named columns, read in batches of rows.

A column has a type (`anytime.types.ColumnType`), which the table states or its cells show, and which a caller may state
instead: what the groups file, the user or a model say of a column is used for every table. A batch holds a column as

=======  ============================================================================
bool     bool; float64, with NaN, in a batch where values are missing
integer  int64; float64 where values are missing or exceed int64
number   float64; NaN where missing
text     `str` objects; None where missing
date     float64, seconds since 1970 UTC; NaN where missing
=======  ============================================================================

and the keys of queries ("key") as whatever compares exactly: integers, else text. Rows are counted from 0,
without the header.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anytime.errors import AnytimeError, EnvironmentFailure, TableError, environmental, listed, suggestion
from anytime.moments.accumulate import dense
from anytime.types import ColumnType


def required(module: str) -> Any:
    """Import a module of the `train` extra, or raise TableError with the package to install."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0].replace("sklearn", "scikit-learn")
        raise TableError(
            f"reading this table needs {name}; install it with: pip install 'anytime-linear[train]'"
        ) from error


class Extra:
    """A module of the `train` extra, which is imported where something of it is first used."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return vars(self).setdefault(name, getattr(required(self._module), name))


pa: Any = Extra("pyarrow")
pc: Any = Extra("pyarrow.compute")

ROWS = 16_384
"""Default number of rows in a batch: 64 MiB at 512 columns."""

BLOCK_VALUES = 2**22
"""Numbers of features or scores in a block: 32 MiB. A few blocks are in memory at a time."""


ReadAs: TypeAlias = ColumnType | Literal["key"]
"""What a column is read as."""


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of some columns, each (rows,), in the requested order, and of a matrix of further columns."""

    start: int
    """Index of the first row in the table."""
    columns: Mapping[str, NDArray[Any]]
    stored: Any = None
    """(rows, further columns) array or scipy sparse, if the table is a matrix."""
    places: Mapping[str, int] = field(default_factory=dict)
    """The index of each column of the matrix."""

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()))) if self.stored is None else int(self.stored.shape[0])

    def part(self, low: int, high: int) -> Batch:
        """Return the rows from `low` to before `high` of the batch."""
        columns = {name: column[low:high] for name, column in self.columns.items()}
        return Batch(self.start + low, columns, None if self.stored is None else self.stored[low:high], self.places)

    def column(self, name: str) -> NDArray[Any]:
        if name not in self.places:
            return self.columns[name]
        column = dense(self.stored[:, [self.places[name]]])[:, 0]
        return column if column.dtype.kind == "b" else column.astype(np.float64)

    def matrix(self, names: Sequence[str]) -> Any:
        """Return columns of numbers as a matrix (rows, columns), float64, or as stored where the table is a matrix."""
        if self.stored is not None and self.places.keys() >= set(names):
            places = [self.places[name] for name in names]
            return self.stored if places == list(range(self.stored.shape[1])) else self.stored[:, places]
        X = np.empty((self.rows, len(names)), order="F")
        for j, name in enumerate(names):
            X[:, j] = self.columns[name]
        return X


class Table(ABC):
    """Named columns that can be read repeatedly; the base class of all formats. Each read opens the file."""

    layout = ""
    """What was recognised of the file, for messages about its cells."""
    known_rows: int | None = None
    """Number of rows if it is known without reading them."""
    factors: frozenset[str] = frozenset()
    """Columns that the file encodes by a dictionary of levels."""
    starts: tuple[int, ...] = (0,)
    """Rows, ascending from 0, at which reading can start without the rows before."""
    _stored_index: frozenset[str] = frozenset()
    """Columns that the file states as the index of the rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self._columns: Mapping[str, object] = {}  # by name, in the order of the file; each format fills it

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {len(self.columns)} columns>"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def has(self, name: str) -> bool:
        """Return whether a column is readable; svmlight tables have features beyond `columns`, all zero."""
        return name in self._columns

    @property
    def index(self) -> frozenset[str]:
        """Return the columns that number the rows, which no pattern matches: an index of pandas, one without a name."""
        return self._stored_index.union(name for name in self._columns if re.fullmatch(r"(Unnamed: \d+)?", name))

    def block_rows(self, columns: int, jobs: int) -> int:  # noqa: ARG002
        """Return the number of rows of these columns that one of some threads sums at a time."""
        return min(max(BLOCK_VALUES // max(columns, 1), 1024), ROWS)

    def require(self, names: Iterable[str], remark: str = "") -> None:
        """Raise TableError for the first of some columns that does not exist; the remark follows its name."""
        for name in names:
            if not self.has(name):
                raise TableError(f"{self.name} has no column {name!r}{remark}; {suggestion(name, self.columns)}")

    def types(self, columns: Iterable[str], stated: Mapping[str, ReadAs] = {}) -> dict[str, ReadAs]:
        """Return the type of each column; what is `stated` wins.

        Raises TableError if a column does not exist, or its type is neither number, text nor date; or for a damaged
        file, where the format requires its cells.
        """
        names = tuple(dict.fromkeys(columns))
        self.require(names)
        return {**self._types(names, stated), **{name: stated[name] for name in names if name in stated}}

    def batches(
        self,
        columns: Sequence[str],
        rows: int = ROWS,
        *,
        start: int = 0,
        stop: int | None = None,
        types: Mapping[str, ReadAs] = {},
    ) -> Iterator[Batch]:
        """Read some columns (at least one) from row `start` to before `stop`, at most `rows` rows at a time.

        Columns are read as `types` states, the others as their own type. Raises TableError: at the call, as `types`,
        later, for a value that does not fit the type, or a damaged file.
        """
        if not columns:
            raise TableError(f"{self.name}: no column was requested; expected at least one")
        if rows < 1:
            raise TableError(f"{self.name}: batches of {rows} rows were requested; expected 1 or more")
        return self._between(self.types(columns, types), rows, start, stop)

    def described(self, name: str) -> str:  # noqa: ARG002
        """Return the type of a column of dates, for messages."""
        return "a date"

    def _between(self, types: Mapping[str, ReadAs], rows: int, start: int, stop: int | None) -> Iterator[Batch]:
        empty = True
        for batch in self._read(types, rows, self.starts[bisect_right(self.starts, start) - 1]):
            empty = False
            if stop is not None and batch.start >= stop:
                return
            low = max(start - batch.start, 0)
            high = batch.rows if stop is None else min(stop - batch.start, batch.rows)
            if low < high:
                yield batch if high - low == batch.rows else batch.part(low, high)
        if empty and start == 0:
            raise self._no_rows()

    @abstractmethod
    def _types(self, names: tuple[str, ...], stated: Mapping[str, ReadAs]) -> dict[str, ReadAs]:
        """Return the own type of each column that is not stated; raise for one that is unusable."""

    @abstractmethod
    def _read(self, types: Mapping[str, ReadAs], rows: int, begin: int) -> Iterator[Batch]:
        """Yield batches of 1 to `rows` rows from row `begin` on, one of `starts`; the columns exist."""

    def _no_rows(self) -> TableError:
        return TableError(f"{self.name} has no rows; expected at least one")

    def _check_names(self, names: Sequence[str]) -> None:
        if not names:
            raise TableError(f"{self.name} has no columns; expected at least one")
        if repeated := [name for name, count in Counter(names).items() if count > 1]:
            raise TableError(f"{self.name} has more than one column named {listed(repeated)}; give each its own name")


class JoinedTable(Table):
    """The rows of several tables with the same columns, one table after the other.

    A column is text if it is text in one of them, and numbers if it has no other type in those where it has values.
    """

    def __init__(self, path: Path, tables: Sequence[Table]) -> None:
        super().__init__(path)
        self._tables = tables
        self._columns = dict.fromkeys(tables[0].columns)
        self.factors = tables[0].factors
        self._stored_index = tables[0].index
        for table in tables[1:]:
            if set(table.columns) != set(tables[0].columns):
                other = sorted(set(table.columns) ^ set(tables[0].columns))
                raise TableError(f"{table.name} has other columns than {tables[0].path.name}: {listed(other)}")

    def described(self, name: str) -> str:
        return self._tables[0].described(name)

    def _types(self, names: tuple[str, ...], stated: Mapping[str, ReadAs]) -> dict[str, ReadAs]:
        found = [table.types(names, stated) for table in self._tables]

        def joined(name: str) -> ReadAs:
            kinds = {types[name] for types in found}
            if kinds <= {"number", "integer"}:
                return "number" if "number" in kinds else "integer"
            kinds -= {"number"}  # the type of a column without values
            return "text" if len(kinds) > 1 else kinds.pop()

        return {name: joined(name) for name in names if name not in stated}

    def _read(self, types: Mapping[str, ReadAs], rows: int, begin: int) -> Iterator[Batch]:  # noqa: ARG002
        start = 0
        for table in self._tables:
            for batch in table.batches(list(types), rows, types=types):
                yield replace(batch, start=start)
                start += batch.rows


def visible(folder: Path) -> list[Path]:
    """Return the files of a folder in the order of their names, without those that begin with `.` or `_`."""
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] not in "._")


def damaged(name: str, kind: str, reason: object) -> AnytimeError:
    """Return the error for content that does not match the file's suffix, is truncated or is unreadable."""
    message = " ".join(str(reason).split()).rstrip(".") or type(reason).__name__
    found = EnvironmentFailure if isinstance(reason, OSError) and environmental(reason) else TableError
    return found(f"cannot read {name} as {kind} ({message}); check its suffix and that the file is complete")
