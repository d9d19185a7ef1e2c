"""The kinds of clients. Each makes one call at a time with known inputs and records the result."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import aiohttp
import msgspec
import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from anytime.errors import AnytimeError
from anytime.inference.prediction import Answer
from anytime.model.model import Model
from anytime_service.client import AsyncClient, Client, ProblemError
from drills.calls import AnswerRecord, Call, inputs
from drills.machine import pause

GIVE_UP_S = 10.0
"""Timeout of the clients that set no deadline of their own."""

EXTRACTING_S = 0.001
UNFINISHED = 0.5
"""Share of calls that never send the last groups, so that only the deadline can trigger the answer."""


class DrillClient(Protocol):
    async def call(self, number: int) -> Call:
        """Make one call."""

    async def close(self) -> None:
        """Close its connections."""


class SlowInputs:
    """The inputs of a call; each takes time to compute."""

    def __init__(self, values: Mapping[str, list[float]]) -> None:
        self._values = values

    def compute(self, group: str) -> list[float]:
        pause(EXTRACTING_S)
        return self._values[group]


def extractors(model: Model) -> dict[str, Any]:
    """Return one extractor per group."""
    return {group: lambda x, group=group: x.compute(group) for group in model.places}


class _Kind:
    """Common base: model, deadlines, and how calls are recorded."""

    kind = ""

    def __init__(self, name: str, model: Model, deadlines_ms: Sequence[float]) -> None:
        self.name, self.model, self.deadlines_ms = name, model, deadlines_ms

    def deadline_ms(self, number: int) -> float:
        return self.deadlines_ms[number % len(self.deadlines_ms)]

    def sent(self, number: int) -> list[str]:
        """Groups that a call sends: all, or some of the first."""
        rng, names = np.random.default_rng(number + 1), list(self.model.places)
        return names[: int(rng.integers(1, len(names)))] if rng.random() < UNFINISHED else names

    def record(self, number: int, started: float, received: float, **more: Any) -> Call:
        """Build the record of a call."""
        fields: dict[str, Any] = {"deadline_ms": self.deadline_ms(number), "sent": list(self.model.places)} | more
        return Call(self.name, self.kind, number, started, received, **fields)


class _Sdk(_Kind):
    """A client of this project; the caller's deadline applies."""

    def __init__(self, name: str, model: Model, deadlines_ms: Sequence[float], port: int) -> None:
        super().__init__(name, model, deadlines_ms)
        self.url = f"http://127.0.0.1:{port}"
        self.client = AsyncClient(self.url)
        self.extractors = extractors(model)

    async def answer(self, values: Mapping[str, list[float]], deadline_ms: float) -> Answer:
        raise NotImplementedError

    async def call(self, number: int) -> Call:
        values = inputs(self.model, number)
        fields: dict[str, Any]
        started = time.perf_counter()
        try:
            answer = await self.answer(values, self.deadline_ms(number))
            received = time.perf_counter()
            fields = {"answer": msgspec.convert(answer, AnswerRecord, from_attributes=True, strict=False)}
        except ProblemError as error:
            received = time.perf_counter()
            fields = {"status": error.status, "type": error.type, "detail": error.detail}
        except AnytimeError as error:
            received = time.perf_counter()
            fields = {"error": f"{type(error).__name__}: {error}"}
        return self.record(number, started, received, **fields)

    async def close(self) -> None:
        await self.client.close()


class Run(_Sdk):
    """`AsyncClient.run`: computes groups until the deadline."""

    kind = "run"

    async def answer(self, values: Mapping[str, list[float]], deadline_ms: float) -> Answer:
        return await self.client.run(self.extractors, SlowInputs(values), deadline_ms)


class Predict(_Sdk):
    """`AsyncClient.predict`: the groups are already computed."""

    kind = "predict"

    async def answer(self, values: Mapping[str, list[float]], deadline_ms: float) -> Answer:
        return await self.client.predict(values, deadline_ms=deadline_ms)


class ThreadedRun(_Sdk):
    """`Client.run` in a thread, which has its own clock."""

    kind = "run"

    def __init__(self, name: str, model: Model, deadlines_ms: Sequence[float], port: int) -> None:
        super().__init__(name, model, deadlines_ms, port)
        self.threads = Client(self.url)

    async def answer(self, values: Mapping[str, list[float]], deadline_ms: float) -> Answer:
        return self.threads.run(self.extractors, SlowInputs(values), deadline_ms)

    async def call(self, number: int) -> Call:
        return await asyncio.to_thread(asyncio.run, super().call(number))

    async def close(self) -> None:
        await asyncio.to_thread(self.threads.close)


class _Plain(_Kind):
    """A plain protocol client: it uses one replica, and the next one after a failure.

    Parameters
    ----------
    ports : of the replicas.
    first : number of the replica to use first.
    """

    def __init__(
        self, name: str, model: Model, deadlines_ms: Sequence[float], ports: Sequence[int], first: int
    ) -> None:
        super().__init__(name, model, deadlines_ms)
        self.ports, self.at = ports, first % len(ports)

    @property
    def replica(self) -> int | None:
        """Current replica; None if a balancer chooses."""
        return self.at

    async def call(self, number: int) -> Call:
        """Make a call with a timeout."""
        replica, started = self.replica, time.perf_counter()
        try:
            async with asyncio.timeout(GIVE_UP_S):
                return await self.exchange(number, started)
        except (OSError, TimeoutError, WebSocketException, aiohttp.ClientError) as error:
            self.at = (self.at + 1) % len(self.ports)
            await self.close()
            reason = f"{type(error).__name__}: {error}"
            return self.record(number, started, time.perf_counter(), replica=replica, error=reason)

    async def exchange(self, number: int, started: float) -> Call:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def replied(self, number: int, started: float, status: int, kind: str, content: bytes, **more: Any) -> Call:
        """Record an HTTP response."""
        received = time.perf_counter()
        if status == 200:
            answer = msgspec.json.decode(content, type=AnswerRecord)
            return self.record(number, started, received, replica=self.replica, answer=answer, **more)
        problem = json.loads(content) if kind == "application/problem+json" else {}
        fields = {"status": status, "type": problem.get("type"), "detail": problem.get("detail")}
        return self.record(number, started, received, replica=self.replica, **fields, **more)


