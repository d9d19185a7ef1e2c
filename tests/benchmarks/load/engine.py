"""A load generator that acts at given times: one thread that sleeps if nothing is near, spins otherwise, and reads.

It records its own lateness, so that a measurement shows how far to trust it. In a closed loop each answer starts the
next prediction, so that the server is never idle. In an open loop predictions are sent by POST or WebSocket at their
due times, whatever the server does, next to probes: a load calls `begin` at the due times; clients read, and act by the
clock, by the same `Load`.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import re
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from anytime_service.client.engine import Throttle
from benchmarks.load.frames import HttpClient, WebSocketClient, frame, text

Client = TypeVar("Client", HttpClient, WebSocketClient)

NEAR_S = 0.00015
"""Below this distance the load spins, since sleeps last about this much too long."""

MAX_WAIT_S = 0.01

CONNECTIONS = 16
"""Connections that the predictions of a load share."""

AT_ONCE = 16
"""Actions performed before replies are read: a late load would count its own delay as the server's."""


class Load:
    """Actions at given times, and sockets that are read as soon as they are readable, and closed with the load.

    Attributes
    ----------
    late_ms : lateness of each action.
    """

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._readers: dict[int, tuple[socket.socket, Callable[[], None]]] = {}
        self._poll = select.epoll()

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Schedule an action at a time of `time.perf_counter`."""
        heapq.heappush(self._due, (when, next(self._numbers), act))

    def watch(self, sock: socket.socket, read: Callable[[], None]) -> None:
        """Call `read` when the socket is readable."""
        sock.setblocking(False)
        self._readers[sock.fileno()] = sock, read
        self._poll.register(sock, select.EPOLLIN)

    def discard(self, sock: socket.socket) -> None:
        """Close a socket."""
        if self._readers.pop(sock.fileno(), None) is not None:
            self._poll.unregister(sock)
        sock.close()

    def close(self) -> None:
        """Close all sockets."""
        for sock, _ in tuple(self._readers.values()):
            self.discard(sock)
        self._poll.close()

    def run(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Run until all actions are past and `done`, or a timeout after that; return whether it was done."""
        end = time.perf_counter() + timeout_s
        while self._due or not done():
            now = time.perf_counter()
            if self._due:
                end = now + timeout_s
            elif now > end:
                return False
            self._turn(now)
        return True

    def run_for(self, seconds: float) -> None:
        """Run for some time, whatever is due later."""
        end = time.perf_counter() + seconds
        while (now := time.perf_counter()) < end:
            self._turn(now)

    def _turn(self, now: float) -> None:
        """Wait for the next action or for replies, read them, and act."""
        wait_s = min(max(self._due[0][0] - now - NEAR_S, 0.0), MAX_WAIT_S) if self._due else MAX_WAIT_S
        if select.select((self._poll,), (), (), wait_s)[0]:  # only `select` waits with a resolution of microseconds
            for number, _ in self._poll.poll(0):
                if number in self._readers:
                    self._readers[number][1]()
        for _ in range(AT_ONCE):
            if not self._due or (late_s := time.perf_counter() - self._due[0][0]) < 0:
                break
            self.late_ms.append(late_s * 1000.0)
            heapq.heappop(self._due)[2]()


def saturate(
    clients: Sequence[Client],
    send: Callable[[Client], object],
    answers: Callable[[Client], int],
    seconds: float,
    window: int = 1,
) -> tuple[int, float]:
    """Keep predictions open on every connection, then close all; return the answers and the seconds.

    Parameters
    ----------
    send : requests a prediction.  answers : reads, and returns how many answers have arrived.
    window : open predictions per connection.
    """
    load, counts = Load(), list[int]()

    def read(client: Client) -> None:
        counts.append(answers(client))
        for _ in range(counts[-1]):
            send(client)

    with closing(load):
        for client in clients:
            load.watch(client.sock, partial(read, client))
            for _ in range(window):
                send(client)
        start = time.perf_counter()
        load.run_for(seconds)
        return sum(counts), time.perf_counter() - start


def saturate_websocket(
    port: int,
    row: Mapping[str, list[float]],
    seconds: float,
    window: int = 1,
    check: Callable[[bytes], object] = lambda _: None,
) -> tuple[int, float]:
    """Saturate our WebSocket: for each prediction its beginning and one message per group of a row, sent at once."""
    groups = [json.dumps({"group": name, "values": values})[1:] for name, values in row.items()]
    ids = itertools.count()

    def send(client: WebSocketClient) -> None:
        name = next(ids)
        messages = [f'{{"type": "begin", "id": {name}}}', *(f'{{"type": "group", "id": {name}, {g}' for g in groups)]
        client.sock.sendall(b"".join(text(message.encode()) for message in messages))

    def answers(client: WebSocketClient) -> int:
        received = [check(content) for content in client.frames()]
        return len(received)

    return saturate([WebSocketClient(port, "/stream") for _ in range(CONNECTIONS)], send, answers, seconds, window)


ALLOWANCE_MS = 2.0
"""Time for both ways and this program beyond a deadline, for an answer to be in time."""

MAX_CONNECTIONS = 900
"""Maximum number of connections: a server that lets more requests queue has failed anyway."""

