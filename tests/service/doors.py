"""Every way into an application, and a service with keys to try them on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import httpx
from starlette.routing import WebSocketRoute
from websockets.exceptions import InvalidStatus

from anytime_service.api.openapi import AnytimeAPI
from anytime_service.app import create_app
from anytime_service.limits.tuning import TUNING, Tuning
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import Settings
from service.serving import Connection, Running, running, small_model

PREDICTING = "predicting-0123456789.abc_~"
HASHED = "hashed/0123456789+abc=="
MANAGING = "managing-0123456789.abc_~"
WRONG = "wrong-0123456789.abc_~"

KEYS = f"{PREDICTING},sha256:{sha256(HASHED.encode()).hexdigest()},admin:{MANAGING}"

FILLED = {"{name}": "brake", "{version}": "v1", "{id}": "nobody", "{file}": "console.js"}


@dataclass(frozen=True, order=True)
class Door:
    """One route by one method; of a WebSocket the method is GET."""

    method: str
    path: str
    socket: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def filled(self) -> str:
        """The path with something in its braces."""
        path = self.path
        for name, value in FILLED.items():
            path = path.replace(name, value)
        return path


def doors(app: AnytimeAPI) -> list[Door]:
    """Routes of an application, of its routers and of what is mounted in it."""
    found = set()
    waiting: list[tuple[str, Any]] = [("", route) for route in app.routes]
    while waiting:
        before, route = waiting.pop()
        inner = getattr(route, "original_router", None) or getattr(route, "router", None) or route
        if isinstance(route, WebSocketRoute):
            found.add(Door("GET", before + route.path, socket=True))
        elif getattr(inner, "routes", None):
            waiting += [(before + getattr(route, "path", ""), each) for each in inner.routes]
        else:
            found |= {Door(method, before + route.path) for method in route.methods}
    return sorted(found)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def keyed_app(keys: str = KEYS, tuning: Tuning = TUNING, **settings: Any) -> tuple[AnytimeAPI, Settings]:
    chosen = Settings(**{"port": 0, "max_deadline_ms": 2_000, "max_body_bytes": 100_000, "api_keys": keys, **settings})
    return create_app(ModelRegistry.of([small_model()]), chosen, tuning=tuning), chosen


@contextmanager
def keyed(keys: str = KEYS, tuning: Tuning = TUNING, **settings: Any) -> Iterator[Running]:
    """Serve the small model to those who have a key."""
    with running(*keyed_app(keys, tuning, **settings)) as service:
        yield service


def refused(service: Running, **options: Any) -> httpx.Response:
    """The response by which a WebSocket is refused."""
    try:
        with service.stream(**options):
            raise AssertionError("the WebSocket opened")
    except InvalidStatus as error:
        response = error.response
        return httpx.Response(
            response.status_code, headers=list(response.headers.raw_items()), content=bytes(response.body or b"")
        )


def sent(service: Running, line: str, *headers: str) -> tuple[int, Mapping[str, str], Any]:
    """Send a request as it is written; its response."""
    with service.connect() as connection:
        return exchanged(connection, line, *headers)


def flood(connection: Connection) -> None:
    """Send chunks of a body until the connection is cut."""
    with suppress(OSError):
        while True:
            connection.send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")


def exchanged(connection: Connection, line: str, *headers: str) -> tuple[int, Mapping[str, str], Any]:
    connection.send("\r\n".join([f"{line} HTTP/1.1", "Host: test", *headers, "", ""]).encode("latin-1"))
    return connection.response()
