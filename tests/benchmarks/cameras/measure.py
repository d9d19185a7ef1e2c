"""Measure `Runner` next to its alternatives; `tests/benchmarks/runner.py` starts this in its environment."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any, Literal

import numpy as np

from anytime import Answer, AnytimeRegressor, FeatureGroup, FeatureGroups, Model, Prediction, Runner
from anytime.costs.profiling import profile
from anytime.types import Float
from benchmarks.cameras.frames import EXTRACTORS, PERIOD_MS, Frames, clip
from benchmarks.harness import Row, flag, report, script_options
from benchmarks.load.models import saved_model

Extractors = Mapping[str, Callable[[Any], Any]]

RESERVE_MS = 0.3
"""What the loop by hand reserves for its answer."""

PLAIN_MS = (0.5, 1.0, 2.0, 3.0, 8.0, 12.0)
"""Durations of extractors in plain Python."""


@dataclass(frozen=True)
class Case:
    """An input with its target, the values of each group, and how long computing all of them took."""

    x: Any
    y: float
    values: dict[str, Float]
    took_ms: float


@dataclass(frozen=True)
class Pipeline:
    """A model whose costs are the medians of its extractors' times; `slow_ms` are their 95 % quantiles."""

    model: Model
    extractors: Extractors
    slow_ms: Mapping[str, float]
    cases: Sequence[Case]

    def by_hand(self, x: Any, deadline_ms: float) -> Answer:
        """Compute groups in the calling thread while the next one fits, and answer."""
        deadline = time.perf_counter() + deadline_ms / 1e3
        prediction = Prediction(self.model)
        for group in self.model.computed[-1]:
            if time.perf_counter() + (self.slow_ms[group] + RESERVE_MS) / 1e3 > deadline:
                break
            prediction.add(group, self.extractors[group](x))
        return prediction.answer()

    def predicted(self, case: Case, received: Sequence[str]) -> float:
        """Return the full model's prediction; the training means replace groups that were not received."""
        prediction = Prediction(self.model)
        for group, values in case.values.items():
            prediction.add(group, values if group in received else np.full(len(values), np.nan))
        return float(prediction.answer().prediction)


def _case(extractors: Extractors, x: Any, y: float) -> Case:
    begin = time.perf_counter()
    values = {name: np.asarray(extractor(x), dtype=np.float64) for name, extractor in extractors.items()}
    return Case(x, y, values, (time.perf_counter() - begin) * 1e3)


def _trained(extractors: Extractors, training: Sequence[Case], cases: Sequence[Case]) -> Pipeline:
    """Profile the extractors on some cases, and train with these costs."""
    columns = {name: tuple(f"{name}_{j}" for j in range(len(each))) for name, each in cases[0].values.items()}

    def groups(costs: Mapping[str, float]) -> FeatureGroups:
        each = (FeatureGroup(name=name, features=columns[name], cost=costs[name]) for name in columns)
        return FeatureGroups(cost_unit="ms", groups=tuple(each))

    inputs = tuple(case.x for case in cases)
    times = profile(groups(dict.fromkeys(columns, 1.0)), extractors, inputs, repeats=1).times
    X = np.array([np.concatenate(list(case.values.values())) for case in training])
    costed = groups({name: float(np.median(each)) for name, each in times.items()})
    # One penalty: choosing it by cross-validation takes 20 s, and is as good.
    model = AnytimeRegressor(costed, alpha=0.1, basis="linear").fit(X, [case.y for case in training]).model_
    return Pipeline(model, extractors, {name: float(np.percentile(each, 95)) for name, each in times.items()}, cases)


def _training_case(seed: int) -> Case:
    x, y = next(clip(seed, 1))
    case = _case(EXTRACTORS, x, y)
    return Case(None, y, case.values, case.took_ms)  # without the frames, which are large


