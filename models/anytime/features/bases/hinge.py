"""Bases `hinge:K` and `auto`: the column, its hinges, and indicators of common values and of levels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, ClassVar, Literal, Self

import numpy as np

from anytime.errors import GroupsError
from anytime.features import operations
from anytime.features.bases.basis import (
    MIN_LEVEL_ROWS,
    NUMERIC,
    Basis,
    Choice,
    Clamp,
    ColumnSample,
    Kind,
    Linear,
    suffixes,
)
from anytime.features.bases.categories import MAX_LEVELS
from anytime.features.operations import LINE, VALUE, Level, Term, distinct_values
from anytime.groups import ColumnBasis
from anytime.types import Bool, Float, Index

COMMON_SHARE = 0.1
"""A value that more than this share of the rows have gets an indicator."""
MAX_INDICATORS = 5

OCTILES, FINEST = 7, 63
"""Number of knots of basis `auto`, and of its finer curves."""

MIN_SHARED = 0.5
"""Share of the rows without a common value that the levels next to a curve must have."""

ROUNDING = 1e-12
"""Share of the variance of a response below which the variance at equal values is rounding."""

CLEAR, GAIN = 4.0, 0.002
"""What levels next to a curve, or finer curves, explain in the sample: standard deviations above what they explain by
chance, and share of the variance of the responses beyond that."""


@dataclass(frozen=True)
class Hinge(Basis):
    """The column, max(x - knot, 0) for each knot, and an indicator for each common value.

    Attributes
    ----------
    knots : tuple[float, ...]
        The different quantiles k/(size + 1), k = 1..size, or those that are stated, ascending.
    levels : tuple[float, ...]
        The common values, ascending: those that more than a tenth of the rows have, and enough rows, at most five.
    """

    name: ClassVar[str] = "hinge"
    fits: ClassVar[frozenset[Kind]] = NUMERIC
    sizes: ClassVar[range] = range(65)
    default: ClassVar[float | None] = 4
    parts: ClassVar[frozenset[str]] = frozenset({"knots", "levels"})
    clamp: ClassVar[Clamp] = 0.0

    size: int
    knots: tuple[float, ...]
    levels: tuple[float, ...]

    @classmethod
    def learn(cls, size: float, given: ColumnBasis, sample: ColumnSample) -> Self:
        K, knots, levels = int(size), given.knots, given.levels
        if knots is None or levels is None:
            different = _Different.of(sample)
            if knots is None and levels is None and len(different.values) <= 2:
                return cls(K, (), ())  # all terms but the column itself are collinear with it
        if knots is None:
            knots = cls._adapted(sample.quantiles(np.arange(1, K + 1) / (K + 1)), sample, different)
        ordered = tuple(sorted({*knots} if cls.sizes else knots))
        if given.knots is not None and (knots != ordered or not (cls.sizes or len(knots) in (0, K))):
            expected = "different numbers" if cls.sizes else f"{OCTILES} octiles, or {FINEST} quantiles,"
            raise GroupsError(f"its knots are {list(knots)}; expected {expected} in ascending order")
        if levels is None:
            curve = cls(K, ordered, tuple(different.values[different.common].tolist()))
            return curve._completed(sample, different)
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in levels):
            raise GroupsError(f"its levels are {list(levels)}; expected numbers for basis {cls.name!r}")
        stated = sorted({*map(float, levels)})
        return cls(K, ordered, tuple(compress(stated, distinct_values(np.array(stated)))))

    @classmethod
    def _adapted(cls, knots: tuple[float, ...], sample: ColumnSample, different: _Different) -> tuple[float, ...]:  # noqa: ARG003
        """Return the knots instead of some quantiles of a sample."""
        return knots

    def _completed(self, sample: ColumnSample, different: _Different) -> Self:  # noqa: ARG002
        """Return the curve with what it needs besides, as the sample shows."""
        return self

    def described(self) -> ColumnBasis:
        own: dict[str, Any] = {name: part for name in ("line", "points", "point_rows") if (part := getattr(self, name))}
        name = f"{self.name}:{self.size}" if self.sizes else self.name
        return ColumnBasis(basis=name, knots=self.knots, levels=self.levels, **own)

    @property
    def terms(self) -> list[Term]:
        knots = sorted({*self.knots})
        return [
            VALUE,
            *(Term(operations.Hinge(), name, knot) for name, knot in zip(suffixes(">", knots), knots, strict=True)),
            *(Term(Level(), name, v, label=v) for name, v in zip(suffixes("=", self.levels), self.levels, strict=True)),
            *[LINE] * (self.line == "own"),
        ]


@dataclass(frozen=True)
class Octiles(Hinge):
    """Hinges at the octiles; cross-validation selects K = 0, 1, 3 or 7 of them.

    It also selects whether there are levels next to the curve, and how many rows each needs, or else 63 hinges, where
    the sample shows that these explain more.

    Attributes
    ----------
    size
        7, or 63 with finer curves.
    knots : tuple[float, ...]
        All of them, with duplicates, so that the quantiles of a smaller K are among them; none without values.
    points, point_rows
        Those of `levels` that are not common, the most frequent first, and the rows of each.
    """

    name: ClassVar[str] = "auto"
    fits: ClassVar[frozenset[Kind]] = NUMERIC - {"date"}
    sizes: ClassVar[range] = range(0)
    default: ClassVar[float | None] = 7
    parts: ClassVar[frozenset[str]] = frozenset({"knots", "levels", "line", "points", "point_rows"})
    clamp: ClassVar[Clamp] = "auto"

    line: Literal["own", "same"] | None = None
    points: tuple[float, ...] = ()
    point_rows: tuple[int, ...] = ()

    @classmethod
    def learn(cls, size: float, given: ColumnBasis, sample: ColumnSample) -> Self:
        own = given.model_extra or {}
        size = FINEST if len(given.knots or ()) == FINEST else size
        line, points, rows = own.get("line"), own.get("points") or (), own.get("point_rows") or ()
        if line not in (None, "own", "same"):
            raise GroupsError(f"its line is {line!r}; expected 'own' or 'same'")
        if given.levels is None and not points:
            basis = replace(super().learn(size, given, sample), line=line)
            return basis if given.knots is None else replace(basis, size=int(size), knots=given.knots)
        basis = super().learn(size, given, replace(sample, responses=None))
        if not isinstance(points, tuple) or not set(points) <= set(basis.levels):
            raise GroupsError(f"its points are {points}; expected some of its levels")
        if not isinstance(rows, tuple) or [*rows] != sorted(rows, reverse=True) or len(rows) != len(points):
            raise GroupsError(f"its point_rows are {rows}; expected a number for each point, the largest first")
        return replace(basis, line=line, points=points, point_rows=rows)

    @classmethod
    def _adapted(cls, knots: tuple[float, ...], sample: ColumnSample, different: _Different) -> tuple[float, ...]:
        """Return the octiles; if all of them are common values, the median of the others."""
        if not {*knots} <= {*different.values[different.common].tolist()}:
            return knots
        return different.without_common(sample).quantiles([0.5] * len(knots)) or knots

    def _completed(self, sample: ColumnSample, different: _Different) -> Self:
        """Return the curve with levels next to it, or finer, if the sample shows that these explain more."""
        points, rows = different.next_to(self, sample)
        if not points and (finer := different.finer(self, sample)):
            return replace(self, size=FINEST, knots=finer)
        return replace(self, levels=tuple(sorted((*self.levels, *points))), points=points, point_rows=rows)

    @property
    def choices(self) -> tuple[int, ...]:
        return tuple(size for size in (0, 1, 3, OCTILES, FINEST) if size <= self.size)

    def reduced(self, choice: Choice) -> tuple[Basis, list[tuple[int, int]]]:
        """Return the basis `hinge:K` of the same values, or `linear` for 0."""
        if choice.size == 0:
            line = len(self.terms) - 1 if self.line == "own" and not choice.clamp else 0
            return Linear(), [(line, line + 1)]
        least = 1 if choice.levels is None else choice.levels or np.inf
        rare = {point for point, rows in zip(self.points, self.point_rows, strict=True) if rows < least}
        levels = tuple(level for level in self.levels if level not in rare)
        size = min(self.size, choice.size or (FINEST if choice.levels is None else OCTILES))
        every = (self.size + 1) // (size + 1)
        knots = self.knots[every - 1 :: every]
        basis: Hinge = self
        if choice.size is not None:
            basis = Hinge(size, tuple(sorted({*knots})), levels)
        elif rare or every > 1:
            points = () if rare else self.points  # all of them, or none
            basis = replace(
                self, size=size, knots=knots, levels=levels, points=points, point_rows=self.point_rows[: len(points)]
            )
        kept = [True, *np.isin(sorted({*self.knots}), basis.knots), *np.isin(self.levels, levels)]
        kept += [choice.size is None] * (self.line == "own")
        return basis, [(k, k + 1) for k in np.flatnonzero(kept).tolist()]


@dataclass(frozen=True)
class _Different:
    """The different values of a sample, ascending, with the weight of each and whether it is common.

    Forms of one value in float32 and float64 are counted together; the most frequent one names it. `least` are the
    smallest of these forms.
    """

    values: Float
    least: Float
    counts: Float
    common: Bool

    @classmethod
    def of(cls, sample: ColumnSample) -> Self:
        found, counts = sample.counts
        found = found.astype(np.float64)  # as terms compare them: large whole numbers may be equal
        firsts = np.flatnonzero(distinct_values(found))
        order = np.lexsort((-counts, np.repeat(firsts, np.diff(firsts, append=len(found)))))
        counts = np.add.reduceat(counts, firsts)
        enough = counts >= sample.min_level_rows[0]
        most = np.argsort(-np.where(enough, counts, 0.0), kind="stable")[:MAX_INDICATORS]
        common = np.isin(np.arange(len(firsts)), most) & enough & (counts > COMMON_SHARE * sample.rows)
        return cls(found[order[firsts]], found[firsts], counts, common)

    def without_common(self, sample: ColumnSample) -> ColumnSample:
        """Return the rows without those of common values."""
        if not self.common.any():
            return sample
        rows = ~self.common[self._places(sample)]
        weights = None if sample.weights is None else sample.weights[rows]
        return replace(sample, values=sample.values[rows], weights=weights, responses=None)

    def next_to(self, curve: Hinge, sample: ColumnSample) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Return the levels whose indicators explain clearly more than a curve alone, all or none, and their rows.

        It returns no levels if most values are in fewer rows.
        """
        few = ~self.common & (self.counts >= min(sample.min_level_rows))
        levels = np.flatnonzero(few)[np.argsort(-self.counts[few], kind="stable")[:MAX_LEVELS]]
        are_few = self.counts[levels].sum() < MIN_SHARED * self.counts[~self.common].sum()
        if are_few or not self._differ(curve, sample, self._places(sample), levels):
            return (), ()
        stated = sample.min_level_rows[0] if len(sample.min_level_rows) == 1 else np.inf
        rows = np.minimum(self.counts[levels], stated).tolist()
        return tuple(self.values[levels].tolist()), tuple(map(int, rows))

    def finer(self, curve: Hinge, sample: ColumnSample) -> tuple[float, ...]:
        """Return the knots of a finer curve if the means of the responses between them differ clearly from a curve.

        It returns no knots if octiles are equal, or if there are few rows.
        """
        few = len({*curve.knots}) < OCTILES or self.counts.sum() < MIN_LEVEL_ROWS * (FINEST + 1)
        if few or sample.responses is None:
            return ()
        knots = sample.quantiles(np.arange(1, FINEST + 1) / (FINEST + 1))
        cells = np.searchsorted(knots, sample.values, side="right")
        counts = np.bincount(cells, sample.weights, FINEST + 1).astype(np.float64)
        used = np.flatnonzero(counts)
        weighted = sample.values if sample.weights is None else sample.weights * sample.values
        means = np.bincount(cells, weighted, FINEST + 1)[used] / counts[used]  # between knots, a curve is straight
        common = np.isin(used, np.searchsorted(knots, self.values[self.common], side="right"))
        different = _Different(means, np.append(-np.inf, knots)[used], counts[used], common)
        places = (np.cumsum(counts > 0) - 1)[cells]
        return knots if different._differ(curve, sample, places, np.arange(len(used))) else ()

    def _differ(self, curve: Hinge, sample: ColumnSample, places: Index, chosen: Index) -> bool:
        """Return whether the means of the responses at some chosen values differ clearly from a curve.

        This is the test for lack of fit, in variances of the responses at equal values. `places` (observed,) are those
        of the rows among the values.
        """
        if sample.responses is None or len(self.values) == 1 or not len(chosen):
            return False
        weights = np.ones(len(sample.values)) if sample.weights is None else sample.weights
        Y, n = np.ascontiguousarray(sample.responses.T), float(weights.sum())
        Y = Y - np.average(Y, axis=1, weights=weights)[:, np.newaxis]
        sums = [np.bincount(places, weights * y, len(self.values)) for y in Y]
        counts = self.counts[:, np.newaxis]
        means, squares = np.stack(sums, axis=1) / counts, np.square(Y) @ weights
        noise = (squares - (counts * np.square(means)).sum(axis=0)) / max(n - len(self.values), 1.0)
        values, scale = self.values, self.values[-1] - self.values[0]
        bends = np.maximum(np.subtract.outer(values, sorted({*curve.knots})) / scale, 0.0)
        line = np.column_stack([np.ones(len(values)), (values - values[0]) / scale, bends])
        common = np.equal.outer(np.arange(len(values)), np.flatnonzero(self.common))
        A, root = np.hstack([line, common]), np.sqrt(counts)
        if not (np.isfinite(A).all() and np.isfinite(means).all()):
            return False
        rest = means - A @ np.linalg.lstsq(root * A, root * means)[0]
        gains, freedom = (counts * np.square(rest))[chosen].sum(axis=0), len(chosen) * len(noise)
        noise = np.maximum(noise, ROUNDING * squares / n)
        is_clear = (gains / noise).sum() > freedom + CLEAR * np.sqrt(2.0 * freedom)
        return bool(is_clear and (gains - len(chosen) * noise).sum() > GAIN * squares.sum())

    def _places(self, sample: ColumnSample) -> Index:
        return np.searchsorted(self.least, sample.values, side="right") - 1
