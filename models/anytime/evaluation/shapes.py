"""The shape of each column: its contribution to the score as a function of its raw value.

Pairs of columns are left out, because their contribution depends on two values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
from scipy.special import ndtri

from anytime.errors import ValuesError, suggestion
from anytime.features.expansion import Column, Columns
from anytime.features.operations import Hinge
from anytime.inference.sharing import column_sharing, covariances
from anytime.model.model import Model
from anytime.tabulated import Series, Tabulated
from anytime.types import Float, Label

GRID = 200
"""Number of equally likely values that stand for the distribution of a column."""

TYPICAL = np.linspace(0.02, 0.98, 25)
"""Probabilities of the values that stand for a column without stored quantiles."""


@dataclass(frozen=True)
class Point:
    """A raw value, and its contribution: a number, or a list of one for each response or class."""

    x: float
    contribution: Any


@dataclass(frozen=True)
class Level:
    """A value with its own contribution, and its share of the rows; None for other levels, and for missing values."""

    level: Label | None
    share: float
    contribution: Any


@dataclass(frozen=True)
class ColumnShape:
    """What a column of a prefix adds to the scores, whatever its value, without its pairs.

    Attributes
    ----------
    name, group, basis : str
        Of the column.
    strength
        Standard deviation of the contribution over the training rows, for each score. It is exact if the model has its
        moments; otherwise it is that over the quantiles and the shares of levels.
    unique : float | None
        The part of that deviation which no other column replaces, the root mean square over the scores; None for a
        single column, and if the model lacks its moments.
    shared : float | None
        Share of the contribution's variance that other columns replace, or None.
    points : tuple[Point, ...]
        Corners of the line, or points of the curve, ascending; none if every value is a level.
    levels : tuple[Level, ...]
        Categories, 0 and 1, or the common values of hinges, which do not lie on the line.
    other, missing : Level | None
        Contributions of all other levels, and of missing values if the column has an indicator for them.
    quantiles : tuple[float, ...] | None
        Of sampled training rows at equal steps, the least value first; None if they are not stored.
    """

    name: str
    group: str
    basis: str
    strength: Any
    points: tuple[Point, ...]
    levels: tuple[Level, ...]
    other: Level | None
    missing: Level | None
    quantiles: tuple[float, ...] | None
    unique: float | None
    shared: float | None

    def to_frame(self) -> Any:
        """Return the corners of the line, or the levels with their shares of the rows, and their contributions."""
        named = [
            *((str(each.level), each) for each in self.levels),
            *((name, each) for name, each in (("other", self.other), ("missing", self.missing)) if each),
        ]
        drawn = self.points or [each for _, each in named]
        return Tabulated.of(
            Series("x", [each.x for each in self.points] or None),
            Series("level", None if self.points else [name for name, _ in named]),
            Series("share", None if self.points else [each.share for _, each in named]),
            Series("contribution", [each.contribution for each in drawn]),
        ).frame()

    def pieces(self) -> tuple[ColumnShape, ...]:
        """Return the shape as pieces that need an axis each: of a date its trend, months, weekdays and hours."""
        if self.basis != "date":
            return (self,)
        parts = groupby(self.levels, key=lambda each: str(each.level).partition("=")[0])
        of_parts = {
            part: tuple(replace(each, level=str(each.level).partition("=")[2]) for each in levels)
            for part, levels in parts
        }
        whole = replace(self, points=(), missing=None)
        named = {part: f"{self.name} by {part}" for part in of_parts}
        group = named if self.group == self.name else dict.fromkeys(of_parts, self.group)
        pieces = (replace(whole, name=named[p], group=group[p], levels=levels) for p, levels in of_parts.items())
        return replace(self, levels=()), *pieces

    def values(self) -> Float:
        """Return equally likely values of the column, ascending, for a histogram."""
        return _at(np.array(self.quantiles or [point.x for point in self.points]))


def column_shapes(model: Model, prefix: int | None = None, only: str | None = None) -> tuple[ColumnShape, ...]:
    """Return the shapes of the columns of a prefix, all steps by default, the strongest first.

    Columns are compared by what they contribute alone, which no other column replaces; without moments, by the strength
    in deviations of the responses. `only` names a single column. Raise ValuesError if there is no such prefix, or it
    has no such column.
    """
    prefix = model.steps if prefix is None else prefix
    if not 0 <= prefix <= model.steps:
        raise ValuesError(f"prefix is {prefix}; expected 0 to {model.steps}, the steps of model {model.name!r}")
    prefixes, expansion = model.prefixes, model.expansion
    coef = np.zeros((len(prefixes.mean), len(prefixes.intercept)))
    coef[prefixes.columns[: prefixes.ends[prefix]]] = prefixes.coef(prefix)
    columns = {column.name: (column, *span) for column, span in zip(expansion.columns, expansion.spans, strict=True)}
    sized, covariance = [], covariances(model, every=only is None)
    group_of = {name: group for group in model.computed[prefix] for name in model.places[group].features}
    if only is not None and only not in group_of:
        raise ValuesError(f"there is no column {only!r} in prefix {prefix}; {suggestion(only, list(group_of))}")
    for name in group_of if only is None else (only,):
        column, start, stop = columns[name]
        terms = slice(start, stop)
        quantiles = model.groups.bases[name].quantiles if name in model.groups.bases else None
        drawn = _Terms(column, prefixes.mean[terms], prefixes.scale[terms], coef[terms], quantiles)
        strength = drawn.spread if covariance is None else _spread(covariance(np.arange(start, stop)), coef[terms])
        size = float(np.sqrt(np.mean(np.square(strength / prefixes.response_scale))))
        sized.append((size, drawn.shape(group_of[name], strength)))
    own = {shape.name: shape for _, shape in sorted(sized, key=lambda each: -each[0])}
    sharing = () if only is not None else column_sharing(model, prefix)
    alone = tuple(replace(own[each.name], unique=each.unique, shared=each.shared) for each in sharing)
    return alone or tuple(own.values())


def _spread(covariance: Float, coef: Float) -> Float:
    """Return the standard deviation (P,) of terms @ coef; rounding may leave a negative variance."""
    return np.asarray(np.sqrt(np.maximum(np.sum(coef * (covariance @ coef), axis=0), 0.0)))


@dataclass(frozen=True)
class _Terms:
    """The terms of a column: training means and deviations (terms,), and coefficients (terms, P)."""

    column: Column
    mean: Float
    scale: Float
    coef: Float
    quantiles: tuple[float, ...] | None

    def shape(self, group: str, strength: Float) -> ColumnShape:
        levels, other, missing = self._levels()
        basis = self.column.basis
        return ColumnShape(
            name=self.column.name,
            group=group,
            basis=basis.described().basis or basis.name,
            strength=_by_score(strength),
            points=self._points(),
            levels=levels,
            other=other,
            missing=missing,
            quantiles=self.quantiles,
            unique=None,
            shared=None,
        )

    def contributions(self, x: Float, *, part: str | None = None, line: bool = False) -> Float:
        """Return the contributions (n, P) of values x (n,): of the levels of a `part` only, or without all levels."""
        terms = np.array(Columns((self.column,)).expand(x[:, np.newaxis]))  # `expand` may return its argument
        parts = np.array([term.operation.part or "" for term in self.column.terms])
        if line:
            terms[:, parts != ""] = 0.0
        terms -= self.mean
        terms[np.isnan(terms)] = 0.0
        own = slice(None) if part in (None, "value") else parts == part
        return np.asarray(terms[:, own] @ self.coef[own])

    def _levels(self) -> tuple[tuple[Level, ...], Level | None, Level | None]:
        """Return the levels, other levels and missing values that have contributions of their own."""
        if self.column.is_binary(self.mean, self.scale):
            share = float(self.mean[0])
            levels = [Level(x, each, self._one(x)) for x, each in ((0.0, 1.0 - share), (1.0, share))]
        else:
            levels = [
                Level(term.label, float(mean), self._one(term.operation.of_level(term.a), term.operation.part))
                for term, mean in zip(self.column.terms, self.mean, strict=True)
                if term.operation.part is not None
            ]
        other = next((level for level in levels if level.level is None), None)
        missing = Level(None, float(self.mean[-1]), self._one(np.nan)) if self.column.indicator else None
        return tuple(level for level in levels if level is not other), other, missing

    def _one(self, x: float, part: str | None = None) -> Any:
        return _by_score(self.contributions(np.array([x]), part=part)[0])

    @cached_property
    def _corners(self) -> Float | None:
        """Return the values between which straight lines are drawn, ascending; None if every value is a level."""
        shares = self.mean[[term.operation.part == "value" for term in self.column.terms]]
        only_levels = shares.sum() > 1 - 1e-9 or all(term.operation.part for term in self.column.basis.terms)
        if only_levels or self.column.is_binary(self.mean, self.scale):
            return None
        low, high = self._drawn[[0, -1]].tolist() if self.column.range is None else self.column.range
        return np.unique(np.concatenate([each.operation.corners(each, low, high) for each in self.column.basis.terms]))

    def _points(self) -> tuple[Point, ...]:
        if self._corners is None:
            return ()
        values = [_by_score(each) for each in self.contributions(self._corners, line=True)]
        return tuple(map(Point, self._corners.tolist(), values))

    @cached_property
    def _drawn(self) -> Float:
        """Return equally likely values, ascending: the stored quantiles, or by means and deviations of the terms."""
        if self.quantiles is not None:
            return np.array(self.quantiles)
        p = np.linspace(0, 1, len(TYPICAL))
        return drawn(self.column, p if self.column.range else TYPICAL, self.mean, self.scale)

    @property
    def spread(self) -> Float:
        """Return the standard deviation (P,) of the contribution over the quantiles and the shares of levels."""
        if self._corners is None:
            levels, other, _ = self._levels()
            listed = [*levels, *([] if other is None else [other])]
            values = np.array([np.atleast_1d(level.contribution) for level in listed])
            shares = np.array([level.share for level in listed])
        else:
            values = self.contributions(_at(self._drawn))
            shares = np.full(len(values), 1 / len(values))
        if self.column.indicator:
            gaps = float(self.mean[-1])
            values = np.vstack([values, self.contributions(np.array([np.nan]))])
            shares = np.append((1 - gaps) * shares, gaps)
        centred = values - shares @ values / shares.sum()
        return np.asarray(np.sqrt(shares @ centred**2 / shares.sum()))


def drawn(column: Column, p: Float, mean: Float, scale: Float) -> Float:
    """Return the raw values of a column at probabilities p (n,) of the training rows.

    `mean` and `scale` are means and deviations of its terms. The first term is normal, unless the column has levels, or
    knots at its quantiles.
    """
    first, knots = column.terms[0], [term.a for term in column.terms if isinstance(term.operation, Hinge)]
    if column.levels is not None:
        shares = np.cumsum(mean[: len(column.levels.labels)])
        # A large p is the first, most frequent level.
        return np.searchsorted(shares, (1 - p) * shares[-1]).astype(float) if len(shares) else np.full(len(p), np.nan)
    if knots and column.range is not None:
        values = [column.range[0], *knots, column.range[1]]
        return np.interp(p, np.linspace(0, 1, len(values)), values)
    return first.operation.drawn(first, p, mean[0] + scale[0] * ndtri(p))


def _at(quantiles: Float) -> Float:
    """Return equally likely values, given quantiles at equal steps of probability."""
    return np.interp((np.arange(GRID) + 0.5) / GRID, np.linspace(0, 1, len(quantiles)), quantiles)


def _by_score(values: Float) -> Any:
    listed = values.tolist()
    return listed[0] if len(listed) == 1 else listed
