"""Clients in a closed loop: each answer starts the next prediction, so that the server is never idle."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TypeVar

from benchmarks.load.engine import CONNECTIONS, Load
from benchmarks.load.frames import HttpClient, WebSocketClient, text

Client = TypeVar("Client", HttpClient, WebSocketClient)


def saturate(
    clients: Sequence[Client],
    send: Callable[[Client], object],
    answers: Callable[[Client], int],
    seconds: float,
    window: int = 1,
) -> tuple[int, float]:
    """Keep predictions open on every connection, then close all; return the answers and the seconds.

    Parameters
    ----------
    send : requests a prediction.  answers : reads, and returns how many answers have arrived.
    window : open predictions per connection.
    """
    load, counts = Load(), list[int]()

    def read(client: Client) -> None:
        counts.append(answers(client))
        for _ in range(counts[-1]):
            send(client)

    with closing(load):
        for client in clients:
            load.watch(client.sock, partial(read, client))
            for _ in range(window):
                send(client)
        start = time.perf_counter()
        load.run_for(seconds)
        return sum(counts), time.perf_counter() - start


def saturate_websocket(
    port: int,
    row: Mapping[str, list[float]],
    seconds: float,
    window: int = 1,
    check: Callable[[bytes], object] = lambda _: None,
) -> tuple[int, float]:
    """Saturate our WebSocket: for each prediction its beginning and one message per group of a row, sent at once."""
    groups = [json.dumps({"group": name, "values": values})[1:] for name, values in row.items()]
    ids = itertools.count()

    def send(client: WebSocketClient) -> None:
        name = next(ids)
        messages = [f'{{"type": "begin", "id": {name}}}', *(f'{{"type": "group", "id": {name}, {g}' for g in groups)]
        client.sock.sendall(b"".join(text(message.encode()) for message in messages))

    def answers(client: WebSocketClient) -> int:
        received = [check(content) for content in client.frames()]
        return len(received)

    return saturate([WebSocketClient(port, "/stream") for _ in range(CONNECTIONS)], send, answers, seconds, window)
