"""What the defaults cost, estimated before they are fitted, and what replaces them where that is too much.

A target of classes has a likelihood, unless it takes long to train. Least squares can do what a likelihood cannot:
`LEAST_SQUARES_ONLY`. A likelihood has better probabilities. Columns of numbers may have curves, unless the moments of
these need much memory.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from anytime._files import memory_limit
from anytime.families import default_family, family_names
from anytime.features.bases import CHEAPER, Choice
from anytime.features.expansion import Expansion
from anytime.glm.newton import DENSE_MANY, forms_hessian
from anytime.groups import FeatureGroups
from anytime.target import Target
from anytime.training.model_selection import SMALL
from anytime.training.options import Options
from anytime.types import FamilyName

MAX_PRICE, SHORT_S = 5.0, 30.0
"""Estimated time of a likelihood, in times of least squares and in seconds, up to which it is the default."""

LEVELS_PRICE, LEVELS_S = 3.0, 4.0
"""Estimated time of a likelihood with finer curves or levels of numbers, in times of that without and in seconds, up to
which these are candidates."""

PENALTIES = 8
"""About the number of penalties of a grid that are measured."""

LEAST_SQUARES_ONLY = "re-sequencing without data, exact answers from any set of groups, and certificates"


MATRICES = 5
"""Matrices of the moments of all terms that a fit stores at once, for each fold."""

MAX_MEMORY, TABLES = 2**28, 16
"""Bytes of these matrices, and multiples of the size of the table, up to which columns have curves by default."""


def affordable(groups: FeatureGroups, rows: int, folds: int) -> tuple[FeatureGroups, tuple[str, ...]]:
    """Return groups with lines instead of curves that need too much memory, and the sentence that says so.

    Only curves whose number of hinges is to be selected are replaced; where they are finer or have levels, these go
    first. `rows` are those to learn from. It is too much compared with the table, or more than there is.
    """
    whole = Expansion.of(groups)
    curved = sum(len(column.basis.choices) > 0 for column in whole.columns)
    most = min(max(MAX_MEMORY, 8 * TABLES * rows * len(whole.columns)), memory_limit() or math.inf)
    for expansion in (whole, *(whole.reduced(choice)[0] for choice in CHEAPER)):
        needed = 8 * MATRICES * folds * expansion.plain.size**2
        if not curved or needed <= most:
            return expansion.groups, ()
    what = f"curves of {curved} columns would need about {needed / 1e9:.1f} GB of memory for {rows:,} rows"
    return expansion.reduced(Choice(0, False))[0].groups, (
        f"columns of numbers are lines: {what} (--basis hinge:2 fits curves)",
    )


class DefaultFamily(NamedTuple):
    """A family of classes, and a clause that says why it is the default, and what it gives up.

    `is_cheaper` says whether the time of another decided.
    """

    name: FamilyName
    why: str
    is_cheaper: bool = False


class Size(NamedTuple):
    """What the time of training depends on.

    `terms` are those of the largest candidate, `selected` those of a model; `responses` the free ones.
    """

    rows: int
    groups: int
    responses: int
    folds: int
    penalties: int
    candidates: int
    terms: int
    selected: int

    @classmethod
    def of(cls, target: Target, options: Options, expansion: Expansion, rows: int, folds: int) -> Size:
        choices = expansion.choices
        most = [choice for choice in choices if choice.level_rows == choices[-1].level_rows]  # of the most levels
        sizes = [*{choice.size: len(expansion.reduced(choice)[1]) for choice in most}.values()]
        return cls(
            rows=rows,
            groups=len(expansion.groups),
            responses=len(target.responses),
            folds=folds,
            penalties=PENALTIES if len(options.grid) > 1 else 1,
            candidates=len(choices),
            terms=sizes[-1],
            selected=sizes[len(sizes) // 2],
        )

    @property
    def least_squares(self) -> float:
        """Estimate the processor seconds of least squares.

        Constants here and below are fitted to 173 targets of public tables: half of these estimates are within a factor
        of 1.3 of the time, and half of those of a likelihood within 1.8.
        """
        n, T = self.rows, self.terms
        search = 1.2e-5 * self.groups * self.folds + 6e-10 * self.groups * T**2 + 6e-12 * self.folds * min(n, T) ** 3
        return 0.022 + 3.3e-8 * n * T + 1.3e-10 * n * T**2 + self.candidates * self.penalties * search

    @property
    def likelihood(self) -> float:
        """Estimate the seconds of a likelihood: least squares selects its terms, then each prefix is fitted.

        Many coefficients of several predictors may need many passes, and few rows are measured at every penalty. With
        the number of classes grow the time of a pass, the number of passes and that of steps (fitted to 10 to 40
        classes, and as long as for classes that lines nearly separate).
        """
        n, T, Q = self.rows, self.selected, self.responses
        passes = 1 if Q == 1 or forms_hessian(T, Q) else 6
        prefix = 3e-4 + 9e-8 * n * Q + 2.4e-10 * passes * n * T * Q + (0.0 if Q == 1 else 6e-11 * n * T * Q**3)
        prefix += 3.7e-12 * min(T * Q, DENSE_MANY) ** 3 + 2e-11 * T**3 + (1.8e-3 if n <= SMALL else 0.0)
        return self.least_squares + self.penalties * self.groups * self.folds * prefix


def affordable_levels(
    target: Target, options: Options, expansion: Expansion, rows: int, folds: int
) -> tuple[FeatureGroups, tuple[str, ...]]:
    """Return groups without finer curves, and levels of numbers, that a likelihood takes long for, and what says so.

    `rows` and `folds` are as in `family_of_classes`. Levels may separate classes, which takes a likelihood longest.
    """
    coarse, simple = (expansion.reduced(choice)[0] for choice in CHEAPER)
    if expansion.size == simple.size:
        return expansion.groups, ()
    size, said = Size.of(target, options, simple, rows, folds), list[str]()
    for what, most, fewer in (("finer curves", expansion, coarse), ("levels next to their curves", coarse, simple)):
        more = most.size - simple.size
        time = size._replace(terms=size.terms + more, selected=size.selected + more).likelihood
        if time <= max(LEVELS_S, LEVELS_PRICE * size.likelihood):
            return most.groups, tuple(said)
        if most.size > fewer.size:
            said.append(
                f"numbers have no {what}: {more} more terms would take a likelihood about "
                f"{time / size.likelihood:.0f} times as long (--family gaussian tries them)"
            )
    return simple.groups, tuple(said)


def family_of_classes(target: Target, options: Options, expansion: Expansion, rows: int, folds: int) -> DefaultFamily:
    """Return the default family of a target of classes.

    Parameters
    ----------
    expansion : Expansion
        The terms to select from.
    rows, folds : int
        Numbers of rows to learn from, and of folds.
    """
    squares, likelihood = default_family(target.task), family_names(target.task)[0]
    if not options.by.likelihoods:
        return DefaultFamily(squares, f"least squares on their indicators, which method {options.by.name} needs")
    if 0.0 in options.grid:
        hint = f"without a penalty, a {likelihood} likelihood may have no optimum"
        return DefaultFamily(squares, f"least squares on their indicators: {hint}")
    size = Size.of(target, options, expansion.reduced(CHEAPER[-1])[0], rows, folds)
    price = size.likelihood / size.least_squares
    if price > MAX_PRICE and size.likelihood > SHORT_S:
        hint = f"a {likelihood} likelihood takes about {price:.0f} times as long (--family {likelihood} fits it)"
        return DefaultFamily(squares, f"least squares on their indicators: {hint}", is_cheaper=True)
    return DefaultFamily(
        likelihood, f"{likelihood} likelihood (--family {squares}, least squares, also has {LEAST_SQUARES_ONLY})"
    )
