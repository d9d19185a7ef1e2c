"""The application: routes, middleware, problems and the OpenAPI document.

`Dispatch` serves the most frequent routes before the framework's exception handling, exit stack and router, which cost
as much time as adding a group to a prediction. The endpoints of these routes handle exceptions themselves. All other
middleware of the service runs before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastapi import APIRouter
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from anytime_service.api import control
from anytime_service.api.console import pages
from anytime_service.api.oip import oip_routes
from anytime_service.api.openapi import AnytimeAPI
from anytime_service.api.predict import CreateSession, DeleteSession, Predict, PredictSession, SessionGroups
from anytime_service.api.stream import Stream, UpgradeRequired
from anytime_service.core.service import PredictionService
from anytime_service.http import responses
from anytime_service.http.auth import AuthenticationMiddleware
from anytime_service.keys import KeyRing
from anytime_service.limits.tuning import TUNING, Tuning
from anytime_service.models.registry import ModelRegistry
from anytime_service.routes import check_routes, route_of
from anytime_service.sessions import session_store
from anytime_service.sessions.store import SessionStore
from anytime_service.settings import Settings
from anytime_service.telemetry.context import RequestContextMiddleware
from anytime_service.telemetry.logs import AccessLog
from anytime_service.telemetry.tracing import OFF, Tracing
from anytime_service.urls import Origins


@dataclass(frozen=True)
class Dispatch:
    """Middleware that calls the endpoint of a frequent route directly, and the application for every other request.

    All of `endpoints`, by their path, are of method POST, and raise no exception. The application has them too, for its
    OpenAPI document. `tracing` records the route, because the framework does not see it. HEAD is answered like GET: the
    server sends no body.
    """

    app: ASGIApp
    endpoints: Mapping[str, ASGIApp] = field(default_factory=dict)
    tracing: Tracing | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope.get("method")
        route = route_of(scope) if method == "POST" else None
        endpoint = None if route is None else self.endpoints.get(route.path)
        if route is None or endpoint is None:
            await self.app({**scope, "method": "GET"} if method == "HEAD" else scope, receive, send)
            return
        if self.tracing is not None:
            self.tracing.route(scope, route.path)
        await endpoint(scope, receive, send)


def create_app(
    registry: ModelRegistry, settings: Settings, tracing: Tracing | None = None, tuning: Tuning = TUNING
) -> AnytimeAPI:
    """Return the service as an ASGI application.

    Parameters
    ----------
    registry : ModelRegistry
        The models.
    settings : Settings
        Limits and keys; the application ignores the bind address, which the server uses.
    tracing : Tracing | None
        Creates spans; None for no spans.
    tuning : Tuning
        Numbers that are no settings; tests pass others.

    Raises
    ------
    KeysError
        The key file is unreadable or invalid.
    AnytimeError
        The session store is unusable.
    """
    app = AnytimeAPI(
        title="anytime",
        version="1",
        summary="Linear predictions that are ready whenever the deadline expires",
        openapi_url=None,  # `pages` has its route
        docs_url=None,  # the console has its own page, which loads nothing from other servers
        redoc_url=None,
        telemetry=OFF if tracing is None else tracing.configuration,
    )
    keys = KeyRing(settings.api_keys, settings.api_keys_file)
    app.keyed = keys.needed
    service = PredictionService(registry, settings, tracing, keys, tuning)
    stream, sessions = Stream(service), session_store(service)
    app.state.service, app.state.stream, app.state.sessions, app.state.keys = service, stream, sessions, keys
    responses.install(app)
    predict_session = PredictSession(service, sessions)
    hot = [
        Route("/sessions/{id}/groups", SessionGroups(service, sessions), methods=["POST"], name="post_groups"),
        Route("/predict", Predict(service), methods=["POST"], name="predict"),
    ]
    app.router.routes += [
        *hot,
        WebSocketRoute("/stream", stream, name="stream"),
        Route("/stream", UpgradeRequired(), methods=["GET"], name="stream_upgrade"),
        Route("/sessions", CreateSession(service, sessions), methods=["POST"], name="create_session"),
        Route("/sessions/{id}", DeleteSession(service, sessions), methods=["DELETE"], name="delete_session"),
        Route("/sessions/{id}/predict", predict_session, methods=["GET"], name="predict_session"),
        Route("/predict", predict_session, methods=["GET"], name="predict_session_by_query"),
        *oip_routes(service),
    ]
    metrics = (control.metrics,) if settings.metrics_port is None else ()
    _add_routes(app, control.router, control.reloads, control.probes, *metrics, pages.router)
    check_routes(app.routes)
    app.router.redirect_slashes = False  # the handler of 404 does it, without trust in the header Host

    def entrance(framework: ASGIApp) -> ASGIApp:
        endpoints = {route.path: route.endpoint for route in hot}
        routed = Dispatch(framework, endpoints, tracing)
        inner: ASGIApp = AuthenticationMiddleware(
            routed, keys, accepted_origins(settings), settings.max_body_bytes, tuning.linger_s
        )
        if settings.access_log:
            inner = AccessLog(inner)
        return RequestContextMiddleware(inner, service.metrics.errors, None if tracing is None else tracing.begun)

    app.entrance = entrance
    return app


def accepted_origins(settings: Settings) -> Origins:
    """Return the check of hosts and origins that both ports share."""
    return Origins(settings.allowed_origins, local=not (settings.keyed or settings.insecure or settings.uds))


def create_side_app(service: PredictionService, sessions: SessionStore) -> AnytimeAPI:
    """Return the application of the metrics port: the metrics of a service, and its probes; it needs no key."""
    settings = service.settings
    app = AnytimeAPI(title="anytime metrics", version="1", openapi_url=None, telemetry=OFF)
    app.state.service, app.state.sessions = service, sessions
    app.router.redirect_slashes = False

    def entrance(framework: ASGIApp) -> ASGIApp:
        return RequestContextMiddleware(
            AuthenticationMiddleware(
                Dispatch(framework),
                KeyRing(),
                accepted_origins(settings),
                settings.max_body_bytes,
                service.tuning.linger_s,
            ),
            service.metrics.errors,
        )

    app.entrance = entrance
    responses.install(app)
    _add_routes(app, control.probes, control.metrics)
    return app


def _add_routes(app: AnytimeAPI, *routers: APIRouter) -> None:
    """Add the routes themselves: an included router is completed at the first request, which then takes 15 ms."""
    for router in routers:
        app.router.routes += router.routes
