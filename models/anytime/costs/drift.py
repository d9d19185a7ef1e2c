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
    """The `current` sequence and the one that training would choose now (`relearned`), both at the new costs."""

    current: Order
    relearned: Order
    estimated: bool
    """Whether `relearned` is estimated from the steps' own gains, because moments or rows are missing."""

    @property
    def changes(self) -> bool:
        return self.current.steps != self.relearned.steps

    @cached_property
    def stop(self) -> float:
        """Cost at which the new sequence reaches its plateau; timeliness is measured up to there."""
        relearned = self.relearned
        return stopping_cost(relearned.costs, relearned.explained, plateau_level(relearned.costs, relearned.explained))

    @cached_property
    def timeliness(self) -> tuple[float, float]:
        """Area under the explained share up to `stop`, as a share of it: for `current` and for `relearned`."""
        current, relearned = (
            timeliness(order.costs, order.explained, self.stop, 1.0, "step") for order in (self.current, self.relearned)
        )
        return current, relearned

    @property
    def lost(self) -> float:
        """Timeliness, 0 to 1, that the current sequence loses."""
        current, relearned = self.timeliness
        return max(relearned - current, 0.0)


def drift(model: Model, groups: FeatureGroups, data: Retrained | None = None) -> Drift:
    """Compare a model's sequence with the one that it would have with these groups, its own at other costs.

    Families other than "gaussian" need `data`, the rows; without them the new curve is estimated. Raises GroupsError
    for the groups of another model.
    """
    priced = model.groups.with_costs(groups)
    current = _order(model, priced)
    least_squares = family_of(model.manifest.family).least_squares
    if (model.moments if least_squares else data) is None:
        return Drift(current, _sorted(model, current, priced), estimated=True)
    relearned = _equal_on_equal_sets(_order(resequence(model, priced, data=data), priced), current)
    return Drift(current, relearned, estimated=False)


def _equal_on_equal_sets(relearned: Order, current: Order) -> Order:
    """Return the new sequence with the curve of the current one where both have computed the same groups.

    The penalties of the prefixes may differ, which is no difference of the sequences.
    """
    known = {groups: prefix for prefix, groups in enumerate(_sets(current))}
    same = np.array([(prefix, known[groups]) for prefix, groups in enumerate(_sets(relearned)) if groups in known])
    explained, r2 = relearned.explained.copy(), None if relearned.r2 is None else relearned.r2.copy()
    explained[same[:, 0]] = current.explained[same[:, 1]]
    if r2 is not None and current.r2 is not None:
        r2[same[:, 0]] = current.r2[same[:, 1]]
    return replace(relearned, explained=explained, r2=r2)


def _sets(order: Order) -> list[frozenset[str]]:
    """Return the groups of each prefix, the empty one first."""
    return list(accumulate(order.steps, lambda known, adds: known | {*adds}, initial=frozenset[str]()))


def _order(model: Model, groups: FeatureGroups) -> Order:
    r2 = [model.expected(prefix).r2 for prefix in range(model.steps + 1)]
    known = None if None in r2 else np.array(r2, dtype=np.float64)
    steps = tuple(step.adds for step in model.manifest.steps)
    return Order(steps, _cumulative_costs(steps, groups), model.explained_shares, known)


def _cumulative_costs(steps: tuple[tuple[str, ...], ...], groups: FeatureGroups) -> Float:
    return np.cumsum([0.0, *(sum(groups.costs[groups.positions[name]] for name in adds) for adds in steps)])


def _sorted(model: Model, current: Order, groups: FeatureGroups) -> Order:
    """Return the steps by decreasing gain per new cost, each after those that it requires.

    Steps of groups that the user placed first stay in place, as does a cost-blind order.
    """
    if model.manifest.cost_blind:
        return current
    gains, costs = np.diff(current.explained), np.diff(current.costs)
    density = np.divide(gains, costs, out=np.full(len(gains), np.inf), where=costs > 0)
    owner = {name: k for k, adds in enumerate(current.steps) for name in adds}
    needed = [
        {owner[groups.names[g]] for name in adds for g in groups.prerequisites[groups.positions[name]]} - {k}
        for k, adds in enumerate(current.steps)
    ]
    first = set(model.manifest.first)
    order = [k for k, adds in enumerate(current.steps) if first.intersection(adds)]
    remaining = [k for k in range(len(gains)) if k not in order]
    while remaining:
        # New requirements may make steps (never groups) require each other: then the first remaining one is next.
        open_steps = [k for k in remaining if needed[k].issubset(order)] or remaining[:1]
        best = max(open_steps, key=lambda k: float(density[k]))
        order.append(best)
        remaining.remove(best)
    steps = tuple(current.steps[k] for k in order)
    r2 = None if current.r2 is None else reordered(current.r2, order)
    return Order(steps, _cumulative_costs(steps, groups), reordered(current.explained, order), r2)
