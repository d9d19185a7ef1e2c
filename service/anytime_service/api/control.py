"""Routes that do not predict: the models, the probes and the metrics."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Literal, cast

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from anytime_service.api.openapi import problem_responses
from anytime_service.core.service import PredictionService
from anytime_service.http.responses import PageRoute, blank, check_query, problem_response
from anytime_service.schemas.catalogue import ModelCard, ModelSummary, Plan, card, plan, summary
from anytime_service.schemas.messages import check_rows
from anytime_service.sessions.store import SessionStore

router = APIRouter(
    tags=["models"], responses=problem_responses(500), dependencies=[Depends(check_query)], route_class=PageRoute
)
reloads = APIRouter(tags=["models"], responses=problem_responses(500), dependencies=[Depends(check_query)])
probes = APIRouter(tags=["health"], responses=problem_responses(500), dependencies=[Depends(check_query)])
metrics = APIRouter(tags=["health"], responses=problem_responses(500), dependencies=[Depends(check_query)])


async def _service(request: Request) -> PredictionService:
    # A coroutine: a plain function would run in a thread, and the request would wait for that thread.
    return cast(PredictionService, request.app.state.service)


Service = Annotated[PredictionService, Depends(_service)]


@router.get("/models", summary="List the models")
async def list_models(service: Service) -> list[ModelCard]:
    """List all models."""
    return [card(model) for model in service.registry]


@router.get("/models/{name}", summary="Describe a model", responses=problem_responses(404, 422))
async def describe_model(name: str, service: Service) -> ModelSummary:
    """Describe a model: its steps with cost and gain, and the features of its groups."""
    model = service.registry.get(name)
    return summary(model, (each.version for each in service.registry.models[model.name]))


@router.get("/models/{name}/plan", summary="List the groups to compute next", responses=problem_responses(404, 422))
async def plan_model(
    name: str,
    service: Service,
    budget: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False)] | None,
        Query(description="Maximum cost of the prefix, including the groups computed already."),
    ] = None,
    have: Annotated[
        list[str] | None, Query(description="Groups computed already: repeated, or separated by commas.")
    ] = None,
    rows: Annotated[
        Annotated[int, Field(ge=1)] | None,
        Query(description="Rows of the prediction; by default those that the model's costs are stated for."),
    ] = None,
) -> Plan:
    """List the groups to compute next, in order, within the budget, their cost for all rows, and their gain."""
    model = service.registry.get(name)
    check_rows(rows, service.settings.max_rows)
    # The name of a group that contains a comma is not split.
    parts = ([text] if text in model.groups.positions else map(str.strip, text.split(",")) for text in have or ())
    return plan(model, budget, filter(None, chain.from_iterable(parts)), rows)


@reloads.post(
    "/models/{name}/reload",
    summary="Reload the files of a model (scope admin)",
    responses=problem_responses(404, 409, 422),
)
async def reload_model(
    name: str,
    service: Service,
    force: Annotated[
        bool, Query(description="Accept a model that changes the meaning of what clients have stored.")
    ] = False,
) -> ModelCard:
    """Reload a model's files; the server replaces the model if the new one is valid, and keeps the old one if not.

    It keeps the old one, too, if the new one changes the meaning of group names, level indices, the cost unit, the task
    or the classes, which clients may have stored.
    """
    await service.reload(name, force=force)
    return card(service.registry.get(name))


class Health(BaseModel):
    """The response to a liveness probe."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """The response to a readiness probe; `sessions` is the kind of the session store, or why it is unreachable."""

    status: Literal["ok", "degraded"]
    sessions: str


@probes.get("/livez", summary="Report whether the process is alive")
async def live() -> Health:
    """Report that the process is alive."""
    return Health()


@probes.get(
    "/readyz",
    summary="Report whether the server begins predictions",
    response_model=Readiness,
    responses=problem_responses(422, 503),
)
async def ready(
    request: Request,
    service: Service,
    sessions: Annotated[
        Literal["required"] | None, Query(description="Report 503 if the session store is unreachable.")
    ] = None,
) -> Readiness | Response:
    """Report whether the server begins predictions. Without its session store it still serves all other routes."""
    if service.unready is not None:
        return problem_response(blank(503, service.unready))
    store = cast(SessionStore, request.app.state.sessions)
    await store.start()
    if store.trouble is None:
        return Readiness(status="ok", sessions=store.kind)
    if sessions == "required":
        return problem_response(blank(503, f"the session store is unavailable: {store.trouble}"))
    return Readiness(status="degraded", sessions=f"unreachable: {store.trouble}")


@metrics.get("/metrics", summary="Send the metrics, for Prometheus (scope admin)", response_class=Response)
async def scrape(request: Request, service: Service) -> Response:
    """Return the metrics of the service, in Prometheus format or, if `Accept` prefers it, as OpenMetrics."""
    content, media_type = await service.metrics.write(request.headers.get("accept", ""), service.turns.slices())
    return Response(content, headers={"content-type": media_type})
