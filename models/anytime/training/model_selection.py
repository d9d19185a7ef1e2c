"""Model selection: the penalties by cross-validation, and the number of steps by a validation table.

The order is learned at every penalty of the grid. The penalty whose curve of cross-validated error has the smallest
area over the cost axis determines the order. On that order each prefix gets the penalty with its own smallest error.
These errors keep the order fixed, and the order has used every row, so they are optimistic. `nested` errors learn a
separate order in every fold.

A validation table selects the number of steps with the smallest error there (Lozano, Swirszcz and Abe, Group-OMP,
NIPS 2009, section 4).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from anytime.errors import TrainingError
from anytime.glm.search import QuadraticModels
from anytime.groups import COST_TOLERANCE, FeatureGroups
from anytime.model.prefixes import PrefixModels
from anytime.moments.accumulate import in_threads
from anytime.moments.moments import Moments
from anytime.selection import GroupOrder
from anytime.training.options import Options
from anytime.training.terms import Terms
from anytime.types import Bool, Float, Index

SMALL = 1000
"""Number of rows up to which searches are exhaustive: errors of few rows are not smooth, and their fits are quick."""

EVERY = 4
"""Orders are learned, and prefixes measured, at every fourth penalty of the grid first; a power of 2."""

S = TypeVar("S", bound=GroupOrder)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class HeldOut(Protocol[T_co]):
    """One held-out fold of any family."""

    @property
    def train(self) -> T_co:
        """Return the problem of the other folds."""

    @property
    def weight(self) -> float: ...

    def errors(
        self, columns: Index, ends: Index, alphas: Sequence[float], longest: Sequence[int] | None = None
    ) -> Float:
        """Return the mean error of every prefix of an order on the fold, at each penalty: (alphas, steps + 1).

        `longest` (alphas,) are the numbers of steps to measure at each penalty, all by default; others are undefined.
        """


class NoStepsError(TrainingError):
    """No group's projection of the responses is longer than epsilon."""


@dataclass(frozen=True)
class Errors:
    """Errors on held-out rows: mean squares in target units, averaged over the responses; or mean deviances.

    `folds` (K, ...) are the errors on each fold, and `weights` (K,) the sums of their row weights.
    """

    folds: Float
    weights: Float

    @property
    def mean(self) -> Float:
        mean: Float = np.average(self.folds, axis=0, weights=self.weights)
        return mean

    def is_clearly_less(self, than: Errors, share: float, *, noisy: bool = True) -> bool:
        """Return whether the mean is less by a share of another, and, if `noisy`, by their standard error."""
        less = Errors(than.folds - self.folds, self.weights)
        return bool(less.mean > max(share * float(than.mean), float(less.standard_error) if noisy else 0.0))

    def between(self, prefix: int) -> Errors:
        """Return the differences to the errors of one prefix, the last axis, within each fold."""
        return Errors(self.folds - self.folds[..., prefix, np.newaxis], self.weights)

    @property
    def best(self) -> tuple[int, ...]:
        """Return, for each prefix, that of least mean error within it, or itself if it is within one standard error.

        The standard error is that of the difference within folds, whose errors share what makes a fold difficult.
        """
        mean = self.mean
        lower = np.append(True, mean[1:] < np.minimum.accumulate(mean)[:-1])
        least = np.maximum.accumulate(np.where(lower, np.arange(len(mean)), 0))
        best = np.arange(len(mean))
        for prefix in np.unique(least).tolist():
            rise = self.between(prefix)
            worse = rise.mean > rise.standard_error + EQUAL * mean[0]
            best = np.where((least == prefix) & worse, prefix, best)
        return tuple(best.tolist())

    @property
    def standard_error(self) -> Float:
        """Return the standard error of the mean from the spread between folds, (...)."""
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite error has no standard error
            spread: Float = np.average(np.square(self.folds - self.mean), axis=0, weights=self.weights)
        return np.sqrt(spread / (len(self.weights) - 1))


def with_rows(parts: Sequence[Moments]) -> list[int]:
    """Return the folds that have rows of positive weight; raise TrainingError if there are fewer than two."""
    full = [f for f, part in enumerate(parts) if part.weight > 0]
    if len(full) < 2:
        raise TrainingError(
            f"{len(full)} of {len(parts)} folds have rows; cross-validation needs two: use more rows or a fixed alpha"
        )
    return full


