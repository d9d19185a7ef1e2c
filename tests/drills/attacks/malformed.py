"""Malformed requests: ambiguous framing, other protocols, and path traversal.

A second request is hidden behind an ambiguous one. If it were answered, a proxy in front could be made to give the
answer to another client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import product

from drills.attacks.wire import Attack, connect, ended, receive, replies, request, send_all

ALIVE = b'{"status":"ok"}'
HIDDEN = b"GET /livez HTTP/1.1\r\nHost: hostile\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def _post(headers: bytes, body: bytes) -> bytes:
    kind = b"Content-Type: application/json\r\n"
    return b"POST /predict?deadline_ms=200 HTTP/1.1\r\nHost: hostile\r\n" + kind + headers + b"\r\n" + body


def _length(size: bytes) -> bytes:
    return b"Content-Length: " + size + b"\r\n"


AMBIGUOUS: Mapping[str, bytes] = {
    "length and chunks": _post(_length(b"4") + CHUNKED, b"0\r\n\r\n" + HIDDEN),
    "chunks and length": _post(CHUNKED + _length(b"4"), b"0\r\n\r\n" + HIDDEN),
    "two lengths": _post(_length(b"2") + _length(b"44"), b"{}" + HIDDEN),
    "two lengths in one": _post(_length(b"2, 44"), b"{}" + HIDDEN),
    "a length with a sign": _post(_length(b"+2"), b"{}" + HIDDEN),
    "a negative length": _post(_length(b"-2"), b"{}" + HIDDEN),
    "a length in base 16": _post(_length(b"0x2"), b"{}" + HIDDEN),
    "a length that overflows": _post(_length(b"18446744073709551618"), b"{}" + HIDDEN),
    "two codings": _post(CHUNKED + b"Transfer-Encoding: identity\r\n", b"0\r\n\r\n" + HIDDEN),
    "an unknown coding": _post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "chunks, then identity": _post(b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n" + HIDDEN),
    "a space before the colon": _post(b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "a folded coding": _post(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "a folded header": _post(b"X: a\r\n Content-Length: 2\r\n", b"{}" + HIDDEN),
    "a header without a name": _post(b": chunked\r\n", HIDDEN),
    "a zero byte in a header": _post(b"X: a\0b\r\n" + _length(b"2"), b"{}" + HIDDEN),
    "a bare line feed": _post(b"X: a\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "a bare carriage return": _post(b"X: a\rTransfer-Encoding: chunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "a chunk of no size": _post(CHUNKED, b"\r\n0\r\n\r\n" + HIDDEN),
    "a chunk of negative size": _post(CHUNKED, b"-1\r\n0\r\n\r\n" + HIDDEN),
    "a chunk that overflows": _post(CHUNKED, b"FFFFFFFFFFFFFFFFF\r\n0\r\n\r\n" + HIDDEN),
    "a chunk longer than its size": _post(CHUNKED, b"1\r\n{}}}\r\n0\r\n\r\n" + HIDDEN),
    "a chunk size with text": _post(CHUNKED, b"2zz\r\n{}\r\n0\r\n\r\n" + HIDDEN),
}

_H2C, _WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
_LATER = b"\r\n" * 4_000 + HIDDEN  # in another slice than the head
_LONG = _length(b"%d" % len(_LATER))

UPGRADES: Mapping[str, bytes] = {
    "h2c": _post(_H2C + _LONG, _LATER),
    "h2c, in chunks": _post(_H2C + CHUNKED, b"%x\r\n%b\r\n0\r\n\r\n" % (len(_LATER), _LATER)),
    "a websocket": _post(_WEBSOCKET + _LONG, _LATER),
    "several": _post(_H2C + _WEBSOCKET + _LONG, _LATER),
    "a list": _post(b"Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n" + _LONG, _LATER),
    "by the header of proxies": _post(b"Proxy-Connection: upgrade\r\nUpgrade: websocket\r\n" + _LONG, _LATER),
    "at the WebSocket's route": _post(_WEBSOCKET + _LONG, _LATER).replace(b"POST /predict", b"GET /stream"),
    "with HTTP/1.0": _post(_H2C + _LONG, _LATER).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "CONNECT": b"CONNECT hostile:80 HTTP/1.1\r\nHost: hostile\r\n" + _LONG + b"\r\n" + _LATER,
    "CONNECT to a path": b"CONNECT /livez HTTP/1.1\r\nHost: hostile\r\n" + _LONG + b"\r\n" + _LATER,
}
"""Requests for another protocol whose body hides a request."""

OTHER_PROTOCOLS: Mapping[str, bytes] = {
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(range(200)),
    "an SSH banner": b"SSH-2.0-OpenSSH_9.0\r\n",
    "HTTP/0.9": b"GET /livez\r\n\r\n",
    "HTTP/9.9": b"GET /livez HTTP/9.9\r\n\r\n",
    "no version": b"GET /livez HTTP\r\n\r\n",
    "an unknown method": b"BREW /livez HTTP/1.1\r\nHost: hostile\r\n\r\n",
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


def send_ambiguous(content: bytes, port: int) -> Counter[str]:
    """Send a request that hides another, and report an answer to the hidden one."""
    with connect(port) as sock:
        send_all(sock, content)
        received, end = receive(sock, 1.0)
    if ALIVE in received:
        return Counter(["ANSWERED THE HIDDEN REQUEST"])
    return ended(replies(received), end)


def get_request(path: str) -> bytes:
    """Return a request for a path, unescaped."""
    return b"GET " + path.encode() + b" HTTP/1.1\r\nHost: hostile\r\nConnection: close\r\n\r\n"


def _paths(port: int) -> Counter[str]:
    paths = [route.format(trick, trick) for route, trick in product(ROUTES, TRICKS)]
    paths += [template.format(trick) for template in ("/predict?session={}", "/{}") for trick in TRICKS]
    requests = [get_request(path) for path in paths]
    requests += [get_request(f"/models/{trick}/reload").replace(b"GET", b"POST", 1) for trick in TRICKS]
    return sum((request(port, content) for content in requests), Counter[str]())


MALFORMED = (
    *(Attack(f"ambiguous: {name}", partial(send_ambiguous, content)) for name, content in AMBIGUOUS.items()),
    *(Attack(f"an upgrade: {name}", partial(send_ambiguous, content)) for name, content in UPGRADES.items()),
    *(
        Attack(f"not HTTP/1.1: {name}", partial(request, content=content, timeout_s=1.0))
        for name, content in OTHER_PROTOCOLS.items()
    ),
    Attack(f"paths: {len(TRICKS)} tricks in every name", _paths, may_reset=True),
)
