"""Model selection: sets of terms, penalties and the number of steps, by errors on rows that took no part in a fit.

Sets of terms, and penalties, are compared by one number: the mean over the cost axis of the error that an interrupted
client observes along an order of the groups, cross-validated.

The order is learned at every penalty of the grid. The penalty whose curve of cross-validated error has the smallest
area over the cost axis determines the order. On that order each prefix gets the penalty with its own smallest error.
These errors keep the order fixed, and the order has used every row, so they are optimistic. `nested` errors learn a
separate order in every fold.

Sets of terms are compared from simple to complex, each along its own order: lines, clamped lines, curves, finer curves,
and curves with levels of numbers next to them. A more complex form needs a clearly smaller error: few rows decide what
extreme values do, and new rows may be more extreme.

A validation table selects the number of steps with the smallest error there (Lozano, Swirszcz and Abe, Group-OMP,
NIPS 2009, section 4).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from anytime.errors import TrainingError
from anytime.features.bases import FINEST, MIN_LEVEL_ROWS, MIN_MISSING, OCTILES, Choice as TermChoice
from anytime.features.expansion import Expansion
from anytime.glm.search import QuadraticModels
from anytime.groups import COST_TOLERANCE, FeatureGroups
from anytime.model.manifest import Candidate, Selected
from anytime.model.prefixes import PrefixModels
from anytime.moments.accumulate import in_threads
from anytime.moments.moments import Gram, Moments
from anytime.selection import GroupOrder, sequencer
from anytime.selection.criteria import TIE
from anytime.training.options import Options
from anytime.types import Bool, Float, Index

SMALL = 1000
"""Number of rows up to which searches are exhaustive: errors of few rows are not smooth, and their fits are quick."""

MIN_PARALLEL_COLUMNS = 400
"""Number of columns from which threads share out orders and folds: they wait for each other between small products."""

EVERY, COARSE, FINE = (1,), (4,), (4, 2, 1)
"""Penalties to learn orders and measure prefixes at: every n-th of the grid first, then at distances from the best."""

HINGES_GAIN, CLAMP_GAIN = 0.01, 0.03
"""Shares of the error that hinges, more hinges or levels of numbers, and a clamp of lines, must reduce it by.

Hinges must be better by a standard error, too: without it, or with half of it, 2.6 instead of 1.6 % of 425 splits of
public tables of 200 to 1,000 rows are worse than ridge regression of one-hot columns by .05.
"""

EQUAL = 1e-12
"""Errors that differ by less than this share of the base rate's are equal, and the shorter prefix is chosen."""

S = TypeVar("S", bound=GroupOrder)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Request: TypeAlias = tuple[GroupOrder, Sequence[float], Sequence[int]]
"""An order to measure, at some penalties, and the number of steps to measure at each."""


class HeldOut(Protocol[T_co]):
    """One held-out fold of any family."""

    @property
    def train(self) -> T_co:
        """Return the problem of the other folds."""

    @property
    def weight(self) -> float:
        """Return the sum of the weights of its rows."""

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
        return np.asarray(np.average(self.folds, axis=0, weights=self.weights))

    def is_clearly_less(self, than: Errors, share: float, *, noisy: bool = True) -> bool:
        """Return whether the mean is less by a share of another, and, if `noisy`, by their standard error."""
        less = Errors(than.folds - self.folds, self.weights)
        return bool(less.mean > max(share * float(than.mean), float(less.standard_error) if noisy else 0.0))

    def at_least(self) -> Errors:
        """Return the errors (K, ...) at the penalty, the second axis, whose mean is the least."""
        least = np.expand_dims(self.mean.argmin(axis=0), (0, 1))
        return Errors(np.take_along_axis(self.folds, least, axis=1)[:, 0], self.weights)

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
            spread = self.folds - self.mean
            _, exponent = np.frexp(np.abs(spread).max(axis=0))  # squares of squared targets may overflow
            squares = np.average(np.square(np.ldexp(spread, -exponent)), axis=0, weights=self.weights)
        return np.asarray(np.ldexp(np.sqrt(squares / (len(self.weights) - 1)), exponent))