def others(parts: Sequence[Moments]) -> Iterator[Moments]:
    """Yield the moments of all parts but each of them in turn; at least two parts."""
    after: list[Moments] = []
    for part in reversed(parts[1:]):
        after.append(part.merge(after[-1]) if after else part)
    before: Moments | None = None
    for part in parts:
        later = after.pop() if after else None
        both = [each for each in (before, later) if each is not None]
        yield Moments.merged(both)
        before = part if before is None else before.merge(part)


def prefix_errors(folds: Sequence[HeldOut[object]], columns: Index, ends: Index, alphas: Sequence[float]) -> Errors:
    """Return the errors of all prefixes of one order, `folds` (K, alphas, steps + 1), fold by fold."""
    errors = [fold.errors(columns, ends, alphas) for fold in folds]
    return Errors(np.array(errors), np.array([fold.weight for fold in folds]))


@dataclass(frozen=True, eq=False)
class Choice(Generic[S]):
    """The penalty that ordered the groups, and the sequence; the penalty of each prefix, and its error there.

    `alphas` and `errors` are (steps + 1,); without folds there are no errors. `measured` has the errors of each fold,
    (K, steps + 1), with the order of all rows.
    """

    alpha: float
    sequence: S
    alphas: Float
    errors: Float | None
    measured: Errors | None = None

    def mean_error(self, horizon: float | None) -> float:
        """Return the mean error over the cost axis, up to a cost or the sequence's end."""
        return math.inf if self.errors is None else float(area(self.sequence, self.errors[np.newaxis], horizon)[0])

    def upto(self, steps: int) -> Choice[S]:
        errors = None if self.errors is None else self.errors[: steps + 1]
        measured = None if self.measured is None else replace(self.measured, folds=self.measured.folds[:, : steps + 1])
        return Choice(self.alpha, self.sequence.upto(steps), self.alphas[: steps + 1], errors, measured)


class Learned(NamedTuple):
    """What a likelihood learned besides the order and the coefficients; least squares has neither.

    `deviance` (steps + 1,) are mean deviances of the prefixes on the training rows. `curvatures` are second-order
    models at some of the prefixes, for the columns of the sequence (ascending); None of too many coefficients.
    """

    deviance: Float | None = None
    curvatures: QuadraticModels | None = None


@dataclass(frozen=True, eq=False)
class Problem(ABC, Generic[T, S]):
    """One loss on some terms of the rows: everything that the choice of penalties and the stored prefixes need."""

    terms: Terms
    options: Options

    @property
    def groups(self) -> FeatureGroups:
        return self.terms.expansion.terms

    @property
    def horizon(self) -> float | None:
        """Return the cost up to which errors count; beyond its end, an order counts with its last prefix's error."""
        return None if self.options.epsilon is None else float(self.groups.costs.sum())

    @property
    def n_jobs(self) -> int | None:
        """Return the number of threads that share out orders and folds."""
        return 1

    @property
    @abstractmethod
    def data(self) -> T:
        """Return the data that orders are learned from."""

    @property
    @abstractmethod
    def folds(self) -> Sequence[HeldOut[T]]:
        """Return the held-out folds; none without cross-validation."""

    @abstractmethod
    def orders(self, data: T) -> Callable[[float], GroupOrder]:
        """Return the search for the order of some data, of all rows or of a fold, as a function of the penalty."""

    @property
    def errors(self) -> Callable[[GroupOrder, Sequence[float]], Errors] | None:
        """Return the function that measures all folds at once; None if each fold measures its own errors."""
        return None

    @property
    def rough(self) -> Callable[[float], GroupOrder] | None:
        """Return a cheaper search whose orders are close enough to choose the penalty with; None without one."""
        return None

    @abstractmethod
    def solved(self, choice: Choice[Any]) -> Choice[S]:
        """Return the choice with the solver's state at the penalties chosen."""

    @abstractmethod
    def prefixes(self, choice: Choice[S]) -> PrefixModels:
        """Return the coefficients of each prefix at its own penalty."""

    def learned(self, choice: Choice[S], prefixes: PrefixModels) -> Learned:  # noqa: ARG002
        return Learned()

    @cached_property
    def curves(self) -> Curves:
        """Return the errors measured so far along orders that are not rough."""
        return Curves(self)

    @cached_property
    def choice(self) -> Choice[S]:
        return self.chosen()

    def has_less_error(self, than: Problem[Any, Any]) -> bool:
        """Return whether the curve of held-out errors is lower than that of other terms, on average and at its end."""
        own, other = self.choice.measured, than.choice.measured
        if own is None or other is None:
            return True
        curve, others = areas(self.choice.sequence, own, self.horizon), areas(than.choice.sequence, other, than.horizon)
        return bool(curve.mean < others.mean and own.mean[-1] < other.mean[-1])

    def order_at(self, alpha: float) -> GroupOrder:
        """Return the order at a penalty; raise NoStepsError if it has no steps."""
        order = self.orders(self.data)(alpha)
        self.check_steps(order)
        return order

    def check_steps(self, order: GroupOrder) -> None:
        """Raise NoStepsError if an order has no steps."""
        if not order.steps:
            longest = f"{order.longest:.4g}" + " before pairs are added" * (self.options.pairs is not None)
            raise NoStepsError(
                f"epsilon is {self.options.epsilon:g}, and no group's projection of the responses is longer: the "
                f"longest is {longest}; choose a smaller epsilon"
            )

    def chosen(self, *, refine: bool = True) -> Choice[S]:
        """Return the penalties and the sequence that the options state; without `refine`, of a few penalties."""
        return self.solved(cross_validated(self, refine=refine))


