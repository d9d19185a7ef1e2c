"""Servers in separate processes, pinned to one core, with the processor time that they use.

As a script this is such a server: it prints its port and serves until it is terminated.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from anytime._linalg import single_blas_thread
from anytime.loaded import load
from anytime_service.app import create_app
from anytime_service.models.registry import load_registry
from anytime_service.server.run import Server, bind, control_collections, map_large_blocks
from anytime_service.settings import Settings
from benchmarks.harness import SERVER_CORE, Process, pin_to_core, set_priority
from benchmarks.load.computing import computing
from benchmarks.load.floors import floors
from benchmarks.load.instrumented import instrumented


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
def server(name: str, *models: Path, **variables: str) -> Iterator[Child]:
    """Run an application until the end of the block: "service", "floors", "admitting", "runner" or "whole".

    They are those of `instrumented.py`, `floors.py` and `computing.py`; "admitting" is the service with admission
    control disabled, "whole" computes all groups.
    """
    with Process("benchmarks.load.child", name, *models, **variables) as process:
        yield Child(process.popen.pid, int(process.line()))


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


def main() -> None:
    pin_to_core(SERVER_CORE)
    name, models = sys.argv[1], tuple(map(Path, sys.argv[2:]))
    settings = Settings(port=0)
    if name == "admitting":  # its connections stay open while the floors are measured
        settings = settings.model_copy(update={"idle_timeout_s": 3600.0})
    if name == "floors":
        running = uvicorn.Server(plain(floors()))
    elif name in ("runner", "whole"):
        set_priority(real_time=False)  # its threads inherit it
        running = uvicorn.Server(plain(computing(load(models[0]), whole=name == "whole")))
    else:
        app = instrumented(create_app(load_registry(models), settings))
        if name == "admitting":
            admission = app.state.service.admission
            decide = admission.admits
            partial(setattr, admission, "admits")(lambda now_ms: decide(now_ms) or True)
        running = Server(app, settings)
    with bind(settings) as listening, single_blas_thread():
        control_collections()  # as `anytime serve` does
        map_large_blocks()
        print(listening.getsockname()[1], flush=True)
        running.run(sockets=[listening])


if __name__ == "__main__":
    main()
