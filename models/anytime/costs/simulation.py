"""How far predictions get by each deadline when what their groups take is random.

A sequence is computed group by group, so that prefix k is there after T_k, the sum of its groups' random costs; at the
deadline d the answer is that of the last prefix with T_k <= d. What is expected of it is simulated: costs are drawn
from their distributions, those of one input together where they were measured together. It is assumed that how long a
row takes tells nothing of how well it is predicted.
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
    """Means over draws, and the standard errors of these means; of one draw an error is 0."""

    mean: Float
    error: Float

    @classmethod
    def of(cls, values: Float) -> Estimate:
        """Of values (draws, ...)."""
        draws = len(values)
        spread = values.std(axis=0, ddof=1) if draws > 1 else np.zeros(values.shape[1:])
        return cls(np.asarray(values.mean(axis=0)), np.asarray(spread / np.sqrt(draws)))


class RandomTimes(NamedTuple):
    """When each prefix is complete, in random draws.

    Attributes
    ----------
    times : (draws, steps + 1) milliseconds; rising along each row, from 0 of the base rate.
    """

    times: Float

    def reached(self, deadlines: Float) -> Index:
        """The last prefix that is complete by each deadline, (draws, deadlines)."""
        return np.stack([(self.times <= deadline).sum(axis=1) - 1 for deadline in deadlines], axis=1)

    def prefixes(self, deadlines: Float) -> Estimate:
        """Expected number of steps by each deadline, (deadlines,)."""
        return Estimate.of(self.reached(deadlines).astype(np.float64))

    def expected(self, values: Float, deadlines: Float) -> Estimate:
        """Expected value by each deadline, (deadlines,), of something known of each prefix, (steps + 1,)."""
        return Estimate.of(values[self.reached(deadlines)])

    def timeliness(self, explained: Float, stop: float, risk: float = 1.0) -> tuple[float, float]:
        """Area under what is explained up to `stop`, as a share of `stop` times `risk`; and its standard error.

        It is what `anytime.model.curve.timeliness` calls "step", in the mean over draws.

        Parameters
        ----------
        explained : (steps + 1,) of each prefix.
        stop : milliseconds, more than 0.
        risk : the most that could be explained.
        """
        ends = np.minimum(np.column_stack([self.times[:, 1:], np.full(len(self.times), np.inf)]), stop)
        spent = ends - np.minimum(self.times, stop)
        mean, error = Estimate.of(spent @ explained / (stop * risk))
        return float(mean), float(error)


def completions(steps: Many[Many[int]], costs: Float) -> RandomTimes:
    """When each prefix is complete.

    Parameters
    ----------
    steps : columns of `costs` that each step adds.
    costs : (draws, groups) milliseconds, 0 or more.
    """
    added = [costs[:, list(columns)].sum(axis=1) for columns in steps]
    return RandomTimes(np.cumsum([np.zeros(len(costs)), *added], axis=0).T)


def simulate(model: Model, distributions: CostDistributions, draws: int, rng: np.random.Generator) -> RandomTimes:
    """Draw when each prefix of a model is complete.

    Groups without features, which are computed by nobody, cost what the model says, if that is a time.

    Parameters
    ----------
    draws : how many predictions are simulated; a standard error falls as 1 / sqrt(draws).

    Raises
    ------
    GroupsError
        A group that has features has no distribution; or one without costs something that is no time.
    """
    groups = model.groups
    featured = [group.name for group in groups.groups if group.features]
    lost = distributions.missing(featured)
    if lost:
        raise GroupsError(f"there are no distributions of {listed(lost)}; expected one for each group with features")
    drawn = [name for name in groups.names if name in distributions.groups]
    factor = milliseconds(groups.cost_unit)
    costs = np.zeros((draws, len(groups)))
    costs[:, [groups.positions[name] for name in drawn]] = distributions.draw(drawn, draws, rng)
    for position, group in enumerate(groups.groups):
        if group.name in distributions.groups or group.cost == 0:
            continue
        if factor is None:
            raise GroupsError(
                f"group {group.name!r} has no features and costs {group.cost:g} {groups.cost_unit}, which is no time; "
                "give costs in ms"
            )
        costs[:, position] = factor * group.cost
    steps = [[groups.positions[name] for name in step.adds] for step in model.manifest.steps]
    return completions(steps, costs)
