"""Crowds: connections that are idle, that come and go, that ask without waiting, and that never read."""

from __future__ import annotations

import socket
import time
from collections import Counter
from contextlib import suppress

from drills.attacks.bodies import posted
from drills.attacks.wire import Attack, connected, heard, push, replies, reset

__all__ = ["CROWDS"]

IDLE = 10_000
CHURN = 10_000
PIPELINED = 10_000
ASKED = b"GET /livez HTTP/1.1\r\nHost: hostile\r\n\r\n"


def _idle(port: int) -> Counter[str]:
    """Hold 10,000 connections open, each after one request, and say nothing more."""
    came: Counter[str] = Counter()
    socks: list[socket.socket] = []
    try:
        for _ in range(IDLE):
            sock = connected(port)
            push(sock, ASKED)
            socks.append(sock)
            if len(socks) % 100 == 0:
                time.sleep(0.01)
        time.sleep(2.0)
        for sock in socks:
            content, end = heard(sock, 0.0005)
            came.update([*replies(content), *(() if end == "open" else (end,))])
    finally:
        for sock in socks:
            sock.close()
    return came


def _churn(port: int) -> Counter[str]:
    """Connect and close, 10,000 times."""
    for _ in range(CHURN):
        connected(port).close()
    return Counter({"closed by us": CHURN})


def _churn_by_reset(port: int) -> Counter[str]:
    """Connect, ask and reset, 10,000 times."""
    for _ in range(CHURN):
        sock = connected(port)
        push(sock, ASKED)
        reset(sock)
    return Counter({"closed by us": CHURN})


def _pipelined(port: int) -> Counter[str]:
    """Ask 10,000 times before reading anything."""
    with connected(port) as sock:
        sock.setblocking(False)
        left, came = memoryview(ASKED * PIPELINED), b""
        until = time.monotonic() + 20.0
        while came.count(b"HTTP/1.1 ") < PIPELINED and time.monotonic() < until:
            with suppress(BlockingIOError):
                if left:
                    left = left[sock.send(left) :]
            try:
                more = sock.recv(1 << 20)
            except BlockingIOError:
                time.sleep(0.001)
                continue
            except OSError:
                return Counter([*replies(came), "RST"])
            if not more:
                return Counter([*replies(came), "FIN"])
            came += more
    return Counter(replies(came))


def _unread(port: int) -> Counter[str]:
    """Ask for large answers without end, and read none."""
    with connected(port, receive_buffer=4096) as sock:
        sock.settimeout(0.5)
        until, large = time.monotonic() + 2.0, b"GET /openapi.json HTTP/1.1\r\nHost: hostile\r\n\r\n"
        while time.monotonic() < until and push(sock, large * 100):
            pass
    return Counter(["closed by us"])


def _unread_sessions(port: int) -> Counter[str]:
    """Post bodies as large as they may be on 50 connections, without the last byte."""
    body = posted(b'{"groups": {"group-0": [' + b"1," * 500_000 + b"1]}}")[:-1]
    socks = [connected(port) for _ in range(50)]
    for sock in socks:
        push(sock, body)
    ends: list[str] = []
    for sock in socks:
        content, end = heard(sock, 2.0)
        found = list(replies(content))
        ends += found if found and end == "open" else [*found, end]
        sock.close()
    return Counter(ends)


CROWDS = (
    Attack("10,000 idle connections", _idle, IDLE, stays=True, others_ms=100.0, rounds=1),
    Attack("10,000 connections, one after the other", _churn, others_ms=50.0, rounds=1),
    Attack("10,000 requests, each reset", _churn_by_reset, others_ms=50.0, rounds=1),
    Attack("10,000 requests at once on one connection", _pipelined, others_ms=50.0, rounds=1),
    Attack("answers that are never read", _unread, others_ms=50.0),
    Attack("50 large bodies without the last byte", _unread_sessions, 50, others_ms=100.0),
)
