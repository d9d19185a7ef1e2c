"""The attacker, a process of its own: `python -m drills.attacks.attacker PORT`.

Reads the number of an attack and for how many seconds to go on with it, a line each, and tells what came back, a line
each.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from drills.attacks.bodies import BODIES
from drills.attacks.crowds import CROWDS
from drills.attacks.frames import FRAMES
from drills.attacks.heads import HEADS
from drills.attacks.others import OTHERS
from drills.attacks.shapes import PATHS, SHAPES
from drills.attacks.wire import Attack

__all__ = ["ATTACKS", "Attacker", "Tried", "attacker", "many_files"]

ATTACKS: tuple[Attack, ...] = (*SHAPES, *PATHS, *HEADS, *BODIES, *FRAMES, *CROWDS, *OTHERS)


class Tried(NamedTuple):
    """How often something was tried, and what came back; `failed` is why the attacker itself did."""

    times: int
    came: Counter[str]
    failed: str | None = None


class Attacker:
    """The process, from the side of the drill."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def attack(self, number: int, length_s: float) -> Tried:
        """Try an attack again and again, for so long."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number} {length_s}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the attacker has ended")
        told = json.loads(line)
        return Tried(told["times"], Counter(told["came"]), told["failed"])


@contextmanager
def attacker(port: int, environment: Mapping[str, str]) -> Iterator[Attacker]:
    """Run the attacker."""
    command = [sys.executable, "-m", "drills.attacks.attacker", str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=dict(environment), text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield Attacker(process)
        finally:
            process.kill()


def many_files() -> int:
    """Raise the limit of open files as far as this process may; the limit."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def tried(attack: Attack, port: int, length_s: float) -> Tried:
    """Try an attack, for so long."""
    came: Counter[str] = Counter()
    times, until = 0, time.monotonic() + length_s
    while True:
        try:
            came += attack.act(port)
        except OSError as error:
            return Tried(times, came, f"{type(error).__name__}: {error}")
        times += 1
        if times == attack.rounds or time.monotonic() >= until:
            return Tried(times, came)


def main() -> None:
    """Attack as told."""
    many_files()
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # whoever measures comes first
    port = int(sys.argv[1])
    for line in sys.stdin:
        number, length_s = line.split()
        found = tried(ATTACKS[int(number)], port, float(length_s))
        print(json.dumps({"times": found.times, "came": found.came, "failed": found.failed}), flush=True)


if __name__ == "__main__":
    main()
