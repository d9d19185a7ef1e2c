"""The bindings of the service under load, each a few connections that many predictions share."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import numpy as np

from benchmarks.load.asked import DEADLINES_MS, Asked
from benchmarks.load.engine import Load
from benchmarks.load.frames import HttpClient, WebSocketClient, post, text

__all__ = ["BareTimers", "Binding", "Sessions", "Stream", "StreamedPost", "begin_all"]

CONNECTIONS = 16


class Binding(Protocol):
    """A way to the service."""

    def begin(self, asked: Asked) -> None:
        """Begin a prediction, and see to its groups."""

    def close(self) -> None:
        """Close every connection."""


def begin_all(load: Load, binding: Binding, predictions: Iterable[Asked], gap_s: Callable[[], float]) -> None:
    """Begin predictions one after the other, `gap_s` of them apart."""
    at = time.perf_counter() + 0.05
    remaining = iter(predictions)

    def next_one() -> None:
        nonlocal at
        asked = next(remaining, None)
        if asked is not None:
            at += gap_s()
            load.at(at, next_one)
            binding.begin(asked)

    load.at(at, next_one)


class Stream:
    """WebSocket.

    Attributes
    ----------
    open : predictions by name; those that have been answered may be taken out.
    strays : answers to others.
    """

    def __init__(self, load: Load, port: int) -> None:
        self.load = load
        self.open: dict[int, Asked] = {}
        self.strays = 0
        self.clients = [WebSocketClient(port, "/stream") for _ in range(CONNECTIONS)]
        for client in self.clients:
            load.watch(client.sock, partial(self._read, client))

    def begin(self, asked: Asked) -> None:
        """Begin, and send each group in a message of its own."""
        client = self.clients[asked.name % len(self.clients)]
        told = {"type": "begin", "id": asked.name, "deadline_ms": asked.deadline_ms, "policy": asked.policy}
        frame = text(json.dumps(told).encode())
        self.open[asked.name] = asked
        asked.begun = time.perf_counter()
        client.sock.send(frame)
        for offset, group, values in asked.groups:
            told = {"type": "group", "id": asked.name, "group": group, "values": values}
            self.load.at(asked.begun + offset, partial(self._group, client, asked, group, told))
        if asked.end_s is not None:
            self.load.at(asked.begun + asked.end_s, partial(self._end, client, asked.name))

    def close(self) -> None:
        """Close every connection."""
        for client in self.clients:
            self.load.forget(client.sock)
            client.close()

    def _group(self, client: WebSocketClient, asked: Asked, group: str, told: dict[str, object]) -> None:
        client.sock.send(text(json.dumps(told).encode()))
        asked.sent[group] = time.perf_counter()

    def _end(self, client: WebSocketClient, name: int) -> None:
        client.sock.send(text(json.dumps({"type": "end", "id": name}).encode()))

    def _read(self, client: WebSocketClient) -> None:
        came = time.perf_counter()
        for content in client.frames():
            told = json.loads(content)
            asked = self.open.get(told["id"])
            if asked is None:
                self.strays += 1
            else:
                asked.answer(came, told)


class BareTimers:
    """Timers of the server's own loop, asked for by WebSocket: what the answers are compared with."""

    def __init__(self, load: Load, port: int) -> None:
        self.load = load
        self.late_ms: list[float] = []
        self._due: dict[str, float] = {}
        self._names = itertools.count()
        self._clients = [WebSocketClient(port, "/timer") for _ in range(CONNECTIONS)]
        for client in self._clients:
            load.watch(client.sock, partial(self._read, client))

    def keep_asking(self, rng: np.random.Generator, gap_s: float, until: Callable[[], bool]) -> None:
        """Ask at random times."""
        name, delay = next(self._names), float(rng.choice(DEADLINES_MS))
        client = self._clients[name % len(self._clients)]
        self._due[str(name)] = time.perf_counter() + delay / 1000.0
        client.sock.send(text(f"{name} {delay}".encode()))
        if not until():
            at = time.perf_counter() + float(rng.exponential(gap_s))
            self.load.at(at, partial(self.keep_asking, rng, gap_s, until))

    def close(self) -> None:
        """Close every connection."""
        for client in self._clients:
            self.load.forget(client.sock)
            client.close()

    def _read(self, client: WebSocketClient) -> None:
        came = time.perf_counter()
        self.late_ms += [(came - self._due.pop(name.decode())) * 1000.0 for name in client.frames()]


