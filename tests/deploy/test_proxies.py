"""Behind a proxy as shipped: every binding gives the same answers at the deadline. The bounds are wide."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from time import sleep
from typing import Any
from uuid import uuid4

import aiohttp
import httpx
import pytest

from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.schemas.problem import MEDIA_TYPE
from anytime_service.settings import Settings
from deploy.project import CONFIGURATIONS, PROXIES, run_proxy
from service.inferring import JSON_BYTES, assert_reported, binary, half_sent
from service.serving import LINES, VALUES, Running, chunk, expected, lines_of, packed, small_model, timeless
from system import free_port, http_server
from waiting import WAIT_S, until

DEADLINE_MS = 1_000
MODEL = small_model()
SENT = {name: VALUES[name] for name in ("speed", "hog")}
"""Groups that are sent before the deadline; the remaining one never is."""


def assert_at_deadline(answer: dict[str, Any]) -> None:
    """Assert that the deadline caused the answer, and that it is the library's for the groups sent."""
    assert (answer["reason"], answer["groups"]) == ("deadline", list(SENT))
    assert timeless(answer) == expected(MODEL, SENT)


def test_an_idle_connection_to_the_service_is_closed_by_the_proxy_first() -> None:
    longest = Settings().idle_timeout_s
    configurations = {path.name: path.read_text(encoding="utf-8") for path in CONFIGURATIONS.iterdir()}
    patterns = {
        "nginx.conf": r"keepalive 64;\n +keepalive_timeout (\d+)s;",
        "haproxy.cfg": r" pool-purge-delay (\d+)s\n",
        "envoy.yaml": r" idle_timeout: (\d+)s\n +health_checks:",
    }
    for name, pattern in patterns.items():
        assert [int(seconds) < longest for seconds in re.findall(pattern, configurations[name])] == [True], name


def websocket(way: Running, form: Form = JSON) -> None:
    with way.stream(form, close_timeout=0.1, subprotocols=["anytime.v1"]) as stream:
        assert stream.wire.subprotocol == "anytime.v1"
        stream.say("begin", 1, deadline_ms=DEADLINE_MS, updates=True)
        for group, values in SENT.items():
            stream.groups(1, {group: values if form is JSON else packed(values)})
            assert stream.hear()["type"] == "update"  # the service has read the group
        assert_at_deadline(stream.answer(1))


def chunks_of_a_post(way: Running) -> None:
    with way.connect() as connection:
        connection.head(
            content_type=LINES, request_timeout_ms=f"{DEADLINE_MS}"
        )  # a header, which the proxy must forward
        for group in SENT:
            sleep(0.03)
            connection.send(chunk(lines_of({group: VALUES[group]})))
        status, _, answer = connection.response()
        assert_at_deadline(answer)
        assert status == 200


def a_client_that_is_still_uploading(way: Running) -> None:
    async def lines(answered: asyncio.Event) -> AsyncIterator[bytes]:
        for group in SENT:
            yield lines_of({group: VALUES[group]})
        while not answered.is_set():
            await asyncio.sleep(0.005)
            yield b"\n"

    async def main() -> None:
        async with aiohttp.ClientSession(headers={"content-type": LINES}) as client, asyncio.timeout(WAIT_S):
            answered = asyncio.Event()
            url = f"{way.url}/predict?deadline_ms={DEADLINE_MS}"
            async with client.post(url, data=lines(answered)) as response:
                answer = await response.json()
                answered.set()
            assert_at_deadline(answer)

    asyncio.run(main())


def a_waiting_get_and_groups_that_are_posted_meanwhile(way: Running) -> None:
    with httpx.Client(base_url=way.url) as client, way.connect() as waiting:
        session = client.post("/sessions").json()["id"]
        waiting.send(
            f"GET /sessions/{session}/predict?deadline_ms={DEADLINE_MS} HTTP/1.1\r\nHost: test\r\n\r\n".encode()
        )
        for name, values in SENT.items():
            assert client.post(f"/sessions/{session}/groups", json={name: values}).status_code == 200
        assert_at_deadline(waiting.response()[2])
        assert client.delete(f"/sessions/{session}").status_code == 204


