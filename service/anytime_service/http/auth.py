"""What each route needs of who asks it.

What is not written down here needs the most, so that a new route is closed until somebody has thought about it.

Who may ask: the outermost middleware, which turns away what has no key that holds, or comes from another's page.

A key is told as `Authorization: Bearer KEY`. Pages cannot send that with a WebSocket: they offer a second subprotocol,
`anytime.key.KEY`, percent-encoded where the key has characters that a subprotocol cannot have. Only its hash goes
further than here, in the scope, for the shares of the limits. A request that is refused is answered before its body is
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from anytime.errors import AnytimeError
from anytime_service.errors import KeyNeededError, OriginError, RightError
from anytime_service.http.exchange import Exchange, Reply
from anytime_service.http.responses import problem_reply, refusal, refuse_handshake
from anytime_service.keys import KEY, Key, KeyRing, Right
from anytime_service.urls import Origins

__all__ = [
    "KEY_SUBPROTOCOL",
    "NEEDS",
    "AuthenticationMiddleware",
    "Need",
    "has_key",
    "key_in",
    "need_of",
    "path_of",
]

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


KEY_SUBPROTOCOL = "anytime.key."

_ONCE = (b"host", b"origin")

Pairs = Sequence[tuple[bytes, bytes]]


class AuthenticationMiddleware:
    """Middleware; pure ASGI, as it stands before the hottest routes.

    Parameters
    ----------
    app : the application.
    keys : those that hold; without any, whoever comes from no foreign page may ask.
    origins : whose pages may ask.
    limit : bytes of the body of a refused request that are let pass, so that its client reads the refusal.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing, origins: Origins, limit: int) -> None:
        self.app = app
        self.keys = keys
        self.origins = origins
        self.limit = limit
        self.needed = keys.needed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        kind = scope["type"]
        if kind in ("http", "websocket"):
            try:
                headers = _headers(scope["headers"])
                self.origins.check(headers, scope["scheme"])
                if kind == "websocket":
                    scope = self._opened(scope, headers)
                elif self.needed:
                    self._check_request(scope, headers)
            except AnytimeError as error:
                await self._refuse(error, scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check_request(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Look at the key of a request, and put it into its scope."""
        method, path = scope["method"], path_of(scope)
        need = need_of(method, path)
        if need != "open":
            key = _found(self.keys, _bearer(headers))
            _check_right(key, need, method, path)
            scope[KEY] = key

    def _opened(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Scope:
        """Look at the key of a WebSocket, and hand on its scope without it."""
        offered: list[str] = scope.get("subprotocols", [])
        told = [each.removeprefix(KEY_SUBPROTOCOL) for each in offered if each.startswith(KEY_SUBPROTOCOL)]
        if not self.needed:
            return {**scope, "subprotocols": _shown(offered)} if told else scope
        if len(told) > 1:
            raise KeyNeededError(f"{len(told)} keys are offered as subprotocols; offer one", presented=True)
        presented = _bearer(headers)
        if presented is None and told:
            presented = unquote_to_bytes(told[0])
        key, path = _found(self.keys, presented), path_of(scope)
        _check_right(key, need_of("GET", path), "GET", path)
        return {**scope, "subprotocols": _shown(offered), KEY: key}

    async def _refuse(self, error: AnytimeError, scope: Scope, receive: Receive, send: Send) -> None:
        reply = _reply(error, scope)
        if scope["type"] == "websocket":
            await receive()  # websocket.connect
            await refuse_handshake(send, reply)
            return
        exchange = Exchange(receive, send, self.limit)
        exchange.reply(reply)
        await exchange.finish()


def has_key(keys: KeyRing, headers: Pairs) -> bool:
    """Whether a request has a valid key, where one is needed; not what the key allows."""
    return not keys.needed or key_in(keys, headers) is not None


def key_in(keys: KeyRing, headers: Pairs) -> Key | None:
    """Return the valid key of a request, None without one."""
    try:
        return _found(keys, _bearer(_headers(headers)))
    except AnytimeError:
        return None


def _found(keys: KeyRing, presented: bytes | None) -> Key:
    if presented is None:
        raise KeyNeededError(
            "a key is needed; send it as 'Authorization: Bearer KEY', or, where a WebSocket cannot, "
            f"percent-encoded as a second subprotocol '{KEY_SUBPROTOCOL}KEY'"
        )
    key = keys.find(presented)
    if key is None:
        raise KeyNeededError(
            "the key that was sent does not hold; ask the operator for one (a subprotocol has it percent-encoded)",
            presented=True,
        )
    return key


def _check_right(key: Key, need: Need, method: str, path: str) -> None:
    if need == "admin" and key.right != "admin":
        raise RightError(
            f"the key is one to predict with; {method} {path[:100]!r} is not among that, and needs a key of scope "
            "admin, if it is there at all"
        )


def _headers(pairs: Pairs) -> dict[bytes, bytes]:
    """Headers by name; where one that is looked at here is told twice, neither counts."""
    headers = dict(pairs)
    if len(headers) < len(pairs):
        names = [name for name, _ in pairs]
        for name in _ONCE:
            if names.count(name) > 1:
                raise OriginError(f"there are {names.count(name)} headers {name.decode().title()}; send one")
        if names.count(b"authorization") > 1:
            headers[b"authorization"] = b""
    return headers


def _bearer(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The key of the header `Authorization`; None where there is none.

    Raises
    ------
    KeyNeededError
        It has something else.
    """
    told = headers.get(b"authorization")
    if told is None:
        return None
    scheme, _, key = told.partition(b" ")
    key = key.strip()
    if scheme.lower() != b"bearer" or not key:
        raise KeyNeededError("the header Authorization is not as expected: 'Bearer KEY', and sent once")
    return key


def _shown(offered: list[str]) -> list[str]:
    """Subprotocols as they may be told again: without the key."""
    return [f"{KEY_SUBPROTOCOL}..." if each.startswith(KEY_SUBPROTOCOL) else each for each in offered]


def _reply(error: AnytimeError, scope: Scope) -> Reply:
    """Tell a refusal, and in the words of RFC 6750 what would be accepted."""
    # Clients of the Open Inference Protocol look for the reason under a name of their own.
    reply = refusal(error) if f"{path_of(scope)}/".startswith("/v2/") else problem_reply(error)
    if isinstance(error, KeyNeededError):
        told = b'Bearer error="invalid_token"' if error.presented else b"Bearer"
    elif isinstance(error, RightError):
        told = b'Bearer error="insufficient_scope", scope="admin"'
    else:
        return reply
    return reply._replace(headers=(*reply.headers, (b"www-authenticate", told)))
