"""Lateness that proxies with the shipped configurations add to answers: `python tests/benchmarks/proxies.py`.

Requests to one server, directly and through every installed proxy, are interleaved, so that noise of the machine
affects all alike. A client sends three of four groups until the deadline and never ends the request; the table shows
the lateness of the answer at the client, and how many groups it used. A complete POST has no deadline; its round trip
is shown instead. Prints a table in Markdown. Everything runs with real-time priority if permitted.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from anytime.model.model import Model
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from benchmarks.harness import script_options, set_priority, turns
from benchmarks.load.models import temporary_model, values_of
from deploy.project import PROXIES, run_proxy
from service.commands import command
from service.inferring import JSON_BYTES, binary, half_sent
from service.serving import Connection, Running, packed

DEADLINE_MS = 20.0
GROUPS, SENT, WIDTH = 4, 3, 10
PAUSE_S = 0.004
"""Time between two groups."""
WARM_UP = 10

Values = Mapping[str, Sequence[float]]
Predict = Callable[[], tuple[float, Any]]
"""Makes a prediction by a binding; returns when it began, by `time.perf_counter`, and its answer."""


@contextmanager
def websocket(running: Running, values: Values, form: Form) -> Iterator[Predict]:
    """One WebSocket for all predictions, with one message per group."""
    groups = {name: {"values": list(v)} if form is JSON else packed([v]) for name, v in values.items()}
    names = itertools.count()
    with running.stream(form) as stream:

        def predict() -> tuple[float, Any]:
            name, began = next(names), time.perf_counter()
            stream.say("begin", name, deadline_ms=DEADLINE_MS)
            for group, fields in groups.items():
                time.sleep(PAUSE_S)
                stream.say("group", name, group=group, **fields)
            return began, stream.answer(name)

        yield predict


@contextmanager
def streamed_post(running: Running, values: Values) -> Iterator[Predict]:
    """One connection per prediction, since an unfinished body uses it up: a chunk per group, and never the last one."""
    lines = [json.dumps({"group": name, "values": list(v)}).encode() + b"\n" for name, v in values.items()]

    def predict() -> tuple[float, Any]:
        with running.connect() as connection:
            began = time.perf_counter()
            connection.head(f"deadline_ms={DEADLINE_MS}", content_type="application/x-ndjson")
            for line in lines:
                time.sleep(PAUSE_S)
                connection.send(b"%x\r\n%b\r\n" % (len(line), line))
            return began, connection.response()[2]

    yield predict


@contextmanager
def inference(running: Running, values: Values, model: Model) -> Iterator[Predict]:
    """The Open Inference Protocol: one connection per prediction, on which binary tensors are sent one by one."""
    last = {name: [0.0] * WIDTH for name in model.places if name not in values}  # announced, and never sent
    content, headers = binary({name: [v] for name, v in {**values, **last}.items()})
    ends = range(int(headers[JSON_BYTES]), len(content), 8 * WIDTH)

    def predict() -> tuple[float, Any]:
        query = f"deadline_ms={DEADLINE_MS}"
        with half_sent(running, content, ends[0], model.name, query, **headers) as connection:
            began = time.perf_counter()
            for end in ends[:SENT]:
                time.sleep(PAUSE_S)
                connection.send(content[end : end + 8 * WIDTH])
            return began, {"groups": json.loads(connection.response()[2]["parameters"]["groups"])}

    yield predict


@contextmanager
def session(running: Running, values: Values) -> Iterator[Predict]:
    """A session: a GET waits for its deadline while another connection posts groups."""
    bodies = [json.dumps({name: list(v)}).encode() for name, v in values.items()]
    with running.connect() as waiting, running.connect() as posting:

        def predict() -> tuple[float, Any]:
            _send(posting, "POST /sessions", b"")
            path = f"/sessions/{posting.response()[2]['id']}"
            began = time.perf_counter()
            _send(waiting, f"GET {path}/predict?deadline_ms={DEADLINE_MS}")
            for body in bodies:
                time.sleep(PAUSE_S)
                _send(posting, f"POST {path}/groups", body)
                posting.response()
            return began, waiting.response()[2]

        yield predict


@contextmanager
def whole_post(running: Running, values: Values) -> Iterator[Predict]:
    """A body that is sent at once."""
    body = json.dumps({"groups": {name: list(v) for name, v in values.items()}}).encode()
    with running.connect() as connection:

        def predict() -> tuple[float, Any]:
            began = time.perf_counter()
            _send(connection, "POST /predict", body)
            return began, connection.response()[2]

        yield predict


def _send(connection: Connection, request: str, body: bytes | None = None) -> None:
    form = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    connection.send(f"{request} HTTP/1.1\r\nHost: load\r\n{form}\r\n".encode() + (body or b""))


def timed(predict: Predict) -> tuple[float, int]:
    """Return milliseconds from the beginning to the answer, and how many groups it used."""
    began, answer = predict()
    return (time.perf_counter() - began) * 1e3, len(answer["groups"])


Found = Mapping[str, Sequence[tuple[float, int]]]
"""Results of `timed` by way."""


def measure(ways: Mapping[str, Running], model: Model, count: int) -> Iterator[tuple[str, Found]]:
    """Yield the results of one binding after the other, for which the ways are interleaved."""
    rng = np.random.default_rng(3)
    values = {name: values_of(model, name, rng) for name in list(model.places)[:SENT]}
    bindings: dict[str, Callable[[Running], AbstractContextManager[Predict]]] = {
        "WebSocket, JSON": lambda running: websocket(running, values, JSON),
        "WebSocket, packed": lambda running: websocket(running, values, MSGPACK),
        "streamed POST": lambda running: streamed_post(running, values),
        "session, waiting GET": lambda running: session(running, values),
        "OIP, binary tensors": lambda running: inference(running, values, model),
        "POST, whole: round trip": lambda running: whole_post(running, values),
    }
    for binding, connected in bindings.items():
        with ExitStack() as stack:
            clients = {way: stack.enter_context(connected(running)) for way, running in ways.items()}
            found = turns({way: partial(timed, predict) for way, predict in clients.items()}, count + WARM_UP)
        yield binding, {way: values[WARM_UP:] for way, values in found.items()}


def cells_of(binding: str, found: Found) -> Iterator[str]:
    """Yield cells of the table: lateness p50 / p99 in ms, difference and ratio to the direct one, mean groups used."""
    yield binding
    due = 0.0 if "round trip" in binding else DEADLINE_MS
    direct = float(np.median([took for took, _ in found["direct"]])) - due
    for way, results in found.items():
        took, groups = np.transpose(results)
        median, more = float(np.median(took)) - due, ""
        if way != "direct":  # a ratio to nearly zero is meaningless
            more = f" ({median - direct:+.2f}{f', {median / direct:.1f} x' if direct > 0.1 else ''})"
        yield f"{median:.2f}{more} / {np.percentile(took, 99) - due:.2f}; {np.mean(groups):.2f}"


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
        set_priority()  # inherited by all processes started below
        with command(path, ANYTIME_MAX_LATENESS_MS="1e6") as (_, running), every_way(running, args.proxies) as ways:
            found = list(measure(ways, model, args.count))
    print(f"| ms after a deadline of {DEADLINE_MS:g} ms: p50 / p99; groups used of {SENT} | {' | '.join(ways)} |")
    print(f"|{'---|' * (len(ways) + 1)}")
    for each in found:
        print(f"| {' | '.join(cells_of(*each))} |")


if __name__ == "__main__":
    main()