def binary_tensors(way: Running) -> None:
    rows = {name: [values] for name, values in VALUES.items()}
    content, tensor_headers = binary(rows)
    at = int(tensor_headers[JSON_BYTES])
    headers = {JSON_BYTES: tensor_headers[JSON_BYTES], "grpc_timeout": f"{DEADLINE_MS}m"}
    with half_sent(way, content, at, **headers) as connection:
        for piece in (content[at : at + 8], content[at + 8 : at + 24]):  # speed, hog; lab is never sent
            sleep(0.03)
            connection.send(piece)
        reply = connection.response()[2]
    assert_reported(reply, expected(MODEL, SENT))
    assert reply["parameters"]["reason"] == "deadline"


BINDINGS = (
    websocket,
    partial(websocket, form=MSGPACK),
    chunks_of_a_post,
    a_client_that_is_still_uploading,
    a_waiting_get_and_groups_that_are_posted_meanwhile,
    binary_tensors,
)


def test_groups_of_every_binding_are_forwarded_at_once_and_answered_at_the_deadline(way: Running) -> None:
    with ThreadPoolExecutor(len(BINDINGS)) as pool:  # all wait for their deadlines at the same time
        for answered in [pool.submit(binding, way) for binding in BINDINGS]:
            answered.result(WAIT_S)


def test_a_complete_body_is_answered_at_once(way: Running) -> None:
    answer = way.post({"groups": VALUES}, deadline_ms=8_000).json()
    assert (answer["reason"], timeless(answer)) == ("complete", expected(MODEL, VALUES))


def test_a_body_that_is_too_large_is_refused_by_the_service_with_the_reason(way: Running) -> None:
    refused = way.post({"groups": {"speed": [2.0]}, "rest": "x" * 100_000})
    assert (refused.status_code, refused.headers["content-type"]) == (413, MEDIA_TYPE)
    assert "100000" in refused.json()["detail"]


every_proxy = pytest.mark.parametrize("name", PROXIES)


@every_proxy
def test_a_proxy_forwards_client_address_and_request_id_and_hides_the_metrics(
    name: str, service: Running, tmp_path: Path
) -> None:
    with run_proxy(name, [service.port], tmp_path) as way, httpx.Client(base_url=way.url) as client:
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        headers = {"x-request-id": str(uuid4()), "traceparent": trace, "authorization": "Bearer key"}
        forged = {"x-forwarded-for": "203.0.113.7", "x-forwarded-proto": "https", "host": "localhost:8443"}
        received = client.get("/headers", headers=headers | forged).json()
        assert {header: received[header] for header in headers} == headers
        assert received["x-forwarded-for"] == "127.0.0.1"
        assert (received["x-forwarded-proto"], received["x-forwarded-host"]) == ("http", "localhost:8443")
        made = [client.get("/headers").json()["x-request-id"] for _ in range(2)]
        assert len(set(made)) == 2
        assert all(len(each) >= 32 for each in made)
        assert client.get("/metrics").status_code == 404
        # The service compares the origin of a page with the requested host.
        origins = (way.url, "https://elsewhere.example")
        assert [client.get("/models", headers={"origin": each}).status_code for each in origins] == [200, 403]
    assert service.get("/metrics").status_code == 200


@every_proxy
def test_a_proxy_without_replicas_returns_problem_details(name: str, tmp_path: Path) -> None:
    with run_proxy(name, [free_port()], tmp_path) as way:
        for refused in (way.get("/models"), way.post({"groups": VALUES})):
            assert (refused.status_code, refused.headers["content-type"]) == (503, MEDIA_TYPE)
            assert refused.headers["retry-after"] == "1"
            problem = refused.json()
            assert problem["status"] == 503
            assert {"type", "title", "detail"} <= set(problem)


UPGRADES = ("h2c", "websocket", "WebSocket", "foo/1", "websocket, h2c")
HANDSHAKE = {"sec-websocket-version": "13", "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA=="}
HIDDEN = "GET /sessions/{session}/predict?deadline_ms=300 HTTP/1.1\r\nHost: test\r\n\r\n"


