"""A load client on its own core: the maximum rate of answers, and latencies at a fixed rate."""

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
from benchmarks.peers.measurements import FailedError

__all__ = ["measure_latency", "on_core", "percentile", "saturate", "saturate_websocket"]

CONNECTIONS = 16
NEAR_S = 0.0003


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pin this process to one core for the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def saturate(port: int, request: bytes, check: Callable[[bytes], None], seconds: float) -> tuple[int, float]:
    """Send requests on 16 connections, the next one after each answer; return the answers and the seconds.

    Raises
    ------
    FailedError
        An answer was not 200, or wrong.
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
                    _check_response(found, check)
                    count += 1
                    by_number[number].send(request)
    except OSError as error:
        raise FailedError(f"the connection ended: {error}") from error
    finally:
        for client in clients:
            client.close()
    return count, now - start


def measure_latency(
    port: int, request: bytes, check: Callable[[bytes], None], rate: float, seconds: float
) -> list[float]:
    """Send `rate` requests per second in an open loop; return milliseconds from the due time of each to its answer."""
    idle = [HttpClient(port) for _ in range(CONNECTIONS)]
    busy: deque[tuple[HttpClient, float]] = deque()
    took: list[float] = []
    start = time.perf_counter() + 0.05
    due_times = iter(start + number / rate for number in range(int(rate * seconds)))
    next_due = next(due_times, None)
    deadline = start + 3 * seconds + 5
    try:
        while next_due is not None or busy:
            now = time.perf_counter()
            if now > deadline:
                raise FailedError(f"cannot answer {rate:g} requests a second")
            if next_due is not None and now >= next_due and idle:
                client = idle.pop()
                client.send(request)
                busy.append((client, next_due))
                next_due = next(due_times, None)
            for _ in range(len(busy)):
                client, due_at = busy.popleft()
                found = client.poll()
                if found is None:
                    busy.append((client, due_at))
                    continue
                took.append((time.perf_counter() - due_at) * 1000.0)
                _check_response(found, check)
                idle.append(client)
            if not busy and next_due is not None:
                time.sleep(max(next_due - time.perf_counter() - NEAR_S, 0.0))
    except OSError as error:
        raise FailedError(f"the connection ended: {error}") from error
    finally:
        for client in (*idle, *(client for client, _ in busy)):
            client.close()
    return took


def saturate_websocket(
    port: int, row: Mapping[str, list[float]], check: Callable[[bytes], None], seconds: float
) -> tuple[int, float]:
    """As `saturate`, by our WebSocket: a beginning and one message per group for each prediction."""
    clients = [WebSocketClient(port, "/stream") for _ in range(CONNECTIONS)]
    groups = [json.dumps({"group": name, "values": values})[1:-1] for name, values in row.items()]
    names = itertools.count()

    def send(client: WebSocketClient) -> None:
        name = next(names)
        frames = [text(f'{{"type": "begin", "id": {name}}}'.encode())]
        frames += [text(f'{{"type": "group", "id": {name}, {group}}}'.encode()) for group in groups]
        client.sock.sendall(b"".join(frames))

    poll = select.poll()
    by_number = {client.sock.fileno(): client for client in clients}
    for client in clients:
        poll.register(client.sock, select.POLLIN)
        send(client)
    count, start = 0, time.perf_counter()
    end = start + seconds
    try:
        while (now := time.perf_counter()) < end:
            for number, _ in poll.poll(1000):
                for content in by_number[number].frames():
                    check(content)
                    count += 1
                    send(by_number[number])
    except OSError as error:
        raise FailedError(f"the connection ended: {error}") from error
    finally:
        for client in clients:
            client.close()
    return count, now - start


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def _check_response(found: tuple[int, bytes], check: Callable[[bytes], None]) -> None:
    status, content = found
    if status != 200:
        raise FailedError(f"status {status}: {content[:200]!r}")
    check(content)
