"""Moments: all that a linear model needs to know of a table, computed in one pass and exactly additive.

For features X and responses Y with row weights w, the joint table Z = [X, Y, U] has

    weight  = sum_i w_i
    mean    = sum_i w_i z_i / weight
    scatter = sum_i w_i (z_i - mean)(z_i - mean)'

Features are the terms of raw columns (`anytime.features`); the terms of one column are missing in the same rows. U has
a 0/1 indicator for each column that is missing in some row. A missing value is stored as `fill`. Imputing it later by
the training mean m is the linear map  x_j -> x_j + (m_j - fill_j) u,  applied to mean and scatter. This is exact in one
pass, on the complete table, on any fold and after any merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from anytime._linalg import add_outer
from anytime.errors import TableError
from anytime.types import Bool, Float, Index

CANCELLATION_TOLERANCE = 1e-13
"""Weights, means and variances below this share of the cancelled amount are zero."""

NEGATIVE_TOLERANCE = 1e-9
"""Negative variances above minus this share of the cancelled amount are rounding."""

ALL_ROWS = 1.0 - 1e-12
"""Shares of the rows from here on mean all rows, up to rounding."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of D features, P responses and the indicators of the features with missing values.

    Attributes
    ----------
    features, responses : int
        D and P.
    rows : int
        Number of rows, whatever their weight.
    weight : float
        Sum of the row weights, the n of the papers.
    mean : Float
        (D + P + M,) weighted means of [X, Y, U]; those of U are the shares of the rows in which columns are missing.
    scatter : Float
        (D + P + M, same) centred cross-products, not divided by `weight`.
    fill : Float
        (D,) the value stored where a feature is missing.
    missing : tuple[tuple[int, int], ...]
        For each of the M indicators, in ascending order, the features (start, stop) that are missing together.
    """

    features: int
    responses: int
    rows: int
    weight: float
    mean: Float
    scatter: Float
    fill: Float
    missing: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def empty(features: int, responses: int, fill: Float | None = None) -> Moments:
        width, fill = features + responses, np.zeros(features) if fill is None else fill
        return Moments(features, responses, 0, 0.0, np.zeros(width), np.zeros((width, width)), fill)

    def packed(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Return the arrays that files store, by name."""
        return {
            f"{prefix}rows": np.array([self.rows], dtype=np.int64),
            f"{prefix}weight": np.array([self.weight]),
            f"{prefix}mean": self.mean,
            f"{prefix}scatter": self.scatter,
            f"{prefix}fill": self.fill,
            f"{prefix}missing": np.array(self.missing, dtype=np.int64).reshape(-1, 2),
        }

    @staticmethod
    def packed_shapes(
        arrays: Mapping[str, NDArray[Any]], prefix: str, features: int, responses: int
    ) -> dict[str, tuple[int, ...]]:
        """Return the shape of each array of `packed`, given the numbers of features and responses."""
        missing = len(np.atleast_1d(arrays.get(f"{prefix}missing", ())))
        width = features + responses + missing
        return {
            f"{prefix}rows": (1,),
            f"{prefix}weight": (1,),
            f"{prefix}mean": (width,),
            f"{prefix}scatter": (width, width),
            f"{prefix}fill": (features,),
            f"{prefix}missing": (missing, 2),
        }

    @staticmethod
    def unpacked(arrays: Mapping[str, NDArray[Any]], prefix: str, features: int, responses: int) -> Moments | None:
        """Return the moments whose arrays have a prefix and the shapes of `packed_shapes`; None for invalid counts.

        Rows and weight must not be negative, and the ranges in `missing` must be ascending and among the features.
        """
        missing = tuple((start, stop) for start, stop in arrays[f"{prefix}missing"].tolist())
        rows, weight = int(arrays[f"{prefix}rows"][0]), float(arrays[f"{prefix}weight"][0])
        ends = [(0, 0), *missing, (features, features + 1)]
        if rows < 0 or weight < 0 or not all(a[1] <= b[0] < b[1] for a, b in pairwise(ends)):
            return None
        mean, scatter, fill = (arrays[prefix + name] for name in ("mean", "scatter", "fill"))
        return Moments(features, responses, rows, weight, mean, scatter, fill, missing)

    @property
    def width(self) -> int:
        """Return D + P."""
        return self.features + self.responses

    def _at(self, at: Index, **changes: Any) -> Moments:
        """Return the moments of some columns of [X, Y, U], with other changes."""
        return replace(self, mean=self.mean[at], scatter=self.scatter[np.ix_(at, at)], **changes)

    @staticmethod
    def merged(parts: Iterable[Moments]) -> Moments:
        """Return the moments of all rows of the parts (at least one)."""
        return reduce(Moments.merge, parts)

    def merge(self, other: Moments) -> Moments:
        """Return the moments of the rows of both, by the update of Chan, Golub and LeVeque (1983).

        With delta = mean_2 - mean_1,

            mean = mean_1 + (n_2/n) delta,  scatter = scatter_1 + scatter_2 + (n_1 n_2/n) delta delta'.
        """
        both = tuple(sorted({*self.missing, *other.missing}))
        unseen = np.full(self.features, self.weight == 0)
        for share, (start, stop) in zip(self.mean[self.width :], self.missing, strict=True):
            unseen[start:stop] |= share >= ALL_ROWS
        fill = np.where(unseen, other.fill, self.fill)  # close to the values, because a distant fill loses digits
        a = self.refilled(fill).with_indicators(both)
        b = other.refilled(fill).with_indicators(both)
        weight = a.weight + b.weight
        rows = a.rows + b.rows
        if a.weight == 0 or b.weight == 0:
            return replace(b if a.weight == 0 else a, rows=rows)
        delta = b.mean - a.mean
        scatter = np.add(a.scatter, b.scatter)
        add_outer(scatter, delta * (a.weight * b.weight / weight), delta)
        return replace(a, rows=rows, weight=weight, mean=a.mean + delta * (b.weight / weight), scatter=scatter)

    def without(self, other: Moments) -> Moments:
        """Return the moments of the rows that are not among those of `other`, the inverse of `merge`.

        All rows of `other` must be among these. With delta = mean_2 - mean,  n_1 = n - n_2,

            mean_1 = mean - (n_2/n_1) delta,  scatter_1 = scatter - scatter_2 - (n n_2/n_1) delta delta'.

        Digits are lost where few of many rows remain: values within rounding of zero become zero. Raise TableError if
        `other` has more rows, or more spread, than these moments.
        """
        both = tuple(sorted({*self.missing, *other.missing}))
        a = self.with_indicators(both)
        b = other.refilled(self.fill).with_indicators(both)
        rows, weight = a.rows - b.rows, a.weight - b.weight
        if b.weight == 0:
            return replace(a, rows=rows)
        if rows < 0 or weight < -CANCELLATION_TOLERANCE * a.weight:
            raise TableError(
                f"cannot remove {b.rows} rows of weight {b.weight:g} from {a.rows} rows of weight {a.weight:g}"
            )
        if rows == 0 or weight <= CANCELLATION_TOLERANCE * a.weight:
            return replace(Moments.empty(self.features, self.responses, self.fill), rows=rows)
        delta, removed = b.mean - a.mean, b.weight / weight
        change = np.outer(delta * (a.weight * removed), delta)
        scatter = a.scatter - b.scatter - change
        cancelled = np.diagonal(a.scatter) + np.diagonal(b.scatter) + np.diagonal(change)
        spread = np.diagonal(scatter)
        # The spread of a constant column comes from the rounding of its means and of the fills that shifted them.
        size = np.abs(a.mean) + np.abs(b.mean)
        size[: self.features] += np.abs(self.fill - other.fill)

        def rounding(share: float) -> Float:
            return share * cancelled + a.weight * removed * share * size * (2 * np.abs(delta) + share * size)

        if (spread < -rounding(NEGATIVE_TOLERANCE)).any():
            raise TableError("cannot remove rows that are not among those counted")
        zero = spread <= rounding(CANCELLATION_TOLERANCE)
        scatter[zero] = scatter[:, zero] = 0.0
        mean = a.mean - delta * removed
        mean[np.abs(mean) <= CANCELLATION_TOLERANCE * size * (1 + removed)] = 0.0
        gaps = np.flatnonzero(np.abs(mean[self.width :]) > CANCELLATION_TOLERANCE)
        at = np.append(np.arange(self.width), self.width + gaps)
        remaining = replace(a, rows=rows, weight=weight, mean=mean, scatter=scatter)
        return remaining._at(at, missing=tuple(both[k] for k in gaps))

    def decayed(self, factor: float) -> Moments:
        return replace(self, weight=factor * self.weight, scatter=factor * self.scatter)

    def with_indicators(self, missing: tuple[tuple[int, int], ...]) -> Moments:
        """Return the same moments with (zero) indicators for more columns; `missing` includes the present ones."""
        if missing == self.missing:
            return self
        place = [*range(self.width), *(self.width + missing.index(j) for j in self.missing)]
        mean = np.zeros(self.width + len(missing))
        mean[place] = self.mean
        scatter = np.zeros((len(mean), len(mean)))
        scatter[np.ix_(place, place)] = self.scatter
        return replace(self, mean=mean, scatter=scatter, missing=missing)

    def refilled(self, fill: Float) -> Moments:
        """Return the moments of the same table with another value where features are missing."""
        if not self.missing:
            return replace(self, fill=fill)
        mean, scatter = self.mean.copy(), self.scatter.copy()
        for indicator, (start, stop) in enumerate(self.missing, start=self.width):
            shift = fill[start:stop] - self.fill[start:stop]
            mean[start:stop] += shift * mean[indicator]
            scatter[start:stop] += np.outer(shift, scatter[indicator])
            scatter[:, start:stop] += np.outer(scatter[:, indicator], shift)
            cancelled = np.diagonal(self.scatter)[start:stop] + shift**2 * self.weight
            zero = start + np.flatnonzero(np.diagonal(scatter)[start:stop] <= CANCELLATION_TOLERANCE * cancelled)
            scatter[zero] = scatter[:, zero] = 0.0
        return replace(self, mean=mean, scatter=scatter, fill=fill)

    @property
    def observed_mean(self) -> Float:
        """Return the weighted means (D,) of the features over the rows that have them; `fill` if none has."""
        mean = self.mean[: self.features].copy()
        for share, (start, stop) in zip(self.mean[self.width :], self.missing, strict=True):
            fill = self.fill[start:stop]
            mean[start:stop] = fill if share >= ALL_ROWS else fill + (mean[start:stop] - fill) / (1.0 - share)
        return mean

    def with_indicator_features(self, columns: Sequence[tuple[int, int]]) -> Moments:
        """Return the moments with the indicator of some columns as one more feature after the features of each.

        Parameters
        ----------
        columns : Sequence[tuple[int, int]]
            Features (start, stop) of the columns, in ascending order; each may be missing in no row.
        """
        if not columns:
            return self
        both = self.with_indicators(tuple(sorted({*self.missing, *columns})))
        stops = [stop for _, stop in columns]
        indicators = [self.width + both.missing.index(column) for column in columns]
        at = np.concatenate(
            [np.insert(np.arange(self.features), stops, indicators), np.arange(self.features, len(both.mean))]
        )
        added = np.searchsorted(stops, [start for start, _ in both.missing], side="right")
        missing = tuple((start + k, stop + k) for (start, stop), k in zip(both.missing, added.tolist(), strict=True))
        return both._at(
            at, features=self.features + len(columns), fill=np.insert(self.fill, stops, 0.0), missing=missing
        )

    def with_responses(self, weights: Float, shift: Float) -> Moments:
        """Return the moments with the responses `weights @ y + shift`: weights (Q, P), shift (Q,), y (P,) one row's."""
        d, Q = self.features, len(shift)
        T = block_diag(np.eye(d), weights, np.eye(len(self.missing)))
        mean, scatter = T @ self.mean, T @ self.scatter @ T.T
        if self.weight > 0:
            mean[d : d + Q] += shift
        return replace(self, responses=Q, mean=mean, scatter=0.5 * (scatter + scatter.T))

    def restricted(self, columns: Index) -> Moments:
        """Return the moments of the table with only these columns (ascending) as features, identical to the bit."""
        return self.reduced([(column, column + 1) for column in columns.tolist()])

    def reduced(self, spans: Sequence[tuple[int, int]]) -> Moments:
        """Return the moments of sums of some consecutive features each, from (start, stop) of each, ascending.

        The features of a sum are missing together.
        """
        if len(spans) == self.features:
            return self
        columns = np.concatenate([np.arange(start, stop) for start, stop in spans])
        ends = np.cumsum([0, *(stop - start for start, stop in spans)])
        places = np.searchsorted(ends, np.searchsorted(columns, np.reshape(self.missing, (-1, 2))))
        missing = [(k, (start, stop)) for k, (start, stop) in enumerate(places.tolist()) if start < stop]
        indicators = self.width + np.array([k for k, _ in missing], dtype=np.intp)
        at = np.concatenate([columns, np.arange(self.features, self.width), indicators])
        found = self._at(at, features=len(spans), fill=self.fill[columns], missing=tuple(span for _, span in missing))
        if len(columns) == len(spans):
            return found
        to = np.concatenate([ends[:-1], np.arange(len(columns), len(at))])
        return replace(
            found,
            mean=np.add.reduceat(found.mean, to),
            scatter=np.add.reduceat(np.add.reduceat(found.scatter, to, axis=0), to, axis=1),
            fill=np.add.reduceat(found.fill, ends[:-1]),
        )

    def imputed(self) -> Moments:
        """Return the moments after replacing each missing value by its feature's mean, without indicators."""
        if not self.missing:
            return self
        filled = self.refilled(self.observed_mean)
        n = self.width
        return replace(filled, mean=filled.mean[:n], scatter=filled.scatter[:n, :n], missing=())


