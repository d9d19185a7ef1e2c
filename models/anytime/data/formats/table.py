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

and the keys of queries ("key") as whatever compares exactly: integers, else text. A column that is only passed on
("cells") is what the table stores, such as an array of Arrow. Rows are counted from 0, without the header.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anytime.errors import AnytimeError, EnvironmentFailure, TableError, environmental, listed, suggestion
from anytime.moments.accumulate import dense
from anytime.types import ColumnType


class Extra:
    """A module of the `train` extra, which is imported where something of it is first used.

    Raises TableError, with the package to install, if it is not installed.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        try:
            module = import_module(self._module)
        except ImportError as error:
            package = self._module.partition(".")[0].replace("sklearn", "scikit-learn")
            raise TableError(
                f"reading this table needs {package}; install it with: pip install 'anytime-linear[train]'"
            ) from error
        return vars(self).setdefault(name, getattr(module, name))


pa: Any = Extra("pyarrow")
pc: Any = Extra("pyarrow.compute")
pa_csv: Any = Extra("pyarrow.csv")
pa_ipc: Any = Extra("pyarrow.ipc")
pa_parquet: Any = Extra("pyarrow.parquet")

ROWS = 16_384
"""Default number of rows in a batch: 64 MiB at 512 columns."""

BLOCK_VALUES = 2**22
"""Numbers of features or scores in a block: 32 MiB. A few blocks are in memory at a time."""


ReadAs: TypeAlias = ColumnType | Literal["key", "cells"]
"""What a column is read as."""

_DTYPES: Mapping[ReadAs, Any] = {"bool": np.bool_, "integer": np.int64, "number": np.float64, "date": np.float64}
"""The dtype of a column without missing values; others hold objects."""


@dataclass(frozen=True)
class NumberStyle:
    """How the numbers of a CSV file are written: the decimal mark, and the mark between groups of three digits."""

    decimal: str = "."
    thousands: str | None = None

    def __post_init__(self) -> None:
        for option, mark in (("--decimal", self.decimal), ("--thousands", self.thousands)):
            if mark is not None and (len(mark) != 1 or mark.isalnum() or mark in '+-"\r\n'):
                raise TableError(f"{option} is {mark!r}; expected one character, such as ',' or '.'")
        if self.decimal == self.thousands:
            raise TableError(f"--decimal and --thousands are both {self.decimal!r}; expected different marks")

    def plain(self, cells: pa.Array) -> pa.Array:
        """Return the cells with the numbers of this style in the usual form; other cells become a word."""
        decimal, thousands = re.escape(self.decimal), "" if self.thousands is None else re.escape(self.thousands)
        whole = rf"(\d{{1,3}}({thousands}\d{{3}})+|\d*)" if thousands else r"\d*"
        fits = pc.match_substring_regex(cells, rf"^[+-]?{whole}({decimal}\d*)?([eE][+-]?\d+)?$")
        changed = pc.replace_substring(cells, self.thousands, "") if self.thousands else cells
        return pc.if_else(fits, pc.replace_substring(changed, self.decimal, "."), pa.scalar("text"))


PLAIN = NumberStyle()


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


class Table(ABC):
    """Named columns that can be read repeatedly; the base class of all formats. Each read opens the file."""

    layout = ""
    """What was recognised of the file, for messages about its cells."""
    style = PLAIN
    """How numbers are written where they are text."""
    known_rows: int | None = None
    """Number of rows if it is known without reading them."""
    factors: frozenset[str] = frozenset()
    """Columns that the file encodes by a dictionary of levels."""
    quoted: frozenset[str] = frozenset()
    """Columns that the table has as text, also those whose type is numbers."""
    starts: tuple[int, ...] = (0,)
    """Rows, ascending from 0, at which reading can start without the rows before."""
    _stored_index: frozenset[str] = frozenset()
    """Columns that the file states as the index of the rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self._columns: Mapping[str, Any] = {}  # what each is stored as, in the order of the file; each format fills it

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
        own = self._types(names, stated)
        return {name: stated[name] if name in stated else own[name] for name in names}

    def cell_types(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        """Return the type of Arrow that keeps every cell of some columns as it stands."""
        batch = next(self.batches(names, 1, types=dict.fromkeys(names, "cells")))
        return {name: pa.array(batch.columns[name]).type for name in names}

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

        Columns are read as `types` states, the others as their own type. A table without rows has one batch of none.
        Raises TableError: before the first batch, as `types`; later, for a value that does not fit, or a damaged file.
        """
        if not columns:
            raise TableError(f"{self.name}: no column was requested; expected at least one")
        if rows < 1:
            raise TableError(f"{self.name}: batches of {rows} rows were requested; expected 1 or more")
        found, read = self.types(columns, types), start
        for batch in self._read(found, rows, self.starts[bisect_right(self.starts, start) - 1]):
            if stop is not None and batch.start >= stop:
                return
            read += batch.rows
            low = max(start - batch.start, 0)
            high = batch.rows if stop is None else min(stop - batch.start, batch.rows)
            if low < high:
                yield batch if high - low == batch.rows else batch.part(low, high)
        if not read:
            empty = {n: pa.nulls(0) if k == "cells" else np.empty(0, _DTYPES.get(k, object)) for n, k in found.items()}
            yield Batch(0, empty)

    def described(self, name: str) -> str:
        """Return the type of a column as the table states it, for messages."""
        return str(self._columns[name])

    def no_rows(self) -> TableError:
        """Return the error for a table without rows, where some are needed."""
        return TableError(f"{self.name} has no rows; expected at least one")

    @abstractmethod
    def _types(self, names: tuple[str, ...], stated: Mapping[str, ReadAs]) -> dict[str, ReadAs]:
        """Return the own type of each column that is not stated; raise for one that is unusable.

        A column that is stated to be "cells" may be of any type.
        """

    @abstractmethod
    def _read(self, types: Mapping[str, ReadAs], rows: int, begin: int) -> Iterator[Batch]:
        """Yield batches of 1 to `rows` rows from row `begin` on, one of `starts`; the columns exist."""

    def _check_names(self, names: Sequence[str]) -> None:
        if not names:
            raise TableError(f"{self.name} has no columns; expected at least one")
        if repeated := [name for name, count in Counter(names).items() if count > 1]:
            raise TableError(f"{self.name} has more than one column named {listed(repeated)}; give each its own name")


class JoinedTable(Table):
    """The rows of several tables with the same columns, one table after the other.

    A column without values in some of them has the type of the others. Whatever stands among text is text. Stored truth
    values among numbers are numbers; written ones, as in CSV, are text. Dates among numbers are an error.
    """

    def __init__(self, path: Path, tables: Sequence[Table]) -> None:
        super().__init__(path)
        first = tables[0]
        for table in tables[1:]:
            if other := sorted({*table.columns} ^ {*first.columns}):
                raise TableError(f"{table.name} has other columns than {first.path.name}: {listed(other)}")
        self._tables = [table for table in tables if table.known_rows != 0] or [first]
        self._columns, self._stored_index = first._columns, first.index
        self.style, self.layout = first.style, first.layout
        self.factors = frozenset.intersection(*(table.factors for table in self._tables))
        self.quoted = frozenset.intersection(*(table.quoted for table in self._tables))
        sizes = [table.known_rows for table in self._tables]
        if None not in sizes:
            *offsets, self.known_rows = accumulate(filter(None, sizes), initial=0)
            pairs = zip(offsets, self._tables, strict=False)  # a table without rows has no offset
            self.starts = tuple(offset + start for offset, table in pairs for start in table.starts) or (0,)

    def cell_types(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        parts = [table.cell_types(names) for table in self._tables]
        kinds = {name: {part[name] for part in parts} - {pa.null()} for name in names}
        whole = {pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()}
        common = {name: pa.int64() if found <= whole else pa.string() for name, found in kinds.items()}
        return {name: next(iter(found)) if len(found) == 1 else common[name] for name, found in kinds.items()}

    def _types(self, names: tuple[str, ...], stated: Mapping[str, ReadAs]) -> dict[str, ReadAs]:
        found = [table._types(names, stated) for table in self._tables]

        def joined(name: str) -> ReadAs:
            parts = [(types[name], table) for table, types in zip(self._tables, found, strict=True)]
            kinds = {kind for kind, _ in parts}
            if len(kinds) > 1 and not kinds <= {"number", "integer"}:
                kinds = {kind for kind, table in parts if kind == "date" or not _is_empty(table, name)}
            if kinds <= {"number", "integer"}:
                return "integer" if kinds == {"integer"} else "number"
            if len(kinds) == 1:
                return kinds.pop()
            if "text" not in kinds and "date" in kinds:
                raise TableError(f"{self.name}: column {name!r} holds {' and '.join(sorted(kinds))}; expected one type")
            stored = {table.described(name) for kind, table in parts if kind == "bool"}
            return "number" if "text" not in kinds and stored == {"bool"} else "text"

        return {name: joined(name) for name in names if name not in stated}

    def _read(self, types: Mapping[str, ReadAs], rows: int, begin: int) -> Iterator[Batch]:
        # Integers and text do not compare: keys are text unless all tables store them as one type.
        keys = [name for name, kind in types.items() if kind == "key"]
        mixed = [name for name in keys if len({table.described(name) for table in self._tables}) > 1]
        types = {**types, **dict.fromkeys(mixed, "text")}
        offset = 0
        for table in self._tables:
            size = table.known_rows
            if size is None or begin < offset + size:
                for batch in table.batches(list(types), rows, start=max(begin - offset, 0), types=types):
                    yield replace(batch, start=offset + batch.start)
                size = batch.start + batch.rows
            offset += size


def _is_empty(table: Table, name: str) -> bool:
    cells = (pa.array(batch.columns[name]) for batch in table.batches([name], types={name: "cells"}))
    return all(pc.all(pc.is_null(each, nan_is_null=True), min_count=0).as_py() for each in cells)


def damaged(name: str, kind: str, reason: object) -> AnytimeError:
    """Return the error for content that does not match the file's suffix, is truncated or is unreadable."""
    message = " ".join(str(reason).split()).rstrip(".") or type(reason).__name__
    found = EnvironmentFailure if isinstance(reason, OSError) and environmental(reason) else TableError
    return found(f"cannot read {name} as {kind} ({message}); check its suffix and that the file is complete")
