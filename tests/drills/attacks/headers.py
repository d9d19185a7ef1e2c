"""Attacks on request headers: slow, endless and too many."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from drills.attacks.wire import Attack, connect, endless, receive, replies, request, send_all

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


def _once(content: bytes) -> Callable[[int], Counter[str]]:
    return lambda port: request(port, content)


GET = b"GET /livez HTTP/1.1\r\nHost: hostile\r\n"
POST = b"POST /predict?deadline_ms=10000 HTTP/1.1\r\nHost: hostile\r\n"
LINES = POST + b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"

HEADERS = (
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
    Attack("10,000 headers", _once(GET + b"x: y\r\n" * 10_000 + b"\r\n"), may_reset=True),
    Attack("a header of a megabyte", _once(GET + b"x: " + b"y" * (1 << 20) + b"\r\n\r\n"), may_reset=True),
    Attack(
        "a path of 64 kB", _once(b"GET /" + b"y" * (1 << 16) + b" HTTP/1.1\r\nHost: hostile\r\n\r\n"), may_reset=True
    ),
)
"""Attacks; the silent and slow ones should be cut off."""
