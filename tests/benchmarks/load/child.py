"""Servers in separate processes, pinned to one core, with the processor time that they use.

As a script this is such a server: it prints its port and serves until it is terminated.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from anytime._linalg import single_blas_thread
from anytime_service.app import create_app
from anytime_service.models.registry import load_registry
from anytime_service.server.run import bind, build_server, control_collections
from anytime_service.settings import Settings
from benchmarks.load.floors import floors
from benchmarks.load.instrumented import instrumented

__all__ = ["CLIENT_CORE", "SERVER_CORE", "Child", "pin_to_core", "server"]

SERVER_CORE, CLIENT_CORE = 0, 1


@dataclass(frozen=True)
class Child:
    """A running server in another process."""

    pid: int
    port: int

    @property
    def cpu_us(self) -> float:
        """Processor time of all its threads, in microseconds."""
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1000.0

    @property
    def resident_mib(self) -> float:
        """Resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def server(name: str, model: Path) -> Iterator[Child]:
    """Run an application until the end of the block: "service", "floors", or "admitting".

    They are those of `instrumented.py` and `floors.py`; the last is the service with admission control disabled.
    """
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "benchmarks.load.child", name, str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the server {name!r} did not start")
            yield Child(process.pid, int(line))
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def plain(app: ASGIApp) -> uvicorn.Config:
    """Return the configuration of our server without our code."""
    return uvicorn.Config(
        app,
        access_log=False,
        lifespan="off",
        log_level="warning",
        server_header=False,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
    )


def pin_to_core(core: int) -> None:
    """Pin this process to one core, with real-time priority if permitted."""
    os.sched_setaffinity(0, {core})
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def main() -> None:
    pin_to_core(SERVER_CORE)
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=("service", "admitting", "floors"))
    parser.add_argument("model", type=Path)
    args = parser.parse_args()

    settings = Settings(port=0)
    if args.name == "admitting":  # its connections stay open while the floors are measured
        settings = settings.model_copy(update={"idle_timeout_s": 3600.0})
    if args.name == "floors":
        running = uvicorn.Server(plain(floors()))
    else:
        app = instrumented(create_app(load_registry((args.model,)), settings))
        if args.name == "admitting":
            admission = app.state.service.admission
            decide = admission.admits
            partial(setattr, admission, "admits")(lambda now_ms: decide(now_ms) or True)
        running = build_server(app, settings)
    with bind(settings) as listening, single_blas_thread():
        control_collections()  # as `anytime serve` does
        print(listening.getsockname()[1], flush=True)
        running.run(sockets=[listening])


if __name__ == "__main__":
    main()
