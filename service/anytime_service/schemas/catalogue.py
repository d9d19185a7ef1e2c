"""Descriptions of models: cards, summaries of manifests, and plans of the groups to compute next."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from anytime.groups import FeatureGroup
from anytime.model.manifest import Calibration, Certificate, Guarantee, Redundant, StepRecord, Stopped
from anytime.model.model import affordable, checked_budget
from anytime.types import FamilyName, Label, Link, Task


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


class ModelColumn(_View):
    """A raw column: its type, the levels of a column of categories in the order of their index, and its range.

    `other` states whether values that are not a level have a term; without one they count as missing. Values outside
    the range move to its nearest end.
    """

    name: str
    group: str
    type: Literal["number", "bool", "text"]
    levels: tuple[Label, ...] | None
    other: bool
    range: tuple[float, float] | None


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
    columns: tuple[ModelColumn, ...]

    @property
    def featured(self) -> tuple[str, ...]:
        """Names of the groups with features, which therefore have values, in the order of the groups file."""
        return tuple(group.name for group in self.groups if group.features)

    def order(self, budget: float | None = None) -> tuple[str, ...]:
        """Return the groups to compute within a budget, in the model's cost unit, in sequence order.

        Raises
        ------
        ValuesError
            The budget is not a number >= 0.
        """
        costs = np.array([0.0, *(step.cumulative_cost for step in self.steps)])
        prefix = affordable(costs, checked_budget(budget, self.cost_unit))
        featured = frozenset(self.featured)
        return tuple(name for step in self.steps[:prefix] for name in step.adds if name in featured)


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
