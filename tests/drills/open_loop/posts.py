"""POST /predict, each on a connection without other requests."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.load.frames import HttpClient
from drills.open_loop.loop import Counts

MAX_CONNECTIONS = 900
"""Maximum number of connections: a server that lets more requests queue has failed anyway."""


class Posts:
    """Requests predictions by POST.

    Parameters
    ----------
    request : the bytes of every request.
    """

    def __init__(self, port: int, request: bytes, deadline_ms: float) -> None:
        self.port, self.request, self.deadline_ms = port, request, deadline_ms
        self.opened = 0
        self._idle: list[HttpClient] = []
        self._pending: dict[HttpClient, tuple[float, Counts]] = {}
        self._unsent: dict[HttpClient, bytes] = {}
        self._new: list[HttpClient] = []

    def begin(self, counts: Counts) -> None:
        counts.sent += 1
        if not self._idle and self.opened >= MAX_CONNECTIONS:
            counts.unsent += 1
            return
        client = self._idle.pop() if self._idle else self._connect()
        self._pending[client] = time.perf_counter(), counts
        self._send(client, self.request)

    def tick(self, _now: float) -> None:
        """Send the bytes that did not fit into the buffers before."""
        for client in tuple(self._unsent):
            self._send(client, self._unsent.pop(client))

    def sockets(self) -> Iterator[tuple[socket.socket, Callable[[], None]]]:
        while self._new:
            client = self._new.pop()
            yield client.sock, partial(self._read, client)

    def close(self) -> None:
        for client in {*self._idle, *self._pending}:
            client.close()

    def _connect(self) -> HttpClient:
        self.opened += 1
        client = HttpClient(self.port)
        self._new.append(client)
        return client

    def _send(self, client: HttpClient, content: bytes) -> None:
        try:
            sent = client.sock.send(content)
        except BlockingIOError:
            sent = 0
        except OSError:
            return
        if sent < len(content):
            self._unsent[client] = content[sent:]

    def _read(self, client: HttpClient) -> None:
        try:
            found = client.poll()
        except OSError:
            self.opened -= 1
            self._unsent.pop(client, None)
            _, counts = self._pending.pop(client, (0.0, Counts()))
            counts.odd += 1
            client.close()
            return
        if found is None or client not in self._pending:
            return
        (started, counts), (status, content) = self._pending.pop(client), found
        took_ms = (time.perf_counter() - started) * 1000.0
        if status == 503:
            counts.refused += 1
        elif status != 200:
            counts.odd += 1
        elif b'"reason":"overload"' in content:
            counts.priors += 1
        else:
            counts.answered(took_ms, self.deadline_ms, 0)
        if client not in self._unsent:  # the whole request was sent, so the connection is free
            self._idle.append(client)
