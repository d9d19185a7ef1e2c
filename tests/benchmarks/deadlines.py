"""Deadlines under load, and next to hostile clients: `python tests/benchmarks/deadlines.py [--quick]`.

The service runs on one core, the load on another. Lateness is compared with that of a bare `loop.call_later` in the
same event loop at the same time: at the server when the answer is sent, and at the client when it is received.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from anytime.model.model import Model
from anytime.types import Policy
from benchmarks.harness import CLIENT_CORE, SLACK, Process, Table, flag, percentiles, pin_to_core, script_options
from benchmarks.load.child import Child, server
from benchmarks.load.engine import Load
from benchmarks.load.models import temporary_model
from benchmarks.load.neighbours import KINDS, ManyRows
from benchmarks.load.predictions import (
    MAX_STALLED,
    REFUSED,
    STALLED,
    BareTimers,
    Binding,
    Sessions,
    Stream,
    StreamedPost,
    begin_all,
    faults,
    plan_predictions,
)

MAX_LATER_MS = 1.0
"""Lateness allowed beyond that of a bare timer, at the 99th percentile."""

CAPACITY_RATE, TIMERS_S = 300.0, 3.0
LOADED, PAIRS, LOADED_LATER_MS = 0.7, 5, 0.5
"""A server at this share of its capacity is this much later than timers in a process of their own, in the median."""

GROWTH_MIB = 64.0
MAX_LOAD_LATE_MS = 1.0
"""A load that was itself later than this at the 99th percentile measured the machine's pauses.

On a quiet machine it is .1 to .3 ms late.
"""

MAJORITY, MAX_RUNS = 3, 10
"""A row over a limit is repeated until three runs agree, paused ones not counted: pauses come and go, a fault stays."""


RESULTS = Table(
    ("", "<34"),
    ("count", ">7"),
    ("sent", ">9.2f"),
    ("bare", ">7.2f"),
    ("received", ">9.2f"),
    ("bare", ">7.2f"),
    ("load", ">7.2f"),
    ("busy", ">6.0%"),
    ("stall", ">7.1f"),
    ("gc", ">6.1f"),
)


class Result(NamedTuple):
    """Result of one load; milliseconds, 99th percentiles."""

    name: str
    predictions: int
    sent: float
    sent_bare: float
    received: float
    received_bare: float
    load: float
    busy: float
    stall: float
    gc: float
    faults: Counter[str]

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        stalled = self.faults[STALLED]
        return self.punctual and self.faults.total() == stalled <= MAX_STALLED * self.predictions

    @property
    def wrong(self) -> bool:
        """Whether an answer has a fault that no stall explains; a late load may come too fast, and be refused."""
        return bool(self.faults.keys() - ({STALLED, REFUSED} if self.paused else {STALLED}))

    @property
    def paused(self) -> bool:
        """Whether the machine paused, so that the load itself was late."""
        return self.load > MAX_LOAD_LATE_MS

    @property
    def punctual(self) -> bool:
        """Whether answers are as punctual as bare timers."""
        return self.sent - self.sent_bare <= MAX_LATER_MS and self.received - self.received_bare <= MAX_LATER_MS


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile; NaN without values."""
    return percentiles(values, 99)[0]


