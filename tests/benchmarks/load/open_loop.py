"""Predictions by POST that start at their due times, whatever the server does, and the results of an open loop."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from benchmarks.load.engine import Load
from benchmarks.load.frames import HttpClient

ALLOWANCE_MS = 2.0
"""Time for both ways and this program beyond a deadline, for an answer to be in time."""

MAX_CONNECTIONS = 900
"""Maximum number of connections: a server that lets more requests queue has failed anyway."""

RETRY_S = 0.0005
"""Time after which bytes that did not fit into the buffers are sent."""

_PREFIX = re.compile(rb'"prefix": ?(\d+)')


@dataclass
class Counts:
    """Results of one load; times in milliseconds.

    Attributes
    ----------
    sent : predictions requested.  unsent : predictions that were due and not sent.
    good : answers in time.  late : answers after it.  priors : base rates.  refused : shed.
    odd : everything else.
    took_ms : latency of answers in time.  steps : sum of their complete steps.
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

    def answered(self, took_ms: float, deadline_ms: float, steps: int) -> None:
        if took_ms <= deadline_ms + ALLOWANCE_MS:
            self.good += 1
            self.steps += steps
            self.took_ms.append(took_ms)
        else:
            self.late += 1


class Posts:
    """Requests predictions by POST, each on a connection without other requests.

    Parameters
    ----------
    request : returns the bytes of the next request.
    check : is called with the body of each answer.
    """

    def __init__(
        self,
        load: Load,
        port: int,
        request: Callable[[], bytes],
        deadline_ms: float,
        check: Callable[[bytes], object] = lambda _: None,
    ) -> None:
        self.port, self.request, self.deadline_ms, self.check = port, request, deadline_ms, check
        self._load = load
        self._clients: set[HttpClient] = set()
        self._idle: list[HttpClient] = []
        self._pending: dict[HttpClient, tuple[float, Counts]] = {}
        self._unsent: set[HttpClient] = set()

    def begin(self, counts: Counts) -> None:
        """Request a prediction."""
        counts.sent += 1
        if not self._idle and len(self._clients) >= MAX_CONNECTIONS:
            counts.unsent += 1
            return
        client = self._idle.pop() if self._idle else self._connect()
        self._pending[client] = time.perf_counter(), counts
        self._send(client, self.request())

    def close(self) -> None:
        for client in tuple(self._clients):
            self._discard(client)

    def _connect(self) -> HttpClient:
        client = HttpClient(self.port)
        self._clients.add(client)
        self._load.watch(client.sock, partial(self._read, client))
        return client

    def _discard(self, client: HttpClient) -> None:
        self._clients.discard(client)
        self._load.forget(client.sock)
        client.close()

    def _send(self, client: HttpClient, content: bytes) -> None:
        try:
            sent = client.sock.send(content)
        except BlockingIOError:
            sent = 0
        except OSError:  # the reader notices
            return
        self._unsent.discard(client)
        if sent < len(content):
            self._unsent.add(client)
            self._load.at(time.perf_counter() + RETRY_S, partial(self._send, client, content[sent:]))

    def _read(self, client: HttpClient) -> None:
        try:
            found = client.poll()
        except OSError:
            if client in self._pending:
                self._pending.pop(client)[1].odd += 1
            self._idle = [each for each in self._idle if each is not client]
            self._discard(client)
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
            self.check(content)
            steps = _PREFIX.search(content)
            counts.answered(took_ms, self.deadline_ms, int(steps[1]) if steps else 0)
        if client not in self._unsent:  # the whole request was sent, so the connection is free
            self._idle.append(client)
