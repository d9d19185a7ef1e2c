"""Cross-validated errors of every prefix and every penalty; for least squares from the moments of the folds only.

The training part of a fold is the merge of the other folds. (The total minus the fold would be the same in exact
arithmetic, but has rounding errors where a column is constant outside the fold.)
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from joblib import Parallel, delayed

from anytime._linalg import factorise, single_blas_thread
from anytime.errors import TrainingError
from anytime.model.prefixes import staircase
from anytime.moments.gram import Gram, HeldOutMoments
from anytime.moments.moments import Moments
from anytime.types import Float, Index

__all__ = [
    "Errors",
    "Fold",
    "HeldOut",
    "prefix_errors",
    "split",
    "with_rows",
]

T_co = TypeVar("T_co", covariant=True)


class HeldOut(Protocol[T_co]):
    """One held-out fold of any family."""

    @property
    def train(self) -> T_co:
        """Return the problem of the other folds."""

    @property
    def weight(self) -> float:
        """Return the sum of the row weights of the fold."""

    @property
    def n_jobs(self) -> int | None:
        """Return the number of folds to process at once, as joblib counts."""

    def errors(self, columns: Index, ends: Index, alphas: Many[float]) -> Float:
        """Return the mean error of every prefix of an order on the fold, at each penalty: (alphas, steps + 1)."""


@dataclass(frozen=True)
class Fold:
    """A held-out fold for least squares: the problem of the others, and its second moments in their standard units."""

    train: Gram
    held: HeldOutMoments

    @property
    def weight(self) -> float:
        """Return the sum of the row weights of the fold."""
        return self.held.weight

    @property
    def n_jobs(self) -> int:
        """Return 1: small linear algebra gains nothing from threads."""
        return 1

    def errors(self, columns: Index, ends: Index, alphas: Many[float]) -> Float:
        """Return mean squared errors, (alphas, steps + 1); one Cholesky factorisation per penalty."""
        with single_blas_thread():
            return np.array([_errors(self, columns, ends, alpha) for alpha in alphas])


@dataclass(frozen=True)
class Errors:
    """Errors on held-out rows: mean squares in target units, averaged over the responses; or mean deviances.

    Attributes
    ----------
    folds : (K, ...) error on each fold.
    weights : (K,) sum of the row weights of each fold.
    """

    folds: Float
    weights: Float

    @property
    def mean(self) -> Float:
        """Return the error over all held-out rows, (...)."""
        mean: Float = np.average(self.folds, axis=0, weights=self.weights)
        return mean

    @property
    def standard_error(self) -> Float:
        """Return the standard error of the mean from the spread between folds, (...)."""
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite error has no standard error
            spread: Float = np.average(np.square(self.folds - self.mean), axis=0, weights=self.weights)
        return np.sqrt(spread / (len(self.weights) - 1))


def with_rows(parts: Many[Moments]) -> list[int]:
    """Return the folds that have rows of positive weight; raise TrainingError if there are fewer than two."""
    full = [f for f, part in enumerate(parts) if part.weight > 0]
    if len(full) < 2:
        raise TrainingError(
            f"{len(full)} of {len(parts)} folds have rows; cross-validation needs two: use more rows or a fixed alpha"
        )
    return full


def split(parts: Many[Moments]) -> list[Fold]:
    """Hold out each of the parts in turn; skip parts without rows.

    Raises
    ------
    TrainingError
        Fewer than two parts have rows of positive weight.
    """
    full = [parts[f] for f in with_rows(parts)]
    folds = []
    for f, part in enumerate(full):
        train = Gram.of(Moments.merged(full[:f] + full[f + 1 :]))
        folds.append(Fold(train, train.held_out_moments(part)))
    return folds


def prefix_errors(folds: Many[HeldOut[object]], columns: Index, ends: Index, alphas: Many[float]) -> Errors:
    """Return the errors of all prefixes of one order, `folds` (K, alphas, steps + 1).

    Parameters
    ----------
    columns, ends : the order, as in `anytime.selection.Sequence`.
    """
    run = Parallel(n_jobs=folds[0].n_jobs, prefer="threads")
    errors = run(delayed(fold.errors)(columns, ends, alphas) for fold in folds)
    return Errors(np.array(errors), np.array([fold.weight for fold in folds]))


def _errors(fold: Fold, columns: Index, ends: Index, alpha: float) -> Float:
    """Return the mean squared error of each prefix, (steps + 1,): sum_p (yy - 2 q'w + w'S w) in target units."""
    C, q = fold.train.penalised(alpha, columns)
    factor = factorise(C, np.diagonal(C))
    W = staircase(factor, factor.forward(q), ends)
    S, held_q = fold.held.S[np.ix_(columns, columns)], fold.held.q[columns]
    steps, D, P = W.shape
    flat = W.transpose(1, 0, 2).reshape(D, steps * P)
    slope = (S @ flat).reshape(D, steps, P) - 2 * held_q[:, np.newaxis, :]
    errors = fold.held.yy + np.einsum("dkp,dkp->kp", flat.reshape(D, steps, P), slope)
    # A mean of squares is negative only by rounding.
    per_response: Float = np.maximum(errors, 0.0) * np.square(fold.train.y_scale)
    mean: Float = per_response.mean(axis=1)
    return mean
