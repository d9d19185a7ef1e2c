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
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from anytime.errors import TrainingError
from anytime.selection import Sequence
from anytime.training.cross_validation import Errors, HeldOut, prefix_errors
from anytime.types import Float

__all__ = [
    "GRID",
    "Choice",
    "choose",
    "nested_errors",
]

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
