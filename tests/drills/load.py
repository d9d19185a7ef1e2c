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
import itertools
import json
import os
import sys
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from anytime.model.model import Model
from anytime.types import Policy
from benchmarks.deadlines import server_stats
from benchmarks.harness import CLIENT_CORE, Table, conclude, flag, percentiles, pin_to_core, script_options
from benchmarks.load.bindings import BareTimers, Binding, Sessions, Stream, StreamedPost, begin_all
from benchmarks.load.child import Child, server
from benchmarks.load.engine import Load
from benchmarks.load.frames import WebSocketClient, text
from benchmarks.load.instrumented import ServerStats
from benchmarks.load.models import temporary_model, values_of
from benchmarks.load.predictions import MAX_STALLED, STALLED, LoadPrediction, faults, plan_predictions
from drills.machine import footprint

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


class Sample(NamedTuple):
    """Observations of a few seconds; lateness in milliseconds, `sent` by the server, `received` at the client."""

    at_s: float
    requests: int
    answered: int
    errors: int
    sent_p50: float
    sent_p99: float
    sent_p999: float
    sent_bare_p99: float
    received_p50: float
    received_p99: float
    received_p999: float
    received_bare_p99: float
    load_p99: float
    busy: float
    mib: float
    descriptors: int
    own_descriptors: int
    threads: int
    gc_ms: float
    stall_ms: float


@dataclass
class Counts:
    """Counts since the last sample."""

    requests: int = 0
    answered: int = 0
    received_ms: list[float] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)


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
        self._now = Counts()
        self._checking: list[LoadPrediction] = []
        self._due: list[LoadPrediction] = []
        self._stalls: deque[list[tuple[float, float]]] = deque(maxlen=3)
        self._started = self._until = 0.0

    def run(self, length_s: float, on_sample: Callable[[Sample], None]) -> None:
        """Run the load, and wait for open predictions; `on_sample` is called with each sample."""
        server_stats(self._child)
        self._started = time.perf_counter()
        self._until = self._started + length_s
        bindings = {name: kind.make(self._load, self._child.port) for name, kind in MIX.items()}
        for name, binding in bindings.items():
            gap_s = 1.0 / (self._rate * MIX[name].share)
            begin_all(self._load, binding, self._predictions(name, binding), partial(self._gap, gap_s))
        timers = BareTimers(self._load, self._child.port)
        timers.request_timers(self._rng, 1.0 / BARE_PER_S, lambda: time.perf_counter() >= self._until)
        stop = threading.Event()
        sampling = threading.Thread(target=self._sample, args=(timers, on_sample, stop))
        sampling.start()
        try:
            self._load.run(lambda: time.perf_counter() > self._until and self.answered >= self.requests, WITHIN_S)
        except (OSError, KeyError, ValueError) as error:
            self.found[f"the load failed: {error!r}"] += 1
        finally:
            stop.set()
            sampling.join()
            for binding in bindings.values():
                binding.close()
            timers.close()
        self._end(bindings)

    def _end(self, bindings: Mapping[str, Binding]) -> None:
        self._measurements()
        self._check([*self._due, *self._checking])
        if self.requests != self.answered:
            self.found["never answered"] += self.requests - self.answered
        for binding in bindings.values():
            if isinstance(binding, Stream) and binding.strays:
                self.found["answered twice"] += binding.strays

    def _gap(self, mean_s: float) -> float:
        return float(self._rng.exponential(mean_s))

    def _predictions(self, name: str, binding: Binding) -> Iterator[LoadPrediction]:
        """Yield predictions until the time is over."""
        for prediction in plan_predictions(self._model, self._rng, 1 << 60, MIX[name].policy):
            if time.perf_counter() >= self._until:
                return
            prediction.on_answer = partial(self._answered, name, binding)
            self.requests += 1
            self._now.requests += 1
            yield prediction

    def _answered(self, name: str, binding: Binding, prediction: LoadPrediction) -> None:
        self.answered += 1
        self._now.answered += 1
        if isinstance(binding, Stream):
            binding.open.pop(prediction.name, None)
        received_ms = prediction.lateness_ms if "prediction" in prediction.answers[0][1] else None
        if received_ms is not None:
            self.received_ms[name].append(received_ms)
            self._now.received_ms.append(received_ms)
        if prediction.name % CHECKED == 0 or "prediction" not in prediction.answers[0][1]:
            self._checking.append(prediction)

    def _sample(self, timers: BareTimers, on_sample: Callable[[Sample], None], stop: threading.Event) -> None:
        """Take samples, in a thread."""
        cpu, last = self._child.cpu_us, time.perf_counter()
        while not stop.wait(EVERY_S):
            stats = self._measurements()
            now, process = time.perf_counter(), footprint(self._child.pid)
            busy, cpu = (self._child.cpu_us - cpu) / (now - last) / 1e6, self._child.cpu_us
            counts, self._now = self._now, Counts()
            late, self._load.late_ms = self._load.late_ms, []
            bare, timers.late_ms = timers.late_ms, []
            # The server may report the stall that explains an answer later: check new answers with the next sample.
            due, self._due, self._checking = self._due, self._checking, []
            errors = self._check(due)
            for all_ms, new_ms in (
                (self.sent_ms, stats.late_ms),
                (self.sent_bare_ms, stats.bare_ms),
                (self.received_bare_ms, bare),
            ):
                all_ms.extend(new_ms)
            sample = Sample(
                now - self._started,
                counts.requests,
                counts.answered,
                errors,
                *levels(stats.late_ms),
                levels(stats.bare_ms)[1],
                *levels(counts.received_ms),
                levels(bare)[1],
                levels(late)[1],
                busy,
                process.mib,
                process.descriptors,
                footprint(os.getpid()).descriptors,
                process.threads,
                max(stats.gc_ms, default=0.0),
                max((end - begin for begin, end in stats.stalls), default=0.0),
            )
            last = now
            self.samples.append(sample)
            on_sample(sample)

    def _measurements(self) -> ServerStats:
        """Return the server's measurements since the last call; recent stalls are retained."""
        stats = server_stats(self._child)
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
STEPS = 3
LOAD_LATE_MS = 2.0
"""Allowed lateness of the load generator, 99th percentile of a typical sample; above it the result is inconclusive."""

