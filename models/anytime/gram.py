"""The standardised normal equations: S = X'X/n and q = X'Y/n of centred, scaled features and responses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from anytime.arrays import Bool, Float, Index
from anytime.moments import Moments

__all__ = ["Gram", "Held"]

CONSTANT = 1e-14
"""A deviation under this share of the column's mean is rounding of a constant."""


@dataclass(frozen=True, eq=False)
class Held:
    """Second moments of a held-out table about the training means, in the training scales.

    Attributes
    ----------
    S : (D, D), q : (D, P), yy : (P,) as in `Gram`, but about means that are not their own.
    weight : the sum of the row weights.
    """

    S: Float
    q: Float
    yy: Float
    weight: float

    @staticmethod
    def of(moments: Moments, x_mean: Float, x_scale: Float, y_mean: Float, y_scale: Float) -> Held:
        """Values missing in the held-out table are imputed by the training means."""
        # A missing value stored as the training mean stays there: the indicators are simply left out.
        D, width = len(x_mean), len(x_mean) + len(y_mean)
        other = moments.refilled(x_mean)
        scale = np.concatenate([x_scale, y_scale])
        offset = (other.mean[:width] - np.concatenate([x_mean, y_mean])) / scale
        second = other.scatter[:width, :width] / (other.weight * np.outer(scale, scale)) + np.outer(offset, offset)
        return Held(second[:D, :D], second[:D, D:], np.diagonal(second)[D:].copy(), other.weight)

    def explained(self, columns: Index, w: Float) -> Float:
        """Explained variance (P,) of coefficients w (d, P) of some columns, without penalty: q'w - 1/2 w'S w."""
        fitted: Float = np.sum(w * (self.q[columns] - 0.5 * self.S[np.ix_(columns, columns)] @ w), axis=0)
        return fitted


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
    constant : (D,) which features are constant.
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
        """Standardise; missing values are imputed by the means. Cost D^2."""
        full = moments.imputed()
        D = full.features
        variance = np.diagonal(full.scatter) / full.weight
        deviation = np.sqrt(np.maximum(variance, 0.0))
        flat = deviation <= CONSTANT * np.abs(full.mean)
        scale = np.where(flat, 1.0, deviation)
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
        """C = S + alpha I and q of some columns (all by default), in Fortran order, free to be overwritten.

        The diagonal of a constant column is 1 + alpha, so that it is positive definite at alpha 0 too; its q is 0, and
        so is its coefficient.
        """
        if columns is None:
            # S is symmetric to the last digit: its transpose is copied as it lies.
            C, q, constant = self.S.T.copy(order="F"), self.q.copy(), self.constant
        else:
            C, q = np.asfortranarray(self.S[np.ix_(columns, columns)]), self.q[columns]
            constant = self.constant[columns]
        diagonal = np.einsum("ii->i", C)
        diagonal += alpha + constant
        return C, q

    def restricted(self, columns: Index) -> Gram:
        """The problem of some columns, in that order."""
        return replace(
            self,
            S=self.S[np.ix_(columns, columns)],
            q=self.q[columns],
            x_mean=self.x_mean[columns],
            x_scale=self.x_scale[columns],
            constant=self.constant[columns],
        )

    def beside(self, moments: Moments) -> Held:
        """Another table as seen from this one."""
        return Held.of(moments, self.x_mean, self.x_scale, self.y_mean, self.y_scale)
