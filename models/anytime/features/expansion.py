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

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise, product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from anytime.errors import GroupsError
from anytime.features.bases import LEVEL_ROWS, Basis, Choice, ColumnSample, learned, suffixes
from anytime.features.operations import MISSING, VALUE, Operands, Operation, Ramp, Term, same_values
from anytime.features.readers import DATES, Levels, Reader
from anytime.groups import ColumnBasis, FeatureGroups, PairSide, ProductGroup
from anytime.types import Bool, ColumnType, Float, Index, Label

Spans: TypeAlias = list[tuple[int, int]]
"""Places of terms that follow each other, (start, stop) each."""


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
    reader : Reader | None
        How values are read; None if they are numbers.
    levels : Levels | None
        The levels whose indices the raw values are; None if they are others.
    is_linear : bool
        Whether the only term is the column itself.
    """

    name: str
    basis: Basis
    range: tuple[float, float] | None = None
    indicator: bool = False
    type: ColumnType | None = None
    terms: tuple[Term, ...] = field(init=False, repr=False, compare=False)
    reader: Reader | None = field(init=False, repr=False, compare=False)
    levels: Levels | None = field(init=False, repr=False, compare=False)
    is_linear: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        terms = (*self.basis.terms, *[MISSING] * self.indicator)
        reader = DATES if self.type == "date" else self.basis.reader
        vars(self).update(
            terms=terms,
            reader=reader,
            levels=reader if isinstance(reader, Levels) else None,
            is_linear=terms == (VALUE,) and self.range is None,
        )

    def is_binary(self, mean: Float, scale: Float) -> bool:
        """Return whether values are 0 and 1, and their own only term, from means and deviations of the terms."""
        m = float(mean[0])
        return self.basis.terms == [VALUE] and 0 < m < 1 and math.isclose(scale[0] ** 2, m * (1 - m), rel_tol=1e-6)

    def shown(self, x: float) -> Label | None:
        """Return a raw number as a value of a request in JSON."""
        return x if self.reader is None else self.reader.shown(x)


@dataclass(frozen=True)
class Columns:
    """Raw columns in order with their terms, those of one group, for example, and then the terms of products.

    Attributes
    ----------
    spans, product_spans : Spans
        The terms of each column, and of each product.
    column_terms, size : int
        Number of terms of columns, and of all.
    indicated : tuple[tuple[int, int], ...]
        The terms of the columns that have an indicator of missing values, counted without indicators.
    readers : dict[int, Reader]
        How the values that are not numbers are read, by the index of the column.
    categories : dict[int, Levels]
        The levels whose indices are the raw values of a column, by its index.
    is_identity : bool
        Whether every column is its own only term, and there are no others.
    """

    columns: tuple[Column, ...]
    products: tuple[Product, ...] = field(default=(), kw_only=True)
    spans: Spans = field(init=False, repr=False, compare=False)
    product_spans: Spans = field(init=False, repr=False, compare=False)
    column_terms: int = field(init=False, repr=False, compare=False)
    size: int = field(init=False, repr=False, compare=False)
    indicated: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)
    readers: dict[int, Reader] = field(init=False, repr=False, compare=False)
    categories: dict[int, Levels] = field(init=False, repr=False, compare=False)
    is_identity: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = [len(column.terms) for column in self.columns] + [len(each.terms) for each in self.products]
        ends = [*accumulate(sizes, initial=0)]
        spans = [*pairwise(ends)]
        indicated = [span for span, column in zip(spans, self.columns, strict=False) if column.indicator]
        vars(self).update(
            spans=spans[: len(self.columns)],
            product_spans=spans[len(self.columns) :],
            column_terms=ends[len(self.columns)],
            size=ends[-1],
            indicated=tuple((start - k, stop - k - 1) for k, (start, stop) in enumerate(indicated)),
            readers={j: column.reader for j, column in enumerate(self.columns) if column.reader is not None},
            categories={j: column.levels for j, column in enumerate(self.columns) if column.levels is not None},
            is_identity=not self.products and all(column.is_linear for column in self.columns),
        )

    @property
    def listed(self) -> tuple[Bool, Bool]:
        """Return which terms may be called constant, and which collinear, (terms,) each.

        Gaps may be rare. Some products of factors are always collinear, and with a constant one level of each factor.
        """
        ends = [
            (column, stop - 1 - column.indicator) for column, (_, stop) in zip(self.columns, self.spans, strict=True)
        ]
        gaps = [last + 1 for column, last in ends if column.indicator]
        levels = [last for column, last in ends if column.levels is not None]
        every = np.arange(self.size)
        return ~np.isin(every, gaps) & (every < self.column_terms), ~np.isin(every, levels)

    def clamped(self, X: NDArray[Any], *, compare: bool = True) -> tuple[Float, Bool | None]:
        """Move the values of X (rows, columns) into the ranges of their columns, and read indices of unknown levels.

        Returns
        -------
        x : (columns, rows), a copy.  outside : (columns,) in which a value was moved; None if in no column, and without
        `compare`.
        """
        outside = None
        if self._bounds is None:
            x = np.array(X.T, dtype=np.float64, order="C")  # a column at a time is contiguous
        else:
            low, high, first, last = self._bounds
            x = np.minimum(np.maximum(X.T, low, order="C"), high)  # .7 us for a row, 2.0 by np.clip
            if compare and x.tobytes() != X.T.tobytes():  # .2 us for a row, 5.6 by the comparisons below
                outside = np.asarray(((X < first.T) | (X > last.T)).any(axis=0))
        for j, levels in self.categories.items():
            x[j] = levels.known(x[j])
        return x, outside if outside is not None and outside.any() else None

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

    def expand(self, X: NDArray[Any], out: Float | None = None) -> Float:
        """Return the terms (rows, terms) of X (rows, columns); NaN in every term but indicators where it is missing.

        They are written into `out` (terms, rows) if it is given.
        """
        if out is None and self.is_identity:
            return np.asarray(X, dtype=np.float64)
        out = np.empty((self.size, len(X))) if out is None else out
        if self.is_identity:
            out[:] = X.T
        else:
            self.expand_clamped(self.clamped(X, compare=False)[0], X, out)
        return out.T

    def expand_clamped(self, x: Float, X: NDArray[Any], out: Float) -> None:
        """Write the terms (terms, rows) of X (rows, columns), which `clamped` returned as x."""
        for each, (start, stop) in zip(self.products, self.product_spans, strict=True):
            a, b = each.sides
            each.expand(x[a.column], x[b.column], out[start:stop])
        for operation, of in self._by_operation.items():
            if operation is not None:
                operation.write(X.T if operation.raw else x, of, out)
            elif len(of.terms) == len(out):
                x.take(of.columns, axis=0, out=out, mode="clip")  # the default mode copies once more
                out -= of.a
                np.maximum(out, of.floors, out=out)
            else:
                out[of.terms] = np.maximum(x[of.columns] - of.a, of.floors)

    @cached_property
    def _bounds(self) -> tuple[Float, Float, Float, Float] | None:
        """Return the ends of the ranges (columns, 1), and the last numbers that are the same values as these."""
        if not any(column.range for column in self.columns):
            return None
        ends = np.array([column.range or (-np.inf, np.inf) for column in self.columns])
        return ends[:, :1], ends[:, 1:], same_values(ends[:, 0])[:, :1], same_values(ends[:, 1])[:, 1:]

    @cached_property
    def _by_operation(self) -> dict[Operation | None, Operands]:
        """Return the terms of each operation; those of piecewise-linear ones together, of None.

        These are computed at once, in a tenth of the time that one row takes column by column.
        """
        found: dict[Operation | None, list[tuple[int, int, Term]]] = {}
        for j, (column, (start, _)) in enumerate(zip(self.columns, self.spans, strict=True)):
            for place, term in enumerate(column.terms, start):
                key = term.operation if term.operation.floor is None else None
                found.setdefault(key, []).append((place, j, term))
        return {operation: Operands(terms) for operation, terms in found.items()}

    @cached_property
    def _flat(self) -> tuple[Float, Float, Index, Float, Float] | None:
        """Return the ends of the ranges, and column, knot and floor of each term, if all are piecewise linear."""
        pieces = self._by_operation.get(None)
        if pieces is None or len(pieces.terms) < self.size:
            return None
        unbounded = np.full(len(self.columns), np.inf)
        low, high, *_ = self._bounds or (-unbounded, unbounded)
        return low.ravel(), high.ravel(), pieces.columns, pieces.a.ravel(), pieces.floors.ravel()


@dataclass(frozen=True)
class Side:
    """The factors of one column of a pair: ramps between knots, or indicators of levels.

    Attributes
    ----------
    column : int
        Index of the raw column.
    """

    name: str
    column: int
    factors: tuple[Term, ...]

    @staticmethod
    def of(side: PairSide, index: int, column: Column) -> Side:
        if column.levels is None:
            if side.levels:
                raise GroupsError(f"column {side.column!r} of a pair has levels; expected knots, as it holds numbers")
            *knots, end = side.knots
            named = zip(knots, suffixes(">", knots), strict=True)
            return Side(side.column, index, tuple(Term(Ramp(), suffix, knot, end) for knot, suffix in named))
        known = {term.label: term for term in column.terms if term.label is not None}
        if not side.levels or not set(side.levels) <= set(known):
            raise GroupsError(f"column {side.column!r} of a pair has other levels than its basis; expected some of it")
        return Side(side.column, index, tuple(known[level] for level in side.levels))

    @cached_property
    def _operands(self) -> Operands:
        return Operands((k, 0, factor) for k, factor in enumerate(self.factors))

    def values(self, x: Float) -> Float:
        """Return the factors (factors, rows) of clamped values (rows,); NaN where missing."""
        return self.factors[0].operation.values(x, self._operands)


@dataclass(frozen=True)
class Product:
    """The terms of one pair: every factor of the first column times every factor of the second."""

    sides: tuple[Side, Side]

    @property
    def factors(self) -> Iterator[tuple[Term, Term]]:
        """Return the two factors of each term."""
        return product(self.sides[0].factors, self.sides[1].factors)

    @cached_property
    def terms(self) -> tuple[str, ...]:
        a, b = self.sides
        return tuple(f"{a.name}{one.suffix} * {b.name}{other.suffix}" for one, other in self.factors)

    def expand(self, x: Float, y: Float, out: Float) -> None:
        """Write the terms (terms, rows) of the clamped values x and y (rows,) of the two columns."""
        a, b = self.sides
        out[:] = (a.values(x)[:, np.newaxis] * b.values(y)).reshape(out.shape)


@dataclass(frozen=True)
class Expansion(Columns):
    """The terms of all raw columns of some groups, in the order of the groups file, and then those of the products."""

    groups: FeatureGroups

    @classmethod
    def of(cls, groups: FeatureGroups) -> Expansion:
        """Return the expansion that groups with complete bases state; raise GroupsError if a basis is invalid."""
        nothing = ColumnSample(np.empty(0), 0)
        given = {name: groups.bases.get(name, ColumnBasis()) for name in groups.features}
        columns = tuple(
            Column(name, learned(name, stated, nothing), stated.range, bool(stated.missing), groups.types.get(name))
            for name, stated in given.items()
        )
        place = {column.name: (index, column) for index, column in enumerate(columns)}
        products = tuple(Product((Side.of(a, *place[a.column]), Side.of(b, *place[b.column]))) for a, b in groups.pairs)
        return cls(columns, groups, products=products)

    @cached_property
    def keys(self) -> tuple[object, ...]:
        """Return what each term is, whatever its name: where there are more levels, names have more digits."""
        return (
            *((column.name, term._replace(suffix="")) for column in self.columns for term in column.terms),
            *chain.from_iterable(each.terms for each in self.products),
        )

    @cached_property
    def plain(self) -> Expansion:
        """Return the expansion without indicators of missing values."""
        if not self.indicated:
            return self
        return replace(self, columns=tuple(replace(column, indicator=False) for column in self.columns))

    @cached_property
    def terms(self) -> FeatureGroups:
        """Return the groups with their terms as features; raise if two terms have one name.

        Then a group for the products of each one or two groups, in order; its name is that of no other group.
        """
        if self.is_identity:
            return self.groups
        of_column = {column.name: [column.name + term.suffix for term in column.terms] for column in self.columns}
        groups = [
            group.model_copy(update={"features": tuple(chain.from_iterable(of_column[f] for f in group.features))})
            for group in self.groups.groups
        ]
        group_of = {name: group.name for group in self.groups.groups for name in group.features}
        of_groups: dict[tuple[str, str], list[str]] = {}
        for each in self.products:
            a, b = (group_of[side.name] for side in each.sides)
            of_groups.setdefault((a, b), []).extend(each.terms)
        for (a, b), features in of_groups.items():
            name = f"{a} * {b}"
            while any(group.name == name for group in groups):
                name += "'"
            requires = tuple(dict.fromkeys((a, b)))
            groups.append(ProductGroup(name=name, features=tuple(features), cost=0.0, requires=requires))
        try:
            return FeatureGroups(cost_unit=self.groups.cost_unit, rows=self.groups.rows, groups=tuple(groups))
        except ValidationError as error:
            why = error.errors(include_url=False)[0]["ctx"]["error"]
            raise GroupsError(f"two terms have the same name, so rename a column: {why}") from None

    @property
    def choices(self) -> list[Choice]:
        """Return what cross-validation selects from, the simplest first: lines, clamped lines, and then curves."""
        lines = {column.basis.line for column in self.columns}
        clamp, none = (True, False) if lines & {"own", "same"} else (None, None)
        free = [Choice(0, none), *([Choice(0, clamp)] if "own" in lines else [])]
        sizes = sorted({size for column in self.columns for size in column.basis.choices if size})
        levels = 0 if any(column.basis.points for column in self.columns) else None
        forms = [*free, *(Choice(size, clamp, levels) for size in sizes)] if sizes else [Choice()]
        counts = {count for column in self.columns for count in column.basis.level_rows}
        return [form._replace(level_rows=least) for least in _least_rows(counts) for form in forms]

    def with_levels(self, curves: Choice) -> list[Choice]:
        """Return a choice of curves with levels of numbers next to them, the most frequent levels first."""
        counts = {count for column in self.columns for count in column.basis.point_rows}
        least = [each for each in _least_rows(counts) if each and each <= max(counts)]
        return [curves._replace(levels=each if len(counts) > 1 else max(counts)) for each in least]  # one: it is stated

    def reduced(self, choice: Choice) -> tuple[Expansion, Spans]:
        """Return the expansion of one choice, and the terms of this one, (start, stop), whose sum each of its terms is.

        Both are counted without indicators of missing values.
        """
        columns, bases, spans = list(self.columns), dict(self.groups.bases), []
        for j, (column, (start, _)) in enumerate(zip(self.columns, self.plain.spans, strict=True)):
            basis, own = column.basis.reduced(choice)
            spans += [(start + first, start + last) for first, last in own]
            if basis is not column.basis:
                ends = None if column.basis.line and not choice.size and not choice.clamp else column.range
                given = bases[column.name].model_dump(exclude_unset=True, exclude={*column.basis.parts, "level_rows"})
                stated = given | {"range": ends} | basis.described().model_dump(exclude_unset=True)
                bases[column.name] = ColumnBasis(**stated)
                columns[j] = replace(column, basis=basis, range=ends)
        spans += [(k, k + 1) for k in range(self.plain.column_terms, self.plain.size)]
        return replace(self, columns=tuple(columns), groups=self.groups.with_bases(bases)), spans

    def with_indicators(self, missing: Mapping[str, bool]) -> Expansion:
        """Return the expansion with or without indicators of missing values in some columns, and groups that say so."""
        columns = tuple(
            c if missing.get(c.name, c.indicator) == c.indicator else replace(c, indicator=not c.indicator)
            for c in self.columns
        )
        bases = {
            c.name: self.groups.bases.get(c.name, ColumnBasis()).model_copy(
                update=c.basis.described().model_dump(exclude_unset=True) | {"range": c.range, "missing": True}
            )
            for c in columns
            if c.indicator
        }
        return replace(self, columns=columns, groups=self.groups.with_bases({**self.groups.bases, **bases}))


def _least_rows(counts: Collection[int]) -> list[int | None]:
    """Return how many rows levels in `counts` rows may need, the largest number first, if these keep different levels.

    Without counts, this is one None.
    """
    kept = {frozenset(count for count in counts if count >= least): least for least in reversed(LEVEL_ROWS)}
    return [least for levels, least in reversed(kept.items())] if counts else [None]