CONSTANT_TOLERANCE = 1e-14
"""A deviation below this share of the column's mean is the rounding of a constant."""


@dataclass(frozen=True, eq=False)
class HeldOutMoments:
    """Second moments S (D, D), q (D, P), yy (P,) of a table about the training means, in the training scales.

    `variance` (P,) are those of the scaled responses about the table's own means; 0 where a response is constant.
    """

    S: Float
    q: Float
    yy: Float
    variance: Float
    weight: float

    @staticmethod
    def of(moments: Moments, x_mean: Float, x_scale: Float, y_mean: Float, y_scale: Float) -> HeldOutMoments:
        """Return the second moments of a table; the training means replace its missing values."""
        # A missing value stored as the training mean keeps it, so the indicators are not needed.
        D, width = len(x_mean), len(x_mean) + len(y_mean)
        other = moments.refilled(x_mean)
        scale = np.concatenate([x_scale, y_scale])
        offset = (other.mean[:width] - np.concatenate([x_mean, y_mean])) / scale
        second = other.scatter[:width, :width] / (other.weight * scale[:, np.newaxis])
        second /= scale
        add_outer(second, offset, offset)
        flat, variance = _spread(other)
        own = np.where(flat, 0.0, variance)[D:width] / np.square(y_scale)
        return HeldOutMoments(second[:D, :D], second[:D, D:], np.diagonal(second)[D:].copy(), own, other.weight)

    def explained(self, columns: Index, w: Float) -> Float:
        """Return q'w - 1/2 w'S w (P,): the F, without penalty, of coefficients w (d, P) of some columns."""
        return np.asarray(np.sum(w * (self.q[columns] - 0.5 * self.S[np.ix_(columns, columns)] @ w), axis=0))

    def r2(self, explained: Float) -> Float | None:
        """Return R² (...), the mean over the responses of 1 - SSE/SST, as scikit-learn's `r2_score` of the rows.

        `explained` (..., P) is without penalty. None if a response does not vary in the table, so that its SST is 0.
        """
        if not (self.variance > 0).all():
            return None
        r2: Float = np.mean(1.0 - (self.yy - 2 * explained) / self.variance, axis=-1)
        return r2


