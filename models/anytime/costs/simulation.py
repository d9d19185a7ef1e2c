"""Expected quality at each deadline when the times of the groups are random.

A sequence is computed group by group, so prefix k is complete at T_k, the sum of its groups' random times; at the
deadline d the answer is that of the last prefix with T_k <= d. Its expected quality is simulated: times are drawn from
their distributions, those of one input together if they were measured together. The time of a row is assumed to be
independent of how well it is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import NamedTuple

import numpy as np

from anytime.costs.distributions import CostDistributions, milliseconds
from anytime.errors import GroupsError, listed
from anytime.model.model import Model
from anytime.types import Float, Index

__all__ = [
    "Estimate",
    "RandomTimes",
    "completions",
    "simulate",
]


class Estimate(NamedTuple):
    """Means over draws, and the standard errors of these means; for one draw an error is 0."""

    mean: Float
    error: Float

    @classmethod
    def of(cls, values: Float) -> Estimate:
        """Return the estimate from values (draws, ...)."""
        draws = len(values)
        spread = values.std(axis=0, ddof=1) if draws > 1 else np.zeros(values.shape[1:])
        return cls(np.asarray(values.mean(axis=0)), np.asarray(spread / np.sqrt(draws)))


class RandomTimes(NamedTuple):
    """Times at which each prefix is complete, in random draws.

    Attributes
    ----------
    times : (draws, steps + 1) milliseconds; increasing along each row, from 0 for the base rate.
    """

    times: Float

    def reached(self, deadlines: Float) -> Index:
        """Return the last prefix that is complete by each deadline, (draws, deadlines)."""
        return np.stack([(self.times <= deadline).sum(axis=1) - 1 for deadline in deadlines], axis=1)

    def prefixes(self, deadlines: Float) -> Estimate:
        """Return the expected number of steps by each deadline, (deadlines,)."""
        return Estimate.of(self.reached(deadlines).astype(np.float64))

    def expected(self, values: Float, deadlines: Float) -> Estimate:
        """Return the expected value by each deadline, (deadlines,), of a quantity of each prefix, (steps + 1,)."""
        return Estimate.of(values[self.reached(deadlines)])

    def timeliness(self, explained: Float, stop: float, risk: float = 1.0) -> tuple[float, float]:
        """Return the area under `explained` up to `stop`, as a share of `stop` times `risk`; and its standard error.

        This is the "step" variant of `anytime.model.curve.timeliness`, averaged over draws.

        Parameters
        ----------
        explained : (steps + 1,) of each prefix.
        stop : milliseconds, more than 0.
        risk : maximum of `explained`.
        """
        ends = np.minimum(np.column_stack([self.times[:, 1:], np.full(len(self.times), np.inf)]), stop)
        spent = ends - np.minimum(self.times, stop)
        mean, error = Estimate.of(spent @ explained / (stop * risk))
        return float(mean), float(error)


def completions(steps: Many[Many[int]], costs: Float) -> RandomTimes:
    """Return the times at which each prefix is complete.

    Parameters
    ----------
    steps : columns of `costs` that each step adds.
    costs : (draws, groups) milliseconds, 0 or more.
    """
    added = [costs[:, list(columns)].sum(axis=1) for columns in steps]
    return RandomTimes(np.cumsum([np.zeros(len(costs)), *added], axis=0).T)


def simulate(model: Model, distributions: CostDistributions, draws: int, rng: np.random.Generator) -> RandomTimes:
    """Draw the times at which each prefix of a model is complete.

    Groups without features are not computed; they take their cost in the model, if that is a time.

    Parameters
    ----------
    draws : number of simulated predictions; a standard error falls as 1 / sqrt(draws).

    Raises
    ------
    GroupsError
        A group that has features has no distribution; or the cost of one without features is not a time.
    """
    groups = model.groups
    featured = [group.name for group in groups.groups if group.features]
    missing = distributions.missing(featured)
    if missing:
        raise GroupsError(f"no distribution for {listed(missing)}; expected one for each group with features")
    drawn = [name for name in groups.names if name in distributions.groups]
    factor = milliseconds(groups.cost_unit)
    costs = np.zeros((draws, len(groups)))
    costs[:, [groups.positions[name] for name in drawn]] = distributions.draw(drawn, draws, rng)
    for position, group in enumerate(groups.groups):
        if group.name in distributions.groups or group.cost == 0:
            continue
        if factor is None:
            raise GroupsError(
                f"group {group.name!r} without features costs {group.cost:g} {groups.cost_unit}, which is not a time; "
                "give costs in ms"
            )
        costs[:, position] = factor * group.cost
    steps = [[groups.positions[name] for name in step.adds] for step in model.manifest.steps]
    return completions(steps, costs)
