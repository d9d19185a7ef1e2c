"""Clients of every kind, each of which makes one call at a time on known inputs and says what came of it."""

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
from drills.calls import Call, Told, inputs
from drills.machine import pause

__all__ = ["Asker", "Post", "Predict", "Run", "Session", "Slow", "ThreadedRun", "WebSocket"]

GIVE_UP_S = 10.0
"""How long the clients without deadlines of their own wait for an answer."""

EXTRACTING_S = 0.001
UNFINISHED = 0.5
"""Share of the calls of which the last groups never come, so that a deadline has to bring the answer."""


class Asker(Protocol):
    """A client."""

    async def ask(self, number: int) -> Call:
        """Make one call."""

    async def close(self) -> None:
        """Close its connections."""


class Slow:
    """What an extractor is called with: the inputs, which take their time to be computed."""

    def __init__(self, values: Mapping[str, list[float]]) -> None:
        self._values = values

    def compute(self, group: str) -> list[float]:
        """Compute a group."""
        pause(EXTRACTING_S)
        return self._values[group]


def extractors(model: Model) -> dict[str, Any]:
    """One for each group."""
    return {group: lambda x, group=group: x.compute(group) for group in model.places}


class _Kind:
    """What the clients have in common: the model, deadlines, and how calls are told."""

    kind = ""

    def __init__(self, name: str, model: Model, deadlines_ms: Sequence[float]) -> None:
        self.name, self.model, self.deadlines_ms = name, model, deadlines_ms

    def deadline_ms(self, number: int) -> float:
        """Deadline of a call."""
        return self.deadlines_ms[number % len(self.deadlines_ms)]

    def sent(self, number: int) -> list[str]:
        """Groups that a call without an end of its own sends: all of them, or some of the first."""
        rng, names = np.random.default_rng(number + 1), list(self.model.places)
        return names[: int(rng.integers(1, len(names)))] if rng.random() < UNFINISHED else names

    def made(self, number: int, begun: float, came: float, **more: Any) -> Call:
        """Put together what has happened."""
        told: dict[str, Any] = {"deadline_ms": self.deadline_ms(number), "sent": list(self.model.places)} | more
        return Call(self.name, self.kind, number, begun, came, **told)


class _Sdk(_Kind):
    """A client of the project's own, under the caller's deadline."""

    def told(self, number: int, begun: float, answer: Answer) -> Call:
        """Tell an answer."""
        came = time.perf_counter()
        return self.made(number, begun, came, answer=msgspec.convert(answer, Told, from_attributes=True, strict=False))

    def failed(self, number: int, begun: float, error: AnytimeError) -> Call:
        """Tell a call that came to nothing."""
        came = time.perf_counter()
        if isinstance(error, ProblemError):
            return self.made(number, begun, came, status=error.status, type=error.type, why=error.detail)
        return self.made(number, begun, came, broke=f"{type(error).__name__}: {error}")


class Run(_Sdk):
    """`AsyncClient.run`: groups are computed while the clock runs."""

    kind = "run"

    def __init__(self, name: str, model: Model, deadlines_ms: Sequence[float], port: int) -> None:
        super().__init__(name, model, deadlines_ms)
        self.client = AsyncClient(f"http://127.0.0.1:{port}")
        self.extractors = extractors(model)

    async def ask(self, number: int) -> Call:
        """Run."""
        x = Slow(inputs(self.model, number))
        begun = time.perf_counter()
        try:
            answer = await self.client.run(self.extractors, x, self.deadline_ms(number))
        except AnytimeError as error:
            return self.failed(number, begun, error)
        return self.told(number, begun, answer)

    async def close(self) -> None:
        """Close."""
        await self.client.close()


