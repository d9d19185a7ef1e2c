"""A steady load for half an hour: `python tests/drills/load.py [--minutes 30] [--quick] [--out load.csv]`.

The service runs on one core, the load on another. First the capacity of the service and the cost of a prediction of the
mix are measured; then 70% of that rate is requested over WebSocket, streamed POST and sessions, each with a deadline.
Lateness is compared with bare timers in the server's event loop, which separates stalls of the machine from a slow
service. Exits with 1 if an answer is wrong or missing, if answers are more than a millisecond later than bare timers,
or if memory or descriptors grow.
"""

from __future__ import annotations

import csv
import gc
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from anytime.model.model import Model
from benchmarks.harness import CLIENT_CORE, flag, pin_to_core, script_options
from benchmarks.load.child import Child, server
from benchmarks.load.closed_loop import saturated
from benchmarks.load.models import temporary_model
from benchmarks.load.predictions import MAX_STALLED, STALLED
from drills.steady_load import Sample, SteadyLoad, levels

SHARE = 0.7
LATER_MS = 1.0
"""Lateness allowed beyond that of a bare timer, at the 99th percentile."""

WARM_S = 180.0
STEPS = 3
LOAD_LATE_MS = 2.0
"""Allowed lateness of the load generator, 99th percentile of a typical sample; above it the result is inconclusive."""

UNMATCHED = 2
"""Growth allowed of server descriptors without a counterpart in the load."""

FLAT = 0.05
"""Growth of a level, by the line and by the maximum, that still counts as flat."""

MIN_SAMPLES = 5


def main() -> None:
    """Run the load and print; exit with 1 if a promise is broken."""
    args = script_options(
        __doc__,
        minutes={"type": float, "default": 30.0},
        quick=flag("one minute"),
        out={"type": Path, "default": Path("load.csv"), "help": "a line every five seconds"},
    )
    length_s = 60.0 if args.quick else args.minutes * 60.0
    pin_to_core(CLIENT_CORE)
    with temporary_model(groups=10) as (path, model), server("service", path) as child:
        rate = find_rate(model, child, min(length_s / 6.0, 10.0))
        steady = SteadyLoad(model, child, rate)
        gc.collect()
        gc.freeze()
        print("\nminute requests/s  sent p99   bare  received p99   bare   busy     MiB")
        steady.run(length_s, print_sample)
    write(args.out, steady.samples)
    broken = judge(steady, min(WARM_S, length_s / 3.0))
    summary(steady)
    print("broken: " + "; ".join(broken) if broken else f"every promise was kept, for {length_s / 60:g} minutes")
    sys.exit(1 if broken else 0)


def find_rate(model: Model, child: Child, length_s: float) -> float:
    """Find and print the rate at which the mix uses 70% of the server's core.

    The cost of a prediction depends on the rate: at a low rate the server wakes for every message.
    """
    capacity = saturated(model, child, length_s)
    cost = f"{capacity.cost_us:.0f} us of processor time each, its core {capacity.busy:.0%} busy"
    print(f"WebSocket, JSON, 10 groups from begin to answer, 128 open: {capacity.rate:.0f} predictions/s, {cost}")
    rate = 0.05 * capacity.rate
    for _ in range(STEPS):
        steady, cpu, started = SteadyLoad(model, child, rate), child.cpu_us, time.perf_counter()
        steady.run(length_s, lambda _: None)
        busy = (child.cpu_us - cpu) / (time.perf_counter() - started) / 1e6
        rate *= min(max(SHARE / busy, 0.5), 3.0)
    print(f"the mix: {rate:.0f} predictions/s keep its core {SHARE:.0%} busy")
    return rate


def print_sample(sample: Sample) -> None:
    print(
        f"{sample.at_s / 60:>6.2f}{sample.requests / 5:>11.0f}{sample.sent_p99:>10.2f}{sample.sent_bare_p99:>7.2f}"
        f"{sample.received_p99:>14.2f}{sample.received_bare_p99:>7.2f}{sample.busy:>7.0%}{sample.mib:>8.1f}",
        flush=True,
    )


