"""One drill: clients ask before, while and after something breaks, and what they saw is held against the promises."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drills.calls import Call
from drills.clients import Clients, Left, Plan, clients
from drills.house import wait_for
from drills.judging import (
    EXCUSED,
    EXCUSED_FEW,
    LATE,
    TOLERANCE_MS,
    Figures,
    Oracle,
    Outcome,
    Phase,
    Stalls,
    figures,
    is_lost,
    outcome,
    recovery_s,
)
from drills.machine import Footprint, Watch, leaks
from drills.stage import Stage
from drills.strikes import Strike

__all__ = ["ENVIRONMENT", "Lengths", "Report", "broken_by", "client_leaks", "drill", "unforeseen", "unshown_by"]

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
}

SETTLED_S = 10.0
WARM_S = 0.5
EVERY: frozenset[Outcome] = frozenset({Outcome.SERVER, Outcome.FALLBACK})


@dataclass(frozen=True)
class Lengths:
    """How long each phase lasts, in seconds; a fault that takes longer to bring about has its time."""

    before: float
    during: float
    after: float


@dataclass
class Report:
    """What a drill has shown.

    Attributes
    ----------
    rows : figures by phase.
    broken : promises that were broken, in words.
    unshown : phases in which the machine stood still too often for anything to be shown, in words.
    """

    name: str
    rows: dict[str, Figures] = field(default_factory=dict)
    recovery_s: float | None = None
    broken: list[str] = field(default_factory=list)
    unshown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def drill(strike: Strike, stage: Stage, plan: Plan, lengths: Lengths, environment: Mapping[str, str]) -> Report:
    """Conduct one drill, and judge it."""
    stage.lost.clear()
    stage.broken.clear()
    stage.notes.clear()
    stage.served = stage.served[-1:]
    before = stage.house.footprints
    with clients(plan, {**ENVIRONMENT, **environment}) as asking, Watch(0) as server_core, Watch(1) as client_core:
        phases, mending = _phases(strike, stage, asking, lengths)
        calls, left = asking.stop()
    report = Report(strike.name, notes=list(stage.notes))
    stalls = Stalls([*left.stalls, *server_core.stalls, *client_core.stalls])
    oracle, lost = Oracle(stage.served), dict(stage.lost)
    shares = {}
    for phase in phases:
        some = [call for call in calls if _phase_of(call, phases) is phase]
        found = report.rows[phase.name] = figures(some, oracle, stalls, lost)
        shares[phase.name] = found.share
        report.broken += broken_by(found, phase.name)
        report.unshown += unshown_by(found, phase.name)
        allowed = strike.allowed if phase.name == "during" else {}
        report.broken += unforeseen(some, allowed, lost, phase.name, stalls)
    begun = mending if strike.from_mend else phases[1].begin
    report.recovery_s = recovery_s(calls, begun, shares["before"], phases[2].end, stalls)
    if report.recovery_s is None or report.recovery_s > strike.recovers_s:
        report.broken.append(f"not well again {strike.recovers_s:g} s after: {report.recovery_s}")
    report.broken += [*stage.broken, *settled(stage, before), *client_leaks(left), *stage.tracebacks()]
    return report


def _phases(strike: Strike, stage: Stage, asking: Clients, lengths: Lengths) -> tuple[list[Phase], float]:
    """Go through the phases; they, and when the fault began to be mended."""
    asking.await_ready()
    asking.go()
    time.sleep(WARM_S)
    begun = time.perf_counter()
    time.sleep(lengths.before)
    struck = time.perf_counter()
    strike.strike(stage)
    time.sleep(max(lengths.during - (time.perf_counter() - struck), 0.0))
    mending = time.perf_counter()
    strike.mend(stage)
    mended = time.perf_counter()
    time.sleep(lengths.after)
    over = time.perf_counter()
    return [Phase("before", begun, struck), Phase("during", struck, mended), Phase("after", mended, over)], mending


def _phase_of(call: Call, phases: Sequence[Phase]) -> Phase | None:
    """The phase of a call: the fault's own for all that it can have met; None for those before the first."""
    before, during, after = phases
    if call.begun < before.begin or call.begun >= after.end:
        return None
    if call.came < during.begin:
        return before
    return after if call.begun >= during.end else during


def broken_by(found: Figures, phase: str) -> list[str]:
    """Promises that figures break."""
    broken = []
    answered = max(found.asked - found.lost, 0)
    if not found.asked:
        broken.append(f"{phase}: nobody asked, so nothing is shown")
    if found.wrong:
        broken.append(f"{phase}: {found.wrong} wrong answers")
    if found.late > LATE * answered:
        broken.append(
            f"{phase}: {found.late} of {answered} answers more than {TOLERANCE_MS:g} ms after their deadlines"
        )
    return broken + [f"{phase}: {example}" for example in found.examples[:3]] if broken else []


def unshown_by(found: Figures, phase: str) -> list[str]:
    """Why figures show nothing, if they do not."""
    answered = max(found.asked - found.lost, 0)
    if found.excused <= max(EXCUSED * answered, EXCUSED_FEW):
        return []
    return [f"{phase}: the machine stood still for {found.excused} of {answered} answers, so nothing is shown"]


def unforeseen(
    calls: Sequence[Call],
    allowed: Mapping[str, frozenset[Outcome]],
    lost: Mapping[int, tuple[float, float]],
    phase: str,
    stalls: Stalls,
) -> list[str]:
    """What came of calls that may not come of them, in words, a line a kind.

    Refusals that are allowed must be clear ones: 503 as problem details. A few calls may always be shed: a server that
    finds its machine standing still begins nothing for a moment, and may find that Redis has not answered in time.
    """
    found: dict[str, list[str]] = {}

    def is_shed(call: Call) -> bool:
        return call.shed or bool(call.status == 503 and call.why and stalls.stood(call))

    shed = [call for call in calls if is_shed(call) and call.kind not in allowed]
    if len(shed) > max(EXCUSED * len(calls), EXCUSED_FEW):
        found["every kind"] = [f"shed: {shed[0].why}"] * len(shed)
    for call in calls:
        what = outcome(call)
        if what in EVERY or is_shed(call) or is_lost(call, lost):
            continue
        clear = what is not Outcome.REFUSED or (call.status == 503 and call.why)
        if what not in allowed.get(call.kind, frozenset()) or not clear:
            found.setdefault(call.kind, []).append(call.broke or f"refused with {call.status}: {call.why}")
    return [f"{phase}: {len(each)} calls by {kind} {each[0]}" for kind, each in found.items()]


def settled(stage: Stage, before: Sequence[Footprint]) -> list[str]:
    """What is left of a drill when its clients are gone: predictions, descriptors, memory, threads, sessions."""
    house = stage.house
    wait_for(lambda: house.open == 0 and not leaks(before, house.footprints), SETTLED_S)
    found = leaks(before, house.footprints)
    if house.open:
        found.append(f"{house.open:g} predictions are open though nobody asks")
    if wait_for(lambda: house.sessions == 0, SETTLED_S) is None:
        found.append(f"{house.sessions} sessions are in Redis though all have expired")
    return found


def client_leaks(left: Left) -> list[str]:
    """What the clients hold though all are closed."""
    found = []
    if left.tasks:
        found.append(f"the clients left {left.tasks} tasks")
    for what, (before, after) in {"threads": left.threads, "descriptors": left.descriptors}.items():
        if after > before:
            found.append(f"the clients have {after} {what}, {before} before")
    return found
