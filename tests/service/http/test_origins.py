"""Requests from pages of other sites are refused, and parameters that are unknown, empty or given twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from anytime.errors import AnytimeError
from anytime_service.app import create_app
from anytime_service.errors import OriginError
from anytime_service.models.registry import ModelRegistry, load_registry
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.settings import Settings, load_settings
from anytime_service.urls import Origins
from service.doors import MANAGING, PREDICTING, Door, bearer, doors, keyed, refused, sent
from service.serving import Running, problem_in, run_service, small_model

OTHER = "https://app.example.com"
FOREIGN = [
    "https://evil.example",
    "http://localhost",
    "http://127.0.0.1:1",
    "null",
    "",
    "file://",
    "chrome-extension://x",
]


@pytest.fixture(scope="module")
def open_one(model_file: Path) -> Iterator[Running]:
    """A service without keys, whose model can be loaded again."""
    with run_service(load_registry([model_file]), Settings(port=0, allowed_origins=OTHER)) as service:
        yield service


@pytest.fixture(scope="module")
def client(open_one: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=open_one.url) as client:
        yield client


def simple_post(client: httpx.Client, path: str, origin: str) -> httpx.Response:
    """What a form, or a script, of any page can send without asking the service before."""
    return client.post(path, content=b"{}", headers={"Content-Type": "text/plain", "Origin": origin})


@pytest.mark.parametrize("origin", FOREIGN)
def test_a_page_of_another_site_neither_reloads_a_model_nor_begins_a_session_nor_predicts(
    client: httpx.Client, origin: str
) -> None:
    for path in ("/models/brake/reload", "/sessions", "/predict", "/sessions/1/groups", "/v2/models/brake/infer"):
        assert "foreign-origin" in problem_in(simple_post(client, path, origin), 403)["type"]
        assert client.post(path, headers={"Origin": origin}).status_code == 403
    assert client.get("/models", headers={"Origin": origin}).status_code == 403
    assert client.post("/models/brake/reload").status_code == 200, "who is no page may"


def test_a_simple_post_is_refused_for_its_content_type_even_from_the_service_s_own_page(
    open_one: Running, client: httpx.Client
) -> None:
    for path in ("/sessions", "/predict"):
        assert simple_post(client, path, open_one.url).status_code == 415


@pytest.mark.parametrize("origin", FOREIGN)
def test_a_page_of_another_site_opens_no_websocket(open_one: Running, origin: str) -> None:
    problem = problem_in(refused(open_one, additional_headers={"Origin": origin}), 403)
    assert "ANYTIME_ALLOWED_ORIGINS" in problem["detail"]


def test_pages_of_the_service_and_of_listed_sites_are_accepted(open_one: Running) -> None:
    for origin in (open_one.url, OTHER, OTHER.upper(), f"{OTHER}:443"):
        assert httpx.get(f"{open_one.url}/models", headers={"Origin": origin}).status_code == 200
        with open_one.stream(additional_headers={"Origin": origin}) as stream:
            assert stream.ask(1, deadline_ms=0)["reason"] == "deadline"


def test_a_page_of_another_site_is_refused_even_with_a_key() -> None:
    with keyed() as service:
        reported = bearer(PREDICTING) | {"Origin": "https://evil.example"}
        for path in ("/models", "/livez"):
            assert httpx.get(service.url + path, headers=reported).status_code == 403
        assert refused(service, additional_headers=reported).status_code == 403
        own = {"Origin": service.url}
        assert httpx.post(f"{service.url}/models/brake/reload", headers=bearer(MANAGING) | own).status_code == 409


@pytest.mark.parametrize("origin", [None, "https://evil.example", OTHER, "own"])
@pytest.mark.parametrize("method", ["OPTIONS", "GET", "POST"])
def test_no_response_allows_other_sites_to_read_it(
    open_one: Running, client: httpx.Client, method: str, origin: str | None
) -> None:
    reported = {} if origin is None else {"Origin": open_one.url if origin == "own" else origin}
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for path in ("/", "/models", "/predict", "/stream", "/livez", "/nothing", "/v2/models/brake"):
        response = client.request(method, path, headers=reported | (asked if method == "OPTIONS" else {}))
        assert not [name for name in response.headers if name.startswith("access-control")]
        assert method != "OPTIONS" or response.status_code in (403, 404, 405)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "a."]
)
def test_without_keys_a_name_that_others_may_own_is_refused(open_one: Running, host: str) -> None:
    for method, path in (("GET", "/models"), ("POST", "/models/brake/reload"), ("GET", "/")):
        with open_one.connect() as connection:
            origin = f"Origin: http://{host}"
            connection.send(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{origin}\r\n\r\n".encode())
            code, _, problem = connection.response()
            assert (code, "ANYTIME_ALLOWED_ORIGINS" in problem["detail"]) == (403, True)


def test_names_of_this_machine_are_accepted() -> None:
    origins = Origins([OTHER], local=True)
    own = [
        "localhost",
        "localhost:8000",
        "LOCALHOST",
        "127.0.0.1:8000",
        "127.1",
        "10.0.0.7",
        "[::1]",
        "[::1]:8000",
        "anytime",
    ]
    for host in (*own, "app.localhost:1", "app.example.com", "app.example.com:8000"):
        origins.check({b"host": host.encode()}, "http")
    origins.check({}, "http")
    Origins([], local=False).check({b"host": b"anytime.example.com"}, "http")


@pytest.mark.parametrize("name", ["Host", "Origin"])
def test_a_repeated_header_is_refused(open_one: Running, name: str) -> None:
    twice = [f"{name}: http://test"] if name == "Host" else ["Origin: http://test", "Origin: http://evil.example"]
    code, _, problem = sent(open_one, "GET /models", *twice)
    assert (code, name in problem["detail"]) == (400 if name == "Host" else 403, True)


@pytest.mark.parametrize(
    ("scheme", "host", "origin", "passes"),
    [
        ("http", "a.example", "http://a.example", True),
        ("http", "a.example", "http://a.example:80", True),
        ("http", "a.example:80", "http://a.example", True),
        ("http", "a.example", "https://a.example", True),  # something in front of it may have the certificate
        ("http", "a.example:443", "https://a.example", True),
        ("http", "A.example:8000", "http://a.example:8000", True),
        ("http", "[::1]:8000", "http://[::1]:8000", True),
        ("https", "a.example", "https://a.example", True),
        ("wss", "a.example", "https://a.example", True),
        ("https", "a.example", "http://a.example", False),
        ("wss", "a.example:8000", "http://a.example:8000", False),
        ("http", "a.example", "http://a.example:8000", False),
        ("http", "a.example:8080", "http://a.example", False),
        ("http", "a.example", "http://a.example.evil", False),
        ("http", "a.example", "http://evil@a.example", False),
        ("http", "a.example", "http://a.example/path", False),
        ("http", "a.example", "http://a.example http://evil", False),
        ("http", "a.example", "ftp://a.example", False),
        ("http", "", "http://", False),
        ("http", "a.example@evil", "http://a.example@evil", False),
    ],
)
def test_a_page_belongs_to_this_service_if_scheme_host_and_port_match(
    scheme: str, host: str, origin: str, passes: bool
) -> None:
    with nullcontext() if passes else pytest.raises(OriginError):
        Origins([], local=False).check({b"host": host.encode(), b"origin": origin.encode()}, scheme)


def test_listed_origins_are_normalised_as_browsers_send_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYTIME_ALLOWED_ORIGINS", "https://A.example:443, http://b.example:8080")
    assert load_settings().allowed_origins == ("https://a.example", "http://b.example:8080")


@pytest.mark.parametrize(
    "origin",
    ["tauri://localhost", "capacitor://localhost", "chrome-extension://mhjfbmdgcfjbbpaeojofohoefgiehjai", "app://-"],
)
def test_origins_of_apps_and_extensions_can_be_listed(origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYTIME_ALLOWED_ORIGINS", origin.upper())
    listed = load_settings().allowed_origins
    assert listed == (origin,)
    for origins in (listed, (), ("https://app.example",)):
        with nullcontext() if origins == listed else pytest.raises(OriginError):
            Origins(origins, local=True).check({b"host": b"localhost:8000", b"origin": origin.encode()}, "http")


@pytest.mark.parametrize(
    "pattern",
    [
        "a.example",
        "https://a.example/",
        "https://a.example/app",
        ",",
        "ws://a.example",
        "*",
        "https://*",
        "https://*.example.com",
        "https://app.example.com:*",
        "https://app.example.com:99999999",
        "https://app.example.com:0",
        "https://app.example.com:",
        "https://(a|b).example.com",
        "https://b\u00fccher.example",
        "null",
        "file://",
        "file://localhost",
        "wss://app.example.com",
        "tauri://",
        "://localhost",
        "regex:https://.*",
    ],
)
def test_what_matches_no_origin_is_an_error_at_start(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for listed in (pattern, f"https://app.example.com,{pattern}"):
        monkeypatch.setenv("ANYTIME_ALLOWED_ORIGINS", listed)
        with pytest.raises(AnytimeError, match=r"ANYTIME_ALLOWED_ORIGINS: expected origins like .* \(got "):
            load_settings()


async def test_over_a_unix_socket_with_keys_and_if_insecure_any_name_is_accepted(tmp_path: Path) -> None:
    async def status(**reported: Any) -> int:
        app = create_app(ModelRegistry.of([small_model()]), Settings(**reported))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://any.example") as client:
            return (await client.get("/models", headers=bearer(PREDICTING))).status_code

    settings: list[dict[str, Any]] = [{"uds": tmp_path / "s"}, {"api_keys": PREDICTING}, {"insecure": True}, {}]
    assert [await status(**each) for each in settings] == [200, 200, 200, 403]


# Query parameters that are unknown, have no value or are given twice are errors on every route and binding.


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
