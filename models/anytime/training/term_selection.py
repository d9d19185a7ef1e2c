"""Selection of terms by cross-validation: the number of hinges, and the least number of rows of a level."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from anytime.errors import TrainingError
from anytime.features.bases import Choice
from anytime.model.manifest import Candidate, Selected
from anytime.selection import GroupOrder
from anytime.selection.criteria import TIE
from anytime.training.least_squares import LeastSquares
from anytime.training.model_selection import Errors, NoStepsError, along, areas
from anytime.training.options import Options
from anytime.training.terms import TermSets

HINGES_GAIN, CLAMP_GAIN = 0.01, 0.03
"""Shares of the error that hinges, and a clamp of lines, must reduce it by.

Hinges must be better by a standard error, too: without it, or with half of it, 2.6 instead of 1.6 % of 425 splits of
public tables of 200 to 1,000 rows are worse than ridge regression of one-hot columns by .05.
"""


class Found(NamedTuple):
    """Terms to fit, and a record if there are several candidates."""

    squares: Callable[[], LeastSquares]
    selected: Selected | None


def least_error(sets: TermSets, options: Options) -> list[Found]:
    """Return the terms whose sequence has the least cross-validated error; of hinges, also the lines without them.

    A likelihood may need no hinges where least squares does.

    Each is measured at a few penalties: between these, errors differ by less than candidates do. The error of all
    groups decides a tie, then the number of terms. Hinges need a clearly smaller error than lines, and clamped lines
    than others: few rows decide what extreme values do, and new rows may be more extreme.
    """
    if len(sets.choices) == 1:
        return [Found(lambda: LeastSquares(sets.terms(sets.choices[0]), options), None)]
    tried = _tried(sets, options)
    lines = [curve for curve in tried if not curve.choice.size]
    line, best = _line(lines) if lines else None, _best(tried)
    if line and not (best.choice.size and best.areas.is_clearly_less(line.areas, HINGES_GAIN)):
        best = line
    if len(tried) == 1 or not math.isfinite(best.errors[0]):
        return [Found(best.problem, None)]
    records = tuple(curve.record for curve in tried if math.isfinite(curve.errors[0]))
    found = [best, line] if line and best is not line else [best]
    return [Found(each.problem, Selected(**each.record.model_dump(), candidates=records)) for each in found]


def _line(lines: Sequence[_Tried]) -> _Tried:
    """Return the lines, with a clamp if that is clearly better."""
    free = [each for each in lines if not each.choice.clamp]
    best, other = _best(lines), _best(free or lines)
    # A wild row is in one fold, and the standard error of a difference in one fold only is about its mean.
    useless = other.errors[0] > float(other.base_rate.mean)
    clear = best.areas.is_clearly_less(other.areas, CLAMP_GAIN, noisy=not useless)
    if useless:  # where nothing predicts, each candidate does well on some fold
        clear = clear and best.areas.is_clearly_less(best.base_rate, 0.0)
    return best if clear else other


def _best(tried: Sequence[_Tried]) -> _Tried:
    """Return the candidate whose first error that differs by more than rounding is the least; of equals, the first."""
    best, *others = tried
    for other in others:
        differing = (
            (a, b) for a, b in zip(other.errors, best.errors, strict=True) if not math.isclose(a, b, rel_tol=TIE)
        )
        error, than = next(differing, (0.0, 0.0))
        if error < than:
            best = other
    return best


@dataclass(frozen=True, eq=False)
class _Tried:
    """A candidate, an order of its groups, and the errors (K, steps + 1) of each prefix at its best penalty."""

    sets: TermSets
    options: Options
    choice: Choice
    order: GroupOrder
    measured: Errors
    horizon: float | None

    def problem(self) -> LeastSquares:
        return LeastSquares(self.sets.terms(self.choice), self.options)

    @cached_property
    def areas(self) -> Errors:
        """Return the error of the curve on each fold, (K,)."""
        return areas(self.order, self.measured, self.horizon)

    @cached_property
    def errors(self) -> list[float]:
        """Return the errors of the curve and of all groups."""
        return [float(self.areas.mean), float(self.measured.mean[-1])]

    @property
    def base_rate(self) -> Errors:
        """Return the error of the base rate on each fold, (K,)."""
        return Errors(self.measured.folds[:, 0], self.measured.weights)

    @property
    def record(self) -> Candidate:
        size, clamp, least = self.choice
        moved = any(column.basis.line == "own" for column in self.sets.whole.columns)
        return Candidate(
            hinges=size,
            clamp=None if clamp is None else "off" if not clamp else "outliers" if moved else "range",
            min_level_rows=least,
            error=self.errors[0],
        )


def _tried(sets: TermSets, options: Options) -> list[_Tried]:
    """Return the candidates with their errors along an order of their own, all at a few penalties.

    The first one chooses the penalty of the orders. Raise NoStepsError if none has steps.
    """
    tried: list[_Tried] = []
    refused: NoStepsError | None = None
    alpha: float | None = None
    for each in sets.choices:
        problem = LeastSquares(sets.terms(each), options)
        try:
            if alpha is None:
                choice = problem.chosen(refine=False)
                alpha, steps = choice.alpha, choice.sequence.steps
            else:
                steps = problem.order_at(alpha).steps
        except NoStepsError as error:
            refused = error
            continue
        order = GroupOrder.of(steps, problem.groups)
        measured = along(problem, order, problem.curves, refine=False)[1]
        tried.append(_Tried(sets, options, each, order, measured, problem.horizon))
        del problem  # before the next is made: they may be large
    if not tried:
        raise refused or TrainingError("no terms")
    return tried
