"""Predictions over WebSockets: begun, then their groups sent one by one until the deadline."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from anytime_service.client.engine import Throttle
from benchmarks.load.engine import Load
from benchmarks.load.frames import WebSocketClient, frame
from benchmarks.load.open_loop import Counts

TICK_S = 0.001
"""Messages due within this time are sent together."""


class _Reply(msgspec.Struct):
    type: str
    id: int
    reason: str | None = None
    prefix: int = 0


_READ = msgspec.json.Decoder(_Reply)


class _Connection:
    """A connection with its unsent bytes."""

    def __init__(self, port: int, stops: bool, throttle: Throttle | None) -> None:
        self.client = WebSocketClient(port, "/stream")
        self.stops, self.throttle = stops, throttle
        self.unsent = bytearray()
        self.pending: dict[int, tuple[float, Counts]] = {}
        self.broken = False


class Streams:
    """Requests predictions by WebSocket.

    Parameters
    ----------
    groups : values of each group as JSON, in the order in which they are sent.
    connections : number of connections, each with many predictions.
    stops : whether connection n stops sending the groups of refused predictions.
    throttled : whether clients reduce their rate when refused, as ours does.
    """

    def __init__(
        self,
        load: Load,
        port: int,
        groups: Sequence[tuple[str, str]],
        deadline_ms: float,
        connections: int,
        stops: Callable[[int], bool] = lambda _: True,
        throttled: bool = False,
    ) -> None:
        self.deadline_ms = deadline_ms
        self._frames = [
            f'{{"type":"group","id":%d,"group":"{group}","values":{values}}}'.encode() for group, values in groups
        ]
        self._begin = b'{"type":"begin","id":%d,"deadline_ms":' + f"{deadline_ms}}}".encode()
        self._gap_s = deadline_ms / 1000.0 / (len(groups) + 1)
        self._names = 0
        self._due: list[tuple[float, int, int, _Connection]] = []
        self._load = load
        self._connections = [
            _Connection(port, stops(number), Throttle() if throttled else None) for number in range(connections)
        ]
        for connection in self._connections:
            load.watch(connection.client.sock, partial(self._read, connection))
        self._tick()

    def begin(self, counts: Counts) -> None:
        """Begin a prediction, and schedule its groups."""
        self._names += 1
        name = self._names
        counts.sent += 1
        connection = self._connections[name % len(self._connections)]
        if connection.broken:
            counts.unsent += 1
            return
        if connection.throttle is not None and connection.throttle.rejects():
            counts.refused += 1
            return
        now = time.perf_counter()
        connection.pending[name] = now, counts
        connection.unsent += frame(1, self._begin % name)
        self._flush(connection)
        heapq.heappush(self._due, (now + self._gap_s, name, 0, connection))

    def close(self) -> None:
        for connection in self._connections:
            self._load.forget(connection.client.sock)
            connection.client.close()

    def _tick(self) -> None:
        """Send the groups that are due."""
        now, due = time.perf_counter(), self._due
        self._load.at(now + TICK_S, self._tick)
        while due and due[0][0] <= now:
            at, name, number, connection = heapq.heappop(due)
            if connection.broken or (connection.stops and name not in connection.pending):
                continue
            connection.unsent += frame(1, self._frames[number] % name)
            if number + 1 < len(self._frames):
                heapq.heappush(due, (at + self._gap_s, name, number + 1, connection))
        for connection in self._connections:
            if connection.unsent:
                self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        try:
            del connection.unsent[: connection.client.sock.send(connection.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._break(connection)

    def _read(self, connection: _Connection) -> None:
        received = time.perf_counter()
        try:
            replies = [_READ.decode(content) for content in connection.client.frames()]
        except OSError:
            self._break(connection)
            return
        for reply in replies:
            started, counts = connection.pending.pop(reply.id, (0.0, None))
            if counts is None:
                continue
            accepted = reply.type != "error" and reply.reason != "overload"
            if connection.throttle is not None:
                connection.throttle.record(accepted=accepted)
            if accepted:
                counts.answered((received - started) * 1000.0, self.deadline_ms, reply.prefix)
            elif reply.type == "error":
                counts.refused += 1
            else:
                counts.priors += 1

    def _break(self, connection: _Connection) -> None:
        if not connection.broken:
            connection.broken = True
            self._load.forget(connection.client.sock)
            for _, counts in connection.pending.values():
                counts.odd += 1
            connection.pending.clear()
            connection.unsent.clear()
