"""Deadlines under load, and beside clients that mean no good: `python tests/benchmarks/deadlines.py [--quick]`.

The service runs on one core, the load on another. Lateness is compared with that of a bare `loop.call_later` in the
same event loop, measured beside it: by the server until the answer has left, and by the client until it is there.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from anytime.model.model import Model
from anytime.types import Policy
from benchmarks.load.aio import stream_by_aiohttp
from benchmarks.load.asked import Asked, faults, planned
from benchmarks.load.bindings import BareTimers, Binding, Sessions, Stream, StreamedPost, begin_all
from benchmarks.load.child import CLIENT_CORE, Child, server, settle
from benchmarks.load.engine import Load
from benchmarks.load.hostile import KINDS
from benchmarks.load.measured import Seen
from benchmarks.load.models import saved_model

LATER_MS = 1.0
"""How much later than a bare timer an answer may be, at the 99th percentile."""

GROWTH_MIB = 64.0
STALLED = 0.005
"""Share of answers that a machine which stood still may excuse."""


class Result(NamedTuple):
    """What one load has shown; milliseconds, 99th percentiles."""

    name: str
    asked: int
    left: float
    left_bare: float
    came: float
    came_bare: float
    load: float
    busy: float
    stood: float
    collecting: float
    faults: Counter[str]

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        stalled = self.faults["stalled"]
        others = sum(self.faults.values()) - stalled
        return self.punctual and others == 0 and stalled <= STALLED * self.asked

    @property
    def punctual(self) -> bool:
        """Whether answers are as punctual as bare timers."""
        return self.left - self.left_bare <= LATER_MS and self.came - self.came_bare <= LATER_MS


def p99(values: Sequence[float]) -> float:
    """99th percentile; nan of nothing."""
    return float(np.percentile(values, 99)) if values else float("nan")


def seen(child: Child) -> Seen:
    """What the server has seen since the last time."""
    with urllib.request.urlopen(f"http://127.0.0.1:{child.port}/measured", timeout=30) as response:
        return msgspec.json.decode(response.read(), type=Seen)


class Soak:
    """Loads on one server, and what they have shown.

    Parameters
    ----------
    share : how much of the full load, 0 to 1.
    """

    def __init__(self, model: Model, child: Child, share: float) -> None:
        self.model, self.child, self.share = model, child, share
        self.rng = np.random.default_rng(3)
        self.results: list[Result] = []
        self.grown_mib = 0.0

    def stream(
        self,
        name: str,
        make: Callable[[Load, int], Binding],
        count: int,
        rate: float,
        *,
        policy: Policy = "prefix",
        stretch: float = 1.0,
    ) -> Result:
        """Load one binding, `rate` predictions a second, with as many bare timers beside them up to 200 a second."""
        asked = list(planned(self.model, self.rng, max(1, int(count * self.share)), policy, stretch))
        load = Load()
        binding, timers = make(load, self.child.port), BareTimers(load, self.child.port)
        seen(self.child)
        cpu, start = self.child.cpu_us, time.perf_counter()
        begin_all(load, binding, asked, lambda: float(self.rng.exponential(1.0 / rate)))
        over = asked[-1]
        timers.keep_asking(self.rng, 1.0 / min(rate, 200.0), lambda: over.begun > 0.0)
        load.run(lambda: all(each.answers for each in asked), 15.0)
        load.run(lambda: False, 0.1)  # what is answered twice would come now
        busy = (self.child.cpu_us - cpu) / (time.perf_counter() - start) / 1e6
        binding.close()
        timers.close()
        return self._result(name, asked, timers.late_ms, load.late_ms, busy)

    def aiohttp(self, count: int, rate: float) -> Result:
        """The same by aiohttp."""
        asked = list(planned(self.model, self.rng, max(1, int(count * self.share))))
        seen(self.child)
        cpu, start = self.child.cpu_us, time.perf_counter()
        bare, late = stream_by_aiohttp(self.child.port, asked, self.rng, rate)
        busy = (self.child.cpu_us - cpu) / (time.perf_counter() - start) / 1e6
        return self._result("POST by aiohttp", asked, bare, late, busy)

    def _result(
        self, name: str, asked: Sequence[Asked], bare: Sequence[float], late: Sequence[float], busy: float
    ) -> Result:
        told = seen(self.child)
        found: Counter[str] = Counter()
        for each in asked:
            for fault in faults(self.model, each, told.stalls):
                found[fault] += 1
        came = [each.perceived_ms for each in asked if each.answers]
        result = Result(
            name,
            len(asked),
            p99(told.late_ms),
            p99(told.bare_ms),
            p99([ms for ms in came if ms is not None]),
            p99(bare),
            p99(late),
            busy,
            max((end - begin for begin, end in told.stalls), default=0.0),
            max(told.collecting_ms, default=0.0),
            found,
        )
        self.results.append(result)
        tell(result)
        gc.collect()
        return result


def tell(result: Result) -> None:
    """Print one result."""
    wrong = "" if result.kept else "  over"
    print(
        f"{result.name:<34}{result.asked:>7}{result.left:>9.2f}{result.left_bare:>7.2f}"
        f"{result.came:>9.2f}{result.came_bare:>7.2f}{result.load:>7.2f}{result.busy:>6.0%}{result.stood:>7.1f}{result.collecting:>6.1f}{wrong}",
        flush=True,
    )
    for fault, times in result.faults.most_common(5):
        print(f"    {times} x {fault}")


def main() -> None:
    """Load, compare and print; exit with 1 when a limit is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--only", help="websocket, arrived, post, aiohttp, sessions, thousand or hostile")
    given = parser.parse_args()
    settle(CLIENT_CORE)
    gc.disable()  # the load must not pause; what it makes is collected between its parts
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "load.safetensors"
        model = saved_model(path)
        with server("service", path) as child:
            kept = run(Soak(model, child, 0.1 if given.quick else 1.0), given.only or "")
    sys.exit(0 if kept else 1)


