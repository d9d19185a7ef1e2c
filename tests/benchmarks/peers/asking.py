"""A client on a core of its own: as many answers as a server can give, and what they take at a rate that is fixed."""

from __future__ import annotations

import itertools
import json
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from benchmarks.load.frames import HttpClient, WebSocketClient, text
from benchmarks.peers.turns import FailedError

__all__ = ["on_core", "percentile", "saturated", "saturated_by_websocket", "timed"]

CONNECTIONS = 16
NEAR_S = 0.0003


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Keep this process to one core for the time of the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def saturated(port: int, request: bytes, check: Callable[[bytes], None], seconds: float) -> tuple[int, float]:
    """Ask on 16 connections, each anew as soon as it is answered; how many answers in how many seconds.

    Raises
    ------
    FailedError
        An answer was not 200, or not what it should be.
    """
    clients = [HttpClient(port) for _ in range(CONNECTIONS)]
    poll = select.poll()
    by_number = {client.sock.fileno(): client for client in clients}
    for client in clients:
        poll.register(client.sock, select.POLLIN)
        client.send(request)
    count, start = 0, time.perf_counter()
    end = start + seconds
    try:
        while (now := time.perf_counter()) < end:
            for number, _ in poll.poll(1000):
                found = by_number[number].poll()
                if found is not None:
                    _right(found, check)
                    count += 1
                    by_number[number].send(request)
    except OSError as error:
        raise FailedError(f"the connection ended: {error}") from error
    finally:
        for client in clients:
            client.close()
    return count, now - start


def timed(port: int, request: bytes, check: Callable[[bytes], None], rate: float, seconds: float) -> list[float]:
    """Ask `rate` times a second, whether or not answers have come; milliseconds from when each was due until then."""
    idle = [HttpClient(port) for _ in range(CONNECTIONS)]
    busy: deque[tuple[HttpClient, float]] = deque()
    took: list[float] = []
    start = time.perf_counter() + 0.05
    due = iter(start + number / rate for number in range(int(rate * seconds)))
    following = next(due, None)
    give_up = start + 3 * seconds + 5
    try:
        while following is not None or busy:
            now = time.perf_counter()
            if now > give_up:
                raise FailedError(f"cannot answer {rate:g} requests a second")
            if following is not None and now >= following and idle:
                client = idle.pop()
                client.send(request)
                busy.append((client, following))
                following = next(due, None)
            for _ in range(len(busy)):
                client, asked = busy.popleft()
                found = client.poll()
                if found is None:
                    busy.append((client, asked))
                    continue
                took.append((time.perf_counter() - asked) * 1000.0)
                _right(found, check)
                idle.append(client)
            if not busy and following is not None:
                time.sleep(max(following - time.perf_counter() - NEAR_S, 0.0))
    except OSError as error:
        raise FailedError(f"the connection ended: {error}") from error
    finally:
        for client in (*idle, *(client for client, _ in busy)):
            client.close()
    return took


def saturated_by_websocket(
    port: int, row: Mapping[str, list[float]], check: Callable[[bytes], None], seconds: float
) -> tuple[int, float]:
    """As `saturated`, by our WebSocket: a beginning and a message a group for each prediction."""
    clients = [WebSocketClient(port, "/stream") for _ in range(CONNECTIONS)]
    groups = [json.dumps({"group": name, "values": values})[1:-1] for name, values in row.items()]
    names = itertools.count()

    def ask(client: WebSocketClient) -> None:
        name = next(names)
        frames = [text(f'{{"type": "begin", "id": {name}}}'.encode())]
        frames += [text(f'{{"type": "group", "id": {name}, {group}}}'.encode()) for group in groups]
        client.sock.sendall(b"".join(frames))

    poll = select.poll()
    by_number = {client.sock.fileno(): client for client in clients}
    for client in clients:
        poll.register(client.sock, select.POLLIN)
        ask(client)
    count, start = 0, time.perf_counter()
    end = start + seconds
    try:
        while (now := time.perf_counter()) < end:
            for number, _ in poll.poll(1000):
                for content in by_number[number].frames():
                    check(content)
                    count += 1
                    ask(by_number[number])
    except OSError as error:
        raise FailedError(f"the connection ended: {error}") from error
    finally:
        for client in clients:
            client.close()
    return count, now - start


def percentile(values: list[float], share: float) -> float:
    """The value that so large a share of the others does not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def _right(found: tuple[int, bytes], check: Callable[[bytes], None]) -> None:
    status, content = found
    if status != 200:
        raise FailedError(f"status {status}: {content[:200]!r}")
    check(content)
