"""Selection of terms by cross-validation: the number of hinges, the clamp, and the least number of rows of a level."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from anytime.errors import TrainingError
from anytime.model.manifest import Candidate, Selected
from anytime.selection.criteria.criterion import TIE
from anytime.training.least_squares import LeastSquares
from anytime.training.model_selection import Errors, NoStepsError, area
from anytime.training.options import Options
from anytime.training.terms import Terms
from anytime.types import Float

REFINED = 0.02
"""Numbers of hinges whose error at a few penalties is within this share of the least are measured at others, too."""

LEAST_GAIN = 0.01
"""Share of the error that a clamp or hinges must reduce it by."""


def least_error(candidates: Iterable[Terms], options: Options) -> tuple[LeastSquares, Selected | None]:
    """Return least squares on the terms whose sequence has the least cross-validated error, and a record of several.

    Of several, each is first measured at a few penalties, and those near the least error at others. The error of all
    groups decides a tie, then the number of terms: the curve up to their cost does not contain it. Terms with a clamp,
    or with hinges, need a clearly smaller error than those without: few rows decide what extreme values do, and new
    rows may be more extreme.
    """
    problems, rough = [LeastSquares(terms, options) for terms in candidates], list[_Tried]()
    if len(problems) == 1:
        return problems[0], None
    if options.alpha == "cv" and not options.one_se:
        rough = _tried(problems, refine=False)
        near: list[int] = []
        for simple in range(3):
            alike = [curve for curve in rough if curve.simplicity >= simple]
            limit = (1 + REFINED) * min((curve.errors[0] for curve in alike), default=-math.inf)
            near += [id(curve.problem) for curve in alike if curve.errors[0] <= limit]
        problems = [curve.problem for curve in rough if id(curve.problem) in near]
    tried = _tried(problems)
    best = _best(tried)
    for simple in (1, 2):
        others = [curve for curve in tried if curve.simplicity >= simple]
        if best.simplicity < simple and others and not best.is_clearly_less(other := _best(others)):
            best = other
    known = {id(curve.problem): curve for curve in (*rough, *tried)}
    if len(known) == 1 or not math.isfinite(best.errors[0]):
        return best.problem, None
    records = tuple(curve.record for curve in known.values() if math.isfinite(curve.errors[0]))
    return best.problem, Selected(**best.record.model_dump(), candidates=records)


def _best(tried: Sequence[_Tried]) -> _Tried:
    best, *others = tried
    for other in others:
        if _is_less(other.errors, best.errors):
            best = other
    return best


class _Tried(NamedTuple):
    """A problem with the errors of its curve and, with folds, of all groups; `areas` (K,) are those on each fold."""

    errors: list[float]
    areas: Float
    weights: Float
    problem: LeastSquares

    @property
    def simplicity(self) -> int:
        return self.problem.terms.simplicity

    @property
    def record(self) -> Candidate:
        terms = self.problem.terms
        clamp = "range" if terms.clamp == 0 else terms.clamp
        return Candidate(
            hinges=terms.size,
            clamp=clamp,  # type: ignore[arg-type]  # a selected one
            min_level_rows=terms.min_level_rows,
            error=self.errors[0],
        )

    def is_clearly_less(self, than: _Tried) -> bool:
        """Return whether the error is less by a share of it, and by more than the standard error of the difference."""
        gain = Errors(than.areas - self.areas, self.weights)
        return bool(gain.mean > max(LEAST_GAIN * than.errors[0], float(gain.standard_error)))


def _tried(problems: Iterable[LeastSquares], *, refine: bool = True) -> list[_Tried]:
    """Return the problems with a sequence; raise NoStepsError without steps."""
    tried: list[_Tried] = []
    refused: NoStepsError | None = None
    for problem in problems:
        try:
            choice = problem.choice if refine else problem.chosen(refine=False)
        except NoStepsError as error:
            refused = error
            continue
        horizon, areas, weights = problem.horizon, np.empty(0), np.empty(0)
        errors = [choice.mean_error(horizon)]
        errors += [] if choice.errors is None else [float(choice.errors[-1])]
        if choice.measured is not None:
            areas, weights = area(choice.sequence, choice.measured.folds, horizon), choice.measured.weights
        tried.append(_Tried(errors, areas, weights, problem))
    if not tried:
        raise refused or TrainingError("no terms")
    return tried


def _is_less(errors: Sequence[float], than: Sequence[float]) -> bool:
    """Return whether the first of two errors that differs by more than rounding is less."""
    for error, other in zip(errors, than, strict=True):
        if not math.isclose(error, other, rel_tol=TIE):
            return error < other
    return False
