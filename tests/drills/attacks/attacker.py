"""The attacker process: `python -m drills.attacks.attacker PORT`.

Reads one line per attack, its number and its length in seconds, and prints one line with the replies. The last attacks
are those of other programs: the benchmarks' hostile clients, and schemathesis with the OpenAPI document.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import Process, answering, set_priority
from benchmarks.load.hostile import KINDS
from drills.attacks.bodies import BODIES
from drills.attacks.floods import FLOODS
from drills.attacks.frames import FRAMES
from drills.attacks.malformed import MALFORMED
from drills.attacks.wire import Attack

LENGTH_S = 4.0
EXAMPLES = 10
REFUSED = [400, 401, 403, 404, 405, 406, 409, 410, 415, 422, 428, 429, 500, 503]
"""Statuses that reject input outside the schema; schemathesis does not know 410, for an expired session."""

HOOKS = Path(__file__).parents[2] / "service" / "schemathesis_hooks.py"


def _kind(name: str) -> Callable[[int], Counter[str]]:
    """Run one of the benchmarks' hostile clients for some seconds."""

    def act(port: int) -> Counter[str]:
        with Process("benchmarks.load.hostile", name, port) as process:
            time.sleep(LENGTH_S)
            ended = process.popen.poll()
        return Counter(["closed by us" if ended is None else f"the attacker ended with {ended}"])

    return act


def _documented(port: int) -> Counter[str]:
    """Request everything in the OpenAPI document, with valid and invalid values."""
    options = ["--max-examples", str(EXAMPLES), "--no-color", "--workers", "1"]
    options += ["--exclude-checks", "positive_data_acceptance"]  # the document does not say which groups a model has
    url = f"http://127.0.0.1:{port}/openapi.json"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "schemathesis.toml").write_text(
            f"[checks.negative_data_rejection]\nexpected-statuses = {REFUSED}\n"
        )
        finished = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "run", url, *options],
            env={**os.environ, "PYTHONWARNINGS": "ignore", "SCHEMATHESIS_HOOKS": os.fspath(HOOKS)},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    if finished.returncode == 0:
        return Counter(["as documented"])
    failures = re.findall(r"^- (.+)$", finished.stdout, re.MULTILINE)
    if not failures:  # an error of schemathesis, or of the connection, in a section before that of the warnings
        failures = [
            f"exit code {finished.returncode}: {finished.stdout.partition(' WARNINGS ')[0][-1500:]}{finished.stderr}"
        ]
    return Counter(f"NOT AS DOCUMENTED: {failure}" for failure in failures)


EXTERNAL = (
    *(Attack(f"{name}, repeatedly", _kind(name), 100, rounds=1, others_ms=50.0) for name in KINDS),
    Attack("requests of every kind, by schemathesis", _documented, rounds=5, others_ms=50.0),
)

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
