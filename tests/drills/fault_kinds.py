"""The faults: each is injected, lasts, and is repaired, with direct checks."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from anytime.groups import write_groups
from benchmarks.harness import CLIENT_CORE
from benchmarks.load.models import saved_model
from drills.cluster import request, wait_for
from drills.judging import Outcome, Served
from drills.machine import low_priority
from drills.testbed import Testbed


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
