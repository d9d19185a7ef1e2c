"""The attacker process: `python -m drills.attacks.attacker PORT`.

Reads one line per attack, its number and its length in seconds, and prints one line with the replies. The last attacks
are the benchmarks' hostile clients.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks.harness import Process, answering, set_priority
from benchmarks.load.hostile import KINDS
from drills.attacks.bodies import BODIES
from drills.attacks.floods import FLOODS
from drills.attacks.frames import FRAMES
from drills.attacks.malformed import MALFORMED
from drills.attacks.wire import Attack

LENGTH_S = 4.0


def _kind(name: str) -> Callable[[int], Counter[str]]:
    """Run one of the benchmarks' hostile clients for some seconds."""

    def act(port: int) -> Counter[str]:
        with Process("benchmarks.load.hostile", name, port) as process:
            time.sleep(LENGTH_S)
            ended = process.popen.poll()
        return Counter(["closed by us" if ended is None else f"the attacker ended with {ended}"])

    return act


EXTERNAL = (Attack(f"{name}, repeatedly", _kind(name), 100, rounds=1, others_ms=50.0) for name in KINDS)
ATTACKS: tuple[Attack, ...] = (*MALFORMED, *BODIES, *FRAMES, *FLOODS, *EXTERNAL)


class AttackResult(NamedTuple):
    """Repetitions of an attack and the replies; `failed` is an error of the attacker itself."""

    times: int
    replies: Mapping[str, int]
    failed: str | None = None


def raise_file_limit() -> None:
    """Raise the limit of open files to the maximum."""
    maximum = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


def run_attack(attack: Attack, port: int, length_s: float) -> AttackResult:
    """Repeat an attack for some time."""
    replies: Counter[str] = Counter()
    times, until = 0, time.monotonic() + length_s
    while times == 0 or (times != attack.rounds and time.monotonic() < until):
        try:
            replies += attack.act(port)
        except OSError as error:
            return AttackResult(times, replies, f"{type(error).__name__}: {error}")
        times += 1
    return AttackResult(times, replies)


def main() -> None:
    raise_file_limit()
    set_priority(real_time=False)  # measurements have priority

    def answer(line: str) -> Mapping[str, Any]:
        number, length_s = line.split()
        return run_attack(ATTACKS[int(number)], int(sys.argv[1]), float(length_s))._asdict()

    answering(answer)


if __name__ == "__main__":
    main()
