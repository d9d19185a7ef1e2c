"""What a server tells of its models: cards, descriptions, plans. Fields that are not known here are left out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import numpy as np

from anytime.model.model import affordable, checked_budget
from anytime_service.client.errors import ReplyError
from anytime_service.client.replies import shortened

__all__ = ["ModelCard", "ModelDescription", "ModelGroup", "ModelStep", "Plan", "PlannedStep", "described"]

Described = TypeVar("Described")


@dataclass(frozen=True)
class ModelCard:
    """A model in one line; `total_cost` is of all its steps, in `cost_unit`."""

    name: str
    version: str
    task: str
    steps: int
    groups: int
    cost_unit: str
    total_cost: float


@dataclass(frozen=True)
class ModelStep:
    """A step of the sequence: the groups that it adds, in order, their joint cost, and how good the prefix is then."""

    group: str
    adds: tuple[str, ...]
    cost: float
    cumulative_cost: float
    explained_variance: float
    r2: float | None
    cv_error: float | None = None
    deviance: float | None = None


@dataclass(frozen=True)
class ModelGroup:
    """A feature group: columns in the order of its values, cost, and the groups that must be paid before it."""

    name: str
    features: tuple[str, ...]
    cost: float
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelDescription:
    """A model's sequence and groups; `steps` are in the order in which the sequence computes them.

    `cv_error` of steps and `prior_error` are mean squared errors by least squares (family gaussian), mean deviances in
    other families.
    """

    name: str
    version: str
    task: str
    responses: tuple[str, ...]
    cost_unit: str
    total_cost: float
    steps: tuple[ModelStep, ...]
    groups: tuple[ModelGroup, ...]
    policies: tuple[str, ...] = ("prefix",)
    classes: tuple[Any, ...] | None = None
    target: tuple[str, ...] = ()
    method: str | None = None
    family: str = "gaussian"
    link: str = "identity"
    prior_error: float | None = None
    prior_deviance: float | None = None
    guarantee: Any = None
    calibration: Any = None
    redundant: Any = None

    @cached_property
    def featured(self) -> tuple[str, ...]:
        """Groups that have features, and so values, in the order of the groups file."""
        return tuple(group.name for group in self.groups if group.features)

    def order(self, budget: float | None = None) -> tuple[str, ...]:
        """Groups to compute within a budget, in the model's cost unit, in the order of the sequence.

        Raises
        ------
        ValuesError
            The budget is negative or not a number.
        """
        costs = np.array([0.0, *(step.cumulative_cost for step in self.steps)])
        prefix = affordable(costs, checked_budget(budget, self.cost_unit))
        featured = frozenset(self.featured)
        return tuple(name for step in self.steps[:prefix] for name in step.adds if name in featured)


@dataclass(frozen=True)
class PlannedStep:
    """A step still to complete: groups to compute for it, their cost, and how good the prefix is then.

    `spent` is the cost of what is at hand and of this plan, up to and with this step.
    """

    prefix: int
    group: str
    compute: tuple[str, ...]
    cost: float
    spent: float
    explained_variance: float
    r2: float | None
    cv_error: float | None = None
    deviance: float | None = None


@dataclass(frozen=True)
class Plan:
    """What to compute next, in order, within a budget; `prefix` is complete already."""

    model: str
    version: str
    cost_unit: str
    budget: float | None
    have: tuple[str, ...]
    prefix: int
    steps: tuple[PlannedStep, ...]


def described(content: bytes, kind: type[Described]) -> Described:
    """Read a description of that kind from JSON.

    Raises
    ------
    ReplyError
        It is not what a server of this kind sends.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReplyError(f"the server sent {shortened(content)}, which cannot be used: {error}") from error
