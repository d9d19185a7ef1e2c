"""Random sequences of every element of the protocols: `python -m drills.attacks.sequences KEY PORT [PORT ...]`.

Reads a seed and a length in seconds per line, plays that round on 20 connections, and prints the result as JSON. The
same seed plays the same bytes. A connection sends as fast as the server reads; many connections read nothing.
"""

from __future__ import annotations

import json
import random
import select
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.harness import answering
from benchmarks.load.frames import connect, frame

CONNECTIONS = 20
TURN_S = 0.05
"""Time for which a connection waits until it can read or send."""

JSON, LINES, PACKED = b"application/json", b"application/x-ndjson", b"application/msgpack"
TARGETS = (
    b"/predict",
    b"/predict?deadline_ms=20",
    b"/predict?overload=prior&rows=10000&deadline_ms=50",
    b"/predict?deadline_ms=2000&rows=10000",
    b"/livez",
    b"/readyz",
    b"/metrics",
    b"/models",
    b"/openapi.json",
    b"/sessions",
    b"/sessions/00000000000000000000000000000000/groups",
    b"/sessions/00000000000000000000000000000000/predict?deadline_ms=100",
    b"/v2/models/load/infer",
    b"/v2/health/live",
    b"/stream",
    b"/nowhere",
    b"/" + b"a" * 20_000,
)


class Step(NamedTuple):
    """Bytes to send `times` times, or another action."""

    content: bytes = b""
    times: int = 1
    act: str = "send"


Steps = Iterator[Step]


class Random(random.Random):
    """The choices of one connection."""

    def chance(self, share: float) -> bool:
        """Return True with this probability."""
        return self.random() < share

    def count(self, maximum: int) -> int:
        """Return a number from 1 to `maximum`, uniform in its logarithm."""
        return int(maximum ** self.random())

    def junk(self, maximum: int) -> bytes:
        """Return random bytes without line ends."""
        return bytes(self.choices(range(32, 127), k=self.count(maximum)))


def script(rng: Random, key: bytes, *, upgrades: bool) -> Steps:
    """Yield the steps of one connection."""
    if rng.chance(0.4):
        yield Step(act="ignore replies")
    if upgrades and rng.chance(0.4):
        yield from _websocket(rng, key)
    else:
        for _ in range(rng.count(4)):
            yield from _requests(rng, key)
        if upgrades and rng.chance(0.2):
            yield from _websocket(rng, key)
    yield Step(act=rng.choice(("half-close", "reset", "stay open")))


def _requests(rng: Random, key: bytes) -> Steps:
    method = rng.choice((b"POST", b"POST", b"GET", b"DELETE", b"PUT", b"OPTIONS", b"BREW"))
    version = rng.choice((b"HTTP/1.1",) * 8 + (b"HTTP/1.0", b"HTTP/9.9"))
    line = b" ".join((method, rng.choice(TARGETS), version)) + b"\r\n"
    head = [line, b"Host: hostile\r\n", b"Content-Type: %b\r\n" % rng.choice((JSON, LINES, PACKED, rng.junk(50)))]
    if rng.chance(0.7):
        head.append(b"Authorization: Bearer %b\r\n" % (key if rng.chance(0.8) else rng.junk(50)))
    if rng.chance(0.1):
        head.append(b"Expect: 100-continue\r\n")
    if rng.chance(0.1):
        head.append(b"Connection: Upgrade\r\nUpgrade: %b\r\n" % rng.choice((b"h2c", b"websocket", rng.junk(50))))
    if rng.chance(0.05):
        yield Step(b"\r\n", rng.count(1_000_000))
    kind = rng.choice(("chunked", "chunked", "whole", "short", "none", "pipelined", "endless head"))
    if kind == "pipelined":
        body = _body(rng, 200)
        whole = b"".join([*head, b"Content-Length: %d\r\n\r\n" % len(body), body])
        yield Step(whole, rng.count(100_000))
        return
    yield Step(b"".join(head))
    if rng.chance(0.2) or kind == "endless head":
        for _ in range(rng.count(3)):
            yield _flood(rng, b"X-%b: %b\r\n" % (rng.junk(3).replace(b":", b"-"), rng.junk(10_000)))
    if kind == "endless head":
        yield _flood(rng, rng.choice((b"y", b"y" * 65_536)))
    elif kind == "chunked":
        yield Step(b"Transfer-Encoding: chunked\r\n\r\n")
        yield from _chunks(rng)
    elif kind == "none":
        yield Step(b"\r\n")
    else:
        body = _body(rng, 2 << 20)
        yield Step(b"Content-Length: %d\r\n\r\n" % len(body))
        yield Step(body[: -rng.count(len(body))] if kind == "short" else body)