class Predict(_Sdk):
    """`AsyncClient.predict`: groups are at hand."""

    kind = "predict"

    def __init__(self, name: str, model: Model, deadlines_ms: Sequence[float], port: int) -> None:
        super().__init__(name, model, deadlines_ms)
        self.client = AsyncClient(f"http://127.0.0.1:{port}")

    async def ask(self, number: int) -> Call:
        """Predict."""
        groups = inputs(self.model, number)
        begun = time.perf_counter()
        try:
            answer = await self.client.predict(groups, deadline_ms=self.deadline_ms(number))
        except AnytimeError as error:
            return self.failed(number, begun, error)
        return self.told(number, begun, answer)

    async def close(self) -> None:
        """Close."""
        await self.client.close()


class ThreadedRun(_Sdk):
    """`Client.run`, in a thread of its own."""

    kind = "run"

    def __init__(self, name: str, model: Model, deadlines_ms: Sequence[float], port: int) -> None:
        super().__init__(name, model, deadlines_ms)
        self.client = Client(f"http://127.0.0.1:{port}")
        self.extractors = extractors(model)

    async def ask(self, number: int) -> Call:
        """Run."""
        return await asyncio.to_thread(self._ask, number)

    async def close(self) -> None:
        """Close."""
        await asyncio.to_thread(self.client.close)

    def _ask(self, number: int) -> Call:
        x = Slow(inputs(self.model, number))
        begun = time.perf_counter()
        try:
            answer = self.client.run(self.extractors, x, self.deadline_ms(number))
        except AnytimeError as error:
            return self.failed(number, begun, error)
        return self.told(number, begun, answer)


class _Plain(_Kind):
    """A client without the project's own: it asks one replica, and the next one when that fails.

    Parameters
    ----------
    ports : of the replicas.
    first : which of them to begin with.
    """

    def __init__(
        self, name: str, model: Model, deadlines_ms: Sequence[float], ports: Sequence[int], first: int
    ) -> None:
        super().__init__(name, model, deadlines_ms)
        self.ports, self.at = ports, first % len(ports)

    @property
    def replica(self) -> int | None:
        """Which one it asks; None where a balancer chooses."""
        return self.at

    async def ask(self, number: int) -> Call:
        """Make a call, within bounds."""
        replica, begun = self.replica, time.perf_counter()
        try:
            async with asyncio.timeout(GIVE_UP_S):
                return await self.exchange(number, begun)
        except (OSError, TimeoutError, WebSocketException, aiohttp.ClientError) as error:
            self.at = (self.at + 1) % len(self.ports)
            await self.close()
            reason = f"{type(error).__name__}: {error}"
            return self.made(number, begun, time.perf_counter(), replica=replica, broke=reason)

    async def exchange(self, number: int, begun: float) -> Call:
        """Make a call."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close its connections."""
        raise NotImplementedError

    def replied(self, number: int, begun: float, status: int, kind: str, content: bytes, **more: Any) -> Call:
        """Tell a response by HTTP."""
        came = time.perf_counter()
        if status == 200:
            answer = msgspec.json.decode(content, type=Told)
            return self.made(number, begun, came, replica=self.replica, answer=answer, **more)
        problem = json.loads(content) if kind == "application/problem+json" else {}
        told = {"status": status, "type": problem.get("type"), "why": problem.get("detail")}
        return self.made(number, begun, came, replica=self.replica, **told, **more)


