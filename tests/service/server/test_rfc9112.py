"""What RFC 9112 (HTTP/1.1) requires of a server, row by row."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from dataclasses import dataclass

import pytest

from anytime_service.settings import Settings
from service.serving import Running

SETTINGS = Settings(port=0)
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


@dataclass(frozen=True)
class Row:
    """A request, followed by `GET`, and the statuses of the answers; `x` is the end of the connection."""

    section: str
    sent: bytes
    answers: str


ROWS = {
    "no Host": Row("3.2", b"GET /livez HTTP/1.1\r\n\r\n", "400 x"),
    "two Hosts": Row("3.2", b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400 x"),
    "a Host that is a list": Row("3.2", b"GET /livez HTTP/1.1\r\nHost: a, b\r\n\r\n", "400 x"),
    "a Host with a path": Row("3.2", b"GET /livez HTTP/1.1\r\nHost: a/b\r\n\r\n", "400 x"),
    "a Host with a user": Row("3.2", b"GET /livez HTTP/1.1\r\nHost: u@a\r\n\r\n", "400 x"),
    "a Host whose port is a word": Row("3.2", b"GET /livez HTTP/1.1\r\nHost: a:b\r\n\r\n", "400 x"),
    "a Host that is not ASCII": Row("3.2", b"GET /livez HTTP/1.1\r\nHost: \xe9\r\n\r\n", "400 x"),
    "an empty Host": Row("3.2", b"GET /livez HTTP/1.1\r\nHost:\r\n\r\n", "200 200"),
    "an IPv6 Host": Row("3.2", b"GET /livez HTTP/1.1\r\nHost: [::1]:80 \r\n\r\n", "200 200"),
    "no Host in HTTP/1.0": Row("3.2", b"GET /livez HTTP/1.0\r\n\r\n", "200 x"),
    "an absolute target": Row("3.2.2", b"GET http://a/livez HTTP/1.1\r\nHost: b\r\n\r\n", "200 200"),
    "an absolute target with a user": Row("3.2.2", b"GET http://u:p@a/livez HTTP/1.1\r\nHost: a\r\n\r\n", "400 x"),
    "an absolute target whose host is invalid": Row(
        "3.2.2", b"GET http://a:b/livez HTTP/1.1\r\nHost: a\r\n\r\n", "400 x"
    ),
    "GET of the server": Row("3.2.4", b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", "400 x"),
    "CONNECT": Row("3.2.3", b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", "400 x"),
    "OPTIONS of the server": Row("3.2.4", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "404 200"),
    "OPTIONS of a route": Row("RFC 9110, 9.3.7", b"OPTIONS /livez HTTP/1.1\r\nHost: a\r\n\r\n", "405 200"),
    "HEAD where GET is": Row("RFC 9110, 9.3.2", b"HEAD /livez HTTP/1.1\r\nHost: a\r\n\r\n", "200 200"),
    "a method that does not exist": Row("3", b"FETCH /livez HTTP/1.1\r\nHost: a\r\n\r\n", "400 x"),
    "blank lines before a request": Row("2.2", b"\r\n\r\n" + GET, "200 200"),
    "lines that end with LF alone": Row("2.2", b"GET /livez HTTP/1.1\nHost: a\n\n", "400 x"),
    "a CR alone in a field": Row("2.2", b"GET /livez HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n", "400 x"),
    "a space before the first field": Row("2.2", b"GET /livez HTTP/1.1\r\n X: b\r\nHost: a\r\n\r\n", "400 x"),
    "a version that does not exist": Row("2.3", b"GET /livez HTTP/1.7\r\nHost: a\r\n\r\n", "400 x"),
    "HTTP/2.0": Row("2.3", b"GET /livez HTTP/2.0\r\nHost: a\r\n\r\n", "400 x"),
    "HTTP/0.9": Row("2.3", b"GET /livez\r\n\r\n", "400 x"),
    "HTTP/2 without TLS": Row("2.3", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400 x"),
    "a space before the colon": Row("5.1", b"GET /livez HTTP/1.1\r\nHost : a\r\n\r\n", "400 x"),
    "a folded field": Row("5.2", b"GET /livez HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n", "400 x"),
    "a NUL in a field": Row("5", b"GET /livez HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n", "400 x"),
    "chunks": Row("6.1", post(b"Transfer-Encoding: chunked\r\n", CHUNKED), "200 200"),
    "gzip, chunked": Row("6.1", post(b"Transfer-Encoding: gzip, chunked\r\n", CHUNKED), "501 x"),
    "chunked, gzip": Row("6.1", post(b"Transfer-Encoding: chunked, gzip\r\n", CHUNKED), "400 x"),
    "chunked twice": Row(
        "6.1", post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", CHUNKED), "400 x"
    ),
    "identity": Row("6.1", post(b"Transfer-Encoding: identity\r\n" + LENGTH), "400 x"),
    "chunks in HTTP/1.0": Row("6.1", post(b"Transfer-Encoding: chunked\r\n", CHUNKED, b"1.0"), "400 x"),
    "chunks and a length": Row("6.1", post(b"Transfer-Encoding: chunked\r\n" + LENGTH, CHUNKED), "400 x"),
    "two equal lengths": Row("6.2", post(LENGTH + LENGTH), "400 x"),
    "two lengths": Row("6.2", post(LENGTH + b"Content-Length: 1\r\n"), "400 x"),
    "a length with a sign": Row("6.2", post(b"Content-Length: +%d\r\n" % len(BODY)), "400 x"),
    "a negative length": Row("6.2", post(b"Content-Length: -1\r\n"), "400 x"),
    "a chunk size with 0x": Row("7.1", post(b"Transfer-Encoding: chunked\r\n", b"0x" + CHUNKED), "400 x"),
    "a chunk longer than its size": Row(
        "7.1", post(b"Transfer-Encoding: chunked\r\n", b"2\r\n{}}\r\n0\r\n\r\n"), "400 x"
    ),
    **{
        f"a body of chunks that begins with {body!r}": Row(
            "7.1", post(b"Transfer-Encoding: chunked\r\n", body), "400 x"
        )
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
    "a chunk extension": Row(
        "7.1.1", post(b"Transfer-Encoding: chunked\r\n", CHUNKED.replace(b"\r\n{", b";a=b\r\n{")), "200 200"
    ),
    "a trailer": Row("7.1.2", post(b"Transfer-Encoding: chunked\r\n", CHUNKED[:-2] + b"Host: b\r\n\r\n"), "200 200"),
    "a body after Connection: close": Row("9.3", post(LENGTH + b"Connection: close\r\n"), "200 x"),
    "HTTP/1.0 with keep-alive": Row("9.3", post(LENGTH + b"Connection: keep-alive\r\n", version=b"1.0"), "200 x"),
    "pipelined requests": Row("9.3.2", GET + GET, "200 200 200"),
    "Expect: 100-continue": Row("RFC 9110, 10.1.1", post(LENGTH + b"Expect: 100-continue\r\n"), "100 200 200"),
    "Expect: 100-continue in HTTP/1.0": Row(
        "RFC 9110, 10.1.1", post(LENGTH + b"Expect: 100-continue\r\n", version=b"1.0"), "200 x"
    ),
    "an offer of h2c with a body": Row("RFC 9110, 7.8", post(LENGTH + UPGRADE % b"h2c"), "200 200"),
    "an offer of a WebSocket with a body": Row("RFC 9110, 7.8", post(LENGTH + UPGRADE % b"websocket"), "200 200"),
    "an offer of an unknown protocol": Row(
        "RFC 9110, 7.8", b"GET /livez HTTP/1.1\r\nHost: a\r\n" + UPGRADE % b"foo/1" + b"\r\n", "200 200"
    ),
    "a WebSocket of another version": Row(
        "RFC 6455, 4.2.2",
        b"GET /stream HTTP/1.1\r\nHost: a\r\n" + UPGRADE % b"websocket" + SOCKET % b"99" + b"\r\n",
        "400 x",
    ),
    "a WebSocket with empty elements in a list": Row(
        "RFC 9110, 5.6.1.2",
        b"GET /stream HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Protocol: , anytime.v1 ,,\r\n"
        + UPGRADE % b"websocket"
        + SOCKET % b"13"
        + b"\r\n",
        "101 x",
    ),
    "a WebSocket without a key": Row(
        "RFC 6455, 4.2.2", b"GET /stream HTTP/1.1\r\nHost: a\r\n" + UPGRADE % b"websocket" + b"\r\n", "400 x"
    ),
}


def answers(port: int, sent: bytes, expected: str) -> str:
    """Return the statuses of the answers, and `x` if the server closes; wait no longer than for the expected ones."""
    received, found = b"", ""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(sent)
        with suppress(TimeoutError):
            while not found.endswith("x"):
                sock.settimeout(0.05 if found == expected else 3)
                data = sock.recv(65_536)
                received += data
                statuses = re.findall(r"HTTP/1\.[01] (\d{3})", received.decode("latin-1"))
                found = " ".join(statuses if data else [*statuses, "x"])
    return found


@pytest.mark.parametrize("name", ROWS)
def test_the_service_answers_as_the_rfc_asks(name: str, service: Running) -> None:
    row = ROWS[name]
    assert answers(service.port, row.sent + GET, row.answers) == row.answers, row.section


def test_a_refused_websocket_is_told_the_version(service: Running) -> None:
    with service.connect() as client:
        client.send(ROWS["a WebSocket of another version"].sent)
        status, headers, _ = client.response()
    assert (status, headers["sec-websocket-version"]) == (400, "13")
    assert service.get("/stream").headers["sec-websocket-version"] == "13"


def test_the_host_of_an_absolute_target_counts(service: Running) -> None:
    with service.connect() as client:
        client.send(b"GET http://evil.example/livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.response()[0] == 403
        client.send(b"GET http://localhost/livez HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert client.response()[0] == 200
