"""The faults: each is injected, lasts, and is repaired, with direct checks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from benchmarks.harness import CLIENT_CORE
from benchmarks.load.models import saved_model
from drills.cluster import request, wait_for
from drills.judging import Outcome, Served
from drills.machine import low_priority
from drills.testbed import Testbed


class Fault:
    """A fault.

    Attributes
    ----------
    name : in reports.
    from_repair : measure recovery from the repair; otherwise from the injection.
    recovers_s : maximum recovery time.
    allowed : outcomes allowed during the fault by kind of call, besides answers and client fallbacks.
    """

    name: ClassVar[str] = ""
    from_repair: ClassVar[bool] = True
    recovers_s: ClassVar[float] = 1.0
    allowed: ClassVar[Mapping[str, frozenset[Outcome]]] = {}

    def inject(self, testbed: Testbed) -> None:
        """Inject the fault."""

    def repair(self, testbed: Testbed) -> None:
        """Repair it."""


class NoFault(Fault):
    """No fault: the baseline."""

    name = "nothing"


class Kill(Fault):
    """A replica is killed and restarted later; its clients use another."""

    name = "kill -9 a replica"
    from_repair = False
    recovers_s = 2.0

    def inject(self, testbed: Testbed) -> None:
        testbed.mark_failed(0)
        testbed.cluster.replicas[0].process.kill()

    def repair(self, testbed: Testbed) -> None:
        replica = testbed.cluster.replicas[0]
        testbed.expect(replica.process.wait(10) == -signal.SIGKILL, "the replica was not killed")
        replica.start()
        replica.await_ready()
        testbed.mark_recovered(0)


class KillRedis(Fault):
    """Redis is killed and restarted: meanwhile sessions are refused, and everything else works."""

    name = "kill -9 Redis"
    recovers_s = 5.0
    allowed: ClassVar[Mapping[str, frozenset[Outcome]]] = {"session": frozenset({Outcome.REFUSED})}

    def inject(self, testbed: Testbed) -> None:
        assert testbed.cluster.redis is not None
        testbed.cluster.redis.kill()
        for port in testbed.cluster.ports:
            waited = wait_for(lambda port=port: self._degraded(port), 5.0)  # type: ignore[misc]
            testbed.expect(waited is not None, "/readyz never reported sessions as unavailable")
            refused = request(port, "POST", "/sessions")
            clear = refused.status == 503 and refused.problem
            testbed.expect(clear, f"POST /sessions without Redis: {refused.status} {refused.content}")

    def repair(self, testbed: Testbed) -> None:
        testbed.cluster.start_redis()
        for port in testbed.cluster.ports:
            waited = wait_for(lambda port=port: not self._degraded(port), 10.0)  # type: ignore[misc]
            testbed.expect(waited is not None, "/readyz never reported sessions as available")

    def _degraded(self, port: int) -> bool:
        response = request(port, "GET", "/readyz")
        return (
            response.status == 200
            and response.content.get("status") == "degraded"
            and bool(response.content.get("sessions"))
        )


class Stop(Fault):
    """A replica is stopped past many deadlines, and continues."""

    name = "SIGSTOP a replica"
    recovers_s = 2.0

    def inject(self, testbed: Testbed) -> None:
        testbed.mark_failed(1)
        testbed.cluster.replicas[1].process.send_signal(signal.SIGSTOP)

    def repair(self, testbed: Testbed) -> None:
        testbed.cluster.replicas[1].process.send_signal(signal.SIGCONT)
        testbed.mark_recovered(1)


class FullDisk(Fault):
    """The disk of the replicas' model and logs is full during reloads and a training that writes there."""

    name = "disk full"

    def inject(self, testbed: Testbed) -> None:
        before = testbed.cluster.model.read_bytes()
        testbed.disk.fill([replica.process.pid for replica in testbed.cluster.replicas])
        for replica in testbed.cluster.replicas:
            for _ in range(20):  # each logs a line, and writing it fails
                replica.process.send_signal(signal.SIGHUP)
                time.sleep(0.01)
        for port in testbed.cluster.ports:
            response = request(port, "POST", f"/models/{testbed.good.name}/reload")
            testbed.expect(response.status == 200, f"reload with a full disk: {response.status} {response.content}")
        status, output = self._train(testbed)
        last = (output.strip().splitlines() or ["nothing"])[-1]
        testbed.notes.append(f"train: {last}")
        clear = status != 0 and "cannot write" in last and "Traceback" not in output
        testbed.expect(clear, f"train with a full disk exits with {status} and prints {output[-500:]!r}")
        testbed.expect(
            testbed.cluster.model.read_bytes() == before, "the model file was changed by a write that failed"
        )
        testbed.expect(all(each.alive for each in testbed.cluster.replicas), "a replica ended over a full disk")

    def repair(self, testbed: Testbed) -> None:
        testbed.disk.free()
        temporary_files = [path.name for path in testbed.disk.folder.iterdir() if path.name.endswith(".tmp")]
        testbed.expect(not temporary_files, f"a failed write left {temporary_files}")
        testbed.expect(testbed.reload(0, "models reloaded"), "the log is not written although there is space")

    def _train(self, testbed: Testbed) -> tuple[int, str]:
        table, groups = testbed.scratch / "table.csv", testbed.scratch / "groups.json"
        names = [feature for group in testbed.good.groups.groups for feature in group.features]
        rows = [",".join(str((i * 37 + j * 11) % 101) for j in range(len(names) + 1)) for i in range(200)]
        table.write_text("\n".join([",".join([*names, "y"]), *rows]) + "\n")
        group_costs = [
            {"name": each.name, "features": each.features, "cost": each.cost} for each in testbed.good.groups.groups
        ]
        groups.write_text(json.dumps({"groups": group_costs}))
        options = [
            "--groups",
            groups,
            "--target",
            "y",
            "--alpha",
            "0.01",
            "--n-jobs",
            "1",
            "--out",
            testbed.cluster.model,
        ]
        command = [sys.executable, "-m", "anytime", "train", str(table), *map(str, options)]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with low_priority(CLIENT_CORE):
            process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
        with process:
            testbed.disk.limit(process.pid)
            _, output = process.communicate(timeout=120)
        return process.returncode, output


