"""What is not a prediction: the models there are, and what to compute next."""

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
    # No work for a thread: a request would wait until the event loop lets one have its turn.
    return cast(PredictionService, request.app.state.handler).registry


Registry = Annotated[ModelRegistry, Depends(_registry)]
Budget = Annotated[
    Annotated[float, Field(ge=0, allow_inf_nan=False)] | None,
    BeforeValidator(lambda value: value or None),  # `budget=` is not given, as for a prediction
    Query(description="What the whole prefix may cost, what is at hand included."),
]
Have = Annotated[list[str] | None, Query(description="Groups computed already: repeated, or separated by commas.")]


@router.get("/models", tags=["models"])
async def list_models(registry: Registry) -> list[ModelCard]:
    """List every model, in one line each."""
    return [card(model) for model in registry]


@router.get("/models/{name}", tags=["models"], responses=problem_responses(404, 422))
async def describe_model(name: str, registry: Registry) -> ModelSummary:
    """Tell a model's steps, with what each costs and buys, and the features of its groups."""
    model = registry.get(name)
    return summary(model, (each.version for each in registry.models[model.name]))


@router.get("/models/{name}/plan", tags=["models"], responses=problem_responses(404, 422))
async def plan_model(name: str, registry: Registry, budget: Budget = None, have: Have = None) -> Plan:
    """Plan what to compute next, in order, within the budget, and what it buys."""
    model = registry.get(name)
    return plan(model, budget, _split(model, have or []))


@router.post("/models/{name}/reload", tags=["models"], responses=problem_responses(404, 409, 422))
async def reload_model(name: str, request: Request) -> ModelCard:
    """Load a model's files again; it is replaced when the new one has been checked, and stays if that fails."""
    handler = cast(PredictionService, request.app.state.handler)
    await handler.reload(name)
    return card(handler.registry.get(name))


def _split(model: Model, have: list[str]) -> list[str]:
    """Names of groups; one that has a comma in it is taken whole."""
    split: list[str] = []
    for text in have:
        split += (
            [text] if text in model.groups.positions else [name.strip() for name in text.split(",") if name.strip()]
        )
    return split
