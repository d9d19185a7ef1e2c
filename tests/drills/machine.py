"""Stalls of the machine, priorities, and resources of processes."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.child import Child

INTERVAL_S = 0.001
STALL_S = 0.001
"""A sleep longer by more than this is recorded as a stall."""

MAX_GROWTH = {"mib": 32.0, "descriptors": 8, "threads": 8}
"""A service fills its pools of threads and Redis connections once; a leak is of hundreds."""


class StallMonitor:
    """Records stalls with a bare timer in a thread; a context manager.

    Parameters
    ----------
    core : core of the thread; None means any core of the process.

    Attributes
    ----------
    stalls : due and actual end of each late sleep, by `time.perf_counter`.
    """

    def __init__(self, core: int | None = None) -> None:
        self.stalls: list[tuple[float, float]] = []
        self._core = core
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> StallMonitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        if self._core is not None:
            os.sched_setaffinity(0, {self._core})
        while not self._stop.is_set():
            due = time.perf_counter() + INTERVAL_S
            pause(INTERVAL_S)
            now = time.perf_counter()
            if now - due > STALL_S:
                self.stalls.append((due, now))


def pause(seconds: float) -> None:
    """Sleep; unlike `time.sleep`, this also works under libfaketime."""
    select.select((), (), (), seconds)


@contextmanager
def low_priority(core: int) -> Iterator[None]:
    """Start the processes of the block on one core with normal priority."""
    cores, policy, parameters = os.sched_getaffinity(0), os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        with suppress(PermissionError):
            os.sched_setscheduler(0, policy, parameters)


def raise_priority(pid: int) -> None:
    """Raise a process to the scheduling policy of this one."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(PermissionError):
            os.sched_setscheduler(int(thread.name), policy, parameters)


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
