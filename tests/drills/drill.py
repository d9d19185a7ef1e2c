"""One drill: clients make calls before, during and after a fault of the testbed, and their results are judged."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from types import MappingProxyType

from anytime.model.model import Model
from benchmarks.harness import violations
from drills.clients import ClientReport, Clients, Plan
from drills.cluster import Cluster, Footprint, leaks, request, wait_for, watching_stalls
from drills.judging import (
    EXCUSED,
    EXCUSED_FEW,
    LATE,
    TOLERANCE_MS,
    Call,
    Figures,
    Oracle,
    Outcome,
    Phase,
    Served,
    Stalls,
    figures,
    is_lost,
    outcome,
    recovery_s,
)
from drills.relay import Relay

SIZE_MIB = 4


class Disk:
    """A folder whose free space the drill controls.

    Attributes
    ----------
    mounted : whether it is a separate file system; otherwise `fill` limits the file size of processes.
    """

    def __init__(self, folder: Path, *, mounted: bool) -> None:
        self.folder, self.mounted = folder, mounted
        self._filler = folder / "filler"
        self._limited: list[int] = []

    def fill(self, pids: Iterable[int]) -> None:
        self._limited = list(pids)
        for pid in self._limited:
            self.limit(pid)
        if not self.mounted:
            return
        piece = 1 << 16
        with self._filler.open("wb", buffering=0) as file:
            while piece:
                try:
                    file.write(bytes(piece))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2

    def free(self) -> None:
        if not self.mounted:
            for pid in self._limited:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self._filler.unlink(missing_ok=True)

    def limit(self, pid: int) -> None:
        """Apply the limit to a process that started after `fill`."""
        if not self.mounted:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """Mount a disk of a few megabytes at an existing folder."""
    options = f"size={SIZE_MIB}m"
    command = ["mount", "-t", "tmpfs", "-o", options, "drill", os.fspath(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield Disk(folder, mounted=mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", os.fspath(folder)], capture_output=True, check=False)


class Clock:
    """The wall clock of processes with its environment; `time.perf_counter` is not affected."""

    def __init__(self, library: str, folder: Path) -> None:
        self._file = folder / "clock"
        self.step(0)
        self.environment = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": os.fspath(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, seconds: int) -> None:
        """Set the offset from the true time."""
        temporary = self._file.with_suffix(".aside")
        temporary.write_text(f"{seconds:+d}\n")
        temporary.replace(self._file)


def fake_clock(folder: Path) -> Clock | None:
    """Return a clock, None without libfaketime."""
    found = glob("/usr/lib/*/faketime/libfaketimeMT.so.1") if shutil.which("faketime") else []
    return Clock(found[0], folder) if found else None


@dataclass
class Testbed:
    """The parts of the system that a fault may affect.

    Attributes
    ----------
    good, next_good : the served model, and another with the same groups.
    served : the versions that may answer, and when.
    lost : start and end of the outage of each failed replica.
    broken : promises found broken by direct checks.
    notes : further observations.
    sessions : port and id of a session of each replica, for the steps of the clock.
    """

    cluster: Cluster
    relay: Relay
    disk: Disk
    scratch: Path
    good: Model
    next_good: Model
    clock: Clock | None = None
    served: list[Served] = field(default_factory=list)
    lost: dict[int, tuple[float, float]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sessions: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.served = [Served(self.good)]

    def expect(self, condition: bool, promise: str) -> None:
        """Record a broken promise unless the condition is true."""
        if not condition:
            self.broken.append(promise)

    def version_of(self, replica: int) -> str:
        """Return the version that a replica serves."""
        content = request(self.cluster.ports[replica], "GET", "/models").content
        return str(content[0]["version"]) if content else "none"

    def logged(self, replica: int, words: str, since: int) -> bool:
        """Return whether a replica logs some words, after the first `since` bytes."""
        log = self.cluster.replicas[replica].log
        return wait_for(lambda: words in log.read_bytes()[since:].decode(errors="replace"), 10.0) is not None

    def reload(self, replica: int, words: str) -> bool:
        """Send a SIGHUP, and wait for words in the log."""
        since = self.cluster.replicas[replica].log.stat().st_size
        self.cluster.replicas[replica].process.send_signal(signal.SIGHUP)
        return self.logged(replica, words, since)

    def mark_failed(self, replica: int) -> None:
        """Record the start of a replica's outage."""
        self.lost[replica] = (time.perf_counter(), float("inf"))

    def mark_recovered(self, replica: int, grace_s: float = 1.0) -> None:
        """Record the end of a replica's outage, with a grace period for open calls."""
        self.lost[replica] = (self.lost[replica][0], time.perf_counter() + grace_s)

    def plan(self, port: int, counts: Mapping[str, int], deadlines_ms: Sequence[float], period_s: float) -> Plan:
        """Return a plan of clients, those of this project at a port."""
        good, calls = str(self.scratch / "good.safetensors"), str(self.scratch / "calls.jsonl")
        shared = self.cluster.redis is not None
        return Plan(good, calls, port, self.cluster.ports, dict(counts), list(deadlines_ms), period_s, shared)


