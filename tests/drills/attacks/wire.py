"""The attacker's connections, and how replies are described for the judge.

200, 204, 101       a response, or an upgraded connection
problem 413         a refusal as problem details with a reason
plain 400           a refusal without a reason
error 422           the same in a WebSocket message; `bare error` without details
close 1009          a WebSocket closed in order
FIN, RST            a connection closed in order, or reset
open                a connection on which nothing is received within the timeout
"""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from benchmarks.load import frames

TIMEOUT_S = 3.0

ENDLESS = 64 * 1024 * 1024
"""Bytes after which endless input counts as read completely."""

QUIET_S = 0.15
"""After a pause this long nothing more is expected."""

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_KIND = re.compile(rb"content-type: *([^\r;]+)", re.IGNORECASE)


class Attack(NamedTuple):
    """Something that a server should withstand.

    Attributes
    ----------
    name : in reports.
    act : performs it once at a port, and returns the replies with their counts.
    connections : maximum number of open connections.
    may_reset : whether a connection may be reset, as more is sent than the server reads.
    may_stay_open : whether a connection may stay open.
    others_ms : allowed lateness of other clients' answers, 99th percentile; floods use part of the core.
    rounds : maximum number of repetitions; None means as many as the time allows.
    full : kind of other calls whose limit the attack exhausts, which may all be refused.
    """

    name: str
    act: Callable[[int], Counter[str]]
    connections: int = 1
    may_reset: bool = False
    may_stay_open: bool = False
    others_ms: float = 20.0
    rounds: int | None = None
    full: str | None = None


connect = partial(frames.connect, timeout_s=TIMEOUT_S)


def send_all(sock: socket.socket, content: bytes) -> bool:
    """Send bytes; return whether all were sent."""
    with suppress(OSError):
        sock.sendall(content)
        return True
    return False


def reset(sock: socket.socket) -> None:
    """Close with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def receive(sock: socket.socket, timeout_s: float = TIMEOUT_S, limit: int = 1 << 20) -> tuple[bytes, str]:
    """Read until the other end closes or is silent; return the bytes and how the connection ended."""
    received, until = b"", time.monotonic() + timeout_s
    while len(received) < limit:
        remaining_s = min(until - time.monotonic(), QUIET_S if received else timeout_s)
        if remaining_s <= 0:
            return received, "open"
        sock.settimeout(remaining_s)
        try:
            more = sock.recv(1 << 16)
        except TimeoutError:
            return received, "open"
        except OSError:
            return received, "RST"
        if not more:
            return received, "FIN"
        received += more
    return received, "open"


def replies(content: bytes) -> Iterator[str]:
    while content.startswith(b"HTTP/"):
        head, _, rest = content.partition(b"\r\n\r\n")
        status = int(head[9:12])
        if status < 200:  # informational, or an upgrade
            content = rest
            yield str(status)
            continue
        found, kind = _LENGTH.search(head), _KIND.search(head)
        body, content = (rest[: int(found[1])], rest[int(found[1]) :]) if found else (rest, b"")
        yield _describe(status, kind[1].decode("latin-1") if kind else "", body)
    if content:
        yield "nonsense"


def request(port: int, content: bytes, timeout_s: float = TIMEOUT_S) -> Counter[str]:
    """Send bytes on a new connection, and return the replies."""
    try:
        sock = connect(port)
    except OSError:
        return Counter(["refused"])
    with sock:
        send_all(sock, content)
        received, end = receive(sock, timeout_s)
    return ended(replies(received), end)


def ended(found: Iterator[str], end: str) -> Counter[str]:
    """Count replies, and how their connection ended; one that stays open after a reply is correct."""
    counts = Counter(found)
    if not counts or end != "open":
        counts[end] += 1
    return counts


def _describe(status: int, kind: str, body: bytes) -> str:
    if status < 400:
        return str(status)
    with suppress(ValueError):
        if kind == "application/problem+json" and json.loads(body).get("detail"):
            return f"problem {status}"
    return f"plain {status}"


def endless(begin: bytes, piece: bytes, limit: int = ENDLESS) -> Callable[[int], Counter[str]]:
    """Send the beginning, and then a piece repeatedly until the server stops reading."""

    def act(port: int) -> Counter[str]:
        with connect(port) as sock:
            send_all(sock, begin)
            for _ in range(limit // len(piece)):
                if not send_all(sock, piece):
                    break
            else:
                return Counter(["read everything"])
            content, end = receive(sock)
        return Counter([*replies(content), end])

    return act