class Soak:
    """Loads on one server, and their results.

    Parameters
    ----------
    share : share of the full load, 0 to 1.
    """

    def __init__(self, model: Model, child: Child, share: float) -> None:
        self.model, self.child, self.share = model, child, share
        self.rng = np.random.default_rng(3)
        self.results: list[Result] = []
        self.grown_mib = 0.0
        self.punctual = True

    def stream(
        self,
        name: str,
        make: Callable[[Load, int], Binding],
        count: int,
        rate: float,
        *,
        policy: Policy = "prefix",
        stretch: float = 1.0,
        once: bool = False,
    ) -> Result:
        """Load one binding with `rate` predictions per second, next to as many bare timers, at most 200 per second.

        Without `once`, repeat it if a limit is exceeded.
        """

        verdicts: Counter[bool] = Counter()
        for number in range(MAX_RUNS):
            result = self._measured(name, make, max(1, int(count * self.share)), rate, policy, stretch)
            if once:
                return result
            if result.kept or not result.paused:
                verdicts[result.kept] += 1
            if result.wrong or (number == 0 and result.kept) or MAJORITY in verdicts.values():
                break
        else:
            print(f"    the machine paused too often: no {MAJORITY} of {MAX_RUNS} runs agree")
            self.punctual = False
        if verdicts.total() > 1:
            print(f"    over in {verdicts[False]} of {verdicts.total()} runs")
        self.results.append(result)
        return result

    def _measured(
        self, name: str, make: Callable[[Load, int], Binding], count: int, rate: float, policy: Policy, stretch: float
    ) -> Result:
        predictions = list(plan_predictions(self.model, self.rng, count, policy, stretch))
        with closing(Load()) as load:
            binding, timers = make(load, self.child.port), BareTimers(load, self.child.port)
            self.child.measured()
            cpu, start = self.child.cpu_us, time.perf_counter()
            begin_all(load, binding, predictions, lambda: float(self.rng.exponential(1.0 / rate)))
            timers.request_timers(self.rng, 1.0 / min(rate, 200.0), lambda: predictions[-1].started > 0.0)
            load.run(lambda: all(each.answers for each in predictions), 15.0)
            load.run_for(0.1)  # a second answer to a prediction would be received now
            busy = (self.child.cpu_us - cpu) / (time.perf_counter() - start) / 1e6
        stats = self.child.measured()
        found = Counter(fault for each in predictions for fault in faults(self.model, each, stats.stalls))
        received = [each.lateness_ms for each in predictions if each.answers]
        result = Result(
            name,
            len(predictions),
            p99(stats.late_ms),
            p99(stats.bare_ms),
            p99([ms for ms in received if ms is not None]),
            p99(timers.late_ms),
            p99(load.late_ms),
            busy,
            max((end - begin for begin, end in stats.stalls), default=0.0),
            max(stats.gc_ms, default=0.0),
            found,
        )
        print(RESULTS.row(*result[:-1]) + ("" if result.kept else "  over"), flush=True)
        for fault, times in found.most_common(5):
            print(f"    {times} x {fault}")
        gc.collect()
        return result


def main() -> None:
    """Run the loads and print; exit with 1 if a limit is exceeded."""
    args = script_options(
        __doc__,
        quick=flag("a tenth of everything"),
        only={
            "choices": ["websocket", "loaded", "arrived", "post", "sessions", "thousand", "rows", "hostile"],
            "help": "one load",
        },
    )
    pin_to_core(CLIENT_CORE)
    gc.disable()  # collected between the loads, which must not pause
    with temporary_model() as (path, model), server("service", path) as child, server("service", path) as idle:
        kept = run(Soak(model, child, 0.1 if args.quick else 1.0), idle, args.only or "")
    sys.exit(0 if kept else 1)


def run(soak: Soak, idle: Child, only: str) -> bool:
    """Run all loads; return whether all promises were kept. `idle` is a server without predictions."""
    soak.stream("warming up", Stream, int(1000 / soak.share), CAPACITY_RATE)
    capacity = CAPACITY_RATE / soak.results[-1].busy
    print("\nmilliseconds after the deadline, 99th percentiles, next to bare timers; longest pauses")
    print(RESULTS.head)
    soak.results.clear()
    parts: dict[str, Callable[[], object]] = {
        "websocket": lambda: soak.stream("WebSocket", Stream, 20_000, 300),
        "loaded": lambda: loaded(soak, idle, LOADED * capacity),
        "arrived": lambda: soak.stream("WebSocket, policy arrived", Stream, 4_000, 100, policy="arrived"),
        "post": lambda: soak.stream("streamed POST", StreamedPost, 4_000, 200),
        "sessions": lambda: soak.stream("sessions", Sessions, 4_000, 100),
        "thousand": lambda: thousand(soak),
        "rows": lambda: many_rows(soak),
        "hostile": lambda: hostile(soak),
    }
    for name, part in parts.items():
        if only in ("", name):
            part()
    return soak.grown_mib <= GROWTH_MIB and soak.punctual and all(result.kept for result in soak.results)


