"""Expansion of raw columns into terms.

A raw column is a column of numbers; a text column holds the indices of its levels. Each column becomes one or several
terms, which all belong to the column's group: the terms of its basis, and an indicator of missing values where there is
one. Values outside the column's range move to the nearest end of it before they are expanded.

The products of pairs of columns follow the terms of all columns: every factor of the first times every factor of the
second. The factors of a column of numbers are min(max(x, knot), last knot) - knot for each knot but the last, and those
of a column of categories are indicators of levels. They are bounded, because products of extreme values would be
extreme. A value that is missing in either column makes every term of the pair NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from anytime.errors import GroupsError
from anytime.features.bases import (
    DATES,
    LEVEL_ROWS,
    UNSTATED,
    Basis,
    ColumnSample,
    Reader,
    checked,
    distinct_names,
    same_values,
)
from anytime.groups import ColumnBasis, FeatureGroups, PairSide, ProductGroup
from anytime.types import Bool, ColumnType, Float, Index, Label


@dataclass(frozen=True)
class Column:
    """A raw column and its terms.

    Attributes
    ----------
    range : tuple[float, float] | None
        Values outside it move to its nearest end; None moves none.
    indicator : bool
        Whether one more term, the last, marks missing values.
    type : ColumnType | None
        Of the values, where it is known.
    """

    name: str
    basis: Basis
    range: tuple[float, float] | None = None
    indicator: bool = False
    type: ColumnType | None = None

    @cached_property
    def terms(self) -> tuple[str, ...]:
        return (*self.basis.names(self.name), *([f"{self.name} is missing"] if self.indicator else []))

    @property
    def is_linear(self) -> bool:
        """Return whether the only term is the column itself."""
        return self.basis.is_identity and self.range is None and not self.indicator

    @property
    def reader(self) -> Reader | None:
        """Return how values are read; None if they are numbers."""
        return DATES if self.type == "date" else self.basis.reader

    def shown(self, x: float) -> Label | None:
        """Return a raw number as a value of a request in JSON."""
        return x if self.reader is None else self.reader.shown(x)

    def described(self) -> ColumnBasis:
        """Return the column as a groups file states it, complete."""
        return self.basis.described().model_copy(update={"range": self.range, "missing": self.indicator})


@dataclass(frozen=True)
class Columns:
    """Raw columns in order with their terms, those of one group, for example, and then the terms of products."""

    columns: tuple[Column, ...]
    products: tuple[Product, ...] = field(default=(), kw_only=True)

    @cached_property
    def is_identity(self) -> bool:
        """Return whether every column is its own only term, and there are no others."""
        return not self.products and all(column.is_linear for column in self.columns)

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        return tuple(pairwise(accumulate((len(column.terms) for column in self.columns), initial=0)))

    @cached_property
    def categories(self) -> dict[int, Basis]:
        """Return the bases whose raw values are indices of levels, by the index of the column."""
        return {j: column.basis for j, column in enumerate(self.columns) if column.basis.by_level}

    @cached_property
    def readers(self) -> dict[int, Reader]:
        """Return how the values that are not numbers are read, by the index of the column."""
        readers = ((j, column.reader) for j, column in enumerate(self.columns))
        return {j: reader for j, reader in readers if reader is not None}

    @cached_property
    def are_indicators(self) -> Bool:
        """Return which terms are indicators of missing values, (terms,)."""
        return np.isin(np.arange(self.size), [self.spans[j][1] - 1 for j in self._indicators])

    @cached_property
    def are_last_levels(self) -> Bool:
        """Return which terms are the last level of a factor, (terms,): with a constant, one of them is redundant."""
        lasts = [self.spans[j][1] - 1 - self.columns[j].indicator for j in self.categories]
        return np.isin(np.arange(self.size), lasts)

    @cached_property
    def column_terms(self) -> int:
        """Return the number of terms of columns, which come before those of products."""
        return sum(len(column.terms) for column in self.columns)

    @cached_property
    def product_spans(self) -> tuple[tuple[int, int], ...]:
        return tuple(pairwise(accumulate((len(each.terms) for each in self.products), initial=self.column_terms)))

    @cached_property
    def size(self) -> int:
        return self.column_terms + sum(len(each.terms) for each in self.products)

    def clamped(self, X: Float) -> tuple[Float, Bool | None]:
        """Move the values of X (rows, columns) into the ranges of their columns.

        Returns
        -------
        x : (columns, rows), a copy.  outside : (columns,) in which a value was moved; None if in no column.
        """
        if self._bounds is None:
            return np.array(X.T, dtype=np.float64, order="C"), None  # a column at a time is contiguous
        low, high, *same = self._bounds
        x = np.minimum(np.maximum(X.T, low, order="C"), high)  # .7 us for a row, 2.0 by np.clip
        if x.tobytes() == X.T.tobytes():  # .2 us for a row, 5.6 by the comparisons below
            return x, None
        outside = np.asarray(((X < same[0].T) | (X > same[1].T)).any(axis=0))
        return x, outside if outside.any() else None

    def terms_of_row(self, x: Float) -> Float | None:
        """Return the terms (terms,) of one row (columns,) without missing values.

        None if a column is not piecewise linear, or a value is outside its range: see `clamped` and `expand_clamped`,
        which take three times as long for one row.
        """
        if self.is_identity:
            return x
        if self._flat is None:
            return None
        low, high, columns, knots, floors = self._flat
        if np.minimum(np.maximum(x, low), high).tobytes() != x.tobytes():
            return None
        terms = x.take(columns)
        terms -= knots
        return np.asarray(np.maximum(terms, floors, out=terms))

    def expand_into(self, X: NDArray[Any], out: Float) -> None:
        """Write the terms (terms, rows) of X (rows, columns)."""
        if self.is_identity:
            out[:] = X.T
            return
        x = np.array(X.T, dtype=np.float64, order="C")
        if self._bounds is not None:
            np.clip(x, *self._bounds[:2], out=x)
        self.expand_clamped(x, out)

    def expand_clamped(self, x: Float, out: Float) -> None:
        """Write the terms (terms, rows) of values that `clamped` returned."""
        if self.products:
            for each, (start, stop) in zip(self.products, self.product_spans, strict=True):
                a, b = each.sides
                each.expand(x[a.column], x[b.column], out[start:stop])
            out = out[: self.column_terms]
        pieces = self._pieces
        if len(pieces.terms) == len(out):
            x.take(pieces.columns, axis=0, out=out, mode="clip")  # the default mode copies once more
            out -= pieces.knots
            np.maximum(out, pieces.floors, out=out)
        elif len(pieces.terms):
            out[pieces.terms] = np.maximum(x[pieces.columns] - pieces.knots, pieces.floors)
        if len(pieces.equal_terms):
            same = x[pieces.equal_columns]
            out[pieces.equal_terms] = ((same >= pieces.lows) & (same <= pieces.highs)) + 0.0 * same  # NaN where missing
        for j in self._others:
            start, stop = self.spans[j]
            self.columns[j].basis.expand(x[j], out[start : stop - self.columns[j].indicator])
        if self._indicators:
            starts, lasts = zip(*(self.spans[j] for j in self._indicators), strict=True)
            out[np.array(lasts) - 1] = np.isnan(out[list(starts)])

    def expand(self, X: NDArray[Any]) -> Float:
        """Return the terms (rows, terms) of X (rows, columns); NaN in every term but indicators where it is missing."""
        if self.is_identity:
            return np.asarray(X, dtype=np.float64)
        out = np.empty((self.size, len(X)))
        self.expand_into(X, out)
        return out.T

    @cached_property
    def _bounds(self) -> tuple[Float, Float, Float, Float] | None:
        """Return the ends of the ranges (columns, 1), and the last numbers that are the same values as these."""
        if not any(column.range for column in self.columns):
            return None
        ends = np.array([column.range or (-np.inf, np.inf) for column in self.columns])
        return ends[:, :1], ends[:, 1:], same_values(ends[:, 0])[:, :1], same_values(ends[:, 1])[:, 1:]

    @cached_property
    def _pieces(self) -> _Pieces:
        """Return the piecewise-linear terms of all columns.

        They are computed at once, in a tenth of the time that one row takes column by column.
        """
        pieces: list[tuple[int, int, float, float]] = []
        equal: list[tuple[int, int, float, float]] = []
        for j, (column, (start, _)) in enumerate(zip(self.columns, self.spans, strict=True)):
            if column.basis.pieces is not None:
                knots, same = column.basis.pieces
                pieces += [(start, j, 0.0, -np.inf), *((start + k, j, knot, 0.0) for k, knot in enumerate(knots, 1))]
                equal += [(start + k, j, low, high) for k, (low, high) in enumerate(same.tolist(), 1 + len(knots))]
        return _Pieces(
            terms=np.array([term for term, *_ in pieces], dtype=np.intp),
            columns=np.array([j for _, j, *_ in pieces], dtype=np.intp),
            knots=np.array([[knot] for *_, knot, _ in pieces]),
            floors=np.array([[floor] for *_, floor in pieces]),
            equal_terms=np.array([term for term, *_ in equal], dtype=np.intp),
            equal_columns=np.array([j for _, j, *_ in equal], dtype=np.intp),
            lows=np.array([[low] for *_, low, _ in equal]),
            highs=np.array([[high] for *_, high in equal]),
        )

    @cached_property
    def _flat(self) -> tuple[Float, Float, Index, Float, Float] | None:
        """Return the ends of the ranges, and column, knot and floor of each term, if all are piecewise linear."""
        pieces = self._pieces
        if len(pieces.terms) < self.size:
            return None
        unbounded = np.full(len(self.columns), np.inf)
        low, high, *_ = self._bounds or (-unbounded, unbounded)
        return low.ravel(), high.ravel(), pieces.columns, pieces.knots.ravel(), pieces.floors.ravel()

    @cached_property
    def _others(self) -> list[int]:
        """Return the columns whose terms are not piecewise linear."""
        return [j for j, column in enumerate(self.columns) if column.basis.pieces is None]

    @cached_property
    def _indicators(self) -> list[int]:
        return [j for j, column in enumerate(self.columns) if column.indicator]


@dataclass(frozen=True)
class Side:
    """The factors of one column of a pair.

    Attributes
    ----------
    column : int
        Index of the raw column.
    numbers : tuple[float, ...]
        Knots, or the indices of levels if the column has `categories`, a basis by level.
    """

    name: str
    column: int
    numbers: tuple[float, ...]
    categories: Basis | None

    @staticmethod
    def of(side: PairSide, column: int, basis: Basis) -> Side:
        if not basis.by_level:
            if side.levels:
                raise GroupsError(f"column {side.column!r} of a pair has levels; expected knots, as it holds numbers")
            return Side(side.column, column, side.knots, None)
        if not side.levels or not set(side.levels) <= set(basis.labels):
            raise GroupsError(f"column {side.column!r} of a pair has other levels than its basis; expected some of it")
        return Side(side.column, column, tuple(map(basis.labels.index, side.levels)), basis)

    @property
    def names(self) -> list[str]:
        if self.categories is None:
            return distinct_names(self.name, ">", self.numbers[:-1])
        return [f"{self.name}={self.categories.labels[int(code)]}" for code in self.numbers]

    @cached_property
    def _numbers(self) -> Float:
        return np.array(self.numbers, dtype=np.float64)[:, np.newaxis]

    def factors(self, x: Float) -> Float:
        """Return the factors (factors, rows) of clamped values (rows,); NaN where missing."""
        if self.categories is None:
            return np.asarray(np.clip(x, self._numbers[:-1], self._numbers[-1]) - self._numbers[:-1])
        if not self.categories.has_other:
            x = np.where(x < 0, np.nan, x)
        return np.asarray((x == self._numbers) + 0.0 * x)


@dataclass(frozen=True)
class Product:
    """The terms of one pair: every factor of the first column times every factor of the second."""

    sides: tuple[Side, Side]

    @cached_property
    def terms(self) -> tuple[str, ...]:
        a, b = self.sides
        return tuple(f"{one} * {other}" for one, other in product(a.names, b.names))

    def expand(self, x: Float, y: Float, out: Float) -> None:
        """Write the terms (terms, rows) of the clamped values x and y (rows,) of the two columns."""
        a, b = self.sides
        factors = a.factors(x)[:, np.newaxis] * b.factors(y)
        out[:] = factors.reshape(out.shape)


@dataclass(frozen=True)
class Expansion(Columns):
    """The terms of all raw columns of some groups, in the order of the groups file, and then those of the products."""

    groups: FeatureGroups

    @classmethod
    def of(cls, groups: FeatureGroups) -> Expansion:
        """Return the expansion that groups with complete bases state; raise GroupsError if a basis is invalid."""
        columns = tuple(
            _column(name, groups.bases.get(name, ColumnBasis()), groups.types.get(name)) for name in groups.features
        )
        place = {column.name: (index, column.basis) for index, column in enumerate(columns)}
        products = tuple(Product((Side.of(a, *place[a.column]), Side.of(b, *place[b.column]))) for a, b in groups.pairs)
        found = cls(columns, groups, products=products)
        found._check_names()
        return found

    def columns_of(self, terms: Index) -> Index:
        """Return the raw columns, ascending, that some terms are computed from."""
        used = np.isin(np.arange(self.size), terms)
        found = {j for j, (start, stop) in enumerate(self.spans) if used[start:stop].any()}
        products = zip(self.products, self.product_spans, strict=True)
        found.update(side.column for each, (start, stop) in products if used[start:stop].any() for side in each.sides)
        return np.array(sorted(found), dtype=np.intp)

    def _check_names(self) -> None:
        """Raise GroupsError unless `group:column`, the name of a text column for services, is unique."""
        texts = {self.columns[j].name for j, reader in self.readers.items() if reader.holds == "text"}
        for group in self.groups.groups if texts else ():
            for column in texts.intersection(group.features):
                if ":" in group.name:
                    raise GroupsError(
                        f"group {group.name!r} has the text column {column!r} and ':' in its name; expected a name "
                        "without ':'"
                    )
                if (name := f"{group.name}:{column}") in self.groups.positions:
                    raise GroupsError(
                        f"group {name!r} has the name of the text column {column!r} of group {group.name!r}; "
                        "rename one of the groups"
                    )

    @cached_property
    def plain(self) -> Expansion:
        """Return the expansion without indicators of missing values."""
        if not any(column.indicator for column in self.columns):
            return self
        return replace(self, columns=tuple(replace(column, indicator=False) for column in self.columns))

    @cached_property
    def indicated(self) -> tuple[tuple[int, int], ...]:
        """Return the terms (start, stop), counted without indicators, of the columns that have an indicator."""
        return tuple(span for column, span in zip(self.columns, self.plain.spans, strict=True) if column.indicator)

    @cached_property
    def terms(self) -> FeatureGroups:
        """Return the groups with their terms as features, then those of products; raise if two terms have one name."""
        if self.is_identity:
            return self.groups
        of_column = {column.name: column.terms for column in self.columns}
        groups = (
            group.model_copy(update={"features": tuple(chain.from_iterable(of_column[f] for f in group.features))})
            for group in self.groups.groups
        )
        try:
            return FeatureGroups(
                cost_unit=self.groups.cost_unit, rows=self.groups.rows, groups=(*groups, *self._product_groups())
            )
        except ValidationError as error:
            why = error.errors(include_url=False)[0]["ctx"]["error"]
            raise GroupsError(f"two terms have the same name, so rename a column: {why}") from None

    def _product_groups(self) -> list[ProductGroup]:
        """Return a group for the products of each one or two groups, in order; its name is that of no other group."""
        group_of = {name: group.name for group in self.groups.groups for name in group.features}
        terms: dict[tuple[str, str], list[str]] = {}
        for each in self.products:
            a, b = (group_of[side.name] for side in each.sides)
            terms.setdefault((a, b), []).extend(each.terms)
        found: list[ProductGroup] = []
        for (a, b), features in terms.items():
            name = f"{a} * {b}"
            while name in {*self.groups.names, *(group.name for group in found)}:
                name += "'"
            requires = tuple(dict.fromkeys((a, b)))
            found.append(ProductGroup(name=name, features=tuple(features), cost=0.0, requires=requires))
        return found

    @property
    def needs_size(self) -> bool:
        """Return whether the size of a basis is to be selected."""
        return len(self.sizes) > 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes that cross-validation selects from, ascending; (0,) if there is nothing to select."""
        return tuple(sorted({size for column in self.columns for size in column.basis.choices})) or (0,)

    def with_size(self, size: int) -> tuple[Expansion, Index]:
        """Return the expansion with this size of each basis that has a choice, and which terms of this one it has."""
        columns, bases, terms = list(self.columns), dict(self.groups.bases), np.ones(self.size, dtype=np.bool_)
        for j, (column, (start, _)) in enumerate(zip(self.columns, self.spans, strict=True)):
            if column.basis.choices:
                basis, own = column.basis.with_size(size)
                terms[start : start + len(own)] = own
                parts = {"knots": None, "levels": None, **basis.described().model_dump(exclude_unset=True)}
                bases[column.name] = bases[column.name].model_copy(update=parts)
                columns[j] = replace(column, basis=basis)
        return replace(self, columns=tuple(columns), groups=self.groups.with_bases(bases)), np.flatnonzero(terms)

    @property
    def level_rows(self) -> tuple[int, ...]:
        """Return the least numbers of rows of a level that cross-validation selects from, descending; () if none."""
        counts = {count for column in self.columns for count in column.basis.open_levels}
        kept = {frozenset(count for count in counts if count >= least): least for least in reversed(LEVEL_ROWS)}
        return tuple(kept[each] for each in reversed(kept)) if counts else ()

    def with_min_level_rows(self, rows: int) -> tuple[Expansion, Index]:
        """Return the expansion without levels of fewer rows, where their number was to be selected.

        Each of its terms is the sum of consecutive terms of this one, and the first of each are returned, too.
        """
        columns, bases, starts = list(self.columns), dict(self.groups.bases), np.ones(self.size, dtype=np.bool_)
        for j, (column, (start, stop)) in enumerate(zip(self.columns, self.spans, strict=True)):
            if column.basis.open_levels:
                basis, kept = column.basis.with_min_level_rows(rows)
                starts[start + kept + 1 : stop - column.indicator] = False
                stated = bases[column.name].model_dump(exclude_unset=True, exclude={"level_rows"})
                bases[column.name] = ColumnBasis(**(stated | basis.described().model_dump(exclude_unset=True)))
                columns[j] = replace(column, basis=basis)
        return replace(self, columns=tuple(columns), groups=self.groups.with_bases(bases)), np.flatnonzero(starts)

    def with_indicators(self, missing: Mapping[str, bool]) -> Expansion:
        """Return the expansion with or without indicators of missing values in some columns, and groups that say so."""
        columns = tuple(replace(c, indicator=missing.get(c.name, c.indicator)) for c in self.columns)
        bases = dict(self.groups.bases)
        for column in columns:
            if column.indicator:
                update = column.described().model_dump(exclude_unset=True)
                bases[column.name] = bases.get(column.name, ColumnBasis()).model_copy(update=update)
        return replace(self, columns=columns, groups=self.groups.with_bases(bases))


class _Pieces(NamedTuple):
    """Terms max(x - knot, floor), and indicators of values: the term and the column of each."""

    terms: Index
    columns: Index
    knots: Float
    floors: Float
    equal_terms: Index
    equal_columns: Index
    lows: Float
    highs: Float


def _column(name: str, given: ColumnBasis, kind: ColumnType | None) -> Column:
    """Return a column whose basis is complete."""
    try:
        basis = checked(given.basis or UNSTATED, given, ColumnSample(np.empty(0), 0))
        return Column(name, basis, given.range, bool(given.missing), kind)
    except GroupsError as error:
        raise GroupsError(f"column {name!r}: {error}") from None
