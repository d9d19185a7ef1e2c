"""Monitors that run during an attack: probes, predictions, and the server's memory."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from benchmarks.load.child import Child
from drills.cluster import request
from drills.machine import repeating


@contextmanager
def probing(*ports: int) -> Iterator[list[float]]:
    """Request `/livez` on new connections, as an orchestrator does.

    Yield the seconds until each probe was answered with 200; infinite if it was not.
    """
    latencies_s: list[float] = []

    def probe() -> None:
        for port in ports:
            started, answered = time.perf_counter(), False
            with suppress(OSError, http.client.HTTPException):
                answered = request(port, "GET", "/livez", 5.0).status == 200
            latencies_s.append(time.perf_counter() - started if answered else float("inf"))

    with repeating(probe):
        yield latencies_s


@dataclass
class Predictions:
    """What a client of the predictions sees.

    Attributes
    ----------
    latencies_s : seconds until each answer; infinite if there was none.
    wrong : answers with other scores, and refusals other than 503.
    shed : number of answers with 503.
    """

    latencies_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    shed: int = 0


@contextmanager
def predicting(port: int, body: bytes, expected: object, headers: Mapping[str, str]) -> Iterator[Predictions]:
    """Request predictions on new connections by a body in JSON, and compare them with the expected scores."""
    seen = Predictions()

    def predict() -> None:
        started = time.perf_counter()
        try:
            reply = request(port, "POST", "/predict", 5.0, body, {"Content-Type": "application/json", **headers})
        except (OSError, http.client.HTTPException):
            seen.latencies_s.append(float("inf"))
            return
        seen.latencies_s.append(time.perf_counter() - started)
        if reply.status == 503:
            seen.shed += 1
        elif reply.status != 200 or reply.content["prediction"] != expected:
            seen.wrong.append(f"{reply.status}: {str(reply.content)[:200]!r}")

    with repeating(predict):
        yield seen


@contextmanager
def measuring_memory(pid: int) -> Iterator[list[float]]:
    """Yield the resident memory of a process in MiB, observed again and again."""
    process = Child(pid, 0)
    found = [process.resident_mib]

    def observe() -> None:
        with suppress(OSError):  # the process has ended, which is reported elsewhere
            found.append(process.resident_mib)

    with repeating(observe, 0.02):
        yield found