@dataclass(frozen=True, eq=False)
class Gram:
    """Moments in standard units (the papers' section 2: zero mean, unit variance, divided by n).

    Attributes
    ----------
    S : Float
        (D, D) correlations of the features; rows of constant columns are zero.
    q : Float
        (D, P) correlations of features and responses.
    yy : Float
        (P,) variances of the scaled responses: 1, or 0 for a constant response.
    x_mean, x_scale : Float
        (D,) means and deviations of the features; the scale of a constant is 1.
    y_mean, y_scale : Float
        (P,) the same of the responses.
    constant : Bool
        (D,) marks constant features.
    weight : float
        The sum of the row weights, n.
    """

    S: Float
    q: Float
    yy: Float
    x_mean: Float
    x_scale: Float
    y_mean: Float
    y_scale: Float
    constant: Bool
    weight: float

    @staticmethod
    def of(moments: Moments) -> Gram:
        """Standardise moments; the means replace missing values. Cost D^2."""
        full = moments.imputed()
        D = full.features
        flat, variance = _spread(full)
        scale = np.where(flat, 1.0, np.sqrt(variance))
        S = full.scatter[:D, :D] / (full.weight * scale[:D, np.newaxis])
        S /= scale[:D]
        q = full.scatter[:D, D:] / (full.weight * scale[:D, np.newaxis] * scale[D:])
        constant, constant_y = flat[:D], flat[D:]
        S[constant] = S[:, constant] = 0.0
        q[constant] = q[:, constant_y] = 0.0
        return Gram(
            S=S,
            q=q,
            yy=np.where(constant_y, 0.0, 1.0),
            x_mean=full.mean[:D],
            x_scale=scale[:D],
            y_mean=full.mean[D:],
            y_scale=scale[D:],
            constant=constant,
            weight=full.weight,
        )

    def penalised(self, alpha: float, columns: Index | None = None) -> tuple[Float, Float]:
        """Return C = S + alpha I and q of some columns (all by default), in Fortran order, as copies.

        The diagonal of a constant column is 1 + alpha, so that it is positive definite also at alpha 0; its q and its
        coefficient are 0.
        """
        # S is exactly symmetric, so its transpose is copied in memory order.
        if columns is None:
            C, q, constant = self.S.T.copy(order="F"), self.q.copy(), self.constant
        else:
            C, q = self.S.take(columns, axis=0).take(columns, axis=1).T, self.q[columns]
            constant = self.constant[columns]
        diagonal = np.einsum("ii->i", C)
        diagonal += alpha + constant
        return C, q

    def restricted(self, columns: Index) -> Gram:
        return replace(
            self,
            S=self.S[np.ix_(columns, columns)],
            q=self.q[columns],
            x_mean=self.x_mean[columns],
            x_scale=self.x_scale[columns],
            constant=self.constant[columns],
        )

    def held_out_moments(self, moments: Moments) -> HeldOutMoments:
        return HeldOutMoments.of(moments, self.x_mean, self.x_scale, self.y_mean, self.y_scale)

    @property
    def own(self) -> HeldOutMoments:
        return HeldOutMoments(self.S, self.q, self.yy, self.yy, self.weight)


def _spread(moments: Moments) -> tuple[Bool, Float]:
    variance = np.maximum(np.diagonal(moments.scatter) / moments.weight, 0.0)
    return np.sqrt(variance) <= CONSTANT_TOLERANCE * np.abs(moments.mean), variance
