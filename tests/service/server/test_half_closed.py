"""A client that sends no more gets its answers (RFC 9112, 9.6); one that is gone leaves nothing open."""

from __future__ import annotations

import json
import socket
from typing import Any

import numpy as np
import pytest

from anytime_service.settings import Settings
from service.in_session import begin, post_groups
from service.inferring import tensors
from service.serving import LINES, VALUES, Connection, Running, lines_of
from waiting import until

SETTINGS = Settings(port=0, max_deadline_ms=20_000, max_lateness_ms=5_000, max_json_values=100_000)
BODY = json.dumps({"groups": VALUES}).encode()


def request(target: str, body: bytes, kind: str = "application/json", version: str = "1.1") -> bytes:
    head = f"POST {target} HTTP/{version}\r\nHost: test\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def final(connection: Connection) -> tuple[int, dict[str, str], Any]:
    """The final response, after any interim one."""
    interim(connection)
    return connection.response()


def interim(connection: Connection) -> bool:
    """Read an interim response, if there is one."""
    if found := connection.file.peek(12).startswith(b"HTTP/1.1 100"):
        while connection.file.readline().strip():
            pass
    return found


MANY = json.dumps({"groups": {"speed": np.ones((3_000, 1)).tolist()}}).encode()
REQUESTS = {
    "POST": request("/predict", BODY),
    "HTTP/1.0": request("/predict", BODY, version="1.0"),
    "an answer that the worker makes": request("/predict", MANY),
    "lines": request("/predict", lines_of(VALUES), LINES),
    "inference": request("/v2/models/brake/infer", json.dumps({"inputs": tensors({"speed": [[1.0]]})}).encode()),
    "a page": b"GET /models/brake HTTP/1.1\r\nHost: test\r\n\r\n",
    "a refusal": request("/predict", b'{"groups": {"none": [1.0]}}'),
}


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("together", [True, False])
def test_a_client_that_sends_no_more_gets_its_answer(service: Running, kind: str, *, together: bool) -> None:
    with service.connect() as connection:
        content = REQUESTS[kind]
        if not together:
            connection.send(content[:-3])
            content = content[-3:]
        connection.send(content)
        connection.sock.shutdown(socket.SHUT_WR)
        status, headers, body = final(connection)
        assert (status, bool(body)) == (422 if kind == "a refusal" else 200, True)
        assert connection.at_end(), "and the server closes"
        assert "close" in headers.get("connection", "close")


def test_a_prediction_that_waits_for_a_session_is_answered_to_a_client_that_sends_no_more(service: Running) -> None:
    session = begin(service)
    with service.connect() as connection:
        connection.send(f"GET /sessions/{session}/predict?deadline_ms=19000 HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        until(lambda: service.metric("anytime_open_predictions") == 1)
        connection.sock.shutdown(socket.SHUT_WR)
        assert interim(connection), "by which the server learns of clients that are gone"
        assert post_groups(service, session, VALUES).status_code == 200
        assert final(connection)[2]["reason"] == "complete"
        assert connection.at_end()


def test_a_part_of_a_request_is_not_answered(service: Running) -> None:
    for content in (REQUESTS["POST"][:30], REQUESTS["POST"][:-1]):
        with service.connect() as connection:
            connection.send(content)
            connection.sock.shutdown(socket.SHUT_WR)
            assert connection.at_end()
    until(lambda: service.metric("anytime_open_predictions") == 0)
