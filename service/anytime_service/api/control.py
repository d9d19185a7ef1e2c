"""Routes of the models: list, description, plan of the groups to compute next, reload."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BeforeValidator, Field

from anytime.model.model import Model
from anytime_service.api.openapi import problem_responses
from anytime_service.core.service import PredictionService
from anytime_service.models.catalogue import ModelCard, ModelSummary, Plan, card, plan, summary
from anytime_service.models.registry import ModelRegistry

__all__ = [
    "Registry",
    "router",
]

router = APIRouter(responses=problem_responses(500))


async def _registry(request: Request) -> ModelRegistry:
    # A coroutine: a plain function would run in a thread, and the request would wait for that thread.
    return cast(PredictionService, request.app.state.handler).registry


Registry = Annotated[ModelRegistry, Depends(_registry)]
Budget = Annotated[
    Annotated[float, Field(ge=0, allow_inf_nan=False)] | None,
    BeforeValidator(lambda value: value or None),  # an empty `budget=` counts as absent, as in a prediction
    Query(description="Maximum cost of the prefix, including the groups computed already."),
]
Have = Annotated[list[str] | None, Query(description="Groups computed already: repeated, or separated by commas.")]


@router.get("/models", tags=["models"])
async def list_models(registry: Registry) -> list[ModelCard]:
    """List all models."""
    return [card(model) for model in registry]


@router.get("/models/{name}", tags=["models"], responses=problem_responses(404, 422))
async def describe_model(name: str, registry: Registry) -> ModelSummary:
    """Describe a model: its steps with cost and gain, and the features of its groups."""
    model = registry.get(name)
    return summary(model, (each.version for each in registry.models[model.name]))


@router.get("/models/{name}/plan", tags=["models"], responses=problem_responses(404, 422))
async def plan_model(name: str, registry: Registry, budget: Budget = None, have: Have = None) -> Plan:
    """List the groups to compute next, in order, within the budget, and their gain."""
    model = registry.get(name)
    return plan(model, budget, _split(model, have or []))


@router.post("/models/{name}/reload", tags=["models"], responses=problem_responses(404, 409, 422))
async def reload_model(name: str, request: Request) -> ModelCard:
    """Reload a model's files; the server replaces the model if the new one is valid, and keeps the old one if not."""
    handler = cast(PredictionService, request.app.state.handler)
    await handler.reload(name)
    return card(handler.registry.get(name))


def _split(model: Model, have: list[str]) -> list[str]:
    """Return the names of groups, split at commas; do not split the name of a group that contains a comma."""
    split: list[str] = []
    for text in have:
        split += (
            [text] if text in model.groups.positions else [name.strip() for name in text.split(",") if name.strip()]
        )
    return split
