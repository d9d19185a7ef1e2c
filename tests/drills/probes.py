"""Health probes, each on a new connection."""

from __future__ import annotations

import itertools
import math
import time
from functools import partial

from benchmarks.load.engine import Load
from benchmarks.load.frames import HttpClient

INTERVAL_S = 0.1
PATHS = ("/livez", "/readyz")


class Probes:
    """Sends a probe every tenth of a second.

    Attributes
    ----------
    took_ms : latency of each probe; infinite if it was not answered with 200.
    """

    def __init__(self, load: Load, port: int) -> None:
        self.port = port
        self.took_ms: list[float] = []
        self._load = load
        self._paths = itertools.cycle(PATHS)
        self._open: dict[HttpClient, float] = {}
        self._probe()

    def worst_ms(self) -> float:
        """Return the maximum latency so far, open probes included, and reset all measurements."""
        now = time.perf_counter()
        open_ms = [(now - started) * 1000.0 for started in self._open.values()]
        worst = max([*self.took_ms, *open_ms], default=math.nan)
        self.took_ms.clear()
        for client in tuple(self._open):
            self._end(client)
        return worst

    def _probe(self) -> None:
        started = time.perf_counter()
        self._load.at(started + INTERVAL_S, self._probe)
        client = HttpClient(self.port)
        client.send(f"GET {next(self._paths)} HTTP/1.1\r\nHost: drill\r\nConnection: close\r\n\r\n".encode())
        self._open[client] = started
        self._load.watch(client.sock, partial(self._read, client))

    def _read(self, client: HttpClient) -> None:
        try:
            found = client.poll()
        except OSError:
            found = 0, b""
        if found is not None:
            took_ms = (time.perf_counter() - self._open[client]) * 1000.0
            self.took_ms.append(took_ms if found[0] == 200 else math.inf)
            self._end(client)

    def _end(self, client: HttpClient) -> None:
        del self._open[client]
        self._load.forget(client.sock)
        client.close()
