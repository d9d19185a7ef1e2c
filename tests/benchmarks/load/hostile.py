"""Hostile clients that a server should tolerate: `python -m benchmarks.load.hostile KIND PORT`, until terminated."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from benchmarks.harness import CLIENT_CORE, set_priority
from benchmarks.load.frames import WebSocketClient, text

CHUNKS = 200_000
FRAMES = 100_000
PAUSE_S = 0.2
"""Pause between attacks: fairness is measured, not that a busy core is busy."""


def _begin(name: int, **fields: object) -> bytes:
    return text(json.dumps({"type": "begin", "id": name, "deadline_ms": 10_000, **fields}).encode())


def _group(name: int, number: int) -> bytes:
    message = {"type": "group", "id": name, "group": f"group-{number}", "values": [0.5, 0.25, float(number)]}
    return text(json.dumps(message).encode())


def stops_reading(port: int) -> None:
    """Request updates, send groups that trigger them, and never read; restart when disconnected."""
    client = WebSocketClient(port, "/stream", receive_buffer=4096)
    for name in range(1_000_000):
        client.sock.sendall(_begin(name, updates=True))
        for number in range(20):
            client.sock.sendall(_group(name, number))
        time.sleep(0.02)


def vanishes(port: int) -> None:
    """Begin predictions, send some groups, and reset the connection."""
    client = WebSocketClient(port, "/stream")
    client.sock.sendall(b"".join(_begin(name) + _group(name, name) for name in range(20)))
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def byte_a_second(port: int) -> None:
    """Send headers, bodies and frames one byte per second, on a hundred connections."""
    head = b"POST /predict?deadline_ms=10000 HTTP/1.1\r\nHost: load\r\nContent-Type: application/x-ndjson\r\n"
    slow: list[tuple[socket.socket, bytes]] = []
    for number in range(100):
        if number % 3 == 0:
            slow.append((WebSocketClient(port, "/stream").sock, _begin(1) + _group(1, 1) * 10))
            continue
        sock = socket.create_connection(("127.0.0.1", port))
        if number % 3 == 1:
            slow.append((sock, head))
        else:
            sock.sendall(head + b"Content-Length: 1000\r\n\r\n")
            slow.append((sock, b'{"group": "group-1", "values": [1, 2, 3]}\n' * 20))
    for second in range(600):
        for sock, content in slow:
            sock.send(content[second : second + 1])
        time.sleep(1.0)


def tiny_chunks(port: int) -> None:
    """Send 200,000 chunks of one byte as fast as possible."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        kind = "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked"
        sock.sendall(f"POST /predict?deadline_ms=10000 HTTP/1.1\r\nHost: load\r\n{kind}\r\n\r\n".encode())
        sock.sendall(b"1\r\n \r\n" * CHUNKS)
        sock.sendall(b"0\r\n\r\n")
        sock.recv(1 << 16)


def tiny_frames(port: int) -> None:
    """Send frames of one byte as fast as possible, and read the replies."""
    client = WebSocketClient(port, "/stream")
    client.sock.setblocking(False)
    flood = memoryview(text(b"1") * FRAMES)
    while flood:
        readable, writable, _ = select.select([client.sock], [client.sock], [])
        if writable:
            flood = flood[client.sock.send(flood[:65536]) :]
        if readable and not client.sock.recv(1 << 20):
            return


KINDS: dict[str, Callable[[int], None]] = {
    "stops-reading": stops_reading,
    "vanishes": vanishes,
    "byte-a-second": byte_a_second,
    "tiny-chunks": tiny_chunks,
    "tiny-frames": tiny_frames,
}


def main() -> None:
    """Repeat the attack."""
    os.sched_setaffinity(0, {CLIENT_CORE})
    set_priority(real_time=False)  # the measured load has priority
    kind, port = KINDS[sys.argv[1]], int(sys.argv[2])
    while True:
        with suppress(OSError):  # disconnected by the server
            kind(port)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