SETTLED_S = 10.0
WARM_S = 0.5
ALWAYS_ALLOWED: frozenset[Outcome] = frozenset({Outcome.SERVER, Outcome.FALLBACK})


@dataclass(frozen=True)
class Fault:
    """A fault, with direct checks when it is injected and repaired.

    Attributes
    ----------
    recovers_s : maximum recovery time.
    from_repair : measure recovery from the repair; otherwise from the injection.
    allowed : outcomes allowed during the fault by kind of call, besides answers and client fallbacks.
    """

    name: str
    inject: Callable[[Testbed], None]
    repair: Callable[[Testbed], None]
    recovers_s: float = 1.0
    from_repair: bool = True
    allowed: Mapping[str, frozenset[Outcome]] = field(default_factory=dict)


@dataclass(frozen=True)
class Lengths:
    """Length of each phase in seconds; the time to inject a fault is added."""

    before: float
    during: float
    after: float


@dataclass
class Report:
    """Result of a drill.

    Attributes
    ----------
    rows : figures by phase.
    broken : broken promises.
    inconclusive : phases with too many stalls of the machine to be judged.
    """

    name: str
    rows: dict[str, Figures] = field(default_factory=dict)
    recovery_s: float | None = None
    broken: list[str] = field(default_factory=list)
    inconclusive: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def judge(
        self,
        name: str,
        calls: Sequence[Call],
        oracle: Oracle,
        stalls: Stalls,
        allowed: Mapping[str, frozenset[Outcome]] = MappingProxyType({}),
        lost: Mapping[int, tuple[float, float]] = MappingProxyType({}),
    ) -> Figures:
        """Add the calls of a phase, and the promises that they break."""
        found = self.rows[name] = figures(calls, oracle, stalls, lost)
        self.broken += [*broken_promises(found, name), *unexpected(calls, allowed, lost, name, stalls)]
        self.inconclusive += inconclusive(found, name)
        return found


def drill(fault: Fault, testbed: Testbed, plan: Plan, lengths: Lengths, environment: Mapping[str, str]) -> Report:
    """Run one drill and judge it."""
    testbed.lost.clear()
    testbed.broken.clear()
    testbed.notes.clear()
    testbed.served = testbed.served[-1:]
    before = testbed.cluster.footprints
    with Clients(plan, **environment) as load, watching_stalls(0) as server_core, watching_stalls(1) as client_core:
        phases, repair_started = _phases(fault, testbed, load, lengths)
        calls, client_report = load.stop()
    report = Report(fault.name, notes=list(testbed.notes))
    stalls = Stalls([*client_report.stalls, *server_core, *client_core])
    oracle, lost = Oracle(testbed.served), dict(testbed.lost)
    for phase in phases:
        phase_calls = [call for call in calls if _phase_of(call, phases) is phase]
        report.judge(phase.name, phase_calls, oracle, stalls, fault.allowed if phase.name == "during" else {}, lost)
    started = repair_started if fault.from_repair else phases[1].begin
    report.recovery_s = recovery_s(calls, started, report.rows["before"].share, phases[2].end, stalls)
    if report.recovery_s is None or report.recovery_s > fault.recovers_s:
        report.broken.append(f"not recovered within {fault.recovers_s:g} s: {report.recovery_s}")
    report.broken += [*testbed.broken, *unreleased(testbed, before, client_report)]
    return report


def _phases(fault: Fault, testbed: Testbed, load: Clients, lengths: Lengths) -> tuple[list[Phase], float]:
    """Run the phases; return them and the start of the repair."""
    load.await_ready()
    load.start()
    time.sleep(WARM_S)
    started = time.perf_counter()
    time.sleep(lengths.before)
    injected = time.perf_counter()
    fault.inject(testbed)
    time.sleep(max(lengths.during - (time.perf_counter() - injected), 0.0))
    repair_started = time.perf_counter()
    fault.repair(testbed)
    repaired = time.perf_counter()
    time.sleep(lengths.after)
    ended = time.perf_counter()
    return [
        Phase("before", started, injected),
        Phase("during", injected, repaired),
        Phase("after", repaired, ended),
    ], repair_started


def _phase_of(call: Call, phases: Sequence[Phase]) -> Phase | None:
    """Return the phase of a call: that of the fault if they overlapped, None before the first phase."""
    before, during, after = phases
    if call.started < before.begin or call.started >= after.end:
        return None
    if call.received < during.begin:
        return before
    return after if call.started >= during.end else during


