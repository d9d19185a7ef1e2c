"""Authentication: no route is served without a valid key, nor beyond the scope of the key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx
import pytest
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from anytime_service.api.openapi import AnytimeAPI
from anytime_service.routes import ROUTES, find
from anytime_service.schemas.problem import MEDIA_TYPE
from service.doors import HASHED, MANAGING, PREDICTING, WRONG, bearer, doors, exchanged, flood, keyed_app, refused, sent
from service.raw_stream import HANDSHAKE
from service.serving import BASE_RATE, VALUES, Running, running

APP, GUARDED = keyed_app()
DOORS = doors(APP)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    with running(APP, GUARDED) as service:
        yield service


@pytest.fixture(scope="module")
def client(guarded: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.url, timeout=60) as client:
        yield client


def scope_of(method: str, path: str) -> str:
    """Scope that a request requires, which has a route or not."""
    route, _ = find(method, path)
    return "admin" if route is None else route.scope


def status(client: httpx.Client, method: str, path: str, key: str | None = None) -> int:
    """Status of a request; of a refusal everything else of it is looked at too."""
    response = client.request(method, path, headers={} if key is None else bearer(key))
    scope, wrong = 'Bearer error="insufficient_scope", scope="admin"', 'Bearer error="invalid_token"'
    challenge = {401: "Bearer" if key is None else wrong, 403: scope}.get(response.status_code)
    assert response.headers.get("www-authenticate") == challenge
    if response.status_code == 401:
        assert "x-" not in "".join(name for name in response.headers if name != "x-request-id")
        assert response.headers["content-type"] == MEDIA_TYPE
        if method != "HEAD":
            assert set(response.json()) - {"error"} == {"type", "title", "status", "detail"}
            assert WRONG not in response.text
    return response.status_code


def test_every_route_is_listed_once_with_its_scope() -> None:
    assert sorted(map(str, ROUTES)) == sorted({str(door) for door in DOORS if door.method != "HEAD"}), "see ROUTES"
    for row in ROUTES:
        for method in (row.method, "HEAD" if row.method == "GET" else row.method):
            assert find(method, re.sub("{[a-z]+}", "x", row.path))[0] is row
    assert {str(row) for row in ROUTES if row.scope == "open"} == {
        "GET /",
        "GET /console/{file}",
        "GET /docs",
        "GET /livez",
        "GET /readyz",
        "GET /v2/health/live",
        "GET /v2/health/ready",
    }
    assert {str(row) for row in ROUTES if row.scope == "admin"} == {"GET /metrics", "POST /models/{name}/reload"}


@pytest.mark.parametrize("path", sorted({door.filled for door in DOORS if not door.socket}))
def test_every_route_by_every_method_without_a_key_with_a_wrong_one_and_with_each_scope(
    client: httpx.Client, path: str
) -> None:
    for method in METHODS:
        need = scope_of(method, path)
        reported = [status(client, method, path, key) for key in (None, WRONG, PREDICTING, HASHED, MANAGING)]
        if need == "open":
            assert set(reported) in ({200}, {405}), method
        else:
            assert (reported[:2], 401 in reported[2:]) == ([401, 401], False), method
            assert [each == 403 for each in reported[2:]] == [need == "admin"] * 2 + [False], method


def test_unknown_routes_are_refused_like_known_ones(client: httpx.Client) -> None:
    for path in (
        "/modelz",
        "/models/brake/secret",
        "/admin",
        "/console",
        "/console/a/b",
        "/livez/",
        "/.env",
        "/v2/health",
    ):
        reported = [status(client, "GET", path, key) for key in (None, PREDICTING, MANAGING)]
        assert reported in ([401, 403, 307], [401, 403, 404])


def test_an_unlisted_route_requires_the_scope_admin() -> None:
    app, settings = keyed_app()

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"inside"})

    async def route() -> str:
        return "inside"

    async def socket(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    app.mount("/mounted", inner)
    app.add_api_route("/later", route, methods=["GET", "POST"])
    app.router.routes.append(WebSocketRoute("/later-stream", socket))
    with running(app, settings) as service, httpx.Client(base_url=service.url) as client:
        for method, path in product(("GET", "POST"), ("/later", "/mounted/")):
            assert [status(client, method, path, key) for key in (None, WRONG, PREDICTING)] == [401, 401, 403]
            assert "inside" in client.request(method, path, headers=bearer(MANAGING)).text
        with pytest.raises(AssertionError, match="the WebSocket opened"):
            of_socket(service, "/later-stream", MANAGING)
        assert [of_socket(service, "/later-stream", key) for key in (None, WRONG, PREDICTING)] == [401, 401, 403]


def of_socket(service: Running, path: str, key: str | None) -> int:
    """Status by which a WebSocket is refused, wherever it is asked for."""
    reported = b"" if key is None else f"Authorization: Bearer {key}\r\n".encode()
    with service.connect() as connection:
        connection.send(HANDSHAKE.replace(b"/stream", path.encode())[:-2] + reported + b"\r\n")
        code = int(connection.file.readline().split()[1])
    assert code != 101, "the WebSocket opened"
    return code


@pytest.mark.parametrize("path", sorted({door.filled for door in DOORS} - {"/stream"}))
def test_no_route_is_reached_through_a_websocket_handshake(guarded: Running, path: str) -> None:
    assert [of_socket(guarded, path, key) for key in (None, WRONG)] == [401, 401]
    assert of_socket(guarded, path, MANAGING) == 404, "no route is a WebSocket but one"


@pytest.mark.parametrize(
    "target",
    [
        "//metrics",
        "///predict",
        "/livez/../metrics",
        "/livez/..%2fmetrics",
        "/livez%2f..%2fmodels",
        "/livez/%2e%2e/models",
        "/console/../metrics",
        "/console/..%2f..%2fmetrics",
        "/console/%2e%2e/models",
        "/console/%5c..%5cmetrics/x",
        "/livez;x",
        "/livez;/../metrics",
        "/livez%00",
        "/livez%0a",
        "/LIVEZ",
        "/Metrics",
        "/metrics/",
        "/metrics%0a",
        "/metrics?x=/livez",
        "/metrics%3f",
        "/metrics%23/livez",
        "/models?/livez",
        "/models/",
        "/models/brake%2freload",
        "/v2/health/live/../../models/brake",
        "/v2/health/live%2f..",
        "http://test/metrics",
        "http://test//livez/../metrics",
        "/./metrics",
        "/%6detrics",
        "/docs/",
        "/openapi.json",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_spelling_of_a_path_bypasses_authentication(guarded: Running, method: str, target: str) -> None:
    code, headers, problem = sent(guarded, f"{method} {target}", "Content-Length: 0")
    assert (code, problem["status"], headers["www-authenticate"]) == (401, 401, "Bearer")
    assert sent(guarded, f"{method} {target}", "Content-Length: 0", f"Authorization: Bearer {WRONG}")[0] == 401


@pytest.mark.parametrize(
    "target", ["//metrics", "/metrics%0a", "/%6detrics", "/metrics?x", "http://test/metrics", "/metrics/"]
)
def test_no_spelling_of_a_path_bypasses_the_scope_of_a_key(guarded: Running, target: str) -> None:
    assert sent(guarded, f"GET {target}", f"Authorization: Bearer {PREDICTING}")[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        ["Authorization: Bearer"],
        ["Authorization: Bearer "],
        ["Authorization:"],
        [f"Authorization: {PREDICTING}"],
        [f"Authorization: Basic {PREDICTING}"],
        [f"Authorization: Basic Bearer {PREDICTING}"],
        [f"Authorization: Bearer Bearer {PREDICTING}"],
        [f"Authorization: Bearer:{PREDICTING}"],
        [f"Authorization: Bearer {PREDICTING},{MANAGING}"],
        [f"Authorization: Bearer {PREDICTING} {MANAGING}"],
        [f"Authorization: Bearer {PREDICTING[:-1]}"],
        [f"Authorization: Bearer {PREDICTING}0"],
        [f"Authorization: Bearer {PREDICTING.upper()}"],
        [f"Authorization: Bearer {WRONG}", f"Authorization: Bearer {PREDICTING}"],
        [f"Authorization: Bearer {PREDICTING}", f"Authorization: Bearer {WRONG}"],
        [f"Authorization: Bearer {MANAGING}", f"authorization: Bearer {MANAGING}"],
        ["Authorization: Bearer " + "x" * 10_000],
        [f"Authorization: Bearer {PREDICTING}" + "x" * 10_000],
        [f"Proxy-Authorization: Bearer {PREDICTING}"],
        [f"X-Authorization: Bearer {PREDICTING}"],
        [f"X-Api-Key: {PREDICTING}"],
        [f"Cookie: Authorization=Bearer {PREDICTING}"],
        [f"Sec-WebSocket-Protocol: anytime.v1, anytime.key.{PREDICTING}"],
        ["Authorization: Bearer \xfc\xfc"],
        ["Authorization: Bearer predict:" + PREDICTING],
        ["Authorization: Bearer sha256:" + "0" * 64],
    ],
)
def test_only_exactly_one_valid_bearer_key_is_accepted(guarded: Running, headers: list[str]) -> None:
    code, answered, problem = sent(guarded, "GET /models", *headers)
    assert (code, problem["status"]) == (401, 401)
    assert answered["www-authenticate"].startswith("Bearer")
    assert not any(key in json.dumps(problem) for key in (PREDICTING, MANAGING))
    assert sent(guarded, "GET /livez", *headers)[0] == 200, "what is open is so whatever is sent"


@pytest.mark.parametrize(
    "written", ["Bearer {}", "bearer {}", "BEARER {}", "Bearer   {}", "Bearer {}   ", "Bearer {}\t"]
)
def test_a_key_is_valid_whatever_the_case_of_its_scheme_and_the_spaces(guarded: Running, written: str) -> None:
    for key in (PREDICTING, HASHED):
        assert sent(guarded, "GET /models", "AUTHORIZATION: " + written.format(key))[0] == 200


def test_a_key_in_the_query_is_ignored(guarded: Running) -> None:
    for name in ("key", "api_key", "access_token", "token"):
        assert sent(guarded, f"GET /models?{name}={PREDICTING}")[0] == 401


def test_a_refusal_is_sent_before_the_body_and_the_connection_stays_open_until_a_flood(guarded: Running) -> None:
    with guarded.connect() as connection:
        connection.head(length=1000)
        code, headers, _ = connection.response()
        assert (code, headers["www-authenticate"]) == (401, "Bearer")
        connection.send(b"x" * 1000)
        code, _, cards = exchanged(connection, "GET /models", f"Authorization: Bearer {PREDICTING}")
        assert (code, cards[0]["name"]) == (200, "brake")
        connection.head()
        assert connection.response()[0] == 401
        flood(connection)  # and is cut


def test_every_binding_answers_clients_with_a_key(guarded: Running, client: httpx.Client) -> None:
    inputs = [{"name": "speed", "shape": [1, 1], "datatype": "FP64", "data": [2.0]}]
    asked: list[tuple[str, Any]] = [("/predict", {"groups": VALUES}), ("/v2/models/brake/infer", {"inputs": inputs})]
    for path, body in asked:
        assert client.post(path, json=body).status_code == 401
        assert client.post(path, json=body, headers=bearer(PREDICTING)).status_code == 200
    assert client.post(asked[1][0], json={}).json()["error"], "as clients of that protocol look for it"
    session = client.post("/sessions", headers=bearer(PREDICTING)).headers["location"]
    assert client.post(f"{session}/groups", json=VALUES).status_code == 401
    assert client.post(f"{session}/groups", json=VALUES, headers=bearer(HASHED)).status_code == 200
    assert client.get(f"{session}/predict", headers=bearer(PREDICTING)).json()["prefix"] == 3
    with guarded.connect() as connection:
        connection.head("deadline_ms=20", Authorization=f"Bearer {PREDICTING}")
        assert connection.response()[2]["prediction"] == BASE_RATE, "a streamed body, answered before its end"


def test_a_websocket_opens_with_a_key_as_a_header_or_as_a_subprotocol(guarded: Running) -> None:
    encoded = HASHED.replace("/", "%2F").replace("+", "%2B").replace("=", "%3D")
    ways: list[dict[str, Any]] = [
        {"additional_headers": bearer(PREDICTING)},
        {"additional_headers": bearer(HASHED), "subprotocols": ["other", "anytime.v1"]},
        {"subprotocols": ["anytime.v1", f"anytime.key.{PREDICTING}"]},
        {"subprotocols": [f"anytime.key.{MANAGING}", "anytime.v1"]},
        {"subprotocols": ["anytime.v1", f"anytime.key.{encoded}"]},
        {"subprotocols": ["anytime.v1", f"anytime.key.{WRONG}"], "additional_headers": bearer(PREDICTING)},
    ]
    for way in ways:
        with guarded.stream(**way) as stream:
            assert stream.wire.subprotocol == ("anytime.v1" if "subprotocols" in way else None)
            assert not any("key" in value for value in stream.wire.response.headers.values())  # type: ignore[union-attr]
            assert stream.ask(1, deadline_ms=0)["prediction"] == BASE_RATE


@pytest.mark.parametrize(
    ("way", "code", "reported"),
    [
        ({}, 401, "Bearer"),
        ({"subprotocols": ["anytime.v1"]}, 401, "Bearer"),
        ({"additional_headers": bearer(WRONG)}, 401, 'Bearer error="invalid_token"'),
        ({"additional_headers": {"Authorization": "Basic YTpi"}}, 401, "Bearer"),
        ({"subprotocols": ["anytime.v1", f"anytime.key.{WRONG}"]}, 401, 'Bearer error="invalid_token"'),
        ({"subprotocols": ["anytime.v1", "anytime.key."]}, 401, 'Bearer error="invalid_token"'),
        (
            {"subprotocols": ["anytime.v1", f"anytime.key.{PREDICTING}", "anytime.key.x"]},
            401,
            'Bearer error="invalid_token"',
        ),
        ({"subprotocols": [f"anytime.key.{PREDICTING}"]}, 400, None),
        ({"subprotocols": ["anytime.v2", f"anytime.key.{PREDICTING}"]}, 400, None),
    ],
)
def test_a_websocket_is_refused_by_a_problem_that_has_no_key(
    guarded: Running, way: dict[str, Any], code: int, reported: str | None
) -> None:
    response = refused(guarded, **way)
    assert (response.status_code, response.headers.get("www-authenticate")) == (code, reported)
    assert response.headers["content-type"] == MEDIA_TYPE
    assert not any(key in response.text for key in (PREDICTING, WRONG))


def test_a_key_that_is_not_percent_encoded_opens_no_websocket(guarded: Running) -> None:
    with guarded.connect() as connection:
        protocols = f"Sec-WebSocket-Protocol: anytime.v1, anytime.key.{HASHED}\r\n\r\n"
        connection.send(HANDSHAKE[:-2] + protocols.encode())
        assert connection.file.readline().split()[1] == b"400"
        assert b"invalid Sec-WebSocket-Protocol header" in connection.file.read()


def test_without_keys_a_key_is_ignored_and_not_echoed(service: Running) -> None:
    assert httpx.get(f"{service.url}/models", headers=bearer(WRONG)).status_code == 200
    with service.stream(subprotocols=["anytime.v1", f"anytime.key.{WRONG}"]) as stream:
        assert stream.wire.subprotocol == "anytime.v1"
    assert WRONG not in refused(service, subprotocols=[f"anytime.key.{WRONG}"]).text


def test_the_document_states_which_routes_require_a_key(app: AnytimeAPI) -> None:
    needed: list[dict[str, list[str]]] = [{"key": []}]
    for document, security in ((APP.openapi(), needed), (app.openapi(), [*needed, {}])):
        assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
        for path, item in document["paths"].items():
            for method, operation in item.items():
                is_open = scope_of(method.upper(), path) == "open"
                assert operation.get("security") == (None if is_open else security)
                assert ("401" in operation["responses"]) != is_open
                assert "403" in operation["responses"]
