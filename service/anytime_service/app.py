"""The application: routes, problems and the document, put together."""

from __future__ import annotations

from functools import partial

from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp

from anytime_service import console, control, health, problems
from anytime_service.access import AccessLog
from anytime_service.correlation import Correlated
from anytime_service.guard import Guard
from anytime_service.handler import Handler
from anytime_service.hot import HotRoutes
from anytime_service.keys import KeyRing
from anytime_service.openapi import AnytimeAPI
from anytime_service.origins import Origins
from anytime_service.registry import ModelRegistry
from anytime_service.sessions.chosen import chosen_store
from anytime_service.sessions.store import SessionStore
from anytime_service.settings import Settings
from anytime_service.tracing import OFF, Tracing
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

__all__ = ["create_app", "create_side_app"]


def create_app(registry: ModelRegistry, settings: Settings, tracing: Tracing | None = None) -> AnytimeAPI:
    """Build the service as an ASGI application.

    Parameters
    ----------
    registry : the models to answer from.
    settings : limits and keys; where to listen is the server's business, not the application's.
    tracing : makes spans, where they are wanted.

    Raises
    ------
    KeysError
        The file of keys cannot be read.
    AnytimeError
        The store that sessions are to live in cannot be used.
    """
    app = AnytimeAPI(
        title="anytime",
        version="1",
        summary="Linear predictions that are ready whenever the deadline strikes",
        docs_url=None,  # the console has a page that loads nothing from elsewhere
        redoc_url=None,
        telemetry=OFF if tracing is None else tracing.configuration,
    )
    keys = KeyRing(settings.api_keys, settings.api_keys_file)
    app.keyed = keys.needed
    handler = Handler(registry, settings, tracing, keys)
    stream = Stream(handler)
    sessions = chosen_store(handler)
    app.state.handler, app.state.stream, app.state.sessions, app.state.keys = handler, stream, sessions, keys
    app.entrance = partial(_entrance, handler)
    problems.install(app)
    hot = [
        Route("/sessions/{id}/groups", SessionGroups(handler, sessions), methods=["POST"], name="post_groups"),
        Route("/predict", PostPrediction(handler), methods=["POST"], name="predict"),
    ]
    app.add_middleware(HotRoutes, routes=hot, tracing=tracing)
    # Added last, it stands before every other one: nobody gets further without having been looked at.
    local = not (settings.keyed or settings.insecure or settings.uds)
    origins = Origins(settings.allowed_origins, local=local)
    app.add_middleware(Guard, keys=keys, origins=origins, limit=settings.max_body_bytes)
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
    app.include_router(health.probes)
    if settings.metrics_port is None:
        app.include_router(health.metrics)
    app.include_router(console.router)
    return app


def create_side_app(handler: Handler, sessions: SessionStore) -> AnytimeAPI:
    """Build what a second port serves: the metrics of a service, and its probes."""
    app = AnytimeAPI(title="anytime metrics", version="1", openapi_url=None, telemetry=OFF)
    app.state.handler, app.state.sessions = handler, sessions
    app.entrance = lambda inner: Correlated(inner, handler.signals.errors)
    problems.install(app)
    app.include_router(health.probes)
    app.include_router(health.metrics)
    return app


def _entrance(handler: Handler, app: ASGIApp) -> ASGIApp:
    inner = AccessLog(app) if handler.settings.access_log else app
    begun = None if handler.tracing is None else handler.tracing.begun
    return Correlated(inner, handler.signals.errors, begun)
