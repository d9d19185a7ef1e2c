"""Effect of new costs on a model's sequence: whether it would change, and what the current sequence loses.

The module compares two curves at the new costs: the curve of the current sequence and that of the sequence that
training would choose now. For least squares the new sequence is learned from the moments in the model. A likelihood is
refitted on its rows. Without moments or rows the curve is *estimated*: the steps retain their gains and are sorted by
gain per new cost, each after the steps that it requires.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from anytime.families import family_of
from anytime.groups import FeatureGroups
from anytime.model.curve import plateau_level, reordered, stopping_cost, timeliness
from anytime.model.model import Model, affordable
from anytime.training.resequencing import Retrained, resequence
from anytime.types import Float


@dataclass(frozen=True, eq=False)
class Order:
    """A sequence at given costs, and its curve."""

    steps: tuple[tuple[str, ...], ...]
    """The groups that each step adds, the chosen one last."""
    costs: Float
    """(steps + 1,) cumulative."""
    explained: Float
    """(steps + 1,) F of each prefix in training, as a share of the risk of the base rate, at one penalty for all."""
    r2: Float | None
    """(steps + 1,) training R² by the coefficients stored in the model; None if a response is constant."""

    def at(self, budget: float) -> float | None:
        return None if self.r2 is None else float(self.r2[affordable(self.costs, budget)])


@dataclass(frozen=True, eq=False)
class Drift:
    """The current sequence (`staying`) and the one that training would choose now (`moving`), both at the new costs."""

    staying: Order
    moving: Order
    estimated: bool
    """Whether `moving` is estimated from the steps' own gains, because moments or rows are missing."""

    @property
    def changes(self) -> bool:
        return self.staying.steps != self.moving.steps

    @cached_property
    def stop(self) -> float:
        """Cost at which the new sequence reaches its plateau; timeliness is measured up to there."""
        moving = self.moving
        return stopping_cost(moving.costs, moving.explained, plateau_level(moving.costs, moving.explained))

    @cached_property
    def timeliness(self) -> tuple[float, float]:
        """Area under the explained share up to `stop`, as a share of it: for `staying` and for `moving`."""
        staying, moving = (
            timeliness(order.costs, order.explained, self.stop, 1.0, "step") for order in (self.staying, self.moving)
        )
        return staying, moving

    @property
    def lost(self) -> float:
        """Timeliness, 0 to 1, that the current sequence loses."""
        staying, moving = self.timeliness
        return max(moving - staying, 0.0)


def drift(model: Model, groups: FeatureGroups, data: Retrained | None = None) -> Drift:
    """Compare a model's sequence with the one that it would have with these groups, its own at other costs.

    Families other than "gaussian" need `data`, the rows; without them the new curve is estimated. Raises GroupsError
    for the groups of another model.
    """
    priced = model.groups.with_costs(groups)
    staying = _order(model, priced)
    squares = family_of(model.manifest.family).least_squares
    learnable = model.moments is not None if squares else data is not None
    if not learnable:
        return Drift(staying, _sorted(model, staying, priced), estimated=True)
    moving = _order(resequence(model, priced, data=data), priced)
    return Drift(staying, _equal_on_equal_sets(moving, staying), estimated=False)


def _equal_on_equal_sets(moving: Order, staying: Order) -> Order:
    """Return the new sequence with the curve of the current one where both have computed the same groups.

    The penalties of the prefixes may differ, which is no difference of the sequences.
    """
    current = {groups: prefix for prefix, groups in enumerate(_sets(staying))}
    same = np.array([(prefix, current[groups]) for prefix, groups in enumerate(_sets(moving)) if groups in current])
    explained, r2 = moving.explained.copy(), None if moving.r2 is None else moving.r2.copy()
    explained[same[:, 0]] = staying.explained[same[:, 1]]
    if r2 is not None and staying.r2 is not None:
        r2[same[:, 0]] = staying.r2[same[:, 1]]
    return replace(moving, explained=explained, r2=r2)


def _sets(order: Order) -> list[frozenset[str]]:
    """Return the groups of each prefix, the empty one first."""
    return list(accumulate(order.steps, lambda known, adds: known | {*adds}, initial=frozenset[str]()))


def _order(model: Model, groups: FeatureGroups) -> Order:
    r2 = [model.expected(prefix).r2 for prefix in range(model.steps + 1)]
    known = None if None in r2 else np.array(r2, dtype=np.float64)
    steps = tuple(step.adds for step in model.manifest.steps)
    return Order(steps, _cumulative_costs(steps, groups), model.explained_shares, known)


def _cumulative_costs(steps: tuple[tuple[str, ...], ...], groups: FeatureGroups) -> Float:
    spent = [sum(groups.costs[groups.positions[name]] for name in adds) for adds in steps]
    return np.cumsum([0.0, *spent])


def _sorted(model: Model, staying: Order, groups: FeatureGroups) -> Order:
    """Return the steps by decreasing gain per new cost, each after those that it requires.

    Steps of groups that the user placed first stay in place, as does a cost-blind order.
    """
    if model.manifest.cost_blind:
        return staying
    gains, costs = np.diff(staying.explained), np.diff(staying.costs)
    density = np.divide(gains, costs, out=np.full(len(gains), np.inf), where=costs > 0)
    owner = {name: k for k, adds in enumerate(staying.steps) for name in adds}
    needed = [
        {owner[groups.names[g]] for name in adds for g in groups.prerequisites[groups.positions[name]]} - {k}
        for k, adds in enumerate(staying.steps)
    ]
    first = set(model.manifest.first)
    order = [k for k, adds in enumerate(staying.steps) if first.intersection(adds)]
    remaining = [k for k in range(len(gains)) if k not in order]
    while remaining:
        # New requirements may make steps (never groups) require each other: then the first remaining one is next.
        open_steps = [k for k in remaining if needed[k].issubset(order)] or remaining[:1]
        best = max(open_steps, key=lambda k: float(density[k]))
        order.append(best)
        remaining.remove(best)
    steps = tuple(staying.steps[k] for k in order)
    r2 = None if staying.r2 is None else reordered(staying.r2, order)
    return Order(steps, _cumulative_costs(steps, groups), reordered(staying.explained, order), r2)
