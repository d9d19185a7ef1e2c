"""The routes of the service: one row for each, which everything else reads.

The application refuses to start with a route that has no row (`check_rows`). Authentication reads the scope, the server
which requests are probes and how a prediction that is not admitted is refused, and the tests of the guides the paths. A
path that is not in the table requires the scope `admin`, so that a new route is closed by default.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from starlette.routing import BaseRoute, Route

from anytime_service.keys import KeyScope

RequiredScope: TypeAlias = Literal["open"] | KeyScope

Shedding: TypeAlias = Literal["stored", "refused", "endpoint"]
"""What happens to a request whose prediction is not admitted, when only its head is known.

`stored`: 503, or the stored response with the base rate if the request accepts it. `refused`: 503, unless the request
accepts the base rate. `endpoint`: its endpoint decides, because its body may accept the base rate.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One route.

    Attributes
    ----------
    method : str
        HEAD requests and WebSockets have the row of GET.
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
    Row("GET", "/", "open"),
    Row("GET", "/console/{file}", "open"),  # the console's files contain no model data
    Row("GET", "/docs", "open"),  # as the console; /openapi.json needs a key
    Row("GET", "/livez", "open", probe=True),
    Row("GET", "/metrics", "admin", probe=True),
    Row("GET", "/models"),
    Row("GET", "/models/{name}"),
    Row("GET", "/models/{name}/curve"),
    Row("GET", "/models/{name}/plan"),
    Row("POST", "/models/{name}/reload", "admin"),
    Row("GET", "/models/{name}/sample"),
    Row("GET", "/models/{name}/shape"),
    Row("GET", "/openapi.json"),
    Row("GET", "/predict", shed="refused"),
    Row("POST", "/predict", shed="stored", direct=True),
    Row("GET", "/readyz", "open", probe=True),
    Row("POST", "/sessions"),
    Row("DELETE", "/sessions/{id}"),
    Row("POST", "/sessions/{id}/groups"),
    Row("GET", "/sessions/{id}/predict", shed="refused"),
    Row("GET", "/stream"),
    Row("GET", "/v2"),
    Row("GET", "/v2/health/live", "open", probe=True),
    Row("GET", "/v2/health/ready", "open", probe=True),
    Row("GET", "/v2/models/{name}"),
    Row("POST", "/v2/models/{name}/infer", shed="endpoint"),
    Row("GET", "/v2/models/{name}/ready"),
    Row("GET", "/v2/models/{name}/versions/{version}"),
    Row("POST", "/v2/models/{name}/versions/{version}/infer", shed="endpoint"),
    Row("GET", "/v2/models/{name}/versions/{version}/ready"),
)

_FIXED = {str(row): row for row in ROUTES if "{" not in row.path}


def _shape(method: str, path: str) -> tuple[str, int, str]:
    """Return what two routes with a name in braces have in common if their paths may match the same."""
    return method, path.count("/"), path[:4]


_OPEN_ENDED: dict[tuple[str, int, str], list[tuple[re.Pattern[str], Row]]] = {}
for _row in ROUTES:
    if "{" in _row.path:
        _pattern = re.compile(re.sub(r"{[a-z]+}", "[^/]+", _row.path))
        _OPEN_ENDED.setdefault(_shape(_row.method, _row.path), []).append((_pattern, _row))


def find(method: str, path: str) -> Row | None:
    """Return the row of a request, None without one; the method of a WebSocket is GET."""
    method = "GET" if method == "HEAD" else method
    fixed = _FIXED.get(f"{method} {path}")
    if fixed is not None:
        return fixed
    candidates = _OPEN_ENDED.get(_shape(method, path), ())
    return next((row for pattern, row in candidates if pattern.fullmatch(path)), None)


def required_scope(method: str, path: str) -> RequiredScope:
    """Return the scope that a request requires."""
    row = find(method, path)
    return "admin" if row is None else row.scope


def is_oip(path: str) -> bool:
    """Return whether a path belongs to the Open Inference Protocol, whose errors have the field `error`."""
    return f"{path}/".startswith("/v2/")


def check_rows(routes: Iterable[BaseRoute]) -> None:
    """Raise LookupError if a route has no row."""
    known = {str(row) for row in ROUTES}
    for route in routes:
        methods = route.methods or set() if isinstance(route, Route) else {"GET"}
        for method in methods - {"HEAD"}:
            if f"{method} {getattr(route, 'path', route)}" not in known:
                raise LookupError(f"the route {method} {getattr(route, 'path', route)} has no row in ROUTES; add one")
