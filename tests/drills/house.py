"""Replicas of the service as an operator runs them, with a Redis beside them: started, struck and started again."""

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
from typing import IO, Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.load.child import SERVER_CORE
from drills.machine import Footprint, aside, footprint, promoted
from system import answers, free_port

__all__ = ["House", "Redis", "Replica", "Reply", "ask", "metric", "ready", "wait_for"]

START_S = 60.0


@dataclass(frozen=True)
class Reply:
    """A response to a request of the drill's own; `ahead_s` is how far its server's clock is ahead of ours."""

    status: int
    kind: str
    content: Any
    ahead_s: float

    @property
    def problem(self) -> bool:
        """Whether it is problem details that say why."""
        return self.kind == "application/problem+json" and bool(self.content.get("detail"))


def ask(port: int, method: str, path: str, timeout_s: float = 10.0) -> Reply:
    """Send a request without a body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        kind, content = response.headers.get_content_type(), response.read()
        ahead_s = parsedate_to_datetime(response.headers["Date"]).timestamp() - time.time()
        return Reply(response.status, kind, json.loads(content) if kind.endswith("json") else content.decode(), ahead_s)
    finally:
        connection.close()


def ready(port: int) -> bool:
    """Whether a replica says that it is ready."""
    with suppress(OSError, http.client.HTTPException):
        return ask(port, "GET", "/readyz", 1.0).status == 200
    return False


def metric(port: int, name: str) -> float:
    """Sum of one of the numbers that a replica measures of itself."""
    families = text_string_to_metric_families(ask(port, "GET", "/metrics").content)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def wait_for(holds: Callable[[], bool], within_s: float) -> float | None:
    """Wait until something holds; how many seconds that took, None if it never did."""
    begun = time.perf_counter()
    while not holds():
        if time.perf_counter() - begun > within_s:
            return None
        time.sleep(0.02)
    return time.perf_counter() - begun


class Replica:
    """`anytime serve` on a port of its own, which it keeps when it is started again.

    Parameters
    ----------
    folder : where it works, and writes its log to.
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
        """The process that runs now, or ran last."""
        assert self._process is not None, "never started"
        return self._process

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    @property
    def footprint(self) -> Footprint:
        """What it holds."""
        return footprint(self.process.pid)

    def start(self) -> None:
        """Start, and do not wait; until it is ready it stands back behind those that serve."""
        command = [sys.executable, "-m", "anytime", "serve", str(self._model), "--port", str(self.port)]
        self._file = self.log.open("ab")
        with aside(self._core):
            self._process = subprocess.Popen(
                command, env=self._environment, cwd=self.log.parent, stdout=subprocess.DEVNULL, stderr=self._file
            )

    def await_ready(self) -> None:
        """Wait until it is ready.

        Raises
        ------
        RuntimeError
            It ends, or takes too long.
        """
        if wait_for(lambda: not self.alive or ready(self.port), START_S) is None or not self.alive:
            raise RuntimeError(f"a replica did not start: {self.log.read_text(errors='replace')[-2000:]}")
        promoted(self.process.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def stop(self) -> None:
        """End it, by force if it takes too long."""
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
    """A Redis that keeps nothing on a disk, as a store of sessions that expire need not; started again on its port."""

    def __init__(self, folder: Path) -> None:
        found = shutil.which("redis-server")
        self.path = found
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address, as a setting of the service."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def sessions(self) -> int:
        """How many sessions it holds."""
        command = ["redis-cli", "-p", str(self.port), "--scan", "--pattern", "anytime:session:*"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return len(told.stdout.split())

    def start(self) -> None:
        """Start, and wait until it answers."""
        assert self.path is not None
        command = [self.path, "--port", str(self.port), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
        with aside(SERVER_CORE):
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=subprocess.DEVNULL)
        if wait_for(lambda: answers(self.port), 20.0) is None:
            raise RuntimeError("redis-server did not start")

    def kill(self) -> None:
        """End it without a warning."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(15)


@dataclass
class House:
    """Replicas of one model file, and what they share.

    Attributes
    ----------
    folder : of their logs and the model; they work in it.
    redis : where they share their sessions; None has each keep its own.
    """

    folder: Path
    model: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    count: int = 3
    redis: Redis | None = None
    replicas: Sequence[Replica] = ()

    def __enter__(self) -> House:
        told = dict(self.environment)
        if self.redis is not None:
            self.redis.start()
            told["ANYTIME_SESSION_STORE"] = self.redis.url
        self.replicas = [Replica(self.model, self.folder, told) for _ in range(self.count)]
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
        """Where the replicas listen."""
        return [replica.port for replica in self.replicas]

    @property
    def footprints(self) -> list[Footprint]:
        """What the replicas hold."""
        return [replica.footprint for replica in self.replicas]

    @property
    def sessions(self) -> int:
        """Sessions in Redis; 0 without one."""
        return 0 if self.redis is None else self.redis.sessions

    @property
    def open(self) -> float:
        """Predictions that are open, on all replicas."""
        return sum(metric(port, "anytime_open_predictions") for port in self.ports)
