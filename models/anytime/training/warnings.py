"""Warnings about a fit: what the errors on held-out rows, the penalties and the rows show, and what to do about it.

They are printed by `train` and `show`, stored in the manifest, and issued as `AnytimeWarning` by the estimators.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from anytime.errors import listed
from anytime.features.expansion import Expansion
from anytime.moments.moments import Gram, Moments
from anytime.selection import GroupOrder
from anytime.target import Target, class_shares
from anytime.training.model_selection import Errors
from anytime.training.options import Options
from anytime.types import Float


class Fitted(Protocol):
    """What the warnings are about, as `anytime.training.fit.Fit` has it."""

    @property
    def expansion(self) -> Expansion: ...

    @property
    def moments(self) -> Moments: ...

    @property
    def gram(self) -> Gram: ...

    @property
    def sequence(self) -> GroupOrder: ...

    @property
    def measured(self) -> Errors | None: ...

    @property
    def options(self) -> Options: ...

    @property
    def alphas(self) -> Float: ...


WORSE_ERRORS, WORSE_SHARE = 2.0, 0.1
"""A prefix is worse than a shorter one by this number of standard errors, or by this share of the error."""

LARGEST_SHARE = 0.1
"""Share of the prefixes with the largest penalty of the grid from which that is a warning."""


def warnings_of(fitted: Fitted, target: Target) -> tuple[str, ...]:
    """Return the warnings about a fit, the most important first."""
    constant = [name for name, yy in zip(target.responses, fitted.gram.yy.tolist(), strict=True) if yy == 0]
    alike = [f"target {listed(constant)} has one value in every row: every prefix predicts it"] if constant else []
    return (*alike, *_worse_prefixes(fitted), *_largest_penalties(fitted), *_single_rows(fitted, target))


def _worse_prefixes(fitted: Fitted) -> list[str]:
    """Warn if the last prefixes have a larger error than a shorter one, beyond the noise of the folds."""
    measured = fitted.measured
    if measured is None:
        return []
    mean = measured.mean
    best = int(mean.argmin())
    # Differences within folds: their errors share what makes a fold difficult.
    later = measured.between(best)
    rise, noise = later.mean[best + 1 :], later.standard_error[best + 1 :]
    worse = best + 1 + np.flatnonzero((rise > WORSE_ERRORS * noise) | (rise > WORSE_SHARE * mean[best]))
    worse = worse[mean[worse] > mean[best] * (1 + 1e-9)]
    if not len(worse):
        return []
    last, costs = int(worse[-1]), fitted.sequence.costs
    where = f"step {best}" if best else "the base rate"
    cost = fitted.expansion.groups.amount(costs[best])
    prior = f", above {mean[0]:.4g} of the base rate" if best and mean[last] > mean[0] else ""
    return [
        f"the cross-validated error is least at {where} ({mean[best]:.4g}, cost {cost}) and worse at "
        f"step {last} ({mean[last]:.4g}, cost {costs[last]:g}{prior}): answer by the policy best or "
        f"a budget of {costs[best]:g}, or leave out the later groups"
    ]


def _largest_penalties(fitted: Fitted) -> list[str]:
    """Warn if many prefixes have the largest penalty of the grid: what they add helps little on held-out rows."""
    grid, alphas = fitted.options.grid, fitted.alphas[1:]
    largest = int((alphas == max(grid)).sum())
    if len(grid) == 1 or not largest or largest < LARGEST_SHARE * len(alphas):
        return []
    return [
        f"{largest} of {len(alphas)} prefixes have the largest penalty of the grid, {max(grid):g}: their columns help "
        "little on held-out rows; look for wild values (--clamp 0.01), curves (--basis auto) or groups to leave out"
    ]


def _single_rows(fitted: Fitted, target: Target) -> list[str]:
    """Warn about classes of one row, whose probability is little more than a guess."""
    moments = fitted.moments
    if target.classes is None or moments.weight != moments.rows:  # with weights, shares do not count rows
        return []
    means = moments.mean[moments.features : moments.features + moments.responses]
    counts = np.rint(moments.rows * class_shares(means))
    single = [label for label, count in zip(target.classes, counts.tolist(), strict=True) if count == 1]
    if not single:
        return []
    what = f"class {single[0]!r} is in one row" if len(single) == 1 else f"classes of one row: {listed(single)}"
    return [f"{what}, which no error is measured on: add rows, merge the class with another, or remove it"]
