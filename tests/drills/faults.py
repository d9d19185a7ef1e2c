"""Faults under load: `python tests/drills/faults.py [--quick] [--only WORD]`.

Replicas of the service, a Redis and a balancer run as in production; clients of every kind call them with known inputs
and deadlines. Then a fault is injected. No answer may be wrong, clients of this project get an answer at the deadline
during any fault, and all resources are released. Exits with 1 if a promise is broken.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import CLIENT_CORE, Table, conclude, flag, pin_to_core, script_options
from benchmarks.load.models import saved_model
from drills.cluster import Cluster
from drills.drill import NETWORK, Lengths, Report, bad_network, drill
from drills.fault_kinds import CLOCK, FAULTS, Fault
from drills.judging import Outcome
from drills.relay import Relay
from drills.testbed import Testbed, fake_clock, small_disk
from service.redis_server import RedisServer

DEADLINES_MS = [20.0, 50.0]
COUNTS = {"run": 3, "threaded": 2, "predict": 3, "websocket": 6, "post": 3, "session": 3}
"""Half as many clients with a fake clock, since each reading of it is slow."""

PERIOD_S = 0.15
SESSION_TTL_S = 3

Drill = Callable[[Testbed], Report]

TRIES = 3
"""Attempts per fault while stalls of the machine make the result inconclusive."""

FULL, QUICK = Lengths(5, 10, 10), Lengths(1.0, 2.0, 2.0)

COLUMNS = ("calls", "server", "fallback", "refused", "broken", "lost", "wrong", "late", "excused", "p99.9 ms")


def main() -> None:
    """Run and print the drills; exit with 1 if a promise is broken."""
    args = script_options(
        __doc__,
        quick=flag("seconds of each fault instead of half a minute"),
        only={"default": "", "help": "a word of the name of a fault"},
    )
    missing = [name for name in ("redis-server", "redis-cli", "faketime") if shutil.which(name) is None]
    if missing:
        sys.exit(f"these programs are not installed: {', '.join(missing)}")
    pin_to_core(CLIENT_CORE)
    lengths = QUICK if args.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        reports = list(run_drills(Path(folder), lengths, args.only))
    broken = [f"{report.name}: {each}" for report in reports for each in (*report.broken, *report.inconclusive)]
    conclude(broken, ran=bool(reports))


def run_drills(folder: Path, lengths: Lengths, only: str) -> Iterator[Report]:
    """Run the drills and print each report; retry inconclusive drills."""
    shared: list[Drill] = [fault_drill(fault, lengths) for fault in FAULTS if only in fault.name]
    network: list[Drill] = [lambda testbed: bad_network(testbed, lengths)] if only in NETWORK else []
    steps: list[Drill] = [fault_drill(CLOCK, lengths)] if only in CLOCK.name else []
    first = True
    for name, drills in (("shared", shared + network), ("clock", steps)):
        if drills:
            with new_testbed(folder / name, clock=name == "clock") as testbed:
                for run_drill in drills:
                    for _ in range(TRIES):
                        report = run_drill(testbed)
                        print(*lines(report, head=first), sep="\n", flush=True)
                        first = False
                        if report.broken or not report.inconclusive:
                            break
                    yield report


def fault_drill(fault: Fault, lengths: Lengths) -> Drill:
    """Return the drill of one fault."""

    def run_drill(testbed: Testbed) -> Report:
        slower = 1 if testbed.clock is None else 2
        counts = {kind: max(count // slower, 1) for kind, count in COUNTS.items()}
        plan = testbed.plan(testbed.relay.port, counts, DEADLINES_MS, PERIOD_S)
        return drill(fault, testbed, plan, lengths, testbed.clock.environment if testbed.clock else {})

    return run_drill


@contextmanager
def new_testbed(folder: Path, *, clock: bool = False) -> Iterator[Testbed]:
    """Set up a testbed: replicas, a Redis, a balancer and a disk, or replicas with a fake clock."""
    disk_folder, scratch = folder / "disk", folder / "scratch"
    for each in (disk_folder, scratch):
        each.mkdir(parents=True)
    good = saved_model(scratch / "good.safetensors", groups=10, rows=2000)
    other = saved_model(scratch / "other.safetensors", groups=10, rows=2000, seed=1)
    fake = fake_clock(scratch) if clock else None
    environment = {"ANYTIME_SESSION_TTL_S": str(600 if clock else SESSION_TTL_S)} | (fake.environment if fake else {})
    redis = None if clock else RedisServer("--appendonly", "no")
    with small_disk(disk_folder) as disk:
        model = disk_folder / "model.safetensors"
        shutil.copy(scratch / "good.safetensors", model)
        with Cluster(disk_folder, model, environment, redis=redis) as cluster, Relay(cluster.ports) as relay:
            testbed = Testbed(cluster, relay, disk, scratch, good, other, fake)
            yield testbed


def lines(report: Report, *, head: bool) -> list[str]:
    """Return a report as lines of a table."""
    columns = Table(("", "<22"), ("", "<29"), *((name, ">9") for name in COLUMNS), ("recovered s", ">14"))
    table = [columns.head] if head else []
    name, recovered = report.name, "" if report.recovery_s is None else f"{report.recovery_s:.2f}"
    for phase, row in report.rows.items():
        counts = (row.requests, *(row.by[result] for result in Outcome), row.lost, row.wrong, row.late, row.excused)
        table.append(columns.row(name, phase, *counts, f"{row.p999_ms:.1f}", recovered))
        name = recovered = ""
    table += [f"    {note}" for note in report.notes]
    table += [f"    BROKEN: {each}" for each in report.broken]
    return table + [f"    INCONCLUSIVE: {each}" for each in report.inconclusive]


if __name__ == "__main__":
    main()
