"""What this process and its children use: processor time, memory, descriptors and segments of shared memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["Usage", "busy_process", "children", "processor_s", "resident_mib"]


def children() -> set[int]:
    """Return the processes that this process started."""
    found = set[int]()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            found.update(map(int, (thread / "children").read_text(encoding="ascii").split()))
    return found


def processor_s(ignored: set[int]) -> float:
    """Return the processor time of this process and its children, running or ended, in seconds."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in children() - ignored:
        with suppress(OSError):
            total += time.clock_gettime(~child << 3 | 2)  # clock_getcpuclockid(3), which Python does not have
    return total


def resident_mib() -> float:
    """Return the memory of this process and its children."""
    pages = 0
    for process in {os.getpid(), *children()}:
        with suppress(OSError):
            pages += int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class Usage:
    """What a program may leave behind."""

    descriptors: int
    segments: frozenset[str]
    processes: frozenset[int]

    @classmethod
    def now(cls) -> Self:
        segments = frozenset(os.listdir("/dev/shm"))  # noqa: S108
        return cls(len(os.listdir("/proc/self/fd")), segments, frozenset(children()))

    def more(self, before: Usage) -> int:
        """Return how many descriptors, segments and processes there are more than before."""
        descriptors = max(self.descriptors - before.descriptors, 0)
        processes = max(len(self.processes) - len(before.processes), 0)
        return descriptors + len(self.segments - before.segments) + processes

    @classmethod
    def settled(cls, before: Usage, seconds: float = 20.0) -> int:
        """Return how many more than before remain; wait for processes that are starting or ending."""
        end = time.monotonic() + seconds
        while (more := cls.now().more(before)) and time.monotonic() < end:
            time.sleep(0.05)
        return more


@contextmanager
def busy_process() -> Iterator[int]:
    """Keep one core busy; yield the process."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()
