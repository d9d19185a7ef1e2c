"""What each column and each group adds to a score.

Every family's score is linear in the terms, `intercept + (term - mean) @ coef`. So the contribution of a column is the
sum over its terms of coef * (term - mean). Its mean over the training rows is 0. The terms of a missing value are at
their means: only the indicator of missing values, if the column has one, contributes then. The terms of a pair of
columns count half for each of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from anytime.inference.subsets import SetCache
from anytime.model.model import Model
from anytime.tabulated import Series, Tabulated
from anytime.types import Float, Index

PRODUCTS = 2**20
"""Products of terms and coefficients that are in memory at once, 8 MiB, unless one row has more."""


@dataclass(frozen=True)
class Contributions:
    """Parts of the score of each row: `intercept` plus those of all groups, or of all columns, is the score.

    The score is the prediction in least squares, the log-odds of the second of two classes, a score for each of several
    classes (their softmax is the probabilities), and the logarithm of an expected count.

    Attributes
    ----------
    intercept
        The score of a row at the training means: a number, or a list of one for each response or class.
    groups, features : dict[str, Any]
        For each group used and each of its columns, in the order of the sequence, a number or a list as `intercept`; a
        list per row if there are several rows. `predict` of the estimators has arrays.
    """

    intercept: Any
    groups: dict[str, Any]
    features: dict[str, Any]

    def to_frame(self, of: Literal["groups", "features"] = "groups") -> Any:
        """Return a frame with a column for each group or feature; of several scores `name_0`, `name_1`, ..."""
        parts: dict[str, Any] = self.groups if of == "groups" else self.features
        scores = np.size(self.intercept)
        columns = (
            Series(f"{name}_{p}" if scores > 1 else name, column)
            for name, values in parts.items()
            for p, column in enumerate(np.reshape(np.asarray(values, dtype=np.float64), (-1, scores)).T)
        )
        return Tabulated.of(*columns).frame()


def contributions(
    model: Model,
    names: tuple[str, ...],
    terms: Float,
    coef: Float,
    intercept: Any,
    shaped: Callable[[Float], Iterable[Any]],
) -> Contributions:
    """Return the contributions to the scores `terms @ coef`.

    `terms` (rows, T) are those of the groups `names`, and of the pairs of their columns, in sequence order, less their
    means; `coef` is (T, P). `shaped` returns the values of each name, given those of all: (names, rows, P).
    """
    layout = _LAYOUTS.get(model, names, lambda: _layout(model, names))
    rows, P = len(terms), coef.shape[1]
    of_columns = of_groups = np.zeros((0, rows, P))
    if names:
        at_once = max(1, PRODUCTS // coef.size)
        with np.errstate(over="ignore", invalid="ignore"):  # as for scores, callers check
            blocks = [_parts(terms[i : i + at_once], coef, layout.starts) for i in range(0, rows, at_once)]
            parts = blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)
            of_columns = parts[layout.own] if layout.pairs else parts
            for part, sides in layout.pairs:
                for column in sides:
                    of_columns[column] += 0.5 * parts[part]
            of_groups = np.add.reduceat(of_columns, layout.firsts, axis=0)
    return Contributions(
        intercept,
        dict(zip(names, shaped(of_groups), strict=True)),
        dict(zip(layout.columns, shaped(of_columns), strict=True)),
    )


def _parts(terms: Float, coef: Float, starts: Index) -> Float:
    """Return the sums (parts, rows, P) of the products of terms (rows, T) and coefficients (T, P)."""
    products = terms.T[:, :, np.newaxis] * coef[:, np.newaxis]
    return products if len(starts) == len(coef) else np.add.reduceat(products, starts, axis=0)


class _Layout(NamedTuple):
    """The parts of the terms of some groups: one for each column, and one for each pair of columns.

    Attributes
    ----------
    starts : Index
        The first term of each part, ascending.
    own : Index
        The part of each column.
    firsts : Index
        The first column of each group.
    pairs : list[tuple[int, tuple[int, int]]]
        The part of each pair, and its two columns.
    """

    columns: tuple[str, ...]
    starts: Index
    own: Index
    firsts: Index
    pairs: list[tuple[int, tuple[int, int]]]


_LAYOUTS = SetCache[_Layout]()
"""A layout takes longer than the sums of one row."""


def _layout(model: Model, names: tuple[str, ...]) -> _Layout:
    places = [model.places[name] for name in names]
    spans = [(p.start + start, p.start + stop) for p in places for start, stop in p.expansion.spans]
    columns = tuple(chain.from_iterable(place.features for place in places))
    number = {name: index for index, name in enumerate(columns)}
    sides = []
    for each in model.product_places:
        if set(each.groups) <= set(names):
            spans += pairwise(accumulate((len(product.terms) for product, *_ in each.products), initial=each.start))
            sides += [(number[a.name], number[b.name]) for product, *_ in each.products for a, b in (product.sides,)]
    order = sorted(range(len(spans)), key=spans.__getitem__)
    part = np.argsort(order)
    return _Layout(
        columns,
        np.cumsum([0, *(spans[index][1] - spans[index][0] for index in order)])[:-1],
        part[: len(columns)],
        np.cumsum([0, *(len(place.features) for place in places)])[:-1],
        list(zip(part[len(columns) :].tolist(), sides, strict=True)),
    )
