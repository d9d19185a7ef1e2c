"""Stalls of the machine, priorities, and resources of processes."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import on_core, set_priority
from benchmarks.load.child import Child

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
