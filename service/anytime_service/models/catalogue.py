"""Descriptions of models for clients: cards, summaries of manifests, and plans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from anytime.errors import suggestion
from anytime.groups import FeatureGroup
from anytime.model.manifest import Calibration, Certificate, Guarantee, Redundant, StepRecord, Stopped
from anytime.model.model import Model
from anytime.types import FamilyName, Label, Link, Task
from anytime_service.errors import FieldError

__all__ = ["ModelCard", "ModelSummary", "Plan", "PlannedStep", "card", "plan", "summary"]


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class ModelCard(_View):
    """The short description of a model in the list of models."""

    name: str
    version: str
    task: Task
    steps: int
    groups: int
    cost_unit: str
    total_cost: float


class ModelSummary(_View):
    """The summary of a model's manifest; `steps` are in sequence order.

    `versions` are all loaded versions, the newest first. `cv_error` of steps and `prior_error` are mean squared errors
    for least squares (family gaussian) and mean deviances for other families. `deviance` and `prior_deviance` are mean
    deviances on the training rows.
    """

    name: str
    version: str
    versions: tuple[str, ...]
    task: Task
    family: FamilyName
    link: Link
    method: str
    target: tuple[str, ...]
    responses: tuple[str, ...]
    classes: tuple[Label, ...] | None
    cost_unit: str
    total_cost: float
    prior_error: float | None
    prior_deviance: float | None
    policies: tuple[Literal["prefix", "arrived"], ...]
    guarantee: Guarantee
    calibration: Calibration | None
    stopped: Stopped | None
    certificate: Certificate | None
    redundant: Redundant
    steps: tuple[StepRecord, ...]
    groups: tuple[FeatureGroup, ...]


class PlannedStep(_View):
    """An incomplete step: the groups to compute for it, their cost, and the quality of the prefix after it.

    `spent` is the cost of the available groups and of this plan up to and including this step.
    """

    prefix: int
    group: str
    compute: tuple[str, ...]
    cost: float
    spent: float
    explained_variance: float
    r2: float | None
    cv_error: float | None
    deviance: float | None


class Plan(_View):
    """The groups to compute next, in order, within a budget; `prefix` is the number of complete steps."""

    model: str
    version: str
    cost_unit: str
    budget: float | None
    have: tuple[str, ...]
    prefix: int
    steps: tuple[PlannedStep, ...]


def card(model: Model) -> ModelCard:
    """Return the card of a model."""
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
    """Return the summary of a model's manifest and its loaded versions."""
    manifest = model.manifest
    fields: dict[str, Any] = {
        name: getattr(manifest, name) for name in ModelSummary.model_fields if hasattr(manifest, name)
    }
    fields["versions"] = tuple(versions)
    fields["cost_unit"] = model.groups.cost_unit
    fields["total_cost"] = float(model.costs[-1])
    fields["policies"] = ("prefix", "arrived") if model.supports_arrived else ("prefix",)
    fields["groups"] = model.groups.groups
    return ModelSummary(**fields)


def plan(model: Model, budget: float | None, have: Iterable[str]) -> Plan:
    """Plan which groups of a model's sequence to compute next; raise FieldError if the model lacks one of `have`.

    Parameters
    ----------
    budget : as for a prediction: limit on the cost of the complete prefix, including the available groups; None means
        no limit.
    have : available groups; the groups that they require count as paid, too.
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