Known: TypeAlias = dict[tuple[bytes, bytes], Errors]
"""Errors measured so far, by what determines them: the columns of an order and the ends of its prefixes."""


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
    before, after = parts[0], [parts[-1]]
    for part in parts[-2:0:-1]:
        after.append(part.merge(after[-1]))
    yield after.pop()
    for part in parts[1:-1]:
        yield before.merge(after.pop())
        before = before.merge(part)
    yield before


@dataclass(frozen=True, eq=False)
class Terms:
    """Terms of the raw columns, and their moments in each fold and in all."""

    expansion: Expansion
    parts: Sequence[Moments]
    moments: Moments

    @cached_property
    def gram(self) -> Gram:
        return Gram.of(self.moments)

    def places(self, among: Terms) -> Index:
        """Return the places of these terms among others that include them."""
        place = {key: k for k, key in enumerate(among.expansion.keys)}
        return np.array([place[key] for key in self.expansion.keys], dtype=np.intp)

    def reduced(self, choice: TermChoice) -> Terms:
        """Return the terms of one choice, with indicators of missing values; it is computed again by each call."""
        reduced, spans = self.expansion.reduced(choice)
        moments = self.moments.reduced(spans)
        shares = dict(zip((start for start, _ in moments.missing), moments.mean[moments.width :].tolist(), strict=True))
        bases = reduced.groups.bases
        expansion = reduced.with_indicators(  # those that the groups file states or that gaps in rows need
            {
                column.name: shares.get(start, 0.0) >= MIN_MISSING
                for column, (start, _) in zip(reduced.columns, reduced.plain.spans, strict=True)
                if column.name not in bases or bases[column.name].missing is None
            }
        )
        parts = [part.reduced(spans).with_indicator_features(expansion.indicated) for part in self.parts]
        return Terms(expansion, parts, moments.with_indicator_features(expansion.indicated))


@dataclass(frozen=True, eq=False)
class Choice(Generic[S]):
    """The penalty that ordered the groups, the sequence, and the penalty of each prefix, (steps + 1,).

    `measured` has the errors of each fold at these penalties, (K, steps + 1); None without folds. The order is that of
    all rows, or with nested errors of each fold.
    """

    alpha: float
    sequence: S
    alphas: Float
    measured: Errors | None = None

    def upto(self, steps: int) -> Choice[S]:
        measured = None if self.measured is None else replace(self.measured, folds=self.measured.folds[:, : steps + 1])
        return Choice(self.alpha, self.sequence.upto(steps), self.alphas[: steps + 1], measured)


class Learned(NamedTuple):
    """What a likelihood learned besides the order and the coefficients; least squares has neither.

    `deviance` (steps + 1,) are mean deviances of the prefixes on the training rows. `curvatures` are second-order
    models at some of the prefixes, for the columns of the sequence (ascending); None of too many coefficients.
    """

    deviance: Float | None = None
    curvatures: QuadraticModels | None = None


