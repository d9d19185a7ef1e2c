"""Capacity of a server: predictions per second in a closed loop, and processor time per prediction."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import dataclass
from functools import partial

import numpy as np

from anytime.model.model import Model
from benchmarks.load.child import Child
from benchmarks.load.engine import Load
from benchmarks.load.frames import WebSocketClient, text
from benchmarks.load.models import values_of

CONNECTIONS = 16
WINDOW = 8
"""Open predictions per connection."""

WARM_S = 1.0


@dataclass(frozen=True)
class Capacity:
    """Predictions per second, and the share of the server's core that they use, 0 to 1."""

    rate: float
    busy: float

    @property
    def cost_us(self) -> float:
        """Processor time of the server per prediction."""
        return self.busy / self.rate * 1e6


class _ClosedLoop:
    """Clients in a closed loop: each answer starts the next prediction: all groups and the end at once, in text."""

    def __init__(self, model: Model, load: Load, port: int) -> None:
        rng = np.random.default_rng(5)
        self._groups = [json.dumps({"group": name, "values": values_of(model, name, rng)})[1:] for name in model.places]
        self._ids = itertools.count()
        self.answered = 0
        self._clients = [WebSocketClient(port, "/stream") for _ in range(CONNECTIONS)]
        for client in self._clients:
            load.watch(client.sock, partial(self._read, load, client))

    def begin(self) -> None:
        """Fill the windows."""
        for client in self._clients:
            client.sock.send(b"".join(self._messages() for _ in range(WINDOW)))

    def close(self, load: Load) -> None:
        for client in self._clients:
            load.forget(client.sock)
            client.close()

    def _messages(self) -> bytes:
        """Return all messages of a prediction."""
        name = next(self._ids)
        groups = (f'{{"type": "group", "id": {name}, {group}'.encode() for group in self._groups)
        begin, end = (f'{{"type": "{kind}", "id": {name}}}'.encode() for kind in ("begin", "end"))
        return b"".join(map(text, (begin, *groups, end)))

    def _read(self, _load: Load, client: WebSocketClient) -> None:
        received = sum(1 for _ in client.frames())
        self.answered += received
        if received:
            client.sock.send(b"".join(self._messages() for _ in range(received)))


def saturate(model: Model, child: Child, length_s: float) -> Capacity:
    """Measure the answer rate when clients never wait; the windows bound the load."""
    load = Load()
    closed = _ClosedLoop(model, load, child.port)
    closed.begin()
    _run(load, WARM_S)
    answered, cpu, started = closed.answered, child.cpu_us, time.perf_counter()
    _run(load, length_s)
    took = time.perf_counter() - started
    found = Capacity((closed.answered - answered) / took, (child.cpu_us - cpu) / took / 1e6)
    closed.close(load)
    return found


def _run(load: Load, length_s: float) -> None:
    over = time.perf_counter() + length_s
    load.run(lambda: time.perf_counter() >= over, length_s + 1.0)
