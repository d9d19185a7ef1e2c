"""A load that acts at given times: one thread that sleeps while nothing is near, spins when something is, and reads.

How late it acts itself is recorded, so that a measure tells how far to trust it.
"""

from __future__ import annotations

import heapq
import itertools
import select
import socket
import time
from collections.abc import Callable

__all__ = ["Load"]

NEAR_S = 0.00015
"""Closer than this the load spins: a sleep lasts about so much longer than it should."""


class Load:
    """Actions at given times, and sockets that are read as soon as something comes.

    Attributes
    ----------
    late_ms : how late each action was begun.
    """

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._readers: dict[int, Callable[[], None]] = {}

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Act at a time of `time.perf_counter`."""
        heapq.heappush(self._due, (when, next(self._numbers), act))

    def watch(self, sock: socket.socket, read: Callable[[], None]) -> None:
        """Call `read` when something has come."""
        sock.setblocking(False)
        self._readers[sock.fileno()] = read

    def forget(self, sock: socket.socket) -> None:
        """Watch a socket no more; before it is closed."""
        self._readers.pop(sock.fileno(), None)

    def run(self, done: Callable[[], bool], give_up_s: float) -> bool:
        """Go on until everything due is past and `done`, or for so long after that; whether it was done."""
        last = time.perf_counter() + give_up_s
        while self._due or not done():
            now = time.perf_counter()
            wait_s = 0.01
            if self._due:
                last = now + give_up_s
                wait_s = max(self._due[0][0] - now - NEAR_S, 0.0)
            elif now > last:
                return False
            # Of the ways to wait, this one alone counts in microseconds.
            for number in select.select(self._readers, (), (), wait_s)[0]:
                if number in self._readers:
                    self._readers[number]()
            while self._due and (late := time.perf_counter() - self._due[0][0]) >= 0:
                self.late_ms.append(late * 1000.0)
                heapq.heappop(self._due)[2]()
        return True
