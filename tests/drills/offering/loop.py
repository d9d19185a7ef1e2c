"""An open loop: what is due is done when it is due, whatever the server makes of it.

One thread, which sleeps only while nothing is near.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

__all__ = ["ALLOWANCE_MS", "Client", "OpenLoop", "Seen"]

ALLOWANCE_MS = 2.0
"""What way there, way back and this program may take beyond a deadline, for an answer to be in time."""

NEAR_S = 0.00005
"""Closer than this it does not sleep: that lasts about so much longer than it should."""

LONGEST_S = 0.0005
"""A longer sleep would be too late for what clients do by themselves."""

AT_ONCE = 16
"""How many are begun before what has come is read: a load that is late would take its own waiting for the server's."""

DRAIN_S = 0.3
"""How long what was asked for last is waited for."""


@dataclass
class Seen:
    """What came of one load; times in milliseconds.

    Attributes
    ----------
    sent : predictions asked for.  unsent : that were due and could not be sent.
    good : answers in time.  late : answers after it.  priors : base rates.  refused : told to ask again.
    odd : everything else.
    took_ms : of answers in time, from sending to having it.  steps : their complete steps, together.
    slip_ms : how late this program itself was with each.
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
        """Count an answer."""
        if took_ms <= deadline_ms + ALLOWANCE_MS:
            self.good += 1
            self.steps += steps
            self.took_ms.append(took_ms)
        else:
            self.late += 1


class Client(Protocol):
    """A way to ask for predictions."""

    def begin(self, seen: Seen) -> None:
        """Ask for one."""

    def tick(self, now: float) -> None:
        """Do what is due."""

    def sockets(self) -> Iterator[tuple[socket.socket, Callable[[], None]]]:
        """Hand over sockets that have been opened since, each with what reads it."""


class OpenLoop:
    """Asks by one client at given rates, and lets others do what they do by the clock."""

    def __init__(self, client: Client, *others: Client) -> None:
        self._client = client
        self._clients = (client, *others)
        self._poll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}

    def offer(self, rate: float, seconds: float, rng: np.random.Generator) -> Seen:
        """Ask for predictions at random times, `rate` a second on average, and count what comes of them."""
        seen, number = Seen(), 0
        begun = time.perf_counter() + 0.01
        due: list[float] = (begun + np.cumsum(rng.exponential(1.0 / rate, max(int(rate * seconds), 1)))).tolist()
        while (now := time.perf_counter()) < due[-1] + DRAIN_S:
            most = number + AT_ONCE
            while number < min(len(due), most) and due[number] <= now:
                seen.slip_ms.append((now - due[number]) * 1000.0)
                self._client.begin(seen)
                number += 1
                now = time.perf_counter()
            for each in self._clients:
                each.tick(now)
                self._watch(each)
            self._read(min(due[number] if number < len(due) else now + LONGEST_S, now + LONGEST_S))
        return seen

    def close(self) -> None:
        """Watch nothing more."""
        self._poll.close()

    def _watch(self, client: Client) -> None:
        for sock, read in client.sockets():
            self._readers[sock.fileno()] = read
            self._poll.register(sock, select.EPOLLIN)

    def _read(self, until: float) -> None:
        # Of the ways to wait, this one alone counts in microseconds.
        if select.select((self._poll,), (), (), max(until - time.perf_counter() - NEAR_S, 0.0))[0]:
            for descriptor, _ in self._poll.poll(0):
                self._readers[descriptor]()
