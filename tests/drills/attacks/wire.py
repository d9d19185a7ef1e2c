"""What an attacker sends by, and how it tells what came back: in words that a judge understands.

200, 204, 101       an answer, or a connection that is open for messages
problem 413         a refusal as problem details that say why
plain 400           a refusal that does not
error 422           the same in a message of a WebSocket; as `bare error` without details
close 1009          a WebSocket that is closed in order
FIN, RST            a connection that is closed, in order or not
open                a connection on which nothing comes any more, for as long as was waited
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
from typing import NamedTuple

__all__ = ["ENDLESS", "Attack", "connected", "endless", "heard", "push", "replies", "request", "reset"]

HEARD_S = 3.0

ENDLESS = 64 * 1024 * 1024
"""Bytes after which what is endless has been taken whole."""

QUIET_S = 0.15
"""Nothing for so long after something is all there is."""

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_KIND = re.compile(rb"content-type: *([^\r;]+)", re.IGNORECASE)


class Attack(NamedTuple):
    """Something that a server should withstand.

    Attributes
    ----------
    name : what is tried.
    act : tries it once at a port, and tells what came back, each with how often.
    connections : how many it may hold at once.
    resets : whether a connection may be closed so that bytes under way are lost: more comes than anybody would read.
    stays : whether a connection may stay open.
    others_ms : how late others' answers may be, 99th percentile; floods take their share of a core.
    rounds : how often to try it where there is time; None is as often as there is time for.
    full : kind of other calls that may all be refused meanwhile, as there is no more of what they ask for.
    """

    name: str
    act: Callable[[int], Counter[str]]
    connections: int = 1
    resets: bool = False
    stays: bool = False
    others_ms: float = 20.0
    rounds: int | None = None
    full: str | None = None


def connected(port: int, receive_buffer: int | None = None) -> socket.socket:
    """Connect."""
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(HEARD_S)
    sock.connect(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def push(sock: socket.socket, content: bytes) -> bool:
    """Send as much as is taken; whether that was all."""
    with suppress(OSError):
        sock.sendall(content)
        return True
    return False


def reset(sock: socket.socket) -> None:
    """Close so that the other end is told of a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def heard(sock: socket.socket, within_s: float = HEARD_S, most: int = 1 << 20) -> tuple[bytes, str]:
    """Read until the other end closes, or is silent: what came, and the end of it."""
    came, until = b"", time.monotonic() + within_s
    while len(came) < most:
        left = min(until - time.monotonic(), QUIET_S if came else within_s)
        if left <= 0:
            return came, "open"
        sock.settimeout(left)
        try:
            more = sock.recv(1 << 16)
        except TimeoutError:
            return came, "open"
        except OSError:
            return came, "RST"
        if not more:
            return came, "FIN"
        came += more
    return came, "open"


def replies(content: bytes) -> Iterator[str]:
    """Take responses apart."""
    while content.startswith(b"HTTP/"):
        head, _, rest = content.partition(b"\r\n\r\n")
        status = int(head[9:12])
        if status < 200:  # no response yet, or none by HTTP
            content = rest
            yield str(status)
            continue
        found, kind = _LENGTH.search(head), _KIND.search(head)
        body, content = (rest[: int(found[1])], rest[int(found[1]) :]) if found else (rest, b"")
        yield _told(status, kind[1].decode("latin-1") if kind else "", body)
    if content:
        yield "nonsense"


def request(port: int, content: bytes, within_s: float = HEARD_S) -> Counter[str]:
    """Send bytes on a connection of their own, and tell what comes back."""
    try:
        sock = connected(port)
    except OSError:
        return Counter(["refused"])
    with sock:
        push(sock, content)
        came, end = heard(sock, within_s)
    found = list(replies(came))
    # A connection that is kept for the next request after an answer is as it should be.
    return Counter(found if found and end == "open" else [*found, end])


def _told(status: int, kind: str, body: bytes) -> str:
    if status < 400:
        return str(status)
    with suppress(ValueError):
        if kind == "application/problem+json" and json.loads(body).get("detail"):
            return f"problem {status}"
    return f"plain {status}"


def endless(begin: bytes, piece: bytes, most: int = ENDLESS) -> Callable[[int], Counter[str]]:
    """Send the beginning, and then the same piece again and again, as far as that is taken."""

    def act(port: int) -> Counter[str]:
        with connected(port) as sock:
            push(sock, begin)
            for _ in range(most // len(piece)):
                if not push(sock, piece):
                    break
            else:
                return Counter(["took it all"])
            content, end = heard(sock)
        return Counter([*replies(content), end])

    return act
