"""A peer in its own process: it runs the calls requested by lines of JSON, and reports their time.

Runs in any environment that has numpy: `python -m benchmarks.peers.adapters.worker MODULE`. The module's `CALLS` are
functions of the problem and of options that return the timed function, and one that reads its result. Arrays are passed
as `.npy` and `.npz` files, without pickle.

The peak of memory is VmHWM, which is `ru_maxrss` but not inherited from the parent process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Call", "Problem", "peak_mib"]

Problem = dict[str, Any]
Call = Callable[[Problem, dict[str, Any]], tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]]

MIN_S = 0.2
"""A function is repeated until its calls took this long, and the median counts: in a process that has just been woken,
a call of 20 ms takes up to twice as long."""


def peak_mib() -> float:
    """Return the peak memory of this process, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return float(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024.0


class Worker:
    """The loaded problem and the prepared calls."""

    def __init__(self, calls: dict[str, Call]) -> None:
        self.calls = calls
        self.problem: Problem = {}
        self.prepared: dict[str, tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]] = {}

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Read arrays from a folder."""
        folder = Path(request["folder"])
        self.problem = {name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in request["arrays"]}
        self.prepared = {}
        return {"peak_mib": peak_mib()}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run the timed function; write its arrays to the file `out`, if given, and return its numbers."""
        key = json.dumps([request["call"], request["options"]], sort_keys=True)
        if key not in self.prepared:
            self.prepared[key] = self.calls[request["call"]](self.problem, request["options"])
        act, read = self.prepared[key]
        gc.collect()
        before, cpu = peak_mib(), time.process_time()
        seconds: list[float] = []
        while sum(seconds) < MIN_S:
            result = None  # or two results would count in the peak of memory
            start = time.perf_counter()
            result = act()
            seconds.append(time.perf_counter() - start)
        reply: dict[str, Any] = {
            "seconds": statistics.median(seconds),
            "cpu_s": (time.process_time() - cpu) / len(seconds),
            "peak_mib": peak_mib(),
            "before_mib": before,
        }
        found = read(result)
        if request.get("out"):
            arrays: dict[str, Any] = {name: value for name, value in found.items() if isinstance(value, np.ndarray)}
            np.savez(request["out"], **arrays)
        return reply | {name: value for name, value in found.items() if not isinstance(value, np.ndarray)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries is not an answer
    worker = Worker(importlib.import_module(f"benchmarks.peers.adapters.{sys.argv[1]}").CALLS)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = worker.load(request) if request["do"] == "load" else worker.run(request)
        except Exception as error:  # reported to the caller
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
