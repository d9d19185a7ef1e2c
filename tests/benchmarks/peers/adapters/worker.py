"""A peer in its own process: `python -m benchmarks.peers.adapters.worker MODULE` in any environment that has numpy.

It runs the calls requested by lines of JSON. A call is a function of the module: it gets the problem and options, and
returns the timed function and one that reads its result. Arrays are `.npy` and `.npz` files. The peak of memory is
VmHWM, which is `ru_maxrss` but not inherited from the parent process.
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

Problem = dict[str, Any]
Timed = tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]

MIN_S = 0.2
"""A function is repeated until its calls took this long, and the median counts: in a process that has just been woken,
a call of 20 ms takes up to twice as long."""


def peak_mib() -> float:
    """Return the peak memory of this process, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return float(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024.0


def run(act: Callable[[], Any], read: Callable[[Any], dict[str, Any]], out: str | None) -> dict[str, Any]:
    """Time a function; write the arrays of its result to the file `out`, if given, and return its numbers."""
    gc.collect()
    before = peak_mib()
    seconds: list[float] = []
    while sum(seconds) < MIN_S:
        result = None  # or two results would count in the peak of memory
        start = time.perf_counter()
        result = act()
        seconds.append(time.perf_counter() - start)
    reply = {"seconds": statistics.median(seconds), "peak_mib": peak_mib(), "before_mib": before}
    found = read(result)
    arrays: dict[str, Any] = {name: value for name, value in found.items() if isinstance(value, np.ndarray)}
    if out:
        np.savez(out, **arrays)
    return reply | {name: value for name, value in found.items() if name not in arrays}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries is not an answer
    calls = vars(importlib.import_module(f"benchmarks.peers.adapters.{sys.argv[1]}"))
    problem: Problem = {}
    prepared: dict[str, Timed] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "folder" in request:
                problem = {name: np.load(f"{request['folder']}/{name}.npy") for name in request["arrays"]}
                reply: dict[str, Any] = {}
            else:
                key = json.dumps([request["call"], request["options"]], sort_keys=True)
                if key not in prepared:
                    prepared[key] = calls[request["call"]](problem, request["options"])
                reply = run(*prepared[key], request["out"])
        except Exception as error:  # reported to the caller
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
