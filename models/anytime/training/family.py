"""The family of a target of classes where none is stated: a likelihood, unless it takes much longer to train.

Least squares can do what a likelihood cannot: `LEAST_SQUARES_ONLY`. A likelihood has better probabilities.
"""

from __future__ import annotations

from typing import NamedTuple

from anytime.families import default_family, family_names
from anytime.features.expansion import Expansion
from anytime.target import Target
from anytime.training.clamping import CLAMPS
from anytime.training.options import Options
from anytime.types import FamilyName

MAX_PRICE = 5.0
"""Estimated time of a likelihood, in times of least squares, up to which it is the default."""

PENALTIES = 8
"""About the number of penalties of a grid that are measured."""

LEAST_SQUARES_ONLY = "re-sequencing without data, exact answers from any set of groups, and certificates"


class ChosenFamily(NamedTuple):
    """A family, and a clause that says why, and what it gives up."""

    name: FamilyName
    why: str


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
        sizes = [expansion.with_size(size)[1].size for size in expansion.sizes]
        return cls(
            rows=rows,
            groups=len(expansion.groups),
            responses=len(target.responses),
            folds=folds,
            penalties=PENALTIES if len(options.grid) > 1 else 1,
            candidates=len(sizes) * max(1, len(expansion.level_rows)) * (len(CLAMPS) - 1 if len(sizes) > 1 else 1),
            terms=sizes[-1],
            selected=sizes[len(sizes) // 2],
        )

    @property
    def least_squares(self) -> float:
        """Estimate the processor seconds of least squares; the constants are of random tables of 3 to 90 columns."""
        n, T = self.rows, self.terms
        search = 3.5e-5 * self.groups * self.folds + 1.3e-10 * self.groups * T**2 + 1.1e-11 * self.folds * T**3
        return 4.6e-3 + 2.4e-8 * n * T + 4.8e-10 * n * T**2 + self.candidates * self.penalties * search

    @property
    def likelihood(self) -> float:
        """Estimate the seconds of a likelihood: least squares selects its terms, then each prefix is fitted."""
        n, T, P = self.rows, self.selected, self.responses
        prefix = 4.1e-4 * self.folds + 2.5e-8 * n * P * self.folds + 6.5e-11 * T**3 * P
        return self.least_squares + 4.5e-8 * n * T * P + self.penalties * self.groups * prefix


def family_of_classes(target: Target, options: Options, expansion: Expansion, rows: int, folds: int) -> ChosenFamily:
    """Return the default family of a target of classes.

    Parameters
    ----------
    expansion : Expansion
        The terms to select from.
    rows, folds : int
        Numbers of rows to learn from, and of folds.
    """
    squares, likelihood = default_family(target.task), family_names(target.task)[0]
    if not options.rule.by.likelihoods:
        return ChosenFamily(squares, f"least squares on their indicators, which method {options.rule.name} needs")
    if 0.0 in options.grid:
        hint = f"without a penalty, a {likelihood} likelihood may have no optimum"
        return ChosenFamily(squares, f"least squares on their indicators: {hint}")
    size = Size.of(target, options, expansion, rows, folds)
    price = size.likelihood / size.least_squares
    if price > MAX_PRICE:
        hint = f"a {likelihood} likelihood takes about {price:.0f} times as long (--family {likelihood} fits it)"
        return ChosenFamily(squares, f"least squares on their indicators: {hint}")
    return ChosenFamily(
        likelihood, f"{likelihood} likelihood (--family {squares}, least squares, has {LEAST_SQUARES_ONLY})"
    )
