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
from drills.client_kinds import DrillClient, Plan, create_clients
from drills.machine import StallMonitor, footprint

NUMBERS_PER_CLIENT = 1_000_000
"""Distance between the first call numbers of two clients."""


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


async def run(plan: Plan, out: IO[bytes]) -> int:
    """Let each client make one call, then calls until the input ends; return the number of tasks that remain."""
    over, encode = asyncio.Event(), msgspec.json.Encoder().encode

    async def make_calls(client: DrillClient, numbers: Iterator[int], rng: np.random.Generator) -> None:
        at = time.perf_counter() + float(rng.uniform(0.0, plan.period_s))
        while not over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), max(at - time.perf_counter(), 0.0))
                return
            out.write(encode(await client.call(next(numbers))) + b"\n")
            # A delayed client does not catch up with a burst of calls.
            at = max(at + float(rng.exponential(plan.period_s)), time.perf_counter())

    callers = [
        (client, itertools.count(NUMBERS_PER_CLIENT * index))
        for index, client in enumerate(create_clients(plan, load(plan.model)))
    ]
    for client, numbers in callers:
        with suppress(ValueError):
            await client.call(next(numbers))
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    rngs = np.random.default_rng(plan.seed).spawn(len(callers))
    tasks = [asyncio.create_task(make_calls(*each, rng)) for each, rng in zip(callers, rngs, strict=True)]
    await asyncio.to_thread(sys.stdin.read)
    over.set()
    await asyncio.gather(*tasks)
    await asyncio.gather(*(client.close() for client, _ in callers))
    return len(asyncio.all_tasks()) - 1


def main() -> None:
    pin_to_core(CLIENT_CORE)
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    with single_blas_thread(), Path(plan.out).open("wb") as out, StallMonitor() as watch:
        before = footprint(os.getpid())
        tasks = asyncio.run(run(plan, out))
        gc.unfreeze()
        gc.collect()
        after = footprint(os.getpid())
    threads, descriptors = (before.threads, after.threads), (before.descriptors, after.descriptors)
    print(msgspec.json.encode(ClientReport(watch.stalls, threads, descriptors, tasks)).decode(), flush=True)


if __name__ == "__main__":
    main()
