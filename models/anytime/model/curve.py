"""Explained variance against cost: the anytime curve, and the numbers that sum it up (section 5.2 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anytime.types import Float, Index

__all__ = [
    "PLATEAU_LEVELS",
    "Curve",
    "Shape",
    "plateau_level",
    "reordered",
    "stopping_cost",
    "timeliness",
]

Shape = Literal["trapezoid", "step"]


@dataclass(frozen=True, eq=False)
class Curve:
    """What the prefixes of a sequence cost and explain; element 0 is the empty prefix, the base rate.

    Attributes
    ----------
    costs : (steps + 1,) cumulative cost.
    explained_variance : (steps + 1,) F on the standardised training data, at most half the number of responses.
    cv_error : (steps + 1,) cross-validated mean squared error in target units, or None where nothing was held out.
    """

    costs: Float
    explained_variance: Float
    cv_error: Float | None = None


PLATEAU_LEVELS = (0.95, 0.96, 0.97, 0.98, 0.99)
"""Levels at which a plateau may begin."""


def stopping_cost(costs: Float, explained: Float, level: float) -> float:
    """Cost of the first prefix that reaches `level` of the final value: the alpha-stopping cost, at alpha = level.

    Parameters
    ----------
    costs, explained : (steps + 1,) cumulative cost and F of each prefix, element 0 being the empty one.
    level : share of the final F, in [0, 1].
    """
    reached = np.flatnonzero(explained >= level * explained[-1] * (1 - 1e-12))
    return float(costs[reached[0]])


def plateau_level(costs: Float, explained: Float) -> float:
    """The level at which the curve reaches its final plateau, 1 where it has none.

    From a plateau on, the next 1 % of the final F costs more than 20 % of all features, and at least 95 % is achieved.
    """
    for level in PLATEAU_LEVELS:
        next_percent = stopping_cost(costs, explained, level + 0.01) - stopping_cost(costs, explained, level)
        if next_percent > 0.2 * costs[-1]:
            return level
    return 1.0


def reordered(values: Float, steps: Index | Sequence[int]) -> Float:
    """Return cumulative values (steps + 1,) of prefixes with the increments of the steps in another order."""
    return np.cumsum([values[0], *np.diff(values)[steps]])


def timeliness(costs: Float, explained: Float, stop: float, risk: float, shape: Shape = "trapezoid") -> float:
    """Area under F against cost up to the cost `stop`, divided by `stop` times the risk of the empty prefix.

    Parameters
    ----------
    costs, explained : (steps + 1,) cumulative cost and F of each prefix, element 0 being the empty one.
    stop : where the curve is cut: the `stopping_cost` of CS-G-OMP on the training data, for every method compared.
    risk : R(empty) on the same table, half the responses' variance.
    shape : "trapezoid" joins the prefixes and interpolates the last interval, as the paper does; "step" holds each
    value
        until the next prefix is complete, as an interrupted client lives it.
    """
    if stop <= 0 or risk <= 0:
        return 0.0
    before = costs < stop
    edges = np.append(costs[before], stop)
    if shape == "step":
        area = float(np.diff(edges) @ explained[before])
    else:
        # The curve rises straight up at a free step; just before the stop it has the value of the first prefix there.
        k = int(before.sum())
        if k < len(costs):
            end = explained[k - 1] + (explained[k] - explained[k - 1]) * (stop - costs[k - 1]) / (
                costs[k] - costs[k - 1]
            )
        else:
            end = explained[-1]
        area = float(np.trapezoid(np.append(explained[before], end), edges))
    return area / (stop * risk)
