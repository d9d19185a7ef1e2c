"""A load client on its own core: the maximum rate of answers, and latencies at a fixed rate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

from benchmarks.load.closed_loop import CONNECTIONS, saturate
from benchmarks.load.engine import Load
from benchmarks.load.frames import HttpClient
from benchmarks.load.open_loop import Counts, Posts
from benchmarks.peers.measurements import FailedError


def saturate_posts(port: int, request: bytes, check: Callable[[bytes], object], seconds: float) -> tuple[int, float]:
    """Send requests on 16 connections, the next one after each answer; return the answers and the seconds.

    Raises
    ------
    FailedError
        An answer was not 200, or wrong.
    """

    def answers(client: HttpClient) -> int:
        found = client.poll()
        if found is not None:
            status, content = found
            if status != 200:
                raise FailedError(f"status {status}: {content[:200]!r}")
            check(content)
        return found is not None

    clients = [HttpClient(port) for _ in range(CONNECTIONS)]
    return saturate(clients, lambda client: client.send(request), answers, seconds)


def measure_latency(
    port: int, request: bytes, check: Callable[[bytes], object], rate: float, seconds: float
) -> list[float]:
    """Send `rate` requests per second in an open loop; return milliseconds from each to its answer."""
    load, counts = Load(), Counts()
    start = time.perf_counter() + 0.05
    with closing(Posts(load, port, lambda: request, math.inf, check)) as posts:
        for number in range(int(rate * seconds)):
            load.at(start + number / rate, partial(posts.begin, counts))
        load.run(lambda: counts.good == counts.sent, 5.0)
    if counts.good < counts.sent:
        raise FailedError(f"cannot answer {rate:g} requests a second: {counts.good} of {counts.sent} were answered")
    return counts.took_ms