@dataclass(frozen=True, eq=False)
class Problem(ABC, Generic[T, S]):
    """One loss on some terms of the rows: everything that the choice of penalties and the stored prefixes need.

    Attributes
    ----------
    simple : Terms | None
        Some of the terms, without pairs or levels that take long: the penalty whose order of these is best orders all.
        None are all terms.
    """

    terms: Terms
    options: Options
    known: Known = field(default_factory=dict, init=False)
    simple: Terms | None = field(default=None, kw_only=True)

    one_by_one: ClassVar[bool] = False
    """Whether fits take so long that penalties are tried one after the other, until the error rises."""

    @property
    def groups(self) -> FeatureGroups:
        return self.terms.expansion.terms

    @property
    def n_jobs(self) -> int | None:
        """Return the number of threads that share out orders and folds."""
        return self.options.n_jobs if len(self.groups.features) >= MIN_PARALLEL_COLUMNS else 1

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
    def rough(self) -> Callable[[float], GroupOrder] | None:
        """Return a cheaper search whose orders are close enough to choose the penalty with, if there is one."""
        return None if self.simple is None or self.options.epsilon is not None else self.squares()

    def squares(self) -> Callable[[float], GroupOrder]:
        """Return the search by least squares on the simple terms; the orders have these columns only."""
        terms = self.simple or self.terms
        search, places = sequencer(terms.gram, terms.expansion.terms, self.options), terms.places(self.terms)

        def order(alpha: float) -> GroupOrder:
            found = search(alpha)
            return replace(found, columns=places[found.columns], state=None)

        return order

    @abstractmethod
    def errors(self, requests: Sequence[Request]) -> Iterable[Float]:
        """Return the errors of orders on all folds, (K, alphas, steps + 1) each; those of further steps are undefined.

        Infinite errors are those of penalties that were not tried, or of an extreme row.
        """

    @abstractmethod
    def solved(self, choice: Choice[Any]) -> Choice[S]:
        """Return the choice with the solver's state at the penalties chosen."""

    @abstractmethod
    def prefixes(self, choice: Choice[S]) -> PrefixModels:
        """Return the coefficients of each prefix at its own penalty."""

    def measured(
        self, wanted: Iterable[tuple[GroupOrder, Mapping[int, int]]], known: Known | None = None
    ) -> list[Errors]:
        """Return the errors of some orders, (K, penalties, steps + 1), infinite where none was measured yet.

        Each order is measured at penalties, by their places in the grid, up to a step, unless it is `known`.
        """
        known, grid = self.known if known is None else known, self.options.grid
        found: list[Errors] = []
        lacking: dict[tuple[bytes, bytes], tuple[GroupOrder, dict[int, int]]] = {}
        for order, steps in wanted:
            key = order.columns.tobytes(), order.ends.tobytes()
            if key not in known:
                weights = np.array([fold.weight for fold in self.folds])
                known[key] = Errors(np.full((len(weights), len(grid), len(order.ends)), np.inf), weights)
            found.append(known[key])
            if new := {i: last for i, last in steps.items() if not np.isfinite(found[-1].folds[:, i, last]).all()}:
                lacking.setdefault(key, (order, {}))[1].update(new)
        requests = [(order, [grid[i] for i in steps], [*steps.values()]) for order, steps in lacking.values()]
        for (key, (_, steps)), errors in zip(lacking.items(), self.errors(requests), strict=True):
            for j, (i, last) in enumerate(steps.items()):
                known[key].folds[:, i, : last + 1] = errors[:, j, : last + 1]
        return found

    def area(self, order: GroupOrder, errors: Float, *, last: bool = False) -> Float:
        """Return the mean over the cost axis of the error that an interrupted client observes, (K,).

        `errors` are (K, steps + 1). With epsilon the axis ends at the cost of all groups: beyond its end, an order
        counts with its last prefix's error. With `last`, all groups count as much as a step of mean cost.
        """
        costs = order.costs
        end = float(costs[-1] if self.options.epsilon is None else self.groups.costs.sum())
        if last:
            end *= 1 + 1 / len(order.steps)
        widths = np.append(np.diff(costs), max(end - costs[-1], 0.0))
        seen = widths > 0  # errors of zero width do not count, even infinite ones
        return np.asarray(errors[:, seen] @ widths[seen] / widths.sum() if seen.any() else errors[:, -1])

    @cached_property
    def choice(self) -> Choice[S]:
        """Return the penalties and the sequence that the options state, with the solver's state."""
        return self.solved(self.chosen())

    def chosen(self, *, refine: bool = True) -> Choice[Any]:
        """Return the penalties and the sequence that the options state; without folds, all are `options.alpha`.

        Without `refine`, few penalties are measured, and errors are not nested. Raise TrainingError if an error is
        infinite, and NoStepsError.
        """
        options, folds = self.options, self.folds
        if folds:
            exhaustive = options.one_se and not self.one_by_one
            distances = EVERY if exhaustive else FINE if refine else COARSE
            # With pairs, searches take long.
            choice = choose(self, distances, COARSE if self.groups.products and self.simple is None else None)
        else:
            sequence = self.orders(self.data)(options.grid[0])
            choice = Choice(options.grid[0], sequence, np.full(len(sequence.ends), options.grid[0]))
        self.check_steps(choice.sequence)
        if folds and options.nested and refine:
            choice = replace(choice, measured=nested_errors(folds, self.orders, choice))
        finite = np.isfinite(0.0 if choice.measured is None else choice.measured.mean)
        if not finite.all():
            raise TrainingError(
                f"the cross-validated error of prefix {finite.argmin()} is infinite: the prediction of an extreme row "
                "overflows; fix such rows, limit the columns by --clamp outliers, or set alpha to a number and train "
                "without folds"
            )
        return choice

    def check_steps(self, order: GroupOrder) -> None:
        """Raise NoStepsError if an order has no steps."""
        if not order.steps:
            raise NoStepsError(
                f"epsilon is {self.options.epsilon:g}, and no group's projection of the responses is longer: the "
                f"longest is {order.longest:.4g}; choose a smaller epsilon"
            )

    def has_less_error(self, than: Problem[Any, Any]) -> bool:
        """Return whether the curve of held-out errors is lower than that of other terms, on average and at its end."""
        own, other = self.choice.measured, than.choice.measured
        if own is None or other is None:
            return True
        curve = Errors(self.area(self.choice.sequence, own.folds, last=True), own.weights)
        others = Errors(than.area(than.choice.sequence, other.folds, last=True), other.weights)
        return bool(curve.mean < others.mean and own.mean[-1] < other.mean[-1])


