"""The application: routes, middleware, problems and the OpenAPI document.

`dispatched` serves the most frequent routes before the framework's exception handling, exit stack and router, which
take as long as adding a group to a prediction. The endpoints of these routes handle exceptions themselves. All other
middleware of the service runs before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping

from starlette.routing import BaseRoute, Route, WebSocketRoute
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
from anytime_service.routes import route_of
from anytime_service.sessions import session_store
from anytime_service.sessions.store import SessionStore
from anytime_service.settings import Settings
from anytime_service.telemetry.context import with_request_context
from anytime_service.telemetry.logs import with_access_log
from anytime_service.telemetry.tracing import OFF, Tracing
from anytime_service.urls import Origins


def dispatched(app: ASGIApp, endpoints: Mapping[str, ASGIApp], tracing: Tracing | None = None) -> ASGIApp:
    """Return an application that calls the endpoint of a frequent route directly, and `app` for every other request.

    All of `endpoints`, by their path, are of method POST, and raise no exception. The application has them too, for its
    OpenAPI document. `tracing` records the route, because the framework does not see it. HEAD is answered like GET: the
    server sends no body.
    """

    def answer(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        method = scope.get("method")
        route = route_of(scope) if method == "POST" else None
        endpoint = None if route is None else endpoints.get(route.path)
        if route is None or endpoint is None:
            return app({**scope, "method": "GET"} if method == "HEAD" else scope, receive, send)
        if tracing is not None:
            tracing.route(scope, route.path)
        return endpoint(scope, receive, send)

    return answer


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
    keys = KeyRing(settings.api_keys, settings.api_keys_file)
    service = PredictionService(registry, settings, tracing, keys, tuning)
    stream, sessions = Stream(service), session_store(service)
    predict_session = PredictSession(service, sessions)
    hot = [
        Route("/sessions/{id}/groups", SessionGroups(service, sessions), methods=["POST"], name="post_groups"),
        Route("/predict", Predict(service), methods=["POST"], name="predict"),
    ]
    routes = [
        *hot,
        WebSocketRoute("/stream", stream, name="stream"),
        Route("/stream", UpgradeRequired(), methods=["GET"], name="stream_upgrade"),
        Route("/sessions", CreateSession(service, sessions), methods=["POST"], name="create_session"),
        Route("/sessions/{id}", DeleteSession(service, sessions), methods=["DELETE"], name="delete_session"),
        Route("/sessions/{id}/predict", predict_session, methods=["GET"], name="predict_session"),
        Route("/predict", predict_session, methods=["GET"], name="predict_session_by_query"),
        *oip_routes(service),
    ]
    metrics = control.metrics.routes if settings.metrics_port is None else ()
    for router in (control.router, control.reloads, control.probes, pages.router):
        routes += router.routes  # themselves: an included router is completed at the first request, which takes 15 ms
    app = _guarded(service, sessions, keys, [*routes, *metrics], {route.path: route.endpoint for route in hot}, tracing)
    app.title, app.summary = "anytime", "Linear predictions that are ready whenever the deadline expires"
    app.keyed = keys.needed
    app.state.stream, app.state.keys = stream, keys
    return app


def create_side_app(service: PredictionService, sessions: SessionStore) -> AnytimeAPI:
    """Return the application of the metrics port: the metrics of a service, and its probes; it needs no key."""
    return _guarded(service, sessions, KeyRing(), [*control.probes.routes, *control.metrics.routes])


def _guarded(
    service: PredictionService,
    sessions: SessionStore,
    keys: KeyRing,
    routes: Iterable[BaseRoute],
    hot: Mapping[str, ASGIApp] | None = None,
    tracing: Tracing | None = None,
) -> AnytimeAPI:
    """Return an application that checks keys and origins, sends errors as problems, and has ids of requests.

    One with `hot` endpoints has an access log, if the settings say so.
    """
    settings = service.settings
    app = AnytimeAPI(
        version="1",
        openapi_url=None,  # `pages` has its route
        docs_url=None,  # the console has its own page, which loads nothing from other servers
        redoc_url=None,
        redirect_slashes=False,  # the handler of 404 does it, without trust in the header Host
        telemetry=OFF if tracing is None else tracing.configuration,
    )
    app.router.routes += routes
    app.state.service, app.state.sessions = service, sessions
    responses.install(app)

    def entrance(framework: ASGIApp) -> ASGIApp:
        origins = Origins(settings.allowed_origins, local=not (settings.keyed or settings.insecure or settings.uds))
        inner: ASGIApp = AuthenticationMiddleware(dispatched(framework, hot or {}, tracing), keys, origins)
        if settings.access_log and hot:
            inner = with_access_log(inner)
        begun = None if tracing is None else tracing.begun
        return with_request_context(inner, framework, service.metrics.errors, begun)

    app.entrance = entrance
    return app
