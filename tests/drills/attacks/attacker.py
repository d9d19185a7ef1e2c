"""The attacker process: `python -m drills.attacks.attacker PORT`.

Reads one line per attack, its number and its length in seconds, and prints one line with the replies. Here are floods
of connections, pipelined requests and bytes, clients that never read, and slow or endless headers; the last attacks are
the benchmarks' hostile clients.
"""

from __future__ import annotations

import resource
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, NamedTuple

from benchmarks.harness import Process, answering, set_priority
from benchmarks.load.neighbours import KINDS
from drills.attacks.bodies import BODIES, post_request
from drills.attacks.frames import FRAMES
from drills.attacks.malformed import MALFORMED
from drills.attacks.wire import Attack, connect, endless, receive, replies, request, reset, send_all

IDLE = 10_000
CHURN = 10_000
PIPELINED = 10_000
REQUEST = b"GET /livez HTTP/1.1\r\nHost: hostile\r\n\r\n"


def _idle(port: int) -> Counter[str]:
    """Open 10,000 connections, each idle after one request."""
    received: Counter[str] = Counter()
    with ExitStack() as stack:
        socks: list[socket.socket] = []
        while len(socks) < IDLE:
            socks.append(stack.enter_context(connect(port)))
            send_all(socks[-1], REQUEST)
            if len(socks) % 100 == 0:
                time.sleep(0.01)
        time.sleep(2.0)
        for sock in socks:
            content, end = receive(sock, 0.0005)
            received.update([*replies(content), *(() if end == "open" else (end,))])
    return received


def _churn(port: int) -> Counter[str]:
    """Connect and close, 10,000 times."""
    for _ in range(CHURN):
        connect(port).close()
    return Counter({"closed by us": CHURN})


def _churn_by_reset(port: int) -> Counter[str]:
    """Connect, request and reset, 10,000 times."""
    for _ in range(CHURN):
        sock = connect(port)
        send_all(sock, REQUEST)
        reset(sock)
    return Counter({"closed by us": CHURN})


def _pipelined(port: int) -> Counter[str]:
    """Send 10,000 requests before reading."""
    with connect(port) as sock:
        sock.setblocking(False)
        remaining, received = memoryview(REQUEST * PIPELINED), b""
        until = time.monotonic() + 20.0
        while received.count(b"HTTP/1.1 ") < PIPELINED and time.monotonic() < until:
            with suppress(BlockingIOError):
                if remaining:
                    remaining = remaining[sock.send(remaining) :]
            try:
                more = sock.recv(1 << 20)
            except BlockingIOError:
                time.sleep(0.001)
                continue
            except OSError:
                return Counter([*replies(received), "RST"])
            if not more:
                return Counter([*replies(received), "FIN"])
            received += more
    return Counter(replies(received))


def _unread(port: int) -> Counter[str]:
    """Request large responses without end, and read none."""
    with connect(port, receive_buffer=4096) as sock:
        sock.settimeout(0.5)
        until, large = time.monotonic() + 2.0, b"GET /openapi.json HTTP/1.1\r\nHost: hostile\r\n\r\n"
        while time.monotonic() < until and send_all(sock, large * 100):
            pass
    return Counter(["closed by us"])


def _incomplete_bodies(port: int) -> Counter[str]:
    """Post bodies of maximum size on 50 connections, without the last byte."""
    body = post_request(b'{"groups": {"group-0": [' + b"1," * 500_000 + b"1]}}")[:-1]
    socks = [connect(port) for _ in range(50)]
    for sock in socks:
        send_all(sock, body)
    ends: list[str] = []
    for sock in socks:
        content, end = receive(sock, 2.0)
        found = list(replies(content))
        ends += found if found and end == "open" else [*found, end]
        sock.close()
    return Counter(ends)


SLOW = 100
SLOW_S = 8.0
INTERVAL_S = 0.5
PIECE = 1 << 16


def _slowly(begin: bytes, piece: bytes) -> Callable[[int], Counter[str]]:
    """Send the beginning on many connections, and then a little at a time, without an end."""

    def act(port: int) -> Counter[str]:
        received: Counter[str] = Counter()
        socks = [connect(port) for _ in range(SLOW)]
        for sock in socks:
            send_all(sock, begin)
        until = time.monotonic() + SLOW_S
        while socks and time.monotonic() < until:
            time.sleep(INTERVAL_S)
            for sock in tuple(socks):
                content, end = receive(sock, 0.0005)
                if content or end != "open":
                    received.update([*replies(content), *(() if content and end == "open" else (end,))])
                    sock.close()
                    socks.remove(sock)
                elif piece:
                    send_all(sock, piece)
        received["open"] += len(socks)
        for sock in socks:
            sock.close()
        return +received

    return act


