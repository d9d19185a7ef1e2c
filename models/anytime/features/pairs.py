"""Pairs of columns: products of the coarse factors of two columns, as terms.

The factors of a column of numbers are min(max(x, knot), last knot) - knot for each knot but the last, and those of a
column of categories are indicators of levels. They are bounded, because products of extreme values would be extreme.
The terms of a pair belong to a group of their own (`anytime.groups.ProductGroup`), which requires the groups of both
columns and costs nothing. A value that is missing in either column makes every term of the pair NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Protocol

import numpy as np

from anytime.errors import GroupsError
from anytime.features.bases import Basis, Categories, distinct_names
from anytime.groups import FeatureGroups, PairSide, ProductGroup
from anytime.types import Float


class _Column(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def basis(self) -> Basis: ...


@dataclass(frozen=True)
class Side:
    """The factors of one column of a pair.

    Attributes
    ----------
    column : index of the raw column.
    numbers : knots, or the indices of levels if the column has `categories`.
    """

    name: str
    column: int
    numbers: tuple[float, ...]
    categories: Categories | None

    @staticmethod
    def of(side: PairSide, column: int, basis: Basis) -> Side:
        if not isinstance(basis, Categories):
            if side.levels:
                raise GroupsError(f"column {side.column!r} of a pair has levels; expected knots, as it holds numbers")
            return Side(side.column, column, side.knots, None)
        if not side.levels or not set(side.levels) <= set(basis.levels):
            raise GroupsError(f"column {side.column!r} of a pair has other levels than its basis; expected some of it")
        return Side(side.column, column, tuple(map(basis.levels.index, side.levels)), basis)

    @property
    def names(self) -> list[str]:
        if self.categories is None:
            return distinct_names(self.name, ">", self.numbers[:-1])
        return [f"{self.name}={self.categories.levels[int(code)]}" for code in self.numbers]

    @cached_property
    def _numbers(self) -> Float:
        return np.array(self.numbers, dtype=np.float64)[:, np.newaxis]

    def factors(self, x: Float) -> Float:
        """Return the factors (factors, rows) of clamped values (rows,); NaN where missing."""
        if self.categories is None:
            return np.asarray(np.clip(x, self._numbers[:-1], self._numbers[-1]) - self._numbers[:-1])
        if not self.categories.other:
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


def products_of(groups: FeatureGroups, columns: Sequence[_Column]) -> tuple[Product, ...]:
    """Return the products that groups state; `columns` are theirs.

    Raises
    ------
    GroupsError
        Factors do not fit the basis of their column.
    """
    place = {column.name: index for index, column in enumerate(columns)}

    def side(given: PairSide) -> Side:
        index = place[given.column]
        return Side.of(given, index, columns[index].basis)

    return tuple(Product((side(a), side(b))) for a, b in groups.pairs)


def product_groups(groups: FeatureGroups, products: Sequence[Product]) -> list[ProductGroup]:
    """Return a group for the products of each one or two groups, in order; its features are their terms.

    Its name is that of no other group.
    """
    group_of = {name: group.name for group in groups.groups for name in group.features}
    used = set(groups.names)

    def name_of(a: str, b: str) -> str:
        name = f"{a} * {b}"
        while name in used:
            name += "'"
        used.add(name)
        return name

    terms: dict[tuple[str, str], list[str]] = {}
    for each in products:
        a, b = (group_of[side.name] for side in each.sides)
        terms.setdefault((a, b), []).extend(each.terms)
    return [
        ProductGroup(name=name_of(a, b), features=tuple(names), cost=0.0, requires=tuple(dict.fromkeys((a, b))))
        for (a, b), names in terms.items()
    ]
