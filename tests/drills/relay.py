"""A relay between clients and replicas: a balancer, and a network with latency, stalls and resets."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import uvloop

PROBE_S = 0.25
"""Interval and timeout of the readiness probes."""

STEP_S = 0.02


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
        self.delay_s = self.stall_s = self.stalls_per_s = self.resets_per_s = 0.0
        self._pairs: set[_Pair] = set()
        self._targets, self._ready, self._probe = deque(targets), set(targets), probe
        self._rng = np.random.default_rng(seed)
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._loop, self._over = uvloop.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

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

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._forward, sock=self._listening)
        tasks = [asyncio.create_task(self._disturb())]
        tasks += [asyncio.create_task(self._watch(port)) for port in self._targets if self._probe]
        await self._over.wait()
        server.close()
        for pair in tuple(self._pairs):
            pair.cut()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*tasks, *others, return_exceptions=True)

    async def _forward(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Forward a connection both ways until the client ends, or everything of the replica is delivered."""
        pair = _Pair(to_client)
        self._pairs.add(pair)
        try:
            replica, to_replica = await self._connect(pair)
            ways = [(client, to_replica), (replica, to_client)]
            tasks = [asyncio.create_task(self._deliver(pair, *way)) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        except OSError:
            pass
        finally:
            self._pairs.discard(pair)
            pair.cut()

    async def _connect(self, pair: _Pair) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect a client to the next available port; raise ConnectionRefusedError if no replica answers."""
        for _ in range(len(self._targets)):
            port = self._targets[0]
            self._targets.rotate(-1)
            if port in self._ready:
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    self._ready.discard(port)
                else:
                    pair.port = port
                    pair.writers.append(writer)
                    return reader, writer
        raise ConnectionRefusedError("no replica answers")

    async def _deliver(self, pair: _Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Write what is read, each piece after its delay; at the end close in order."""
        in_transit: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            data = b"first"
            while data:
                try:
                    data = await reader.read(1 << 16)
                except OSError:
                    data = b""
                in_transit.put_nowait((max(time.perf_counter() + self.delay_s, pair.stalled_until), data))

        reading = asyncio.create_task(read())
        try:
            while True:
                at, data = await in_transit.get()
                if at > (now := time.perf_counter()):
                    await asyncio.sleep(at - now)
                if not data:
                    break
                writer.write(data)
            writer.close()
            await writer.wait_closed()
        finally:
            reading.cancel()

    async def _watch(self, port: int) -> None:
        while True:
            try:
                async with asyncio.timeout(PROBE_S):
                    ready = await _is_ready(port)
            except (OSError, TimeoutError):
                ready = False
            (self._ready.add if ready else self._ready.discard)(port)
            for pair in tuple(self._pairs):
                if pair.port == port and not ready:
                    pair.cut(reset=True)
            await asyncio.sleep(PROBE_S)

    async def _disturb(self) -> None:
        """Stall and reset random connections at the set rates."""
        while True:
            await asyncio.sleep(STEP_S)
            stalls, resets = self._rng.random(2) < np.multiply((self.stalls_per_s, self.resets_per_s), STEP_S)
            pairs = tuple(self._pairs)
            if pairs and stalls:
                pairs[int(self._rng.integers(len(pairs)))].stalled_until = time.perf_counter() + self.stall_s
            if pairs and resets:
                pairs[int(self._rng.integers(len(pairs)))].cut(reset=True)


async def _is_ready(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")
        return b" 200 " in await reader.readline()
    finally:
        writer.transport.abort()


class _Pair:
    """A client's connection and the one to its replica.

    Attributes
    ----------
    port : of the replica, once connected.
    stalled_until : what is read before is delivered then.
    """

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.port: int | None = None
        self.writers = [client]
        self.stalled_until = 0.0

    def cut(self, *, reset: bool = False) -> None:
        """Abort, and drop bytes in transit."""
        for writer in self.writers:
            with suppress(OSError):  # it is closed
                if reset:
                    sock: Any = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