def cross_validated(problem: Problem[T, S], *, refine: bool = True) -> Choice[Any]:
    """Choose the penalties of a problem as its options state; without folds, all are `options.alpha`.

    Without `refine`, few penalties are measured, and errors are not nested.
    """
    options, folds, orders = problem.options, problem.folds, problem.orders
    if folds:
        choice = choose(problem, every=1 if options.one_se and problem.errors is None else EVERY, refine=refine)
    else:
        alpha = options.grid[0]
        sequence = orders(problem.data)(alpha)
        choice = Choice(alpha, sequence, np.full(len(sequence.steps) + 1, alpha), None)
    problem.check_steps(choice.sequence)
    if not (folds and options.nested and refine):
        return choice
    nested = nested_errors(folds, lambda train: orders(train)(choice.alpha), choice.sequence, choice.alphas)
    return replace(choice, errors=_finite(nested.mean), measured=nested)


def choose(problem: Problem[T, S], *, every: int = 1, refine: bool = True) -> Choice[Any]:
    """Choose the penalties from the grid of the options (ascending); with one value, compute its errors.

    Parameters
    ----------
    every : int
        Above 1, learn and measure at every `every`-th penalty first, and then at ever smaller distances from the best.
        Where all folds are measured at once, orders are learned at these penalties only: at the middle one, then at
        larger ones, then at smaller ones, on either side until the newest is not the best or, with `one_se`, not within
        one standard error of it.
    refine : bool
        Without, measure at every `every`-th penalty only.
    """
    options, errors, horizon = problem.options, problem.errors, problem.horizon
    grid, one_se, order = options.grid, options.one_se, problem.orders(problem.data)
    rough = problem.rough if len(grid) > 1 else None
    curves = problem.curves if rough is None else Curves(problem)  # those of rough orders are rough as well
    exact: dict[int, GroupOrder] = {}
    areas: dict[int, Float] = {}

    def learn(places: Iterable[int]) -> None:
        new = [i for i in places if i not in areas]
        found = dict(zip(new, in_threads(rough or order, [grid[i] for i in new], problem.n_jobs), strict=True))
        curves.measure(problem, [(found[i], {i: len(found[i].steps)}) for i in new])
        areas.update({i: area(found[i], curves.of(found[i])[i], horizon) for i in new})
        best = sorted(areas)[int(pick(_stacked(areas, curves.weights), one_se))]
        for i in {*exact} - {best}:
            del exact[i]  # the factors of others use much memory
        if rough is None and best in found:
            exact[best] = found[best]

    places = range(0, len(grid), every)
    if errors is None or every == 1:
        learn(places)
        for distance in _distances(problem, every, refine=refine):
            learn(_near(_stacked(areas, curves.weights), sorted(areas), len(grid), distance))
    else:
        middle = len(places) // 2
        for side in (places[middle:], places[middle::-1]):
            for i in side:
                learn([i])
                if not _within(_stacked(areas, curves.weights), one_se)[sorted(areas).index(i)]:
                    break
    candidates = sorted(areas)
    best = candidates[int(pick(_stacked(areas, curves.weights), one_se))]
    chosen = exact.get(best) or order(grid[best])
    alphas, measured = along(problem, chosen, problem.curves, every=every, refine=refine)
    return Choice(grid[best], chosen, alphas, _finite(measured.mean), measured)


