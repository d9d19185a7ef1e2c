"""Expansion of raw columns into terms.

A raw column is a column of numbers; a text column holds the indices of its levels. Each column becomes one or several
terms, which all belong to the column's group: the terms of its basis, and an indicator of missing values where there is
one. Values outside the column's range move to the nearest end of it before they are expanded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anytime.errors import GroupsError
from anytime.features.basis import Basis, Kind
from anytime.features.categories import Categories
from anytime.features.hinge import Hinge
from anytime.features.linear import Linear
from anytime.features.poly import Polynomial
from anytime.groups import ColumnBasis, FeatureGroups
from anytime.types import Bool, Float, Index

BASES: Mapping[str, type[Basis]] = {basis.name: basis for basis in (Linear, Hinge, Polynomial, Categories)}
"""Every basis by its name on the command line and in the groups file."""


def parsed_basis(text: str) -> tuple[type[Basis], int | None]:
    """Return the basis and the K that a text such as "hinge:4" names.

    Raises
    ------
    GroupsError
        There is no such basis, or K is out of range.
    """
    name, colon, size = text.partition(":")
    basis = BASES.get(name)
    if basis is None:
        raise GroupsError(f"there is no basis {text!r}; expected one of {', '.join(BASES)}")
    if not colon:
        return basis, None
    if not (size.isascii() and size.isdigit() and int(size) in basis.sizes):
        sizes = f"{name}:K with K from {basis.sizes[0]} to {basis.sizes[-1]}" if basis.sizes else repr(name)
        raise GroupsError(f"basis {text!r} is invalid; expected {sizes}")
    return basis, int(size)


def default_basis(kind: Kind) -> str:
    """Return the basis of a column for which the user gives none."""
    return Categories.name if kind == "text" else Linear.name


def learned(given: ColumnBasis, kind: Kind, option: str | None, values: NDArray[Any], rows: int) -> Basis:
    """Return the basis of a column.

    Parameters
    ----------
    given : what the groups file states of the column.
    option : the basis of all columns of a fitting type, or None.
    values : (observed,) values of a sample of `rows` rows, without missing ones.

    Raises
    ------
    GroupsError
        The basis does not fit the column's type; the message does not name the column.
    """
    text = given.basis
    if text is None:
        text = option if option is not None and kind in parsed_basis(option)[0].fits else default_basis(kind)
    basis, size = parsed_basis(text)
    if kind not in basis.fits:
        fitting = [each.name for each in BASES.values() if kind in each.fits]
        raise GroupsError(f"it holds {_HOLDS[kind]} and has basis {text!r}; expected {' or '.join(fitting)}")
    return basis.learn(size, given, values, rows)


_HOLDS: dict[Kind, str] = {"number": "numbers", "integer": "whole numbers", "bool": "booleans", "text": "text"}


@dataclass(frozen=True)
class Column:
    """A raw column and its terms.

    Attributes
    ----------
    range : values outside it move to its nearest end; None moves none.
    indicator : whether one more term, the last, marks missing values.
    """

    name: str
    basis: Basis
    range: tuple[float, float] | None = None
    indicator: bool = False

    @cached_property
    def terms(self) -> tuple[str, ...]:
        """Return the names of the terms."""
        return (*self.basis.names(self.name), *([f"{self.name} is missing"] if self.indicator else []))

    @property
    def is_linear(self) -> bool:
        """Return whether the only term is the column itself."""
        return isinstance(self.basis, Linear) and self.range is None and not self.indicator

    def expand(self, x: Float, out: Float) -> None:
        """Write the terms (terms, rows) of the values (rows,); missing values make all but the indicator NaN."""
        if self.range is not None:
            x = np.clip(x, *self.range)
        self.basis.expand(x, out[:-1] if self.indicator else out)
        if self.indicator:
            np.isnan(out[0], out=out[-1], casting="unsafe")

    def clamped(self, x: Float) -> Bool:
        """Return which values are outside the range, (rows,)."""
        if self.range is None:
            return np.zeros(len(x), dtype=np.bool_)
        low, high = self.range
        return (x < low) | (x > high)

    def described(self) -> ColumnBasis:
        """Return the column as a groups file states it, complete."""
        return self.basis.described().model_copy(update={"range": self.range, "missing": self.indicator})


@dataclass(frozen=True)
class Expansion:
    """The terms of all raw columns, in the order of the groups file."""

    groups: FeatureGroups
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, groups: FeatureGroups) -> Expansion:
        """Return the expansion that groups with complete bases state.

        Raises
        ------
        GroupsError
            A basis is invalid.
        """
        return cls(groups, tuple(_column(name, groups.bases.get(name)) for name in groups.features))

    @cached_property
    def is_identity(self) -> bool:
        """Return whether every column is its own only term."""
        return all(column.is_linear for column in self.columns)

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Return the terms (start, stop) of each column."""
        ends = accumulate(len(column.terms) for column in self.columns)
        return tuple((end - len(column.terms), end) for column, end in zip(self.columns, ends, strict=True))

    @property
    def size(self) -> int:
        """Return the number of terms."""
        return sum(len(column.terms) for column in self.columns)

    @cached_property
    def terms(self) -> FeatureGroups:
        """Return the groups with their terms as features.

        Raises
        ------
        GroupsError
            Two terms have the same name.
        """
        if self.is_identity:
            return self.groups
        of_column = {column.name: column.terms for column in self.columns}
        groups = tuple(
            group.model_copy(update={"features": tuple(chain.from_iterable(of_column[f] for f in group.features))})
            for group in self.groups.groups
        )
        return FeatureGroups(cost_unit=self.groups.cost_unit, groups=groups)

    @cached_property
    def owners(self) -> Index:
        """Return the index of the column of each term, (terms,)."""
        return np.repeat(np.arange(len(self.columns)), [len(column.terms) for column in self.columns])

    def expand_into(self, X: NDArray[Any], out: Float) -> None:
        """Write the terms (terms, rows) of X (rows, columns)."""
        values = np.array(X.T, dtype=np.float64, order="C")  # a column at a time is contiguous
        for x, column, (start, stop) in zip(values, self.columns, self.spans, strict=True):
            column.expand(x, out[start:stop])

    def expand(self, X: NDArray[Any]) -> Float:
        """Return the terms (rows, terms) of X (rows, columns); NaN in every term but indicators where it is missing."""
        if self.is_identity:
            return np.asarray(X, dtype=np.float64)
        out = np.empty((self.size, len(X)))
        self.expand_into(X, out)
        return out.T

    def with_indicators(self, missing: Mapping[str, bool]) -> Expansion:
        """Return the expansion with or without indicators of missing values in some columns."""
        columns = tuple(Column(c.name, c.basis, c.range, missing.get(c.name, c.indicator)) for c in self.columns)
        return Expansion(self.groups.with_bases({c.name: c.described() for c in columns if not c.is_linear}), columns)


def _column(name: str, given: ColumnBasis | None) -> Column:
    """Return a column whose basis is complete."""
    if given is None:
        return Column(name, Linear())
    try:
        basis, size = parsed_basis(given.basis or Linear.name)
        return Column(name, basis.learn(size, given, np.empty(0), 0), given.range, bool(given.missing))
    except GroupsError as error:
        raise GroupsError(f"column {name!r}: {error}") from None
