"""What each route needs of who asks it.

What is not written down here needs the most, so that a new route is closed until somebody has thought about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from starlette.types import Scope

from anytime_service.keys import Right

__all__ = ["NEEDS", "Need", "need_of", "path_of"]

Need: TypeAlias = Literal["open"] | Right

NEEDS: Mapping[Need, tuple[str, ...]] = {
    "open": (  # whether the service is well, and the console's files, which have nothing of any model
        "GET /",
        "GET /console/{file}",
        "GET /livez",
        "GET /readyz",
        "GET /v2/health/live",
        "GET /v2/health/ready",
    ),
    "predict": (
        "GET /docs",
        "GET /models",
        "GET /models/{name}",
        "GET /models/{name}/curve",
        "GET /models/{name}/plan",
        "GET /models/{name}/sample",
        "GET /openapi.json",
        "GET /predict",
        "POST /predict",
        "POST /sessions",
        "DELETE /sessions/{id}",
        "POST /sessions/{id}/groups",
        "GET /sessions/{id}/predict",
        "GET /stream",
        "GET /v2",
        "GET /v2/models/{name}",
        "POST /v2/models/{name}/infer",
        "GET /v2/models/{name}/ready",
        "GET /v2/models/{name}/versions/{version}",
        "POST /v2/models/{name}/versions/{version}/infer",
        "GET /v2/models/{name}/versions/{version}/ready",
    ),
    "admin": (
        "GET /metrics",
        "POST /models/{name}/reload",
    ),
}
"""Routes by what they need; HEAD is as GET, and a WebSocket too."""


def _pattern(routes: Iterable[str]) -> re.Pattern[str]:
    """One pattern for many routes; a name in braces is one segment, as it is for the router."""
    open_ended = (route for route in routes if "{" in route)
    return re.compile("|".join(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(route)) for route in open_ended))


_FIXED: Mapping[str, Need] = {route: need for need, routes in NEEDS.items() for route in routes if "{" not in route}
_OPEN, _PREDICT = _pattern(NEEDS["open"]), _pattern(NEEDS["predict"])


def need_of(method: str, path: str) -> Need:
    """Tell what a request needs; of a WebSocket the method is GET."""
    asked = f"{'GET' if method == 'HEAD' else method} {path}"
    fixed = _FIXED.get(asked)
    if fixed is not None:
        return fixed
    if _PREDICT.fullmatch(asked):
        return "predict"
    return "open" if _OPEN.fullmatch(asked) else "admin"


def path_of(scope: Scope) -> str:
    """The path that the router will look at: the decoded one, without the place where the service is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path
