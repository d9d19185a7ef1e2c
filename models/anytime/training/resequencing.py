"""Re-sequencing: reorder the groups of a model at other costs, by another rule, or without some; and what if.

Least squares reads no data, because the moments are in the model. Other families are fitted on rows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from anytime.data.dataset import Dataset
from anytime.data.formats import Table
from anytime.data.survey import Survey, checked_dataset
from anytime.errors import GroupsError, TrainingError, listed
from anytime.features.expansion import Expansion
from anytime.groups import COST_TOLERANCE, FeatureGroups
from anytime.model.manifest import Manifest
from anytime.model.model import Model, checked_budget, manifest_of
from anytime.moments.moments import Moments
from anytime.selection.criteria import SelectionMethod
from anytime.selection.greedy import without
from anytime.tabulated import R2, SHARE, Series, Tabular, Tabulated
from anytime.training.fit import fit, not_used, provenance
from anytime.training.likelihood import Observations
from anytime.training.options import Options
from anytime.training.train import TrainingTable, moments_of_groups
from anytime.types import Method


@dataclass(frozen=True)
class Changes:
    """What resequencing changes about a model; None keeps the model's own choice.

    The fields are those of `Rule`, but for alpha: a number, because a model has no folds.
    """

    method: Method | SelectionMethod | None = None
    alpha: float | None = None
    cost_blind: bool | None = None
    doubling: bool | None = None
    first: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()

    def options(self, old: Manifest) -> Options:
        """Return the options of the new fit."""
        first = tuple(name for name in old.first if name not in self.without)
        return Options(
            family=old.family,
            method=old.method if self.method is None else self.method,
            alpha=old.alpha if self.alpha is None else self.alpha,
            cost_blind=old.cost_blind if self.cost_blind is None else self.cost_blind,
            doubling=old.doubling if self.doubling is None else self.doubling,
            first=first if self.first is None else self.first,
            without=self.without,
        )


@dataclass(frozen=True, eq=False)
class Retrained:
    """A table that a likelihood is fitted on again: its name, moments, rows, column of weights, and what it holds."""

    name: str
    moments: Moments
    observed: Observations
    weights: str | None = None
    found: Survey | None = None


def open_retrained(
    model: Model,
    table: Table,
    groups: FeatureGroups,
    *,
    weights: str | None = None,
    drop_missing: bool = True,
    n_jobs: int | None = None,
) -> Retrained | None:
    """Read the rows to fit some groups of a model on again; None for least squares, which needs none.

    The rows of each class have the factor that they had in training.

    Raises
    ------
    TableError
        The table lacks columns, or has values that do not fit them.
    """
    target = model.manifest.learned
    if target.family.least_squares:
        return None
    factors = model.manifest.provenance.class_weights
    dataset, found = checked_dataset(Dataset(table, groups, target, None, weights, drop_missing, class_weights=factors))
    options = Options(family=target.family.label, folds=0, alpha=0.0)
    rows = TrainingTable.of(dataset, found, options=options, folds=1, jobs=n_jobs)
    observed = rows.observed()
    assert observed is not None  # noqa: S101  (not least squares)
    return Retrained(rows.name, rows.moments()[0], observed, weights, found)


def resequence(
    model: Model,
    groups: FeatureGroups | None = None,
    *,
    name: str | None = None,
    data: Retrained | None = None,
    changes: Changes | None = None,
) -> Model:
    """Return the model with its groups in another order, under another name if one is given.

    All prefixes share one penalty, and none has a cross-validated error: both need folds, which a model does not
    store. For the same reason the new model has no record of a stopping rule; groups that were left out stay out. The
    record of selected terms, the warnings about the training table and what was decided about it stay, too.

    Parameters
    ----------
    groups : FeatureGroups | None
        The groups at other costs; those that the model left out may be among them, and stay out.
    data : Retrained | None
        The rows, for families other than "gaussian".
    changes : Changes | None
        What else to change.

    Raises
    ------
    GroupsError
        The groups are not those of the model, or another group requires one of `changes.without`.
    TrainingError
        The model was saved without its moments, or is of a family that needs data and none were given.
    ValuesError
        `model` is not a `Model`.
    """
    old = manifest_of(model)
    options = (changes or Changes()).options(old)
    priced = old.groups
    if groups is not None:
        why = " in the new file, which the model left out; train a new model"
        priced = priced.with_costs(without(groups, left_out(model, groups), why))
    remaining = options.remaining(priced)
    target = old.learned
    if not target.family.least_squares:
        if data is None:
            raise TrainingError(
                f"model {model.name!r} has family {old.family}, which is fitted on rows; add --data TABLE"
            )
        table, fitted = data.name, fit([data.moments], remaining, options, data.observed)
    elif model.moments is None:
        raise TrainingError(f"model {model.name!r} was saved without its moments; train it again without --no-moments")
    else:
        table = old.provenance.data
        expansion = Expansion.of(remaining)
        moments = moments_of_groups(model.moments, model.terms, expansion.terms)
        fitted = fit([moments], remaining, options, expansion=expansion)
    fitted = replace(fitted, selected_terms=old.selected)
    was = old.provenance
    weights = was.weights if data is None else data.weights
    origin = provenance(fitted, table, weights=weights, class_weights=was.class_weights, columns=was.columns)
    origin = origin.model_copy(update={"resequenced_from": model.version or old.name})
    out = () if old.stopped is None else old.stopped.left_out
    return fitted.model(
        name or old.name,
        target,
        origin,
        query=old.query,
        left_out=out,
        remarks=old.warnings[: old.table_warnings],
        decisions=(*old.decisions, *not_used(len(priced.pairs) - len(remaining.pairs))),
    )


def left_out(model: Model, groups: FeatureGroups) -> list[str]:
    stopped = model.manifest.stopped
    return [] if stopped is None else [name for name in groups.names if name in set(stopped.left_out)]


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
    loss : float | None
        How much r2 the change costs; negative if it gains.
    """

    budget: float
    costs: tuple[float, float]
    groups: tuple[tuple[str, ...], tuple[str, ...]]
    r2: tuple[float | None, float | None]
    shares: tuple[float | None, float | None]
    enters: tuple[str, ...]
    leaves: tuple[str, ...]
    loss: float | None


