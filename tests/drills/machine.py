"""What a machine does to a drill, and a drill to a machine: stalls, and what processes hold."""

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

__all__ = ["Footprint", "Watch", "aside", "footprint", "leaks", "pause", "promoted"]

PULSE_S = 0.001
NOTED_S = 0.001
"""A bare sleep that lasts so much too long is noted."""

MAX_MIB = 32.0
MAX_THREADS, MAX_DESCRIPTORS = 8, 8
"""Pools of threads, and of connections to Redis, that a service fills once; a leak is of hundreds."""


class Watch:
    """A bare timer in a thread of its own: a context manager that notes stalls.

    Parameters
    ----------
    core : where to keep it; None is where its process runs.

    Attributes
    ----------
    stalls : from when a sleep should have ended to when it did, by `time.perf_counter`.
    """

    def __init__(self, core: int | None = None) -> None:
        self.stalls: list[tuple[float, float]] = []
        self._core = core
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        if self._core is not None:
            os.sched_setaffinity(0, {self._core})
        while not self._over.is_set():
            due = time.perf_counter() + PULSE_S
            pause(PULSE_S)
            now = time.perf_counter()
            if now - due > NOTED_S:
                self.stalls.append((due, now))


def pause(seconds: float) -> None:
    """Sleep; unlike `time.sleep`, also where libfaketime stands before the clock."""
    select.select((), (), (), seconds)


@contextmanager
def aside(core: int) -> Iterator[None]:
    """Have what this thread starts in the block run on one core, before nobody."""
    cores, was, told = os.sched_getaffinity(0), os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        with suppress(PermissionError):
            os.sched_setscheduler(0, was, told)


def promoted(pid: int) -> None:
    """Have a process that was started before nobody run as this one does."""
    policy, told = os.sched_getscheduler(0), os.sched_getparam(0)
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(PermissionError):
            os.sched_setscheduler(int(thread.name), policy, told)


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    pid: int
    mib: float
    descriptors: int
    threads: int


def footprint(pid: int) -> Footprint:
    """Look at what a process holds."""
    here = Path(f"/proc/{pid}")
    return Footprint(
        pid, Child(pid, 0).resident_mib, len(list((here / "fd").iterdir())), len(list((here / "task").iterdir()))
    )


def leaks(before: Sequence[Footprint], after: Sequence[Footprint], most_mib: float = MAX_MIB) -> list[str]:
    """What processes hold that they did not hold before, in words; processes that are not the same are let be."""
    found: list[str] = []
    was = {each.pid: each for each in before}
    for now in after:
        then = was.get(now.pid)
        if then is None:
            continue
        if now.mib > then.mib + most_mib:
            found.append(f"process {now.pid} holds {now.mib:.0f} MiB, {then.mib:.0f} before")
        if now.descriptors > then.descriptors + MAX_DESCRIPTORS:
            found.append(f"process {now.pid} has {now.descriptors} descriptors open, {then.descriptors} before")
        if now.threads > then.threads + MAX_THREADS:
            found.append(f"process {now.pid} has {now.threads} threads, {then.threads} before")
    return found