# Penalties.


def choose(
    problem: Problem[T, S], distances: Sequence[int] = EVERY, of_orders: Sequence[int] | None = None
) -> Choice[Any]:
    """Choose the penalties from the grid of the options (ascending); with one value, compute its errors.

    `distances` are as `EVERY`, `COARSE` and `FINE`; those of penalties that orders are learned at may be fewer.
    """
    grid, one_se, order = problem.options.grid, problem.options.one_se, problem.orders(problem.data)
    rough = problem.rough if len(grid) > 1 else None
    known = problem.known if rough is None else {}  # errors of rough orders are rough as well
    orders: dict[int, GroupOrder | None] = {}
    weights = np.array([fold.weight for fold in problem.folds])
    areas = Errors(np.full((len(weights), len(grid)), np.inf), weights)
    best = 0
    for places in _places(areas, of_orders or distances, one_se=one_se, one_by_one=problem.one_by_one):
        new = [i for i in places if i not in orders]
        found = dict(zip(new, in_threads(rough or order, [grid[i] for i in new], problem.n_jobs), strict=True))
        measured = problem.measured([(each, {i: len(each.steps)}) for i, each in found.items()], known)
        for (i, each), errors in zip(found.items(), measured, strict=True):
            areas.folds[:, i] = problem.area(each, errors.folds[:, i])
        best = int(pick(areas, one_se))
        # Only the best one is stored: the factors of an order use much memory.
        orders = {i: each if i == best else None for i, each in {**orders, **found}.items()}
    chosen = (None if rough else orders[best]) or order(grid[best])
    alphas, at_own = along(problem, chosen, EVERY if problem.one_by_one else distances)
    return Choice(grid[best], chosen, alphas, at_own)


def _places(areas: Errors, distances: Sequence[int], *, one_se: bool, one_by_one: bool) -> Iterator[Sequence[int]]:
    """Yield the places in the grid at which orders are learned next, given the areas so far, (K, penalties).

    One by one, they begin in the middle, and go on to larger penalties and to smaller ones until the newest is not the
    best or, with `one_se`, not within one standard error of it.
    """
    count, (every, *nearer) = areas.folds.shape[1], distances
    places = range(0, count, every)
    if not one_by_one or every == 1:
        yield places
        for distance in nearer:
            best = int(areas.mean.argmin())
            yield [i for i in (best - distance, best + distance) if 0 <= i < count]
        return
    middle = len(places) // 2
    for side in (places[middle:], places[middle::-1]):
        for i in side:
            yield [i]
            if not _within(areas, one_se)[i]:
                break


