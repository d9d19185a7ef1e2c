"""The drill of a bad network: high latency, stalls and resets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from drills.clients import clients
from drills.drill import Lengths, Report, unreleased
from drills.judging import Figures, Oracle, Outcome, Phase, Stalls
from drills.machine import StallMonitor
from drills.relay import Relay
from drills.testbed import Testbed

NAME = "a bad network"
DELAY_S = 0.05
STALL_S = 0.2
DEADLINES_MS = (20.0, 150.0, 500.0)
COUNTS = {"run": 4, "threaded": 2, "predict": 6}


@dataclass(frozen=True)
class Conditions:
    """Conditions of one phase.

    Attributes
    ----------
    at_least : by deadline, the share of calls that the server must still answer.
    """

    name: str
    stalls_per_s: float
    resets_per_s: float
    at_least: Mapping[float, float]


CONDITIONS = (
    Conditions("50 ms each way", 0.0, 0.0, {150.0: 0.8, 500.0: 0.95}),
    Conditions("and stalls of 200 ms", 2.0, 0.0, {150.0: 0.5, 500.0: 0.9}),
    Conditions("and resets", 2.0, 1.0, {500.0: 0.5}),
)


def bad_network(testbed: Testbed, lengths: Lengths) -> Report:
    """Call the service through the network with deadlines that it never, barely and easily allows."""
    before = testbed.cluster.footprints
    with Relay(testbed.cluster.ports) as relay:
        plan = testbed.plan(relay.port, COUNTS, DEADLINES_MS, 0.2)
        with clients(plan) as load, StallMonitor(1) as watch:
            load.await_ready()
            relay.delay_s = DELAY_S
            load.start()
            time.sleep(1.0)  # clients measure the round trip meanwhile
            phases = [_phase(relay, conditions, lengths.during) for conditions in CONDITIONS]
            relay.stalls_per_s = relay.resets_per_s = 0.0
            calls, client_report = load.stop()
    report, oracle = Report(NAME), Oracle(testbed.served)
    stalls = Stalls([*client_report.stalls, *watch.stalls])
    for phase, conditions in zip(phases, CONDITIONS, strict=True):
        during = [call for call in calls if phase.begin <= call.started < phase.end]
        for deadline_ms in DEADLINES_MS:
            name = f"{conditions.name}, {deadline_ms:g} ms"
            found = report.judge(name, [call for call in during if call.deadline_ms == deadline_ms], oracle, stalls)
            report.broken += too_few(found, conditions.at_least.get(deadline_ms, 0.0), deadline_ms, name)
    report.broken += unreleased(testbed, before, client_report)
    return report


def _phase(relay: Relay, conditions: Conditions, length_s: float) -> Phase:
    relay.stall_s, relay.stalls_per_s, relay.resets_per_s = STALL_S, conditions.stalls_per_s, conditions.resets_per_s
    started = time.perf_counter()
    time.sleep(length_s)
    return Phase(conditions.name, started, time.perf_counter())


def too_few(found: Figures, at_least: float, deadline_ms: float, name: str) -> list[str]:
    """Return whether the server answered too few calls, or some faster than the network allows."""
    broken = []
    if found.requests and found.share < at_least:
        broken.append(f"{name}: the server answered {found.share:.0%}, expected at least {at_least:.0%}")
    if deadline_ms < 2000.0 * DELAY_S and found.by[Outcome.SERVER]:
        broken.append(
            f"{name}: {found.by[Outcome.SERVER]} answers were faster than the network, or fallbacks without a note"
        )
    return broken
