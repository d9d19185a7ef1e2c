"""A steady load: a mix of bindings at a constant rate in an open loop, sampled every few seconds."""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from anytime.model.model import Model
from anytime.types import Policy
from benchmarks.deadlines import server_stats
from benchmarks.harness import percentiles
from benchmarks.load.bindings import BareTimers, Binding, Sessions, Stream, StreamedPost, begin_all
from benchmarks.load.child import Child
from benchmarks.load.engine import Load
from benchmarks.load.instrumented import ServerStats
from benchmarks.load.predictions import STALLED, LoadPrediction, faults, plan_predictions
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
