"""Descriptions of loaded models for clients: cards, summaries of manifests, and plans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from anytime.errors import suggestion
from anytime.features.bases import Categories
from anytime.features.expansion import Column
from anytime.model.model import Model
from anytime_service.errors import FieldError
from anytime_service.schemas.catalogue import ModelCard, ModelColumn, ModelSummary, Plan, PlannedStep


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
    fields: dict[str, Any] = {
        name: getattr(manifest, name) for name in ModelSummary.model_fields if hasattr(manifest, name)
    }
    fields["versions"] = tuple(versions)
    fields["cost_unit"] = model.groups.cost_unit
    fields["total_cost"] = float(model.costs[-1])
    fields["policies"] = ("prefix", "arrived") if model.supports_arrived else ("prefix",)
    fields["groups"] = model.groups.groups
    columns = {column.name: column for column in model.expansion.columns}
    fields["columns"] = tuple(
        _column(group.name, columns[name]) for group in model.groups.groups for name in group.features
    )
    return ModelSummary(**fields)


def _column(group: str, column: Column) -> ModelColumn:
    basis = column.basis if isinstance(column.basis, Categories) else None
    kinds: dict[str, Literal["text", "bool"]] = {"text": "text", "true or false": "bool"}
    return ModelColumn(
        name=column.name,
        group=group,
        type="number" if basis is None else kinds.get(basis.holds, "number"),
        levels=None if basis is None else basis.levels,
        other=basis is not None and basis.other,
        range=column.range,
    )


def plan(model: Model, budget: float | None, have: Iterable[str]) -> Plan:
    """Plan which groups of a model's sequence to compute next; raise FieldError if the model lacks one of `have`.

    As for a prediction, the budget limits the cost of the complete prefix, including the available groups `have`. The
    groups that they require count as paid, too.
    """
    available = tuple(dict.fromkeys(have))
    paid = _paid(model, available)
    # A prediction does not await a group without features, but its step is unpaid until the group is.
    prefix = 0
    while prefix < model.steps and paid.issuperset(model.manifest.steps[prefix].adds):
        prefix += 1
    steps: list[PlannedStep] = []
    spent = _cost(model, paid)
    for number, step in enumerate(model.manifest.steps[prefix : model.affordable(budget)], start=prefix + 1):
        compute = tuple(name for name in step.adds if name not in paid)
        cost = _cost(model, compute)
        spent += cost
        steps.append(
            PlannedStep(
                prefix=number,
                compute=compute,
                cost=cost,
                spent=spent,
                **step.model_dump(include={"group", "explained_variance", "r2", "cv_error", "deviance"}),
            )
        )
    return Plan(
        model=model.name,
        version=model.version,
        cost_unit=model.groups.cost_unit,
        budget=budget,
        have=available,
        prefix=prefix,
        steps=tuple(steps),
    )


def _cost(model: Model, groups: Iterable[str]) -> float:
    return float(sum(model.groups.costs[model.groups.positions[name]] for name in groups))


def _paid(model: Model, have: Iterable[str]) -> set[str]:
    groups = model.groups
    paid: set[str] = set()
    for name in have:
        if name not in groups.positions:
            raise FieldError("have", f"there is no group {name!r}; {suggestion(name, groups.names)}")
        index = groups.positions[name]
        paid.update(groups.names[i] for i in (index, *groups.prerequisites[index]))
    return paid