class CorruptModel(Fault):
    """The model file is corrupted in many ways and reloaded; then a good one is written."""

    name = "model file corrupt"

    def inject(self, testbed: Testbed) -> None:
        file, version = testbed.cluster.model, testbed.good.version
        content = file.read_bytes()
        for kind, corrupt in self._corruptions(testbed).items():
            file.write_bytes(corrupt(content))
            for number, port in enumerate(testbed.cluster.ports):
                if number == len(testbed.cluster.ports) - 1:  # the log has ten such lines a minute of each replica
                    logged = testbed.reload(number, "could not reload the models")
                    testbed.expect(logged, f"SIGHUP, the file {kind}: not logged")
                else:
                    response = request(port, "POST", f"/models/{testbed.good.name}/reload")
                    clear = response.status == 409 and response.problem and file.name in response.content["detail"]
                    testbed.expect(clear, f"reload of a file that is {kind}: {response.status} {response.content}")
                testbed.expect(
                    testbed.version_of(number) == version, f"the old model was dropped when the file was {kind}"
                )
        file.write_bytes(content)

    def repair(self, testbed: Testbed) -> None:
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

    def _corruptions(self, testbed: Testbed) -> Mapping[str, Callable[[bytes], bytes]]:
        others = [
            saved_model(testbed.scratch / f"{name}.safetensors", groups=3, rows=200, name=name, prefix=prefix)
            for name, prefix in (("another", "group"), (testbed.good.name, "thing"))
        ]
        paths = [testbed.scratch / f"{model.name}.safetensors" for model in others]
        return {
            "cut short": lambda content: content[: len(content) // 2],
            "empty": lambda _: b"",
            "with a flipped bit": lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
            "with a flipped byte in its head": lambda content: (
                content[:40] + bytes([content[40] ^ 0xFF]) + content[41:]
            ),
            "text": lambda _: b"It was a dark and stormy night; " * 100,
            "a model of another name": lambda _: paths[0].read_bytes(),
            "a model of other groups": lambda _: paths[1].read_bytes(),
        }


class ClockSteps(Fault):
    """The wall clock is set an hour forward, then two back."""

    name = "clock steps by hours"

    def __init__(self) -> None:
        self._sessions: list[tuple[int, str]] = []

    def inject(self, testbed: Testbed) -> None:
        assert testbed.clock is not None
        self._sessions = [(port, request(port, "POST", "/sessions").content["id"]) for port in testbed.cluster.ports]
        self._step(testbed, 3600)

    def repair(self, testbed: Testbed) -> None:
        self._step(testbed, -3600)

    def _step(self, testbed: Testbed, seconds: int) -> None:
        assert testbed.clock is not None
        testbed.clock.step(seconds)
        for port, session in self._sessions:
            stepped = wait_for(lambda port=port: abs(request(port, "GET", "/livez").ahead_s - seconds) < 60, 5.0)  # type: ignore[misc]
            testbed.expect(stepped is not None, f"the clock of a replica did not step by {seconds} s")
            answered_again = wait_for(lambda port=port, session=session: self._answers(port, session), 2.0)  # type: ignore[misc]
            testbed.expect(answered_again is not None, f"a session is not answered after a step of {seconds} s")

    def _answers(self, port: int, session: str) -> bool:
        return request(port, "GET", f"/sessions/{session}/predict").status == 200


FAULTS: tuple[type[Fault], ...] = (NoFault, Kill, KillRedis, Stop, FullDisk, CorruptModel)
"""Faults of replicas with shared services; the clock fault has its own replicas."""
