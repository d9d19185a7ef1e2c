"""Predictions over WebSockets: begun, then their groups sent one by one until the deadline."""

from __future__ import annotations

import heapq
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from anytime_service.client.engine import Throttle
from benchmarks.load.frames import WebSocketClient, frame
from drills.open_loop.loop import Counts

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

    def __init__(self, port: int) -> None:
        self.client = WebSocketClient(port, "/stream")
        self.client.sock.setblocking(False)
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
        self._connections = [_Connection(port) for _ in range(connections)]
        self._stops = [stops(number) for number in range(connections)]
        self._throttles = [Throttle() for _ in range(connections)] if throttled else None
        self._names = 0
        self._due: list[tuple[float, int, int, int]] = []
        self._next_tick = 0.0
        self._new = True

    def begin(self, counts: Counts) -> None:
        """Begin a prediction, and schedule its groups."""
        self._names += 1
        name = self._names
        counts.sent += 1
        index = name % len(self._connections)
        connection = self._connections[index]
        if connection.broken:
            counts.unsent += 1
            return
        if self._throttles is not None and self._throttles[index].rejects():
            counts.refused += 1
            return
        now = time.perf_counter()
        connection.pending[name] = now, counts
        connection.unsent += frame(1, self._begin % name)
        self._flush(connection)
        heapq.heappush(self._due, (now + self._gap_s, name, 0, index))

    def tick(self, now: float) -> None:
        """Send the groups that are due."""
        if now < self._next_tick:
            return
        self._next_tick = now + TICK_S
        due = self._due
        while due and due[0][0] <= now:
            at, name, number, index = heapq.heappop(due)
            connection = self._connections[index]
            if connection.broken or (self._stops[index] and name not in connection.pending):
                continue
            connection.unsent += frame(1, self._frames[number] % name)
            if number + 1 < len(self._frames):
                heapq.heappush(due, (at + self._gap_s, name, number + 1, index))
        for connection in self._connections:
            if connection.unsent:
                self._flush(connection)

    def sockets(self) -> Iterator[tuple[socket.socket, Callable[[], None]]]:
        """Yield all connections, once."""
        if self._new:
            self._new = False
            for connection in self._connections:
                yield connection.client.sock, partial(self._read, connection)

    def close(self) -> None:
        for connection in self._connections:
            connection.client.close()

    @property
    def _gap_s(self) -> float:
        return self.deadline_ms / 1000.0 / (len(self._frames) + 1)

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
            self._throttle(reply)
            if reply.type == "error":
                counts.refused += 1
            elif reply.reason == "overload":
                counts.priors += 1
            else:
                counts.answered((received - started) * 1000.0, self.deadline_ms, reply.prefix)

    def _throttle(self, reply: _Reply) -> None:
        """Report to the throttle whether the server refused."""
        if self._throttles is not None:
            throttle = self._throttles[reply.id % len(self._connections)]
            throttle.record(accepted=reply.type != "error" and reply.reason != "overload")

    def _break(self, connection: _Connection) -> None:
        if not connection.broken:
            connection.broken = True
            for _, counts in connection.pending.values():
                counts.odd += 1
            connection.pending.clear()
            connection.unsent.clear()
