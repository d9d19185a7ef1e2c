"""A relay between clients and replicas: a balancer, and a network with latency, stalls and resets."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import uvloop

PROBE_S = 0.25
"""Interval and timeout of the readiness probes."""


class Relay:
    """Forwards each connection to one of several ports, round-robin, in a thread; a context manager.

    Ports that refuse connections or fail `/readyz` are skipped, and their connections are reset.

    Attributes
    ----------
    delay_s : latency, each way.
    stall_s, stalls_per_s : length and rate of stalls of single connections.
    resets_per_s : rate of resets of single connections.
    """

    def __init__(self, targets: Sequence[int], *, probe: bool = True, seed: int = 0) -> None:
        self.delay_s = 0.0
        self.stall_s = 0.0
        self.stalls_per_s = 0.0
        self.resets_per_s = 0.0
        self.pairs: set[_Pair] = set()
        self._targets = deque(targets)
        self._ready = set(targets)
        self._probe = probe
        self._rng = np.random.default_rng(seed)
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._over = asyncio.Event()

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await self._loop.create_server(lambda: _Pair(self), sock=self._listening)
        tasks = [self._loop.create_task(self._disturb())]
        if self._probe:
            tasks += [self._loop.create_task(self._watch(port)) for port in self._targets]
        await self._over.wait()
        server.close()
        for task in tasks:
            task.cancel()
        for pair in tuple(self.pairs):
            pair.cut()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def connect(self, make: Callable[[], asyncio.Protocol]) -> int:
        """Connect to the next available port, and return it.

        Raises
        ------
        ConnectionRefusedError
            No replica answers.
        """
        for _ in range(len(self._targets)):
            port = self._targets[0]
            self._targets.rotate(-1)
            if port in self._ready:
                try:
                    await self._loop.create_connection(make, "127.0.0.1", port)
                except OSError:
                    self._ready.discard(port)
                else:
                    return port
        raise ConnectionRefusedError("no replica answers")

    async def _watch(self, port: int) -> None:
        while True:
            try:
                async with asyncio.timeout(PROBE_S):
                    ready = await _is_ready(port)
            except (OSError, TimeoutError):
                ready = False
            (self._ready.add if ready else self._ready.discard)(port)
            if not ready:
                for pair in [pair for pair in self.pairs if pair.port == port]:
                    pair.reset()
            await asyncio.sleep(PROBE_S)

    async def _disturb(self) -> None:
        """Stall and reset random connections at the set rates."""
        step_s = 0.02
        while True:
            await asyncio.sleep(step_s)
            if not self.pairs:
                continue
            for rate, disturb in ((self.stalls_per_s, self._stall), (self.resets_per_s, _Pair.reset)):
                if rate and self._rng.random() < rate * step_s:
                    disturb(tuple(self.pairs)[int(self._rng.integers(len(self.pairs)))])

    def _stall(self, pair: _Pair) -> None:
        pair.stall(self.stall_s)


async def _is_ready(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")
        return b" 200 " in await reader.readline()
    finally:
        writer.transport.abort()


class _Pair(asyncio.Protocol):
    """A client's connection and the one to its replica.

    Attributes
    ----------
    port : of the replica, once connected.
    """

    def __init__(self, relay: Relay) -> None:
        self.port: int | None = None
        self._relay = relay
        self._up = _Direction()
        self._down = _Direction()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._relay.pairs.add(self)
        self._down.open(cast(asyncio.Transport, transport))
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        self._up.send(data, self._relay.delay_s)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._relay.pairs.discard(self)
        self.cut()

    def stall(self, length_s: float) -> None:
        for direction in (self._up, self._down):
            direction.stall(length_s)

    def cut(self) -> None:
        for direction in (self._up, self._down):
            direction.cut()

    def reset(self) -> None:
        for direction in (self._up, self._down):
            direction.reset()

    async def _connect(self) -> None:
        try:
            self.port = await self._relay.connect(lambda: _ReplicaConnection(self._relay, self._up, self._down))
        except OSError:
            self.cut()


class _ReplicaConnection(asyncio.Protocol):
    """The connection to a replica."""

    def __init__(self, relay: Relay, up: _Direction, down: _Direction) -> None:
        self._relay, self._up, self._down = relay, up, down

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._up.open(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._down.send(data, self._relay.delay_s)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._up.cut()
        self._down.end()


class _Direction:
    """Bytes in transit in one direction; their order is preserved."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._in_transit: deque[tuple[float, bytes]] = deque()
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = self._ended = False

    def open(self, transport: asyncio.Transport) -> None:
        """Set the receiving connection."""
        self._transport = transport
        sock: Any = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._closed:
            transport.abort()
        self._deliver()

    def send(self, data: bytes, delay_s: float) -> None:
        """Send bytes after a delay."""
        now = time.perf_counter()
        self._next_at = max(self._next_at, now + delay_s)
        self._in_transit.append((self._next_at, data))
        if self._timer is None:
            self._deliver()

    def stall(self, length_s: float) -> None:
        self._next_at = max(self._next_at, time.perf_counter() + length_s)

    def end(self) -> None:
        """Close after all bytes are delivered."""
        self._ended = True
        if self._timer is None:
            self._deliver()

    def cut(self) -> None:
        """Abort, and drop bytes in transit."""
        self._closed = True
        self._in_transit.clear()
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        if self._transport is not None:
            sock: Any = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.cut()

    def _deliver(self) -> None:
        self._timer = None
        if self._transport is None:
            return
        now = time.perf_counter()
        while self._in_transit and self._in_transit[0][0] <= now:
            self._transport.write(self._in_transit.popleft()[1])
        if self._in_transit:
            wait_s = self._in_transit[0][0] - now
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._deliver)
        elif self._ended:
            self._transport.close()
