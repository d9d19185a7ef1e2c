"""What if: a model at other costs or without some groups, next to the model as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anytime.data.formats import Table
from anytime.errors import GroupsError, TrainingError, listed
from anytime.groups import COST_TOLERANCE
from anytime.model.model import Model, checked_budget
from anytime.tabulated import R2, SHARE, Series, Tabular, Tabulated
from anytime.training.resequencing import Changes, Retrained, open_retrained, resequence


@dataclass(frozen=True)
class AtBudget:
    """What two models use within one budget.

    Attributes
    ----------
    costs : tuple[float, float]
        The cost spent before and after the change.
    groups : tuple[tuple[str, ...], tuple[str, ...]]
        The groups used, in their order.
    r2 : tuple[float | None, float | None]
        R² on the training rows; for a likelihood 1 - deviance/null deviance; None where the target is constant.
    shares : tuple[float | None, float | None]
        r2 as a share of that of the unchanged model with all groups; None where that is 0 or unknown.
    enters, leaves : tuple[str, ...]
        Groups that only the changed model uses, and that only the unchanged one uses.
    """

    budget: float
    costs: tuple[float, float]
    groups: tuple[tuple[str, ...], tuple[str, ...]]
    r2: tuple[float | None, float | None]
    shares: tuple[float | None, float | None]

    @property
    def enters(self) -> tuple[str, ...]:
        return tuple(name for name in self.groups[1] if name not in self.groups[0])

    @property
    def leaves(self) -> tuple[str, ...]:
        return tuple(name for name in self.groups[0] if name not in self.groups[1])

    @property
    def loss(self) -> float | None:
        """Return how much r2 the change costs; negative if it gains."""
        before, after = self.r2
        return None if before is None or after is None else before - after


@dataclass(frozen=True, eq=False)
class WhatIf(Tabular):
    """A model before and after a change, and both at each budget; `changes` says in words what changed."""

    before: Model
    after: Model
    changes: str
    budgets: tuple[AtBudget, ...]

    def __repr__(self) -> str:
        return f"<WhatIf {self.before.name}: {self.changes}, {len(self.budgets)} budgets>"

    @property
    def table(self) -> Tabulated:
        """Return what both models use within each budget as a table."""
        budgets, unit = self.budgets, self.before.groups.cost_unit
        changed = (
            Series("new r2", [each.r2[1] for each in budgets], "new_r2", R2),
            Series("of full", [each.shares[1] for each in budgets], "new_share", SHARE),
            Series("loss", [each.loss for each in budgets], form=R2),
            Series("enters", [each.enters for each in budgets]),
            Series("leaves", [each.leaves for each in budgets]),
        )
        return Tabulated.of(
            Series("budget", [each.budget for each in budgets], form="g"),
            Series("r2", [each.r2[0] for each in budgets], form=R2),
            Series("of full", [each.shares[0] for each in budgets], "share", SHARE),
            Series("groups", [each.groups[0] for each in budgets] if self.after is self.before else None),
            *(() if self.after is self.before else changed),
            caption=f"{self.before.name}, {self.changes} ({unit}); r2 on the training rows",
        )


def what_if(
    model: Model,
    *,
    costs: Mapping[str, float | str] = {},
    without: str | Iterable[str] = (),
    budgets: float | Iterable[float] = (),
    data: Retrained | Table | None = None,
) -> WhatIf:
    """Return a model at other costs or without some groups, next to itself, at some budgets.

    Least squares needs no rows: the changed model is learned from the moments in the model, at the penalty that ordered
    its groups.

    Parameters
    ----------
    costs : Mapping[str, float | str]
        New costs by group, numbers or texts such as "5ms".
    without : str | Iterable[str]
        Groups that are not there, or one.
    budgets : float | Iterable[float]
        In the model's cost unit, per row, or one; by default half the cost of all groups, and all of it.
    data : Retrained | Table | None
        The rows, for families other than "gaussian"; a table has the target column.

    Raises
    ------
    GroupsError
        A group is unknown, has a new cost and is left out, or is required by one that stays.
    ValuesError
        A budget is negative or not a number.
    TrainingError
        A likelihood without data, or a model without moments.
    """
    without = (without,) if isinstance(without, str) else tuple(dict.fromkeys(without))
    stated = budgets if isinstance(budgets, Iterable) and not isinstance(budgets, str) else (budgets,)
    given = [checked_budget(budget, model.groups.cost_unit) for budget in stated]
    total = float(model.costs[-1])
    asked = [total if budget is None else budget for budget in given] or [total / 2, total]
    if both := [name for name in without if name in costs]:
        raise GroupsError(f"{listed(both)} has a new cost and is left out; expected one of them")
    priced = model.groups.with_stated_costs(costs)
    words = [*(f"{name} costs {priced.groups[priced.positions[name]].call_cost.of_call(1):g}" for name in costs)]
    words += [f"without {name}" for name in without]
    after = model
    if words:
        if not model.manifest.learned.family.least_squares and data is None:
            raise TrainingError(
                f"model {model.name!r} has family {model.manifest.family}, which is fitted on rows; add --data TABLE"
            )
        changes = Changes(without=without)
        if isinstance(data, Table):
            data = open_retrained(model, data, changes.options(model.manifest).rule.remaining(priced))
        after = resequence(model, priced if costs else None, data=data, changes=changes)
    full = model.expected(model.steps).r2
    return WhatIf(model, after, ", ".join(words) or "no change", tuple(_at(model, after, full, b) for b in asked))


def _at(before: Model, after: Model, full: float | None, budget: float) -> AtBudget:
    prefixes = [(model, model.affordable(budget * (1 + COST_TOLERANCE))) for model in (before, after)]
    (one, other) = (model.expected(prefix).r2 for model, prefix in prefixes)
    (cost, new) = (float(model.costs[prefix]) for model, prefix in prefixes)
    (used, others) = (model.computed[prefix] for model, prefix in prefixes)
    shares = tuple(r2 / full if full and r2 is not None else None for r2 in (one, other))
    return AtBudget(budget, (cost, new), (used, others), (one, other), (shares[0], shares[1]))