class WebSocket(_Plain):
    """A WebSocket, spoken by hand; the deadline is the server's to keep."""

    kind = "websocket"

    def __init__(self, *told: Any) -> None:
        super().__init__(*told)
        self._socket: ClientConnection | None = None

    async def exchange(self, number: int, begun: float) -> Call:
        """Begin, send groups, and wait."""
        if self._socket is None:
            url = f"ws://127.0.0.1:{self.ports[self.at]}/stream"
            self._socket = await connect(url, compression=None, proxy=None, close_timeout=0.1, open_timeout=None)
        socket, sent, values = self._socket, self.sent(number), inputs(self.model, number)
        begun = time.perf_counter()
        await self._say("begin", number, deadline_ms=self.deadline_ms(number))
        for group in sent:
            await self._say("group", number, group=group, values=values[group])
        message = json.loads(await socket.recv())
        came = time.perf_counter()
        told: dict[str, Any] = {"sent": sent, "replica": self.at}
        if message["id"] != number:
            raise ConnectionError(f"a message about {message['id']!r} came, expected one about {number}")
        if message["type"] == "answer":
            return self.made(number, begun, came, answer=msgspec.convert(message, Told), **told)
        problem = message["problem"]
        told |= {"status": problem["status"], "type": problem["type"], "why": problem["detail"]}
        await self.close()  # every group would be refused, in a message of its own
        return self.made(number, begun, came, **told)

    async def close(self) -> None:
        """Close without waiting for the other end."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.transport.abort()
            await socket.wait_closed()

    async def _say(self, kind: str, number: int, **fields: Any) -> None:
        assert self._socket is not None
        await self._socket.send(json.dumps({"type": kind, "id": number, **fields}))


class _Http(_Plain):
    """Plain HTTP, by aiohttp: it sees an answer before it has sent everything.

    Attributes
    ----------
    anew : whether each request has a connection of its own.
    """

    anew = False

    def __init__(self, *told: Any) -> None:
        super().__init__(*told)
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """Connections, made when they are first needed."""
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=self.anew))
        return self._session

    async def close(self) -> None:
        """Close."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class Post(_Http):
    """A streamed POST, a line a group."""

    kind = "post"

    async def exchange(self, number: int, begun: float) -> Call:
        """Post lines, and never an end where groups are left out."""
        sent, answered = self.sent(number), asyncio.Event()
        url = f"http://127.0.0.1:{self.ports[self.at]}/predict"
        query = {"deadline_ms": str(self.deadline_ms(number))}
        headers = {"Content-Type": "application/x-ndjson"}
        body = self._lines(number, sent, answered)
        async with self.session.post(url, params=query, data=body, headers=headers) as response:
            content = await response.read()
            answered.set()
            return self.replied(number, begun, response.status, response.content_type, content, sent=sent)

    async def _lines(self, number: int, sent: Sequence[str], answered: asyncio.Event) -> AsyncIterator[bytes]:
        values = inputs(self.model, number)
        yield b"\n"  # or the head waits for the first group
        for group in sent:
            yield json.dumps({"group": group, "values": values[group]}).encode() + b"\n"
        await answered.wait()


class Session(_Http):
    """A session: begun, given groups in two parts, asked with a deadline, and deleted.

    Parameters
    ----------
    balanced : port of a balancer, where replicas share sessions: each request may go to another one. A request whose
        connection breaks is sent once more.
    """

    kind = "session"

    def __init__(self, *told: Any, balanced: int | None) -> None:
        super().__init__(*told)
        self.balanced = balanced
        self.anew = balanced is not None

    @property
    def replica(self) -> int | None:
        """Which one it asks."""
        return None if self.balanced else self.at

    async def exchange(self, number: int, begun: float) -> Call:
        """Go through all of it, as far as that goes."""
        sent, values = self.sent(number), inputs(self.model, number)
        made = await self._request("POST", "/sessions", {})
        if made[0] != 201:
            return self.replied(number, begun, *made, sent=[], deadline_ms=None)
        path = f"/sessions/{json.loads(made[2])['id']}"
        for some in filter(None, (sent[::2], sent[1::2])):
            took = await self._request("POST", f"{path}/groups", {group: values[group] for group in some})
            if took[0] != 200:
                return self.replied(number, begun, *took, sent=sent, deadline_ms=None)
        asked = time.perf_counter()
        reply = await self._request("GET", f"{path}/predict?deadline_ms={self.deadline_ms(number)}")
        call = self.replied(number, asked, *reply, sent=sent, taken=True, opened=begun)
        await self._request("DELETE", path)
        return call

    async def _request(self, method: str, path: str, body: Any = None) -> tuple[int, str, bytes]:
        url = f"http://127.0.0.1:{self.balanced or self.ports[self.at]}{path}"
        for again in (True, False):
            try:
                async with self.session.request(method, url, json=body) as response:
                    return response.status, response.content_type, await response.read()
            except aiohttp.ClientError:
                if not again or self.balanced is None:
                    raise
        raise AssertionError("not reached")