def camera(scenes: int, clips: int, frames: int) -> Pipeline:
    """Train on a pair of frames of each of some scenes; the cases are clips of others."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        training = pool.map(_training_case, range(scenes), chunksize=8)
    cases = [_case(EXTRACTORS, x, y) for seed in range(clips) for x, y in clip(10**6 + seed, frames)]
    return _trained(EXTRACTORS, training, cases)


def _spin(position: int, ms: float, x: Float) -> Float:
    """Return a number of the input after `ms` of processor time in which plain Python keeps the interpreter."""
    end = time.thread_time() + ms / 1e3
    while time.thread_time() < end:
        sum(range(200))
    return x[position : position + 1]


def plain() -> Pipeline:
    """Train on extractors of plain Python; the quickest are the most useful."""
    extractors = {f"plain-{ms:g}": partial(_spin, position, ms) for position, ms in enumerate(PLAIN_MS)}
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, len(PLAIN_MS)))
    y = X @ np.arange(len(PLAIN_MS), 0, -1.0) + rng.standard_normal(len(X))
    each = zip(X, y.tolist(), strict=True)
    cases = [Case(x, target, dict(zip(extractors, x[:, None], strict=True)), sum(PLAIN_MS)) for x, target in each]
    return _trained(extractors, cases, cases[:40])


def children() -> set[int]:
    """Return the processes that this process started."""
    found = set[int]()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            found.update(map(int, (thread / "children").read_text(encoding="ascii").split()))
    return found


def processor_s(ignored: set[int]) -> float:
    """Return the processor time of this process and its children, running or ended, in seconds."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in children() - ignored:
        with suppress(OSError):
            total += time.clock_gettime(~child << 3 | 2)  # as clock_getcpuclockid(3), which Python does not have
    return total


def resident_mib() -> float:
    """Return the memory of this process and its children."""
    pages = 0
    for process in (os.getpid(), *children()):
        with suppress(OSError):
            pages += int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def in_use() -> Counter[str]:
    """Count what a program may leave behind; segments are those of the whole machine."""
    descriptors, segments = (len(os.listdir(folder)) for folder in ("/proc/self/fd", "/dev/shm"))
    return Counter(descriptors=descriptors, segments=segments, processes=len(children()))


def settled(before: Counter[str]) -> int:
    """Return how much more is in use than before; wait 20 s at most for processes that are starting or ending."""
    end = time.monotonic() + 20.0
    while (more := in_use() - before) and time.monotonic() < end:
        time.sleep(0.05)
    return more.total()