class WebSocket(_Plain):
    """A plain WebSocket; the server applies the deadline."""

    kind = "websocket"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._socket: ClientConnection | None = None

    async def exchange(self, number: int, started: float) -> Call:
        """Begin, send the groups, and wait for the answer."""
        if self._socket is None:
            url = f"ws://127.0.0.1:{self.ports[self.at]}/stream"
            self._socket = await connect(url, compression=None, proxy=None, close_timeout=0.1, open_timeout=None)
        socket, sent, values = self._socket, self.sent(number), inputs(self.model, number)
        started = time.perf_counter()
        await self._send("begin", number, deadline_ms=self.deadline_ms(number))
        for group in sent:
            await self._send("group", number, group=group, values=values[group])
        message = json.loads(await socket.recv())
        received = time.perf_counter()
        fields: dict[str, Any] = {"sent": sent, "replica": self.at}
        if message["id"] != number:
            raise ConnectionError(f"received a message about {message['id']!r}, expected {number}")
        if message["type"] == "answer":
            return self.record(number, started, received, answer=msgspec.convert(message, AnswerRecord), **fields)
        problem = message["problem"]
        fields |= {"status": problem["status"], "type": problem["type"], "detail": problem["detail"]}
        await self.close()  # otherwise each further group is refused in its own message
        return self.record(number, started, received, **fields)

    async def close(self) -> None:
        """Abort without a closing handshake."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.transport.abort()
            await socket.wait_closed()

    async def _send(self, kind: str, number: int, **fields: Any) -> None:
        assert self._socket is not None
        await self._socket.send(json.dumps({"type": kind, "id": number, **fields}))


class _Http(_Plain):
    """Plain HTTP with aiohttp, which reads an answer before the request body is complete.

    Attributes
    ----------
    reconnect : open a connection for each request.
    """

    reconnect = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """Connection pool, created on first use."""
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=self.reconnect))
        return self._session

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class Post(_Http):
    """A streamed POST, one line per group."""

    kind = "post"

    async def exchange(self, number: int, started: float) -> Call:
        """Post lines; the body has no end if groups are missing."""
        sent, answered = self.sent(number), asyncio.Event()
        url = f"http://127.0.0.1:{self.ports[self.at]}/predict"
        query = {"deadline_ms": str(self.deadline_ms(number))}
        headers = {"Content-Type": "application/x-ndjson"}
        body = self._lines(number, sent, answered)
        async with self.session.post(url, params=query, data=body, headers=headers) as response:
            content = await response.read()
            answered.set()
            return self.replied(number, started, response.status, response.content_type, content, sent=sent)

    async def _lines(self, number: int, sent: Sequence[str], answered: asyncio.Event) -> AsyncIterator[bytes]:
        values = inputs(self.model, number)
        yield b"\n"  # otherwise the headers wait for the first group
        for group in sent:
            yield json.dumps({"group": group, "values": values[group]}).encode() + b"\n"
        await answered.wait()


class Session(_Http):
    """A session: created, sent groups in two parts, used for a prediction with a deadline, and deleted.

    Parameters
    ----------
    balanced : port of a balancer if replicas share sessions: each request may reach another replica. A request whose
        connection breaks is retried once.
    """

    kind = "session"

    def __init__(self, *args: Any, balanced: int | None) -> None:
        super().__init__(*args)
        self.balanced = balanced
        self.reconnect = balanced is not None

    @property
    def replica(self) -> int | None:
        """Current replica; None if a balancer chooses."""
        return None if self.balanced else self.at

    async def exchange(self, number: int, started: float) -> Call:
        """Run all requests, and stop at the first refusal."""
        sent, values = self.sent(number), inputs(self.model, number)
        created = await self._request("POST", "/sessions", {})
        if created[0] != 201:
            return self.replied(number, started, *created, sent=[], deadline_ms=None)
        path = f"/sessions/{json.loads(created[2])['id']}"
        for part in filter(None, (sent[::2], sent[1::2])):
            response = await self._request("POST", f"{path}/groups", {group: values[group] for group in part})
            if response[0] != 200:
                return self.replied(number, started, *response, sent=sent, deadline_ms=None)
        requested = time.perf_counter()
        reply = await self._request("GET", f"{path}/predict?deadline_ms={self.deadline_ms(number)}")
        call = self.replied(number, requested, *reply, sent=sent, accepted=True, opened=started)
        await self._request("DELETE", path)
        return call

    async def _request(self, method: str, path: str, body: Any = None) -> tuple[int, str, bytes]:
        url = f"http://127.0.0.1:{self.balanced or self.ports[self.at]}{path}"
        for retry in (True, False):
            try:
                async with self.session.request(method, url, json=body) as response:
                    return response.status, response.content_type, await response.read()
            except aiohttp.ClientError:
                if not retry or self.balanced is None:
                    raise
        raise AssertionError("not reached")
