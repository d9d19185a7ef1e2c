"""Whether the service is well, and what it measures of itself: routes for probes and scrapes, on whatever port."""

from __future__ import annotations

from typing import Literal, cast

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from anytime_service.handler import Handler
from anytime_service.openapi import problem_responses
from anytime_service.problems import not_ready

__all__ = ["Health", "metrics", "probes"]

probes = APIRouter(tags=["health"], responses=problem_responses(500))
metrics = APIRouter(tags=["health"], responses=problem_responses(500))


class Health(BaseModel):
    """What a probe is told."""

    status: Literal["ok"] = "ok"


def _handler(request: Request) -> Handler:
    return cast(Handler, request.app.state.handler)


@probes.get("/livez")
async def live() -> Health:
    """Tell whether the process answers."""
    return Health()


@probes.get("/readyz", response_model=Health, responses=problem_responses(503))
async def ready(request: Request) -> Health | Response:
    """Tell whether predictions are begun here: there are models to answer from, and the service is not stopping."""
    handler = _handler(request)
    if handler.draining:
        return not_ready("the service is stopping")
    return Health() if len(handler.registry) else not_ready("no model is loaded")


@metrics.get("/metrics", response_class=Response)
async def scrape(request: Request) -> Response:
    """Tell what the service measures of itself, as Prometheus reads it, or by `Accept` as OpenMetrics."""
    exposition = _handler(request).signals.exposition
    content, media_type = await exposition.write(request.headers.get("accept", ""))
    return Response(content, headers={"content-type": media_type})
