"""Selection of terms by cross-validation: the number of hinges, the clamp, and the least number of rows of a level."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from anytime.errors import TrainingError
from anytime.features.bases import Clamp
from anytime.model.manifest import Candidate, Selected
from anytime.selection import GroupOrder
from anytime.selection.criteria import TIE
from anytime.training.clamping import CLAMPS
from anytime.training.least_squares import LeastSquares
from anytime.training.model_selection import Errors, NoStepsError, along, areas
from anytime.training.options import Options
from anytime.training.terms import Terms

HINGES_GAIN, CLAMP_GAIN = 0.01, 0.03
"""Shares of the error that hinges, and a clamp of lines or none of curves, must reduce it by.

Hinges must be better by a standard error, too: without it, or with half of it, 2.6 instead of 1.6 % of 425 splits of
public tables of 200 to 1,000 rows are worse than ridge regression of one-hot columns by .05.
"""

SHARED = 2**24
"""Bytes of the moments of a candidate up to which its problem is kept for the next with the same training rows; it is
where there are few rows, whatever its size."""


class Found(NamedTuple):
    """Terms to fit, and a record if there are several candidates."""

    squares: Callable[[], LeastSquares]
    selected: Selected | None


def least_error(candidates: Iterable[Callable[..., Terms]], options: Options) -> list[Found]:
    """Return the terms whose sequence has the least cross-validated error; of hinges, also the lines without them.

    A likelihood may need no hinges where least squares does.

    Each is measured at a few penalties: between these, errors differ by less than candidates do. The error of all
    groups decides a tie, then the number of terms. Hinges need a clearly smaller error than lines, and lines with a
    clamp than those without: few rows decide what extreme values do, and new rows may be more extreme. Curves without a
    clamp need one, too: the last piece of a curve seldom goes on.
    """
    first, *others = candidates
    if not others:
        return [Found(lambda: LeastSquares(first(), options), None)]
    tried = _tried([first, *others], options)
    free = next((clamp for clamp in CLAMPS if any(curve.clamp == clamp for curve in tried)), None)
    best = _selected(tried, free)
    if len(tried) == 1 or not math.isfinite(best.errors[0]):
        return [Found(best.problem, None)]
    records = tuple(curve.record for curve in tried if math.isfinite(curve.errors[0]))
    lines = [curve for curve in tried if not curve.size] if best.size else []
    found = [best, _selected(lines, free)] if lines else [best]
    return [Found(each.problem, Selected(**each.record.model_dump(), candidates=records)) for each in found]


def _selected(curves: Sequence[_Tried], free: Clamp) -> _Tried:
    """Return the curve to select; `free` is the clamp that lines have."""
    best, plain = _best(curves), _only(curves, free)
    if plain:
        other, lines = _best(plain), _only(plain, free, lines=True)
        if other.size and lines and not other.areas.is_clearly_less((line := _best(lines)).areas, HINGES_GAIN):
            other = line
        # A wild row is in one fold, and the standard error of a difference in one fold only is about its mean.
        clear = other.size or best.areas.is_clearly_less(other.areas, CLAMP_GAIN, noisy=not other.is_useless)
        if other.is_useless:  # where nothing predicts, each candidate does well on some fold
            clear = clear and best.areas.is_clearly_less(best.base_rate, 0.0)
        if best.clamp == free or not clear:
            best = other
    clamped = [curve for curve in curves if curve.size and curve.clamp != "off"]
    if best.size and best.clamp == "off" and clamped:
        other = _best(clamped)
        if not best.areas.is_clearly_less(other.areas, CLAMP_GAIN):
            best = other
    return best


def _only(tried: Iterable[_Tried], clamp: Clamp, *, lines: bool = False) -> list[_Tried]:
    """Return the curves with a clamp, or only those without hinges."""
    return [curve for curve in tried if curve.clamp == clamp and not (lines and curve.size)]


def _best(tried: Sequence[_Tried]) -> _Tried:
    best, *others = tried
    for other in others:
        if _is_less(other.errors, best.errors):
            best = other
    return best


@dataclass(frozen=True, eq=False)
class _Tried:
    """A candidate, an order of its groups, and the errors (K, steps + 1) of each prefix at its best penalty."""

    make: Callable[..., Terms]
    options: Options
    size: int | None
    clamp: Clamp
    min_level_rows: int | None
    order: GroupOrder
    measured: Errors
    horizon: float | None

    @classmethod
    def along(cls, make: Callable[..., Terms], problem: LeastSquares, order: GroupOrder) -> _Tried:
        """Measure at a few penalties."""
        order, terms = GroupOrder.of(order.steps, problem.groups), problem.terms
        measured = along(problem, order, problem.curves, refine=False)[1]
        chosen = terms.size, terms.clamp, terms.min_level_rows
        return cls(make, problem.options, *chosen, order, measured, problem.horizon)

    def problem(self) -> LeastSquares:
        return LeastSquares(self.make(), self.options)

    @cached_property
    def areas(self) -> Errors:
        """Return the error of the curve on each fold, (K,)."""
        return areas(self.order, self.measured, self.horizon)

    @property
    def base_rate(self) -> Errors:
        """Return the error of the base rate on each fold, (K,)."""
        return Errors(self.measured.folds[:, 0], self.measured.weights)

    @cached_property
    def errors(self) -> list[float]:
        """Return the errors of the curve and of all groups."""
        return [float(self.areas.mean), float(self.measured.mean[-1])]

    @property
    def record(self) -> Candidate:
        clamp = "range" if self.clamp == 0 else self.clamp
        return Candidate(
            hinges=self.size,
            clamp=clamp,  # type: ignore[arg-type]  # a selected one
            min_level_rows=self.min_level_rows,
            error=self.errors[0],
        )

    @property
    def is_useless(self) -> bool:
        """Return whether the base rate has a smaller error than the curve."""
        return bool(self.errors[0] > self.measured.mean[0])


def _tried(candidates: Sequence[Callable[..., Terms]], options: Options) -> list[_Tried]:
    """Return the candidates with the errors along one order for each set of terms; raise NoStepsError without steps.

    The order does not depend on the clamp, unless the sequence stops at epsilon.
    """
    tried: list[_Tried] = []
    refused: NoStepsError | None = None
    alpha: float | None = None
    orders: dict[tuple[int | None, int | None], GroupOrder] = {}
    for make, problem in _problems(candidates, options):
        key = (problem.terms.size, problem.terms.min_level_rows)
        try:
            if alpha is None:
                choice = problem.chosen(refine=False)
                alpha, orders[key] = choice.alpha, choice.sequence
            if key not in orders or options.epsilon is not None:
                orders[key] = problem.order_at(alpha)
        except NoStepsError as error:
            refused = error
            continue
        tried.append(_Tried.along(make, problem, orders[key]))
        del problem  # before the next is made: they may be large
    if not tried:
        raise refused or TrainingError("no terms")
    return tried


def _problems(
    candidates: Iterable[Callable[..., Terms]], options: Options
) -> Iterator[tuple[Callable[..., Terms], LeastSquares]]:
    """Yield each candidate and its problem; it shares what the one before solved if the training rows are equal."""
    before: LeastSquares | None = None
    for make in candidates:
        terms = make(None if before is None else before.terms)
        if before is not None and before.terms.parts is not terms.parts:
            before = None
        before = LeastSquares(terms, options, before)
        yield make, before
        if not before.by_kernels and before.terms.moments.scatter.nbytes > SHARED:
            before = None


def _is_less(errors: Sequence[float], than: Sequence[float]) -> bool:
    """Return whether the first of two errors that differs by more than rounding is less."""
    for error, other in zip(errors, than, strict=True):
        if not math.isclose(error, other, rel_tol=TIE):
            return error < other
    return False