class _Pool:
    """Connections that are kept for the next request."""

    def __init__(self, load: Load, port: int) -> None:
        self.load, self.port = load, port
        self.opened = 0
        self._idle: list[HttpClient] = []
        self._on: dict[HttpClient, Callable[[float, int, bytes], None]] = {}

    def take(self, told: Callable[[float, int, bytes], None]) -> HttpClient:
        """A connection; `told` is called with the time, status and body of its next response."""
        client = self._idle.pop() if self._idle else self._connected()
        self._on[client] = told
        return client

    def give(self, client: HttpClient) -> None:
        """Keep a connection whose request and response are whole."""
        self._idle.append(client)

    def drop(self, client: HttpClient) -> None:
        """Close a connection."""
        self.load.forget(client.sock)
        self._on.pop(client, None)
        client.close()

    def close(self) -> None:
        """Close every connection."""
        for client in {*self._idle, *self._on}:
            self.drop(client)

    def _connected(self) -> HttpClient:
        self.opened += 1
        client = HttpClient(self.port)
        self.load.watch(client.sock, partial(self._read, client))
        return client

    def _read(self, client: HttpClient) -> None:
        came = time.perf_counter()
        try:
            found = client.poll()
        except ConnectionError:  # an idle one was closed, or one that went on for too long
            if client in self._idle:
                self._idle.remove(client)
            self.drop(client)
            return
        if found is not None:
            self._on[client](came, *found)


class StreamedPost:
    """POST /predict with a line a group, each in a chunk of its own, over sockets."""

    def __init__(self, load: Load, port: int) -> None:
        self.load = load
        self.pool = _Pool(load, port)

    def begin(self, asked: Asked) -> None:
        """Begin, and send each group in a chunk of its own for as long as there is no answer."""
        client = self.pool.take(lambda came, _, content: self._answered(client, asked, came, content))
        query = f"deadline_ms={asked.deadline_ms}&policy={asked.policy}"
        kind = "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked"
        head = f"POST /predict?{query} HTTP/1.1\r\nHost: load\r\n{kind}\r\n\r\n".encode()
        asked.begun = time.perf_counter()
        client.sock.send(head)
        for offset, group, values in asked.groups:
            line = json.dumps({"group": group, "values": values}).encode() + b"\n"
            chunk = b"%x\r\n%b\r\n" % (len(line), line)
            self.load.at(asked.begun + offset, partial(self._group, client, asked, group, chunk))
        if asked.end_s is not None:
            self.load.at(asked.begun + asked.end_s, partial(self._end, client, asked))

    def close(self) -> None:
        """Close every connection."""
        self.pool.close()

    def _group(self, client: HttpClient, asked: Asked, group: str, chunk: bytes) -> None:
        if not asked.answers:
            client.sock.send(chunk)
            asked.sent[group] = time.perf_counter()

    def _end(self, client: HttpClient, asked: Asked) -> None:
        """End the body, before or after its answer."""
        client.sock.send(b"0\r\n\r\n")
        if asked.answers:
            self.pool.give(client)
        asked.end_s = -1.0

    def _answered(self, client: HttpClient, asked: Asked, came: float, content: bytes) -> None:
        asked.answer(came, json.loads(content))
        if asked.end_s is None:
            self.pool.drop(client)
        elif asked.end_s < 0:
            self.pool.give(client)


class Sessions:
    """A session, groups posted one after the other, and a prediction that waits for them on another connection."""

    AHEAD_S = 0.05
    TOGETHER = 3

    def __init__(self, load: Load, port: int) -> None:
        self.load = load
        self.pool = _Pool(load, port)

    def begin(self, asked: Asked) -> None:
        """Create the session; everything else follows."""
        self._ask(post("/sessions", b""), lambda content: self._created(asked, json.loads(content)))

    def close(self) -> None:
        """Close every connection."""
        self.pool.close()

    def _ask(self, request: bytes, told: Callable[[bytes], None]) -> None:
        def answered(_came: float, _status: int, content: bytes) -> None:
            self.pool.give(client)
            told(content)

        client = self.pool.take(answered)
        client.send(request)

    def _created(self, asked: Asked, told: dict[str, str]) -> None:
        session = told.get("id")
        if session is None:  # refused
            asked.answer(time.perf_counter(), told)
            return
        begun = time.perf_counter() + self.AHEAD_S
        query = f"deadline_ms={asked.deadline_ms}&policy={asked.policy}"
        request = f"GET /sessions/{session}/predict?{query} HTTP/1.1\r\nHost: load\r\n\r\n".encode()
        self.load.at(begun, partial(self._predict, asked, request, session))
        for first in range(0, len(asked.groups), self.TOGETHER):
            some = asked.groups[first : first + self.TOGETHER]
            body = json.dumps({group: values for _, group, values in some}).encode()
            content = post(f"/sessions/{session}/groups", body)
            self.load.at(begun + some[-1][0], partial(self._group, asked, [group for _, group, _ in some], content))

    def _predict(self, asked: Asked, request: bytes, session: str) -> None:
        def answered(came: float, _status: int, content: bytes) -> None:
            self.pool.give(client)
            asked.answer(came, json.loads(content))
            at = time.perf_counter() + 0.1  # after the last groups, which come too late
            self.load.at(at, partial(self._delete, session))

        client = self.pool.take(answered)
        asked.begun = time.perf_counter()
        client.send(request)

    def _group(self, asked: Asked, groups: list[str], request: bytes) -> None:
        self._ask(request, lambda _: None)
        asked.sent.update(dict.fromkeys(groups, time.perf_counter()))

    def _delete(self, session: str) -> None:
        self._ask(f"DELETE /sessions/{session} HTTP/1.1\r\nHost: load\r\n\r\n".encode(), lambda _: None)
