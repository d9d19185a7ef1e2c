"""Hostile input, a small part of what `make hostile` tries: it is refused in order, and leaves nothing behind."""

from __future__ import annotations

import logging
import re
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from anytime_service.http.responses import MAX_DETAIL
from anytime_service.models.registry import load_registry
from anytime_service.settings import Settings
from benchmarks.load.frames import frame
from drills.attacks.bodies import BOMBS
from drills.attacks.frames import HANDSHAKES, NONSENSE, open_websocket, send_frames, send_handshake
from drills.attacks.malformed import AMBIGUOUS, OTHER_PROTOCOLS, ROUTES, TRICKS, UPGRADES, get_request, send_ambiguous
from drills.attacks.wire import connect, receive, request, send_all
from drills.judging import unexpected_replies
from service.serving import VALUES, Running, expected, logged, problem_in, run_service, timeless, trained_model
from waiting import until

LIMITS = Settings(port=0, max_body_bytes=1 << 20, max_deadline_ms=2_000, header_timeout_s=1.0, max_rows=50)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path: Path = tmp_path_factory.mktemp("models") / "m.safetensors"
    trained_model().save(path)
    with run_service(load_registry([path]), LIMITS) as service:
        yield service


@pytest.fixture(scope="module")
def right(house: Running) -> dict[str, Any]:
    """The answer of an honest client, before anybody has attacked."""
    answer = timeless(house.post({"groups": VALUES}).json())
    assert answer == expected(trained_model(), VALUES) | {"version": answer["version"]}
    return answer


@pytest.fixture
def _serves_on(house: Running, right: dict[str, Any]) -> Iterator[None]:
    """After each attack an honest client is answered, nothing is open, and nothing was an error."""
    with logged() as records:
        yield
        assert timeless(house.post({"groups": VALUES}).json()) == right
        until(lambda: house.metric("anytime_open_predictions") == 0)
    assert not [record for record in records if record.levelno >= logging.ERROR]


@pytest.mark.usefixtures("_serves_on")
@pytest.mark.parametrize(
    ("contents", "send"),
    [
        (AMBIGUOUS, send_ambiguous),
        (UPGRADES, send_ambiguous),
        (OTHER_PROTOCOLS, lambda content, port: request(port, content, 1.0)),
        (BOMBS, lambda content, port: request(port, content)),
        (NONSENSE, send_frames),
        (HANDSHAKES, send_handshake),
    ],
    ids=["ambiguous requests", "upgrades", "other protocols", "bombs", "frames", "handshakes"],
)
def test_attacks_are_refused_in_order_and_hide_no_request(
    house: Running, contents: Mapping[str, bytes], send: Callable[[bytes, int], Counter[str]]
) -> None:
    for name, content in contents.items():
        received = send(content, house.port)
        assert received, name
        may_reset = contents is NONSENSE and len(content) > 1 << 20
        assert not unexpected_replies(received, may_reset=may_reset, may_stay_open=False), (name, received)
        if contents is AMBIGUOUS:
            assert received["FIN"] == 1, f"{name}: what follows is not believed either"
        if contents is UPGRADES:
            assert received.total() - received["FIN"] == 1, (name, received)


@pytest.mark.usefixtures("_serves_on")
def test_no_name_in_a_path_escapes_its_route(house: Running) -> None:
    for route in ROUTES:
        for trick in TRICKS:
            received = request(house.port, get_request(route.format(trick, trick)))
            assert not unexpected_replies(received, may_reset=True, may_stay_open=False), (route, trick[:100], received)
            assert not received["200"], (route, trick[:100])


@pytest.mark.usefixtures("_serves_on")
@pytest.mark.parametrize(
    ("length", "status", "detail"),
    [
        (1_000, 422, "there is no group 'yyyy"),
        (900_000, 400, "a name has more than 1024 characters; send at most 1024"),
    ],
)
def test_an_error_is_not_longer_than_its_request(house: Running, length: int, status: int, detail: str) -> None:
    said = problem_in(house.post({"groups": {"y" * length: [1]}}), status)["detail"]
    assert (detail in said, len(said) <= MAX_DETAIL) == (True, True)


@pytest.mark.usefixtures("_serves_on")
def test_compression_is_not_negotiated(house: Running) -> None:
    with connect(house.port) as sock:
        send_all(sock, HANDSHAKES["compression"])
        received, _ = receive(sock, 1.0)
    assert b" 101 " in received
    assert b"extensions" not in received.lower()


@pytest.mark.usefixtures("_serves_on")
def test_a_closed_websocket_accepts_no_message(house: Running) -> None:
    with open_websocket(house.port) as sock:
        send_all(sock, frame(8, struct.pack("!H", 1000)) + frame(1, b'{"type": "begin", "id": 1}'))
        received, end = receive(sock, 1.0)
    assert received == b"\x88\x02" + struct.pack("!H", 1000)
    assert end == "FIN"


# What RFC 9112 (HTTP/1.1) requires of a server, row by row.


BODY = b'{"groups": {}}'
GET = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
"""A request behind that of a row: it is answered unless the connection is closed."""


