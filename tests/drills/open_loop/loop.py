"""An open loop: actions start at their due times, whatever the server does, in one thread."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

ALLOWANCE_MS = 2.0
"""Time for both ways and this program beyond a deadline, for an answer to be in time."""

NEAR_S = 0.00005
"""Below this distance it does not sleep, since sleeps last about this much too long."""

MAX_SLEEP_S = 0.0005
"""Maximum sleep, since clients have actions of their own."""

AT_ONCE = 16
"""Predictions started before replies are read: a late load would count its own delay as the server's."""

DRAIN_S = 0.3
"""Time to wait for the last answers."""


@dataclass
class Counts:
    """Results of one load; times in milliseconds.

    Attributes
    ----------
    sent : predictions requested.  unsent : predictions that were due and not sent.
    good : answers in time.  late : answers after it.  priors : base rates.  refused : shed.
    odd : everything else.
    took_ms : latency of answers in time.  steps : sum of their complete steps.
    slip_ms : lateness of this program at each request.
    """

    sent: int = 0
    unsent: int = 0
    good: int = 0
    late: int = 0
    priors: int = 0
    refused: int = 0
    odd: int = 0
    steps: int = 0
    took_ms: list[float] = field(default_factory=list)
    slip_ms: list[float] = field(default_factory=list)

    def answered(self, took_ms: float, deadline_ms: float, steps: int) -> None:
        if took_ms <= deadline_ms + ALLOWANCE_MS:
            self.good += 1
            self.steps += steps
            self.took_ms.append(took_ms)
        else:
            self.late += 1


class Client(Protocol):
    """A kind of client."""

    def begin(self, counts: Counts) -> None:
        """Request a prediction."""

    def tick(self, now: float) -> None:
        """Perform the actions that are due."""

    def sockets(self) -> Iterator[tuple[socket.socket, Callable[[], None]]]:
        """Yield new sockets, each with its read callback."""


class OpenLoop:
    """Requests predictions from one client at given rates, and lets other clients act by the clock."""

    def __init__(self, client: Client, *others: Client) -> None:
        self._client = client
        self._clients = (client, *others)
        self._poll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}

    def offer(self, rate: float, seconds: float, rng: np.random.Generator) -> Counts:
        """Request predictions at random times, `rate` per second on average, and count the results."""
        counts, number = Counts(), 0
        started = time.perf_counter() + 0.01
        due: list[float] = (started + np.cumsum(rng.exponential(1.0 / rate, max(int(rate * seconds), 1)))).tolist()
        while (now := time.perf_counter()) < due[-1] + DRAIN_S:
            limit = number + AT_ONCE
            while number < min(len(due), limit) and due[number] <= now:
                counts.slip_ms.append((now - due[number]) * 1000.0)
                self._client.begin(counts)
                number += 1
                now = time.perf_counter()
            for each in self._clients:
                each.tick(now)
                self._watch(each)
            self._read(min(due[number] if number < len(due) else now + MAX_SLEEP_S, now + MAX_SLEEP_S))
        return counts

    def close(self) -> None:
        self._poll.close()

    def _watch(self, client: Client) -> None:
        for sock, read in client.sockets():
            self._readers[sock.fileno()] = read
            self._poll.register(sock, select.EPOLLIN)

    def _read(self, until: float) -> None:
        # Only `select` waits with a resolution of microseconds.
        if select.select((self._poll,), (), (), max(until - time.perf_counter() - NEAR_S, 0.0))[0]:
            for descriptor, _ in self._poll.poll(0):
                self._readers[descriptor]()
