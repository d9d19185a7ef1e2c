"""Predictions over WebSockets: begun, and their groups sent one by one until the deadline."""

from __future__ import annotations

import heapq
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from anytime_service.client.throttle import Throttle
from benchmarks.load.frames import WebSocketClient
from drills.offering.loop import Seen

__all__ = ["Streams"]

TICK_S = 0.001
"""Messages that are due within it leave together."""


class _Told(msgspec.Struct):
    type: str
    id: int
    reason: str | None = None
    prefix: int = 0


_READ = msgspec.json.Decoder(_Told)


class _Wire:
    """A connection, and what is to be sent on it."""

    def __init__(self, port: int) -> None:
        self.client = WebSocketClient(port, "/stream")
        self.client.sock.setblocking(False)
        self.unsent = bytearray()
        self.asked: dict[int, tuple[float, Seen]] = {}
        self.broken = False


class Streams:
    """Asks by WebSocket.

    Parameters
    ----------
    groups : values of each group as JSON, in the order in which they are sent.
    connections : of which each carries many predictions.
    stops : which of them stop sending what was refused, by their number.
    throttled : whether they ask less of a server that refuses, as our client does.
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
        self._wires = [_Wire(port) for _ in range(connections)]
        self._stops = [stops(number) for number in range(connections)]
        self._throttles = [Throttle() for _ in range(connections)] if throttled else None
        self._names = 0
        self._due: list[tuple[float, int, int, int]] = []
        self._next_tick = 0.0
        self._fresh = True

    def begin(self, seen: Seen) -> None:
        """Begin a prediction, and see to its groups."""
        self._names += 1
        name = self._names
        seen.sent += 1
        place = name % len(self._wires)
        wire = self._wires[place]
        if wire.broken:
            seen.unsent += 1
            return
        if self._throttles is not None and self._throttles[place].rejects():
            seen.refused += 1
            return
        now = time.perf_counter()
        wire.asked[name] = now, seen
        wire.unsent += _frame(self._begin % name)
        self._flush(wire)
        heapq.heappush(self._due, (now + self._gap_s, name, 0, place))

    def tick(self, now: float) -> None:
        """Send the groups that are due."""
        if now < self._next_tick:
            return
        self._next_tick = now + TICK_S
        due = self._due
        while due and due[0][0] <= now:
            at, name, number, place = heapq.heappop(due)
            wire = self._wires[place]
            if wire.broken or (self._stops[place] and name not in wire.asked):
                continue
            wire.unsent += _frame(self._frames[number] % name)
            if number + 1 < len(self._frames):
                heapq.heappush(due, (at + self._gap_s, name, number + 1, place))
        for wire in self._wires:
            if wire.unsent:
                self._flush(wire)

    def sockets(self) -> Iterator[tuple[socket.socket, Callable[[], None]]]:
        """All connections, when they are first asked for."""
        if self._fresh:
            self._fresh = False
            for wire in self._wires:
                yield wire.client.sock, partial(self._read, wire)

    def close(self) -> None:
        """Close every connection."""
        for wire in self._wires:
            wire.client.close()

    @property
    def _gap_s(self) -> float:
        return self.deadline_ms / 1000.0 / (len(self._frames) + 1)

    def _flush(self, wire: _Wire) -> None:
        try:
            del wire.unsent[: wire.client.sock.send(wire.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._break(wire)

    def _read(self, wire: _Wire) -> None:
        came = time.perf_counter()
        try:
            told = [_READ.decode(content) for content in wire.client.frames()]
        except OSError:
            self._break(wire)
            return
        for each in told:
            begun, seen = wire.asked.pop(each.id, (0.0, None))
            if seen is None:
                continue
            self._learn(each)
            if each.type == "error":
                seen.refused += 1
            elif each.reason == "overload":
                seen.priors += 1
            else:
                seen.answered((came - begun) * 1000.0, self.deadline_ms, each.prefix)

    def _learn(self, told: _Told) -> None:
        """Let a throttle know whether the server had time."""
        if self._throttles is not None:
            throttle = self._throttles[told.id % len(self._wires)]
            if told.type == "error" or told.reason == "overload":
                throttle.refused()
            else:
                throttle.accepted()

    def _break(self, wire: _Wire) -> None:
        if not wire.broken:
            wire.broken = True
            for _, seen in wire.asked.values():
                seen.odd += 1
            wire.asked.clear()
            wire.unsent.clear()


def _frame(content: bytes) -> bytes:
    """A text frame, masked by zeros: any mask will do, and this one takes no time."""
    size = len(content)
    head = bytes((0x81, 0x80 | size)) if size < 126 else b"\x81\xfe" + size.to_bytes(2, "big")
    return head + b"\0\0\0\0" + content
