"""Bodies: bombs, floods, numbers that are none, and more sessions than there may be."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping

from drills.attacks.wire import ENDLESS, Attack, connected, endless, heard, push, replies, request

__all__ = ["BODIES", "BOMBS"]

DEEP = 100_000
LONG = 1_000_000
SESSIONS = 3000
EXPIRED_S = 10.0
"""Longer than sessions are kept for in the drill: what comes next is to find room."""

JSON, MSGPACK, LINES = "application/json", "application/msgpack", "application/x-ndjson"


def posted(content: bytes, kind: str = JSON, path: str = "/predict?deadline_ms=500", more: str = "") -> bytes:
    """A request with a body of known length."""
    told = f"Host: hostile\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n{more}"
    return f"POST {path} HTTP/1.1\r\n{told}\r\n".encode() + content


def _groups(values: str) -> bytes:
    return b'{"groups": {"group-0": ' + values.encode() + b"}}"


_BOMBS: Mapping[str, bytes] = {
    "JSON, 100,000 deep": posted(b'{"groups":' + b"[" * DEEP),
    "JSON, 100,000 deep and closed": posted(b'{"groups": {"group-0": ' + b"[" * DEEP + b"]" * DEEP + b"}}"),
    "JSON of objects, 100,000 deep": posted(b'{"groups":' * DEEP),
    "MessagePack, 100,000 deep": posted(b"\x91" * DEEP, MSGPACK),
    "MessagePack of maps, 100,000 deep": posted(b"\x81\xa1a" * DEEP, MSGPACK),
    "an array that says it has 4,000,000,000": posted(b"\xdd\xff\xff\xff\xff", MSGPACK),
    "bytes that say they are 4 GB": posted(b"\x81\xa6groups\xc6\xff\xff\xff\xff", MSGPACK),
    "a number of a million digits": posted(_groups("[" + "9" * LONG + "]")),
    "a fraction of 900,000 digits": posted(_groups("[0." + "9" * 900_000 + ", 1, 2]")),
    "an exponent of 900,000 digits": posted(_groups("[1e" + "9" * 900_000 + ", 1, 2]")),
    "NaN": posted(_groups("[NaN, 1, 2]")),
    "infinity": posted(_groups("[Infinity, -Infinity, 1e999]")),
    "infinity in MessagePack": posted(b"\x81\xa6groups\x81\xa7group-0\x93" + b"\xcb\x7f\xf0\0\0\0\0\0\0" * 3, MSGPACK),
    "100,000 groups": posted(json.dumps({"groups": {f"g{i}": [i] for i in range(50_000)}}).encode()),
    "a group named by a megabyte": posted(json.dumps({"groups": {"y" * 900_000: [1]}}).encode()),
    "the same group 20,000 times": posted(
        b'{"groups": {' + b'"group-0": [1, 2, 3],' * 20_000 + b'"group-0": [1, 2, 3]}}'
    ),
    "10^9 rows": posted(b'{"groups": {}, "rows": 1000000000}'),
    "half a surrogate": posted(b'{"groups": {"\\ud800": [1]}}'),
    "not UTF-8": posted(b'{"groups": {"\xff\xfe": [1]}}'),
    "a list": posted(b"[1, 2, 3]"),
    "nothing": posted(b""),
    "gzip, ten megabytes of zeros": posted(gzip.compress(bytes(10_000_000)), more="Content-Encoding: gzip\r\n"),
    "a coding of codings": posted(b"{}", more="Content-Encoding: gzip, br, deflate\r\n"),
    "XML": posted(b"<!DOCTYPE a [<!ENTITY b 'b'>]><a>&b;</a>", "application/xml"),
    "a form": posted(b"a=b", "application/x-www-form-urlencoded"),
    "an Open Inference request of nonsense": posted(
        b'{"inputs": [{"name": "group-0", "shape": [1000000000, 1000000000], "datatype": "FP64", "data": []}]}',
        path="/v2/models/load/infer",
    ),
    "an Open Inference header that lies": posted(
        b"{}", path="/v2/models/load/infer", more="Inference-Header-Content-Length: 99999999999999999999\r\n"
    ),
    "a line of a megabyte": posted(b'{"group": "' + b"y" * 1_000_000, LINES),
    "20,000 lines of nonsense": posted(b"nonsense\n" * 20_000, LINES),
}
BOMBS = {name: content.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) for name, content in _BOMBS.items()}
"""Requests, each the last on its connection."""


def _bombs(port: int) -> Counter[str]:
    came: Counter[str] = Counter()
    for content in BOMBS.values():
        came += request(port, content)
    return came


def _endless(kind: str, piece: bytes, most: int = ENDLESS) -> Callable[[int], Counter[str]]:
    """Send a chunked body without an end."""
    head = f"POST /predict?deadline_ms=300 HTTP/1.1\r\nHost: hostile\r\nContent-Type: {kind}\r\n"
    chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
    return endless(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n", chunk, most)


def _announced(port: int) -> Counter[str]:
    """Announce more than is taken, and wait."""
    head = b"POST /predict HTTP/1.1\r\nHost: hostile\r\nContent-Type: application/json\r\n"
    return request(port, head + b"Content-Length: 999999999999\r\n\r\n{")


def _expecting(port: int) -> Counter[str]:
    """Ask to be told to go on, and never do."""
    head = b"POST /predict?deadline_ms=200 HTTP/1.1\r\nHost: hostile\r\nContent-Type: application/json\r\n"
    with connected(port) as sock:
        push(sock, head + b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n")
        content, end = heard(sock)
    return Counter([*(each for each in replies(content) if each != "100"), *(() if end == "open" else (end,))])


def _sessions(port: int) -> Counter[str]:
    """Begin sessions until there may be no more, and leave them."""
    came: Counter[str] = Counter()
    begin = posted(b"", path="/sessions")
    with connected(port) as sock:
        for _ in range(SESSIONS // 100):
            push(sock, begin * 100)
            content, end = heard(sock, 2.0)
            came.update(replies(content))
            if end != "open":
                came[end] += 1
                break
    time.sleep(EXPIRED_S)
    return came


BODIES = (
    Attack(f"bodies: {len(BOMBS)} bombs and nonsense", _bombs),
    Attack("a body without an end", _endless(JSON, b" " * 65_536), resets=True),
    Attack("lines without an end", _endless(LINES, b"y" * 65_536), resets=True),
    Attack("empty lines without an end", _endless(LINES, b"\n" * 65_536), resets=True, others_ms=50.0),
    Attack("a length of a terabyte", _announced),
    Attack("a body that waits to be asked for", _expecting),
    Attack("more sessions than there may be", _sessions, rounds=1, others_ms=50.0, full="session"),
)
