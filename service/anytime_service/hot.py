"""The hottest routes, taken before the framework's own layers; what it would do there, their endpoints do themselves.

As the innermost middleware it stands behind every other one that is added, and before the framework's exception
handling, exit stack and router, which cost as much as taking a group does.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from anytime_service.tracing import Tracing

__all__ = ["HotRoutes"]


class HotRoutes:
    """Middleware that calls the endpoint of a hot route, and the application for everything else.

    Parameters
    ----------
    app : the application, which has these routes too, for its document and for other methods.
    routes : their endpoints are ASGI applications that let no exception out.
    tracing : is told the route that the framework does not see.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[Route], tracing: Tracing | None = None) -> None:
        self.app = app
        self.routes = routes
        self.tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            for route in self.routes:
                match, child = route.matches(scope)
                if match is Match.FULL:
                    scope.update(child)
                    if self.tracing is not None:
                        self.tracing.route(scope, route.path)
                    await route.endpoint(scope, receive, send)
                    return
        await self.app(scope, receive, send)
