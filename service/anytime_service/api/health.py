"""Routes of health probes and metrics, on the main port or the metrics port."""

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
    """The response to a liveness probe."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """The response to a readiness probe; `sessions` is the kind of the session store, or why it is unreachable."""

    status: Literal["ok", "degraded"]
    sessions: str


def _handler(request: Request) -> PredictionService:
    return cast(PredictionService, request.app.state.handler)


@probes.get("/livez")
async def live() -> Health:
    """Report that the process is alive."""
    return Health()


@probes.get("/readyz", response_model=Readiness, responses=problem_responses(422, 503))
async def ready(
    request: Request,
    sessions: Annotated[
        Literal["required"] | None, Query(description="Report 503 if the session store is unreachable.")
    ] = None,
) -> Readiness | Response:
    """Report whether the server begins predictions. Without its session store it still serves all other routes."""
    handler, store = _handler(request), cast(SessionStore, request.app.state.sessions)
    if handler.draining:
        return not_ready("the service is stopping")
    if not len(handler.registry):
        return not_ready("no model is loaded")
    await store.start()
    if store.trouble is None:
        return Readiness(status="ok", sessions=store.kind)
    if sessions == "required":
        return not_ready(f"the session store is unavailable: {store.trouble}")
    return Readiness(status="degraded", sessions=f"unreachable: {store.trouble}")


@metrics.get("/metrics", response_class=Response)
async def scrape(request: Request) -> Response:
    """Return the metrics of the service, in Prometheus format or, if `Accept` prefers it, as OpenMetrics."""
    exposition = _handler(request).signals.exposition
    content, media_type = await exposition.write(request.headers.get("accept", ""))
    return Response(content, headers={"content-type": media_type})
