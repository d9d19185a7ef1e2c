"""Attacks on WebSockets: invalid frames, invalid messages, and floods of both."""

from __future__ import annotations

import base64
import json
import random
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial

from benchmarks.load.frames import WebSocketClient, frame, text
from drills.attacks.wire import TIMEOUT_S, Attack, ended, receive, request, send_all

KEY = base64.b64encode(bytes(16))
HEAD = b"GET /stream HTTP/1.1\r\nHost: hostile\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
VERSION, KEYED = b"Sec-WebSocket-Version: 13\r\n", b"Sec-WebSocket-Key: " + KEY + b"\r\n"
UPGRADE_REQUEST = HEAD + VERSION + KEYED + b"\r\n"


def open_websocket(port: int, receive_buffer: int | None = None) -> socket.socket:
    sock = WebSocketClient(port, "/stream", receive_buffer).sock
    sock.settimeout(TIMEOUT_S)
    return sock


def messages(content: bytes) -> Iterator[str]:
    """Parse frames of the server."""
    while len(content) >= 2:
        opcode, size, start = content[0] & 15, content[1], 2
        if size in (126, 127):
            start = 4 if size == 126 else 10
            size = int.from_bytes(content[2:start], "big")
        body, content = content[start : start + size], content[start + size :]
        if opcode == 8:
            yield f"close {int.from_bytes(body[:2], 'big')}" if body else "close"
        elif opcode == 1:
            yield _describe(body)
        elif opcode == 2:
            yield "packed"
        elif opcode == 10:
            yield "pong"


def _describe(body: bytes) -> str:
    with suppress(ValueError):
        message = json.loads(body)
        if message["type"] != "error":
            return str(message["type"])
        return f"{'' if message['problem'].get('detail') else 'bare '}error {message['problem']['status']}"
    return "cut off"


def send_frames(content: bytes, port: int) -> Counter[str]:
    """Send bytes on a new WebSocket, and return the replies."""
    with open_websocket(port) as sock:
        send_all(sock, content)
        received, end = receive(sock, 1.0)
    return ended(messages(received), end)


def send_handshake(content: bytes, port: int) -> Counter[str]:
    """Send a handshake, and return the replies."""
    return request(port, content, 1.0)


PING = frame(9, b"hostile")
GROUP = b'{"type": "group", "id": 1, "group": "group-0", "values": %b}'

NONSENSE: Mapping[str, bytes] = {
    "a frame without a mask": frame(1, b"{}", masked=False),
    "an unknown opcode": frame(3, b"{}"),
    "an unknown control opcode": frame(11, b""),
    "a reserved bit": frame(1, b"{}", bits=2),
    "a compressed frame": frame(1, bytes.fromhex("aa56ca48cdc9c95728cf2fca4901000000ffff"), bits=4),
    "a continuation of nothing": frame(0, b"{}"),
    "a message inside another": frame(1, b"{", final=False) + frame(1, b"}"),
    "a ping in two parts": frame(9, b"a", final=False) + frame(0, b"b"),
    "a ping too long": frame(9, bytes(126)),
    "a close of one byte": frame(8, b"\x03"),
    "a close with a code that is none": frame(8, struct.pack("!H", 999)),
    "a close with a reserved code": frame(8, struct.pack("!H", 1005)),
    "a close that is not UTF-8": frame(8, struct.pack("!H", 1000) + b"\xff\xfe"),
    "text that is not UTF-8": frame(1, b"\xff\xfe\xfd"),
    "a length of 2^63": bytes([0x81, 0xFF]) + b"\x80" + bytes(7) + bytes(4),
    "a length of a terabyte": bytes([0x81, 0xFF]) + struct.pack("!Q", 1 << 40) + bytes(4),
    "a length that is longer than it need be": bytes([0x81, 0xFE, 0, 5]) + bytes(4) + b"hello",
    "a message too long": frame(1, b"y" * ((1 << 20) + 1)),
    "a message without an end": frame(1, b"y", final=False) + frame(0, b"y" * 65_536, final=False) * 20,
    "10,000 parts of nothing": frame(1, b"", final=False) + frame(0, b"", final=False) * 10_000 + frame(0, b""),
    "zeros": bytes(10_000),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10,
    "JSON, 100,000 deep": text(b"[" * 100_000),
    "MessagePack, 100,000 deep": frame(2, b"\x91" * 100_000),
    "a number of 900,000 digits": text(b'{"type": "begin", "id": ' + b"9" * 900_000 + b"}"),
    "an id of 900,000 letters": text(b'{"type": "begin", "id": "' + b"y" * 900_000 + b'"}'),
    "a group of NaN": text(b'{"type": "begin", "id": 1}') + text(GROUP % b"[NaN, Infinity, 1e999]"),
    "a deadline of infinity": text(b'{"type": "begin", "id": 1, "deadline_ms": 1e999}'),
    "a billion rows": text(b'{"type": "begin", "id": 1, "rows": 1000000000}'),
    "an id that is true": text(b'{"type": "begin", "id": true}'),
    "an id that is 2^64": text(b'{"type": "begin", "id": 18446744073709551616, "deadline_ms": 0}'),
    "an id twice": text(b'{"type": "begin", "id": 1, "deadline_ms": 0}') * 2,
}