def post(fields: bytes, body: bytes = BODY, version: bytes = b"1.1") -> bytes:
    head = b"POST /predict HTTP/%b\r\nHost: a\r\nContent-Type: application/json\r\n%b\r\n"
    return head % (version, fields) + body


LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
UPGRADE = b"Connection: Upgrade\r\nUpgrade: %b\r\n"
SOCKET = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: %b\r\n"


ROWS: dict[str, tuple[str, bytes, str]] = {
    "no Host": ("3.2", b"GET /livez HTTP/1.1\r\n\r\n", "400 x"),
    "two Hosts": ("3.2", b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400 x"),
    "a Host that is a list": ("3.2", b"GET /livez HTTP/1.1\r\nHost: a, b\r\n\r\n", "400 x"),
    "a Host with a path": ("3.2", b"GET /livez HTTP/1.1\r\nHost: a/b\r\n\r\n", "400 x"),
    "a Host with a user": ("3.2", b"GET /livez HTTP/1.1\r\nHost: u@a\r\n\r\n", "400 x"),
    "a Host whose port is a word": ("3.2", b"GET /livez HTTP/1.1\r\nHost: a:b\r\n\r\n", "400 x"),
    "a Host that is not ASCII": ("3.2", b"GET /livez HTTP/1.1\r\nHost: \xe9\r\n\r\n", "400 x"),
    "an empty Host": ("3.2", b"GET /livez HTTP/1.1\r\nHost:\r\n\r\n", "200 200"),
    "an IPv6 Host": ("3.2", b"GET /livez HTTP/1.1\r\nHost: [::1]:80 \r\n\r\n", "200 200"),
    "no Host in HTTP/1.0": ("3.2", b"GET /livez HTTP/1.0\r\n\r\n", "200 x"),
    "an absolute target": ("3.2.2", b"GET http://a/livez HTTP/1.1\r\nHost: b\r\n\r\n", "200 200"),
    "an absolute target with a user": ("3.2.2", b"GET http://u:p@a/livez HTTP/1.1\r\nHost: a\r\n\r\n", "400 x"),
    "an absolute target whose host is invalid": ("3.2.2", b"GET http://a:b/livez HTTP/1.1\r\nHost: a\r\n\r\n", "400 x"),
    "GET of the server": ("3.2.4", b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", "400 x"),
    "CONNECT": ("3.2.3", b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", "400 x"),
    "OPTIONS of the server": ("3.2.4", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "404 200"),
    "OPTIONS of a route": ("RFC 9110, 9.3.7", b"OPTIONS /livez HTTP/1.1\r\nHost: a\r\n\r\n", "405 200"),
    "HEAD where GET is": ("RFC 9110, 9.3.2", b"HEAD /livez HTTP/1.1\r\nHost: a\r\n\r\n", "200 200"),
    "a method that does not exist": ("3", b"FETCH /livez HTTP/1.1\r\nHost: a\r\n\r\n", "400 x"),
    "blank lines before a request": ("2.2", b"\r\n\r\n" + GET, "200 200"),
    "lines that end with LF alone": ("2.2", b"GET /livez HTTP/1.1\nHost: a\n\n", "400 x"),
    "a CR alone in a field": ("2.2", b"GET /livez HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n", "400 x"),
    "a space before the first field": ("2.2", b"GET /livez HTTP/1.1\r\n X: b\r\nHost: a\r\n\r\n", "400 x"),
    "a version that does not exist": ("2.3", b"GET /livez HTTP/1.7\r\nHost: a\r\n\r\n", "400 x"),
    "HTTP/2.0": ("2.3", b"GET /livez HTTP/2.0\r\nHost: a\r\n\r\n", "400 x"),
    "HTTP/0.9": ("2.3", b"GET /livez\r\n\r\n", "400 x"),
    "HTTP/2 without TLS": ("2.3", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400 x"),
    "a space before the colon": ("5.1", b"GET /livez HTTP/1.1\r\nHost : a\r\n\r\n", "400 x"),
    "a folded field": ("5.2", b"GET /livez HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n", "400 x"),
    "a NUL in a field": ("5", b"GET /livez HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n", "400 x"),
    "chunks": ("6.1", post(b"Transfer-Encoding: chunked\r\n", CHUNKED), "200 200"),
    "gzip, chunked": ("6.1", post(b"Transfer-Encoding: gzip, chunked\r\n", CHUNKED), "501 x"),
    "chunked, gzip": ("6.1", post(b"Transfer-Encoding: chunked, gzip\r\n", CHUNKED), "400 x"),
    "chunked twice": ("6.1", post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", CHUNKED), "400 x"),
    "identity": ("6.1", post(b"Transfer-Encoding: identity\r\n" + LENGTH), "400 x"),
    "chunks in HTTP/1.0": ("6.1", post(b"Transfer-Encoding: chunked\r\n", CHUNKED, b"1.0"), "400 x"),
    "chunks and a length": ("6.1", post(b"Transfer-Encoding: chunked\r\n" + LENGTH, CHUNKED), "400 x"),
    "two equal lengths": ("6.2", post(LENGTH + LENGTH), "400 x"),
    "two lengths": ("6.2", post(LENGTH + b"Content-Length: 1\r\n"), "400 x"),
    "a length with a sign": ("6.2", post(b"Content-Length: +%d\r\n" % len(BODY)), "400 x"),
    "a negative length": ("6.2", post(b"Content-Length: -1\r\n"), "400 x"),
    "a chunk size with 0x": ("7.1", post(b"Transfer-Encoding: chunked\r\n", b"0x" + CHUNKED), "400 x"),
    "a chunk longer than its size": ("7.1", post(b"Transfer-Encoding: chunked\r\n", b"2\r\n{}}\r\n0\r\n\r\n"), "400 x"),
    **{
        f"a body of chunks that begins with {body!r}": ("7.1", post(b"Transfer-Encoding: chunked\r\n", body), "400 x")
        for body in (
            b"x\r\n",
            b"-5\r\n",
            b";\r\n",
            b"5 \r\nabcde\r\n",
            b"5;a=\0\r\n",
            b"5\nabcde",
            b"11111111111111111\r\n",
            b"5\r\nabcde\n0\r\n\r\n",
            b"0\r\nno trailer\r\n\r\n",
            b"0\r\nX : y\r\n\r\n",
        )
    },
    "a chunk extension": (
        "7.1.1",
        post(b"Transfer-Encoding: chunked\r\n", CHUNKED.replace(b"\r\n{", b";a=b\r\n{")),
        "200 200",
    ),
    "a trailer": ("7.1.2", post(b"Transfer-Encoding: chunked\r\n", CHUNKED[:-2] + b"Host: b\r\n\r\n"), "200 200"),
    "a body after Connection: close": ("9.3", post(LENGTH + b"Connection: close\r\n"), "200 x"),
    "HTTP/1.0 with keep-alive": ("9.3", post(LENGTH + b"Connection: keep-alive\r\n", version=b"1.0"), "200 x"),
    "pipelined requests": ("9.3.2", GET + GET, "200 200 200"),
    "Expect: 100-continue": ("RFC 9110, 10.1.1", post(LENGTH + b"Expect: 100-continue\r\n"), "100 200 200"),
    "Expect: 100-continue in HTTP/1.0": (
        "RFC 9110, 10.1.1",
        post(LENGTH + b"Expect: 100-continue\r\n", version=b"1.0"),
        "200 x",
    ),
    "an offer of h2c with a body": ("RFC 9110, 7.8", post(LENGTH + UPGRADE % b"h2c"), "200 200"),
    "an offer of a WebSocket with a body": ("RFC 9110, 7.8", post(LENGTH + UPGRADE % b"websocket"), "200 200"),
    "an offer of an unknown protocol": (
        "RFC 9110, 7.8",
        b"GET /livez HTTP/1.1\r\nHost: a\r\n" + UPGRADE % b"foo/1" + b"\r\n",
        "200 200",
    ),
    "a WebSocket of another version": (
        "RFC 6455, 4.2.2",
        b"GET /stream HTTP/1.1\r\nHost: a\r\n" + UPGRADE % b"websocket" + SOCKET % b"99" + b"\r\n",
        "400 x",
    ),
    "a WebSocket with empty elements in a list": (
        "RFC 9110, 5.6.1.2",
        b"GET /stream HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Protocol: , anytime.v1 ,,\r\n"
        + UPGRADE % b"websocket"
        + SOCKET % b"13"
        + b"\r\n",
        "101 x",
    ),
    "a WebSocket without a key": (
        "RFC 6455, 4.2.2",
        b"GET /stream HTTP/1.1\r\nHost: a\r\n" + UPGRADE % b"websocket" + b"\r\n",
        "400 x",
    ),
}
"""Section, request (`GET` follows it), and the statuses of the answers; `x` is the end of the connection."""


def answers(port: int, sent: bytes, expected: str) -> str:
    """Return the statuses of the answers, and `x` if the server closes; wait no longer than for the expected ones."""
    received, found = b"", ""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(sent)
        with suppress(TimeoutError):
            while not found.endswith("x"):
                sock.settimeout(0.05 if found == expected else 60)
                data = sock.recv(65_536)
                received += data
                statuses = re.findall(r"HTTP/1\.[01] (\d{3})", received.decode("latin-1"))
                found = " ".join(statuses if data else [*statuses, "x"])
    return found


@pytest.mark.parametrize("name", ROWS)
def test_the_service_answers_as_the_rfc_asks(name: str, service: Running) -> None:
    section, sent, expected_answers = ROWS[name]
    assert answers(service.port, sent + GET, expected_answers) == expected_answers, section


def test_a_refused_websocket_is_told_the_version(service: Running) -> None:
    with service.connect() as client:
        client.send(ROWS["a WebSocket of another version"][1])
        status, headers, _ = client.response()
    assert (status, headers["sec-websocket-version"]) == (400, "13")
    assert service.get("/stream").headers["sec-websocket-version"] == "13"


def test_the_host_of_an_absolute_target_counts(service: Running) -> None:
    with service.connect() as client:
        client.send(b"GET http://evil.example/livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.response()[0] == 403
        client.send(b"GET http://localhost/livez HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert client.response()[0] == 200
