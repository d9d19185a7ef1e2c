"""Replicas of the service with a shared Redis, as an operator runs them: started, stopped and restarted."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness import SERVER_CORE
from drills.machine import Footprint, footprint, low_priority, raise_priority
from system import answers, free_port

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


class Replica:
    """`anytime serve` on a fixed port.

    Parameters
    ----------
    folder : working folder, which also has the log.
    """

    def __init__(self, model: Path, folder: Path, environment: Mapping[str, str], core: int = SERVER_CORE) -> None:
        self.port = free_port()
        self.log = folder / f"replica-{self.port}.log"
        self._model = model
        self._environment = {**os.environ, **environment}
        self._core = core
        self._process: subprocess.Popen[bytes] | None = None
        self._file: IO[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The current or last process."""
        assert self._process is not None, "never started"
        return self._process

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def footprint(self) -> Footprint:
        return footprint(self.process.pid)

    def start(self) -> None:
        """Start without waiting, at low priority until it is ready."""
        command = [sys.executable, "-m", "anytime", "serve", str(self._model), "--port", str(self.port)]
        self._file = self.log.open("ab")
        with low_priority(self._core):
            self._process = subprocess.Popen(
                command, env=self._environment, cwd=self.log.parent, stdout=subprocess.DEVNULL, stderr=self._file
            )

    def await_ready(self) -> None:
        """Wait for readiness.

        Raises
        ------
        RuntimeError
            The process ended, or the timeout expired.
        """
        if wait_for(lambda: not self.alive or ready(self.port), START_S) is None or not self.alive:
            raise RuntimeError(f"a replica did not start: {self.log.read_text(errors='replace')[-2000:]}")
        raise_priority(self.process.pid)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """Terminate the process, and kill it after a timeout."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
                self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(15)
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


class Redis:
    """A Redis without persistence, on a fixed port."""

    def __init__(self, folder: Path) -> None:
        found = shutil.which("redis-server")
        self.path = found
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def sessions(self) -> int:
        command = ["redis-cli", "-p", str(self.port), "--scan", "--pattern", "anytime:session:*"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return len(listed.stdout.split())

    def start(self) -> None:
        """Start, and wait until it answers."""
        assert self.path is not None
        command = [self.path, "--port", str(self.port), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
        with low_priority(SERVER_CORE):
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=subprocess.DEVNULL)
        if wait_for(lambda: answers(self.port), 20.0) is None:
            raise RuntimeError("redis-server did not start")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(15)


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
    redis: Redis | None = None
    replicas: Sequence[Replica] = ()

    def __enter__(self) -> Cluster:
        environment = dict(self.environment)
        if self.redis is not None:
            self.redis.start()
            environment["ANYTIME_SESSION_STORE"] = self.redis.url
        self.replicas = [Replica(self.model, self.folder, environment) for _ in range(self.count)]
        try:
            for replica in self.replicas:
                replica.start()
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
            self.redis.kill()

    @property
    def ports(self) -> list[int]:
        return [replica.port for replica in self.replicas]

    @property
    def footprints(self) -> list[Footprint]:
        return [replica.footprint for replica in self.replicas]

    @property
    def sessions(self) -> int:
        """Sessions in Redis; 0 without one."""
        return 0 if self.redis is None else self.redis.sessions

    @property
    def open(self) -> float:
        """Open predictions of all replicas."""
        return sum(metric(port, "anytime_open_predictions") for port in self.ports)
