"""The drill of a bad network: far away, standing still at times, breaking at times."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drills.calls import Call
from drills.clients import Left, Plan, clients
from drills.drilling import ENVIRONMENT, Lengths, Report, broken_by, client_leaks, settled, unforeseen, unshown_by
from drills.judging import Figures, Oracle, Outcome, Phase, Stalls, figures
from drills.machine import Watch
from drills.relay import Relay
from drills.stage import Stage

__all__ = ["NAME", "bad_network", "too_few"]

NAME = "a bad network"
DELAY_S = 0.05
STALL_S = 0.2
DEADLINES_MS = (20.0, 150.0, 500.0)
COUNTS = {"run": 4, "threaded": 2, "predict": 6}


@dataclass(frozen=True)
class Weather:
    """How bad it is.

    Attributes
    ----------
    at_least : for a deadline, the share that the server has to answer all the same.
    """

    name: str
    stalls_per_s: float
    resets_per_s: float
    at_least: Mapping[float, float]


WEATHER = (
    Weather("50 ms each way", 0.0, 0.0, {150.0: 0.8, 500.0: 0.95}),
    Weather("and stalls of 200 ms", 2.0, 0.0, {150.0: 0.5, 500.0: 0.9}),
    Weather("and resets", 2.0, 1.0, {500.0: 0.5}),
)


def bad_network(stage: Stage, lengths: Lengths) -> Report:
    """Ask through it, under deadlines that cannot be kept by the server, that just can, and that can."""
    before = stage.house.footprints
    with Relay(stage.house.ports) as relay:
        plan = Plan(
            model=str(stage.scratch / "good.safetensors"),
            out=str(stage.scratch / "calls.jsonl"),
            port=relay.port,
            ports=stage.house.ports,
            counts=COUNTS,
            deadlines_ms=list(DEADLINES_MS),
            period_s=0.2,
        )
        with clients(plan, ENVIRONMENT) as asking, Watch(1) as watch:
            asking.await_ready()
            relay.delay_s = DELAY_S
            asking.go()
            time.sleep(1.0)  # in which clients learn how far away it is
            phases = [_phase(relay, weather, lengths.during) for weather in WEATHER]
            relay.stalls_per_s = relay.resets_per_s = 0.0
            calls, left = asking.stop()
    report = judged(stage, calls, left, Stalls([*left.stalls, *watch.stalls]), phases)
    report.broken += [*settled(stage, before), *client_leaks(left), *stage.tracebacks()]
    return report


def _phase(relay: Relay, weather: Weather, length_s: float) -> Phase:
    relay.stall_s, relay.stalls_per_s, relay.resets_per_s = STALL_S, weather.stalls_per_s, weather.resets_per_s
    begun = time.perf_counter()
    time.sleep(length_s)
    return Phase(weather.name, begun, time.perf_counter())


def judged(stage: Stage, calls: Sequence[Call], left: Left, stalls: Stalls, phases: Sequence[Phase]) -> Report:
    """Judge what was seen, by weather and by deadline."""
    report, oracle = Report(NAME), Oracle(stage.served)
    for phase, weather in zip(phases, WEATHER, strict=True):
        for deadline_ms in DEADLINES_MS:
            some = [call for call in calls if phase.begin <= call.begun < phase.end and call.deadline_ms == deadline_ms]
            name = f"{weather.name}, {deadline_ms:g} ms"
            found = report.rows[name] = figures(some, oracle, stalls, {})
            report.broken += [*broken_by(found, name), *unforeseen(some, {}, {}, name, stalls)]
            report.unshown += unshown_by(found, name)
            report.broken += too_few(found, weather.at_least.get(deadline_ms, 0.0), deadline_ms, name)
    return report


def too_few(found: Figures, at_least: float, deadline_ms: float, name: str) -> list[str]:
    """What is wrong with who answered: too few by the server, or some that no network could have brought in time."""
    broken = []
    if found.asked and found.share < at_least:
        broken.append(f"{name}: the server answered {found.share:.0%}, expected {at_least:.0%} at least")
    if deadline_ms < 2000.0 * DELAY_S and found.by[Outcome.SERVER]:
        broken.append(f"{name}: {found.by[Outcome.SERVER]} answers came faster than the network, or are not marked")
    return broken
