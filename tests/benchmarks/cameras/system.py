"""What this process and its children use: processor time, memory, descriptors and segments of shared memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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
            total += time.clock_gettime(~child << 3 | 2)  # as clock_getcpuclockid(3), which Python does not have
    return total


def resident_mib() -> float:
    """Return the memory of this process and its children."""
    pages = 0
    for process in (os.getpid(), *children()):
        with suppress(OSError):
            pages += int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def in_use() -> Counter[str]:
    """Count what a program may leave behind; segments are those of the whole machine."""
    descriptors, segments = (len(os.listdir(folder)) for folder in ("/proc/self/fd", "/dev/shm"))
    return Counter(descriptors=descriptors, segments=segments, processes=len(children()))


def settled(before: Counter[str]) -> int:
    """Return how much more is in use than before; wait 20 s at most for processes that are starting or ending."""
    end = time.monotonic() + 20.0
    while (more := in_use() - before) and time.monotonic() < end:
        time.sleep(0.05)
    return more.total()


@contextmanager
def busy_process() -> Iterator[int]:
    """Keep one core busy; yield the process."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()