def along(problem: Problem[Any, Any], order: GroupOrder, distances: Sequence[int]) -> tuple[Float, Errors]:
    """Return the penalty of each prefix of an order, (steps + 1,), and the errors there, (K, steps + 1)."""
    grid, (every, *nearer) = problem.options.grid, distances
    (errors,) = problem.measured([(order, dict.fromkeys(range(0, len(grid), every), len(order.steps)))])
    for distance in nearer:
        best = errors.mean[:, 1:].argmin(axis=0).tolist()  # of each step: the base rate has no penalty
        near = {i: step for step, at in enumerate(best, start=1) for i in (at - distance, at + distance)}
        problem.measured([(order, {i: step for i, step in near.items() if 0 <= i < len(grid)})])
    own = pick(errors, problem.options.one_se)
    return np.asarray(grid)[own], Errors(errors.folds[:, own, np.arange(len(own))], errors.weights)


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
    folds: Sequence[HeldOut[T]], orders: Callable[[T], Callable[[float], GroupOrder]], choice: Choice[Any]
) -> Errors:
    """Return errors (K, steps + 1) where each fold learns its own order on its training part.

    The prefixes of a fold's order end at other costs. The error at a prefix of the sequence is therefore that of the
    longest prefix of the fold's order within the same cost, at the penalty of the prefix of the sequence.
    """
    values, place = np.unique(choice.alphas, return_inverse=True)
    at_costs = []
    for fold in folds:
        own = orders(fold.train)(choice.alpha)
        errors = fold.errors(own.columns, own.ends, values.tolist())
        reached = np.searchsorted(own.costs, choice.sequence.costs * (1 + COST_TOLERANCE), side="right") - 1
        reached[0] = 0  # free steps are within every cost, but the base rate excludes them
        at_costs.append(errors[place, reached])
    return Errors(np.array(at_costs), np.array([fold.weight for fold in folds]))


# Sets of terms.


class Tried(NamedTuple):
    """A set of terms, and its errors along an order at `alpha`, each prefix at its best penalty.

    `form` is 0 for lines, 1 for clamped lines, 2 for curves, 3 for finer ones and 4 for levels next to them. `curve`
    and `base` (K,) are the errors of the curve and of the base rate, and `errors` the means of the curve and of all
    groups.
    """

    choice: TermChoice
    form: int
    alpha: float
    curve: Errors
    base: Errors
    errors: tuple[float, float]

    def is_clearly_better(self, than: Tried) -> bool:
        """Return whether the error is less by the share that the form must gain, and by a standard error."""
        if self.form >= 2:
            return self.curve.is_clearly_less(than.curve, HINGES_GAIN)
        # A wild row is in one fold, and the standard error of a difference in one fold only is about its mean. But
        # where nothing predicts, each set does well on some fold.
        useless = than.errors[0] > float(than.base.mean)
        is_less = self.curve.is_clearly_less(than.curve, CLAMP_GAIN, noisy=not useless)
        return is_less and not (useless and not self.curve.is_clearly_less(self.base, 0.0))


class SelectedTerms(NamedTuple):
    """The terms whose sequence has the least cross-validated error, those of lines, and the record of each candidate.

    A likelihood may need no curves, nor levels next to them, where least squares does. There are no records if there is
    one set only.
    """

    best: TermChoice
    lines: TermChoice
    records: Mapping[TermChoice, Selected] = {}


