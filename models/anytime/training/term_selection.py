"""Selection of terms by cross-validation: the number of hinges, the clamp, and the least number of rows of a level."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from anytime.errors import TrainingError
from anytime.features.bases import Clamp
from anytime.model.manifest import Candidate, Selected
from anytime.selection import GroupOrder
from anytime.selection.criteria.criterion import TIE
from anytime.training.clamping import CLAMPS
from anytime.training.least_squares import LeastSquares
from anytime.training.model_selection import EVERY, Curves, Errors, NoStepsError, along, areas
from anytime.training.options import Options
from anytime.training.terms import Terms

REFINED = 0.02
"""Numbers of hinges whose error at a few penalties is within this share of the least are measured at others, too."""

FINEST = 2
"""The distance on the grid of the penalties that candidates are compared at."""

HINGES_GAIN, CLAMP_GAIN = 0.01, 0.03
"""Shares of the error that hinges, and a clamp of lines or none of curves, must reduce it by."""


STORED = 2**24
"""Bytes of the moments of a candidate up to which its problem is stored; those of larger ones are made again, unless
they need few rows only."""


class Found(NamedTuple):
    """Terms to fit, and a record if there are several candidates."""

    squares: Callable[[], LeastSquares]
    selected: Selected | None


def least_error(candidates: Iterable[Callable[..., Terms]], options: Options) -> list[Found]:
    """Return the terms whose sequence has the least cross-validated error; of hinges, also the lines without them.

    A likelihood may need no hinges where least squares does.

    Of several, each is first measured at a few penalties, and those near the least error at others. The error of all
    groups decides a tie, then the number of terms. Hinges need a clearly smaller error than lines, and lines with a
    clamp than those without: few rows decide what extreme values do, and new rows may be more extreme. Curves without a
    clamp need one, too: the last piece of a curve seldom goes on.
    """
    first, *others = candidates
    if not others:
        return [Found(lambda: LeastSquares(first(), options), None)]
    tried = _tried([first, *others], options)
    free = next((clamp for clamp in CLAMPS if any(curve.clamp == clamp for curve in tried)), None)
    near: list[_Tried] = []
    for alike in (tried, _only(tried, free), _only(tried, free, lines=True)):
        limit = (1 + REFINED) * min((curve.errors[0] for curve in alike), default=-math.inf)
        near += [curve for curve in alike if curve.errors[0] <= limit and curve not in near]
    in_turn = sorted(near, key=tried.index)  # those with the same training rows one after the other
    problems = _problems([(curve.make, curve.stored) for curve in in_turn], options)
    done = {id(curve): curve.refined(problem) for curve, problem in zip(in_turn, problems, strict=True)}
    refined = {id(curve): done[id(curve)] for curve in near}
    best = _selected([*refined.values()], free)
    for curve in tried:
        if curve.stored is not None and (best.stored is None or curve.stored.root is not best.stored.root):
            curve.stored.release()
    known = [refined.get(id(curve), curve) for curve in tried]
    if len(known) == 1 or not math.isfinite(best.errors[0]):
        return [Found(best.problem, None)]
    records = tuple(curve.record for curve in known if math.isfinite(curve.errors[0]))
    lines = [curve for curve in refined.values() if not curve.size] if best.size else []
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
    """A candidate, an order of its groups, and the errors (K, steps + 1) of each prefix at its best penalty.

    `stored` is its problem, or None if that is large.
    """

    make: Callable[..., Terms]
    options: Options
    stored: LeastSquares | None
    size: int | None
    clamp: Clamp
    min_level_rows: int | None
    order: GroupOrder
    curves: Curves
    measured: Errors
    horizon: float | None

    @classmethod
    def along(cls, make: Callable[[], Terms], problem: LeastSquares, order: GroupOrder) -> _Tried:
        """Measure at a few penalties."""
        order, terms = GroupOrder.of(order.steps, problem.groups), problem.terms
        measured = along(problem, order, problem.curves, finest=EVERY)[1]
        stored = problem if _is_stored(problem) else None
        chosen = terms.size, terms.clamp, terms.min_level_rows
        return cls(make, problem.options, stored, *chosen, order, problem.curves, measured, problem.horizon)

    def problem(self) -> LeastSquares:
        return self.stored or LeastSquares(self.make(), self.options)

    def refined(self, problem: LeastSquares) -> _Tried:
        """Return the same, measured at the penalties near the best of each prefix, too."""
        return replace(self, measured=along(problem, self.order, self.curves, finest=FINEST)[1])

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
    for make, problem in zip(candidates, _problems([(make, None) for make in candidates], options), strict=True):
        key = (problem.terms.size, problem.terms.min_level_rows)
        try:
            if alpha is None:
                choice = problem.chosen(finest=EVERY)
                alpha, orders[key] = choice.alpha, choice.sequence
            if key not in orders or options.rule.epsilon is not None:
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
    candidates: Iterable[tuple[Callable[..., Terms], LeastSquares | None]], options: Options
) -> Iterator[LeastSquares]:
    """Yield the problem of each candidate, made or stored.

    Those of equal training rows, one after the other, share what they solve there; it is released before the next with
    other rows.
    """
    before: LeastSquares | None = None
    for make, stored in candidates:
        problem = stored
        if problem is None:
            terms = make(None if before is None else before.terms)
            like = before if before is not None and before.terms.parts is terms.parts else None
            problem = LeastSquares(terms, options, like)
        if before is not None and problem.root is not before.root:
            before.release()
        yield problem
        before = problem if _is_stored(problem) else None
        del problem  # before the next is made: they may be large


def _is_stored(problem: LeastSquares) -> bool:
    return problem.by_kernels or problem.terms.moments.scatter.nbytes <= STORED


def _is_less(errors: Sequence[float], than: Sequence[float]) -> bool:
    """Return whether the first of two errors that differs by more than rounding is less."""
    for error, other in zip(errors, than, strict=True):
        if not math.isclose(error, other, rel_tol=TIE):
            return error < other
    return False
