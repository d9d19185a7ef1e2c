"""The standardised normal equations: S = X'X/n and q = X'Y/n of centred, scaled features and responses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from anytime.moments.moments import Moments
from anytime.types import Bool, Float, Index

__all__ = [
    "Gram",
    "HeldOutMoments",
]

CONSTANT = 1e-14
"""A deviation below this share of the column's mean is the rounding of a constant."""


@dataclass(frozen=True, eq=False)
class HeldOutMoments:
    """Second moments of a table about the training means, in the training scales.

    Attributes
    ----------
    S : (D, D), q : (D, P), yy : (P,) as in `Gram`, but about the training means instead of the table's own.
    variance : (P,) variances of the scaled responses about the table's own means; 0 where a response is constant.
    weight : the sum of the row weights.
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
        second = other.scatter[:width, :width] / (other.weight * np.outer(scale, scale)) + np.outer(offset, offset)
        flat, variance = _spread(other)
        own = np.where(flat, 0.0, variance)[D:width] / np.square(y_scale)
        return HeldOutMoments(second[:D, :D], second[:D, D:], np.diagonal(second)[D:].copy(), own, other.weight)

    def explained(self, columns: Index, w: Float) -> Float:
        """Return the explained variance (P,), without penalty, of coefficients w (d, P) of some columns.

        It is q'w - 1/2 w'S w.
        """
        fitted: Float = np.sum(w * (self.q[columns] - 0.5 * self.S[np.ix_(columns, columns)] @ w), axis=0)
        return fitted

    def r2(self, explained: Float) -> Float | None:
        """Return R², the mean over the responses of 1 - SSE/SST, as scikit-learn's `r2_score` of the table's rows.

        Parameters
        ----------
        explained : (..., P) explained variance of each response, without penalty.

        Returns
        -------
        Float or None
            (...); None where a response does not vary in the table, so that its SST is 0.
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
    S : (D, D) correlations of the features; rows of constant columns are zero.
    q : (D, P) correlations of features and responses.
    yy : (P,) variances of the scaled responses: 1, or 0 for a constant response.
    x_mean, x_scale : (D,) means and deviations of the features; the scale of a constant is 1.
    y_mean, y_scale : (P,) the same of the responses.
    constant : (D,) marks constant features.
    weight : the sum of the row weights, n.
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
        constant = flat[:D]
        S[constant] = 0.0
        S[:, constant] = 0.0
        q[constant] = 0.0
        q[:, flat[D:]] = 0.0
        return Gram(
            S=S,
            q=q,
            yy=np.where(flat[D:], 0.0, 1.0),
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
        if columns is None:
            # S is exactly symmetric, so its transpose is copied in memory order.
            C, q, constant = self.S.T.copy(order="F"), self.q.copy(), self.constant
        else:
            C, q = np.asfortranarray(self.S[np.ix_(columns, columns)]), self.q[columns]
            constant = self.constant[columns]
        diagonal = np.einsum("ii->i", C)
        diagonal += alpha + constant
        return C, q

    def restricted(self, columns: Index) -> Gram:
        """Return the problem of some columns, in the given order."""
        return replace(
            self,
            S=self.S[np.ix_(columns, columns)],
            q=self.q[columns],
            x_mean=self.x_mean[columns],
            x_scale=self.x_scale[columns],
            constant=self.constant[columns],
        )

    def held_out_moments(self, moments: Moments) -> HeldOutMoments:
        """Return the second moments of another table in the training units."""
        return HeldOutMoments.of(moments, self.x_mean, self.x_scale, self.y_mean, self.y_scale)

    @property
    def own(self) -> HeldOutMoments:
        """Return the second moments of the training table itself."""
        return HeldOutMoments(self.S, self.q, self.yy, self.yy, self.weight)


def _spread(moments: Moments) -> tuple[Bool, Float]:
    """Return which columns are constant, and the variance of each column."""
    variance = np.maximum(np.diagonal(moments.scatter) / moments.weight, 0.0)
    return np.sqrt(variance) <= CONSTANT * np.abs(moments.mean), variance
