"""The part of the report on serving: the same linear model behind each server on one core, the client on the other."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from benchmarks.harness import CLIENT_CORE, SERVER_CORE, TESTS, environment as environment_of, on_core, percentiles
from benchmarks.load.child import Child
from benchmarks.load.engine import CONNECTIONS, Counts, Load, Posts, saturate, saturate_websocket
from benchmarks.load.frames import HttpClient, post
from benchmarks.load.models import saved_model, values_of
from benchmarks.peers.environments import FailedError, installed
from benchmarks.peers.report import (
    Cell,
    Finding,
    Part,
    Section,
    Sheet,
    Spread,
    cell,
    compared,
    digits,
    interleave,
    mebibytes,
    ratios,
)
from benchmarks.peers.solvers import thread_variables
from system import free_port, started

RATE = 200.0
"""Requests per second at which latency is measured, within the capacity of the slowest server."""

START_S = 90.0
FIRST_S = 1.0
"""Warm-up of a server after it was stopped."""

TEXT = (
    "All serve the same linear model of 100 features in ten groups, and every answer is checked against the library. "
    "The floor is an ASGI application without a framework under the same uvicorn: it parses JSON, multiplies, and "
    "checks nothing. Ours is the product as `anytime serve` runs it, with deadlines, admission, metrics, validation "
    "and an answer with its groups and reason; only its admission control refuses nothing, as in the other servers. "
    "MLServer runs without workers, LitServe with one worker process (it has no other way), BentoML with one worker; "
    "each on the same core with all its processes, the client on the other. "
    "Servers that are not being measured are stopped (SIGSTOP).",
    "Requests per second: 16 connections, each sending the next request after an answer. Times are of requests due "
    f"at {RATE:g} per second in an open loop.",
)

Row = Mapping[str, list[float]]


@dataclass(frozen=True)
class Launcher:
    """How to start and call a server.

    Attributes
    ----------
    environment : "ours", or a file of `requirements`.
    command : a program of the environment and its arguments, from the port and its own folder, which it may fill.
    request : a request for the prediction of a row, from the numbers by group.
    read : the prediction, from the body of the response.
    """

    label: str
    environment: str
    command: Callable[[int, Path], Sequence[str]]
    request: Callable[[Row], bytes]
    read: Callable[[Any], float]


def _numbers(row: Row) -> list[float]:
    return [number for values in row.values() for number in values]


def _plain(path: str) -> Callable[[Row], bytes]:
    return lambda row: post(path, json.dumps({"x": _numbers(row)}).encode())


def _inference(row: Row) -> bytes:
    inputs = [{"name": "x", "shape": [1, 100], "datatype": "FP64", "data": _numbers(row)}]
    return post("/v2/models/linear/infer", json.dumps({"inputs": inputs}).encode())


def _by_groups(row: Row) -> bytes:
    return post("/predict", json.dumps({"groups": dict(row)}).encode())


def _adapter(name: str) -> Callable[[int, Path], Sequence[str]]:
    return lambda port, _folder: ["python", "-m", f"benchmarks.peers.adapters.{name}", str(port)]


def _ours(port: int, folder: Path) -> Sequence[str]:
    return ["python", "-m", "anytime", "serve", str(folder.parent / "linear.safetensors"), "--port", str(port)]


def _mlserver(port: int, folder: Path) -> Sequence[str]:
    grpc, metrics = free_port(), free_port()
    ports = {"host": "127.0.0.1", "http_port": port, "grpc_port": grpc, "metrics_port": metrics}
    model = {"name": "linear", "implementation": "benchmarks.peers.adapters.serve_mlserver.Linear"}
    (folder / "model-settings.json").write_text(json.dumps(model), encoding="utf-8")
    (folder / "settings.json").write_text(json.dumps(ports | {"parallel_workers": 0, "debug": False}), encoding="utf-8")
    return ["mlserver", "start", str(folder)]


def _bentoml(port: int, _folder: Path) -> Sequence[str]:
    where = ["--host", "127.0.0.1", "--port", str(port), "--working-dir", str(TESTS)]
    return ["bentoml", "serve", "benchmarks.peers.adapters.serve_bentoml:Linear", *where]


def _prediction(body: Any) -> float:
    return float(body["prediction"])


LAUNCHERS = (
    Launcher("bare uvicorn", "ours", _adapter("serve_bare"), _plain("/"), _prediction),
    Launcher("ours, POST /predict", "ours", _ours, _by_groups, _prediction),
    Launcher("MLServer", "mlserver", _mlserver, _inference, lambda body: float(body["outputs"][0]["data"][0])),
    Launcher("LitServe", "litserve", _adapter("serve_litserve"), _plain("/predict"), _prediction),
    Launcher("BentoML", "bentoml", _bentoml, _plain("/predict"), float),
)
"""The servers, the floor first."""

BARE, OURS = LAUNCHERS[0].label, LAUNCHERS[1].label
WEBSOCKET = "ours, WebSocket (11 messages a prediction)"


@dataclass
class Server:
    """A running server with all its processes, and what was measured besides rates.

    Attributes
    ----------
    cpu_us : processor time of a request, by measurement.
    took : latencies of each round.
    """

    launcher: Launcher
    process: subprocess.Popen[bytes]
    port: int
    pids: list[int] = field(default_factory=list)
    cpu_us: dict[str, list[float]] = field(default_factory=dict)
    took: list[list[float]] = field(default_factory=list)

    def find(self) -> None:
        """Find its processes: the first one and all its descendants, in any session."""
        self.pids = [self.process.pid]
        for pid in self.pids:  # grows during the loop
            for thread in Path(f"/proc/{pid}/task").glob("*/children"):
                with suppress(OSError):
                    self.pids += map(int, thread.read_text(encoding="ascii").split())

    @property
    def total_cpu_us(self) -> float:
        """Processor time of all threads of all its processes."""
        return sum(Child(pid, self.port).cpu_us for pid in self.pids)

    @property
    def memory_mib(self) -> float:
        """Memory of all its processes; shared memory counts once."""
        lines = "".join(Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii") for pid in self.pids).splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024.0

    def signal(self, what: signal.Signals) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, what)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let its processes run for the block; they are stopped otherwise."""
        self.signal(signal.SIGCONT)
        try:
            time.sleep(0.2)
            yield
        except OSError as error:
            raise FailedError(f"the connection ended: {error}") from error
        finally:
            self.signal(signal.SIGSTOP)

    def end(self) -> None:
        """Kill all its processes, also stopped ones."""
        self.find()
        self.signal(signal.SIGKILL)

    def rate(self, name: str, load: Callable[[float], tuple[int, float]], seconds: float) -> float:
        """Return requests per second, and note the processor time of each."""
        with self.running():
            load(min(FIRST_S, seconds))
            self.find()
            before = self.total_cpu_us
            count, passed = load(seconds)
            if not count:
                raise FailedError("no answer received")
            self.cpu_us.setdefault(name, []).append((self.total_cpu_us - before) / count)
            return count / passed

    def latency(self, load: Callable[[], list[float]]) -> float:
        """Return the median latency in milliseconds, and note all latencies."""
        with self.running():
            self.took.append(load())
            return percentiles(self.took[-1], 50)[0]


