"""Authentication: the outermost middleware; `ROUTES` has the scope that each route requires.

A client sends a key as `Authorization: Bearer KEY`. A page cannot send this header with a WebSocket. It offers a second
subprotocol, `anytime.key.KEY`, and percent-encodes the characters that a subprotocol does not allow. The middleware
passes on only the hash of the key, in the ASGI scope, from which the limits per key are computed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from anytime.errors import AnytimeError
from anytime_service.errors import InvalidKeyError, KeyScopeError, OriginError
from anytime_service.http.exchange import send_reply
from anytime_service.http.responses import problem_reply
from anytime_service.keys import KEY, Key, KeyRing
from anytime_service.routes import path_of, route_of
from anytime_service.telemetry.context import Headers
from anytime_service.urls import Origins

KEY_SUBPROTOCOL = "anytime.key."


class AuthenticationMiddleware:
    """Middleware that authenticates requests; without keys, it accepts every request from an allowed origin."""

    def __init__(self, app: ASGIApp, keys: KeyRing, origins: Origins) -> None:
        self.app = app
        self.keys = keys
        self.origins = origins
        self.needed = keys.needed

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        try:
            headers = _headers(scope["headers"])
            self.origins.check(headers, scope["scheme"])
            if scope["type"] == "websocket":
                scope = self._without_keys(scope)
            elif self.needed:
                self._check(scope)
        except AnytimeError as error:
            return _refuse(error, scope, receive, send)
        return self.app(scope, receive, send)

    def _check(self, scope: Scope, encoded: str | None = None) -> None:
        """Check the key of a request: that of its headers, or else one in a subprotocol."""
        route, method = route_of(scope), scope.get("method", "GET")
        if route is not None and route.scope == "open" and scope["type"] == "http":
            return
        key = identified(self.keys, scope, encoded)
        if key.scope != "admin" and (route is None or route.scope == "admin"):
            raise KeyScopeError(
                f"the scope of the API key is predict; {method} {path_of(scope)[:100]!r}, if it is a route, requires a"
                " key with scope admin"
            )

    def _without_keys(self, scope: Scope) -> Scope:
        """Check the key of a WebSocket, and return the ASGI scope with the key masked in the subprotocols."""
        offered: list[str] = scope.get("subprotocols", [])
        encoded = [each.removeprefix(KEY_SUBPROTOCOL) for each in offered if each.startswith(KEY_SUBPROTOCOL)]
        if self.needed:
            if len(encoded) > 1:
                raise InvalidKeyError(
                    f"the client offers {len(encoded)} keys as subprotocols; offer one", presented=True
                )
            self._check(scope, encoded[0] if encoded else None)
        masked = [f"{KEY_SUBPROTOCOL}..." if each.startswith(KEY_SUBPROTOCOL) else each for each in offered]
        return {**scope, "subprotocols": masked} if encoded else scope


def identified(keys: KeyRing, scope: Scope, encoded: str | None = None) -> Key:
    """Return the valid key of a request; raise InvalidKeyError or OriginError.

    It is hashed once: the scope has it from then on, and never the key in clear.
    """
    if KEY not in scope:
        presented = _bearer(_headers(scope["headers"]))
        if presented is None and encoded is not None:
            presented = unquote_to_bytes(encoded)
        if presented is None:
            raise InvalidKeyError(
                "the API key is missing; send it as 'Authorization: Bearer KEY', or, if a WebSocket cannot send"
                f" headers, percent-encoded as a second subprotocol '{KEY_SUBPROTOCOL}KEY'"
            )
        key = keys.find(presented)
        if key is None:
            raise InvalidKeyError(
                "the API key is invalid; get a valid one from the operator (percent-encode a key in a subprotocol)",
                presented=True,
            )
        scope[KEY] = key
    found: Key = scope[KEY]
    return found


def _headers(pairs: Headers) -> dict[bytes, bytes]:
    """Return the headers by name; raise OriginError if Host or Origin is repeated.

    A repeated Authorization header counts as malformed.
    """
    headers = dict(pairs)
    if len(headers) < len(pairs):
        names = [name for name, _ in pairs]
        for name in (b"host", b"origin"):
            if names.count(name) > 1:
                raise OriginError(f"the request has {names.count(name)} {name.decode().title()} headers; send one")
        if names.count(b"authorization") > 1:
            headers[b"authorization"] = b""
    return headers


def _bearer(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the key in the header `Authorization`, None without it; raise InvalidKeyError if it is malformed."""
    value = headers.get(b"authorization")
    if value is None:
        return None
    scheme, _, key = value.partition(b" ")
    key = key.strip()
    if scheme.lower() != b"bearer" or not key:
        raise InvalidKeyError("the header Authorization is malformed; expected 'Bearer KEY', sent once")
    return key


async def _refuse(error: AnytimeError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the response to a refused request, with the header WWW-Authenticate of RFC 6750."""
    reply, challenge = problem_reply(error, path_of(scope)), b""
    if isinstance(error, InvalidKeyError):
        challenge = b'Bearer error="invalid_token"' if error.presented else b"Bearer"
    elif isinstance(error, KeyScopeError):
        challenge = b'Bearer error="insufficient_scope", scope="admin"'
    if challenge:
        reply = reply._replace(headers=(*reply.headers, (b"www-authenticate", challenge)))
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
    await send_reply(send, reply, "http.response" if scope["type"] == "http" else "websocket.http.response")
