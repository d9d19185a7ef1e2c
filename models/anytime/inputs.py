"""What extractors are called with when they are measured: rows of a table, or inputs that a module makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anytime.errors import ExtractorError, TableError
from anytime.tables import Table

__all__ = ["Inputs", "ModuleInputs", "TableInputs"]


class Inputs(Protocol):
    """Rows that extractors are called with."""

    @property
    def count(self) -> int:
        """How many there are."""

    def one(self, row: int) -> Any:
        """What an extractor of one row is called with."""

    def batch(self, rows: Sequence[int]) -> Any:
        """What an extractor of several rows is called with."""


@dataclass(frozen=True)
class TableInputs:
    """Rows of a table: `{column: value}` for one of them, `{column: array}` for several.

    A row is a new dict each time, so that nothing an extractor keeps there is at hand the next time.
    """

    columns: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, table: Table, limit: int) -> TableInputs:
        """The first `limit` rows.

        Raises
        ------
        TableError
            The table has no rows, or cannot be read.
        """
        batches, rows = [], 0
        for batch in table.batches(table.columns, limit):
            batches.append(batch.columns)
            rows += batch.rows
            if rows >= limit:
                break
        if not batches:
            raise TableError(f"{table.name} has no rows; expected at least one")
        return cls({name: np.concatenate([each[name] for each in batches])[:limit] for name in table.columns})

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values())))

    def one(self, row: int) -> dict[str, Any]:
        """A row as Python's own numbers and strings; NaN or None where a value is missing."""
        return {name: column[row : row + 1].tolist()[0] for name, column in self.columns.items()}

    def batch(self, rows: Sequence[int]) -> dict[str, NDArray[Any]]:
        """Columns of several rows, (rows,) each."""
        return {name: column[np.asarray(rows)] for name, column in self.columns.items()}


@dataclass(frozen=True)
class ModuleInputs:
    """Inputs of somebody's own: each as it is for one row, a list of them for several.

    An input that keeps what an extractor found, as a cache would, makes it look quick the second time: give as many
    inputs as are needed, and measure each once.
    """

    kept: tuple[Any, ...]

    @classmethod
    def of(cls, found: Any, limit: int, what: str) -> ModuleInputs:
        """The first `limit` of an iterable, or of what a function returns.

        Raises
        ------
        ExtractorError
            It is neither, or there are none.
        """
        items = found() if callable(found) else found
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
            raise ExtractorError(f"{what} is {type(items).__name__}; expected an iterable of inputs")
        kept = tuple(islice(items, limit))
        if not kept:
            raise ExtractorError(f"{what} has no inputs; expected at least one")
        return cls(kept)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.kept)

    def one(self, row: int) -> Any:
        """An input."""
        return self.kept[row]

    def batch(self, rows: Sequence[int]) -> list[Any]:
        """Several inputs."""
        return [self.kept[row] for row in rows]
