"""A rival at work in a process of its own: it does what lines of JSON ask for, and says how long that took.

Runs in any environment that has numpy: `python -m benchmarks.peers.rivals.worker MODULE`. The module's `CALLS` are
functions of the problem and of options that return what is to be timed, and how to read what it returns. Arrays come
and go as `.npy` and `.npz` files, without pickle.

The peak of memory is VmHWM, which is what `ru_maxrss` tells, but not inherited from the process that began this one.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
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


def peak_mib() -> float:
    """Most memory that this process has held, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return float(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024.0


class Worker:
    """The problem that was loaded, and the calls that were prepared."""

    def __init__(self, calls: dict[str, Call]) -> None:
        self.calls = calls
        self.problem: Problem = {}
        self.prepared: dict[str, tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]] = {}

    def load(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Read arrays from a folder."""
        folder = Path(asked["folder"])
        self.problem = {name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in asked["arrays"]}
        self.prepared = {}
        return {"peak_mib": peak_mib()}

    def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Do what is timed, once; its result goes to the file `out`, if one is given, and its numbers are told."""
        key = json.dumps([asked["call"], asked["options"]], sort_keys=True)
        if key not in self.prepared:
            self.prepared[key] = self.calls[asked["call"]](self.problem, asked["options"])
        act, read = self.prepared[key]
        gc.collect()
        before, cpu, start = peak_mib(), time.process_time(), time.perf_counter()
        result = act()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        told: dict[str, Any] = {"seconds": seconds, "cpu_s": cpu, "peak_mib": peak_mib(), "before_mib": before}
        found = read(result)
        if asked.get("out"):
            arrays: dict[str, Any] = {name: value for name, value in found.items() if isinstance(value, np.ndarray)}
            np.savez(asked["out"], **arrays)
        return told | {name: value for name, value in found.items() if not isinstance(value, np.ndarray)}


def main() -> None:
    """Answer lines until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is not an answer
    worker = Worker(importlib.import_module(f"benchmarks.peers.rivals.{sys.argv[1]}").CALLS)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            told = worker.load(asked) if asked["do"] == "load" else worker.run(asked)
        except Exception as error:  # whatever a rival raises is told to who asked
            traceback.print_exc()
            told = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(told) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
