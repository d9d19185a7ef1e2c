"""Hostile input next to well-behaved clients: `python tests/drills/hostile.py [--quick] [--only WORD]`.

The service runs with its limits on one core. Honest clients call it, a prober requests `/livez`, and an attacker runs
one attack after the other. The process must survive, memory must stay below the sum of the limits, every refusal must
give a reason or be a clean close, other clients must be answered, and nothing may leak. Exits with 1 if a promise is
broken.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from anytime.model.model import Model
from benchmarks.harness import CLIENT_CORE, Process, Table, conclude, flag, pin_to_core, script_options
from benchmarks.load.models import saved_model
from drills.attacks.attacker import ATTACKS, AttackResult, raise_file_limit
from drills.clients import Clients, Plan
from drills.cluster import Cluster, Replica, footprint, measuring_memory, metric, probing, wait_for, watching_stalls
from drills.drill import unexpected
from drills.judging import Bounds, Call, Oracle, Outcome, Served, Stalls, Trial, faults_of

BODY_MIB, VALUES_MIB, MAX_CONNECTIONS = 1, 64, 10_500
SETTINGS = {
    "ANYTIME_MAX_BODY_BYTES": str(BODY_MIB << 20),
    "ANYTIME_MAX_HELD_BYTES": str(VALUES_MIB << 20),
    "ANYTIME_MAX_CONNECTIONS": str(MAX_CONNECTIONS),
    "ANYTIME_MAX_SESSIONS": "2000",
    "ANYTIME_SESSION_TTL_S": "8",
    "ANYTIME_HEADER_TIMEOUT_S": "2",
    "ANYTIME_IDLE_TIMEOUT_S": "4",
    "ANYTIME_BODY_TIMEOUT_S": "2",
    "ANYTIME_MAX_DEADLINE_MS": "3000",
}
BOUNDS = Bounds(VALUES_MIB, 0.04, 3 * BODY_MIB + 1, 48)
COUNTS = {"websocket": 4, "post": 2, "session": 1, "run": 2}
PERIOD_S = 0.1
SETTLED_S = 8.0
TABLE = Table(
    ("attack", "<52.52"),
    ("times", ">6"),
    ("worst MiB", ">12"),
    ("others p99 ms", ">15.1f"),
    ("shed", ">6"),
    ("/livez s", ">10.2f"),
)


def main() -> None:
    """Attack and print; exit with 1 if a promise is broken."""
    args = script_options(
        __doc__, quick=flag("try everything once"), only={"default": "", "help": "a word of the name of an attack"}
    )
    raise_file_limit()
    pin_to_core(CLIENT_CORE)
    chosen = [number for number, each in enumerate(ATTACKS) if args.only in each.name]
    with tempfile.TemporaryDirectory() as folder:
        trials = list(run_attacks(Path(folder), chosen, 0.0 if args.quick else 5.0))
    broken = [f"{trial.name}: {fault}" for trial in trials for fault in faults_of(trial)]
    conclude(broken, ran=bool(trials))


def trial_of(number: int, replica: Replica, attacker: Process, length_s: float) -> Trial:
    """Run one attack, and observe the server and the probes."""
    tried, before, logged = ATTACKS[number], footprint(replica.process.pid), replica.log.stat().st_size
    started = time.perf_counter()
    with measuring_memory(before.pid) as memory_mib, probing(replica.port) as probes_s:
        found = AttackResult(**attacker.ask(f"{number} {length_s}"))
        time.sleep(0.3)
    lines = replica.log.read_bytes()[logged:].decode(errors="replace").splitlines()
    return Trial(
        name=tried.name,
        times=found.times,
        received=Counter(found.replies),
        before_mib=before.mib,
        worst_mib=max(memory_mib),
        max_mib=BOUNDS.max_mib(before.mib, tried.connections),
        others_ms=float("nan"),
        max_others_ms=tried.others_ms,
        requests=0,
        probes_s=probes_s,
        alive=replica.alive,
        may_reset=tried.may_reset,
        may_stay_open=tried.may_stay_open,
        failed=found.failed,
        log=[line for line in lines if "Traceback" in line or line.startswith("ERROR")][:3],
        period=(started, time.perf_counter()),
    )


def run_attacks(folder: Path, chosen: Sequence[int], length_s: float) -> Iterator[Trial]:
    """Run the attacks one after the other, and print each."""
    model = saved_model(folder / "model.safetensors", groups=10, rows=2000)
    with Cluster(folder, folder / "model.safetensors", SETTINGS, count=1) as cluster:
        port = cluster.ports[0]
        plan = Plan(str(cluster.model), str(folder / "calls.jsonl"), port, [port], COUNTS, [20.0, 50.0], PERIOD_S)
        with Clients(plan) as load, Process("drills.attacks.attacker", port) as hostile, watching_stalls(0) as watched:
            load.await_ready()
            load.start()
            time.sleep(1.0)
            trials = []
            for number in chosen:
                trials.append(trial_of(number, cluster.replicas[0], hostile, length_s))
                if not trials[-1].alive:
                    break
            calls, client_report = load.stop()
        if trials[-1].alive:
            wait_for(lambda: metric(port, "anytime_open_predictions") == 0, SETTLED_S)
            trials[-1].open = metric(port, "anytime_open_predictions")
    stalls = Stalls([*client_report.stalls, *watched])
    print(f"{TABLE.head}  replies")
    for number, trial in zip(chosen, trials, strict=False):
        started, ended = trial.period
        meanwhile = [call for call in calls if started <= call.started < ended]
        judge_others(trial, meanwhile, model, stalls, ATTACKS[number].full)
        shown = ", ".join(f"{times} x {reply}" for reply, times in trial.received.most_common(5))
        memory = f"{trial.worst_mib - trial.before_mib:+.0f} of {trial.max_mib - trial.before_mib:.0f}"
        probe = max(trial.probes_s, default=float("nan"))
        print(TABLE.row(trial.name, trial.times, memory, trial.others_ms, trial.shed, probe) + f"  {shown}")
        print(*(f"    BROKEN: {fault}\n" for fault in faults_of(trial)), sep="", end="", flush=True)
        yield trial


def judge_others(trial: Trial, calls: Sequence[Call], model: Model, stalls: Stalls, full: str | None) -> None:
    """Judge the calls of other clients; stalls of the machine are subtracted from their lateness.

    Parameters
    ----------
    full : kind of call for which the attack exhausts a limit.
    """
    oracle = Oracle([Served(model)])
    late = [
        call.late_ms - stalls.within_ms(call.started, call.received)
        for call in calls
        if call.answer is not None and call.deadline_ms is not None
    ]
    trial.requests = len(calls)
    trial.others_ms = float(np.percentile(late, 99)) if late else float("nan")
    wrong = [fault for fault in map(oracle.fault, calls) if fault is not None]
    allowed = dict.fromkeys(COUNTS, frozenset({Outcome.REFUSED}))
    trial.others += [*wrong[:2], *unexpected(calls, allowed, {}, "others", stalls)]
    trial.shed = sum(call.shed and call.kind != full for call in calls)


if __name__ == "__main__":
    main()
