"""Random sequences of protocol elements on every port, and what they cost the server and its other clients.

`python tests/drills/accounting.py [--quick] [--seed N]` plays rounds against a server without a key and against
one with a key. During each round the resident memory must stay within the bound that the settings state, the probes and
the predictions of others must be answered, and the predictions must be right. Rounds after the first must not add much
to the memory. The drill prints the latencies next to those of the same server without an attack, and exits with 1 if
a promise is broken.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anytime.inference.prediction import Prediction

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from anytime.model.model import Model
from benchmarks.harness import Process, conclude, flag, script_options, violations
from benchmarks.load.models import saved_model
from drills.attacks.sequences import Round
from drills.cluster import Predictions, measuring_memory, predicting, probing
from service.commands import Command, command
from service.serving import Running

KEY = "a-key-of-the-accounting-drill"
VALUES_MIB = 32
SLACK_MIB = 64
"""Allowance for the allocator and for bodies and messages of 20 connections in transit, which exist twice briefly."""

GROWTH_MIB = 16
"""Memory growth allowed in each round after the first."""

PROBE_S = 2.0
"""Timeout of a probe or of another client's prediction."""

WARM_S = 3.0
QUIET_S = 10.0
SETTINGS = {
    "ANYTIME_METRICS_PORT": "0",
    "ANYTIME_MAX_BODY_BYTES": str(1 << 20),
    "ANYTIME_MAX_HELD_BYTES": str(VALUES_MIB << 20),
    "ANYTIME_MAX_CONNECTIONS": "50",
    "ANYTIME_MAX_SESSIONS": "2000",
    "ANYTIME_SESSION_TTL_S": "4",
    "ANYTIME_HEADER_TIMEOUT_S": "2",
    "ANYTIME_IDLE_TIMEOUT_S": "4",
    "ANYTIME_BODY_TIMEOUT_S": "2",
    "ANYTIME_MAX_DEADLINE_MS": "3000",
}


@dataclass
class Account:
    """Observations of a server during one round.

    Attributes
    ----------
    memory_mib, bound_mib : resident memory, and its bound.
    probes_s : latency of each probe in seconds; infinite if it failed.
    others : predictions of another client.
    attack : what the attacker sent, and how its connections ended.
    log : tracebacks and errors in the server's log.
    """

    memory_mib: list[float]
    bound_mib: float
    probes_s: list[float]
    others: Predictions
    attack: Round
    alive: bool
    log: list[str]


@dataclass
class Target:
    """A server under attack."""

    command: Command
    running: Running
    model: Model
    headers: Mapping[str, str]
    attacker: Process
    bound_mib: float = float("inf")

    def account(self, seed: int | None, length_s: float) -> Account:
        """Play a round, or only observe if `seed` is None."""
        port, side = self.running.port, self.running.metrics_port
        assert side is not None
        group = self.model.manifest.groups.groups[0]
        values = [0.5] * len(group.features)
        prediction = Prediction(self.model, 1)
        prediction.add(group.name, values)
        expected = json.loads(json.dumps(prediction.answer().prediction))
        body = json.dumps({"groups": {group.name: values}}).encode()
        process, attack = self.command.process, Round()
        with (
            measuring_memory(process.pid) as memory_mib,
            probing(port, side) as probes_s,
            predicting(port, body, expected, self.headers) as others,
        ):
            if seed is None:
                time.sleep(length_s)
            else:
                attack = Round(**self.attacker.ask(f"{seed} {length_s}"))
        log = [line for line in self.command.lines if "Traceback" in line or line.startswith("ERROR")][:3]
        return Account(memory_mib, self.bound_mib, probes_s, others, attack, process.poll() is None, log)


@contextmanager
def target(folder: Path, *, keyed: bool) -> Iterator[Target]:
    """Run a server with a metrics port, an attacker of both ports, and a memory bound."""
    path = folder / "model.safetensors"
    model = saved_model(path, groups=10, rows=2000)
    settings = {**SETTINGS, **({"ANYTIME_API_KEYS": KEY} if keyed else {})}
    with command(path, **settings) as (served, running):
        side = int(served.said(r"metrics on http://\S+:(\d+)")[1])
        with Process("drills.attacks.sequences", KEY, running.port, side) as attacker:
            headers = {"Authorization": f"Bearer {KEY}"} if keyed else {}
            found = Target(served, Running(running.port, side), model, headers, attacker)
            found.bound_mib = found.account(None, WARM_S).memory_mib[-1] + VALUES_MIB + SLACK_MIB
            yield found


def faults_of(account: Account, probe_s: float) -> list[str]:
    """Return the broken promises of a round; a probe may take `probe_s`."""
    worst_mib = max(account.memory_mib)
    slowest = {"probe": account.probes_s, "prediction": account.others.latencies_s}
    found = {kind: max(latencies_s, default=math.inf) for kind, latencies_s in slowest.items()}
    return [
        *account.others.wrong[:3],
        *violations(
            (not account.alive, "the server has ended"),
            (worst_mib > account.bound_mib, f"{worst_mib:.0f} MiB resident; expected at most {account.bound_mib:.0f}"),
            *(
                (took_s > probe_s, f"a {kind} took {took_s:.2f} s; expected at most {probe_s:g}")
                for kind, took_s in found.items()
            ),
        ),
        *account.log,
    ]


def main() -> None:
    """Play and print rounds; exit with 1 if a promise is broken."""
    args = script_options(
        __doc__,
        quick=flag("play 20 seconds instead of ten minutes"),
        seed={"type": int, "default": time.time_ns() % 10**9, "help": "seed of the first round"},
    )
    broken = []
    for keyed in (False, True):
        with tempfile.TemporaryDirectory() as folder, target(Path(folder), keyed=keyed) as found:
            print("with a key" if keyed else "without a key")
            print_round("quiet", found.account(None, QUIET_S))
            rounds, length_s = (1, 10.0) if args.quick else (5, 60.0)
            for seed in range(args.seed, args.seed + rounds):
                account = found.account(seed, length_s)
                print_round(f"seed {seed}", account)
                broken += [f"seed {seed}: {fault}" for fault in faults_of(account, PROBE_S)]
                found.bound_mib = min(found.bound_mib, max(account.memory_mib) + GROWTH_MIB)
    conclude(broken)


def print_round(name: str, account: Account) -> None:
    probes, predictions = (
        "{:.1f} / {:.0f}".format(*np.percentile(latencies_s, [50, 100]) * 1000)
        for latencies_s in (account.probes_s, account.others.latencies_s)
    )
    ends = ", ".join(f"{count} {end}" for end, count in account.attack.ends.items())
    print(
        f"{name:<16} {max(account.memory_mib):6.0f} of {account.bound_mib:.0f} MiB  "
        f"sent {account.attack.sent / 2**20:6.0f} MiB  probes p50 / max {probes} ms  predictions {predictions} ms  "
        f"shed {account.others.shed}  {ends}",
        flush=True,
    )


if __name__ == "__main__":
    main()
