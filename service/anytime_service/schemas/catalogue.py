"""Descriptions of loaded models for clients: cards, summaries of manifests, and plans of the groups to compute next."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import BaseModel

from anytime.errors import suggestion
from anytime.features.expansion import Column
from anytime.groups import FeatureGroup
from anytime.model.manifest import Calibration, Certificate, Guarantee, Redundant, StepRecord, Stopped, best_prefixes
from anytime.model.model import Model, affordable, checked_budget
from anytime.types import FamilyName, Float, Label, Policy, Task
from anytime_service.errors import FieldError


class ModelCard(BaseModel, frozen=True):
    """The short description of a model in the list of models."""

    name: str
    version: str
    task: Task
    steps: int
    groups: int
    cost_unit: str
    total_cost: float


class ModelColumn(BaseModel, frozen=True):
    """A raw column: its type, the levels of a column of categories in the order of their index, and its range.

    The levels are sorted: a later training with the same levels has the same indices, whatever their frequencies.
    `other` states whether values that are not a level have a term; without one they count as missing. Values outside
    the range move to its nearest end. That of dates is in seconds since 1970 UTC; their months, weekdays and hours do
    not move.
    """

    name: str
    group: str
    type: Literal["number", "bool", "text", "date"]
    levels: tuple[Label, ...] | None
    other: bool
    range: tuple[float, float] | None


class Measures(BaseModel, frozen=True):
    """What the numbers of a model are called, by its family; they are as the fields of `ModelSummary` describe.

    `explained` is the name of `r2`, and `error` that of `cv_error`. `score` is the number to which contributions add
    up. `least_squares` is false for a likelihood.
    """

    explained: str
    error: str
    score: str
    least_squares: bool


class ModelSummary(BaseModel, frozen=True):
    """The summary of a model's manifest; `steps` are in sequence order.

    `versions` are all loaded versions, the newest first. `cv_error` of steps and `prior_error` are mean squared errors
    for least squares (family gaussian) and mean deviances for other families. `deviance` and `prior_deviance` are mean
    deviances on the training rows. Costs are per row, in predictions of `rows` rows.
    """

    name: str
    version: str
    versions: tuple[str, ...]
    task: Task
    family: FamilyName
    link: str
    measures: Measures
    method: str
    target: tuple[str, ...]
    responses: tuple[str, ...]
    classes: tuple[Label, ...] | None
    cost_unit: str
    rows: int
    total_cost: float
    prior_error: float | None
    prior_deviance: float | None
    policies: tuple[Policy, ...]
    guarantee: Guarantee
    calibration: Calibration | None
    stopped: Stopped | None
    certificate: Certificate | None
    redundant: Redundant
    steps: tuple[StepRecord, ...]
    groups: tuple[FeatureGroup, ...]
    columns: tuple[ModelColumn, ...]

    @property
    def featured(self) -> tuple[str, ...]:
        """Names of the groups with features, which therefore have values, in the order of the groups file."""
        return tuple(group.name for group in self.groups if group.features)

    @cached_property
    def columns_by_group(self) -> dict[str, list[ModelColumn]]:
        """Columns of each group with features, in the order of the groups file."""
        found: dict[str, list[ModelColumn]] = {name: [] for name in self.featured}
        for column in self.columns:
            found[column.group].append(column)
        return found

    def prefix(self, budget: float | None = None, policy: Policy = "prefix") -> int:
        """Return the longest prefix within a budget, in the model's cost unit; under "best" the one that answers.

        Raises
        ------
        ValuesError
            The budget is not a number >= 0.
        """
        costs = np.array([0.0, *(step.cumulative_cost for step in self.steps)])
        best = best_prefixes(self.steps) if policy == "best" else None
        return affordable(costs, checked_budget(budget, self.cost_unit), best)

    def order(self, budget: float | None = None, policy: Policy = "prefix") -> tuple[str, ...]:
        """Return the groups to compute within a budget, in sequence order; raises as `prefix`."""
        featured = frozenset(self.featured)
        return tuple(
            name for step in self.steps[: self.prefix(budget, policy)] for name in step.adds if name in featured
        )


class PlannedStep(BaseModel, frozen=True):
    """An incomplete step: the groups to compute for it, their cost, and the quality of the prefix after it.

    Costs are per row. `spent` is the cost of the available groups and of this plan up to and including this step.
    `cost_total` and `spent_total` are those of a prediction of the plan's `rows` together.
    """

    prefix: int
    group: str
    compute: tuple[str, ...]
    cost: float
    spent: float
    cost_total: float
    spent_total: float
    explained_variance: float
    r2: float | None
    cv_error: float | None
    deviance: float | None


class Plan(BaseModel, frozen=True):
    """The groups to compute next, in order, within a budget; `prefix` is the number of complete steps.

    `rows` is the number of rows of the prediction.
    """

    model: str
    version: str
    cost_unit: str
    budget: float | None
    rows: int
    have: tuple[str, ...]
    prefix: int
    steps: tuple[PlannedStep, ...]


def card(model: Model) -> ModelCard:
    return ModelCard(
        name=model.name,
        version=model.version,
        task=model.manifest.task,
        steps=model.steps,
        groups=len(model.groups),
        cost_unit=model.groups.cost_unit,
        total_cost=float(model.costs[-1]),
    )


def summary(model: Model, versions: Iterable[str]) -> ModelSummary:
    manifest = model.manifest
    family = manifest.learned.family
    columns = {column.name: column for column in model.expansion.columns}
    stored = {name: getattr(manifest, name) for name in ModelSummary.model_fields if hasattr(manifest, name)}
    computed = {
        "measures": Measures(
            explained=family.explained, error=family.error, score=family.link.score, least_squares=family.least_squares
        ),
        "versions": tuple(versions),
        "cost_unit": model.groups.cost_unit,
        "rows": model.groups.rows or 1,
        "total_cost": float(model.costs[-1]),
        "policies": model.policies,
        "groups": model.groups.groups,
        "columns": tuple(
            _column(group.name, columns[name]) for group in model.groups.groups for name in group.features
        ),
    }
    return ModelSummary(**(stored | computed))


def _column(group: str, column: Column) -> ModelColumn:
    kinds: dict[str, Literal["text", "bool"]] = {"text": "text", "true or false": "bool"}
    holds = "" if column.reader is None else column.reader.holds
    return ModelColumn(
        name=column.name,
        group=group,
        type="date" if column.type == "date" else kinds.get(holds, "bool" if column.type == "bool" else "number"),
        levels=None if column.levels is None else tuple(sorted(column.levels.labels)),
        other=column.levels is not None and column.levels.other,
        range=column.range,
    )


def plan(model: Model, budget: float | None, have: Iterable[str], rows: int | None = None) -> Plan:
    """Plan which groups of a model's sequence to compute next; raise FieldError if the model lacks one of `have`.

    Without `rows` the plan is for the number of rows that the model's costs are stated for.

    As for a prediction, the budget limits the cost of the complete prefix, including the available groups `have`. The
    groups that they require count as paid, too.
    """
    available, groups = tuple(dict.fromkeys(have)), model.groups
    for name in available:
        if name not in groups.positions:
            raise FieldError("have", f"there is no group {name!r}; {suggestion(name, groups.names)}")
    indices = [groups.positions[name] for name in available]
    paid = {groups.names[i] for index in indices for i in (index, *groups.prerequisites[index])}
    # A prediction does not await a group without features, but its step is unpaid until the group is.
    unpaid = (number for number, step in enumerate(model.manifest.steps) if not paid.issuperset(step.adds))
    prefix = next(unpaid, model.steps)
    steps: list[PlannedStep] = []
    rows = (groups.rows or 1) if rows is None else rows
    per_row, in_total = groups.costs, groups.call_costs(rows)
    spent, spent_total = _cost(model, per_row, paid), _cost(model, in_total, paid)
    for number, step in enumerate(model.manifest.steps[prefix : model.affordable(budget)], start=prefix + 1):
        compute = tuple(name for name in step.adds if name not in paid)
        cost, total = _cost(model, per_row, compute), _cost(model, in_total, compute)
        spent, spent_total = spent + cost, spent_total + total
        steps.append(
            PlannedStep(
                prefix=number,
                compute=compute,
                cost=cost,
                spent=spent,
                cost_total=total,
                spent_total=spent_total,
                **step.model_dump(include={"group", "explained_variance", "r2", "cv_error", "deviance"}),
            )
        )
    return Plan(
        model=model.name,
        version=model.version,
        cost_unit=model.groups.cost_unit,
        budget=budget,
        rows=rows,
        have=available,
        prefix=prefix,
        steps=tuple(steps),
    )


def _cost(model: Model, costs: Float, groups: Iterable[str]) -> float:
    return float(sum(costs[model.groups.positions[name]] for name in groups))
