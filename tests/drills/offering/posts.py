"""POST /predict, each on a connection that waits for nothing else."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.load.frames import HttpClient
from drills.offering.loop import Seen

__all__ = ["Posts"]

MOST = 900
"""Connections there may be: a server that lets requests pile up has lost anyway."""


class Posts:
    """Asks by POST.

    Parameters
    ----------
    request : the same bytes for every prediction.
    """

    def __init__(self, port: int, request: bytes, deadline_ms: float) -> None:
        self.port, self.request, self.deadline_ms = port, request, deadline_ms
        self.opened = 0
        self._idle: list[HttpClient] = []
        self._asked: dict[HttpClient, tuple[float, Seen]] = {}
        self._left: dict[HttpClient, bytes] = {}
        self._new: list[HttpClient] = []

    def begin(self, seen: Seen) -> None:
        """Send a request."""
        seen.sent += 1
        if not self._idle and self.opened >= MOST:
            seen.unsent += 1
            return
        client = self._idle.pop() if self._idle else self._connected()
        self._asked[client] = time.perf_counter(), seen
        self._send(client, self.request)

    def tick(self, _now: float) -> None:
        """Send what did not fit into the buffers before."""
        for client in tuple(self._left):
            self._send(client, self._left.pop(client))

    def sockets(self) -> Iterator[tuple[socket.socket, Callable[[], None]]]:
        """Connections that are new."""
        while self._new:
            client = self._new.pop()
            yield client.sock, partial(self._read, client)

    def close(self) -> None:
        """Close every connection."""
        for client in {*self._idle, *self._asked}:
            client.close()

    def _connected(self) -> HttpClient:
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
            self._left[client] = content[sent:]

    def _read(self, client: HttpClient) -> None:
        try:
            found = client.poll()
        except OSError:
            self.opened -= 1
            self._left.pop(client, None)
            _, seen = self._asked.pop(client, (0.0, Seen()))
            seen.odd += 1
            client.close()
            return
        if found is None or client not in self._asked:
            return
        (begun, seen), (status, content) = self._asked.pop(client), found
        took_ms = (time.perf_counter() - begun) * 1000.0
        if status == 503:
            seen.refused += 1
        elif status != 200:
            seen.odd += 1
        elif b'"reason":"overload"' in content:
            seen.priors += 1
        else:
            seen.answered(took_ms, self.deadline_ms, 0)
        if client not in self._left:  # or its request is not even sent: no other may follow
            self._idle.append(client)