@dataclass(frozen=True, eq=False)
class WhatIf(Tabular):
    """A model before and after a change, and both at each budget; `changes` says in words what changed."""

    before: Model
    after: Model
    changes: str
    budgets: tuple[AtBudget, ...]

    def __repr__(self) -> str:
        return (
            f"<WhatIf {self.before.name}: {self.changes}, {len(self.budgets)} budget{'s' * (len(self.budgets) != 1)}>"
        )

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
    weights: str | None = None,
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
    weights : str | None
        Column of the weights of a table, or None for equal weights.

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
        changes = Changes(without=without)
        if isinstance(data, Table):
            data = open_retrained(model, data, changes.options(model.manifest).remaining(priced), weights=weights)
        after = resequence(model, priced if costs else None, data=data, changes=changes)
    full = model.expected(model.steps).r2
    return WhatIf(model, after, ", ".join(words) or "no change", tuple(_at(model, after, full, b) for b in asked))


def _at(before: Model, after: Model, full: float | None, budget: float) -> AtBudget:
    prefixes = [(model, model.affordable(budget * (1 + COST_TOLERANCE))) for model in (before, after)]
    (one, other) = (model.expected(prefix).r2 for model, prefix in prefixes)
    (cost, new) = (float(model.costs[prefix]) for model, prefix in prefixes)
    (used, others) = (model.computed[prefix] for model, prefix in prefixes)
    (share, new_share) = (r2 / full if full and r2 is not None else None for r2 in (one, other))
    return AtBudget(
        budget,
        (cost, new),
        (used, others),
        (one, other),
        (share, new_share),
        enters=tuple(name for name in others if name not in used),
        leaves=tuple(name for name in used if name not in others),
        loss=None if one is None or other is None else one - other,
    )
