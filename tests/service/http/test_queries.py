"""A query parameter that is unknown, has no value or is given twice is an error on every route and binding."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.settings import Settings
from service.doors import Door, doors
from service.serving import Running, small_model

DOORS = [
    door
    for door in doors(create_app(ModelRegistry.of([small_model()]), Settings(port=0)))
    if door.method != "HEAD" and door.path not in ("/openapi.json", "/stream")
]


@pytest.mark.parametrize("door", DOORS, ids=str)
def test_an_unknown_parameter_is_an_error_on_every_route(server: Running, door: Door) -> None:
    for query in ("bugdet=1", "bugdet=", "bugdet"):
        response = httpx.request(door.method, f"{server.url}{door.filled}?{query}")
        assert response.status_code == 422, response.text
        assert response.json()["field"] == "bugdet"
        assert response.json()["detail"].startswith("there is no parameter 'bugdet'; ")


@pytest.mark.parametrize("path", ["/predict", "/v2/models/brake/infer"])
@pytest.mark.parametrize("name", ["deadline_ms", "budget", "policy", "ranking", "overload", "explain", "rows"])
def test_an_option_without_a_value_or_given_twice_is_an_error(server: Running, path: str, name: str) -> None:
    value = {"policy": "prefix", "overload": "refuse"}.get(name, "1")
    for query, says in (
        (f"{name}=", "has no value"),
        (name, "has no value"),
        (f"{name}={value}&{name}={value}", "more"),
    ):
        response = httpx.post(f"{server.url}{path}?{query}", json={"groups": {}})
        assert (response.status_code, response.json()["field"]) == (422, name)
        assert says in response.json()["detail"]


BODIES: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "JSON": ("/predict", lambda options: {"json": {"groups": {}, **options}}),
    "MessagePack": (
        "/predict",
        lambda options: {
            "content": MSGPACK.encode({"groups": {}, **options}),
            "headers": {"content-type": MSGPACK.media_type, "accept": JSON.media_type},
        },
    ),
    "inference": ("/v2/models/brake/infer", lambda options: {"json": {"inputs": [], "parameters": options}}),
}


@pytest.mark.parametrize("binding", BODIES)
@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("rows", 2, 3),
        ("rows", 2, None),
        ("budget", 5.0, 1.0),
        ("budget", 5.0, None),
        ("policy", "arrived", "prefix"),
        ("ranking", True, False),
        ("explain", True, False),
    ],
)
def test_an_option_in_query_and_body_has_one_value_on_every_binding(
    server: Running, binding: str, name: str, one: Any, other: Any
) -> None:
    path, request_of = BODIES[binding]

    for query, body in ((one, one), (one, other), (other, one)):
        if query is not None:  # a query has no null
            response = httpx.post(f"{server.url}{path}", params={name: query}, **request_of({name: body}))
            assert response.json().get("field") == (None if query == body else name), response.text
            assert (f"{json.dumps(body)} in the body" in response.json().get("detail", "")) == (query != body)


@pytest.mark.parametrize("query", ["budget=", "budget=1&budget=2", "rows=", "have=", "rows=1&rows=1"])
def test_a_plan_refuses_a_parameter_without_a_value_or_given_twice(server: Running, query: str) -> None:
    assert httpx.get(f"{server.url}/models/brake/plan?{query}").status_code == 422


@pytest.mark.parametrize(
    "name", ["Request-Timeout-Ms", "grpc-timeout", "Content-Type", "Inference-Header-Content-Length"]
)
def test_a_header_of_an_option_is_sent_once(server: Running, name: str) -> None:
    value = {"grpc-timeout": "1S", "Content-Type": "application/json"}.get(name, "100")
    response = httpx.post(f"{server.url}/predict", content=b'{"groups": {}}', headers=[(name, value), (name, value)])
    assert (response.status_code, response.json()["field"]) == (422, name.lower())


def test_the_accepted_types_may_be_in_several_fields(server: Running) -> None:
    headers = [("accept", "text/html"), ("content-type", "application/json"), ("accept", "application/msgpack")]
    response = httpx.post(f"{server.url}/predict", content=b'{"groups": {}}', headers=headers)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/msgpack")


def test_the_stream_has_no_query(server: Running) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(f"{server.url.replace('http', 'ws')}/stream?deadline_ms=5")
    assert refused.value.response.status_code == 422
