"""Input that means no good, beside clients that do: `python tests/drills/hostile.py [--quick] [--only WORD]`.

The service runs with its limits on one core. Honest clients ask it all the time, a prober asks whether it lives, and an
attacker tries one thing after the other. The process must live, memory stay under what the settings add up to, every
refusal say why or be a clean close, others be answered, and nothing be left over. Exits with 1 where a promise is
broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from anytime.model.model import Model
from benchmarks.load.child import CLIENT_CORE, settle
from benchmarks.load.models import saved_model
from drills.attacks.attacker import ATTACKS, Attacker, attacker, many_files
from drills.beside import Memory, Prober
from drills.calls import Call
from drills.clients import Plan, clients
from drills.drilling import ENVIRONMENT, unforeseen
from drills.house import House, Replica, metric, wait_for
from drills.judging import Oracle, Outcome, Served, Stalls
from drills.machine import Watch
from drills.trials import Bounds, Trial, faults_of

BODY_MIB, HELD_MIB, MOST = 1, 64, 10_500
SETTINGS = {
    "ANYTIME_MAX_BODY_BYTES": str(BODY_MIB << 20),
    "ANYTIME_MAX_HELD_BYTES": str(HELD_MIB << 20),
    "ANYTIME_MAX_CONNECTIONS": str(MOST),
    "ANYTIME_MAX_SESSIONS": "2000",
    "ANYTIME_SESSION_TTL_S": "8",
    "ANYTIME_HEADER_TIMEOUT_S": "2",
    "ANYTIME_IDLE_TIMEOUT_S": "4",
    "ANYTIME_BODY_TIMEOUT_S": "2",
    "ANYTIME_MAX_DEADLINE_MS": "3000",
}
BOUNDS = Bounds(HELD_MIB, 0.04, 3 * BODY_MIB + 1, 48)
COUNTS = {"websocket": 4, "post": 2, "session": 1, "run": 2}
PERIOD_S = 0.1
SETTLED_S = 8.0
COLUMNS = (("times", 6), ("worst MiB", 12), ("others p99 ms", 15), ("shed", 6), ("/livez s", 10))


def main() -> None:
    """Attack, print, and exit with 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="try everything once")
    parser.add_argument("--only", default="", help="a word of the name of an attack")
    given = parser.parse_args()
    many_files()
    settle(CLIENT_CORE)
    chosen = [number for number, attack in enumerate(ATTACKS) if given.only in attack.name]
    with tempfile.TemporaryDirectory() as folder:
        trials = list(tried(Path(folder), chosen, 0.0 if given.quick else 5.0))
    broken = [f"{trial.name}: {fault}" for trial in trials for fault in faults_of(trial)]
    print("\n".join(["", *broken]) if broken else "\nevery promise was kept")
    sys.exit(1 if broken or not trials else 0)


@dataclass
class Scene:
    """A server under attack, and who is there."""

    replica: Replica
    attacker: Attacker
    length_s: float
    seen: int = 0

    def trial(self, number: int) -> tuple[Trial, float, float]:
        """Try one attack; what was seen, and from when to when."""
        attack, before = ATTACKS[number], self.replica.footprint
        memory, prober = Memory(before.pid), Prober(self.replica.port)
        begun = time.perf_counter()
        with memory, prober:
            found = self.attacker.attack(number, self.length_s)
            time.sleep(0.3)
        over = time.perf_counter()
        trial = Trial(
            name=attack.name,
            times=found.times,
            came=found.came,
            before_mib=before.mib,
            worst_mib=memory.worst_mib,
            most_mib=BOUNDS.most_mib(before.mib, attack.connections),
            others_ms=float("nan"),
            others_most_ms=attack.others_ms,
            asked=0,
            probes_s=prober.taken_s,
            lives=self.replica.alive,
            resets=attack.resets,
            stays=attack.stays,
            failed=found.failed,
            log=self.log(),
        )
        return trial, begun, over

    def log(self) -> list[str]:
        """Lines of the log that should not be there, of those that have come since the last look."""
        content = self.replica.log.read_bytes()
        new, self.seen = content[self.seen :].decode(errors="replace"), len(content)
        return [line for line in new.splitlines() if "Traceback" in line or line.startswith("ERROR")][:3]


def tried(folder: Path, chosen: Sequence[int], length_s: float) -> Iterator[Trial]:
    """Try attacks one after the other, and tell of each."""
    model = saved_model(folder / "model.safetensors", groups=10, rows=2000)
    with House(folder, folder / "model.safetensors", SETTINGS, count=1) as house:
        port = house.ports[0]
        plan = Plan(str(house.model), str(folder / "calls.jsonl"), port, [port], COUNTS, [20.0, 50.0], PERIOD_S)
        with clients(plan, ENVIRONMENT) as asking, attacker(port, ENVIRONMENT) as hostile, Watch(0) as watch:
            asking.await_ready()
            asking.go()
            time.sleep(1.0)
            scene = Scene(house.replicas[0], hostile, length_s)
            seen = []
            for number in chosen:
                seen.append(scene.trial(number))
                if not scene.replica.alive:
                    break
            calls, left = asking.stop()
        if seen[-1][0].lives:
            wait_for(lambda: metric(port, "anytime_open_predictions") == 0, SETTLED_S)
            seen[-1][0].open = metric(port, "anytime_open_predictions")
    stalls = Stalls([*left.stalls, *watch.stalls])
    print(f"{'what was tried':<52}" + "".join(f"{name:>{width}}" for name, width in COLUMNS) + "  what came back")
    for number, (trial, begun, over) in zip(chosen, seen, strict=False):
        others(trial, [call for call in calls if begun <= call.begun < over], model, stalls, ATTACKS[number].full)
        tell(trial)
        yield trial


def others(trial: Trial, calls: Sequence[Call], model: Model, stalls: Stalls, full: str | None) -> None:
    """Judge how others fared; of how late they were answered, what the machine stood still is taken off.

    Parameters
    ----------
    full : kind of call for which there was no room, as that was the attack.
    """
    oracle = Oracle([Served(model)])
    late = [
        call.late_ms - stalls.within_ms(call.begun, call.came)
        for call in calls
        if call.answer is not None and call.deadline_ms is not None
    ]
    trial.asked = len(calls)
    trial.others_ms = float(np.percentile(late, 99)) if late else float("nan")
    wrong = [fault for fault in map(oracle.fault, calls) if fault is not None]
    allowed = dict.fromkeys(COUNTS, frozenset({Outcome.REFUSED}))
    trial.others += [*wrong[:2], *unforeseen(calls, allowed, {}, "others", stalls)]
    trial.shed = sum(call.shed and call.kind != full for call in calls)


def tell(trial: Trial) -> None:
    """Print a line of the table."""
    came = ", ".join(f"{times} x {what}" for what, times in trial.came.most_common(5))
    memory = f"{trial.worst_mib - trial.before_mib:+.0f} of {trial.most_mib - trial.before_mib:.0f}"
    probe = f"{max(trial.probes_s, default=float('nan')):.2f}"
    told = (trial.times, memory, f"{trial.others_ms:.1f}", trial.shed, probe)
    cells = "".join(f"{value:>{width}}" for value, (_, width) in zip(told, COLUMNS, strict=True))
    print(f"{trial.name:<52.52}{cells}  {came}")
    for fault in faults_of(trial):
        print(f"    BROKEN: {fault}", flush=True)


if __name__ == "__main__":
    main()
