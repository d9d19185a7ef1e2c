"""Faults under load, and what is seen of them: `python tests/drills/faults.py [--quick] [--only WORD]`.

Replicas of the service, a Redis and a balancer run as they would in production; clients of every kind ask them on known
inputs, with deadlines. Then something breaks. No answer may ever be wrong; who asks by the project's own client has an
answer at its deadline whatever happens; nothing is left over. Exits with 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.load.child import CLIENT_CORE, settle
from benchmarks.load.models import saved_model
from drills.clients import Plan
from drills.disk import small_disk
from drills.drilling import Lengths, Report, drill
from drills.house import House, Redis
from drills.networks import NAME, bad_network
from drills.relay import Relay
from drills.stage import Stage, fake_clock
from drills.strikes import STRIKES, ClockSteps, Strike
from drills.tables import tell

DEADLINES_MS = [20.0, 50.0]
COUNTS = {"run": 3, "threaded": 2, "predict": 3, "websocket": 6, "post": 3, "session": 3}
"""Half as many where the clock is not the machine's own, as every look at that takes its time."""

PERIOD_S = 0.15
SESSION_TTL_S = 3

Conduct = Callable[[Stage], Report]

TRIES = 3
"""How often a fault is brought about for a machine that does not stand still meanwhile."""

FULL, QUICK = Lengths(5, 10, 10), Lengths(1.0, 2.0, 2.0)


def main() -> None:
    """Drill, print, and exit with 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="seconds of each fault instead of half a minute")
    parser.add_argument("--only", default="", help="a word of the name of a fault")
    given = parser.parse_args()
    missing = [name for name in ("redis-server", "redis-cli", "faketime") if shutil.which(name) is None]
    if missing:
        parser.error(f"these programs are not installed: {', '.join(missing)}")
    settle(CLIENT_CORE)
    lengths = QUICK if given.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        reports = list(conducted(Path(folder), lengths, given.only))
    broken = [f"{report.name}: {each}" for report in reports for each in (*report.broken, *report.unshown)]
    print("\n".join(["", *broken]) if broken else "\nevery promise was kept")
    sys.exit(1 if broken or not reports else 0)


def conducted(folder: Path, lengths: Lengths, only: str) -> Iterator[Report]:
    """Conduct the drills, and tell of each when it is over; one that the machine has spoilt is conducted again."""
    shared: list[Conduct] = [drilled(strike(), lengths) for strike in STRIKES if only in strike.name]
    network: list[Conduct] = [lambda stage: bad_network(stage, lengths)] if only in NAME else []
    steps: list[Conduct] = [drilled(ClockSteps(), lengths)] if only in ClockSteps.name else []
    first = True
    for name, drills in (("shared", shared + network), ("clock", steps)):
        if drills:
            with staged(folder / name, clock=name == "clock") as stage:
                for conduct in drills:
                    for _ in range(TRIES):
                        report = conduct(stage)
                        tell(report, head=first)
                        first = False
                        if report.broken or not report.unshown:
                            break
                    yield report


def drilled(strike: Strike, lengths: Lengths) -> Conduct:
    """A drill of one fault, to be conducted on a stage."""

    def conduct(stage: Stage) -> Report:
        plan = Plan(
            model=str(stage.scratch / "good.safetensors"),
            out=str(stage.scratch / "calls.jsonl"),
            port=stage.relay.port,
            ports=stage.house.ports,
            counts=COUNTS if stage.clock is None else {kind: max(count // 2, 1) for kind, count in COUNTS.items()},
            deadlines_ms=DEADLINES_MS,
            period_s=PERIOD_S,
            shared=stage.house.redis is not None,
        )
        environment = stage.clock.environment if stage.clock else {}
        return drill(strike, stage, plan, lengths, environment)

    return conduct


@contextmanager
def staged(folder: Path, *, clock: bool = False) -> Iterator[Stage]:
    """Set a stage: replicas, a Redis, a balancer and a disk; or replicas whose clock can be set."""
    disk_folder, scratch = folder / "disk", folder / "scratch"
    for each in (disk_folder, scratch):
        each.mkdir(parents=True)
    good = saved_model(scratch / "good.safetensors", groups=10, rows=2000)
    other = saved_model(scratch / "other.safetensors", groups=10, rows=2000, seed=1)
    wall = fake_clock(scratch) if clock else None
    environment = {"ANYTIME_SESSION_TTL_S": str(600 if clock else SESSION_TTL_S)} | (wall.environment if wall else {})
    redis = None if clock else Redis(scratch)
    with small_disk(disk_folder) as disk:
        model = disk_folder / "model.safetensors"
        shutil.copy(scratch / "good.safetensors", model)
        with House(disk_folder, model, environment, redis=redis) as house, Relay(house.ports) as relay:
            stage = Stage(house, relay, disk, scratch, good, other, wall)
            yield stage


if __name__ == "__main__":
    main()
