"""The testbed of a fault drill: replicas, the relay, their disk and model file, and the results of direct checks."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path

from anytime.model.model import Model
from drills.clients import Plan
from drills.cluster import Cluster, request, wait_for
from drills.judging import Served
from drills.relay import Relay

SIZE_MIB = 4


class Disk:
    """A folder whose free space the drill controls.

    Attributes
    ----------
    mounted : whether it is a separate file system; otherwise `fill` limits the file size of processes.
    """

    def __init__(self, folder: Path, *, mounted: bool) -> None:
        self.folder, self.mounted = folder, mounted
        self._filler = folder / "filler"
        self._limited: list[int] = []

    def fill(self, pids: Iterable[int]) -> None:
        self._limited = list(pids)
        for pid in self._limited:
            self.limit(pid)
        if not self.mounted:
            return
        piece = 1 << 16
        with self._filler.open("wb", buffering=0) as file:
            while piece:
                try:
                    file.write(bytes(piece))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2

    def free(self) -> None:
        if not self.mounted:
            for pid in self._limited:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self._filler.unlink(missing_ok=True)

    def limit(self, pid: int) -> None:
        """Apply the limit to a process that started after `fill`."""
        if not self.mounted:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """Mount a disk of a few megabytes at an existing folder."""
    options = f"size={SIZE_MIB}m"
    command = ["mount", "-t", "tmpfs", "-o", options, "drill", os.fspath(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield Disk(folder, mounted=mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", os.fspath(folder)], capture_output=True, check=False)


class Clock:
    """The wall clock of processes with its environment; `time.perf_counter` is not affected."""

    def __init__(self, library: str, folder: Path) -> None:
        self._file = folder / "clock"
        self.step(0)
        self.environment = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": os.fspath(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, seconds: int) -> None:
        """Set the offset from the true time."""
        temporary = self._file.with_suffix(".aside")
        temporary.write_text(f"{seconds:+d}\n")
        temporary.replace(self._file)


def fake_clock(folder: Path) -> Clock | None:
    """Return a clock, None without libfaketime."""
    found = glob("/usr/lib/*/faketime/libfaketimeMT.so.1") if shutil.which("faketime") else []
    return Clock(found[0], folder) if found else None


@dataclass
class Testbed:
    """The parts of the system that a fault may affect.

    Attributes
    ----------
    good, next_good : the served model, and another with the same groups.
    served : the versions that may answer, and when.
    lost : start and end of the outage of each failed replica.
    broken : promises found broken by direct checks.
    notes : further observations.
    sessions : port and id of a session of each replica, for the steps of the clock.
    """

    cluster: Cluster
    relay: Relay
    disk: Disk
    scratch: Path
    good: Model
    next_good: Model
    clock: Clock | None = None
    served: list[Served] = field(default_factory=list)
    lost: dict[int, tuple[float, float]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sessions: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.served = [Served(self.good)]

    def expect(self, condition: bool, promise: str) -> None:
        """Record a broken promise unless the condition is true."""
        if not condition:
            self.broken.append(promise)

    def version_of(self, replica: int) -> str:
        """Return the version that a replica serves."""
        content = request(self.cluster.ports[replica], "GET", "/models").content
        return str(content[0]["version"]) if content else "none"

    def logged(self, replica: int, words: str, since: int) -> bool:
        """Return whether a replica logs some words, after the first `since` bytes."""
        log = self.cluster.replicas[replica].log
        return wait_for(lambda: words in log.read_bytes()[since:].decode(errors="replace"), 10.0) is not None

    def reload(self, replica: int, words: str) -> bool:
        """Send a SIGHUP, and wait for words in the log."""
        since = self.cluster.replicas[replica].log.stat().st_size
        self.cluster.replicas[replica].process.send_signal(signal.SIGHUP)
        return self.logged(replica, words, since)

    def mark_failed(self, replica: int) -> None:
        """Record the start of a replica's outage."""
        self.lost[replica] = (time.perf_counter(), float("inf"))

    def mark_recovered(self, replica: int, grace_s: float = 1.0) -> None:
        """Record the end of a replica's outage, with a grace period for open calls."""
        self.lost[replica] = (self.lost[replica][0], time.perf_counter() + grace_s)

    def plan(self, port: int, counts: Mapping[str, int], deadlines_ms: Sequence[float], period_s: float) -> Plan:
        """Return a plan of clients, those of this project at a port."""
        good, calls = str(self.scratch / "good.safetensors"), str(self.scratch / "calls.jsonl")
        shared = self.cluster.redis is not None
        return Plan(good, calls, port, self.cluster.ports, dict(counts), list(deadlines_ms), period_s, shared)
