"""Every element of the table of limits at its limit: `python tests/drills/costs.py [--quick] [--only WORD]`.

The service runs on one core with a wide model, 100 classes, 500 groups and categories. For each row, 20 connections
drive the element to its limit on a binding, five rounds long. Another process measures a bare timer and clients with
deadlines of 30 ms. Exits with 1 if resident memory exceeds `max_held_bytes` + 64 MiB or grows from round to round, if
a turn of the loop takes 20 ms of processor time more than the bare timer is late, or if others' answers are more than
5 ms later than it without being refused.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec
import numpy as np
import pandas as pd

from anytime._linalg import single_blas_thread
from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime_service.limits.table import FIELDS, HEADERS, IDS, NAME_LENGTH, NAMES, PAGES, TABLE, WAITING
from benchmarks.harness import CLIENT_CORE, Table, conclude, flag, percentiles, script_options, violations
from benchmarks.load.child import Child, server
from benchmarks.load.frames import frame
from drills.attacks.bodies import post_request
from drills.attacks.frames import UPGRADE_REQUEST
from drills.attacks.wire import connect, receive, send_all
from drills.clients import Clients, Plan
from drills.cluster import measuring_memory, metric, raise_priority

HELD_MIB, CONNECTIONS, ROUNDS = 128, 20, 5
MAX_TURN_MS, MAX_LATE_MS, MAX_MIB, GROWTH_MIB = 20.0, 5.0, HELD_MIB + 64, 16.0
SETTLED_S, RELEASED_S, LEFT_BYTES = 0.3, 5.0, 1024 * CONNECTIONS
OTHERS, DEADLINE_MS, PERIOD_S = 8, 30.0, 0.06
HELD = "anytime_held_bytes"
ROWS = 10_000
FIGURES = Table(
    ("element", "<48.47"),
    ("binding", "<10"),
    ("turn ms", ">10.1f"),
    ("bare", ">7.1f"),
    ("late ms", ">9.1f"),
    ("refused", ">9"),
    ("MiB", ">+7.0f"),
    ("after", ">+7.0f"),
)
MSGPACK = "application/msgpack"

MODELS: Mapping[str, Mapping[str, Any]] = {
    "load": {"groups": 10, "size": 3},
    "wide": {"groups": 30, "size": 100},
    "many": {"groups": 500, "size": 1},
    "c10": {"groups": 5, "size": 2, "classes": 10},
    "c100": {"groups": 5, "size": 2, "classes": 100},
    "cats": {"groups": 5, "size": 2, "levels": 20},
}
"""`wide` has 3,000 columns, and `many` 500 groups."""


def save_models(folder: Path) -> list[Path]:
    """Train and save the models, with their moments; return their files."""
    for name, shape in MODELS.items():
        _save(folder / f"{name}.safetensors", name, **shape)
    return [folder / f"{name}.safetensors" for name in MODELS]


def _save(path: Path, name: str, groups: int, size: int, classes: int = 0, levels: int = 0) -> None:
    rng = np.random.default_rng(0)
    named: list[dict[str, Any]] = [
        {"name": f"g{g}", "features": [f"x{g}_{j}" for j in range(size)], "cost": 1.0 + g % 7} for g in range(groups)
    ]
    X = pd.DataFrame(rng.standard_normal((2 * groups * size + 200, groups * size)))
    X.columns = pd.Index([feature for each in named for feature in each["features"]])
    y = X.to_numpy() @ rng.standard_normal(groups * size)
    if levels:
        X["x0_0"] = rng.choice([f"level {i}" for i in range(levels)], len(X))
    if classes:
        y = np.array([f"class {i}" for i in rng.permutation(np.arange(len(X)) % classes)])
    kind: Any = AnytimeClassifier if classes else AnytimeRegressor
    with single_blas_thread():
        trainer = kind(
            {"cost_unit": "ms", "groups": named}, family="gaussian", alpha=0.01, basis=None, cv=None, pairs=0
        )
        trainer.fit(X, y).save(path, name=name)


Act = Callable[[int], None]
"""Drives an element to its limit once, on one connection of a port."""


@dataclass(frozen=True)
class Drive:
    """One way to drive an element of the table to its limit."""

    element: str
    binding: str
    act: Act


def main() -> None:
    """Drive and print; exit with 1 if a promise is broken."""
    args = script_options(
        __doc__, quick=flag("a single round of each"), only={"default": "", "help": "a word of an element or binding"}
    )
    os.sched_setaffinity(0, {CLIENT_CORE})
    with suppress(PermissionError):  # others' programs would count as lateness
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    drives = [each for each in DRIVES if args.only in f"{each.element} {each.binding}"]
    print(FIGURES.head)
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as folder, driving(Path(folder)) as run:
        for drive in drives:
            broken += run(drive, 1 if args.quick else ROUNDS)
    conclude(broken, ran=bool(drives))


@contextmanager
def driving(folder: Path) -> Iterator[Callable[[Drive, int], list[str]]]:
    """Run the server with all models; yield the function that drives an element for some rounds."""
    models = save_models(folder)
    with server("service", *models, ANYTIME_MAX_HELD_BYTES=str(HELD_MIB << 20)) as child:
        raise_priority(child.pid)  # with real-time priority, an attack would make the kernel stop it for 50 ms a second
        out = str(folder / "calls.jsonl")
        plan = Plan(str(models[0]), out, child.port, [child.port], {"websocket": OTHERS}, [DEADLINE_MS], PERIOD_S)
        yield partial(_run, child, plan, child.resident_mib)


def _run(child: Child, plan: Plan, idle_mib: float, drive: Drive, rounds: int) -> list[str]:
    """Drive one element; print the figures, and return the promises that it breaks."""
    before, residents = metric(child.port, HELD), list[float]()
    with Clients(plan) as others, measuring_memory(child.pid) as memory_mib:
        others.await_ready()
        child.measured()
        others.start()
        for _ in range(rounds):
            with ThreadPoolExecutor(CONNECTIONS) as pool:
                list(pool.map(_quietly, [drive.act] * CONNECTIONS, [child.port] * CONNECTIONS))
            time.sleep(SETTLED_S)
            residents.append(child.resident_mib)
        calls, client_report = others.stop()
    worked_ms = child.measured().worked_ms
    until = time.monotonic() + RELEASED_S
    while (held := metric(child.port, HELD)) > before + LEFT_BYTES and time.monotonic() < until:
        time.sleep(SETTLED_S)  # the last predictions may still be open
    bare_ms = max(((end - begin) * 1e3 for begin, end in client_report.stalls), default=0.0)
    late_ms = percentiles([call.late_ms for call in calls if call.answer is not None], 90)[0]
    refused = sum(call.answer is None for call in calls)
    memory = [mib - idle_mib for mib in (max(memory_mib), residents[-1])]
    print(FIGURES.row(drive.element, drive.binding, worked_ms, bare_ms, late_ms, refused, *memory), flush=True)
    grows = len(residents) == ROUNDS and residents[-1] > max(residents[:2]) + GROWTH_MIB
    broken = violations(
        (memory[0] > MAX_MIB, f"{memory[0]:.0f} MiB more than idle, at most {MAX_MIB}"),
        (grows, f"memory grows from round to round: {', '.join(f'{each:.0f}' for each in residents)} MiB"),
        (
            worked_ms > bare_ms + MAX_TURN_MS,
            f"a turn of the loop took {worked_ms:.1f} ms, a bare timer was {bare_ms:.1f} ms late",
        ),
        (late_ms > bare_ms + MAX_LATE_MS, f"others' answers were {late_ms:.1f} ms late, a bare timer {bare_ms:.1f}"),
        (held > before + LEFT_BYTES, f"{held:.0f} bytes count as stored {RELEASED_S:g} s later, {before:.0f} before"),
    )
    return [f"{drive.element}, {drive.binding}: {each}" for each in broken]


def _quietly(act: Act, port: int) -> None:
    with suppress(OSError):  # the server may close
        act(port)


# Requests.


def send(*pieces: bytes, reads: float = 3.0, keep_s: float = 0.0) -> Act:
    """Send pieces on one connection, and read for some time, or leave the replies unread for `keep_s`."""

    def act(port: int) -> None:
        with connect(port, None if reads else 4096) as sock:
            for piece in pieces:
                send_all(sock, piece)
            if reads:
                receive(sock, reads, 64 << 20)
            time.sleep(keep_s)

    return act


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: costs\r\n\r\n".encode()


def packed(groups: Mapping[str, np.ndarray]) -> bytes:
    return msgspec.msgpack.encode({"groups": {name: _packed(each) for name, each in groups.items()}})


def _packed(values: np.ndarray) -> dict[str, object]:
    return {"dtype": "f8", "values": values.tobytes()}


def stream(*messages: Mapping[str, object]) -> list[bytes]:
    """Return a handshake and messages in binary frames."""
    return [UPGRADE_REQUEST, b"".join(frame(2, msgspec.msgpack.encode(each)) for each in messages)]


def begin(name: int, **options: object) -> dict[str, object]:
    return {"type": "begin", "id": name, "deadline_ms": 2000, **options}


def group(name: int, label: str, values: np.ndarray) -> dict[str, object]:
    return {"type": "group", "id": name, "group": label, **_packed(values)}


def ones(rows: int, columns: int) -> np.ndarray:
    return np.ones((rows, columns))


def infer(content: bytes, model: str = "load") -> bytes:
    return post_request(content, path=f"/v2/models/{model}/infer?deadline_ms=500")


def predict(groups: Mapping[str, np.ndarray], model: str, **options: object) -> bytes:
    query = "&".join(f"{name}={value}" for name, value in {"model": model, **options}.items())
    return post_request(packed(groups), MSGPACK, f"/predict?{query}")


def session(rows: int, model: str, waiters: int) -> Act:
    """Let some predictions wait for a session, and then post its groups."""

    def act(port: int) -> None:
        with connect(port) as sock, ExitStack() as stack:
            send_all(sock, post_request(msgspec.json.encode({"model": model, "rows": rows}), path="/sessions"))
            reply = receive(sock)[0].partition(b"\r\n\r\n")[2]
            with suppress(msgspec.DecodeError):
                name = msgspec.json.decode(reply).get("id")
                socks = [stack.enter_context(connect(port)) for _ in range(waiters)]
                for each in socks:
                    send_all(each, get(f"/sessions/{name}/predict?deadline_ms=2000"))
                content = msgspec.msgpack.encode({f"g{i}": _packed(ones(rows, 2)) for i in range(5)})
                send_all(sock, post_request(content, MSGPACK, f"/sessions/{name}/groups"))
                for each in (sock, *socks):
                    receive(each, 3.0, 64 << 20)
                with connect(port) as last:
                    send_all(last, f"DELETE /sessions/{name} HTTP/1.1\r\nHost: costs\r\n\r\n".encode())
                    receive(last)

    return act


_MANY_HEADERS = b"GET /livez HTTP/1.1\r\nHost: costs\r\n" + b"ab:cd\r\n" * (int(HEADERS) - 1)
_LONG_HEAD = b"GET /livez HTTP/1.1\r\nHost: costs\r\nx: " + b"y" * 16_000
_LIST = ",".join(["0.1234567890123456"] * 49_000)
_FIELDS = b'{"inputs":[],"outputs":[' + b",".join([b'{"name":"x"}'] * (int(FIELDS) - 10)) + b"]}"

DRIVES = (
    Drive("connections", "HTTP", send(get("/livez"), keep_s=0.2)),
    Drive("bytes of a head", "HTTP", send(_LONG_HEAD, reads=0.1)),
    Drive(HEADERS.element, "HTTP", send(_MANY_HEADERS, reads=0.1)),
    Drive(HEADERS.element, "WebSocket", send(_MANY_HEADERS.replace(b"/livez", b"/stream") + b"\r\n", reads=0.2)),
    Drive(WAITING.element, "HTTP", send(get("/models/many") * (int(WAITING) // 30), reads=1.0)),
    Drive("bytes of a body or message", "POST", send(predict({f"g{i}": ones(600, 100) for i in range(30)}, "wide"))),
    Drive(
        "bytes of a body or message",
        "WebSocket",
        send(*stream(begin(1, model="wide"), group(1, "g0", ones(ROWS, 100)))),
    ),
    Drive(
        "bytes of JSON",
        "POST",
        send(post_request(b'{"groups":{"g0":[' + b" " * 1_000_000 + b"1,1,1]}}", path="/predict?model=load")),
    ),
    Drive(
        "values in lists of JSON",
        "POST",
        send(post_request(f'{{"groups":{{"g0":[{_LIST}]}}}}'.encode(), path="/predict?model=cats")),
    ),
    Drive(
        "values in lists of JSON",
        "OIP",
        send(infer(f'{{"inputs":[{{"name":"g0","shape":[7000,7],"datatype":"FP64","data":[{_LIST}]}}]}}'.encode())),
    ),
    Drive(FIELDS.element, "OIP", send(infer(_FIELDS))),
    Drive(
        FIELDS.element,
        "POST",
        send(
            post_request(
                msgspec.json.encode({"groups": {f"{i}": [] for i in range(int(FIELDS) - 1)}}),
                path="/predict?model=load",
            )
        ),
    ),
    Drive(NAMES.element, "POST", send(predict({f"{i}": ones(0, 1) for i in range(int(NAMES))}, "many"))),
    Drive(
        NAMES.element,
        "WebSocket",
        send(
            *stream(
                begin(1, model="many", policy="arrived", budget=1e6),
                *[group(1, f"g{i}", ones(1, 1)) for i in range(499)],
            )
        ),
    ),
    Drive(NAME_LENGTH.element, "POST", send(predict({"y" * int(NAME_LENGTH): ones(0, 1)}, "many"))),
    Drive(
        NAME_LENGTH.element,
        "WebSocket",
        send(*stream(begin(1, model="many"), *[group(1, "y" * int(NAME_LENGTH), ones(0, 1))] * 50)),
    ),
    Drive("rows", "POST", send(predict({f"g{i}": ones(ROWS, 2) for i in range(5)}, "c100"), reads=6.0)),
    Drive(
        "rows",
        "WebSocket",
        send(*stream(*[begin(i, model="c10", rows=ROWS, deadline_ms=0) for i in range(3)]), reads=6.0),
    ),
    Drive("rows", "session", session(ROWS, "c10", 3)),
    Drive(
        "rows",
        "lines",
        send(
            post_request(
                b'{"group":"g0","values":[' + b",".join([b'["a",0]'] * 9000) + b"]}\n",
                "application/x-ndjson",
                "/predict?model=cats&deadline_ms=500",
            )
        ),
    ),
    Drive(
        "messages a second of a connection",
        "WebSocket",
        send(*stream(begin(1, model="load"), *[group(1, "g0", ones(1, 3))] * 2000), reads=1.0),
    ),
    Drive(
        "open predictions of a WebSocket",
        "WebSocket",
        send(*stream(*[begin(i, model="load", deadline_ms=300) for i in range(1024)])),
    ),
    Drive(
        IDS.element, "WebSocket", send(*stream(*[begin(i, model="load", deadline_ms=0) for i in range(2 * int(IDS))]))
    ),
    Drive("open predictions", "POST", send(get("/predict?session=x") * 10, reads=1.0)),
    Drive("sessions", "session", send(post_request(b'{"model":"many"}', path="/sessions") * 20, reads=1.0)),
    Drive(
        "numbers of an answer made at once",
        "WebSocket",
        send(*stream(*[begin(i, model="load", rows=2000, deadline_ms=0, ranking=True) for i in range(20)])),
    ),
    Drive(
        "numbers of an answer made at once",
        "POST",
        send(predict({f"g{i}": ones(33, 100) for i in range(30)}, "wide", explain="true")),
    ),
    Drive(
        PAGES.element,
        "pages",
        send(get("/models/wide/sample") * 4 + get("/models/many/plan") * 4 + get("/openapi.json")),
    ),
    Drive(PAGES.element, "unread", send(get("/console/swagger-ui-bundle.js") * 3, reads=0.0, keep_s=0.5)),
    Drive(
        "stored base rates",
        "POST",
        send(
            b"".join(
                post_request(b'{"groups":{}}', path=f"/predict?model=load&overload=prior&rows=10000&budget={i}")
                for i in range(20)
            )
        ),
    ),
    Drive("bytes of a stored base rate", "POST", send(predict({}, "c100", overload="prior", rows=ROWS))),
)
"""At least one for each element of the table."""

assert {each.element for each in DRIVES} == {each.element for each in TABLE if each.counted != "Redis"}

if __name__ == "__main__":
    main()
