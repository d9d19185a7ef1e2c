"""Whether the service is well, and what it measures of itself: routes for probes and scrapes, on whatever port."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from anytime_service.api.openapi import problem_responses
from anytime_service.core.service import PredictionService
from anytime_service.http.problems import not_ready
from anytime_service.sessions.store import SessionStore

__all__ = [
    "Health",
    "Readiness",
    "metrics",
    "probes",
]

probes = APIRouter(tags=["health"], responses=problem_responses(500))
metrics = APIRouter(tags=["health"], responses=problem_responses(500))


class Health(BaseModel):
    """What a probe is told."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """What a probe is told of a service that answers; `sessions` is where they live, or why they cannot be reached."""

    status: Literal["ok", "degraded"]
    sessions: str


def _handler(request: Request) -> PredictionService:
    return cast(PredictionService, request.app.state.handler)


@probes.get("/livez")
async def live() -> Health:
    """Tell whether the process answers."""
    return Health()


@probes.get("/readyz", response_model=Readiness, responses=problem_responses(422, 503))
async def ready(
    request: Request,
    sessions: Annotated[Literal["required"] | None, Query(description="Whether it is of use without sessions.")] = None,
) -> Readiness | Response:
    """Tell whether predictions are begun here; without its sessions a service still answers everything else."""
    handler, store = _handler(request), cast(SessionStore, request.app.state.sessions)
    if handler.draining:
        return not_ready("the service is stopping")
    if not len(handler.registry):
        return not_ready("no model is loaded")
    await store.start()
    if store.trouble is None:
        return Readiness(status="ok", sessions=store.kind)
    if sessions == "required":
        return not_ready(f"sessions cannot be reached: {store.trouble}")
    return Readiness(status="degraded", sessions=f"unreachable: {store.trouble}")


@metrics.get("/metrics", response_class=Response)
async def scrape(request: Request) -> Response:
    """Tell what the service measures of itself, as Prometheus reads it, or by `Accept` as OpenMetrics."""
    exposition = _handler(request).signals.exposition
    content, media_type = await exposition.write(request.headers.get("accept", ""))
    return Response(content, headers={"content-type": media_type})
