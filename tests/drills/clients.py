"""All clients of a drill in one process: `python -m drills.clients PLAN`.

The process prints "ready" after each client has its first answer, starts when it reads a line, and stops at the end of
its input. It writes one call per line, and prints a final report.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import aiohttp
import msgspec
import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from anytime._linalg import single_blas_thread
from anytime.errors import AnytimeError
from anytime.inference.prediction import Answer
from anytime.loaded import load
from anytime.model.model import Model
from anytime_service.client import AsyncClient, Client, ProblemError
from benchmarks.harness import CLIENT_CORE, Process, pin_to_core
from drills.cluster import footprint, pause, watching_stalls
from drills.judging import AnswerRecord, Call, inputs, read_calls

GIVE_UP_S = 10.0
"""Timeout of a call."""

EXTRACTING_S = 0.001
UNFINISHED = 0.5
"""Share of calls that never send the last groups, so that only the deadline can trigger the answer."""

Values = Mapping[str, list[float]]
Fields = dict[str, Any]
"""Fields of a `Call`."""


class Plan(msgspec.Struct, frozen=True):
    """The clients of a drill and their load.

    Attributes
    ----------
    model : file of the model whose groups are sent.
    port : of a balancer or a single replica, for this project's clients.
    ports : of the replicas, for the other clients.
    counts : clients of each kind.
    period_s : mean time between the starts of a client's calls.
    shared : whether replicas share sessions.
    """

    model: str
    out: str
    port: int
    ports: list[int]
    counts: dict[str, int]
    deadlines_ms: list[float]
    period_s: float
    shared: bool = False
    seed: int = 0


def answered(answer: object, **more: Any) -> Fields:
    return {
        "received": time.perf_counter(),
        "answer": msgspec.convert(answer, AnswerRecord, from_attributes=True, strict=False),
        **more,
    }


def refused(status: int, problem: Mapping[str, Any], **more: Any) -> Fields:
    details = {"type": problem.get("type"), "detail": problem.get("detail")}
    return {"received": time.perf_counter(), "status": status, **details, **more}


class DrillClient:
    """A client of the service.

    Parameters
    ----------
    at : number of the replica that a plain client uses first; it uses the next one after a failure.
    """

    kind = ""
    balanced = False

    def __init__(self, plan: Plan, model: Model, name: str, at: int) -> None:
        self.plan, self.model, self.name, self.at = plan, model, name, at

    @property
    def replica(self) -> int | None:
        """Number of the current replica; None if a balancer chooses."""
        return None if self.balanced else self.at % len(self.plan.ports)

    def url(self, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.plan.port if self.replica is None else self.plan.ports[self.replica]}"

    def deadline_ms(self, number: int) -> float:
        return self.plan.deadlines_ms[number % len(self.plan.deadlines_ms)]

    def sent(self, number: int) -> list[str]:
        """Groups that a call sends: all, or some of the first."""
        rng, names = np.random.default_rng(number + 1), list(self.model.places)
        return names[: int(rng.integers(1, len(names)))] if rng.random() < UNFINISHED else names

    async def call(self, number: int) -> Call:
        """Make one call, and return its record."""
        values = inputs(self.model, number)
        fields: Fields = {"deadline_ms": self.deadline_ms(number), "sent": list(self.model.places)}
        fields |= {"started": time.perf_counter(), "replica": self.replica}
        try:
            async with asyncio.timeout(GIVE_UP_S):
                fields |= await self.exchange(number, values)
        except ProblemError as error:
            fields |= refused(error.status, {"type": error.type, "detail": error.detail})
        except (OSError, TimeoutError, AnytimeError, WebSocketException, aiohttp.ClientError) as error:
            fields |= {"received": time.perf_counter(), "error": f"{type(error).__name__}: {error}"}
            await self.fail_over()
        return Call(self.name, self.kind, number, **fields)

    async def exchange(self, number: int, values: Values) -> Fields:
        """Return the fields of a call in which it differs from others."""
        raise NotImplementedError

    async def fail_over(self) -> None:
        self.at += 1
        await self.close()

    async def close(self) -> None:
        """Close its connections; the next call opens new ones."""
        raise NotImplementedError


def extract(group: str, values: Values) -> list[float]:
    """Return the values of a group, which take time to compute."""
    pause(EXTRACTING_S)
    return values[group]


class Run(DrillClient):
    """`AsyncClient.run`: computes groups until the deadline, which applies at the caller."""

    kind = "run"
    balanced = True

    def __init__(self, plan: Plan, model: Model, name: str, at: int) -> None:
        super().__init__(plan, model, name, at)
        self.client = AsyncClient(self.url())
        self.extractors = {group: partial(extract, group) for group in model.places}

    async def exchange(self, number: int, values: Values) -> Fields:
        return answered(await self.answer(values, self.deadline_ms(number)))

    async def answer(self, values: Values, deadline_ms: float) -> Answer:
        return await self.client.run(self.extractors, values, deadline_ms)

    async def fail_over(self) -> None:
        """Continue: the client itself chooses and opens its connections."""

    async def close(self) -> None:
        await self.client.close()


class Predict(Run):
    """`AsyncClient.predict`: the groups are already computed."""

    kind = "predict"

    async def answer(self, values: Values, deadline_ms: float) -> Answer:
        return await self.client.predict(values, deadline_ms=deadline_ms)


class ThreadedRun(Run):
    """`Client.run` in a thread, which has its own clock."""

    def __init__(self, plan: Plan, model: Model, name: str, at: int) -> None:
        super().__init__(plan, model, name, at)
        self.threads = Client(self.url())

    async def answer(self, values: Values, deadline_ms: float) -> Answer:
        return self.threads.run(self.extractors, values, deadline_ms)

    async def call(self, number: int) -> Call:
        return await asyncio.to_thread(asyncio.run, super().call(number))

    async def close(self) -> None:
        await asyncio.to_thread(self.threads.close)


class WebSocket(DrillClient):
    """A plain WebSocket; the server applies the deadline."""

    kind = "websocket"
    socket: ClientConnection | None = None

    async def exchange(self, number: int, values: Values) -> Fields:
        """Begin, send the groups, and wait for the answer."""
        if self.socket is None:
            url = f"{self.url('ws')}/stream"
            self.socket = await connect(url, compression=None, proxy=None, close_timeout=0.1, open_timeout=None)
        sent = self.sent(number)
        messages: list[Fields] = [
            {"type": "begin", "id": number, "deadline_ms": self.deadline_ms(number), "model": self.model.name}
        ]
        messages += [{"type": "group", "id": number, "group": group, "values": values[group]} for group in sent]
        started = time.perf_counter()
        for message in messages:
            await self.socket.send(json.dumps(message))
        reply = json.loads(await self.socket.recv())
        if reply["id"] != number:
            raise ConnectionError(f"received a message about {reply['id']!r}, expected {number}")
        if reply["type"] == "answer":
            return answered(reply, started=started, sent=sent)
        found = refused(reply["problem"]["status"], reply["problem"], started=started, sent=sent)
        await self.close()  # otherwise each further group is refused in its own message
        return found

    async def close(self) -> None:
        """Abort without a closing handshake."""
        socket, self.socket = self.socket, None
        if socket is not None:
            socket.transport.abort()
            await socket.wait_closed()


class Reply(NamedTuple):
    """A response over HTTP, and when it was received."""

    status: int
    content: Any
    received: float

    def fields(self, **more: Any) -> Fields:
        found = answered(self.content) if self.status == 200 else refused(self.status, self.content)
        return found | {"received": self.received} | more


async def replied(response: aiohttp.ClientResponse) -> Reply:
    """Read a response; of a refusal without problem details, only the status."""
    content = await response.read()
    received = time.perf_counter()
    return Reply(response.status, json.loads(content) if response.content_type.endswith("json") else {}, received)


class Post(DrillClient):
    """A streamed POST, one line per group, by aiohttp, which reads an answer before the body is complete.

    Attributes
    ----------
    reconnect : open a connection for each request.
    """

    kind = "post"
    reconnect = False
    http: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """Connection pool, created on first use."""
        if self.http is None:
            self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=self.reconnect))
        return self.http

    async def close(self) -> None:
        http, self.http = self.http, None
        if http is not None:
            await http.close()

    async def exchange(self, number: int, values: Values) -> Fields:
        """Post lines; the body has no end if groups are missing."""
        sent, done = self.sent(number), asyncio.Event()

        async def lines() -> AsyncIterator[bytes]:
            yield b"\n"  # otherwise the headers wait for the first group
            for group in sent:
                yield json.dumps({"group": group, "values": values[group]}).encode() + b"\n"
            await done.wait()

        query, headers = f"deadline_ms={self.deadline_ms(number)}", {"Content-Type": "application/x-ndjson"}
        async with self.session.post(f"{self.url()}/predict?{query}", data=lines(), headers=headers) as response:
            found = await replied(response)
            done.set()
        return found.fields(sent=sent)


class Session(Post):
    """A session: created, sent groups in two parts, used for a prediction with a deadline, and deleted.

    If replicas share sessions, each request goes to the balancer, may reach another replica, and is retried once if its
    connection breaks.
    """

    kind = "session"

    def __init__(self, plan: Plan, model: Model, name: str, at: int) -> None:
        super().__init__(plan, model, name, at)
        self.balanced = self.reconnect = plan.shared

    async def exchange(self, number: int, values: Values) -> Fields:
        """Run all requests, and stop at the first refusal."""
        sent, opened = self.sent(number), time.perf_counter()
        created = await self._request("POST", "/sessions", {})
        if created.status != 201:
            return created.fields(sent=[], deadline_ms=None)
        path = f"/sessions/{created.content['id']}"
        for part in filter(None, (sent[::2], sent[1::2])):
            reply = await self._request("POST", f"{path}/groups", {group: values[group] for group in part})
            if reply.status != 200:
                return reply.fields(sent=sent, deadline_ms=None)
        started = time.perf_counter()
        reply = await self._request("GET", f"{path}/predict?deadline_ms={self.deadline_ms(number)}")
        await self._request("DELETE", path)
        return reply.fields(started=started, opened=opened, sent=sent, accepted=True)

    async def _request(self, method: str, path: str, body: Any = None) -> Reply:
        for retry in (True, False):
            try:
                async with self.session.request(method, self.url() + path, json=body) as response:
                    return await replied(response)
            except aiohttp.ClientError:
                if not retry or not self.plan.shared:
                    raise
        raise AssertionError("not reached")


KINDS: Mapping[str, type[DrillClient]] = {
    "run": Run,
    "predict": Predict,
    "threaded": ThreadedRun,
    "websocket": WebSocket,
    "post": Post,
    "session": Session,
}


NUMBERS_PER_CLIENT = 1_000_000
"""Distance between the first call numbers of two clients."""


class ClientReport(msgspec.Struct, frozen=True):
    """Final report of the clients: stalls, threads and descriptors before and after, and tasks after."""

    stalls: list[tuple[float, float]]
    threads: tuple[int, int]
    descriptors: tuple[int, int]
    tasks: int


class Clients(Process):
    """The process of the clients, which run until the end of the block."""

    def __init__(self, plan: Plan, **variables: str) -> None:
        self._out = Path(plan.out)
        self._out.with_suffix(".plan").write_bytes(msgspec.json.encode(plan))
        super().__init__("drills.clients", self._out.with_suffix(".plan"), **variables)

    def await_ready(self) -> None:
        """Wait until each client has been answered once; raise RuntimeError if the process ended."""
        self.line("ready")

    def start(self) -> None:
        self.say("go")

    def stop(self) -> tuple[list[Call], ClientReport]:
        """Stop, and return the calls and the final report."""
        self.end_input()
        report = msgspec.json.decode(self.line("{"), type=ClientReport)
        self.popen.wait(30)
        return list(read_calls(self._out)), report


async def run(plan: Plan, out: IO[bytes]) -> int:
    """Let each client make one call, then calls until the input ends; return the number of tasks that remain."""
    over, encode = asyncio.Event(), msgspec.json.Encoder().encode

    async def make_calls(client: DrillClient, numbers: Iterator[int], rng: np.random.Generator) -> None:
        at = time.perf_counter() + float(rng.uniform(0.0, plan.period_s))
        while not over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), max(at - time.perf_counter(), 0.0))
                return
            out.write(encode(await client.call(next(numbers))) + b"\n")
            # A delayed client does not catch up with a burst of calls.
            at = max(at + float(rng.exponential(plan.period_s)), time.perf_counter())

    model, named = load(plan.model), ((kind, n) for kind, count in plan.counts.items() for n in range(count))
    callers = [
        (KINDS[kind](plan, model, f"{kind} {n}", n), itertools.count(NUMBERS_PER_CLIENT * index))
        for index, (kind, n) in enumerate(named)
    ]
    for client, numbers in callers:
        with suppress(ValueError):
            await client.call(next(numbers))
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    rngs = np.random.default_rng(plan.seed).spawn(len(callers))
    tasks = [asyncio.create_task(make_calls(*each, rng)) for each, rng in zip(callers, rngs, strict=True)]
    await asyncio.to_thread(sys.stdin.read)
    over.set()
    await asyncio.gather(*tasks)
    await asyncio.gather(*(client.close() for client, _ in callers))
    return len(asyncio.all_tasks()) - 1


def main() -> None:
    pin_to_core(CLIENT_CORE)
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    with single_blas_thread(), Path(plan.out).open("wb") as out, watching_stalls() as stalls:
        before = footprint(os.getpid())
        tasks = asyncio.run(run(plan, out))
        gc.unfreeze()
        gc.collect()
        after = footprint(os.getpid())
    threads, descriptors = (before.threads, after.threads), (before.descriptors, after.descriptors)
    print(msgspec.json.encode(ClientReport(stalls, threads, descriptors, tasks)).decode(), flush=True)


if __name__ == "__main__":
    main()