@contextmanager
def busy_process() -> Iterator[int]:
    """Keep one core busy; yield the process."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


BLOCK = 20
"""Frames of one arm before the next arm has its turn."""

LATE_MS = 1.0
"""An answer that is at most this much later than its deadline is in time."""

LATE_SHARE, FEWER_GROUPS, MORE_PROCESSOR = 0.01, 0.1, 1.15
OVERHEAD_US, ROUND_TRIP_MS, GROWTH_MIB = 100.0, 1.0, 5.0
"""The limits."""

HAND = "loop by hand"
WORKERS: dict[str, Literal["thread", "process"]] = {"threads": "thread", "processes": "process"}


@dataclass
class Record:
    """Answers of one arm at one deadline; a late answer counts as the base rate, which needs no groups."""

    deadline_ms: float
    cases: list[Case] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    groups: list[tuple[str, ...]] = field(default_factory=list)
    predictions: list[float] = field(default_factory=list)
    processor_s: float = 0.0
    delayed: int = 0
    """Frames that waited for the answer to an earlier one."""

    @property
    def late_share(self) -> float:
        return float(np.mean(np.array(self.late_ms) > LATE_MS))

    @property
    def mean_groups(self) -> float:
        return statistics.mean(map(len, self.groups))

    def line(self, name: str) -> str:
        numbers = f"{1 - self.late_share:8.3f}{np.percentile(self.late_ms, 99):10.2f}{self.mean_groups:8.2f}"
        processor_ms = self.processor_s * 1e3 / len(self.cases)
        quality = r2(self.cases, self.predictions)
        return f"{self.deadline_ms:8g}  {name:<14}{numbers}{processor_ms:10.2f}{quality:8.3f}{self.delayed:9d}"


HEADING = f"deadline  {'':<14}{'in time':>8}{'p99 late':>10}{'groups':>8}{'CPU (ms)':>10}{'R2':>8}{'delayed':>9}"


def r2(cases: Sequence[Case], predictions: Sequence[float]) -> float:
    """Return the R2 of predictions about the mean of the cases."""
    y = np.array([case.y for case in cases])
    return float(1 - np.mean((y - predictions) ** 2) / y.var())


def base_rate(model: Model) -> float:
    return float(Prediction(model).answer().prediction)


def measure(
    arm: Callable[[Any, float], Answer], cases: Sequence[Case], record: Record, base: float, ignored: set[int]
) -> None:
    """Answer cases that arrive every 40 ms, or at once where an earlier answer was that late."""
    before = processor_s(ignored)
    arrival = time.perf_counter()
    for case in cases:
        wait = arrival - time.perf_counter()
        time.sleep(max(wait, 0))
        record.delayed += wait < -LATE_MS / 1e3
        begin = time.perf_counter()
        answer = arm(case.x, record.deadline_ms)
        late = (time.perf_counter() - begin) * 1e3 - record.deadline_ms
        record.cases.append(case)
        record.late_ms.append(late)
        record.groups.append(answer.groups if late <= LATE_MS else ())
        record.predictions.append(float(answer.prediction) if late <= LATE_MS else base)
        arrival += PERIOD_MS / 1e3
    time.sleep(max(arrival - time.perf_counter(), 0))  # an abandoned extractor belongs to the arm that started it
    record.processor_s += processor_s(ignored) - before


Records = dict[float, dict[str, Record]]
"""By deadline in ms, then by arm."""


def compared(pipeline: Pipeline, deadlines: Sequence[float], count: int, *, busy: bool = False) -> Records:
    """Return and print the record of each arm at each deadline; the arms alternate, on the same cases."""
    base = base_rate(pipeline.model)
    machine: AbstractContextManager[int] = busy_process() if busy else nullcontext(0)
    threads, processes = (Runner(pipeline.model, pipeline.extractors, worker=kind) for kind in WORKERS.values())
    found: Records = {}
    print(HEADING)
    with threads, processes, machine as ignored:
        for runner in (threads, processes):
            runner.warm_up(pipeline.cases[0].x)
        arms = {HAND: pipeline.by_hand, "threads": threads.run, "processes": processes.run}
        for deadline in deadlines:
            found[deadline] = {name: Record(deadline) for name in arms}
            for start in range(0, count, BLOCK):
                cases = [pipeline.cases[number % len(pipeline.cases)] for number in range(start, start + BLOCK)]
                for name, arm in arms.items():
                    measure(arm, cases, found[deadline][name], base, {ignored})
            for name, record in found[deadline].items():
                print(record.line(name), flush=True)
    return found


def requirements(found: Records, what: str, *, only_late: bool = False) -> list[Row]:
    """Return the worst of all deadlines for each requirement and kind of worker."""
    rows = []
    for deadline, records in found.items():
        if records[HAND].late_share > LATE_SHARE:
            print(f"{what}, {deadline:g} ms: the loop by hand is late too; measure on a machine that nobody else uses")
    for kind in WORKERS:
        each = []
        for deadline, records in found.items():
            hand, ours, at = records[HAND], records[kind], f"{kind}, at {deadline:g} ms"
            # Where the machine does not allow it, ours may be late a little more often.
            limit = LATE_SHARE + (hand.late_share if hand.late_share > LATE_SHARE else 0.0)
            gap, ratio = hand.mean_groups - ours.mean_groups, ours.processor_s / hand.processor_s
            late = Row(f"{what}: share of late answers, {at}", ours.late_share, limit)
            fewer = Row(f"{what}: groups fewer than by hand, {at}", gap, FEWER_GROUPS)
            each.append((late, fewer, Row(f"{what}: processor time / by hand, {at}", ratio, MORE_PROCESSOR)))
        kinds = list(zip(*each, strict=True))[: 1 if only_late else 3]
        rows += [max(same, key=lambda row: row.ratio - (row.limit or 0)) for same in kinds]
    return rows


def print_alternatives(pipeline: Pipeline, found: Records) -> None:
    """Print the quality at each deadline next to that of programs that need all groups.

    "Defaults" computes as the loop by hand and replaces the other groups by their means. The others compute all groups
    of one frame after the other, and drop frames that arrive meanwhile; without an answer to this frame, one answers as
    to the last frame, the other with the base rate.
    """
    base = base_rate(pipeline.model)
    complete = [pipeline.predicted(case, list(case.values)) for case in pipeline.cases]
    names = (*WORKERS, "defaults", "last frame", "base rate")
    print("\nR2 at the deadline", f"{'deadline':>8}" + "".join(f"{name:>12}" for name in names), sep="\n")
    for deadline, records in found.items():
        hand = records[HAND]
        defaults = [pipeline.predicted(case, groups) for case, groups in zip(hand.cases, hand.groups, strict=True)]
        ends: dict[int, float] = {}
        last, own = [], []
        for number, case in enumerate(pipeline.cases):
            arrival = number * PERIOD_MS
            if all(end <= arrival for end in ends.values()):
                ends[number] = arrival + case.took_ms
            ready = [computed for computed, end in ends.items() if end <= arrival + deadline]
            last.append(complete[ready[-1]] if ready else base)
            own.append(complete[number] if number in ready else base)
        qualities = [r2(records[kind].cases, records[kind].predictions) for kind in WORKERS]
        qualities += [r2(hand.cases, defaults), r2(pipeline.cases, last), r2(pipeline.cases, own)]
        print(f"{deadline:8g}" + "".join(f"{quality:12.3f}" for quality in qualities), flush=True)


def constant(x: object) -> list[float]:
    """Return a constant: a stub of an extractor."""
    return [0.5]


def seconds(call: Callable[[], object], count: int) -> list[float]:
    """Return the duration of each call."""
    durations = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        durations.append(time.perf_counter() - begin)
    return durations


def overheads(model: Model, x: Frames, rounds: int) -> list[Row]:
    """Return what `Runner` adds to calling stubs by hand, and the time of a frame's way to a process and back."""
    stubs = dict.fromkeys(model.computed[-1], constant)

    def by_hand() -> None:
        prediction = Prediction(model)
        for group, extractor in stubs.items():
            prediction.add(group, extractor(x))
        prediction.answer()

    with Runner(model, stubs) as threads, Runner(model, stubs, worker="process") as processes:
        for runner in (threads, processes):
            runner.warm_up(x)
        added, trips = [], []
        for _ in range(rounds):
            ours, hand = (seconds(call, 200) for call in (lambda: threads.run(x, 1000.0), by_hand))
            added.append(statistics.mean(ours) - statistics.mean(hand))
            trips += seconds(lambda: processes.run(x, 1000.0), 20)
    return [
        Row("stubs: overhead of a frame, us", statistics.median(added) * 1e6, OVERHEAD_US),
        Row("stubs: 1.84 MB to a process and an answer, ms", statistics.median(trips) * 1e3, ROUND_TRIP_MS),
    ]