@contextmanager
def launched(launcher: Launcher, model: Path, folder: Path, row: Row) -> Iterator[Server]:
    """Run a server on its core from its first answer on; raise FailedError if it ends, or does not answer in time."""
    folder.mkdir(parents=True)
    port, program = free_port(), installed(launcher.environment).python.parent
    first, *others = launcher.command(port, folder)
    variables = environment_of(**thread_variables(1)) | {
        "PEERS_MODEL": str(model),
        "BENTOML_DO_NOT_TRACK": "True",
        "BENTOML_HOME": str(folder / "home"),
        "PATH": os.pathsep.join([str(program), os.environ["PATH"]]),
        "ANYTIME_MAX_LATENESS_MS": "60000",  # refuse nothing, like the other servers
    }
    assigned = [f"{name}={value}" for name, value in variables.items()]
    on_its_core = ["chrt", "--other", "0", "taskset", "--cpu-list", str(SERVER_CORE)]

    def answers() -> bool:
        with suppress(OSError), closing(HttpClient(port)) as client:
            client.send(launcher.request(row))
            return client.response()[0] == 200
        return False

    with ExitStack() as stack:
        try:
            command = ["env", *assigned, *on_its_core, program / first, *others]
            process = stack.enter_context(started(command, answers, folder, START_S))
        except AssertionError as error:
            raise FailedError(" ".join(str(error).split())[-200:]) from error
        server = Server(launcher, process, port)
        stack.callback(server.end)
        server.find()
        yield server


def saturate_posts(port: int, request: bytes, check: Callable[[bytes], object], seconds: float) -> tuple[int, float]:
    """Send requests on 16 connections, the next one after each answer; return the answers and the seconds.

    Raises
    ------
    FailedError
        An answer was not 200, or wrong.
    """

    def answers(client: HttpClient) -> int:
        found = client.poll()
        if found is not None:
            status, content = found
            if status != 200:
                raise FailedError(f"status {status}: {content[:200]!r}")
            check(content)
        return found is not None

    clients = [HttpClient(port) for _ in range(CONNECTIONS)]
    return saturate(clients, lambda client: client.send(request), answers, seconds)


