"""The attacker process: `python -m drills.attacks.attacker PORT`.

Reads one line per attack, its number and its length in seconds, and prints one line with the replies.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.harness import Process, answering, set_priority
from drills.attacks.bodies import BODIES
from drills.attacks.external import EXTERNAL
from drills.attacks.floods import FLOODS
from drills.attacks.frames import FRAMES
from drills.attacks.headers import HEADERS
from drills.attacks.malformed import MALFORMED, PATHS
from drills.attacks.wire import Attack

ATTACKS: tuple[Attack, ...] = (*MALFORMED, *PATHS, *HEADERS, *BODIES, *FRAMES, *FLOODS, *EXTERNAL)


class AttackResult(NamedTuple):
    """Repetitions of an attack and the replies; `failed` is an error of the attacker itself."""

    times: int
    replies: Counter[str]
    failed: str | None = None


def attack(attacker: Process, number: int, length_s: float) -> AttackResult:
    """Let the attacker repeat an attack for some time."""
    found = attacker.ask(f"{number} {length_s}")
    return AttackResult(found["times"], Counter(found["replies"]), found["failed"])


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
    set_priority(real_time=False)  # measurements have priority
    port = int(sys.argv[1])

    def answer(line: str) -> Mapping[str, Any]:
        number, length_s = line.split()
        return run_attack(ATTACKS[int(number)], port, float(length_s))._asdict()

    answering(answer)


if __name__ == "__main__":
    main()
