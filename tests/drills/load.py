"""A steady load for half an hour: `python tests/drills/load.py [--minutes 30] [--quick] [--out load.csv]`.

The service runs on one core, the load on another. First the rate is found at which the service keeps its core 70% busy;
then it is requested over WebSocket, streamed POST and sessions, each with a deadline.
Lateness is compared with bare timers in the server's event loop, which separates stalls of the machine from a slow
service. Exits with 1 if an answer is wrong or missing, if answers are more than a millisecond later than bare timers,
or if memory or descriptors grow.
"""

from __future__ import annotations

import csv
import gc
import os
import sys
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from anytime.model.model import Model
from anytime.types import Policy
from benchmarks.harness import CLIENT_CORE, Table, conclude, flag, percentiles, pin_to_core, script_options, violations
from benchmarks.load.child import Child, ServerStats, server
from benchmarks.load.engine import Load
from benchmarks.load.models import temporary_model
from benchmarks.load.predictions import (
    MAX_STALLED,
    STALLED,
    BareTimers,
    Binding,
    LoadPrediction,
    Sessions,
    Stream,
    StreamedPost,
    begin_all,
    faults,
    plan_predictions,
)
from drills.cluster import footprint, repeating

CHECKED = 20
"""One in this many answers is checked against the library."""

EVERY_S = 5.0
BARE_PER_S = 50.0
WITHIN_S = 15.0


class Kind(NamedTuple):
    """A part of the mix: binding, policy, and share of all predictions."""

    make: Callable[[Load, int], Binding]
    policy: Policy
    share: float


MIX: Mapping[str, Kind] = {
    "websocket": Kind(Stream, "prefix", 0.6),
    "arrived": Kind(Stream, "arrived", 0.1),
    "post": Kind(StreamedPost, "prefix", 0.2),
    "session": Kind(Sessions, "prefix", 0.1),
}


Sample = dict[str, float]
"""Observations of a few seconds, by the columns of the file; lateness in milliseconds, `sent` by the server, `received`
at the client."""