GET = b"GET /livez HTTP/1.1\r\nHost: hostile\r\n"
POST = b"POST /predict?deadline_ms=10000 HTTP/1.1\r\nHost: hostile\r\n"
LINES = POST + b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"

FLOODS = (
    Attack("a request line, a byte each half second", _slowly(b"", b"G"), SLOW),
    Attack("headers that stop in the middle", _slowly(GET, b""), SLOW),
    Attack("headers, one each half second", _slowly(GET, b"x: y\r\n"), SLOW),
    Attack("silent connections", _slowly(b"", b""), SLOW),
    Attack("a body, a byte each half second", _slowly(POST + b"Content-Length: 1000\r\n\r\n{", b" "), SLOW),
    Attack("a chunked body, a line each half second", _slowly(LINES, b"1\r\n\n\r\n"), SLOW),
    Attack("a header line without an end", endless(GET + b"x: ", b"y" * PIECE), may_reset=True),
    Attack("a header name without an end", endless(GET, b"y" * PIECE), may_reset=True),
    Attack("a path without an end", endless(b"GET /", b"y" * PIECE), may_reset=True),
    Attack("a query without an end", endless(b"GET /predict?", b"y=1&" * (PIECE // 4)), may_reset=True),
    Attack("headers without an end", endless(GET, b"x: y\r\n" * (PIECE // 6)), may_reset=True),
    Attack("10,000 headers", partial(request, content=GET + b"x: y\r\n" * 10_000 + b"\r\n"), may_reset=True),
    Attack(
        "a header of a megabyte",
        partial(request, content=GET + b"x: " + b"y" * (1 << 20) + b"\r\n\r\n"),
        may_reset=True,
    ),
    Attack(
        "a path of 64 kB",
        partial(request, content=b"GET /" + b"y" * (1 << 16) + b" HTTP/1.1\r\nHost: hostile\r\n\r\n"),
        may_reset=True,
    ),
    Attack("10,000 idle connections", _idle, IDLE, may_stay_open=True, others_ms=100.0, rounds=1),
    Attack("10,000 connections, one after the other", _churn, others_ms=50.0, rounds=1),
    Attack("10,000 requests, each reset", _churn_by_reset, others_ms=50.0, rounds=1),
    Attack("10,000 requests at once on one connection", _pipelined, others_ms=50.0, rounds=1),
    Attack("answers that are never read", _unread, others_ms=50.0),
    Attack("50 large bodies without the last byte", _incomplete_bodies, 50, others_ms=100.0),
)


KIND_S = 4.0


def _kind(name: str) -> Callable[[int], Counter[str]]:
    """Run one of the benchmarks' hostile clients for some seconds."""

    def act(port: int) -> Counter[str]:
        with Process("benchmarks.load.neighbours", name, port) as process:
            time.sleep(KIND_S)
            ended = process.popen.poll()
        return Counter(["closed by us" if ended is None else f"the attacker ended with {ended}"])

    return act


EXTERNAL = (Attack(f"{name}, repeatedly", _kind(name), 100, rounds=1, others_ms=50.0) for name in KINDS)
ATTACKS: tuple[Attack, ...] = (*MALFORMED, *BODIES, *FRAMES, *FLOODS, *EXTERNAL)


class AttackResult(NamedTuple):
    """Repetitions of an attack and the replies; `failed` is an error of the attacker itself."""

    times: int
    replies: Mapping[str, int]
    failed: str | None = None


def raise_file_limit() -> None:
    """Raise the limit of open files to the maximum."""
    maximum = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


def run_attack(attack: Attack, port: int, length_s: float) -> AttackResult:
    """Repeat an attack for some time."""
    replies: Counter[str] = Counter()
    times, until = 0, time.monotonic() + length_s
    while times == 0 or (times != attack.rounds and time.monotonic() < until):
        try:
            replies += attack.act(port)
        except OSError as error:
            return AttackResult(times, replies, f"{type(error).__name__}: {error}")
        times += 1
    return AttackResult(times, replies)


def main() -> None:
    raise_file_limit()
    set_priority(real_time=False)  # measurements have priority

    def answer(line: str) -> Mapping[str, Any]:
        number, length_s = line.split()
        return run_attack(ATTACKS[int(number)], int(sys.argv[1]), float(length_s))._asdict()

    answering(answer)


if __name__ == "__main__":
    main()