UNMATCHED = 2
"""Growth allowed of server descriptors without a counterpart in the load."""

CONNECTIONS = 16
WINDOW = 8
"""Open predictions per connection."""

CAPACITY_WARM_S = 1.0

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


def saturate(model: Model, child: Child, length_s: float) -> tuple[float, float]:
    """Return predictions per second in a closed loop, and the share of the server's core that they use.

    Each answer starts the next prediction: all groups and the end at once, in text.
    """
    load, rng, ids, answered = Load(), np.random.default_rng(5), itertools.count(), 0
    groups = [json.dumps({"group": name, "values": values_of(model, name, rng)})[1:] for name in model.places]

    def messages(count: int) -> bytes:
        frames = b""
        for name in itertools.islice(ids, count):
            lines = [f'{{"type": "begin", "id": {name}}}', f'{{"type": "end", "id": {name}}}']
            lines[1:1] = [f'{{"type": "group", "id": {name}, {group}' for group in groups]
            frames += b"".join(text(line.encode()) for line in lines)
        return frames

    def read(client: WebSocketClient) -> None:
        nonlocal answered
        received = sum(1 for _ in client.frames())
        answered += received
        if received:
            client.sock.send(messages(received))

    def run(length_s: float) -> None:
        over = time.perf_counter() + length_s
        load.run(lambda: time.perf_counter() >= over, length_s + 1.0)

    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            client = stack.enter_context(closing(WebSocketClient(child.port, "/stream")))
            load.watch(client.sock, partial(read, client))
            client.sock.send(messages(WINDOW))
        run(CAPACITY_WARM_S)
        before, cpu, started = answered, child.cpu_us, time.perf_counter()
        run(length_s)
        took = time.perf_counter() - started
        return (answered - before) / took, (child.cpu_us - cpu) / took / 1e6


def find_rate(model: Model, child: Child, length_s: float) -> float:
    """Find and print the rate at which the mix uses 70% of the server's core.

    The cost of a prediction depends on the rate: at a low rate the server wakes for every message.
    """
    capacity, busy = saturate(model, child, length_s)
    cost = f"{busy / capacity * 1e6:.0f} us of processor time each, its core {busy:.0%} busy"
    print(f"WebSocket, JSON, 10 groups from begin to answer, 128 open: {capacity:.0f} predictions/s, {cost}")
    rate = 0.05 * capacity
    for _ in range(STEPS):
        steady, cpu, started = SteadyLoad(model, child, rate), child.cpu_us, time.perf_counter()
        steady.run(length_s, lambda _: None)
        busy = (child.cpu_us - cpu) / (time.perf_counter() - started) / 1e6
        rate *= min(max(SHARE / busy, 0.5), 3.0)
    print(f"the mix: {rate:.0f} predictions/s keep its core {SHARE:.0%} busy")
    return rate


def print_sample(sample: Sample) -> None:
    minute, rate = sample.at_s / 60, sample.requests / EVERY_S
    sent, received = (sample.sent_p99, sample.sent_bare_p99), (sample.received_p99, sample.received_bare_p99)
    print(SAMPLES.row(minute, rate, *sent, *received, sample.busy, sample.mib), flush=True)


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