class SteadyLoad:
    """The load and its observations.

    Attributes
    ----------
    samples : one every few seconds.
    sent_ms, sent_bare_ms, received_bare_ms : lateness of all answers and bare timers.
    received_ms : at the client, by kind.
    found : faults and their counts; `STALLED` is a stall of the machine.
    """

    def __init__(self, model: Model, child: Child, rate: float) -> None:
        self.samples: list[Sample] = []
        self.sent_ms, self.sent_bare_ms, self.received_bare_ms = array("d"), array("d"), array("d")
        self.received_ms = {name: array("d") for name in MIX}
        self.found: Counter[str] = Counter()
        self.requests = self.answered = 0
        self._model, self._child, self._rate = model, child, rate
        self._rng = np.random.default_rng(7)
        self._load = Load()
        self._received_ms: list[float] = []
        self._checking: list[LoadPrediction] = []
        self._due: list[LoadPrediction] = []
        self._stalls: deque[list[tuple[float, float]]] = deque(maxlen=3)

    def run(self, length_s: float, on_sample: Callable[[Sample], None]) -> None:
        """Run the load, and wait for open predictions; `on_sample` is called with each sample."""
        self._child.measured()
        self._started = time.perf_counter()
        self._before = (self._started, self._child.cpu_us, self.requests, self.answered)
        self._until = self._started + length_s
        streams = []
        with closing(self._load):
            for name, kind in MIX.items():
                binding = kind.make(self._load, self._child.port)
                gaps_s = partial(self._rng.exponential, 1.0 / (self._rate * kind.share))
                begin_all(self._load, binding, self._predictions(name, binding), gaps_s)
                streams += [binding] if isinstance(binding, Stream) else []
            timers = BareTimers(self._load, self._child.port)
            timers.request_timers(self._rng, 1.0 / BARE_PER_S, lambda: time.perf_counter() >= self._until)
            with repeating(lambda: on_sample(self._sample(timers)), EVERY_S):
                try:
                    self._load.run(
                        lambda: time.perf_counter() > self._until and self.answered >= self.requests, WITHIN_S
                    )
                except (OSError, KeyError, ValueError) as error:
                    self.found[f"the load failed: {error!r}"] += 1
        self._measurements()
        self._check([*self._due, *self._checking])
        strays = sum(stream.strays for stream in streams)
        self.found += Counter({"never answered": self.requests - self.answered, "answered twice": strays})

    def _predictions(self, name: str, binding: Binding) -> Iterator[LoadPrediction]:
        """Yield predictions until the time is over."""
        for prediction in plan_predictions(self._model, self._rng, 1 << 60, MIX[name].policy):
            if time.perf_counter() >= self._until:
                return
            prediction.on_answer = partial(self._answered, name, binding)
            self.requests += 1
            yield prediction

    def _answered(self, name: str, binding: Binding, prediction: LoadPrediction) -> None:
        self.answered += 1
        if isinstance(binding, Stream):
            binding.open.pop(prediction.name, None)
        received_ms = prediction.lateness_ms if "prediction" in prediction.answers[0][1] else None
        if received_ms is not None:
            self.received_ms[name].append(received_ms)
            self._received_ms.append(received_ms)
        if prediction.name % CHECKED == 0 or "prediction" not in prediction.answers[0][1]:
            self._checking.append(prediction)

    def _sample(self, timers: BareTimers) -> Sample:
        """Add and return a sample."""
        stats, process = self._measurements(), footprint(self._child.pid)
        now = (time.perf_counter(), self._child.cpu_us, self.requests, self.answered)
        took_s, cpu_us, requests, answered = np.subtract(now, self._before).tolist()
        self._before = now
        received, self._received_ms = self._received_ms, []
        late, self._load.late_ms = self._load.late_ms, []
        bare, timers.late_ms = timers.late_ms, []
        # The server may report the stall that explains an answer later: check new answers with the next sample.
        due, self._due, self._checking = self._due, self._checking, []
        self.sent_ms.extend(stats.late_ms)
        self.sent_bare_ms.extend(stats.bare_ms)
        self.received_bare_ms.extend(bare)
        sample = {
            "at_s": now[0] - self._started,
            "requests": requests,
            "answered": answered,
            "errors": self._check(due),
            **dict(zip(("sent_p50", "sent_p99", "sent_p999"), levels(stats.late_ms), strict=True)),
            "sent_bare_p99": levels(stats.bare_ms)[1],
            **dict(zip(("received_p50", "received_p99", "received_p999"), levels(received), strict=True)),
            "received_bare_p99": levels(bare)[1],
            "load_p99": levels(late)[1],
            "busy": cpu_us / took_s / 1e6,
            "mib": process.mib,
            "descriptors": process.descriptors,
            "own_descriptors": footprint(os.getpid()).descriptors,
            "threads": process.threads,
            "gc_ms": max(stats.gc_ms, default=0.0),
            "stall_ms": max((end - begin for begin, end in stats.stalls), default=0.0),
        }
        self.samples.append(sample)
        return sample

    def _measurements(self) -> ServerStats:
        """Return the server's measurements since the last call; recent stalls are retained."""
        stats = self._child.measured()
        self._stalls.append(stats.stalls)
        return stats

    def _check(self, predictions: list[LoadPrediction]) -> int:
        """Check answers against the library, with pauses for the load."""
        errors, stalls = 0, [*chain.from_iterable(self._stalls)]
        for prediction in predictions:
            for fault in faults(self._model, prediction, stalls):
                self.found[fault] += 1
                errors += fault != STALLED
            time.sleep(0.001)
        return errors


def levels(values: list[float] | array[float]) -> tuple[float, float, float]:
    """Return the 50th, 99th and 99.9th percentile; NaN without values."""
    p50, p99, p999 = percentiles(values, 50, 99, 99.9)
    return p50, p99, p999


SHARE = 0.7
LATER_MS = 1.0
"""Lateness allowed beyond that of a bare timer, at the 99th percentile."""

WARM_S = 180.0
FIRST_RATE, STEPS = 300.0, 3
LOAD_LATE_MS = 2.0
"""Allowed lateness of the load generator, 99th percentile of a typical sample; above it the result is inconclusive."""

UNMATCHED = 2
"""Growth allowed of server descriptors without a counterpart in the load."""

FLAT = 0.05
"""Growth of a level, by the line and by the maximum, that still counts as flat."""