def selected_terms(whole: Terms, problem_of: Callable[[Terms], Problem[Any, Any]]) -> SelectedTerms:
    """Select the terms whose sequence has the least cross-validated error.

    Each set is measured at a few penalties: between these, errors differ by less than sets do. The error of all groups
    decides a tie, then the number of terms.
    """
    choices = whole.expansion.choices
    if len(whole.parts) == 1:  # without folds, the most frequent levels
        if any(column.basis.choices for column in whole.expansion.columns):
            raise TrainingError(
                "basis 'auto' needs folds to select the number of hinges; give at least 2, or a hinge:K"
            )
        choices = choices[:1]
    if len(choices) == 1:
        return SelectedTerms(choices[0], choices[0])
    tried: list[Tried] = []
    for choice in choices:
        try:
            tried.append(_tried(problem_of(whole.reduced(choice)), choice, tried[0].alpha if tried else None))
        except NoStepsError:
            if choice == choices[-1] and not tried:
                raise
    curves = [each for each in tried if each.form in (2, 3)]
    for choice in whole.expansion.with_levels(_least(curves).choice) if curves else ():
        tried.append(_tried(problem_of(whole.reduced(choice)), choice, curves[0].alpha))
        if _least(tried) is not tried[-1]:
            break  # rarer levels would have to be better
    simplest, *further = sorted({each.form for each in tried})
    best = line = _least([each for each in tried if each.form == simplest])
    for form in further:
        least = _least([each for each in tried if each.form <= form])
        if least.form == form and least.is_clearly_better(best):
            best = least
        line = best if form < 2 else line
    if len(tried) == 1 or not math.isfinite(best.errors[0]):
        return SelectedTerms(best.choice, best.choice)
    moved = any(column.basis.line == "own" for column in whole.expansion.columns)
    clamps: dict[bool | None, Any] = {None: None, False: "off", True: "outliers" if moved else "range"}
    records = {
        each.choice: Candidate(
            hinges=each.choice.size,
            clamp=clamps[each.choice.clamp],
            levels=each.choice.levels or 0,
            min_level_rows=each.choice.level_rows,
            error=each.errors[0],
        )
        for each in tried
        if math.isfinite(each.errors[0])
    }
    of_all = {of: Selected(**each.model_dump(), candidates=tuple(records.values())) for of, each in records.items()}
    return SelectedTerms(best.choice, line.choice if line.choice in records else best.choice, of_all)


def _tried(problem: Problem[Any, Any], choice: TermChoice, alpha: float | None) -> Tried:
    """Return a set of terms with its errors along its order at a penalty, by default the one of the least error."""
    if alpha is None:
        first = problem.chosen(refine=False)
        alpha, order = first.alpha, first.sequence
    else:
        order = problem.orders(problem.data)(alpha)
        problem.check_steps(order)
    measured = along(problem, order, COARSE)[1]
    curve = Errors(problem.area(order, measured.folds, last=True), measured.weights)
    form = int(choice.clamp or 0)
    if choice.size:
        form = 4 if choice.levels else 3 if choice.size == FINEST else 2
    base = Errors(measured.folds[:, 0], measured.weights)
    return Tried(choice, form, alpha, curve, base, (float(curve.mean), float(measured.mean[-1])))


def _least(tried: Sequence[Tried]) -> Tried:
    """Return the set whose first error that differs by more than rounding is the least; of equals, the first."""
    best, *others = tried
    for other in others:
        pairs = zip(other.errors, best.errors, strict=True)
        error, than = next(((a, b) for a, b in pairs if not math.isclose(a, b, rel_tol=TIE)), (0.0, 0.0))
        if error < than:
            best = other
    return best


def level_decisions(whole: Expansion, choice: TermChoice) -> tuple[str, ...]:
    """Return sentences on the columns whose levels the selected numbers join, keep or add, and on finer curves."""
    found, least, level_least = [], choice.level_rows, choice.levels
    if least is not None:
        kept = [
            f"{column.name!r} keeps {sum(count >= least for count in counts)} of {len(counts)} levels "
            f"({sum(count for count in counts if count < MIN_LEVEL_ROWS)} rows have a level of fewer than "
            f"{MIN_LEVEL_ROWS})"
            for column in whole.columns
            if (counts := column.basis.level_rows)
        ]
        found.append((f"levels of {least} rows or more have a term of their own", "--min-level-rows", kept))
    if level_least:
        added = [
            f"{column.name!r} ({sum(count >= level_least for count in column.basis.point_rows)} values)"
            for column in whole.columns
            if max(column.basis.point_rows, default=0) >= level_least
        ]
        what = f"numbers in {level_least} rows or more have a term of their own next to the curve"
        found.append((what, "--min-level-rows", added))
    if choice.size == FINEST:
        finer = [repr(column.name) for column in whole.columns if FINEST in column.basis.choices]
        found.append(
            (f"curves have {FINEST} hinges where {OCTILES} are too few", f"--basis hinge:{OCTILES} has no more", finer)
        )
    return tuple(
        f"{what}, by cross-validation ({option}): "
        + "; ".join(said[:5])
        + (f"; and {len(said) - 5} columns more" if len(said) > 5 else "")
        for what, option, said in found
    )


# The number of steps.


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
