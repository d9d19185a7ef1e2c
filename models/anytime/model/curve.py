"""The anytime curve, explained variance against cost, and its summary statistics (section 5.2 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anytime.tabulated import R2, Series, Tabular, Tabulated
from anytime.types import Float, Index

Shape = Literal["trapezoid", "step"]


@dataclass(frozen=True, eq=False)
class Curve(Tabular):
    """Cost and explained variance of the prefixes of a sequence; element 0 is the empty prefix, the base rate.

    Attributes
    ----------
    costs : Float
        (steps + 1,) cumulative cost.
    explained_variance : Float
        (steps + 1,) F on the standardised training data, at most half the number of responses.
    cv_error : Float | None
        (steps + 1,) cross-validated mean squared error in target units, or None without cross-validation.
    r2 : Float | None
        (steps + 1,) R² on the training rows, or None where the target is constant.
    groups : tuple[str, ...]
        The chosen group of each step, (steps,); empty if it is not known.
    """

    costs: Float
    explained_variance: Float
    cv_error: Float | None = None
    r2: Float | None = None
    groups: tuple[str, ...] = ()

    @property
    def table(self) -> Tabulated:
        """Return the curve as a table with a row for each prefix."""
        return Tabulated.of(
            Series("step", range(len(self.costs))),
            Series("group", ["(base rate)", *(self.groups or ("",) * (len(self.costs) - 1))]),
            Series("cost", self.costs, form="g"),
            Series("explained variance", self.explained_variance, "explained_variance"),
            Series("r2", self.r2, form=R2),
            Series("cv error", self.cv_error, "cv_error"),
        )


PLATEAU_LEVELS = (0.95, 0.96, 0.97, 0.98, 0.99)
"""Levels at which a plateau may begin."""


def stopping_cost(costs: Float, explained: Float, level: float) -> float:
    """Return the cost of the first prefix that reaches `level` of the final F: the alpha-stopping cost, alpha = level.

    `costs` and `explained` (steps + 1,) are the cumulative cost and F of each prefix, the empty prefix first.
    """
    return float(costs[np.flatnonzero(explained >= level * explained[-1] * (1 - 1e-12))[0]])


def plateau_level(costs: Float, explained: Float) -> float:
    """Return the level at which the curve reaches its final plateau, 1 if it has none.

    On a plateau, the next 1 % of the final F costs more than 20 % of all features, and at least 95 % is achieved.
    """
    next_percent = {
        level: stopping_cost(costs, explained, level + 0.01) - stopping_cost(costs, explained, level)
        for level in PLATEAU_LEVELS
    }
    return next((level for level, cost in next_percent.items() if cost > 0.2 * costs[-1]), 1.0)


def reordered(values: Float, steps: Index | Sequence[int]) -> Float:
    """Return cumulative values (steps + 1,) of prefixes with the increments of the steps in another order."""
    return np.cumsum([values[0], *np.diff(values)[steps]])


def timeliness(costs: Float, explained: Float, stop: float, risk: float, shape: Shape = "trapezoid") -> float:
    """Return the area under F against cost up to the cost `stop`, divided by `stop` times the empty prefix's risk.

    Parameters
    ----------
    costs, explained : Float
        As in `stopping_cost`.
    stop : float
        Cost at which the curve ends: for every method compared, the `stopping_cost` of CS-G-OMP on the training data.
    risk : float
        R(empty) on the same table, half the responses' variance.
    shape : Shape
        "trapezoid" joins the prefixes linearly and interpolates the last interval, as the paper does; "step" keeps each
        value until the next prefix is complete, as an interrupted client observes it.
    """
    if stop <= 0 or risk <= 0:
        return 0.0
    before = costs < stop
    edges = np.append(costs[before], stop)
    if shape == "step":
        area = float(np.diff(edges) @ explained[before])
    else:
        # The curve is vertical at a free step; just before the stop it has the value of the first prefix at that cost.
        k = int(before.sum())
        end = np.interp(stop, costs[k - 1 : k + 1], explained[k - 1 : k + 1])
        area = float(np.trapezoid(np.append(explained[before], end), edges))
    return area / (stop * risk)