def broken_promises(found: Figures, phase: str) -> list[str]:
    """Return the promises that the figures of a phase break."""
    answered = max(found.requests - found.lost, 0)
    late = f"{found.late} of {answered} answers more than {TOLERANCE_MS:g} ms after their deadlines"
    broken = violations(
        (not found.requests, f"{phase}: no calls, inconclusive"),
        (found.wrong, f"{phase}: {found.wrong} wrong answers"),
        (found.late > LATE * answered, f"{phase}: {late}"),
    )
    return broken + [f"{phase}: {example}" for example in found.examples[:3]] if broken else []


def inconclusive(found: Figures, phase: str) -> list[str]:
    """Return why the figures of a phase are inconclusive, if they are."""
    answered = max(found.requests - found.lost, 0)
    text = f"{phase}: stalls of the machine delayed {found.excused} of {answered} answers, inconclusive"
    return violations((found.excused > max(EXCUSED * answered, EXCUSED_FEW), text))


def unexpected(
    calls: Sequence[Call],
    allowed: Mapping[str, frozenset[Outcome]],
    lost: Mapping[int, tuple[float, float]],
    phase: str,
    stalls: Stalls,
) -> list[str]:
    """Return outcomes that are not allowed, one line per kind.

    Refusals that are allowed must be clear: 503 as problem details. A few calls may always be shed: a server that
    detects a stall refuses new predictions for a moment, and Redis may time out.
    """
    unexpected_calls: dict[str, list[str]] = {}

    def is_shed(call: Call) -> bool:
        return call.shed or bool(call.status == 503 and call.detail and stalls.overlaps(call))

    shed = [call for call in calls if is_shed(call) and call.kind not in allowed]
    if len(shed) > max(EXCUSED * len(calls), EXCUSED_FEW):
        unexpected_calls["every kind"] = [f"shed: {shed[0].detail}"] * len(shed)
    for call in calls:
        result = outcome(call)
        if result in ALWAYS_ALLOWED or is_shed(call) or is_lost(call, lost):
            continue
        clear = result is not Outcome.REFUSED or (call.status == 503 and call.detail)
        if result not in allowed.get(call.kind, frozenset()) or not clear:
            unexpected_calls.setdefault(call.kind, []).append(
                call.error or f"refused with {call.status}: {call.detail}"
            )
    return [f"{phase}: {len(each)} calls by {kind}: {each[0]}" for kind, each in unexpected_calls.items()]


def unreleased(testbed: Testbed, before: Sequence[Footprint], client_report: ClientReport) -> list[str]:
    """Return what the replicas and the clients have not released after the clients are gone, and tracebacks in logs."""
    cluster = testbed.cluster
    wait_for(lambda: cluster.open == 0 and not leaks(before, cluster.footprints), SETTLED_S)
    found = leaks(before, cluster.footprints)
    wait_for(lambda: cluster.sessions == 0, SETTLED_S)
    found += violations(
        (cluster.open, f"{cluster.open:g} predictions are open without clients"),
        (cluster.sessions, f"{cluster.sessions} expired sessions are in Redis"),
    )
    logs = [replica.log for replica in cluster.replicas if b"Traceback" in replica.log.read_bytes()]
    return [*found, *client_leaks(client_report), *(f"{log.name} has a traceback" for log in logs)]


def client_leaks(report: ClientReport) -> list[str]:
    """Return the resources that closed clients still have."""
    pairs = {"threads": report.threads, "descriptors": report.descriptors, "unfinished tasks": (0, report.tasks)}
    return [
        f"the clients have {after} {name}, {before} before" for name, (before, after) in pairs.items() if after > before
    ]


NETWORK = "a bad network"
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
        with Clients(plan) as load, watching_stalls(1) as watched:
            load.await_ready()
            relay.delay_s = DELAY_S
            load.start()
            time.sleep(1.0)  # clients measure the round trip meanwhile
            phases = [_phase(relay, conditions, lengths.during) for conditions in CONDITIONS]
            relay.stalls_per_s = relay.resets_per_s = 0.0
            calls, client_report = load.stop()
    report, oracle = Report(NETWORK), Oracle(testbed.served)
    stalls = Stalls([*client_report.stalls, *watched])
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
    by_server = found.by[Outcome.SERVER]
    return violations(
        (
            found.requests and found.share < at_least,
            f"{name}: the server answered {found.share:.0%}, expected at least {at_least:.0%}",
        ),
        (
            deadline_ms < 2000.0 * DELAY_S and by_server,
            f"{name}: {by_server} answers were faster than the network, or fallbacks without a note",
        ),
    )
