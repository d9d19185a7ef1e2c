"""All clients of a drill in one process: `python -m drills.clients PLAN`.

Says "ready" when every client has been answered once, begins when it reads a line, and ends at the end of its input. It
writes its calls a line each, and at last what it still holds.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from anytime._linalg import single_blas_thread
from anytime.inference.prediction import load
from benchmarks.load.child import CLIENT_CORE, settle
from drills.asking import Asker, Post, Predict, Run, Session, ThreadedRun, WebSocket
from drills.calls import Call, read_calls
from drills.machine import Watch, footprint

__all__ = ["Clients", "Left", "Plan", "clients"]

APART = 1_000_000
"""Numbers of a client's calls, of which every client has its own."""


class Plan(msgspec.Struct, frozen=True):
    """Which clients there are, and what they do.

    Attributes
    ----------
    model : file of the model whose groups are sent.
    port : a balancer, or a single replica, for clients of the project's own.
    ports : replicas, for the others.
    counts : clients of each kind.
    period_s : mean time between the beginnings of one client's calls.
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


class Left(msgspec.Struct, frozen=True):
    """What the clients saw and held: stalls of a bare timer, threads and descriptors before and after, tasks after."""

    stalls: list[tuple[float, float]]
    threads: tuple[int, int]
    descriptors: tuple[int, int]
    tasks: int


class Clients:
    """The process, from the side of the drill."""

    def __init__(self, process: subprocess.Popen[str], out: Path) -> None:
        self._process, self._out = process, out

    def await_ready(self) -> None:
        """Wait until all have been answered once.

        Raises
        ------
        RuntimeError
            The process has ended instead.
        """
        self._line("ready")

    def go(self) -> None:
        """Begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def stop(self) -> tuple[list[Call], Left]:
        """End; the calls that were made, and what is left."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        left = msgspec.json.decode(self._line("{"), type=Left)
        self._process.wait(30)
        return list(read_calls(self._out)), left

    def _line(self, begins: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(begins):
            raise RuntimeError(f"the clients did not go on: {line!r}")
        return line


@contextmanager
def clients(plan: Plan, environment: Mapping[str, str]) -> Iterator[Clients]:
    """Run clients in a process of their own."""
    where = Path(plan.out).with_suffix(".plan")
    where.write_bytes(msgspec.json.encode(plan))
    command = [sys.executable, "-m", "drills.clients", str(where)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=dict(environment), text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield Clients(process, Path(plan.out))
        finally:
            process.kill()


def made(plan: Plan) -> list[Asker]:
    """Make the clients."""
    model, found = load(plan.model), list[Asker]()
    sdk: dict[str, type[Run | Predict | ThreadedRun]] = {"run": Run, "predict": Predict, "threaded": ThreadedRun}
    for kind, count in plan.counts.items():
        for number in range(count):
            told = (f"{kind} {number}", model, plan.deadlines_ms)
            if kind in sdk:
                found.append(sdk[kind](*told, plan.port))
            elif kind == "websocket":
                found.append(WebSocket(*told, plan.ports, number))
            elif kind == "post":
                found.append(Post(*told, plan.ports, number))
            else:
                found.append(Session(*told, plan.ports, number, balanced=plan.port if plan.shared else None))
    return found


class _Asking:
    """Clients that go on asking until they are told to stop."""

    def __init__(self, plan: Plan, out: IO[bytes]) -> None:
        self._plan, self._out = plan, out
        self._over = asyncio.Event()
        self._encode = msgspec.json.Encoder().encode

    async def run(self) -> None:
        """Ask once, then until the input ends."""
        askers = made(self._plan)
        numbers = [itertools.count(APART * index) for index in range(len(askers))]
        for asker, each in zip(askers, numbers, strict=True):
            with suppress(ValueError):
                await asker.ask(next(each))
        gc.collect()
        gc.freeze()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        rng = np.random.default_rng(self._plan.seed)
        asking = [
            asyncio.create_task(self._keep_asking(asker, each, np.random.default_rng(rng.integers(1 << 32))))
            for asker, each in zip(askers, numbers, strict=True)
        ]
        await asyncio.to_thread(sys.stdin.read)
        self._over.set()
        await asyncio.gather(*asking)
        await asyncio.gather(*(asker.close() for asker in askers))

    async def _keep_asking(self, asker: Asker, numbers: Iterator[int], rng: np.random.Generator) -> None:
        at = time.perf_counter() + float(rng.uniform(0.0, self._plan.period_s))
        while not self._over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), max(at - time.perf_counter(), 0.0))
                return
            self._out.write(self._encode(await asker.ask(next(numbers))) + b"\n")
            # A client that was held up does not ask again and again to make up for it.
            at = max(at + float(rng.exponential(self._plan.period_s)), time.perf_counter())


def held() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    here = footprint(os.getpid())
    return here.threads, here.descriptors


def main() -> None:
    """Be the clients."""
    settle(CLIENT_CORE)
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    with single_blas_thread(), Path(plan.out).open("wb") as out, Watch() as watch:
        before = held()

        async def run() -> int:
            await _Asking(plan, out).run()
            return len(asyncio.all_tasks()) - 1

        with asyncio.Runner() as runner:
            tasks = runner.run(run())
        gc.unfreeze()
        gc.collect()
        after = held()
    left = Left(watch.stalls, (before[0], after[0]), (before[1], after[1]), tasks)
    print(msgspec.json.encode(left).decode(), flush=True)


if __name__ == "__main__":
    main()
