"""The interface of bases, and the simplest one. A basis turns one raw column into one or several terms.

To add a basis, write a class like those in `hinge.py`, list it in `expansion.BASES`, and add it to `model/export.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias

from numpy.typing import NDArray

from anytime.groups import ColumnBasis
from anytime.types import Float

Kind: TypeAlias = Literal["number", "integer", "bool", "text", "factor"]
"""Type of a raw column; a factor is a dictionary-encoded column of any type. Each may have missing values."""

NUMERIC: frozenset[Kind] = frozenset({"number", "integer"})


class Basis(Protocol):
    """What the values of one column become."""

    name: ClassVar[str]
    fits: ClassVar[frozenset[Kind]]
    """Types of the columns that may have this basis."""
    sizes: ClassVar[range]
    """Valid K of `name:K`; empty if the basis has no size."""

    @classmethod
    def learn(cls, size: int | None, given: ColumnBasis, values: NDArray[Any], rows: int) -> Self:
        """Return the basis of a column; what `given` states is not learned.

        Parameters
        ----------
        size : K of `name:K`, or None.
        values : (observed,) the values of a sample of `rows` rows, without missing ones.

        Raises
        ------
        GroupsError
            What `given` states is invalid; the message does not name the column.
        """

    def names(self, column: str) -> list[str]:
        """Return the names of the terms of a column."""

    def expand(self, x: Float, out: Float) -> None:
        """Write the terms (terms, rows) of the values (rows,); a missing value, NaN, makes every term NaN."""

    def described(self) -> ColumnBasis:
        """Return the basis as a groups file states it, complete."""


def distinct_names(column: str, sign: str, values: Iterable[float]) -> list[str]:
    """Return a name such as `age>45` for each of some different numbers."""
    numbers = list(values)
    short = [f"{column}{sign}{value:.6g}" for value in numbers]
    return short if len(set(short)) == len(short) else [f"{column}{sign}{value!r}" for value in numbers]


@dataclass(frozen=True)
class Linear:
    """One term, the column itself; booleans are 0 and 1."""

    name: ClassVar[str] = "linear"
    fits: ClassVar[frozenset[Kind]] = NUMERIC | {"bool"}
    sizes: ClassVar[range] = range(0)

    @classmethod
    def learn(cls, size: int | None, given: ColumnBasis, values: NDArray[Any], rows: int) -> Self:  # noqa: ARG003
        return cls()

    def names(self, column: str) -> list[str]:
        return [column]

    def expand(self, x: Float, out: Float) -> None:
        out[0] = x

    def described(self) -> ColumnBasis:
        return ColumnBasis(basis=self.name)
