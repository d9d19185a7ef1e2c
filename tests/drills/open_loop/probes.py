"""Health probes, each on a new connection."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.load.frames import HttpClient
from drills.open_loop.loop import Counts

INTERVAL_S = 0.1
PATHS = ("/livez", "/readyz")


class Probes:
    """Sends a probe every tenth of a second.

    Attributes
    ----------
    took_ms : latency of each probe answered with 200.  failed : number of the others.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.took_ms: list[float] = []
        self.failed = 0
        self._paths = itertools.cycle(PATHS)
        self._next = 0.0
        self._open: dict[HttpClient, float] = {}
        self._new: list[HttpClient] = []

    def begin(self, counts: Counts) -> None:
        """Do nothing: probes follow the clock."""

    def tick(self, now: float) -> None:
        """Send a probe if it is due."""
        if now >= self._next:
            self._next = now + INTERVAL_S
            started = time.perf_counter()
            client = HttpClient(self.port)
            client.send(f"GET {next(self._paths)} HTTP/1.1\r\nHost: drill\r\nConnection: close\r\n\r\n".encode())
            self._open[client] = started
            self._new.append(client)

    def sockets(self) -> Iterator[tuple[socket.socket, Callable[[], None]]]:
        while self._new:
            client = self._new.pop()
            yield client.sock, partial(self._read, client)

    def worst_ms(self) -> float:
        """Return the maximum latency so far, open probes included, and reset all measurements."""
        now = time.perf_counter()
        worst = max(
            [*self.took_ms, *((now - started) * 1000.0 for started in self._open.values())], default=float("nan")
        )
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
