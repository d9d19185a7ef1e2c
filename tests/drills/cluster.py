"""The machine: stalls, priorities, resources of processes; and replicas of the service on it, as an operator runs them.

They share a Redis, are started, stopped and restarted, and observed by probes, predictions, and their memory.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness import SERVER_CORE, on_core, set_priority
from benchmarks.load.child import Child
from service.redis_server import RedisServer
from system import free_port

INTERVAL_S = 0.001
STALL_S = 0.001
"""A sleep longer by more than this is recorded as a stall."""

MAX_GROWTH = {"mib": 32.0, "descriptors": 8, "threads": 8}
"""A service fills its pools of threads and Redis connections once; a leak is of hundreds."""


@contextmanager
def repeating(check: Callable[[], object], every_s: float = 0.1) -> Iterator[None]:
    """Repeat a check in a thread until the end of the block."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(every_s):
            check()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def watching_stalls(*cores: int) -> Iterator[list[tuple[float, float]]]:
    """Record stalls with a bare timer in a thread, on the given cores or those of the process.

    Yield due time and actual end of each late sleep, by `time.perf_counter`.
    """
    stalls: list[tuple[float, float]] = []

    def sleep() -> None:
        os.sched_setaffinity(0, cores or os.sched_getaffinity(0))
        due = time.perf_counter() + INTERVAL_S
        pause(INTERVAL_S)
        now = time.perf_counter()
        if now - due > STALL_S:
            stalls.append((due, now))

    with repeating(sleep, 0.0):
        yield stalls


def pause(seconds: float) -> None:
    """Sleep; unlike `time.sleep`, this also works under libfaketime."""
    select.select((), (), (), seconds)


@contextmanager
def low_priority(core: int) -> Iterator[None]:
    """Start the processes of the block on one core with normal priority."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    with on_core(core):
        set_priority(real_time=False)
        try:
            yield
        finally:
            with suppress(PermissionError):
                os.sched_setscheduler(0, policy, parameters)


def raise_priority(pid: int) -> None:
    """Raise a process to the scheduling policy and priority of this one."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(PermissionError):
            os.sched_setscheduler(int(thread.name), policy, parameters)
            os.setpriority(os.PRIO_PROCESS, int(thread.name), os.getpriority(os.PRIO_PROCESS, 0))


@dataclass(frozen=True)
class Footprint:
    pid: int
    mib: float
    descriptors: int
    threads: int


def footprint(pid: int) -> Footprint:
    """Return the resources of a process."""
    here = Path(f"/proc/{pid}")
    return Footprint(
        pid, Child(pid, 0).resident_mib, len(list((here / "fd").iterdir())), len(list((here / "task").iterdir()))
    )


def leaks(before: Sequence[Footprint], after: Sequence[Footprint]) -> list[str]:
    """Return the resources that grew between two observations; new processes are ignored."""
    earlier = {each.pid: vars(each) for each in before}
    return [
        f"process {now.pid} has {getattr(now, name):.0f} {name}, {earlier[now.pid][name]:.0f} before"
        for now in after
        for name, growth in MAX_GROWTH.items()
        if now.pid in earlier and getattr(now, name) > earlier[now.pid][name] + growth
    ]


START_S = 60.0


@dataclass(frozen=True)
class Reply:
    """A response to a direct request; `ahead_s` is the server's clock minus ours."""

    status: int
    kind: str
    content: Any
    ahead_s: float

    @property
    def problem(self) -> bool:
        """Whether the content is problem details with a reason."""
        return self.kind == "application/problem+json" and bool(self.content.get("detail"))