MIN_SAMPLES = 5
SAMPLES = Table(
    ("minute", ">6.2f"),
    ("requests/s", ">11.0f"),
    ("sent p99", ">10.2f"),
    ("bare", ">7.2f"),
    ("received p99", ">14.2f"),
    ("bare", ">7.2f"),
    ("busy", ">7.0%"),
    ("MiB", ">8.1f"),
)
LEVELS = Table(
    ("ms after the deadline", "<24"), ("count", ">9"), *((name, ">8.2f") for name in ("p50", "p99", "p99.9"))
)


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
        print(f"\n{SAMPLES.head}")
        steady.run(length_s, print_sample)
    write(args.out, steady.samples)
    summary(steady)
    conclude(judge(steady, min(WARM_S, length_s / 3.0)))


def find_rate(model: Model, child: Child, length_s: float) -> float:
    """Find and print the rate at which the mix uses 70% of the server's core.

    The cost of a prediction depends on the rate: at a low rate the server wakes for every message.
    """
    rate = FIRST_RATE
    for _ in range(STEPS):
        steady, cpu, started = SteadyLoad(model, child, rate), child.cpu_us, time.perf_counter()
        steady.run(length_s, lambda _: None)
        busy = (child.cpu_us - cpu) / (time.perf_counter() - started) / 1e6
        rate *= min(max(SHARE / busy, 0.5), 3.0)
    print(f"the mix: {rate:.0f} predictions/s keep its core {SHARE:.0%} busy")
    return rate


def print_sample(sample: Sample) -> None:
    names = ("sent_p99", "sent_bare_p99", "received_p99", "received_bare_p99", "busy", "mib")
    minute, rate = sample["at_s"] / 60, sample["requests"] / EVERY_S
    print(SAMPLES.row(minute, rate, *(sample[name] for name in names)), flush=True)


def write(path: Path, samples: Sequence[Sample]) -> None:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(samples[0] if samples else ())
        out.writerows([f"{value:.6g}" for value in sample.values()] for sample in samples)


def judge(steady: SteadyLoad, warm_s: float) -> list[str]:
    broken = [f"{times} x {fault}" for fault, times in steady.found.items() if fault != STALLED]
    if not steady.answered or not steady.samples:
        return [*broken, "nothing was answered" if not steady.answered else "nothing was sampled"]
    received_ms = [ms for values in steady.received_ms.values() for ms in values]
    later = {
        "sent": levels(steady.sent_ms)[1] - levels(steady.sent_bare_ms)[1],
        "received": levels(received_ms)[1] - levels(steady.received_bare_ms)[1],
    }
    own = float(np.median([sample["load_p99"] for sample in steady.samples]))
    return [
        *broken,
        *violations(
            (
                steady.found[STALLED] > MAX_STALLED * steady.answered,
                f"stalls of the machine delayed {steady.found[STALLED]} answers, inconclusive",
            ),
            *((not ms <= LATER_MS, f"answers {what} {ms:.2f} ms later than bare timers") for what, ms in later.items()),
            (not own <= LOAD_LATE_MS, f"the load generator is {own:.2f} ms late, inconclusive"),
        ),
        *growing([sample for sample in steady.samples if sample["at_s"] >= warm_s]),
    ]


def growing(samples: Sequence[Sample]) -> list[str]:
    """Return which resources grow that must not."""
    memory = trend([sample["at_s"] for sample in samples], [sample["mib"] for sample in samples])
    size = f"{memory.level:.1f} MiB, grows by {memory.growth:.1f} to at most {memory.largest:.1f}"
    unused = [sample["descriptors"] - sample["own_descriptors"] for sample in samples] or [0]
    return violations(
        (not memory.flat, f"memory is not flat within {FLAT:.0%}: {size}, from {memory.samples} samples"),
        (
            np.median(unused[-3:]) > np.median(unused[:3]) + UNMATCHED,
            f"unused descriptors grow from {unused[0]:g} to {unused[-1]:g} more than the load has",
        ),
    )


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
    print(f"\n{LEVELS.head}")
    for name, values in (
        ("sent by the server", steady.sent_ms),
        ("  bare timers", steady.sent_bare_ms),
        *((f"received, {name}", values) for name, values in steady.received_ms.items()),
        ("  bare timers", steady.received_bare_ms),
    ):
        print(LEVELS.row(name, len(values), *levels(values)))
    print(f"{steady.requests} requests, {steady.answered} answered; {dict(steady.found) or 'nothing wrong'}")


if __name__ == "__main__":
    main()
