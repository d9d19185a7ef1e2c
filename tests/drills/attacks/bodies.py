"""Attacks on request bodies: bombs, floods, invalid numbers, and too many sessions."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from drills.attacks.wire import ENDLESS, Attack, connect, endless, receive, replies, request, send_all

DEEP = 100_000
LONG = 1_000_000
SESSIONS = 3000
EXPIRED_S = 10.0
"""Longer than the drill's session TTL, so that the next attack finds capacity."""

JSON, MSGPACK, LINES = "application/json", "application/msgpack", "application/x-ndjson"


def post_request(content: bytes, kind: str = JSON, path: str = "/predict?deadline_ms=500", extra: str = "") -> bytes:
    """Return a POST request with a body of known length."""
    headers = f"Host: hostile\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n{extra}"
    return f"POST {path} HTTP/1.1\r\n{headers}\r\n".encode() + content


def _groups(values: str) -> bytes:
    return b'{"groups": {"group-0": ' + values.encode() + b"}}"


_BOMBS: Mapping[str, bytes] = {
    "JSON, 100,000 deep": post_request(b'{"groups":' + b"[" * DEEP),
    "JSON, 100,000 deep and closed": post_request(b'{"groups": {"group-0": ' + b"[" * DEEP + b"]" * DEEP + b"}}"),
    "JSON of objects, 100,000 deep": post_request(b'{"groups":' * DEEP),
    "MessagePack, 100,000 deep": post_request(b"\x91" * DEEP, MSGPACK),
    "MessagePack of maps, 100,000 deep": post_request(b"\x81\xa1a" * DEEP, MSGPACK),
    "an array of a claimed 4,000,000,000 elements": post_request(b"\xdd\xff\xff\xff\xff", MSGPACK),
    "bytes of a claimed 4 GB": post_request(b"\x81\xa6groups\xc6\xff\xff\xff\xff", MSGPACK),
    "a number of a million digits": post_request(_groups("[" + "9" * LONG + "]")),
    "a fraction of 900,000 digits": post_request(_groups("[0." + "9" * 900_000 + ", 1, 2]")),
    "an exponent of 900,000 digits": post_request(_groups("[1e" + "9" * 900_000 + ", 1, 2]")),
    "NaN": post_request(_groups("[NaN, 1, 2]")),
    "infinity": post_request(_groups("[Infinity, -Infinity, 1e999]")),
    "infinity in MessagePack": post_request(
        b"\x81\xa6groups\x81\xa7group-0\x93" + b"\xcb\x7f\xf0\0\0\0\0\0\0" * 3, MSGPACK
    ),
    "100,000 groups": post_request(json.dumps({"groups": {f"g{i}": [i] for i in range(50_000)}}).encode()),
    "a group named by a megabyte": post_request(json.dumps({"groups": {"y" * 900_000: [1]}}).encode()),
    "the same group 20,000 times": post_request(
        b'{"groups": {' + b'"group-0": [1, 2, 3],' * 20_000 + b'"group-0": [1, 2, 3]}}'
    ),
    "10^9 rows": post_request(b'{"groups": {}, "rows": 1000000000}'),
    "half a surrogate": post_request(b'{"groups": {"\\ud800": [1]}}'),
    "not UTF-8": post_request(b'{"groups": {"\xff\xfe": [1]}}'),
    "a list": post_request(b"[1, 2, 3]"),
    "nothing": post_request(b""),
    "gzip, ten megabytes of zeros": post_request(gzip.compress(bytes(10_000_000)), extra="Content-Encoding: gzip\r\n"),
    "a coding of codings": post_request(b"{}", extra="Content-Encoding: gzip, br, deflate\r\n"),
    "XML": post_request(b"<!DOCTYPE a [<!ENTITY b 'b'>]><a>&b;</a>", "application/xml"),
    "a form": post_request(b"a=b", "application/x-www-form-urlencoded"),
    "an Open Inference request of nonsense": post_request(
        b'{"inputs": [{"name": "group-0", "shape": [1000000000, 1000000000], "datatype": "FP64", "data": []}]}',
        path="/v2/models/load/infer",
    ),
    "an Open Inference header that lies": post_request(
        b"{}", path="/v2/models/load/infer", extra="Inference-Header-Content-Length: 99999999999999999999\r\n"
    ),
    "a line of a megabyte": post_request(b'{"group": "' + b"y" * 1_000_000, LINES),
    "20,000 lines of nonsense": post_request(b"nonsense\n" * 20_000, LINES),
}
BOMBS = {name: content.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) for name, content in _BOMBS.items()}
"""Requests, each the last on its connection."""


def _bombs(port: int) -> Counter[str]:
    return sum((request(port, content) for content in BOMBS.values()), Counter[str]())


def _endless(kind: str, piece: bytes, limit: int = ENDLESS) -> Callable[[int], Counter[str]]:
    """Send a chunked body without an end."""
    head = f"POST /predict?deadline_ms=300 HTTP/1.1\r\nHost: hostile\r\nContent-Type: {kind}\r\n"
    chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
    return endless(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n", chunk, limit)


ANNOUNCED = post_request(b"{").replace(b"Content-Length: 1\r\n", b"Content-Length: 999999999999\r\n")
"""A request whose body is announced as too large, and does not come."""


def _expecting(port: int) -> Counter[str]:
    """Send `Expect: 100-continue` without a body."""
    head = b"POST /predict?deadline_ms=200 HTTP/1.1\r\nHost: hostile\r\nContent-Type: application/json\r\n"
    with connect(port) as sock:
        send_all(sock, head + b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n")
        content, end = receive(sock)
    return Counter([*(each for each in replies(content) if each != "100"), *(() if end == "open" else (end,))])


def _sessions(port: int) -> Counter[str]:
    """Create sessions until the limit, and leave them."""
    received: Counter[str] = Counter()
    begin = post_request(b"", path="/sessions")
    with connect(port) as sock:
        for _ in range(SESSIONS // 100):
            send_all(sock, begin * 100)
            content, end = receive(sock, 2.0)
            received.update(replies(content))
            if end != "open":
                received[end] += 1
                break
    time.sleep(EXPIRED_S)
    return received


BODIES = (
    Attack(f"bodies: {len(BOMBS)} bombs and nonsense", _bombs),
    Attack("a body without an end", _endless(JSON, b" " * 65_536), may_reset=True),
    Attack("lines without an end", _endless(LINES, b"y" * 65_536), may_reset=True),
    Attack("empty lines without an end", _endless(LINES, b"\n" * 65_536), may_reset=True, others_ms=50.0),
    Attack("a length of a terabyte", partial(request, content=ANNOUNCED)),
    Attack("a body that waits for 100 Continue", _expecting),
    Attack("more sessions than the limit", _sessions, rounds=1, others_ms=50.0, full="session"),
)