def run(soak: Soak, only: str) -> bool:
    """Everything; whether all promises were kept."""
    seen(soak.child)
    soak.stream("warming up", Stream, int(200 / soak.share), 100)
    columns = (("", 34), ("count", 7), ("left", 9), ("bare", 7), ("came", 9), ("bare", 7), ("load", 7), ("busy", 6))
    print("\nmilliseconds after the deadline, 99th percentiles, beside those of bare timers; longest pauses")
    print("".join(f"{name:>{width}}" for name, width in (*columns, ("stood", 7), ("gc", 6))))
    soak.results.clear()
    parts: dict[str, Callable[[], object]] = {
        "websocket": lambda: soak.stream("WebSocket", Stream, 20_000, 300),
        "arrived": lambda: soak.stream("WebSocket, policy arrived", Stream, 4_000, 100, policy="arrived"),
        "post": lambda: soak.stream("streamed POST, sockets", StreamedPost, 4_000, 200),
        "aiohttp": lambda: soak.aiohttp(4_000, 60),
        "sessions": lambda: soak.stream("sessions", Sessions, 4_000, 100),
        "thousand": lambda: thousand(soak),
        "hostile": lambda: hostile(soak),
    }
    for name, part in parts.items():
        if only in ("", name):
            part()
    return soak.grown_mib <= GROWTH_MIB and all(result.kept for result in soak.results)


def thousand(soak: Soak) -> None:
    """A thousand predictions open at once, again and again: all are answered, and memory does not grow.

    They begin within a second, with deadlines of half a second and two seconds.
    """
    before = soak.child.resident_mib
    for _ in range(5):
        soak.stream("a thousand open", Stream, int(1500 / soak.share), 1_500, stretch=100.0)
    grown = soak.child.resident_mib - before
    print(f"    memory of the server: {before:.0f} MiB before, {grown:+.0f} after, {GROWTH_MIB:+.0f} at most")
    soak.grown_mib = max(soak.grown_mib, grown)


def hostile(soak: Soak) -> None:
    """The same load with a hostile client beside it and without, in turns."""
    for kind in KINDS:
        alone = soak.stream("alone", Stream, 3_000, 200)
        with beside(kind, soak.child):
            time.sleep(0.5)
            result = soak.stream(f"beside {kind}", Stream, 3_000, 200)
        later = result.left - alone.left, result.came - alone.came
        print("    later by {:.2f} ms when answers left, {:.2f} when they came".format(*later))


@contextmanager
def beside(kind: str, child: Child) -> Iterator[None]:
    """Run a hostile client in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "benchmarks.load.hostile", kind, str(child.port)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    main()
