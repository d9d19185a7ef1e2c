"""Choice of the penalties: one that orders the groups, and one for the coefficients of each prefix.

The order is learned at every penalty of the grid. The penalty whose curve of cross-validated error has the smallest
area over the cost axis determines the order. On that order each prefix gets the penalty with its own smallest error.
These errors keep the order fixed, and the order has used every row, so they are optimistic. `nested` errors learn a
separate order in every fold.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from joblib import Parallel, delayed

from anytime._linalg import factorise, single_blas_thread
from anytime.errors import TrainingError
from anytime.model.prefixes import staircase
from anytime.moments.moments import Gram, HeldOutMoments, Moments
from anytime.selection import Sequence
from anytime.types import Float, Index

__all__ = [
    "GRID",
    "Choice",
    "Errors",
    "Fold",
    "HeldOut",
    "choose",
    "nested_errors",
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


GRID: tuple[float, ...] = tuple(np.logspace(-7, 1, 20).tolist())
"""The default penalties: 20 values from 1e-7 to 10."""


Known: TypeAlias = dict[tuple[bytes, bytes], dict[int, Float]]
"""For each order, errors (K, steps + 1) by index of the penalty."""


S = TypeVar("S", bound=Sequence)
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Choice(Generic[S]):
    """Result of the cross-validation.

    Attributes
    ----------
    alpha : the penalty that ordered the groups.
    sequence : the order at that penalty.
    alphas : (steps + 1,) the penalty of each prefix.
    errors : (steps + 1,) cross-validated error of each prefix at its penalty.
    """

    alpha: float
    sequence: S
    alphas: Float
    errors: Float


def choose(
    folds: Many[HeldOut[object]],
    grid: Many[float],
    order: Callable[[float], S],
    one_se: bool,
    *,
    every: int = 1,
    rises: int | None = None,
    horizon: float | None = None,
) -> Choice[S]:
    """Choose the penalties from a grid (ascending); with one value, compute its errors.

    Parameters
    ----------
    order : learns the sequence at a penalty, on all folds together.
    one_se : choose the largest penalty within one standard error of the best, for the order and for each prefix.
    every, rises : where orders are expensive, learn one at every `every`-th penalty only, from the largest down, and
        stop after the area has risen `rises` times in a row.
    horizon : cost up to which errors count, where orders may end at different costs; beyond its end, an order counts
        with the error of its last prefix. By default each order counts up to its end.

    Raises
    ------
    TrainingError
        A prefix has an infinite error at every penalty.
    """
    weights = np.array([fold.weight for fold in folds])
    known: Known = {}
    sequences: dict[int, S] = {}
    areas: dict[int, Float] = {}
    for i in reversed(range(0, len(grid), every)):
        sequences[i] = order(grid[i])
        _learn(known, folds, sequences[i], grid, [i])
        areas[i] = _area(sequences[i], known[_key(sequences[i])][i], horizon)
        if rises is not None and _risen(areas, weights) >= rises:
            break
    candidates = sorted(sequences)
    area = Errors(np.stack([areas[i] for i in candidates], axis=1), weights)
    best = candidates[int(_pick(area, one_se))]
    chosen = sequences[best]
    _learn(known, folds, chosen, grid, range(len(grid)))
    of_order = known[_key(chosen)]
    errors = Errors(np.stack([of_order[i] for i in range(len(grid))], axis=1), weights)
    own = _pick(errors, one_se)
    return Choice(grid[best], chosen, np.asarray(grid)[own], _finite(errors.mean[own, np.arange(len(own))]))


def _risen(areas: dict[int, Float], weights: Float) -> int:
    """Return the current number of consecutive rises of the mean area."""
    means = [float(np.average(area, weights=weights)) for area in areas.values()]
    falls = [k for k in range(1, len(means)) if means[k] <= means[k - 1]]
    return len(means) - 1 - max(falls, default=0)


def _learn(
    known: Known,
    folds: Many[HeldOut[object]],
    sequence: Sequence,
    grid: Many[float],
    indices: Many[int],
) -> None:
    """Add the errors of an order at some penalties, unless an equal order has them already."""
    of_order = known.setdefault(_key(sequence), {})
    new = [i for i in indices if i not in of_order]
    if new:
        errors = prefix_errors(folds, sequence.columns, sequence.ends, [grid[i] for i in new]).folds
        of_order.update({i: errors[:, j] for j, i in enumerate(new)})


def _key(sequence: Sequence) -> tuple[bytes, bytes]:
    """Return what the errors of a sequence depend on: the order of its columns, and the ends of its prefixes."""
    return sequence.columns.tobytes(), sequence.ends.tobytes()


def _area(sequence: Sequence, errors: Float, horizon: float | None) -> Float:
    """Return the mean over the cost axis of the error that an interrupted client observes, (K,)."""
    widths = np.append(np.diff(sequence.costs), 0.0 if horizon is None else max(horizon - sequence.costs[-1], 0.0))
    seen = widths > 0  # errors of zero width do not count, even infinite ones
    if not seen.any():
        return errors[:, -1]
    area: Float = errors[:, seen] @ widths[seen] / widths.sum()
    return area


def _pick(errors: Errors, one_se: bool) -> np.typing.NDArray[np.intp]:
    """Return the index of the best penalty on the first axis of the mean, or of the largest within a standard error."""
    mean = errors.mean
    best = mean.argmin(axis=0)
    if not one_se:
        return np.asarray(best)
    limit = np.take_along_axis(mean + errors.standard_error, np.expand_dims(best, 0), axis=0)
    within = mean <= limit
    return np.asarray(len(mean) - 1 - within[::-1].argmax(axis=0))


def nested_errors(folds: Many[HeldOut[T]], order: Callable[[T], Sequence], sequence: Sequence, alphas: Float) -> Float:
    """Return errors (steps + 1,) where each fold learns its own order on its training part.

    The prefixes of a fold's order end at other costs. The error at a prefix of `sequence` is therefore that of the
    longest prefix of the fold's order within the same cost, at the penalty of the prefix of `sequence`.
    """
    values, place = np.unique(alphas, return_inverse=True)
    total = np.zeros(len(alphas))
    for fold in folds:
        own = order(fold.train)
        errors = prefix_errors([fold], own.columns, own.ends, values.tolist()).folds[0]
        reached = np.searchsorted(own.costs, sequence.costs * (1 + 1e-9), side="right") - 1
        reached[0] = 0  # free steps are within every cost, but the base rate excludes them
        total += fold.weight * errors[place, reached]
    return _finite(total / sum(fold.weight for fold in folds))


def _finite(errors: Float) -> Float:
    """Return errors (steps + 1,); raise if one is not finite."""
    infinite = np.flatnonzero(~np.isfinite(errors))
    if len(infinite):
        raise TrainingError(
            f"the cross-validated error of prefix {infinite[0]} is infinite: the prediction of an extreme row "
            "overflows; fix such rows, or set alpha to a number and train without folds"
        )
    return errors
