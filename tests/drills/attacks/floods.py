"""Floods of connections, pipelined requests and bytes, clients that never read, and slow or endless headers."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from drills.attacks.bodies import post_request
from drills.attacks.wire import Attack, connect, endless, receive, replies, request, reset, send_all

IDLE = 10_000
CHURN = 10_000
PIPELINED = 10_000
REQUEST = b"GET /livez HTTP/1.1\r\nHost: hostile\r\n\r\n"


def _idle(port: int) -> Counter[str]:
    """Open 10,000 connections, each idle after one request."""
    received: Counter[str] = Counter()
    socks: list[socket.socket] = []
    try:
        for _ in range(IDLE):
            sock = connect(port)
            send_all(sock, REQUEST)
            socks.append(sock)
            if len(socks) % 100 == 0:
                time.sleep(0.01)
        time.sleep(2.0)
        for sock in socks:
            content, end = receive(sock, 0.0005)
            received.update([*replies(content), *(() if end == "open" else (end,))])
    finally:
        for sock in socks:
            sock.close()
    return received


def _churn(port: int) -> Counter[str]:
    """Connect and close, 10,000 times."""
    for _ in range(CHURN):
        connect(port).close()
    return Counter({"closed by us": CHURN})


def _churn_by_reset(port: int) -> Counter[str]:
    """Connect, request and reset, 10,000 times."""
    for _ in range(CHURN):
        sock = connect(port)
        send_all(sock, REQUEST)
        reset(sock)
    return Counter({"closed by us": CHURN})


def _pipelined(port: int) -> Counter[str]:
    """Send 10,000 requests before reading."""
    with connect(port) as sock:
        sock.setblocking(False)
        remaining, received = memoryview(REQUEST * PIPELINED), b""
        until = time.monotonic() + 20.0
        while received.count(b"HTTP/1.1 ") < PIPELINED and time.monotonic() < until:
            with suppress(BlockingIOError):
                if remaining:
                    remaining = remaining[sock.send(remaining) :]
            try:
                more = sock.recv(1 << 20)
            except BlockingIOError:
                time.sleep(0.001)
                continue
            except OSError:
                return Counter([*replies(received), "RST"])
            if not more:
                return Counter([*replies(received), "FIN"])
            received += more
    return Counter(replies(received))


def _unread(port: int) -> Counter[str]:
    """Request large responses without end, and read none."""
    with connect(port, receive_buffer=4096) as sock:
        sock.settimeout(0.5)
        until, large = time.monotonic() + 2.0, b"GET /openapi.json HTTP/1.1\r\nHost: hostile\r\n\r\n"
        while time.monotonic() < until and send_all(sock, large * 100):
            pass
    return Counter(["closed by us"])


def _incomplete_bodies(port: int) -> Counter[str]:
    """Post bodies of maximum size on 50 connections, without the last byte."""
    body = post_request(b'{"groups": {"group-0": [' + b"1," * 500_000 + b"1]}}")[:-1]
    socks = [connect(port) for _ in range(50)]
    for sock in socks:
        send_all(sock, body)
    ends: list[str] = []
    for sock in socks:
        content, end = receive(sock, 2.0)
        found = list(replies(content))
        ends += found if found and end == "open" else [*found, end]
        sock.close()
    return Counter(ends)


SLOW = 100
SLOW_S = 8.0
INTERVAL_S = 0.5
PIECE = 1 << 16


def _slowly(begin: bytes, piece: bytes) -> Callable[[int], Counter[str]]:
    """Send the beginning on many connections, and then a little at a time, without an end."""

    def act(port: int) -> Counter[str]:
        received: Counter[str] = Counter()
        socks = [connect(port) for _ in range(SLOW)]
        for sock in socks:
            send_all(sock, begin)
        until = time.monotonic() + SLOW_S
        while socks and time.monotonic() < until:
            time.sleep(INTERVAL_S)
            for sock in tuple(socks):
                content, end = receive(sock, 0.0005)
                if content or end != "open":
                    received.update([*replies(content), *(() if content and end == "open" else (end,))])
                    sock.close()
                    socks.remove(sock)
                elif piece:
                    send_all(sock, piece)
        received["open"] += len(socks)
        for sock in socks:
            sock.close()
        return +received

    return act


GET = b"GET /livez HTTP/1.1\r\nHost: hostile\r\n"
POST = b"POST /predict?deadline_ms=10000 HTTP/1.1\r\nHost: hostile\r\n"
LINES = POST + b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"

FLOODS = (
    Attack("a request line, a byte each half second", _slowly(b"", b"G"), SLOW),
    Attack("headers that stop in the middle", _slowly(GET, b""), SLOW),
    Attack("headers, one each half second", _slowly(GET, b"x: y\r\n"), SLOW),
    Attack("silent connections", _slowly(b"", b""), SLOW),
    Attack("a body, a byte each half second", _slowly(POST + b"Content-Length: 1000\r\n\r\n{", b" "), SLOW),
    Attack("a chunked body, a line each half second", _slowly(LINES, b"1\r\n\n\r\n"), SLOW),
    Attack("a header line without an end", endless(GET + b"x: ", b"y" * PIECE), may_reset=True),
    Attack("a header name without an end", endless(GET, b"y" * PIECE), may_reset=True),
    Attack("a path without an end", endless(b"GET /", b"y" * PIECE), may_reset=True),
    Attack("a query without an end", endless(b"GET /predict?", b"y=1&" * (PIECE // 4)), may_reset=True),
    Attack("headers without an end", endless(GET, b"x: y\r\n" * (PIECE // 6)), may_reset=True),
    Attack("10,000 headers", partial(request, content=GET + b"x: y\r\n" * 10_000 + b"\r\n"), may_reset=True),
    Attack(
        "a header of a megabyte",
        partial(request, content=GET + b"x: " + b"y" * (1 << 20) + b"\r\n\r\n"),
        may_reset=True,
    ),
    Attack(
        "a path of 64 kB",
        partial(request, content=b"GET /" + b"y" * (1 << 16) + b" HTTP/1.1\r\nHost: hostile\r\n\r\n"),
        may_reset=True,
    ),
    Attack("10,000 idle connections", _idle, IDLE, may_stay_open=True, others_ms=100.0, rounds=1),
    Attack("10,000 connections, one after the other", _churn, others_ms=50.0, rounds=1),
    Attack("10,000 requests, each reset", _churn_by_reset, others_ms=50.0, rounds=1),
    Attack("10,000 requests at once on one connection", _pipelined, others_ms=50.0, rounds=1),
    Attack("answers that are never read", _unread, others_ms=50.0),
    Attack("50 large bodies without the last byte", _incomplete_bodies, 50, others_ms=100.0),
)
