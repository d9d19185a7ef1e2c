"""Other clients next to a measured load: `python -m benchmarks.load.neighbours KIND PORT [SECONDS]`.

Hostile ones, which a server should tolerate, repeat their attack until they are terminated. "many-rows" has answers of
10,000 rows, next to pages and replaced sessions, and prints one line of JSON (`ManyRows`): what the client measured,
and what the answers say.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import struct
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from websockets.asyncio.client import connect

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


ROWS, TOGETHER, DEADLINE_MS = 10_000, 24, 300.0
PACKED = {"Content-Type": "application/msgpack", "Accept": "application/json"}


class ManyRows(msgspec.Struct):
    """Times of answers minus their deadlines in ms, as sent (`elapsed_ms`) and received, and counts of the rest."""

    sent: list[float]
    received: list[float]
    refused: int
    pages: int
    replacements: int
    mixed: int


def call(url: str, body: bytes | None = None) -> Any:
    """Return a decoded reply; None if the server refuses."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, PACKED), timeout=30) as reply:
            return msgspec.json.decode(reply.read())
    except urllib.error.HTTPError:
        return None


def packed(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"dtype": "f8", "values": values.tobytes()}


async def waves(port: int, group: str, width: int, until: float, found: ManyRows) -> None:
    """Begin predictions together, and the next ones when all of them are answered or refused."""
    values = packed(np.ones((ROWS, width)))
    async with connect(f"ws://127.0.0.1:{port}/stream", max_size=None, compression=None, proxy=None) as wire:
        number = 0
        while time.perf_counter() < until:
            begun: dict[int, float] = {}
            for number in range(number, number + TOGETHER):  # noqa: B020
                begun[number] = time.perf_counter()
                begin = {"type": "begin", "id": number, "rows": ROWS, "deadline_ms": DEADLINE_MS}
                await wire.send(msgspec.msgpack.encode(begin))
                await wire.send(msgspec.msgpack.encode({"type": "group", "id": number, "group": group, **values}))
            number += 1
            while begun:
                message = msgspec.msgpack.decode(await wire.recv(decode=False))
                at = begun.pop(message["id"], None)
                if message["type"] != "answer":
                    found.refused += 1
                elif at is not None:
                    found.sent.append(message["elapsed_ms"] - DEADLINE_MS)
                    found.received.append((time.perf_counter() - at) * 1e3 - DEADLINE_MS)


def replace(url: str, model: str, group: str, width: int, until: float, found: ManyRows) -> None:
    """Replace the values of a session, and read it: all rows of an answer are alike."""
    session = call(f"{url}/sessions", msgspec.msgpack.encode({"model": model}))["id"]
    while time.perf_counter() < until:
        values = packed(np.full((ROWS, width), float(found.replacements % 2)))
        call(f"{url}/sessions/{session}/groups", msgspec.msgpack.encode({group: values}))
        found.replacements += 1
        answer = call(f"{url}/sessions/{session}/predict")
        found.mixed += answer is not None and len(set(answer["prediction"])) > 1


def read_pages(url: str, model: str, until: float, found: ManyRows) -> None:
    while time.perf_counter() < until:
        found.pages += call(f"{url}/models/{model}") is not None
        time.sleep(0.05)


def many_rows(port: int, seconds: float) -> None:
    until = time.perf_counter() + seconds
    url, found = f"http://127.0.0.1:{port}", ManyRows([], [], 0, 0, 0, 0)
    model = call(f"{url}/models")[0]["name"]
    group = next(each for each in call(f"{url}/models/{model}")["groups"] if each["features"])
    name, width = group["name"], len(group["features"])
    threads = [
        threading.Thread(target=replace, args=(url, model, name, width, until, found)),
        threading.Thread(target=read_pages, args=(url, model, until, found)),
    ]
    for thread in threads:
        thread.start()
    asyncio.run(waves(port, name, width, until, found))
    for thread in threads:
        thread.join()
    print(msgspec.json.encode(found).decode())


def main() -> None:
    """Repeat an attack, or measure answers of 10,000 rows for some seconds."""
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind == "many-rows":
        many_rows(port, float(sys.argv[3]))
        return
    os.sched_setaffinity(0, {CLIENT_CORE})
    set_priority(real_time=False)  # the measured load has priority
    while True:
        with suppress(OSError):  # disconnected by the server
            KINDS[kind](port)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