RETRY_S = 0.0005
"""Time after which bytes that did not fit into the buffers are sent."""

TICK_S = 0.001
"""Messages due within this time are sent together."""

INTERVAL_S = 0.1
PATHS = ("/livez", "/readyz")
"""Of probes."""

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


class Requesting(Protocol):
    """A kind of client."""

    def begin(self, counts: Counts) -> None:
        """Request a prediction."""


class Pool:
    """HTTP connections.

    Attributes
    ----------
    clients : all of them, with their callbacks.  idle : those without a request.
    """

    def __init__(self, load: Load, port: int) -> None:
        self.load, self.port = load, port
        self.clients: dict[HttpClient, tuple[Callable[[float, int, bytes], None], Callable[[], None]]] = {}
        self.idle: list[HttpClient] = []

    def acquire(
        self, on_response: Callable[[float, int, bytes], None], on_end: Callable[[], None] = lambda: None
    ) -> HttpClient:
        """Return a connection; its callbacks are for the time, status and body of a response, and for its end."""
        if self.idle:
            client = self.idle.pop()
        else:
            client = HttpClient(self.port)
            self.load.watch(client.sock, partial(self._read, client))
        self.clients[client] = on_response, on_end
        return client

    def release(self, client: HttpClient) -> None:
        """Return a connection whose request and response are complete to the pool."""
        self.clients[client] = self.clients[client][0], lambda: None
        self.idle.append(client)

    def discard(self, client: HttpClient) -> None:
        self.clients.pop(client, None)
        self.load.discard(client.sock)

    def _read(self, client: HttpClient) -> None:
        received, (on_response, on_end) = time.perf_counter(), self.clients[client]
        try:
            found = client.poll()
        except OSError:  # closed while idle, or after the maximum length of a request
            self.idle = [each for each in self.idle if each is not client]
            self.discard(client)
            on_end()
            return
        if found is not None:
            on_response(received, *found)


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
        self.request, self.deadline_ms, self.check = request, deadline_ms, check
        self._pool = Pool(load, port)
        self._unsent: set[HttpClient] = set()

    def begin(self, counts: Counts) -> None:
        """Request a prediction."""
        counts.sent += 1
        if not self._pool.idle and len(self._pool.clients) >= MAX_CONNECTIONS:
            counts.unsent += 1
            return

        def ended() -> None:
            counts.odd += 1

        started = time.perf_counter()
        client = self._pool.acquire(lambda *response: self._answered(client, counts, started, *response), ended)
        self._send(client, self.request())

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
            self._pool.load.at(time.perf_counter() + RETRY_S, partial(self._send, client, content[sent:]))

    def _answered(
        self, client: HttpClient, counts: Counts, started: float, received: float, status: int, content: bytes
    ) -> None:
        if status == 503:
            counts.refused += 1
        elif status != 200:
            counts.odd += 1
        elif b'"reason":"overload"' in content:
            counts.priors += 1
        else:
            self.check(content)
            steps = _PREFIX.search(content)
            counts.answered((received - started) * 1000.0, self.deadline_ms, int(steps[1]) if steps else 0)
        if client in self._unsent:
            self._pool.discard(client)
        else:
            self._pool.release(client)


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
    stops : whether connection n stops sending the groups of refused predictions.
    throttled : whether clients reduce their rate when refused, as ours does.
    """

    def __init__(
        self,
        load: Load,
        port: int,
        groups: Sequence[tuple[str, str]],
        deadline_ms: float,
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
            _Connection(port, stops(number), Throttle() if throttled else None) for number in range(CONNECTIONS)
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
            self._load.discard(connection.client.sock)
            for _, counts in connection.pending.values():
                counts.odd += 1
            connection.pending.clear()
            connection.unsent.clear()


class Probes:
    """Sends a health probe every tenth of a second, each on a new connection.

    Attributes
    ----------
    took_ms : latency of each probe; infinite if it was not answered with 200.
    """

    def __init__(self, load: Load, port: int) -> None:
        self.took_ms: list[float] = []
        self._pool = Pool(load, port)
        self._paths = itertools.cycle(PATHS)
        self._open: set[float] = set()
        self._probe()

    def worst_ms(self) -> float:
        """Return the maximum latency so far, open probes included, and reset all measurements."""
        now = time.perf_counter()
        worst = max([*self.took_ms, *((now - started) * 1000.0 for started in self._open)], default=math.nan)
        self.took_ms.clear()
        self._open.clear()
        for client in tuple(self._pool.clients):
            self._pool.discard(client)
        return worst

    def _probe(self) -> None:
        started = time.perf_counter()
        self._pool.load.at(started + INTERVAL_S, self._probe)
        end = partial(self._answered, started)
        client = self._pool.acquire(lambda *response: end(client, *response), lambda: end(client))
        client.send(f"GET {next(self._paths)} HTTP/1.1\r\nHost: drill\r\nConnection: close\r\n\r\n".encode())
        self._open.add(started)

    def _answered(
        self, started: float, client: HttpClient, received: float = 0.0, status: int = 0, _: bytes = b""
    ) -> None:
        self.took_ms.append((received - started) * 1000.0 if status == 200 else math.inf)
        self._open.discard(started)
        self._pool.discard(client)
