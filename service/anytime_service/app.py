"""The application: routes, problems and the document, put together."""

from __future__ import annotations

from starlette.routing import Route, WebSocketRoute

from anytime_service import console, control, problems
from anytime_service.handler import Handler
from anytime_service.hot import HotRoutes
from anytime_service.openapi import AnytimeAPI
from anytime_service.registry import ModelRegistry
from anytime_service.sessions.memory import MemorySessions
from anytime_service.settings import Settings
from anytime_service.transports.oip import oip_routes
from anytime_service.transports.post import PostPrediction
from anytime_service.transports.sessions import (
    CreateSession,
    DeleteSession,
    PredictNamedSession,
    PredictSession,
    SessionGroups,
)
from anytime_service.transports.websocket import Stream, UpgradeRequired

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
    handler = Handler(registry, settings)
    stream = Stream(handler)
    sessions = MemorySessions(settings.max_sessions, settings.session_ttl_s, handler.held)
    app.state.handler, app.state.stream = handler, stream
    problems.install(app)
    hot = [
        Route("/sessions/{id}/groups", SessionGroups(handler, sessions), methods=["POST"], name="post_groups"),
        Route("/predict", PostPrediction(handler), methods=["POST"], name="predict"),
    ]
    app.add_middleware(HotRoutes, routes=hot)
    app.router.routes += [
        *hot,
        WebSocketRoute("/stream", stream, name="stream"),
        Route("/stream", UpgradeRequired(), methods=["GET"], name="stream_upgrade"),
        Route("/predict", PredictNamedSession(handler, sessions), methods=["GET"], name="predict_session_by_query"),
        Route("/sessions", CreateSession(handler, sessions), methods=["POST"], name="create_session"),
        Route("/sessions/{id}", DeleteSession(handler, sessions), methods=["DELETE"], name="delete_session"),
        Route("/sessions/{id}/predict", PredictSession(handler, sessions), methods=["GET"], name="predict_session"),
        *oip_routes(handler),
    ]
    app.include_router(control.router)
    app.include_router(console.router)
    return app