def request(
    port: int,
    method: str,
    path: str,
    timeout_s: float = 10.0,
    body: bytes | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Reply:
    """Send a request on a new connection; raise OSError or HTTPException if it is not answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, body, {"Connection": "close", **headers})
        response = connection.getresponse()
        kind, content = response.headers.get_content_type(), response.read()
        ahead_s = parsedate_to_datetime(response.headers["Date"]).timestamp() - time.time()
        return Reply(response.status, kind, json.loads(content) if kind.endswith("json") else content.decode(), ahead_s)
    finally:
        connection.close()


def ready(port: int) -> bool:
    """Return whether a replica reports readiness."""
    with suppress(OSError, http.client.HTTPException):
        return request(port, "GET", "/readyz", 1.0).status == 200
    return False


def metric(port: int, name: str) -> float:
    """Return the sum of a metric over its labels."""
    families = text_string_to_metric_families(request(port, "GET", "/metrics").content)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def wait_for(condition: Callable[[], bool], timeout_s: float) -> float | None:
    """Wait for a condition; return the seconds that it took, None after a timeout."""
    started = time.perf_counter()
    while not condition():
        if time.perf_counter() - started > timeout_s:
            return None
        time.sleep(0.02)
    return time.perf_counter() - started


@contextmanager
def probing(*ports: int) -> Iterator[list[float]]:
    """Request `/livez` on new connections, as an orchestrator does.

    Yield the seconds until each probe was answered with 200; infinite if it was not.
    """
    latencies_s: list[float] = []

    def probe() -> None:
        for port in ports:
            started, answered = time.perf_counter(), False
            with suppress(OSError, http.client.HTTPException):
                answered = request(port, "GET", "/livez", 5.0).status == 200
            latencies_s.append(time.perf_counter() - started if answered else float("inf"))

    with repeating(probe):
        yield latencies_s


@dataclass
class Predictions:
    """What a client of the predictions sees.

    Attributes
    ----------
    latencies_s : seconds until each answer; infinite if there was none.
    wrong : answers with other scores, and refusals other than 503.
    shed : number of answers with 503.
    """

    latencies_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    shed: int = 0


@contextmanager
def predicting(port: int, body: bytes, expected: object, headers: Mapping[str, str]) -> Iterator[Predictions]:
    """Request predictions on new connections by a body in JSON, and compare them with the expected scores."""
    seen = Predictions()

    def predict() -> None:
        started = time.perf_counter()
        try:
            reply = request(port, "POST", "/predict", 5.0, body, {"Content-Type": "application/json", **headers})
        except (OSError, http.client.HTTPException):
            seen.latencies_s.append(float("inf"))
            return
        seen.latencies_s.append(time.perf_counter() - started)
        if reply.status == 503:
            seen.shed += 1
        elif reply.status != 200 or reply.content["prediction"] != expected:
            seen.wrong.append(f"{reply.status}: {str(reply.content)[:200]!r}")

    with repeating(predict):
        yield seen


@contextmanager
def measuring_memory(pid: int) -> Iterator[list[float]]:
    """Yield the resident memory of a process in MiB, observed again and again."""
    process = Child(pid, 0)
    found = [process.resident_mib]

    def observe() -> None:
        with suppress(OSError):  # the process has ended, which is reported elsewhere
            found.append(process.resident_mib)

    with repeating(observe, 0.02):
        yield found


class Replica:
    """`anytime serve` on a fixed port, started when it is made.

    Parameters
    ----------
    folder : working folder, which also has the log.
    """

    process: subprocess.Popen[bytes]

    def __init__(self, model: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.port = free_port()
        self.log = folder / f"replica-{self.port}.log"
        self._model, self._environment = model, os.environ | environment
        self.start()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def start(self) -> None:
        """Start without waiting, at low priority until it is ready."""
        command = [sys.executable, "-m", "anytime", "serve", str(self._model), "--port", str(self.port)]
        with self.log.open("ab") as log, low_priority(SERVER_CORE):
            self.process = subprocess.Popen(
                command, env=self._environment, cwd=self.log.parent, stdout=subprocess.DEVNULL, stderr=log
            )

    def await_ready(self) -> None:
        """Wait for readiness; raise RuntimeError if the process ends, or does not become ready in time."""
        if wait_for(lambda: not self.alive or ready(self.port), START_S) is None or not self.alive:
            raise RuntimeError(f"a replica did not start: {self.log.read_text(errors='replace')[-2000:]}")
        raise_priority(self.process.pid)

    def stop(self) -> None:
        """Terminate the process, and kill it after a timeout."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        if wait_for(lambda: not self.alive, 15.0) is None:
            self.process.kill()
        self.process.wait(15)


@dataclass
class Cluster:
    """Replicas of one model file, and the Redis that they share.

    Attributes
    ----------
    folder : working folder of the replicas, with their logs and the model.
    redis : shared session store; None means that each replica stores its own sessions.
    """

    folder: Path
    model: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    count: int = 3
    redis: RedisServer | None = None
    replicas: Sequence[Replica] = ()

    def __enter__(self) -> Cluster:
        environment = dict(self.environment)
        if self.redis is not None:
            self.start_redis()
            environment["ANYTIME_SESSION_STORE"] = self.redis.url()
        self.replicas = [Replica(self.model, self.folder, environment) for _ in range(self.count)]
        try:
            for replica in self.replicas:
                replica.await_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for replica in self.replicas:
            replica.stop()
        if self.redis is not None:
            self.redis.close()

    def start_redis(self) -> None:
        assert self.redis is not None
        with low_priority(SERVER_CORE):
            self.redis.start()

    @property
    def ports(self) -> list[int]:
        return [replica.port for replica in self.replicas]

    @property
    def footprints(self) -> list[Footprint]:
        return [footprint(replica.process.pid) for replica in self.replicas]

    @property
    def sessions(self) -> int:
        """Sessions in Redis; 0 without one."""
        return 0 if self.redis is None else len(self.redis.execute("KEYS", "anytime:session:*"))

    @property
    def open(self) -> float:
        """Open predictions of all replicas."""
        return sum(metric(port, "anytime_open_predictions") for port in self.ports)
