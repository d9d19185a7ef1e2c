"""A server that measures the gaps of its own loop and its memory, and the clients next to an attack.

As a script with `serve` it is the server, with `others` the clients: four with deadlines of 30 ms, and a bare timer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from anytime._linalg import single_blas_thread
from anytime_service.app import create_app
from anytime_service.models.registry import load_registry
from anytime_service.server.run import bind, build_server, control_collections, map_large_blocks
from anytime_service.settings import load_settings
from benchmarks.harness import CLIENT_CORE, SERVER_CORE, Process, answering, pin_to_core
from benchmarks.load.child import Child

TICK_S, DEADLINE_S, CLIENTS = 0.001, 0.03, 4


@dataclass(frozen=True)
class Report:
    """The largest processor time of the loop between two ticks since the last reset, memory, and stored bytes."""

    stall_ms: float
    mib: float
    worst_mib: float
    held: int


@dataclass(frozen=True)
class Seen:
    """The 90th percentile of the lateness of answers, the largest of the bare timer, and how many were refused."""

    late_ms: float
    bare_ms: float
    answers: int
    refused: int


class CostServer:
    """Handle of the server; `idle_mib` is its memory before the first attack."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.port = int(process.line())
        self.idle_mib = self.report().mib

    def report(self) -> Report:
        return Report(**self._process.ask("report"))

    def reset(self) -> None:
        self._process.ask("reset")

    @contextmanager
    def others(self) -> Iterator[Callable[[], Seen]]:
        """Run the other clients; yield a function that stops them and returns what they have seen."""
        with Process("drills.costs_server", "others", self.port) as clients:
            clients.line("ready")

            def stop() -> Seen:
                clients.end_input()
                return Seen(**json.loads(clients.line()))

            yield stop


@contextmanager
def costs_server(models: Sequence[Path], held_mib: int) -> Iterator[CostServer]:
    with Process("drills.costs_server", "serve", *models, ANYTIME_MAX_HELD_BYTES=str(held_mib << 20)) as process:
        yield CostServer(process)


class _Ticks:
    """The largest processor time of the loop's thread between two ticks; pauses of the machine do not count."""

    def __init__(self) -> None:
        self.worst_ms = 0.0
        self._worked_s: float | None = None

    def tick(self) -> None:
        worked_s = time.thread_time()
        if self._worked_s is not None:
            self.worst_ms = max(self.worst_ms, (worked_s - self._worked_s) * 1e3)
        self._worked_s = time.thread_time()
        asyncio.get_running_loop().call_later(TICK_S, self.tick)


def serve(models: Sequence[str]) -> None:
    """Serve, and answer the words `report` and `reset` on the standard streams."""
    os.sched_setaffinity(0, {SERVER_CORE})
    with suppress(PermissionError):  # others' programs on this core would count as lateness
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    settings = load_settings(models=tuple(map(Path, models)), port=0)
    app = create_app(load_registry(settings.models), settings)
    server, ticks, worst = build_server(app, settings), _Ticks(), [0.0]
    me = Child(os.getpid(), 0)

    def measure() -> None:
        while True:
            worst[0] = max(worst[0], me.resident_mib)
            time.sleep(0.02)

    def answer(line: str) -> Mapping[str, Any]:
        if line.strip() == "reset":
            ticks.worst_ms, worst[0] = 0.0, 0.0
        return vars(Report(ticks.worst_ms, me.resident_mib, worst[0], app.state.service.memory.bytes))

    async def serving(sockets: Any) -> None:
        asyncio.get_running_loop().call_soon(ticks.tick)
        await server.serve(sockets)

    with bind(settings) as listening, single_blas_thread():
        control_collections()
        map_large_blocks()
        print(listening.getsockname()[1], flush=True)
        for each in (measure, partial(answering, answer)):
            threading.Thread(target=each, daemon=True).start()
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(serving([listening]))


async def call(port: int) -> None:
    """Make predictions until the input ends; print what they saw."""
    late_ms: list[float] = []
    bare_ms: list[float] = []
    refused, stopped = 0, asyncio.Event()

    async def client() -> None:
        nonlocal refused
        async with connect(f"ws://127.0.0.1:{port}/stream", compression=None, proxy=None) as socket:
            number = 0
            while not stopped.is_set():
                number, begun = number + 1, time.perf_counter()
                await socket.send(
                    json.dumps({"type": "begin", "id": number, "model": "load", "deadline_ms": DEADLINE_S * 1e3})
                )
                await socket.send(json.dumps({"type": "group", "id": number, "group": "g0", "values": [1.0, 2.0, 3.0]}))
                if json.loads(await socket.recv())["type"] == "answer":
                    late_ms.append((time.perf_counter() - begun - DEADLINE_S) * 1e3)
                else:
                    refused += 1
                    await asyncio.sleep(DEADLINE_S)

    async def timer() -> None:
        while not stopped.is_set():
            begun = time.perf_counter()
            await asyncio.sleep(DEADLINE_S)
            bare_ms.append((time.perf_counter() - begun - DEADLINE_S) * 1e3)

    tasks = [asyncio.create_task(each) for each in (*(client() for _ in range(CLIENTS)), timer())]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    stopped.set()
    await asyncio.wait(tasks, timeout=5.0)
    late = sorted(late_ms)[int(0.9 * len(late_ms))] if late_ms else 0.0
    print(json.dumps(vars(Seen(late, max(bare_ms, default=0.0), len(late_ms), refused))), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2:])
    else:
        pin_to_core(CLIENT_CORE)
        asyncio.run(call(int(sys.argv[2])))
