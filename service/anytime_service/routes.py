"""The routes of the service: one entry of `ROUTES` for each, which everything else reads.

A request is matched once, by `route_of`: authentication reads the scope, the server which requests are probes and how a
prediction that is not admitted is refused, tracing which requests have no spans, and the tests of the guides the paths.
A path that is not in the table requires the scope `admin`, so that a new route is closed by default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from starlette.types import Scope

from anytime_service.keys import KeyScope

RequiredScope: TypeAlias = Literal["open"] | KeyScope

Shedding: TypeAlias = Literal["stored", "refused", "endpoint"]
"""What happens to a request whose prediction is not admitted, when only its head is known.

`stored`: 503, or the stored response with the base rate if the request accepts it. `refused`: 503, unless the request
accepts the base rate. `endpoint`: its endpoint decides, because its body may accept the base rate.
"""


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """One route.

    Attributes
    ----------
    method : str
        HEAD requests and WebSockets have the route of GET.
    path : str
        A name in braces matches one segment.
    scope : RequiredScope
        What the key of a request must permit; `open` needs no key.
    probe : bool
        Whether connections above the limit may request it.
    shed : Shedding | None
        What happens without admission; None if the route begins no prediction.
    direct : bool
        Whether a request that has arrived completely is answered before a task is created: nothing that its endpoint
        does before its first wait may need the current task.
    """

    method: str
    path: str
    scope: RequiredScope = "predict"
    probe: bool = False
    shed: Shedding | None = None
    direct: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


ROUTES = (
    RouteSpec("GET", "/", "open"),
    RouteSpec("GET", "/console/{file}", "open"),  # the console's files contain no model data
    RouteSpec("GET", "/docs", "open"),  # as the console; /openapi.json needs a key
    RouteSpec("GET", "/livez", "open", probe=True),
    RouteSpec("GET", "/metrics", "admin", probe=True),
    RouteSpec("GET", "/models"),
    RouteSpec("GET", "/models/{name}"),
    RouteSpec("GET", "/models/{name}/curve"),
    RouteSpec("GET", "/models/{name}/plan"),
    RouteSpec("POST", "/models/{name}/reload", "admin"),
    RouteSpec("GET", "/models/{name}/sample"),
    RouteSpec("GET", "/models/{name}/shape"),
    RouteSpec("GET", "/openapi.json"),
    RouteSpec("GET", "/predict", shed="refused"),
    RouteSpec("POST", "/predict", shed="stored", direct=True),
    RouteSpec("GET", "/readyz", "open", probe=True),
    RouteSpec("POST", "/sessions", direct=True),
    RouteSpec("DELETE", "/sessions/{id}"),
    RouteSpec("POST", "/sessions/{id}/groups", direct=True),
    RouteSpec("GET", "/sessions/{id}/predict", shed="refused"),
    RouteSpec("GET", "/stream"),
    RouteSpec("GET", "/v2"),
    RouteSpec("GET", "/v2/health/live", "open", probe=True),
    RouteSpec("GET", "/v2/health/ready", "open", probe=True),
    RouteSpec("GET", "/v2/models/{name}"),
    RouteSpec("POST", "/v2/models/{name}/infer", shed="endpoint"),
    RouteSpec("GET", "/v2/models/{name}/ready"),
    RouteSpec("GET", "/v2/models/{name}/versions/{version}"),
    RouteSpec("POST", "/v2/models/{name}/versions/{version}/infer", shed="endpoint"),
    RouteSpec("GET", "/v2/models/{name}/versions/{version}/ready"),
)

ROUTE = "anytime_service.route"  # name in the ASGI scope of the route of a request

_FIXED = {str(route): route for route in ROUTES if "{" not in route.path}


def _shape(method: str, path: str) -> tuple[str, int, str]:
    """Return what two routes with a name in braces have in common if their paths may match the same."""
    return method, path.count("/"), path[:4]


_OPEN_ENDED: dict[tuple[str, int, str], list[tuple[re.Pattern[str], RouteSpec]]] = {}
for _route in ROUTES:
    if "{" in _route.path:
        _pattern = re.compile(re.sub(r"{([a-z]+)}", r"(?P<\1>[^/]+)", _route.path))
        _OPEN_ENDED.setdefault(_shape(_route.method, _route.path), []).append((_pattern, _route))


def path_of(scope: Scope) -> str:
    """Return the path that the router matches: decoded, and without the `root_path` of the service."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def route_of(scope: Scope) -> RouteSpec | None:
    """Return the route of a request or WebSocket, None without one; it is matched once, with its `path_params`."""
    if ROUTE not in scope:
        scope[ROUTE], scope["path_params"] = find(scope.get("method", "GET"), path_of(scope))
    return cast("RouteSpec | None", scope[ROUTE])


def find(method: str, path: str) -> tuple[RouteSpec | None, dict[str, Any]]:
    """Return the route of a method and a path, and the values of the names in braces."""
    method = "GET" if method == "HEAD" else method
    fixed = _FIXED.get(f"{method} {path}")
    if fixed is None:
        for pattern, route in _OPEN_ENDED.get(_shape(method, path), ()):
            match = pattern.fullmatch(path)
            if match is not None:
                return route, match.groupdict()
    return fixed, {}


def is_probe(scope: Scope) -> bool:
    """Return whether a request is a probe or a scrape, which are made continuously."""
    route = route_of(scope)
    return route is not None and route.probe


def is_oip(path: str) -> bool:
    """Return whether a path belongs to the Open Inference Protocol, whose errors have the field `error`."""
    return f"{path}/".startswith("/v2/")
