"""Heads of requests: slow ones, endless ones, and too many."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from drills.attacks.wire import Attack, connected, endless, heard, push, replies, request

__all__ = ["HEADS"]

SLOW = 100
SLOW_S = 8.0
BEAT_S = 0.5
PIECE = 1 << 16


def _slowly(begin: bytes, beat: bytes) -> Callable[[int], Counter[str]]:
    """Send the beginning on many connections, and then a little at a time, without an end."""

    def act(port: int) -> Counter[str]:
        came: Counter[str] = Counter()
        socks = [connected(port) for _ in range(SLOW)]
        for sock in socks:
            push(sock, begin)
        until = time.monotonic() + SLOW_S
        while socks and time.monotonic() < until:
            time.sleep(BEAT_S)
            for sock in tuple(socks):
                content, end = heard(sock, 0.0005)
                if content or end != "open":
                    came.update([*replies(content), *(() if content and end == "open" else (end,))])
                    sock.close()
                    socks.remove(sock)
                elif beat:
                    push(sock, beat)
        came["open"] += len(socks)
        for sock in socks:
            sock.close()
        return +came

    return act


def _once(content: bytes) -> Callable[[int], Counter[str]]:
    return lambda port: request(port, content)


HEAD = b"GET /livez HTTP/1.1\r\nHost: hostile\r\n"
BODY = b"POST /predict?deadline_ms=10000 HTTP/1.1\r\nHost: hostile\r\n"
LINES = BODY + b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"

HEADS = (
    Attack("a head, a byte each half second", _slowly(b"", b"G"), SLOW),
    Attack("a head that stops in the middle", _slowly(HEAD, b""), SLOW),
    Attack("a head, a header each half second", _slowly(HEAD, b"x: y\r\n"), SLOW),
    Attack("connections that say nothing", _slowly(b"", b""), SLOW),
    Attack("a body, a byte each half second", _slowly(BODY + b"Content-Length: 1000\r\n\r\n{", b" "), SLOW),
    Attack("a chunked body, a line each half second", _slowly(LINES, b"1\r\n\n\r\n"), SLOW),
    Attack("a header line without an end", endless(HEAD + b"x: ", b"y" * PIECE), resets=True),
    Attack("a name of a header without an end", endless(HEAD, b"y" * PIECE), resets=True),
    Attack("a path without an end", endless(b"GET /", b"y" * PIECE), resets=True),
    Attack("a query without an end", endless(b"GET /predict?", b"y=1&" * (PIECE // 4)), resets=True),
    Attack("headers without an end", endless(HEAD, b"x: y\r\n" * (PIECE // 6)), resets=True),
    Attack("10,000 headers", _once(HEAD + b"x: y\r\n" * 10_000 + b"\r\n"), resets=True),
    Attack("a header of a megabyte", _once(HEAD + b"x: " + b"y" * (1 << 20) + b"\r\n\r\n"), resets=True),
    Attack("a path of 64 kB", _once(b"GET /" + b"y" * (1 << 16) + b" HTTP/1.1\r\nHost: hostile\r\n\r\n"), resets=True),
)
"""Every one as an attack; those that stay silent or slow are to be cut off."""
