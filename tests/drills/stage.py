"""What faults act upon: replicas, the ways to them, their disk and model file, and what was found out directly."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path

from anytime.model.model import Model
from drills.disk import Disk
from drills.house import House, ask, wait_for
from drills.judging import Served
from drills.relay import Relay

__all__ = ["Clock", "Stage", "fake_clock"]


class Clock:
    """The wall clock of processes that run with its environment; that of `time.perf_counter` is not touched."""

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
        """Set it so far before or behind the true time."""
        aside = self._file.with_suffix(".aside")
        aside.write_text(f"{seconds:+d}\n")
        aside.replace(self._file)


def fake_clock(folder: Path) -> Clock | None:
    """A clock, where libfaketime is installed."""
    found = glob("/usr/lib/*/faketime/libfaketimeMT.so.1") if shutil.which("faketime") else []
    return Clock(found[0], folder) if found else None


@dataclass
class Stage:
    """Everything that a fault may strike.

    Attributes
    ----------
    good, next_good : the model that is served, and another one of the same groups.
    served : the versions that may answer, and when.
    lost : replicas that a fault has struck, and from when to when their own clients are lost with them.
    broken : promises found to be broken while the fault was brought about.
    notes : what else was seen.
    """

    house: House
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

    def __post_init__(self) -> None:
        self.served = [Served(self.good)]

    def expect(self, holds: bool, promise: str) -> None:
        """Note a promise that is not kept."""
        if not holds:
            self.broken.append(promise)

    def version_of(self, replica: int) -> str:
        """Version that a replica serves now."""
        content = ask(self.house.ports[replica], "GET", "/models").content
        return str(content[0]["version"]) if content else "none"

    def said(self, replica: int, words: str, since: int) -> bool:
        """Whether a replica's log has come to say something, behind its first `since` bytes."""
        log = self.house.replicas[replica].log
        return wait_for(lambda: words in log.read_bytes()[since:].decode(errors="replace"), 10.0) is not None

    def hang_up(self, replica: int, words: str) -> bool:
        """Send a SIGHUP, and wait for the replica to say something."""
        since = self.house.replicas[replica].log.stat().st_size
        self.house.replicas[replica].signal(signal.SIGHUP)
        return self.said(replica, words, since)

    def lose(self, replica: int) -> None:
        """Note that a replica is struck from now on."""
        self.lost[replica] = (time.perf_counter(), float("inf"))

    def find(self, replica: int, grace_s: float = 1.0) -> None:
        """Note that a replica is well again; what it owes may take a moment."""
        self.lost[replica] = (self.lost[replica][0], time.perf_counter() + grace_s)

    def tracebacks(self) -> Iterator[str]:
        """Logs that have a traceback in them."""
        for replica in self.house.replicas:
            if b"Traceback" in replica.log.read_bytes():
                yield f"{replica.log.name} has a traceback"