def _chunks(rng: Random) -> Steps:
    for _ in range(rng.count(6)):
        body = _body(rng, 100_000)
        extension = b";" + rng.junk(1000) if rng.chance(0.2) else b""
        yield _flood(rng, b"%x%b\r\n%b\r\n" % (len(body), extension, body))
        if rng.chance(0.1):
            yield Step(b"5;")
            yield _flood(rng, b"e" * rng.count(65_536))
    if rng.chance(0.2):
        return
    yield Step(b"0\r\n")
    if rng.chance(0.5):
        name = rng.choice((b"Origin", b"Authorization", b"X-Trailer", b"Content-Length"))
        yield _flood(rng, b"%b: %b\r\n" % (name, rng.junk(10_000)))
        if rng.chance(0.3):
            yield _flood(rng, b"z" * rng.count(65_536))
    yield Step(b"\r\n")


def _body(rng: Random, maximum: int) -> bytes:
    size = rng.count(maximum)
    return rng.choice(
        (
            b'{"groups": {"group-0": [1, 2, 3]}}',
            b'{"group": "group-0", "values": [1, 2, 3]}\n' * (size // 50 + 1),
            b'{"groups": {"group-0": [' + b"[1, 2, 3]," * (size // 10) + b"[1, 2, 3]]}}",
            b'{"groups": {}, "overload": "prior", "rows": 10000}',
            b'{"inputs": [], "parameters": {"overload": "prior", "rows": 10000}}',
            b"\x81\xa6groups\x81\xa7group-0" + b"\xcb" * size,
            b"\n" * size,
            b"y" * size,
        )
    )


def _websocket(rng: Random, key: bytes) -> Steps:
    offered = b"anytime.v1, anytime.key." + key if rng.chance(0.8) else rng.junk(50)
    yield Step(
        b"GET /stream HTTP/1.1\r\nHost: hostile\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        b"Sec-WebSocket-Protocol: %b\r\n\r\n" % offered
    )
    yield Step(act="await")
    for number in range(rng.count(12)):
        yield _flood(rng, rng.choice(_FRAMES)(rng, number))
    if rng.chance(0.3):
        yield Step(frame(8, struct.pack("!H", rng.choice((1000, 1001, 1011, 999, 1005, 4999))) + rng.junk(100)))
        yield _flood(rng, frame(1, rng.junk(1000)))


def _message(rng: Random, number: int) -> bytes:
    message = rng.choice(
        (
            {"type": "begin", "id": number, "deadline_ms": rng.choice((0, 20, 2000)), "rows": rng.count(10_000)},
            {"type": "begin", "id": rng.randrange(10**9), "overload": "prior", "rows": 10_000},
            {"type": "begin", "id": "x" * 128, "updates": True},
            {"type": "group", "id": number, "group": "group-0", "values": [1.0, 2.0, 3.0] * rng.count(10_000)},
            {"type": "end", "id": number},
        )
    )
    return frame(1, json.dumps(message).encode())


_FRAMES: Sequence[Callable[[Random, int], bytes]] = (
    _message,
    _message,
    _message,
    lambda rng, _: frame(rng.choice((1, 2)), rng.junk(100_000)),
    lambda _rng, _: frame(1, b"{", final=False),
    lambda rng, _: frame(0, rng.junk(65_536), final=rng.chance(0.1)),
    lambda _rng, _: frame(0, b"", final=False),
    lambda rng, _: frame(9, rng.junk(125)),
    lambda rng, _: frame(10, rng.junk(125)),
    lambda rng, _: frame(rng.randrange(16), rng.junk(200), final=rng.chance(0.7), bits=rng.choice((0, 0, 0, 1, 4))),
    lambda rng, _: frame(1, rng.junk(1000), masked=False),
    lambda rng, _: bytes([0x82, 0xFF]) + struct.pack("!Q", rng.choice((1 << 20, 1 << 40, 1 << 62))) + bytes(4),
    lambda rng, _: rng.randbytes(rng.count(1000)),
)


def _flood(rng: Random, content: bytes) -> Step:
    """Return a step that sends something once, or very often."""
    return Step(content, 1 if rng.chance(0.6) else rng.count((1 << 28) // len(content) + 1))


@dataclass
class Round:
    """Result of a round: bytes sent, and connections by how they ended."""

    sent: int = 0
    ends: dict[str, int] = field(default_factory=dict)


class _Connection:
    """One connection, on which steps are played until the end of the round, at a time of `time.monotonic`."""

    def __init__(self, port: int, until: float) -> None:
        self.sock = connect(port, 65_536, 5.0)
        self.sock.setblocking(False)
        self.until = until
        self.sent = 0
        self.ignores_replies = False

    def play(self, steps: Steps) -> str:
        """Play steps, and wait for the end of the connection; return how it ended."""
        try:
            for step in steps:
                if step.act == "ignore replies":
                    self.ignores_replies = True
                elif step.act == "await":
                    self._await()
                elif step.act == "half-close":
                    self.sock.shutdown(socket.SHUT_WR)
                elif step.act == "reset":
                    self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return "reset by the client"
                elif step.content:
                    self._send(step)
            while time.monotonic() < self.until:
                self._turn(b"")
        except EOFError:
            return "closed by the server"
        except OSError:
            return "reset by the server"
        finally:
            self.sock.close()
        return "open at the end"

    def _await(self) -> None:
        while not self.ignores_replies and time.monotonic() < self.until:
            if select.select([self.sock], [], [], TURN_S)[0]:
                return

    def _send(self, step: Step) -> None:
        remaining = step.times
        while remaining and time.monotonic() < self.until:
            batch = min(max(65_536 // len(step.content), 1), remaining)
            remaining -= batch
            unsent = memoryview(step.content * batch)
            while unsent and time.monotonic() < self.until:
                unsent = unsent[self._turn(unsent) :]

    def _turn(self, content: bytes | memoryview) -> int:
        """Read and send what is possible; return the number of bytes sent."""
        readers, writers = [] if self.ignores_replies else [self.sock], [self.sock] if content else []
        readable, writable, _ = select.select(readers, writers, [], TURN_S)
        if readable and not self.sock.recv(1 << 20):
            raise EOFError
        sent = self.sock.send(content) if writable else 0
        self.sent += sent
        return sent


def play(seed: int, ports: Sequence[int], key: bytes, length_s: float) -> Round:
    """Play one round on `CONNECTIONS` connections at a time, each in a thread, which replaces it when it ends."""
    until, played = time.monotonic() + length_s, list[tuple[int, str]]()

    def play_connections(thread: int) -> None:
        rng = Random(f"{seed} {thread}")
        with suppress(OSError):  # the server accepts no more
            while time.monotonic() < until:
                number = rng.randrange(len(ports))
                connection = _Connection(ports[number], until)
                end = connection.play(script(rng, key, upgrades=number == 0))
                played.append((connection.sent, end))

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(play_connections, range(CONNECTIONS)))
    return Round(sum(sent for sent, _ in played), dict(Counter(end for _, end in played)))


def main() -> None:
    """Play a round for each line of the input; the first port is the main one, the others serve metrics."""
    key, ports = sys.argv[1].encode(), [int(port) for port in sys.argv[2:]]

    def answer(line: str) -> Mapping[str, Any]:
        seed, length_s = line.split()
        return vars(play(int(seed), ports, key, float(length_s)))

    answering(answer)


if __name__ == "__main__":
    main()
