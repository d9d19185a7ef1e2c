"""A steady load for half an hour: `python tests/drills/load.py [--minutes 30] [--quick] [--out load.csv]`.

The service on one core, the load on another. First it is found out what the service can do, and what a prediction of
the mix costs it; then 70% of that are asked for at a constant rate, by WebSocket, streamed POST and sessions, each with
a deadline. Lateness is told beside that of bare timers in the server's own event loop, so that a machine which stands
still is not taken for a slow service. Exits with 1 where an answer was wrong or missing, where answers are later than
bare timers by more than a millisecond, or where memory or descriptors grow.
"""

from __future__ import annotations

import argparse
import csv
import gc
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from anytime.model.model import Model
from benchmarks.load.child import CLIENT_CORE, Child, server, settle
from benchmarks.load.models import saved_model
from drills.capacity import saturate
from drills.flatness import FLAT, trend
from drills.steady import Sample, Steady, percentiles

SHARE = 0.7
LATER_MS = 1.0
"""How much later than a bare timer an answer may be, at the 99th percentile."""

STALLED = 0.005
"""Share of answers that a machine which stood still may excuse."""

WARM_S = 180.0
STEPS = 3
LOAD_LATE_MS = 2.0
"""How late the load itself may act, at the 99th percentile of a typical sample: above that it measures itself."""

UNMATCHED = 2
"""Descriptors of the server that may come to have no counterpart in the load."""


def main() -> None:
    """Load, print, and exit with 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--quick", action="store_true", help="one minute")
    parser.add_argument("--out", type=Path, default=Path("load.csv"), help="a line every five seconds")
    given = parser.parse_args()
    length_s = 60.0 if given.quick else given.minutes * 60.0
    settle(CLIENT_CORE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "load.safetensors"
        model = saved_model(path, groups=10)
        with server("service", path) as child:
            rate = found_rate(model, child, min(length_s / 6.0, 10.0))
            steady = Steady(model, child, rate)
            gc.collect()
            gc.freeze()
            print("\nminute  asked/s  left p99   bare  came p99   bare   busy     MiB")
            steady.run(length_s, tell)
    write(given.out, steady.samples)
    broken = judged(steady, min(WARM_S, length_s / 3.0))
    summary(steady)
    print("broken: " + "; ".join(broken) if broken else f"every promise was kept, for {length_s / 60:g} minutes")
    sys.exit(1 if broken else 0)


def found_rate(model: Model, child: Child, length_s: float) -> float:
    """Find out at which rate the mix keeps the server's core 70% busy, and say how.

    What a prediction costs depends on the rate: a server that is asked rarely wakes for every message.
    """
    most = saturate(model, child, length_s)
    each = f"{most.cost_us:.0f} us of processor time each, its core {most.busy:.0%} busy"
    print(f"WebSocket, JSON, 10 groups from begin to answer, 128 under way: {most.rate:.0f} predictions/s, {each}")
    rate = 0.05 * most.rate
    for _ in range(STEPS):
        steady, cpu, begun = Steady(model, child, rate), child.cpu_us, time.perf_counter()
        steady.run(length_s, lambda _: None)
        busy = (child.cpu_us - cpu) / (time.perf_counter() - begun) / 1e6
        rate *= min(max(SHARE / busy, 0.5), 3.0)
    print(f"the mix: {rate:.0f} predictions/s keep its core {SHARE:.0%} busy")
    return rate


def tell(sample: Sample) -> None:
    """Print a sample."""
    print(
        f"{sample.at_s / 60:>6.2f}{sample.asked / 5:>9.0f}{sample.left_p99:>10.2f}{sample.left_bare_p99:>7.2f}"
        f"{sample.came_p99:>10.2f}{sample.came_bare_p99:>7.2f}{sample.busy:>7.0%}{sample.mib:>8.1f}",
        flush=True,
    )


def write(path: Path, samples: Sequence[Sample]) -> None:
    """Write samples as CSV."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(Sample._fields)
        out.writerows([f"{value:.4g}" if isinstance(value, float) else value for value in sample] for sample in samples)


def judged(steady: Steady, warm_s: float) -> list[str]:
    """Promises that are broken, in words."""
    broken = [f"{times} x {fault}" for fault, times in steady.found.items() if fault != "stalled"]
    if not steady.answered or not steady.samples:
        return [*broken, "nothing was answered" if not steady.answered else "nothing was sampled"]
    if steady.found["stalled"] > STALLED * steady.answered:
        broken.append(f"the machine stood still for {steady.found['stalled']} answers, so nothing is shown")
    for what, late, bare in (
        ("left", steady.left_ms, steady.left_bare_ms),
        ("came", [ms for each in steady.came_ms.values() for ms in each], steady.came_bare_ms),
    ):
        later = percentiles(late)[1] - percentiles(bare)[1]
        if not later <= LATER_MS:
            broken.append(f"answers {what} {later:.2f} ms later than bare timers")
    own = float(np.median([sample.load_p99 for sample in steady.samples]))
    if not own <= LOAD_LATE_MS:
        broken.append(f"the load itself acts {own:.2f} ms late, so nothing is shown")
    return [*broken, *grown([sample for sample in steady.samples if sample.at_s >= warm_s])]


def grown(samples: Sequence[Sample]) -> Iterator[str]:
    """What has grown that has to stay, in words."""
    found = trend([sample.at_s for sample in samples], [sample.mib for sample in samples])
    if not found.flat:
        yield (
            f"memory is not flat within {FLAT:.0%}: {found.level:.1f} MiB, grows by {found.growth:.1f}, at most "
            f"{found.largest:.1f}, by {found.samples} samples"
        )
    unmatched = [sample.descriptors - sample.own_descriptors for sample in samples]
    if unmatched and np.median(unmatched[-3:]) > np.median(unmatched[:3]) + UNMATCHED:
        yield f"descriptors that nobody uses grow from {unmatched[0]} to {unmatched[-1]} more than the load has"


def summary(steady: Steady) -> None:
    """Print lateness of everything."""
    print(f"\n{'ms after the deadline':<24}{'count':>9}{'p50':>8}{'p99':>8}{'p99.9':>8}")
    for name, values in (
        ("left the server", steady.left_ms),
        ("  bare timers", steady.left_bare_ms),
        *((f"came by {name}", each) for name, each in steady.came_ms.items()),
        ("  bare timers", steady.came_bare_ms),
    ):
        print(f"{name:<24}{len(values):>9}" + "".join(f"{ms:>8.2f}" for ms in percentiles(values)))
    print(f"{steady.asked} asked, {steady.answered} answered; {dict(steady.found) or 'nothing wrong'}")


if __name__ == "__main__":
    main()
