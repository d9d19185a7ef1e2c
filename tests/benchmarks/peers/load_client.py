"""A load client on its own core: the maximum rate of answers, and latencies at a fixed rate."""

from __future__ import annotations

import itertools
import json
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from benchmarks.load.frames import HttpClient, WebSocketClient, text
from benchmarks.peers.measurements import FailedError

CONNECTIONS = 16
NEAR_S = 0.0003

Client = TypeVar("Client", HttpClient, WebSocketClient)


@contextmanager
def _closing(clients: Sequence[HttpClient] | Sequence[WebSocketClient]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FailedError(f"the connection ended: {error}") from error
    finally:
        for client in clients:
            client.close()


def _saturate(
    clients: Sequence[Client], send: Callable[[Client], None], answers: Callable[[Client], int], seconds: float
) -> tuple[int, float]:
    """Send on every connection, and again after each answer; return the answers and the seconds."""
    with _closing(clients):
        poll, by_number = select.poll(), {client.sock.fileno(): client for client in clients}
        for number, client in by_number.items():
            poll.register(number, select.POLLIN)
            send(client)
        count, start = 0, time.perf_counter()
        while (now := time.perf_counter()) < start + seconds:
            for number, _ in poll.poll(1000):
                for _ in range(answers(by_number[number])):
                    count += 1
                    send(by_number[number])
        return count, now - start


def saturate(port: int, request: bytes, check: Callable[[bytes], None], seconds: float) -> tuple[int, float]:
    """Send requests on 16 connections, the next one after each answer; return the answers and the seconds.

    Raises
    ------
    FailedError
        An answer was not 200, or wrong.
    """
    clients = [HttpClient(port) for _ in range(CONNECTIONS)]
    return _saturate(clients, lambda client: client.send(request), lambda client: _answered(client, check), seconds)


def saturate_websocket(
    port: int, row: Mapping[str, list[float]], check: Callable[[bytes], None], seconds: float
) -> tuple[int, float]:
    """As `saturate`, by our WebSocket: a beginning and one message per group for each prediction."""
    groups = [json.dumps({"group": name, "values": values})[1:-1] for name, values in row.items()]
    names = itertools.count()

    def send(client: WebSocketClient) -> None:
        name = next(names)
        messages = [f'{{"type": "begin", "id": {name}}}']
        messages += [f'{{"type": "group", "id": {name}, {group}}}' for group in groups]
        client.sock.sendall(b"".join(text(message.encode()) for message in messages))

    def answers(client: WebSocketClient) -> int:
        received = list(client.frames())
        for content in received:
            check(content)
        return len(received)

    return _saturate([WebSocketClient(port, "/stream") for _ in range(CONNECTIONS)], send, answers, seconds)


def measure_latency(
    port: int, request: bytes, check: Callable[[bytes], None], rate: float, seconds: float
) -> list[float]:
    """Send `rate` requests per second in an open loop; return milliseconds from the due time of each to its answer."""
    clients = [HttpClient(port) for _ in range(CONNECTIONS)]
    idle, busy = list(clients), deque[tuple[HttpClient, float]]()
    took: list[float] = []
    start = time.perf_counter() + 0.05
    due = deque(start + number / rate for number in range(int(rate * seconds)))
    with _closing(clients):
        while due or busy:
            now = time.perf_counter()
            if now > start + 3 * seconds + 5:
                raise FailedError(f"cannot answer {rate:g} requests a second")
            if due and now >= due[0] and idle:
                idle[-1].send(request)
                busy.append((idle.pop(), due.popleft()))
            for _ in range(len(busy)):
                client, due_at = busy.popleft()
                if _answered(client, check):
                    took.append((time.perf_counter() - due_at) * 1000.0)
                    idle.append(client)
                else:
                    busy.append((client, due_at))
            if not busy and due:
                time.sleep(max(due[0] - time.perf_counter() - NEAR_S, 0.0))
    return took


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def _answered(client: HttpClient, check: Callable[[bytes], None]) -> int:
    """Return 1 if a response has arrived and is right, 0 if none has."""
    found = client.poll()
    if found is None:
        return 0
    status, content = found
    if status != 200:
        raise FailedError(f"status {status}: {content[:200]!r}")
    check(content)
    return 1