def along(
    problem: Problem[Any, Any], chosen: GroupOrder, curves: Curves, *, every: int = EVERY, refine: bool = True
) -> tuple[Float, Errors]:
    """Return the penalty of each prefix of an order, and the errors there, (K, steps + 1); as `choose`."""
    errors, one_se, grid, steps = problem.errors, problem.options.one_se, problem.options.grid, len(chosen.steps)
    curves.measure(problem, [(chosen, dict.fromkeys(range(0, len(grid), 1 if errors else every), steps))])
    for distance in _distances(problem, every, refine=refine):
        measured = curves.of(chosen)
        paid = Errors(_padded(measured, steps)[..., 1:], curves.weights)  # the base rate has no penalty
        curves.measure(
            problem, [(chosen, {i: k + 1 for i, k in _near(paid, sorted(measured), len(grid), distance).items()})]
        )
    measured = curves.of(chosen)
    all_errors = Errors(_padded(measured, steps), curves.weights)
    own = pick(all_errors, one_se)
    at_own = Errors(all_errors.folds[:, own, np.arange(len(own))], curves.weights)
    return np.asarray(grid)[sorted(measured)][own], at_own


def _distances(problem: Problem[Any, Any], every: int, *, refine: bool) -> list[int]:
    """Return the distances from the best penalty at which others are measured, one after the other."""
    return [every >> k for k in range(1, every.bit_length())] if refine and problem.errors is None else []


class Curves:
    """Errors of the prefixes of orders at penalties of a grid, each measured once; equal orders share theirs."""

    def __init__(self, problem: Problem[Any, Any]) -> None:
        self.weights = np.array([fold.weight for fold in problem.folds])
        self._known: dict[tuple[bytes, bytes], dict[int, Float]] = {}

    def of(self, sequence: GroupOrder) -> dict[int, Float]:
        """Return the errors (K, steps + 1) at each penalty measured, or those of the first steps only."""
        # The errors of a sequence depend on the order of its columns and the ends of its prefixes only.
        return self._known.setdefault((sequence.columns.tobytes(), sequence.ends.tobytes()), {})

    def measure(self, problem: Problem[Any, Any], wanted: Sequence[tuple[GroupOrder, dict[int, int]]]) -> None:
        """Measure each order at some penalties, each with its number of steps; the problem is the same each time."""
        pooled: dict[int, tuple[GroupOrder, dict[int, int]]] = {}
        for sequence, steps in wanted:
            known = self.of(sequence)
            new = {i: last for i, last in steps.items() if i not in known or known[i].shape[1] <= last}
            if new:
                pooled.setdefault(id(known), (sequence, {}))[1].update(new)
        if not pooled:
            return
        of_all, folds, grid = problem.errors, problem.folds, problem.options.grid

        def errors_of(task: tuple[HeldOut[object], GroupOrder, dict[int, int]]) -> Float:
            fold, sequence, steps = task
            return fold.errors(sequence.columns, sequence.ends, [grid[i] for i in steps], list(steps.values()))

        tasks = [(fold, *request) for request in pooled.values() for fold in folds]
        of_folds = iter([] if of_all else [*in_threads(errors_of, tasks, problem.n_jobs)])
        for sequence, steps in pooled.values():
            if of_all is None:
                errors = np.array([next(of_folds) for _ in folds])
            else:
                errors = of_all(sequence, [grid[i] for i in steps]).folds
            self.of(sequence).update({i: errors[:, j, : last + 1] for j, (i, last) in enumerate(steps.items())})


def _near(errors: Errors, measured: list[int], count: int, distance: int) -> dict[int, int]:
    """Return the penalties at a distance from the best of each curve, and the last of the curves that needs each.

    `errors` (K, measured, ...) are those of `measured` penalties of `count`.
    """
    near: dict[int, int] = {}
    centres = np.array(measured)[errors.mean.argmin(axis=0)]
    for shifted in (centres - distance, centres + distance):
        for curve, place in enumerate(np.atleast_1d(shifted).tolist()):
            near[place] = max(near.get(place, 0), curve)
    return {place: curve for place, curve in near.items() if 0 <= place < count}


def _padded(measured: dict[int, Float], steps: int) -> Float:
    """Return errors (K, penalties, steps + 1) in ascending order of the penalties, infinite where not measured."""
    folds = len(next(iter(measured.values())))
    padded = np.full((folds, len(measured), steps + 1), np.inf)
    for place, (_, errors) in enumerate(sorted(measured.items())):
        padded[:, place, : errors.shape[1]] = errors
    return padded