@pytest.mark.parametrize("upgrade", UPGRADES)
def test_the_body_of_a_request_for_an_upgrade_never_answers_another_client(way: Running, upgrade: str) -> None:
    for _ in range(3):
        session = way.post_to("/sessions").json()["id"]
        assert way.post_to(f"/sessions/{session}/groups", {"speed": [-5.0]}).status_code == 200
        body = "\r\n" * 4_000 + HIDDEN.format(session=session)
        with way.connect() as attacker, way.connect() as first, way.connect() as second:
            attacker.send(
                f"POST /predict HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n"
                f"Content-Type: {LINES}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            sleep(0.05)
            for client, groups in ((first, {"speed": [1.0]}), (second, {"hog": [2.0, 3.0]})):
                content = json.dumps({"groups": groups})
                client.head(length=len(content), content_type="application/json")
                client.send(content.encode())
                status, _, answer = client.response()
                assert (status, timeless(answer)) == (200, expected(MODEL, groups))


class Recording(BaseHTTPRequestHandler):
    """A replica that records method, path and the Upgrade field of each request, and returns one status to all."""

    protocol_version = "HTTP/1.1"
    recorded: list[tuple[str, str, str | None]]
    status: int

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        is_probe = self.path == "/readyz"
        if not is_probe:
            self.recorded.append((self.command, self.path, self.headers["upgrade"]))
        self.send_response(200 if is_probe else self.status)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@every_proxy
def test_a_proxy_forwards_the_upgrade_of_a_websocket_and_no_other(name: str, tmp_path: Path) -> None:
    recorded: list[tuple[str, str, str | None]] = []
    with http_server(Recording, recorded=recorded, status=200) as port, run_proxy(name, [port], tmp_path) as way:
        until(lambda: way.get("/models").status_code == 200)  # the proxy has found the replica to be ready
        del recorded[:]
        for method, path in (("GET", "/stream"), ("POST", "/stream"), ("GET", "/models"), ("POST", "/predict")):
            for upgrade in UPGRADES:
                headers = {"upgrade": upgrade, "connection": "Upgrade", **HANDSHAKE}
                content = b"{}" if method == "POST" else b""
                response = httpx.request(method, way.url + path, headers=headers, content=content)
                assert response.status_code in ((200, 403) if name == "envoy" else (200,))
                assert response.status_code == 200 or upgrade != "h2c", "what clients send by default"
    upgraded = [(method, path, upgrade.lower()) for method, path, upgrade in recorded if upgrade]
    assert upgraded == [("GET", "/stream", "websocket")] * 2


@contextmanager
def unreachable() -> Iterator[int]:
    """Yield a port where connections are neither accepted nor refused, as at an address without a host."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, ExitStack() as stack:
        port: int = listening.getsockname()[1]
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield port


@every_proxy
def test_requests_go_to_another_replica_if_one_is_unreachable(name: str, service: Running, tmp_path: Path) -> None:
    with (
        unreachable() as port,
        run_proxy(name, [port, service.port], tmp_path) as way,
        httpx.Client(base_url=way.url, timeout=60) as client,
    ):
        assert {client.get("/models").status_code for _ in range(4)} == {200}
        assert {client.post("/predict", json={"groups": VALUES}).status_code for _ in range(4)} == {200}


@every_proxy
def test_refused_requests_are_retried_at_another_replica_if_that_is_safe(
    name: str, service: Running, tmp_path: Path
) -> None:
    recorded: list[tuple[str, str, str | None]] = []
    with (
        http_server(Recording, recorded=recorded, status=503) as port,
        run_proxy(name, [port, service.port], tmp_path) as way,
        httpx.Client(base_url=way.url) as client,
    ):
        assert {client.get("/models").status_code for _ in range(20)} == {200}
        statuses = [client.post("/predict", json={"groups": VALUES}).status_code for _ in range(20)]
    refused = [method for method, *_ in recorded]
    assert refused.count("GET") > 0
    assert 0 < refused.count("POST") < 20
    assert statuses.count(503) == refused.count("POST")  # each was sent once, as proxies do not store its body
    assert statuses.count(200) == 20 - refused.count("POST")
