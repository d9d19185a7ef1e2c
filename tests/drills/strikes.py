"""The faults: each is brought about, lasts, and is mended, with direct checks on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from benchmarks.load.child import CLIENT_CORE
from benchmarks.load.models import saved_model
from drills.house import ask, wait_for
from drills.judging import Outcome, Served
from drills.machine import aside
from drills.stage import Stage

__all__ = ["STRIKES", "Calm", "ClockSteps", "Strike"]


class Strike:
    """A fault.

    Attributes
    ----------
    name : as it is told.
    from_mend : whether recovery counts from when it is mended; else from when it strikes.
    recovers_s : how long recovery may take.
    allowed : what may come of calls of a kind while it lasts, beside answers and the client's fallback.
    """

    name: ClassVar[str] = ""
    from_mend: ClassVar[bool] = True
    recovers_s: ClassVar[float] = 1.0
    allowed: ClassVar[Mapping[str, frozenset[Outcome]]] = {}

    def strike(self, stage: Stage) -> None:
        """Bring it about."""

    def mend(self, stage: Stage) -> None:
        """End it."""


class Calm(Strike):
    """Nothing happens: what the others are compared with."""

    name = "nothing"


class Kill(Strike):
    """A replica is killed, and started again later; who asked it finds another."""

    name = "kill -9 a replica"
    from_mend = False
    recovers_s = 2.0

    def strike(self, stage: Stage) -> None:
        stage.lose(0)
        stage.house.replicas[0].process.kill()

    def mend(self, stage: Stage) -> None:
        replica = stage.house.replicas[0]
        stage.expect(replica.process.wait(10) == -signal.SIGKILL, "the replica was not killed")
        replica.start()
        replica.await_ready()
        stage.find(0)


class KillRedis(Strike):
    """Redis is killed, and started again: sessions are refused meanwhile, everything else goes on."""

    name = "kill -9 Redis"
    recovers_s = 5.0
    allowed: ClassVar[Mapping[str, frozenset[Outcome]]] = {"session": frozenset({Outcome.REFUSED})}

    def strike(self, stage: Stage) -> None:
        assert stage.house.redis is not None
        stage.house.redis.kill()
        for port in stage.house.ports:
            took = wait_for(lambda port=port: self._degraded(port), 5.0)  # type: ignore[misc]
            stage.expect(took is not None, "/readyz never said that sessions are gone")
            refused = ask(port, "POST", "/sessions")
            clear = refused.status == 503 and refused.problem
            stage.expect(clear, f"POST /sessions without Redis: {refused.status} {refused.content}")

    def mend(self, stage: Stage) -> None:
        assert stage.house.redis is not None
        stage.house.redis.start()
        for port in stage.house.ports:
            took = wait_for(lambda port=port: not self._degraded(port), 10.0)  # type: ignore[misc]
            stage.expect(took is not None, "/readyz never said that sessions are back")

    def _degraded(self, port: int) -> bool:
        told = ask(port, "GET", "/readyz")
        return told.status == 200 and told.content.get("status") == "degraded" and bool(told.content.get("sessions"))


class Stop(Strike):
    """A replica stands still past many deadlines, and goes on."""

    name = "SIGSTOP a replica"
    recovers_s = 2.0

    def strike(self, stage: Stage) -> None:
        stage.lose(1)
        stage.house.replicas[1].signal(signal.SIGSTOP)

    def mend(self, stage: Stage) -> None:
        stage.house.replicas[1].signal(signal.SIGCONT)
        stage.find(1)


class FullDisk(Strike):
    """The disk that replicas work in and log to is full, while they reload and a training wants to write there."""

    name = "disk full"

    def strike(self, stage: Stage) -> None:
        before = stage.house.model.read_bytes()
        stage.disk.fill([replica.process.pid for replica in stage.house.replicas])
        for replica in stage.house.replicas:
            for _ in range(20):  # each is a line in the log that cannot be written
                replica.signal(signal.SIGHUP)
                time.sleep(0.01)
        for port in stage.house.ports:
            told = ask(port, "POST", f"/models/{stage.good.name}/reload")
            stage.expect(told.status == 200, f"reload with a full disk: {told.status} {told.content}")
        status, said = self._train(stage)
        last = (said.strip().splitlines() or ["nothing"])[-1]
        stage.notes.append(f"train: {last}")
        clear = status != 0 and "cannot write" in last and "Traceback" not in said
        stage.expect(clear, f"train with a full disk exits with {status} and says {said[-500:]!r}")
        stage.expect(stage.house.model.read_bytes() == before, "the model file was changed by a write that failed")
        stage.expect(all(each.alive for each in stage.house.replicas), "a replica ended over a full disk")

    def mend(self, stage: Stage) -> None:
        stage.disk.free()
        left = [path.name for path in stage.disk.folder.iterdir() if path.name.endswith(".tmp")]
        stage.expect(not left, f"a write that failed left {left}")
        stage.expect(stage.hang_up(0, "models reloaded"), "the log is not written though there is room again")

    def _train(self, stage: Stage) -> tuple[int, str]:
        table, groups = stage.scratch / "table.csv", stage.scratch / "groups.json"
        names = [feature for group in stage.good.groups.groups for feature in group.features]
        rows = [",".join(str((i * 37 + j * 11) % 101) for j in range(len(names) + 1)) for i in range(200)]
        table.write_text("\n".join([",".join([*names, "y"]), *rows]) + "\n")
        told = [{"name": each.name, "features": each.features, "cost": each.cost} for each in stage.good.groups.groups]
        groups.write_text(json.dumps({"groups": told}))
        options = ["--groups", groups, "--target", "y", "--alpha", "0.01", "--n-jobs", "1", "--out", stage.house.model]
        command = [sys.executable, "-m", "anytime", "train", str(table), *map(str, options)]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with aside(CLIENT_CORE):
            process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
        with process:
            stage.disk.hold(process.pid)
            _, said = process.communicate(timeout=120)
        return process.returncode, said


class CorruptModel(Strike):
    """The model file is damaged in every way and loaded again; then a good one comes."""

    name = "model file corrupt"

    def strike(self, stage: Stage) -> None:
        file, version = stage.house.model, stage.good.version
        whole = file.read_bytes()
        for what, spoil in self._ways(stage).items():
            file.write_bytes(spoil(whole))
            for port in stage.house.ports:
                told = ask(port, "POST", f"/models/{stage.good.name}/reload")
                clear = told.status == 409 and told.problem and file.name in told.content["detail"]
                stage.expect(clear, f"reload of a file that is {what}: {told.status} {told.content}")
            for number in range(len(stage.house.replicas)):
                stage.expect(
                    stage.hang_up(number, "could not reload the models"),
                    f"SIGHUP, the file {what}: not said in the log",
                )
                stage.expect(stage.version_of(number) == version, f"the old model went when the file was {what}")
        file.write_bytes(whole)

    def mend(self, stage: Stage) -> None:
        begun = time.perf_counter()
        new = stage.next_good.save(stage.house.model)
        last = len(stage.house.replicas) - 1
        for number, port in enumerate(stage.house.ports):
            if number == last:
                stage.expect(stage.hang_up(number, "models reloaded"), "SIGHUP with a good file: not said in the log")
            else:
                told = ask(port, "POST", f"/models/{new.name}/reload")
                stage.expect(told.status == 200, f"reload of a good file: {told.status} {told.content}")
            stage.expect(stage.version_of(number) == new.version, "a good file was loaded and does not serve")
        stage.served = [Served(stage.good, until=time.perf_counter()), Served(new, since=begun)]
        stage.good, stage.next_good = new, stage.good

    def _ways(self, stage: Stage) -> Mapping[str, Callable[[bytes], bytes]]:
        others = [
            saved_model(stage.scratch / f"{name}.safetensors", groups=3, rows=200, name=name, called=called)
            for name, called in (("another", "group"), (stage.good.name, "thing"))
        ]
        paths = [stage.scratch / f"{model.name}.safetensors" for model in others]
        return {
            "cut short": lambda whole: whole[: len(whole) // 2],
            "empty": lambda _: b"",
            "with a flipped bit": lambda whole: whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:],
            "with a flipped byte in its head": lambda whole: whole[:40] + bytes([whole[40] ^ 0xFF]) + whole[41:],
            "text": lambda _: b"It was a dark and stormy night; " * 100,
            "a model of another name": lambda _: paths[0].read_bytes(),
            "a model of other groups": lambda _: paths[1].read_bytes(),
        }


class ClockSteps(Strike):
    """The wall clock is set an hour forward, then two back."""

    name = "clock steps by hours"

    def __init__(self) -> None:
        self._kept: list[tuple[int, str]] = []

    def strike(self, stage: Stage) -> None:
        assert stage.clock is not None
        self._kept = [(port, ask(port, "POST", "/sessions").content["id"]) for port in stage.house.ports]
        self._step(stage, 3600)

    def mend(self, stage: Stage) -> None:
        self._step(stage, -3600)

    def _step(self, stage: Stage, seconds: int) -> None:
        assert stage.clock is not None
        stage.clock.step(seconds)
        for port, session in self._kept:
            stepped = wait_for(lambda port=port: abs(ask(port, "GET", "/livez").ahead_s - seconds) < 60, 5.0)  # type: ignore[misc]
            stage.expect(stepped is not None, f"the clock of a replica did not step by {seconds} s")
            kept = wait_for(lambda port=port, session=session: self._answers(port, session), 2.0)  # type: ignore[misc]
            stage.expect(kept is not None, f"a session is not answered after a step of {seconds} s")

    def _answers(self, port: int, session: str) -> bool:
        return ask(port, "GET", f"/sessions/{session}/predict").status == 200


STRIKES: tuple[type[Strike], ...] = (Calm, Kill, KillRedis, Stop, FullDisk, CorruptModel)
"""Those that strike replicas which share everything; the clock has replicas of its own."""