def _stacked(areas: dict[int, Float], weights: Float) -> Errors:
    """Return the areas (K,) of some penalties, in ascending order of the penalties."""
    return Errors(np.stack([areas[i] for i in sorted(areas)], axis=1), weights)


def areas(sequence: GroupOrder, measured: Errors, horizon: float | None) -> Errors:
    """Return the error of a curve on each fold, (K,); all groups count as much as a step of mean cost."""
    end = float(sequence.costs[-1]) if horizon is None else horizon
    return Errors(area(sequence, measured.folds, end * (1 + 1 / len(sequence.steps))), measured.weights)


def area(sequence: GroupOrder, errors: Float, horizon: float | None) -> Float:
    """Return the mean over the cost axis of the error that an interrupted client observes, (K,)."""
    widths = np.append(np.diff(sequence.costs), 0.0 if horizon is None else max(horizon - sequence.costs[-1], 0.0))
    seen = widths > 0  # errors of zero width do not count, even infinite ones
    if not seen.any():
        return errors[:, -1]
    return np.asarray(errors[:, seen] @ widths[seen] / widths.sum())


def pick(errors: Errors, one_se: bool) -> Index:
    """Return the index of the best penalty on the first axis of the mean, or of the largest within a standard error."""
    if not one_se:
        return np.asarray(errors.mean.argmin(axis=0))
    within = _within(errors, one_se)
    return np.asarray(len(within) - 1 - within[::-1].argmax(axis=0))


def _within(errors: Errors, one_se: bool) -> Bool:
    """Return which means are the least of the first axis, or within one standard error of it."""
    mean = errors.mean
    limits = mean + errors.standard_error if one_se else mean
    return np.asarray(mean <= np.take_along_axis(limits, np.expand_dims(mean.argmin(axis=0), 0), axis=0))


def nested_errors(
    folds: Sequence[HeldOut[T]], order: Callable[[T], GroupOrder], sequence: GroupOrder, alphas: Float
) -> Errors:
    """Return errors (K, steps + 1) where each fold learns its own order on its training part.

    The prefixes of a fold's order end at other costs. The error at a prefix of `sequence` is therefore that of the
    longest prefix of the fold's order within the same cost, at the penalty of the prefix of `sequence`.
    """
    values, place = np.unique(alphas, return_inverse=True)
    at_costs = []
    for fold in folds:
        own = order(fold.train)
        errors = fold.errors(own.columns, own.ends, values.tolist())
        reached = np.searchsorted(own.costs, sequence.costs * (1 + COST_TOLERANCE), side="right") - 1
        reached[0] = 0  # free steps are within every cost, but the base rate excludes them
        at_costs.append(errors[place, reached])
    return Errors(np.array(at_costs), np.array([fold.weight for fold in folds]))


def _finite(errors: Float) -> Float:
    """Return errors (steps + 1,); raise if one is not finite."""
    infinite = np.flatnonzero(~np.isfinite(errors))
    if len(infinite):
        raise TrainingError(
            f"the cross-validated error of prefix {infinite[0]} is infinite: the prediction of an extreme row "
            "overflows; fix such rows, limit the columns by --clamp outliers, or set alpha to a number and train "
            "without folds"
        )
    return errors


EQUAL = 1e-12
"""Errors that differ by less than this share of the base rate's are equal, and the shorter prefix is chosen."""


@dataclass(frozen=True, eq=False)
class Validated:
    """The error (steps + 1,) of every prefix of a complete sequence on a validation table, and the steps selected."""

    name: str
    errors: Float
    steps: int


@dataclass(frozen=True, eq=False)
class Validation:
    """A table that chooses the number of steps, by mean squares or deviances (steps + 1,) of the prefix models."""

    name: str
    errors: Callable[[PrefixModels], Float]

    def best(self, models: PrefixModels) -> Validated:
        """Return the shortest prefix with the smallest error; raise TrainingError if it is the base rate."""
        with np.errstate(over="ignore", invalid="ignore"):  # the error of a prefix may overflow on some row
            errors = self.errors(models)
        errors = np.where(np.isnan(errors), np.inf, errors)
        steps = int(np.flatnonzero(errors <= errors.min() + EQUAL * errors[0])[0])
        if steps == 0:
            raise TrainingError(
                f"on {self.name} the base rate is the best prefix (error {errors[0]:.4g}), so no step remains; "
                "use more rows, other groups, or no validation"
            )
        return Validated(self.name, errors, steps)
