"""Questions after the server's health, each on a connection of its own, as those who keep it running ask."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.load.frames import HttpClient
from drills.offering.loop import Seen

__all__ = ["Probes"]

EVERY_S = 0.1
PATHS = ("/livez", "/readyz")


class Probes:
    """Asks every tenth of a second.

    Attributes
    ----------
    took_ms : how long each took that was answered well.  failed : how many were not.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.took_ms: list[float] = []
        self.failed = 0
        self._paths = itertools.cycle(PATHS)
        self._next = 0.0
        self._open: dict[HttpClient, float] = {}
        self._new: list[HttpClient] = []

    def begin(self, seen: Seen) -> None:
        """Nothing is asked for but by the clock."""

    def tick(self, now: float) -> None:
        """Ask, when it is time."""
        if now >= self._next:
            self._next = now + EVERY_S
            begun = time.perf_counter()
            client = HttpClient(self.port)
            client.send(f"GET {next(self._paths)} HTTP/1.1\r\nHost: drill\r\nConnection: close\r\n\r\n".encode())
            self._open[client] = begun
            self._new.append(client)

    def sockets(self) -> Iterator[tuple[socket.socket, Callable[[], None]]]:
        """Connections that are new."""
        while self._new:
            client = self._new.pop()
            yield client.sock, partial(self._read, client)

    def worst_ms(self) -> float:
        """The longest that one took, or has taken so far; forgotten then, as are those that failed."""
        now = time.perf_counter()
        worst = max([*self.took_ms, *((now - begun) * 1000.0 for begun in self._open.values())], default=float("nan"))
        if self.failed:
            worst = float("inf")
        self.took_ms.clear()
        self.failed = 0
        for client in self._open:
            client.close()
        self._open.clear()
        return worst

    def _read(self, client: HttpClient) -> None:
        try:
            found = client.poll()
        except OSError:
            found = 0, b""
        if found is None or client not in self._open:
            return
        took_ms = (time.perf_counter() - self._open.pop(client)) * 1000.0
        if found[0] == 200:
            self.took_ms.append(took_ms)
        else:
            self.failed += 1
        client.close()