def soak(model: Model, kind: str, frames: Sequence[Frames], count: int) -> list[Row]:
    """Return how memory grows and what a runner leaves behind; the workers of more frames, a tenth, are killed."""
    stubs = dict.fromkeys(model.computed[-1], constant)
    with Runner(model, stubs, worker=WORKERS[kind]) as runner:  # the first starts what a Python process keeps
        runner.warm_up(frames[0])
    before, others = in_use(), children()
    memory = []
    with Runner(model, stubs, worker=WORKERS[kind]) as runner:
        runner.warm_up(frames[0])
        for number in range(count):
            runner.run(frames[number % len(frames)], 1000.0)
            memory.append(resident_mib())
        started = in_use()
        for number in range(count // 10):
            workers = sorted(children() - others)
            if number % 25 == 0 and workers:
                Timer(random.uniform(0, 0.003), _kill, [random.choice(workers)]).start()
            runner.run(frames[number % len(frames)], 50.0)
        after_kills = settled(started)
    growth = statistics.median(memory[count // 2 :]) - statistics.median(memory[: count // 2])
    left = "descriptors, segments and processes"
    return [
        Row(f"soak, {kind}: MiB more in the second half of {count:,} frames", growth, GROWTH_MIB),
        Row(f"soak, {kind}: {left} more after kills", after_kills, 0),
        Row(f"soak, {kind}: {left} left after closing", settled(before), 0),
    ]


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def main() -> None:
    """Print all comparisons; exit with 1 if a requirement is missed by more than the noise of a machine."""
    quick = script_options("Compare Runner with a loop by hand.", quick=flag("fewer frames, for a look")).quick
    begin = time.monotonic()
    pipeline = camera(*(600, 10, 6) if quick else (1000, 20, 6))
    print(f"trained in {time.monotonic() - begin:.0f} s on {len(pipeline.model.prefixes.mean):,} columns")
    for name in pipeline.model.computed[-1]:
        print(f"  {name:<12} 95 % of {pipeline.slow_ms[name]:.2f} ms")
    count = 100 if quick else 200
    rows = []
    for busy in (False, True):
        what = "one busy process" if busy else "idle"
        print(f"\ncamera, {what}: {count} frames, one every {PERIOD_MS:g} ms")
        found = compared(pipeline, (5.0, 10.0, 20.0, 33.0), count, busy=busy)
        print_alternatives(pipeline, found)
        rows += requirements(found, what)
    print(f"\nplain Python, idle: {count} inputs")
    rows += requirements(compared(plain(), (5.0, 10.0, 20.0), count), "plain Python", only_late=True)
    logging.getLogger("anytime").setLevel(logging.CRITICAL)  # workers are killed on purpose
    frames = [case.x for case in pipeline.cases[:8]]
    with tempfile.TemporaryDirectory() as folder:
        model = saved_model(Path(folder) / "stubs.safetensors", groups=6, size=1)
        rows += overheads(model, frames[0], 10 if quick else 40)
        for kind in WORKERS:
            rows += soak(model, kind, frames, 1000 if quick else 5000)
    print()
    sys.exit(0 if report(rows) else 1)


if __name__ == "__main__":
    main()