def write(path: Path, samples: Sequence[Sample]) -> None:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(Sample._fields)
        out.writerows([f"{value:.4g}" if isinstance(value, float) else value for value in sample] for sample in samples)


def judge(steady: SteadyLoad, warm_s: float) -> list[str]:
    broken = [f"{times} x {fault}" for fault, times in steady.found.items() if fault != STALLED]
    if not steady.answered or not steady.samples:
        return [*broken, "nothing was answered" if not steady.answered else "nothing was sampled"]
    if steady.found[STALLED] > MAX_STALLED * steady.answered:
        broken.append(f"stalls of the machine delayed {steady.found[STALLED]} answers, inconclusive")
    for what, late, bare in (
        ("sent", steady.sent_ms, steady.sent_bare_ms),
        ("received", [ms for values in steady.received_ms.values() for ms in values], steady.received_bare_ms),
    ):
        excess = levels(late)[1] - levels(bare)[1]
        if not excess <= LATER_MS:
            broken.append(f"answers {what} {excess:.2f} ms later than bare timers")
    own = float(np.median([sample.load_p99 for sample in steady.samples]))
    if not own <= LOAD_LATE_MS:
        broken.append(f"the load generator is {own:.2f} ms late, inconclusive")
    return [*broken, *growing([sample for sample in steady.samples if sample.at_s >= warm_s])]


def growing(samples: Sequence[Sample]) -> Iterator[str]:
    """Return which resources grow that must not."""
    memory = trend([sample.at_s for sample in samples], [sample.mib for sample in samples])
    if not memory.flat:
        yield (
            f"memory is not flat within {FLAT:.0%}: {memory.level:.1f} MiB, grows by {memory.growth:.1f} to at most "
            f"{memory.largest:.1f}, from {memory.samples} samples"
        )
    unmatched = [sample.descriptors - sample.own_descriptors for sample in samples]
    if unmatched and np.median(unmatched[-3:]) > np.median(unmatched[:3]) + UNMATCHED:
        yield f"unused descriptors grow from {unmatched[0]} to {unmatched[-1]} more than the load has"


class Trend(NamedTuple):
    """Summary of samples: level at the start and growth to the end, both of a fitted line, and the maximum."""

    samples: int
    level: float
    growth: float
    largest: float

    @property
    def flat(self) -> bool:
        """Whether the level is constant; False with too few samples."""
        bound = FLAT * self.level
        return self.samples >= MIN_SAMPLES and self.growth <= bound and self.largest <= self.level + bound


def trend(times: Sequence[float], values: Sequence[float]) -> Trend:
    """Fit a line by least squares."""
    if len(times) < 2:
        return Trend(len(times), 0.0, 0.0, 0.0)
    at = np.asarray(times, dtype=float) - times[0]
    slope, level = np.polyfit(at, np.asarray(values, dtype=float), 1)
    return Trend(len(times), float(level), float(slope * at[-1]), float(max(values)))


def summary(steady: SteadyLoad) -> None:
    """Print the lateness of all answers and timers."""
    print(f"\n{'ms after the deadline':<24}{'count':>9}{'p50':>8}{'p99':>8}{'p99.9':>8}")
    for name, values in (
        ("sent by the server", steady.sent_ms),
        ("  bare timers", steady.sent_bare_ms),
        *((f"received, {name}", values) for name, values in steady.received_ms.items()),
        ("  bare timers", steady.received_bare_ms),
    ):
        print(f"{name:<24}{len(values):>9}" + "".join(f"{ms:>8.2f}" for ms in levels(values)))
    print(f"{steady.requests} requests, {steady.answered} answered; {dict(steady.found) or 'nothing wrong'}")


if __name__ == "__main__":
    main()
