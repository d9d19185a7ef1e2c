"""A load generator that acts at given times: one thread that sleeps if nothing is near, spins otherwise, and reads.

It records its own lateness, so that a measurement shows how far to trust it. In a closed loop each answer starts the
next prediction, so that the server is never idle.
"""

from __future__ import annotations

import heapq
import itertools
import json
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TypeVar

from benchmarks.load.frames import HttpClient, WebSocketClient, text

Client = TypeVar("Client", HttpClient, WebSocketClient)

NEAR_S = 0.00015
"""Below this distance the load spins, since sleeps last about this much too long."""

MAX_WAIT_S = 0.01

CONNECTIONS = 16
"""Connections that the predictions of a load share."""

AT_ONCE = 16
"""Actions performed before replies are read: a late load would count its own delay as the server's."""


class Load:
    """Actions at given times, and sockets that are read as soon as they are readable, and closed with the load.

    Attributes
    ----------
    late_ms : lateness of each action.
    """

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._readers: dict[int, tuple[socket.socket, Callable[[], None]]] = {}
        self._poll = select.epoll()

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Schedule an action at a time of `time.perf_counter`."""
        heapq.heappush(self._due, (when, next(self._numbers), act))

    def watch(self, sock: socket.socket, read: Callable[[], None]) -> None:
        """Call `read` when the socket is readable."""
        sock.setblocking(False)
        self._readers[sock.fileno()] = sock, read
        self._poll.register(sock, select.EPOLLIN)

    def discard(self, sock: socket.socket) -> None:
        """Close a socket."""
        if self._readers.pop(sock.fileno(), None) is not None:
            self._poll.unregister(sock)
        sock.close()

    def close(self) -> None:
        """Close all sockets."""
        for sock, _ in tuple(self._readers.values()):
            self.discard(sock)
        self._poll.close()

    def run(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Run until all actions are past and `done`, or a timeout after that; return whether it was done."""
        end = time.perf_counter() + timeout_s
        while self._due or not done():
            now = time.perf_counter()
            if self._due:
                end = now + timeout_s
            elif now > end:
                return False
            self._turn(now)
        return True

    def run_for(self, seconds: float) -> None:
        """Run for some time, whatever is due later."""
        end = time.perf_counter() + seconds
        while (now := time.perf_counter()) < end:
            self._turn(now)

    def _turn(self, now: float) -> None:
        """Wait for the next action or for replies, read them, and act."""
        wait_s = min(max(self._due[0][0] - now - NEAR_S, 0.0), MAX_WAIT_S) if self._due else MAX_WAIT_S
        if select.select((self._poll,), (), (), wait_s)[0]:  # only `select` waits with a resolution of microseconds
            for number, _ in self._poll.poll(0):
                if number in self._readers:
                    self._readers[number][1]()
        for _ in range(AT_ONCE):
            if not self._due or (late_s := time.perf_counter() - self._due[0][0]) < 0:
                break
            self.late_ms.append(late_s * 1000.0)
            heapq.heappop(self._due)[2]()


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