HANDSHAKES: Mapping[str, bytes] = {
    "no key": HEAD + VERSION + b"\r\n",
    "a key too short": HEAD + VERSION + b"Sec-WebSocket-Key: aGVsbG8=\r\n\r\n",
    "a key that is none": HEAD + VERSION + b"Sec-WebSocket-Key: \xff\xff\r\n\r\n",
    "two keys": HEAD + VERSION + KEYED + KEYED + b"\r\n",
    "version 8": HEAD + b"Sec-WebSocket-Version: 8\r\n" + KEYED + b"\r\n",
    "another protocol": HEAD + VERSION + KEYED + b"Sec-WebSocket-Protocol: mqtt\r\n\r\n",
    "another path": UPGRADE_REQUEST.replace(b"/stream", b"/nowhere"),
    "a path that is another route": UPGRADE_REQUEST.replace(b"/stream", b"/predict"),
    "a POST": UPGRADE_REQUEST.replace(b"GET", b"POST", 1),
    "HTTP/1.0": UPGRADE_REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a body": UPGRADE_REQUEST.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\nhello"),
    "compression": HEAD + VERSION + KEYED + b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
    "an extension that is nonsense": HEAD + VERSION + KEYED + b"Sec-WebSocket-Extensions: a; b=\xff\r\n\r\n",
}


def _mutated(port: int) -> Counter[str]:
    """Send a thousand damaged messages, and then a good one."""
    rng = random.Random(time.time_ns())
    good = [
        json.dumps(message).encode()
        for message in (
            {"type": "begin", "id": 1, "deadline_ms": 100, "updates": True},
            {"type": "group", "id": 1, "group": "group-0", "values": [1.0, 2.0, 3.0]},
            {"type": "end", "id": 1},
        )
    ]
    with open_websocket(port) as sock:
        for _ in range(1000):
            damaged = bytearray(rng.choice(good))
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(len(damaged))
                damaged[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
            content = bytes(damaged).decode("utf-8", "replace").encode()
            send_all(sock, frame(rng.choice((1, 2)), content))
        send_all(sock, text(b'{"type": "begin", "id": "the good one", "deadline_ms": 0}'))
        received, end = receive(sock, 2.0)
    return Counter({*messages(received), *(() if end == "open" else (end,))})


def _random_frames(port: int) -> Counter[str]:
    """Send frames of random bits until the connection is closed."""
    rng = random.Random(time.time_ns())
    with open_websocket(port) as sock:
        for _ in range(50):
            content = rng.randbytes(rng.randrange(200))
            odd = frame(rng.randrange(16), content, final=rng.random() < 0.7, bits=rng.randrange(8), masked=True)
            if not send_all(sock, odd + rng.randbytes(rng.randrange(3))):
                break
        received, end = receive(sock, 0.3)
    return Counter([*messages(received), end])


def _pings(port: int) -> Counter[str]:
    """Send pings as fast as possible, and never read the pongs."""
    with open_websocket(port, receive_buffer=4096) as sock:
        sock.settimeout(1.0)
        sent, until = 0, time.monotonic() + 2.0
        flood = frame(9, bytes(125)) * 500
        while sent < 256 * 1024 * 1024 and time.monotonic() < until:
            _, writable, _ = select.select([], [sock], [], 0.5)
            if not writable or not send_all(sock, flood):
                break
            sent += len(flood)
    return Counter(["gone"])


def _begin_many(port: int) -> Counter[str]:
    """Begin 20,000 predictions on one connection, and end none."""
    found: Counter[str] = Counter()
    with open_websocket(port) as sock:
        for first in range(0, 20_000, 100):
            begins = (json.dumps({"type": "begin", "id": first + i}).encode() for i in range(100))
            if not send_all(sock, b"".join(map(text, begins))):
                break
            received, end = receive(sock, 0.01)
            found.update(each for each in messages(received) if each != "cut off")
            if end != "open":
                break
        received, end = receive(sock, 0.5)
    found.update([*messages(received), *(() if end == "open" else (end,))])
    return found


def _ids(port: int) -> Counter[str]:
    """Use 20,000 ids of maximum length, each answered at once."""
    with open_websocket(port) as sock:
        for first in range(0, 20_000, 100):
            names = (f"{first + i:0>128}" for i in range(100))
            begins = (json.dumps({"type": "begin", "id": name, "deadline_ms": 0}).encode() for name in names)
            if not send_all(sock, b"".join(map(text, begins))):
                break
            receive(sock, 0.005)
        received, end = receive(sock, 0.5)
    return Counter({*(each for each in messages(received) if each != "cut off"), *(() if end == "open" else (end,))})


FRAMES = (
    *(
        # Bytes after an oversized frame are never read, so the connection does not close in order.
        Attack(f"WebSocket: {name}", partial(send_frames, content), may_reset=len(content) > 1 << 20)
        for name, content in NONSENSE.items()
    ),
    *(Attack(f"handshake: {name}", partial(send_handshake, content)) for name, content in HANDSHAKES.items()),
    Attack("WebSocket: 1000 messages damaged", _mutated, others_ms=50.0),
    Attack("WebSocket: random frames", _random_frames, may_reset=True),
    Attack("WebSocket: pings, never read", _pings, may_reset=True, others_ms=50.0),
    Attack("WebSocket: 20,000 begun", _begin_many, others_ms=50.0),
    Attack("WebSocket: 20,000 ids", _ids, others_ms=50.0),
)