def measure_latency(
    port: int, request: bytes, check: Callable[[bytes], object], rate: float, seconds: float
) -> list[float]:
    """Send `rate` requests per second in an open loop; return milliseconds from each to its answer."""
    load, counts = Load(), Counts()
    start = time.perf_counter() + 0.05
    with closing(load):
        posts = Posts(load, port, lambda: request, math.inf, check)
        for number in range(int(rate * seconds)):
            load.at(start + number / rate, partial(posts.begin, counts))
        load.run(lambda: counts.good == counts.sent, 5.0)
    if counts.good < counts.sent:
        raise FailedError(f"cannot answer {rate:g} requests a second: {counts.good} of {counts.sent} were answered")
    return counts.took_ms


def serving(_data: Path, quick: bool) -> Section:
    """Measure, and return the section."""
    rounds, seconds = (3, 1.0) if quick else (5, 2.0)
    environments = dict.fromkeys(launcher.environment for launcher in LAUNCHERS)
    part, servers = Part("Serving the same linear model", *environments), list[Server]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = saved_model(folder / "linear.safetensors", groups=10, size=10)
        prefixes, k = model.prefixes, model.steps
        coef = prefixes.coef(k)[:, 0]  # in the order in which groups are sent
        intercept = float(prefixes.intercept_of(k)[0] - prefixes.mean[prefixes.columns] @ coef)
        np.savez(folder / "linear.npz", coef=coef, intercept=intercept)
        rng = np.random.default_rng(5)
        row = {name: values_of(model, name, rng) for name in model.places}
        for number, launcher in enumerate(LAUNCHERS):
            with part.trying(launcher.label):
                server = launched(launcher, folder / "linear.npz", folder / str(number), row)
                servers.append(stack.enter_context(server))
        with on_core(CLIENT_CORE):
            _measure(servers, model, row, rounds, seconds, part)
    return part.section(*TEXT)


def _measure(servers: Sequence[Server], model: Model, row: Row, rounds: int, seconds: float, part: Part) -> None:
    """Measure all servers, interleaved, and compare ours with each."""
    prediction = Prediction(model, 1)
    for name, values in row.items():
        prediction.add(name, values)
    expected = float(prediction.answer().prediction)
    measures: dict[str, Callable[[], float]] = {}
    by_label: dict[str, Server] = {}
    for server in servers:
        server.signal(signal.SIGSTOP)
        label, request = server.launcher.label, server.launcher.request(row)
        check = partial(check_answer, server.launcher.read, expected)
        loads = {label: partial(saturate_posts, server.port, request, check)}
        if label == OURS:
            loads[WEBSOCKET] = partial(saturate_websocket, server.port, row, check=check)
        for name, load in loads.items():
            by_label[name] = server
            measures[name] = partial(server.rate, name, load, seconds)
        latency = partial(measure_latency, server.port, request, check, RATE, seconds)
        measures[f"{label} at a rate"] = partial(server.latency, latency)
    results = interleave(measures, rounds)
    part.findings += [Finding("absent", f"{label}: {why}") for label, why in results.failed.items()]
    rows: list[tuple[Cell, ...]] = []
    for label, server in by_label.items():
        rate = results.values[label]
        if not rate:
            continue
        times: list[Cell] = [None, None]
        if label != WEBSOCKET and len(server.took) > 1:  # the first is the warm-up
            of = zip(*(percentiles(took, 50, 99) for took in server.took[1:]), strict=True)
            times = [str(Spread.of(values)) for values in of]
        with server.running():
            memory = None if label == WEBSOCKET else mebibytes(server.memory_mib)
        cpu_us = digits(Spread.of(server.cpu_us[label][1:]).median)
        rows.append((label, f"{np.median(rate):,.0f}", cell(results.ratio(label, BARE)), cpu_us, *times, memory))
        if label not in (OURS, WEBSOCKET) and results.values.get(OURS):
            ratio = ratios(results.values[OURS], rate)
            part.findings.append(compared(f"requests/s, ours by POST / {label}: {ratio}", ratio.median > 1))
    columns = ("", "requests/s", "of bare uvicorn", "CPU us a request", f"ms at {RATE:g}/s: median", "99%", "memory")
    part.sheets.append(Sheet("One core for the server with all its processes", columns, tuple(rows)))


def check_answer(read: Callable[[Any], float], expected: float, content: bytes) -> None:
    """Raise unless an answer is what the library predicts."""
    try:
        found = read(json.loads(content))
    except (KeyError, TypeError, ValueError) as error:
        raise FailedError(f"no prediction: {content[:200]!r}") from error
    if not math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9):
        raise FailedError(f"answered {found}, expected {expected}")
