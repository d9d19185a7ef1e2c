"""A steady load: a mix of bindings at a constant rate, whoever is late, and what is seen of it every few seconds."""

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
from benchmarks.deadlines import seen
from benchmarks.load.asked import Asked, faults, planned
from benchmarks.load.bindings import BareTimers, Binding, Sessions, Stream, StreamedPost, begin_all
from benchmarks.load.child import Child
from benchmarks.load.engine import Load
from benchmarks.load.measured import Seen
from drills.machine import footprint

__all__ = ["MIX", "Kind", "Sample", "Seconds", "Steady"]

CHECKED = 20
"""Of so many answers one is held against the library."""

EVERY_S = 5.0
BARE_PER_S = 50.0
WITHIN_S = 15.0


class Kind(NamedTuple):
    """A part of the mix: how it asks, under which policy, and its share of all predictions."""

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
    """What was seen in a few seconds; milliseconds after the deadline, `left` by the server, `came` at the client."""

    at_s: float
    asked: int
    answered: int
    errors: int
    left_p50: float
    left_p99: float
    left_p999: float
    left_bare_p99: float
    came_p50: float
    came_p99: float
    came_p999: float
    came_bare_p99: float
    load_p99: float
    busy: float
    mib: float
    descriptors: int
    own_descriptors: int
    threads: int
    gc_ms: float
    stood_ms: float


@dataclass
class Seconds:
    """What adds up until the next sample is taken."""

    asked: int = 0
    answered: int = 0
    came_ms: list[float] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)


class Steady:
    """The load, and everything that was seen of it.

    Attributes
    ----------
    samples : a line every few seconds.
    left_ms, left_bare_ms, came_bare_ms : lateness of all answers and bare timers.
    came_ms : at the client, by kind.
    found : what was wrong, in words, and how often; "stalled" is the machine's.
    """

    def __init__(self, model: Model, child: Child, rate: float) -> None:
        self.samples: list[Sample] = []
        self.left_ms, self.left_bare_ms, self.came_bare_ms = array("d"), array("d"), array("d")
        self.came_ms = {name: array("d") for name in MIX}
        self.found: Counter[str] = Counter()
        self.asked = self.answered = 0
        self._model, self._child, self._rate = model, child, rate
        self._rng = np.random.default_rng(7)
        self._load = Load()
        self._now = Seconds()
        self._checking: list[Asked] = []
        self._due: list[Asked] = []
        self._stalls: deque[list[tuple[float, float]]] = deque(maxlen=3)
        self._begun = self._until = 0.0

    def run(self, length_s: float, tell: Callable[[Sample], None]) -> None:
        """Load for so long, and wait for what is owed; `tell` is called with each sample."""
        seen(self._child)
        self._begun = time.perf_counter()
        self._until = self._begun + length_s
        bindings = {name: kind.make(self._load, self._child.port) for name, kind in MIX.items()}
        for name, binding in bindings.items():
            gap_s = 1.0 / (self._rate * MIX[name].share)
            begin_all(self._load, binding, self._asking(name, binding), partial(self._gap, gap_s))
        timers = BareTimers(self._load, self._child.port)
        timers.keep_asking(self._rng, 1.0 / BARE_PER_S, lambda: time.perf_counter() >= self._until)
        over = threading.Event()
        sampling = threading.Thread(target=self._sample, args=(timers, tell, over))
        sampling.start()
        try:
            self._load.run(lambda: time.perf_counter() > self._until and self.answered >= self.asked, WITHIN_S)
        except (OSError, KeyError, ValueError) as error:
            self.found[f"the load could not go on: {error!r}"] += 1
        finally:
            over.set()
            sampling.join()
            for binding in bindings.values():
                binding.close()
            timers.close()
        self._end(bindings)

    def _end(self, bindings: Mapping[str, Binding]) -> None:
        self._seen()
        self._check([*self._due, *self._checking])
        if self.asked != self.answered:
            self.found["never answered"] += self.asked - self.answered
        for binding in bindings.values():
            if isinstance(binding, Stream) and binding.strays:
                self.found["answered twice"] += binding.strays

    def _gap(self, mean_s: float) -> float:
        return float(self._rng.exponential(mean_s))

    def _asking(self, name: str, binding: Binding) -> Iterator[Asked]:
        """Predictions until the time is over."""
        for asked in planned(self._model, self._rng, 1 << 60, MIX[name].policy):
            if time.perf_counter() >= self._until:
                return
            asked.told = partial(self._answered, name, binding)
            self.asked += 1
            self._now.asked += 1
            yield asked

    def _answered(self, name: str, binding: Binding, asked: Asked) -> None:
        self.answered += 1
        self._now.answered += 1
        if isinstance(binding, Stream):
            binding.open.pop(asked.name, None)
        came_ms = asked.perceived_ms if "prediction" in asked.answers[0][1] else None
        if came_ms is not None:
            self.came_ms[name].append(came_ms)
            self._now.came_ms.append(came_ms)
        if asked.name % CHECKED == 0 or "prediction" not in asked.answers[0][1]:
            self._checking.append(asked)

    def _sample(self, timers: BareTimers, tell: Callable[[Sample], None], over: threading.Event) -> None:
        """Take samples, in a thread of its own."""
        cpu, last = self._child.cpu_us, time.perf_counter()
        while not over.wait(EVERY_S):
            told = self._seen()
            now, held = time.perf_counter(), footprint(self._child.pid)
            busy, cpu = (self._child.cpu_us - cpu) / (now - last) / 1e6, self._child.cpu_us
            here, self._now = self._now, Seconds()
            late, self._load.late_ms = self._load.late_ms, []
            bare, timers.late_ms = timers.late_ms, []
            # The stall that explains an answer may be told after it: what is new is judged next time.
            due, self._due, self._checking = self._due, self._checking, []
            errors = self._check(due)
            for kept, more in (
                (self.left_ms, told.late_ms),
                (self.left_bare_ms, told.bare_ms),
                (self.came_bare_ms, bare),
            ):
                kept.extend(more)
            sample = Sample(
                now - self._begun,
                here.asked,
                here.answered,
                errors,
                *percentiles(told.late_ms),
                percentiles(told.bare_ms)[1],
                *percentiles(here.came_ms),
                percentiles(bare)[1],
                percentiles(late)[1],
                busy,
                held.mib,
                held.descriptors,
                footprint(os.getpid()).descriptors,
                held.threads,
                max(told.collecting_ms, default=0.0),
                max((end - begin for begin, end in told.stalls), default=0.0),
            )
            last = now
            self.samples.append(sample)
            tell(sample)

    def _seen(self) -> Seen:
        """What the server has seen; the stalls of the last times are kept."""
        told = seen(self._child)
        self._stalls.append(told.stalls)
        return told

    def _check(self, checking: list[Asked]) -> int:
        """Hold answers against the library, with a rest after each: the load goes on meanwhile."""
        errors, stalls = 0, [*chain.from_iterable(self._stalls)]
        for asked in checking:
            for fault in faults(self._model, asked, stalls):
                self.found[fault] += 1
                errors += fault != "stalled"
            time.sleep(0.001)
        return errors


def percentiles(values: list[float] | array[float]) -> tuple[float, float, float]:
    """50th, 99th and 99.9th; nan of nothing."""
    if not len(values):
        return (float("nan"),) * 3
    p50, p99, p999 = np.percentile(values, (50, 99, 99.9)).tolist()
    return p50, p99, p999
