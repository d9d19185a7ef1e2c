"""The application: routes, problems and the document, put together."""

from __future__ import annotations

from starlette.routing import Route

from anytime_service import control, problems
from anytime_service.openapi import AnytimeAPI
from anytime_service.registry import ModelRegistry
from anytime_service.settings import Settings
from anytime_service.transports.post import PostPrediction

__all__ = ["create_app"]


def create_app(registry: ModelRegistry, settings: Settings) -> AnytimeAPI:
    """Build the service as an ASGI application.

    Parameters
    ----------
    registry : the models to answer from.
    settings : limits; where to listen is the server's business, not the application's.
    """
    app = AnytimeAPI(
        title="anytime",
        version="1",
        summary="Linear predictions that are ready whenever the deadline strikes",
        redoc_url=None,
    )
    app.state.registry = registry
    problems.install(app)
    app.router.routes.append(Route("/predict", PostPrediction(registry, settings), methods=["POST"], name="predict"))
    app.include_router(control.router)
    return app