def loaded(soak: Soak, idle: Child, rate: float) -> None:
    """Alternate a load with bare timers in a server without predictions, on the same core."""
    later: list[float] = []
    for _ in range(MAX_RUNS):
        result = soak.stream(f"{rate:.0f}/s, {LOADED:.0%} of capacity", Stream, 20_000, rate, once=True)
        soak.punctual = soak.punctual and not result.wrong
        if not result.paused:
            later.append(result.sent - p99(bare_lateness(idle, soak.rng)))
        if len(later) == PAIRS:
            break
    if len(later) < MAJORITY:
        print(f"    the machine paused too often: {len(later)} of {MAX_RUNS} runs count")
        soak.punctual = False
        return
    median = statistics.median(later)
    print(f"    later than timers of an idle server by {median:.2f} ms (median; limit {LOADED_LATER_MS})")
    soak.punctual = soak.punctual and median <= SLACK * LOADED_LATER_MS


def bare_lateness(idle: Child, rng: np.random.Generator) -> list[float]:
    """Return the lateness of timers of a server without predictions."""
    with closing(Load()) as load:
        timers, until = BareTimers(load, idle.port), time.perf_counter() + TIMERS_S
        idle.measured()
        timers.request_timers(rng, 1.0 / 200.0, lambda: time.perf_counter() > until)
        load.run_for(TIMERS_S + 0.1)
    return idle.measured().bare_ms


def thousand(soak: Soak) -> None:
    """Open a thousand predictions at once, repeatedly: all must be answered, and memory must not grow.

    They begin within a second and a half, with deadlines of .75 and 3 seconds: most of what the server can answer,
    but not more, which is what `make overload` measures.
    """
    before = soak.child.resident_mib
    for _ in range(5):
        soak.stream("a thousand open", Stream, int(1500 / soak.share), 1_000, stretch=150.0)
    grown = soak.child.resident_mib - before
    print(f"    memory of the server: {before:.0f} MiB before, {grown:+.0f} after, {GROWTH_MIB:+.0f} at most")
    soak.grown_mib = max(soak.grown_mib, grown)


def print_later(result: Result, alone: Result) -> None:
    later = result.sent - alone.sent, result.received - alone.received
    print("    later by {:.2f} ms when sent, {:.2f} when received".format(*later))


def hostile(soak: Soak) -> None:
    """Alternate the same load with and without a hostile client."""
    for kind in KINDS:
        alone = soak.stream("alone", Stream, 3_000, 200)
        with Process("benchmarks.load.neighbours", kind, soak.child.port):
            time.sleep(0.5)
            print_later(soak.stream(f"with {kind}", Stream, 3_000, 200), alone)


def many_rows(soak: Soak) -> None:
    """Answers of 10,000 rows, pages and replaced sessions, next to a load of single rows."""
    alone = soak.stream("alone", Stream, 3_000, 200)
    with Process("benchmarks.load.neighbours", "many-rows", soak.child.port, max(4.0, 20.0 * soak.share)) as process:
        time.sleep(0.5)
        print_later(soak.stream("with 10,000 rows", Stream, 3_000, 200, once=True), alone)
        found = msgspec.json.decode(process.line(), type=ManyRows)
    for what, late in (("sent", found.sent), ("received", found.received)):
        p50, p99, most = percentiles(late, 50, 99, 100)
        print(f"    {len(late)} answers of 10,000 rows {what} after their deadline: {p50:.1f} {p99:.1f} {most:.1f} ms")
    print(f"    {found.refused} refused, {found.pages} pages, {found.replacements} replacements, {found.mixed} mixed")
    soak.punctual = soak.punctual and not found.mixed and bool(found.sent)


if __name__ == "__main__":
    main()
