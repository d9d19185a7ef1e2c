"""Lateness that proxies with the shipped configurations add to answers: `python tests/benchmarks/proxies.py`.

Requests to one server, directly and through every installed proxy, are interleaved, so that noise of the machine
affects all alike. A client sends three of four groups until the deadline and never ends the request; the table shows
the lateness of the answer at the client, and how many groups it used. A complete POST has no deadline; its round trip
is shown instead. Prints a table in Markdown. Everything runs with real-time priority if permitted.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from anytime.model.model import Model
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from benchmarks.harness import script_options
from benchmarks.load.models import temporary_model, values_of
from deploy.proxy import PROXIES, run_proxy
from service.commands import command
from service.inferring import JSON_BYTES, binary
from service.serving import Connection, Running, packed

DEADLINE_MS = 20.0
GROUPS, SENT, WIDTH = 4, 3, 10
PAUSE_S = 0.004
"""Time between two groups."""
WARM_UP = 10

Values = Mapping[str, Sequence[float]]


class Client(Protocol):
    """A binding, over its own connections."""

    def predict(self) -> tuple[float, int]:
        """Return milliseconds from the beginning to the answer, and how many groups it used."""

    def close(self) -> None:
        """Close the connections."""


class WebSocketClient:
    """One WebSocket for all predictions."""

    def __init__(self, running: Running, values: Values, form: Form) -> None:
        self._stack = ExitStack()
        self._stream = self._stack.enter_context(running.stream(form))
        self._groups = {name: {"values": list(v)} if form is JSON else packed([v]) for name, v in values.items()}
        self._names = itertools.count()

    def predict(self) -> tuple[float, int]:
        """Begin, and send one message per group."""
        name = next(self._names)
        started = time.perf_counter()
        self._stream.say("begin", name, deadline_ms=DEADLINE_MS)
        for group, fields in self._groups.items():
            time.sleep(PAUSE_S)
            self._stream.say("group", name, group=group, **fields)
        answer = self._stream.answer(name)
        return (time.perf_counter() - started) * 1e3, len(answer["groups"])

    def close(self) -> None:
        self._stack.close()


class StreamedPost:
    """One connection per prediction, since an unfinished body uses it up."""

    def __init__(self, running: Running, values: Values) -> None:
        self._running = running
        self._lines = [json.dumps({"group": name, "values": list(v)}).encode() + b"\n" for name, v in values.items()]

    def predict(self) -> tuple[float, int]:
        """Send one chunk per group, and never the last one."""
        with self._running.connect() as connection:
            started = time.perf_counter()
            connection.head(f"deadline_ms={DEADLINE_MS}", content_type="application/x-ndjson")
            for line in self._lines:
                time.sleep(PAUSE_S)
                connection.send(b"%x\r\n%b\r\n" % (len(line), line))
            _, _, answer = connection.response()
            return (time.perf_counter() - started) * 1e3, len(answer["groups"])

    def close(self) -> None:
        """Do nothing."""


class Inference:
    """The Open Inference Protocol with binary tensors, one connection per prediction."""

    def __init__(self, running: Running, values: Values, model: Model) -> None:
        self._running = running
        last = {name: [0.0] * WIDTH for name in model.places if name not in values}  # announced, and never sent
        content, headers = binary({name: [v] for name, v in {**values, **last}.items()})
        size = int(headers[JSON_BYTES])
        request = f"POST /v2/models/{model.name}/infer?deadline_ms={DEADLINE_MS} HTTP/1.1"
        head_lines = [request, "Host: load", f"Content-Length: {len(content)}"]
        head = "\r\n".join([*head_lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()
        tensors = [content[at : at + 8 * WIDTH] for at in range(size, len(content), 8 * WIDTH)]
        self._pieces = [head + content[:size], *tensors[:SENT]]

    def predict(self) -> tuple[float, int]:
        """Send the tensors one by one."""
        with self._running.connect() as connection:
            started = time.perf_counter()
            for piece in self._pieces:
                connection.send(piece)
                time.sleep(PAUSE_S if piece is not self._pieces[-1] else 0)
            _, _, reply = connection.response()
            return (time.perf_counter() - started) * 1e3, len(json.loads(reply["parameters"]["groups"]))

    def close(self) -> None:
        """Do nothing."""


class Session:
    """A session: a GET waits for its deadline while another connection posts groups."""

    def __init__(self, running: Running, values: Values) -> None:
        self._waiting, self._posting = running.connect(), running.connect()
        self._bodies = [json.dumps({name: list(v)}).encode() for name, v in values.items()]

    def predict(self) -> tuple[float, int]:
        """Create the session before the clock starts."""
        _send(self._posting, "POST /sessions", b"")
        session = self._posting.response()[2]["id"]
        started = time.perf_counter()
        _send(self._waiting, f"GET /sessions/{session}/predict?deadline_ms={DEADLINE_MS}")
        for body in self._bodies:
            time.sleep(PAUSE_S)
            _send(self._posting, f"POST /sessions/{session}/groups", body)
            self._posting.response()
        answer = self._waiting.response()[2]
        return (time.perf_counter() - started) * 1e3, len(answer["groups"])

    def close(self) -> None:
        for connection in (self._waiting, self._posting):
            connection.__exit__()


class WholePost:
    """A body that is sent at once."""

    def __init__(self, running: Running, values: Values) -> None:
        self._connection = running.connect()
        self._body = json.dumps({"groups": {name: list(v) for name, v in values.items()}}).encode()

    def predict(self) -> tuple[float, int]:
        started = time.perf_counter()
        _send(self._connection, "POST /predict", self._body)
        answer = self._connection.response()[2]
        return (time.perf_counter() - started) * 1e3, len(answer["groups"])

    def close(self) -> None:
        self._connection.__exit__()


def _send(connection: Connection, request: str, body: bytes | None = None) -> None:
    form = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    connection.send(f"{request} HTTP/1.1\r\nHost: load\r\n{form}\r\n".encode() + (body or b""))


class Measured(NamedTuple):
    """Latency in milliseconds and number of groups of each answer."""

    took_ms: list[float]
    groups: list[int]


def clients(running: Running, model: Model) -> dict[str, Callable[[], Client]]:
    """Return the constructors of the clients, by binding."""
    rng = np.random.default_rng(3)
    values = {name: values_of(model, name, rng) for name in list(model.places)[:SENT]}
    return {
        "WebSocket, JSON": partial(WebSocketClient, running, values, JSON),
        "WebSocket, packed": partial(WebSocketClient, running, values, MSGPACK),
        "streamed POST": partial(StreamedPost, running, values),
        "session, waiting GET": partial(Session, running, values),
        "OIP, binary tensors": partial(Inference, running, values, model),
        "POST, whole: round trip": partial(WholePost, running, values),
    }


def measure(ways: Mapping[str, Running], model: Model, count: int) -> dict[str, dict[str, Measured]]:
    """Interleave the ways for one binding after the other."""
    makers = {way: clients(running, model) for way, running in ways.items()}
    bindings = next(iter(makers.values()))
    return {binding: interleave({way: make[binding]() for way, make in makers.items()}, count) for binding in bindings}


def interleave(clients_by_way: Mapping[str, Client], count: int) -> dict[str, Measured]:
    """Interleave the ways; the first turns are a warm-up."""
    found = {way: Measured([], []) for way in clients_by_way}
    for turn in range(count + WARM_UP):
        for way, client in clients_by_way.items():
            took, groups = client.predict()
            if turn >= WARM_UP:
                found[way].took_ms.append(took)
                found[way].groups.append(groups)
    for client in clients_by_way.values():
        client.close()
    return found


def rows(found: Mapping[str, Mapping[str, Measured]]) -> Iterator[list[str]]:
    """Yield rows of the table: lateness p50 / p99 in ms, difference and ratio to the direct one, mean groups used."""
    for binding, ways in found.items():
        due = 0.0 if "round trip" in binding else DEADLINE_MS
        median = {way: float(np.median(measured.took_ms)) - due for way, measured in ways.items()}
        cells = [binding]
        for way, measured in ways.items():
            more = ""
            if way != "direct":
                # A ratio to nearly zero is meaningless.
                ratio = f", {median[way] / median['direct']:.1f} x" if median["direct"] > 0.1 else ""
                more = f" ({median[way] - median['direct']:+.2f}{ratio})"
            times = f"{median[way]:.2f}{more} / {np.percentile(measured.took_ms, 99) - due:.2f}"
            cells.append(f"{times}; {np.mean(measured.groups):.2f}")
        yield cells


@contextmanager
def every_way(running: Running, names: Sequence[str]) -> Iterator[dict[str, Running]]:
    """Yield the service itself and each installed proxy."""
    with ExitStack() as stack:
        ways = {"direct": running}
        for name in names:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            try:
                ways[name] = stack.enter_context(run_proxy(name, [running.port], folder))
            except pytest.skip.Exception as missing:
                print(missing, file=sys.stderr)
        yield ways


def main() -> None:
    args = script_options(
        __doc__,
        count={"type": int, "default": 200, "help": "predictions per way and binding"},
        proxies={"nargs": "*", "choices": list(PROXIES), "default": list(PROXIES)},
    )
    with temporary_model(groups=GROUPS, size=WIDTH) as (path, model):
        with suppress(PermissionError):  # inherited by all processes started below
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        with command(path, ANYTIME_MAX_LATENESS_MS="1e6") as (_, running), every_way(running, args.proxies) as ways:
            found = measure(ways, model, args.count)
    print(f"| ms after a deadline of {DEADLINE_MS:g} ms: p50 / p99; groups used of {SENT} | {' | '.join(ways)} |")
    print(f"|{'---|' * (len(ways) + 1)}")
    for cells in rows(found):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
