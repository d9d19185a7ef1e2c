"""Servers of the same model, each in its own processes on one core, stopped while others are measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.load.child import CLIENT_CORE, SERVER_CORE
from benchmarks.load.frames import HttpClient, post
from benchmarks.load.mlserver import free_ports
from benchmarks.peers.environments import Environment
from benchmarks.peers.measurements import FailedError

__all__ = ["CLIENT_CORE", "LAUNCHERS", "Launcher", "Server", "launch"]

TESTS = Path(__file__).parents[2]
START_S = 90.0


@dataclass(frozen=True)
class Launcher:
    """How to start and call a server.

    Attributes
    ----------
    environment : "ours", or a file of `requirements`.
    command : its command, from the environment, the port and its own folder, which it may fill.
    request : a request for the prediction of a row, from the numbers by group.
    read : the prediction, from the body of the response.
    """

    label: str
    environment: str
    command: Callable[[Environment, int, Path], Sequence[str]]
    request: Callable[[Mapping[str, list[float]]], bytes]
    read: Callable[[Any], float]


@dataclass
class Server:
    """A running server with all its processes."""

    launcher: Launcher
    process: subprocess.Popen[bytes]
    port: int
    pids: list[int] = field(default_factory=list)

    def find(self) -> None:
        """Find its processes: the first one and all its descendants, in any session."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError, IndexError):
                    parent = (entry / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1]
                    children.setdefault(int(parent), []).append(int(entry.name))
        self.pids = [self.process.pid]
        for pid in self.pids:  # grows during the loop
            self.pids += children.get(pid, [])

    @property
    def cpu_s(self) -> float:
        """Processor time of all threads of all its processes."""
        total = 0
        for pid in self.pids:
            with suppress(OSError):
                threads = Path(f"/proc/{pid}/task").iterdir()
                total += sum(int((thread / "schedstat").read_text(encoding="ascii").split()[0]) for thread in threads)
        return total / 1e9

    @property
    def memory_mib(self) -> float:
        """Memory of all its processes; shared memory counts once."""
        total = 0
        for pid in self.pids:
            with suppress(OSError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total / 1024.0

    def pause(self) -> None:
        """Stop all its processes until `go_on`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        self.resume()
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, what: signal.Signals) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, what)


def launch(
    launcher: Launcher, environment: Environment, model: Path, folder: Path, row: Mapping[str, list[float]]
) -> Server:
    """Start a server on its core, and wait until it answers.

    Raises
    ------
    FailedError
        It ended, or did not answer in time.
    """
    folder.mkdir(parents=True)
    port = free_ports(1)[0]
    command = ["taskset", "--cpu-list", str(SERVER_CORE), *launcher.command(environment, port, folder)]
    paths = [str(TESTS)] + (
        [os.environ["PYTHONPATH"]] if launcher.environment == "ours" and os.environ.get("PYTHONPATH") else []
    )
    variables = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PEERS_MODEL": str(model),
        "BENTOML_DO_NOT_TRACK": "True",
        "BENTOML_HOME": str(folder / "home"),
        "PATH": os.pathsep.join([str(environment.python.parent), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "ANYTIME_MAX_LATENESS_MS": "60000",  # refuse nothing, like the other servers
    }
    log = folder / "log"
    with log.open("wb") as printed:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=printed, stderr=printed, start_new_session=True
        )
    server = Server(launcher, process, port)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
            raise FailedError(f"ended with {process.returncode}: {lines[-1][:200] if lines else 'nothing was printed'}")
        with suppress(OSError), closing(HttpClient(port)) as client:
            client.send(launcher.request(row))
            if client.response()[0] == 200:
                server.find()
                return server
        time.sleep(0.25)
    server.find()
    server.end()
    raise FailedError(f"did not answer within {START_S:g} s")


def _numbers(row: Mapping[str, list[float]]) -> list[float]:
    return [number for values in row.values() for number in values]


def _plain(path: str) -> Callable[[Mapping[str, list[float]]], bytes]:
    return lambda row: post(path, json.dumps({"x": _numbers(row)}).encode())


def _inference(row: Mapping[str, list[float]]) -> bytes:
    numbers = _numbers(row)
    inputs = [{"name": "x", "shape": [1, len(numbers)], "datatype": "FP64", "data": numbers}]
    return post("/v2/models/linear/infer", json.dumps({"inputs": inputs}).encode())


def _by_groups(row: Mapping[str, list[float]]) -> bytes:
    return post("/predict", json.dumps({"groups": dict(row)}).encode())


def _bare(environment: Environment, port: int, _folder: Path) -> Sequence[str]:
    return [str(environment.python), "-m", "benchmarks.peers.adapters.serve_bare", str(port)]


def _ours(environment: Environment, port: int, folder: Path) -> Sequence[str]:
    return [sys.executable, "-m", "anytime", "serve", str(folder.parent / "linear.safetensors"), "--port", str(port)]


def _mlserver(environment: Environment, port: int, folder: Path) -> Sequence[str]:
    grpc, metrics = free_ports(2)
    model_settings = {"name": "linear", "implementation": "benchmarks.peers.adapters.serve_mlserver.Linear"}
    (folder / "model-settings.json").write_text(json.dumps(model_settings), encoding="utf-8")
    settings = {
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": grpc,
        "metrics_port": metrics,
        "parallel_workers": 0,
        "debug": False,
    }
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    return [str(environment.program("mlserver")), "start", str(folder)]


def _litserve(environment: Environment, port: int, _folder: Path) -> Sequence[str]:
    return [str(environment.python), "-m", "benchmarks.peers.adapters.serve_litserve", str(port)]


def _bentoml(environment: Environment, port: int, _folder: Path) -> Sequence[str]:
    target = "benchmarks.peers.adapters.serve_bentoml:Linear"
    program = str(environment.program("bentoml"))
    return [program, "serve", target, "--host", "127.0.0.1", "--port", str(port), "--working-dir", str(TESTS)]


def _prediction(body: Any) -> float:
    return float(body["prediction"])


LAUNCHERS = (
    Launcher("bare uvicorn", "ours", _bare, _plain("/"), _prediction),
    Launcher("ours, POST /predict", "ours", _ours, _by_groups, _prediction),
    Launcher("MLServer", "mlserver", _mlserver, _inference, lambda body: float(body["outputs"][0]["data"][0])),
    Launcher("LitServe", "litserve", _litserve, _plain("/predict"), _prediction),
    Launcher("BentoML", "bentoml", _bentoml, _plain("/predict"), float),
)
"""The servers, the floor first."""
