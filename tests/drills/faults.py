"""Faults under load: `python tests/drills/faults.py [--quick] [--only WORD]`.

Replicas of the service, a Redis and a balancer run as in production; clients of every kind call them with known inputs
and deadlines. Then a fault is injected. No answer may be wrong, clients of this project get an answer at the deadline
during any fault, and all resources are released. Exits with 1 if a promise is broken.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from anytime.groups import write_groups
from benchmarks.harness import CLIENT_CORE, Table, conclude, flag, pin_to_core, script_options
from benchmarks.load.models import saved_model
from drills.cluster import Cluster, low_priority, request, wait_for
from drills.drill import NETWORK, Fault, Lengths, Report, Testbed, bad_network, drill, fake_clock, small_disk
from drills.judging import Outcome, Served
from drills.relay import Relay
from service.redis_server import RedisServer


def do_nothing(testbed: Testbed) -> None:
    """Measure the baseline."""


def kill(testbed: Testbed) -> None:
    """Kill a replica; its clients use another."""
    testbed.mark_failed(0)
    testbed.cluster.replicas[0].process.kill()


def restart(testbed: Testbed) -> None:
    replica = testbed.cluster.replicas[0]
    testbed.expect(replica.process.wait(10) == -signal.SIGKILL, "the replica was not killed")
    replica.start()
    replica.await_ready()
    testbed.mark_recovered(0)


def kill_redis(testbed: Testbed) -> None:
    """Kill Redis: meanwhile sessions are refused, and everything else works."""
    assert testbed.cluster.redis is not None
    testbed.cluster.redis.kill()
    for port in testbed.cluster.ports:
        waited = wait_for(partial(_degraded, port), 5.0)
        testbed.expect(waited is not None, "/readyz never reported sessions as unavailable")
        refused = request(port, "POST", "/sessions")
        clear = refused.status == 503 and refused.problem
        testbed.expect(clear, f"POST /sessions without Redis: {refused.status} {refused.content}")


def restart_redis(testbed: Testbed) -> None:
    testbed.cluster.start_redis()
    for port in testbed.cluster.ports:
        waited = wait_for(lambda port=port: not _degraded(port), 10.0)  # type: ignore[misc]
        testbed.expect(waited is not None, "/readyz never reported sessions as available")


def _degraded(port: int) -> bool:
    reply = request(port, "GET", "/readyz")
    return reply.status == 200 and reply.content.get("status") == "degraded" and bool(reply.content.get("sessions"))


def stop(testbed: Testbed) -> None:
    """Stop a replica past many deadlines."""
    testbed.mark_failed(1)
    testbed.cluster.replicas[1].process.send_signal(signal.SIGSTOP)


def resume(testbed: Testbed) -> None:
    testbed.cluster.replicas[1].process.send_signal(signal.SIGCONT)
    testbed.mark_recovered(1)


def fill_disk(testbed: Testbed) -> None:
    before = testbed.cluster.model.read_bytes()
    testbed.disk.fill([replica.process.pid for replica in testbed.cluster.replicas])
    for replica in testbed.cluster.replicas:
        for _ in range(20):  # each logs a line, and writing it fails
            replica.process.send_signal(signal.SIGHUP)
            time.sleep(0.01)
    for port in testbed.cluster.ports:
        response = request(port, "POST", f"/models/{testbed.good.name}/reload")
        testbed.expect(response.status == 200, f"reload with a full disk: {response.status} {response.content}")
    status, output = _train(testbed)
    last = (output.strip().splitlines() or ["nothing"])[-1]
    testbed.notes.append(f"train: {last}")
    clear = status != 0 and "cannot write" in last and "Traceback" not in output
    testbed.expect(clear, f"train with a full disk exits with {status} and prints {output[-500:]!r}")
    testbed.expect(testbed.cluster.model.read_bytes() == before, "the model file was changed by a write that failed")
    testbed.expect(all(each.alive for each in testbed.cluster.replicas), "a replica ended over a full disk")


def free_disk(testbed: Testbed) -> None:
    testbed.disk.free()
    temporary_files = [path.name for path in testbed.disk.folder.iterdir() if path.name.endswith(".tmp")]
    testbed.expect(not temporary_files, f"a failed write left {temporary_files}")
    testbed.expect(testbed.reload(0, "models reloaded"), "the log is not written although there is space")


def _train(testbed: Testbed) -> tuple[int, str]:
    table, groups = testbed.scratch / "table.csv", testbed.scratch / "groups.yaml"
    names = [feature for group in testbed.good.groups.groups for feature in group.features]
    rows = [",".join(str((i * 37 + j * 11) % 101) for j in range(len(names) + 1)) for i in range(200)]
    table.write_text("\n".join([",".join([*names, "y"]), *rows]) + "\n")
    write_groups(testbed.good.groups, groups)
    options = ["--groups", groups, "--target", "y", "--alpha", "0.01", "--n-jobs", "1", "--out", testbed.cluster.model]
    command = [sys.executable, "-m", "anytime", "train", str(table), *map(str, options)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with low_priority(CLIENT_CORE):
        process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
    with process:
        testbed.disk.limit(process.pid)
        _, output = process.communicate(timeout=120)
    return process.returncode, output


def corrupt_model(testbed: Testbed) -> None:
    file, version = testbed.cluster.model, testbed.good.version
    content = file.read_bytes()
    for kind, corrupt in _corruptions(testbed).items():
        file.write_bytes(corrupt(content))
        for number, port in enumerate(testbed.cluster.ports):
            if number == len(testbed.cluster.ports) - 1:  # the log has ten such lines a minute of each replica
                logged = testbed.reload(number, "could not reload the models")
                testbed.expect(logged, f"SIGHUP, the file {kind}: not logged")
            else:
                response = request(port, "POST", f"/models/{testbed.good.name}/reload")
                clear = response.status == 409 and response.problem and file.name in response.content["detail"]
                testbed.expect(clear, f"reload of a file that is {kind}: {response.status} {response.content}")
            testbed.expect(testbed.version_of(number) == version, f"the old model was dropped when the file was {kind}")
    file.write_bytes(content)


def replace_model(testbed: Testbed) -> None:
    started = time.perf_counter()
    new = testbed.next_good.save(testbed.cluster.model)
    last = len(testbed.cluster.replicas) - 1
    for number, port in enumerate(testbed.cluster.ports):
        if number == last:
            testbed.expect(testbed.reload(number, "models reloaded"), "SIGHUP with a good file: not logged")
        else:
            response = request(port, "POST", f"/models/{new.name}/reload")
            testbed.expect(response.status == 200, f"reload of a good file: {response.status} {response.content}")
        testbed.expect(testbed.version_of(number) == new.version, "a good file was loaded and is not served")
    testbed.served = [Served(testbed.good, until=time.perf_counter()), Served(new, since=started)]
    testbed.good, testbed.next_good = new, testbed.good


def _corruptions(testbed: Testbed) -> Mapping[str, Callable[[bytes], bytes]]:
    others = [
        saved_model(testbed.scratch / f"{name}.safetensors", groups=3, rows=200, name=name, prefix=prefix)
        for name, prefix in (("another", "group"), (testbed.good.name, "thing"))
    ]
    paths = [testbed.scratch / f"{model.name}.safetensors" for model in others]
    return {
        "cut short": lambda content: content[: len(content) // 2],
        "empty": lambda _: b"",
        "with a flipped bit": lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
        "with a flipped byte in its head": lambda content: content[:40] + bytes([content[40] ^ 0xFF]) + content[41:],
        "text": lambda _: b"It was a dark and stormy night; " * 100,
        "a model of another name": lambda _: paths[0].read_bytes(),
        "a model of other groups": lambda _: paths[1].read_bytes(),
    }


def step_clock(testbed: Testbed, seconds: int) -> None:
    """Set the wall clock of the replicas to an offset; a session of each is still answered."""
    assert testbed.clock is not None
    testbed.sessions = testbed.sessions or [
        (port, request(port, "POST", "/sessions").content["id"]) for port in testbed.cluster.ports
    ]
    testbed.clock.step(seconds)
    for port, session in testbed.sessions:
        stepped = wait_for(lambda port=port: abs(request(port, "GET", "/livez").ahead_s - seconds) < 60, 5.0)  # type: ignore[misc]
        testbed.expect(stepped is not None, f"the clock of a replica did not step by {seconds} s")
        path = f"/sessions/{session}/predict"
        again = wait_for(lambda port=port, path=path: request(port, "GET", path).status == 200, 2.0)  # type: ignore[misc]
        testbed.expect(again is not None, f"a session is not answered after a step of {seconds} s")


FAULTS = (
    Fault("nothing", do_nothing, do_nothing),
    Fault("kill -9 a replica", kill, restart, 2.0, from_repair=False),
    Fault("kill -9 Redis", kill_redis, restart_redis, 5.0, allowed={"session": frozenset({Outcome.REFUSED})}),
    Fault("SIGSTOP a replica", stop, resume, 2.0),
    Fault("disk full", fill_disk, free_disk),
    Fault("model file corrupt", corrupt_model, replace_model),
)
"""Faults of replicas with shared services; the clock has its own replicas."""

CLOCK = Fault("clock steps by hours", partial(step_clock, seconds=3600), partial(step_clock, seconds=-3600))
"""The wall clock is set an hour forward, then two back."""


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
