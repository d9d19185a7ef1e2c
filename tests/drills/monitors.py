"""Monitors that run during an attack: probes, predictions, and the server's memory."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from benchmarks.load.child import Child
from drills.cluster import request


class _Monitor:
    """A thread that repeats a check until the end of the block."""

    interval_s = 0.1

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self.interval_s):
            self.check()

    def check(self) -> None:
        raise NotImplementedError


class Prober(_Monitor):
    """Requests `/livez` on new connections, as an orchestrator does.

    Attributes
    ----------
    latencies_s : seconds until each probe was answered with 200; infinite if it was not.
    """

    def __init__(self, port: int, timeout_s: float = 5.0) -> None:
        super().__init__()
        self.latencies_s: list[float] = []
        self._port, self._timeout_s = port, timeout_s

    def check(self) -> None:
        started = time.perf_counter()
        answered = False
        with suppress(OSError, http.client.HTTPException):
            answered = request(self._port, "GET", "/livez", self._timeout_s).status == 200
        self.latencies_s.append(time.perf_counter() - started if answered else float("inf"))


class Predictor(_Monitor):
    """Requests a prediction on new connections and compares it with the expected one.

    Parameters
    ----------
    body : the request, in JSON.
    expected : the expected scores.
    headers : of each request.

    Attributes
    ----------
    latencies_s : seconds until each answer; infinite if there was none.
    wrong : answers with other scores, and refusals other than 503.
    shed : number of answers with 503.
    """

    def __init__(self, port: int, body: bytes, expected: object, headers: Mapping[str, str]) -> None:
        super().__init__()
        self.latencies_s: list[float] = []
        self.wrong: list[str] = []
        self.shed = 0
        self._port, self._body, self._expected = port, body, expected
        self._headers = {"Content-Type": "application/json", **headers}

    def check(self) -> None:
        started = time.perf_counter()
        try:
            reply = request(self._port, "POST", "/predict", 5.0, self._body, self._headers)
        except (OSError, http.client.HTTPException):
            self.latencies_s.append(float("inf"))
            return
        self.latencies_s.append(time.perf_counter() - started)
        if reply.status == 503:
            self.shed += 1
        elif reply.status != 200 or reply.content["prediction"] != self._expected:
            self.wrong.append(f"{reply.status}: {str(reply.content)[:200]!r}")


class MemoryMonitor(_Monitor):
    """Records the maximum resident memory of a process."""

    interval_s = 0.02

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._child = Child(pid, 0)
        self.worst_mib = self._child.resident_mib

    def check(self) -> None:
        try:
            self.worst_mib = max(self.worst_mib, self._child.resident_mib)
        except OSError:  # the process has ended, which is reported elsewhere
            self._stop.set()
