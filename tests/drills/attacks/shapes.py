"""Requests of the wrong shape: two readings of one, other protocols, and paths that lead astray.

A request is hidden behind one that can be read in two ways. Were it answered, a proxy in front could be made to give
the answer to somebody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product

from drills.attacks.wire import Attack, connected, heard, push, replies, request

__all__ = ["AMBIGUOUS", "OTHERS", "PATHS", "ROUTES", "SHAPES", "TRICKS", "asked", "hidden"]

ALIVE = b'{"status":"ok"}'
HIDDEN = b"GET /livez HTTP/1.1\r\nHost: hostile\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def _posted(headers: bytes, body: bytes) -> bytes:
    kind = b"Content-Type: application/json\r\n"
    return b"POST /predict?deadline_ms=200 HTTP/1.1\r\nHost: hostile\r\n" + kind + headers + b"\r\n" + body


def _length(size: bytes) -> bytes:
    return b"Content-Length: " + size + b"\r\n"


AMBIGUOUS: Mapping[str, bytes] = {
    "length and chunks": _posted(_length(b"4") + CHUNKED, b"0\r\n\r\n" + HIDDEN),
    "chunks and length": _posted(CHUNKED + _length(b"4"), b"0\r\n\r\n" + HIDDEN),
    "two lengths": _posted(_length(b"2") + _length(b"44"), b"{}" + HIDDEN),
    "two lengths in one": _posted(_length(b"2, 44"), b"{}" + HIDDEN),
    "a length with a sign": _posted(_length(b"+2"), b"{}" + HIDDEN),
    "a negative length": _posted(_length(b"-2"), b"{}" + HIDDEN),
    "a length in base 16": _posted(_length(b"0x2"), b"{}" + HIDDEN),
    "a length that overflows": _posted(_length(b"18446744073709551618"), b"{}" + HIDDEN),
    "two codings": _posted(CHUNKED + b"Transfer-Encoding: identity\r\n", b"0\r\n\r\n" + HIDDEN),
    "a coding nobody knows": _posted(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "chunks, then identity": _posted(b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n" + HIDDEN),
    "a space before the colon": _posted(b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "a folded coding": _posted(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "a folded header": _posted(b"X: a\r\n Content-Length: 2\r\n", b"{}" + HIDDEN),
    "a header without a name": _posted(b": chunked\r\n", HIDDEN),
    "a zero byte in a header": _posted(b"X: a\0b\r\n" + _length(b"2"), b"{}" + HIDDEN),
    "a bare line feed": _posted(b"X: a\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "a bare carriage return": _posted(b"X: a\rTransfer-Encoding: chunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "a chunk of no size": _posted(CHUNKED, b"\r\n0\r\n\r\n" + HIDDEN),
    "a chunk of negative size": _posted(CHUNKED, b"-1\r\n0\r\n\r\n" + HIDDEN),
    "a chunk that overflows": _posted(CHUNKED, b"FFFFFFFFFFFFFFFFF\r\n0\r\n\r\n" + HIDDEN),
    "a chunk longer than told": _posted(CHUNKED, b"1\r\n{}}}\r\n0\r\n\r\n" + HIDDEN),
    "a chunk size with text": _posted(CHUNKED, b"2zz\r\n{}\r\n0\r\n\r\n" + HIDDEN),
}

OTHERS: Mapping[str, bytes] = {
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(range(200)),
    "an SSH banner": b"SSH-2.0-OpenSSH_9.0\r\n",
    "HTTP/0.9": b"GET /livez\r\n\r\n",
    "HTTP/9.9": b"GET /livez HTTP/9.9\r\n\r\n",
    "no version": b"GET /livez HTTP\r\n\r\n",
    "a method nobody knows": b"BREW /livez HTTP/1.1\r\nHost: hostile\r\n\r\n",
    "CONNECT": b"CONNECT example.org:443 HTTP/1.1\r\nHost: hostile\r\n\r\n",
    "TRACE": b"TRACE /livez HTTP/1.1\r\nHost: hostile\r\n\r\n",
    "an absolute address": b"GET http://example.org/livez HTTP/1.1\r\nHost: hostile\r\n\r\n",
    "an asterisk": b"OPTIONS * HTTP/1.1\r\nHost: hostile\r\n\r\n",
    "zeros": bytes(10_000),
    "bytes of every kind": bytes(range(256)) * 40 + b"\r\n\r\n",
    "an upgrade to nothing": b"GET /stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
}

ROUTES = ("/models/{}", "/models/{}/plan", "/v2/models/{}", "/v2/models/{}/versions/{}", "/sessions/{}/predict")
TRICKS = (
    "..%2f..%2f..%2fetc%2fpasswd",
    "../../etc/passwd",
    "..%5c..%5cwindows",
    "%2e%2e%2f%2e%2e%2fetc",
    "load@../..",
    "load@..%2f..",
    "%00",
    "load%00.safetensors",
    "%ff%fe",
    "%",
    "%zz",
    "%E2%80%AE%F0%9F%98%80",
    "%0d%0aSet-Cookie:%20a=b",
    ";ls",
    "$(id)",
    "{{7*7}}",
    "@",
    "load@",
    "@load",
    "%25252e",
    "y" * 60_000,
)


def hidden(content: bytes, port: int) -> Counter[str]:
    """Send one that can be read in two ways; an answer to what is hidden in it is told as such."""
    with connected(port) as sock:
        push(sock, content)
        came, end = heard(sock, 1.0)
    if ALIVE in came:
        return Counter(["ANSWERED WHAT WAS HIDDEN"])
    return Counter([*replies(came), end])


def asked(path: str) -> bytes:
    """A request for a path, as it stands."""
    return b"GET " + path.encode() + b" HTTP/1.1\r\nHost: hostile\r\nConnection: close\r\n\r\n"


def _paths(port: int) -> Counter[str]:
    came: Counter[str] = Counter()
    for route, trick in product(ROUTES, TRICKS):
        came += request(port, asked(route.format(trick, trick)))
    for trick in TRICKS:
        came += request(port, asked(f"/models/{trick}/reload").replace(b"GET", b"POST", 1))
        came += request(port, asked(f"/predict?session={trick}"))
        came += request(port, asked(f"/{trick}"))
    return came


def _all(sent: Mapping[str, bytes], ask: Callable[[bytes, int], Counter[str]]) -> Callable[[int], Counter[str]]:
    def act(port: int) -> Counter[str]:
        came: Counter[str] = Counter()
        for content in sent.values():
            came += ask(content, port)
        return came

    return act


SHAPES = (
    *(Attack(f"two readings: {name}", partial(hidden, content)) for name, content in AMBIGUOUS.items()),
    *(
        Attack(f"not HTTP/1.1: {name}", _all({name: content}, lambda sent, port: request(port, sent, 1.0)))
        for name, content in OTHERS.items()
    ),
)
PATHS = (Attack(f"paths: {len(TRICKS)} tricks in every name", _paths, resets=True),)
