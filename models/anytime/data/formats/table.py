"""The interface of tables: named columns, read in batches of rows.

A column has one dtype, the same in every batch:

=========  ==============================================================
bool       booleans, none missing
int64      integers, none missing, all within the range of int64
float64    all other numbers; NaN where missing
object     text, as `str`; None where missing
=========  ==============================================================

Rows are counted from 0, without the header.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from anytime.errors import TableError, environmental, listed, suggestion


def required(module: str) -> Any:
    """Import a module of the `train` extra, or raise TableError with the package to install."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0].replace("sklearn", "scikit-learn")
        raise TableError(
            f"reading this file needs {name}; install it with: pip install 'anytime-linear[train]'"
        ) from error


ROWS = 16_384
"""Default number of rows in a batch: 64 MiB at 512 columns."""


class Text(NamedTuple):
    """A cell of text: its row in the table and its value."""

    row: int
    value: str


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of some columns, each (rows,), in the requested order."""

    start: int
    """Index of the first row in the table."""
    columns: Mapping[str, NDArray[Any]]
    culprits: Mapping[str, Text] = field(default_factory=dict)
    """For a text column whose other cells are numbers: the first cell that is text, perhaps outside this batch."""

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def between(self, start: int, stop: int | None) -> Batch:
        """Return the rows of the batch within a range of rows of the table; the result may be empty."""
        low = max(start - self.start, 0)
        high = self.rows if stop is None else min(stop - self.start, self.rows)
        if low == 0 and high == self.rows:
            return self
        columns = {name: column[low : max(high, low)] for name, column in self.columns.items()}
        return Batch(self.start + low, columns, self.culprits)


class Table(ABC):
    """Named columns that can be read repeatedly; the base class of all formats. Each read opens the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns: Mapping[str, object] = {}  # by name, in the order of the file; each format fills it

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def has(self, name: str) -> bool:
        """Return whether a column is readable; svmlight tables have features beyond `columns`, all zero."""
        return name in self._columns

    @property
    def factors(self) -> frozenset[str]:
        """Return the columns that the file encodes by a dictionary of levels."""
        return frozenset()

    @property
    def starts(self) -> tuple[int, ...]:
        """Return the rows, ascending from 0, at which reading can start without the rows before."""
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
        """Read some columns (at least one) from row `start` to before `stop`, at most `rows` rows at a time.

        Columns in `numeric` are float64 unless they are text. Then a format need not read a whole column of integers
        first to find out whether values are missing. Raises TableError: at the call, if a column does not exist or its
        type is neither number nor text, such as dates; later, if the file is damaged.
        """
        names = tuple(dict.fromkeys(columns))
        if not names:
            raise TableError(f"{self.name}: no column was requested; expected at least one")
        if rows < 1:
            raise TableError(f"{self.name}: batches of {rows} rows were requested; expected 1 or more")
        for name in names:
            if not self.has(name):
                raise TableError(f"{self.name} has no column {name!r}; {suggestion(name, self.columns)}")
        self._prepare(names, frozenset(numeric))
        return self._between(names, rows, start, stop, frozenset(numeric))

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

    def _prepare(  # noqa: B027 - not every format needs preparation
        self, names: tuple[str, ...], numeric: frozenset[str]
    ) -> None:
        """Collect what the format needs to know of these columns before the first batch; raise if one is unreadable."""

    @abstractmethod
    def _read(self, names: tuple[str, ...], rows: int, begin: int, numeric: frozenset[str]) -> Iterator[Batch]:
        """Yield batches of 1 to `rows` rows from row `begin` on, one of `starts`; the names exist and are prepared."""

    def _no_rows(self) -> TableError:
        return TableError(f"{self.name} has no rows; expected at least one")

    def _check_names(self, names: Sequence[str]) -> None:
        if not names:
            raise TableError(f"{self.name} has no columns; expected at least one")
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise TableError(f"{self.name} has more than one column named {listed(repeated)}; give each its own name")


def damaged(name: str, kind: str, reason: object) -> TableError:
    """Return the error for content that does not match the file's suffix, is truncated or is unreadable."""
    message = " ".join(str(reason).split()).rstrip(".") or type(reason).__name__
    failed = isinstance(reason, OSError) and environmental(reason)
    return TableError(
        f"cannot read {name} as {kind} ({message}); check its suffix and that the file is complete", environment=failed
    )
