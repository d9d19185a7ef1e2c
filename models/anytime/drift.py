"""Whether other costs would change a model's sequence, and what is lost by leaving it as it is.

Both curves are at the new costs: that of the sequence as it stands, and that of the sequence that would be learned now.
By least squares the latter is learned from the moments that the model carries; a likelihood is fitted on its rows
again, and where there are none the curve is *estimated*: the steps keep what they gained, and are sorted by what they
gain for the new costs, each after those that it requires.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anytime.arrays import Float
from anytime.curve import plateau_level, stopping_cost, timeliness
from anytime.groups import FeatureGroups
from anytime.model import AnytimeModel, affordable
from anytime.resequencing import Retrained, resequence

__all__ = ["Drift", "Order", "drift"]


@dataclass(frozen=True, eq=False)
class Order:
    """A sequence at given costs.

    Attributes
    ----------
    steps : the groups that each step adds, the chosen one last.
    costs, r2 : (steps + 1,) cumulative cost and share explained of each prefix, in training.
    """

    steps: tuple[tuple[str, ...], ...]
    costs: Float
    r2: Float

    def at(self, budget: float) -> float:
        """Share explained within a budget."""
        return float(self.r2[affordable(self.costs, budget)])


@dataclass(frozen=True, eq=False)
class Drift:
    """The sequence as it stands beside the one that would be learned, both at the new costs.

    Attributes
    ----------
    groups : the groups at the new costs.
    staying, moving : the two.
    estimated : whether `moving` is estimated from the steps' own gains, for want of moments or rows.
    """

    groups: FeatureGroups
    staying: Order
    moving: Order
    estimated: bool

    @property
    def changes(self) -> bool:
        """Whether the sequence would be another."""
        return self.staying.steps != self.moving.steps

    @cached_property
    def stop(self) -> float:
        """Cost at which the new sequence has its plateau; timeliness is measured up to there."""
        moving = self.moving
        return stopping_cost(moving.costs, moving.r2, plateau_level(moving.costs, moving.r2))

    @cached_property
    def timeliness(self) -> tuple[float, float]:
        """Area under the share explained up to `stop`, as a share of it: staying, and moving."""
        staying, moving = (
            timeliness(order.costs, order.r2, self.stop, 1.0, "step") for order in (self.staying, self.moving)
        )
        return staying, moving

    @property
    def lost(self) -> float:
        """What staying loses: of timeliness, 0 to 1."""
        staying, moving = self.timeliness
        return max(moving - staying, 0.0)


def drift(model: AnytimeModel, groups: FeatureGroups, data: Retrained | None = None) -> Drift:
    """Compare a model's sequence with the one that it would have at other costs.

    Parameters
    ----------
    groups : the model's groups at the new costs.
    data : the rows, for families other than "gaussian"; without them the new curve is estimated.

    Raises
    ------
    GroupsError
        These are not the groups of the model.
    """
    priced = model.groups.with_costs(groups)
    staying = _order([step.adds for step in model.manifest.steps], _r2(model), priced)
    learnable = data is not None if model.manifest.family != "gaussian" else model.moments is not None
    if not learnable:
        return Drift(priced, staying, _sorted(model, staying, priced), estimated=True)
    new = resequence(model, priced, data=data)
    moving = _order([step.adds for step in new.manifest.steps], _r2(new), priced)
    return Drift(priced, staying, moving, estimated=False)


def _r2(model: AnytimeModel) -> Float:
    return np.array([0.0, *(step.r2 for step in model.manifest.steps)])


def _order(steps: list[tuple[str, ...]], r2: Float, groups: FeatureGroups) -> Order:
    spent = [sum(groups.groups[groups.positions[name]].cost for name in adds) for adds in steps]
    return Order(tuple(steps), np.cumsum([0.0, *spent]), r2)


def _sorted(model: AnytimeModel, staying: Order, groups: FeatureGroups) -> Order:
    """The steps by falling gain per new cost, each after those that it requires; a cost-blind order stays.

    New requirements may tie steps of several groups to each other: these are taken as they stand.
    """
    if model.manifest.cost_blind:
        return staying
    gains, costs = np.diff(staying.r2), np.diff(staying.costs)
    density = np.divide(gains, costs, out=np.full(len(gains), np.inf), where=costs > 0)
    owner = {name: k for k, adds in enumerate(staying.steps) for name in adds}
    needed = [
        {owner[groups.names[g]] for name in adds for g in groups.prerequisites[groups.positions[name]]} - {k}
        for k, adds in enumerate(staying.steps)
    ]
    left = list(range(len(gains)))
    order: list[int] = []
    taken: set[int] = set()
    while left:
        # None is open where steps require each other, as their groups never do: then the first one left is next.
        open_steps = [k for k in left if needed[k] <= taken] or left[:1]
        best = max(open_steps, key=lambda k: float(density[k]))
        order.append(best)
        taken.add(best)
        left.remove(best)
    r2 = np.concatenate([[0.0], np.cumsum(gains[order])])
    return _order([staying.steps[k] for k in order], r2, groups)
