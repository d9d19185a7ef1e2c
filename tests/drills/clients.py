"""All clients of a drill in one process: `python -m drills.clients PLAN`.

The process prints "ready" after each client has its first answer, starts when it reads a line, and stops at the end of
its input. It writes one call per line, and prints a final report.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from anytime._linalg import single_blas_thread
from anytime.loaded import load
from benchmarks.harness import CLIENT_CORE, Process, pin_to_core
from drills.calls import Call, read_calls
from drills.client_kinds import DrillClient, Post, Predict, Run, Session, ThreadedRun, WebSocket
from drills.machine import StallMonitor, footprint

NUMBERS_PER_CLIENT = 1_000_000
"""Distance between the first call numbers of two clients."""


class Plan(msgspec.Struct, frozen=True):
    """The clients of a drill and their load.

    Attributes
    ----------
    model : file of the model whose groups are sent.
    port : of a balancer or a single replica, for this project's clients.
    ports : of the replicas, for the other clients.
    counts : clients of each kind.
    period_s : mean time between the starts of a client's calls.
    shared : whether replicas share sessions.
    """

    model: str
    out: str
    port: int
    ports: list[int]
    counts: dict[str, int]
    deadlines_ms: list[float]
    period_s: float
    shared: bool = False
    seed: int = 0


class ClientReport(msgspec.Struct, frozen=True):
    """Final report of the clients: stalls, threads and descriptors before and after, and tasks after."""

    stalls: list[tuple[float, float]]
    threads: tuple[int, int]
    descriptors: tuple[int, int]
    tasks: int


class Clients:
    """Handle of the client process."""

    def __init__(self, process: Process, out: Path) -> None:
        self._process, self._out = process, out

    def await_ready(self) -> None:
        """Wait until each client has been answered once; raise RuntimeError if the process ended."""
        self._process.line("ready")

    def start(self) -> None:
        self._process.say("go")

    def stop(self) -> tuple[list[Call], ClientReport]:
        """Stop, and return the calls and the final report."""
        self._process.end_input()
        report = msgspec.json.decode(self._process.line("{"), type=ClientReport)
        self._process.popen.wait(30)
        return list(read_calls(self._out)), report


@contextmanager
def clients(plan: Plan, **variables: str) -> Iterator[Clients]:
    """Run the clients in their own process."""
    plan_file = Path(plan.out).with_suffix(".plan")
    plan_file.write_bytes(msgspec.json.encode(plan))
    with Process("drills.clients", plan_file, **variables) as process:
        yield Clients(process, Path(plan.out))


def create_clients(plan: Plan) -> list[DrillClient]:
    model, found = load(plan.model), list[DrillClient]()
    sdk: dict[str, type[Run | Predict | ThreadedRun]] = {"run": Run, "predict": Predict, "threaded": ThreadedRun}
    for kind, count in plan.counts.items():
        for number in range(count):
            args = (f"{kind} {number}", model, plan.deadlines_ms)
            if kind in sdk:
                found.append(sdk[kind](*args, plan.port))
            elif kind == "websocket":
                found.append(WebSocket(*args, plan.ports, number))
            elif kind == "post":
                found.append(Post(*args, plan.ports, number))
            else:
                found.append(Session(*args, plan.ports, number, balanced=plan.port if plan.shared else None))
    return found


class _ClientLoad:
    """The load: clients that make calls until they are stopped."""

    def __init__(self, plan: Plan, out: IO[bytes]) -> None:
        self._plan, self._out = plan, out
        self._over = asyncio.Event()
        self._encode = msgspec.json.Encoder().encode

    async def run(self) -> None:
        """Make one call each, then calls until the input ends."""
        drill_clients = create_clients(self._plan)
        numbers = [itertools.count(NUMBERS_PER_CLIENT * index) for index in range(len(drill_clients))]
        for client, each in zip(drill_clients, numbers, strict=True):
            with suppress(ValueError):
                await client.call(next(each))
        gc.collect()
        gc.freeze()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        rng = np.random.default_rng(self._plan.seed)
        tasks = [
            asyncio.create_task(self._make_calls(client, each, np.random.default_rng(rng.integers(1 << 32))))
            for client, each in zip(drill_clients, numbers, strict=True)
        ]
        await asyncio.to_thread(sys.stdin.read)
        self._over.set()
        await asyncio.gather(*tasks)
        await asyncio.gather(*(client.close() for client in drill_clients))

    async def _make_calls(self, client: DrillClient, numbers: Iterator[int], rng: np.random.Generator) -> None:
        at = time.perf_counter() + float(rng.uniform(0.0, self._plan.period_s))
        while not self._over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), max(at - time.perf_counter(), 0.0))
                return
            self._out.write(self._encode(await client.call(next(numbers))) + b"\n")
            # A delayed client does not catch up with a burst of calls.
            at = max(at + float(rng.exponential(self._plan.period_s)), time.perf_counter())


def resources() -> tuple[int, int]:
    """Return the threads and descriptors of this process."""
    here = footprint(os.getpid())
    return here.threads, here.descriptors


def main() -> None:
    pin_to_core(CLIENT_CORE)
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    with single_blas_thread(), Path(plan.out).open("wb") as out, StallMonitor() as watch:
        before = resources()

        async def run() -> int:
            await _ClientLoad(plan, out).run()
            return len(asyncio.all_tasks()) - 1

        with asyncio.Runner() as runner:
            tasks = runner.run(run())
        gc.unfreeze()
        gc.collect()
        after = resources()
    report = ClientReport(watch.stalls, (before[0], after[0]), (before[1], after[1]), tasks)
    print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    main()
