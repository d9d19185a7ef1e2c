"""The attacker process: `python -m drills.attacks.attacker PORT`.

Reads one line per attack, its number and its length in seconds, and prints one line with the replies.
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
from drills.attacks.external import EXTERNAL
from drills.attacks.floods import FLOODS
from drills.attacks.frames import FRAMES
from drills.attacks.headers import HEADERS
from drills.attacks.malformed import MALFORMED, PATHS
from drills.attacks.wire import Attack

__all__ = ["ATTACKS", "AttackResult", "Attacker", "attacker", "raise_file_limit"]

ATTACKS: tuple[Attack, ...] = (*MALFORMED, *PATHS, *HEADERS, *BODIES, *FRAMES, *FLOODS, *EXTERNAL)


class AttackResult(NamedTuple):
    """Repetitions of an attack and the replies; `failed` is an error of the attacker itself."""

    times: int
    replies: Counter[str]
    failed: str | None = None


class Attacker:
    """Handle of the attacker process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def attack(self, number: int, length_s: float) -> AttackResult:
        """Repeat an attack for some time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number} {length_s}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the attacker has ended")
        result = json.loads(line)
        return AttackResult(result["times"], Counter(result["replies"]), result["failed"])


@contextmanager
def attacker(port: int, environment: Mapping[str, str]) -> Iterator[Attacker]:
    command = [sys.executable, "-m", "drills.attacks.attacker", str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=dict(environment), text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield Attacker(process)
        finally:
            process.kill()


def raise_file_limit() -> int:
    """Raise the limit of open files to the maximum, and return it."""
    maximum = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    return maximum


def run_attack(attack: Attack, port: int, length_s: float) -> AttackResult:
    """Repeat an attack for some time."""
    replies: Counter[str] = Counter()
    times, until = 0, time.monotonic() + length_s
    while True:
        try:
            replies += attack.act(port)
        except OSError as error:
            return AttackResult(times, replies, f"{type(error).__name__}: {error}")
        times += 1
        if times == attack.rounds or time.monotonic() >= until:
            return AttackResult(times, replies)


def main() -> None:
    raise_file_limit()
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # measurements have priority
    port = int(sys.argv[1])
    for line in sys.stdin:
        number, length_s = line.split()
        found = run_attack(ATTACKS[int(number)], port, float(length_s))
        print(json.dumps({"times": found.times, "replies": found.replies, "failed": found.failed}), flush=True)


if __name__ == "__main__":
    main()
