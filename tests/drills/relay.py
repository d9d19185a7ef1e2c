"""A way between clients and replicas: a balancer, and a network that is slow, stands still and breaks."""

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

__all__ = ["Relay"]

PROBE_S = 0.25
"""How often replicas are asked whether they are ready, and how long they have to say so."""


class Relay:
    """Hands every connection on to one of several ports, in turns, in a thread of its own; a context manager.

    A port that refuses is passed over, and so is one whose `/readyz` does not answer; connections to it are cut then.

    Attributes
    ----------
    delay_s : how long bytes take, each way.
    stall_s, stalls_per_s : how long everything on one connection stands still, and how often.
    resets_per_s : how often one connection or the other is cut off without a word.
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
        """Where clients connect."""
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
        tasks = [self._loop.create_task(self._torment())]
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
        """Connect to the next port that answers, and tell it.

        Raises
        ------
        ConnectionRefusedError
            None does.
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
                    ready = await _says_ready(port)
            except (OSError, TimeoutError):
                ready = False
            (self._ready.add if ready else self._ready.discard)(port)
            if not ready:
                for pair in [pair for pair in self.pairs if pair.port == port]:
                    pair.reset()
            await asyncio.sleep(PROBE_S)

    async def _torment(self) -> None:
        """Stall and reset connections at random, as often as is asked for."""
        step_s = 0.02
        while True:
            await asyncio.sleep(step_s)
            if not self.pairs:
                continue
            for rate, act in ((self.stalls_per_s, self._stall), (self.resets_per_s, _Pair.reset)):
                if rate and self._rng.random() < rate * step_s:
                    act(tuple(self.pairs)[int(self._rng.integers(len(self.pairs)))])

    def _stall(self, pair: _Pair) -> None:
        pair.stall(self.stall_s)


async def _says_ready(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")
        return b" 200 " in await reader.readline()
    finally:
        writer.transport.abort()


class _Pair(asyncio.Protocol):
    """A client's connection, and the one to the replica that it was given.

    Attributes
    ----------
    port : of that replica, once there is a connection.
    """

    def __init__(self, relay: Relay) -> None:
        self.port: int | None = None
        self._relay = relay
        self._up = _Way()
        self._down = _Way()

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
        """Stand still, both ways."""
        for way in (self._up, self._down):
            way.stall(length_s)

    def cut(self) -> None:
        """Close both connections."""
        for way in (self._up, self._down):
            way.cut()

    def reset(self) -> None:
        """Close both connections at once, so that both ends are told of a reset."""
        for way in (self._up, self._down):
            way.reset()

    async def _connect(self) -> None:
        try:
            self.port = await self._relay.connect(lambda: _There(self._relay, self._up, self._down))
        except OSError:
            self.cut()


class _There(asyncio.Protocol):
    """The connection to a replica."""

    def __init__(self, relay: Relay, up: _Way, down: _Way) -> None:
        self._relay, self._up, self._down = relay, up, down

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._up.open(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._down.send(data, self._relay.delay_s)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._up.cut()
        self._down.end()


class _Way:
    """Bytes on their way in one direction; they keep their order."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._clear_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = self._ended = False

    def open(self, transport: asyncio.Transport) -> None:
        """Lead to a connection."""
        self._transport = transport
        sock: Any = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._closed:
            transport.abort()
        self._deliver()

    def send(self, data: bytes, delay_s: float) -> None:
        """Send bytes, that take so long."""
        now = time.perf_counter()
        self._clear_at = max(self._clear_at, now + delay_s)
        self._waiting.append((self._clear_at, data))
        if self._timer is None:
            self._deliver()

    def stall(self, length_s: float) -> None:
        """Deliver nothing for so long; what waits already has left."""
        self._clear_at = max(self._clear_at, time.perf_counter() + length_s)

    def end(self) -> None:
        """Close when everything has been delivered."""
        self._ended = True
        if self._timer is None:
            self._deliver()

    def cut(self) -> None:
        """Close, whatever is on its way."""
        self._closed = True
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """Close so that the other end is told of a reset."""
        if self._transport is not None:
            sock: Any = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.cut()

    def _deliver(self) -> None:
        self._timer = None
        if self._transport is None:
            return
        now = time.perf_counter()
        while self._waiting and self._waiting[0][0] <= now:
            self._transport.write(self._waiting.popleft()[1])
        if self._waiting:
            left_s = self._waiting[0][0] - now
            self._timer = asyncio.get_running_loop().call_later(left_s, self._deliver)
        elif self._ended:
            self._transport.close()
