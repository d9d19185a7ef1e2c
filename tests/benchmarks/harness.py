"""What benchmarks and drills share: options, child processes, turns of measurements, priorities, and verdicts."""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self, TypeVar

import numpy as np

T = TypeVar("T")

TESTS = Path(__file__).parents[1]
SERVER_CORE, CLIENT_CORE = 0, 1
HIDDEN = argparse.SUPPRESS

SLACK = 1.15
"""A benchmark fails above this multiple of a limit: ratios on a shared machine vary."""


class Row(NamedTuple):
    """A measured ratio; without a limit it is only shown."""

    name: str
    ratio: float
    limit: float | None = None

    @property
    def kept(self) -> bool:
        """Whether the ratio is at most the limit, but for the noise of the machine."""
        return self.limit is None or self.ratio <= SLACK * self.limit


def verdict(row: Row) -> str:
    """Return the limit, and whether it is exceeded."""
    if row.limit is None:
        return ""
    state = "" if row.ratio <= row.limit else "  over" if row.kept else "  FAILED"
    return f"{row.limit:8.2f}{state}"


def report(rows: Sequence[Row]) -> bool:
    """Print ratios with their limits; return whether all are kept."""
    print(f"{'measured':<72}{'ratio':>8}{'limit':>8}")
    for row in rows:
        print(f"{row.name:<72}{row.ratio:8.3f}{verdict(row)}", flush=True)
    return all(row.kept for row in rows)


def violations(*checks: tuple[object, str]) -> list[str]:
    """Return the broken promises: the text of each check that found something."""
    return [text for found, text in checks if found]


def conclude(broken: Sequence[str], *, ran: bool = True) -> NoReturn:
    """Print the broken promises and exit; with 1 if there are any, or if nothing `ran`."""
    otherwise = "every promise was kept" if ran else "nothing was tried: no name has the word of --only"
    print("", *(broken or [otherwise]), sep="\n")
    sys.exit(1 if broken or not ran else 0)


def flag(text: str) -> dict[str, Any]:
    """Return an option that is given or not."""
    return {"action": "store_true", "help": text}


def script_options(description: str | None, words: Sequence[str] | None = None, **known: Mapping[str, Any]) -> Any:
    """Return the options of a script, by name; `known` has what `argparse` knows of each."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, given in known.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **given)
    return parser.parse_args(words)


def environment(**more: str) -> dict[str, str]:
    """Return the variables of a child process, which can import the tests."""
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": paths} | more


class Process:
    """A module that runs in a process of its own and speaks in lines, until the end of the block.

    Parameters
    ----------
    log : file for its errors, in whose folder it runs; by default those of this process.
    """

    def __init__(
        self, module: str, *words: object, python: Path | str = sys.executable, log: Path | str = "", **variables: str
    ) -> None:
        self.module = module
        with Path(log).open("ab") if log else nullcontext() as printed:
            self.popen = subprocess.Popen(
                [python, "-m", module, *map(str, words)],
                env=environment(**variables),
                cwd=Path(log).parent if log else None,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError), self.popen:
            self.popen.kill()

    def line(self, prefix: str = "") -> str:
        """Return the next line, which begins as expected; raise RuntimeError at the end of the process."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line or not line.startswith(prefix):
            raise RuntimeError(f"{self.module} has ended: {line!r}")
        return line

    def say(self, words: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{words}\n")
        self.popen.stdin.flush()

    def ask(self, words: str) -> Any:
        """Say words, and return the JSON of the line that answers them."""
        self.say(words)
        return json.loads(self.line("{"))

    def end_input(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.close()


def answering(answer: Callable[[str], Mapping[str, Any]], lines: Iterable[str] = sys.stdin) -> None:
    """Answer each line of the input by a line of JSON: the other side of `Process.ask`."""
    for line in lines:
        print(json.dumps(answer(line)), flush=True)


def timed(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of a run."""
    gc.collect()
    start = clock()
    run()
    return clock() - start


def turns(measures: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Measure in turns, so that noise affects all alike; the first turn is a warm-up."""
    found: dict[str, list[T]] = {name: [] for name in measures}
    for _ in range(rounds + 1):
        for name, measure in measures.items():
            found[name].append(measure())
    return {name: values[1:] for name, values in found.items()}


def pairs(ours: Callable[[], float], floor: Callable[[], float], rounds: int) -> list[tuple[float, float]]:
    """Measure ours and its floor in turns; the first turn is a warm-up."""
    found = turns({"ours": ours, "floor": floor}, rounds)
    return list(zip(found["ours"], found["floor"], strict=True))


def median_ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """Return the median of the pairs' ratios: a machine that becomes slower changes both halves of a pair."""
    return statistics.median(ours / floor for ours, floor in pairs)


def percentiles(values: Sequence[float], *shares: float) -> list[float]:
    """Return percentiles, of shares from 0 to 100; NaN without values."""
    found: list[float] = np.percentile(values, shares).tolist() if len(values) else [float("nan")] * len(shares)
    return found


class Spent(NamedTuple):
    """Elapsed time and processor time of a process in seconds, its peak resident memory in MiB, and its output."""

    seconds: float
    processor_s: float
    peak_mib: float
    output: str


def spent(command: Sequence[object], **variables: str) -> Spent:
    """Run a command; exit with its output if it fails."""
    begun = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            [str(word) for word in command], stdout=out, stderr=subprocess.STDOUT, env=os.environ | variables
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        output = out.read()
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {process.returncode}:\n{output}")
    return Spent(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output)


def megabytes() -> float:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def set_priority(process: int = 0, *, real_time: bool = True) -> None:
    """Give a process, by default this one, real-time priority if permitted, or normal priority."""
    policy, level = (os.SCHED_RR, 1) if real_time else (os.SCHED_OTHER, 0)
    with suppress(PermissionError, ProcessLookupError):
        os.sched_setscheduler(process, policy, os.sched_param(level))


def pin_to_core(core: int) -> None:
    """Pin this process to one core, with real-time priority if permitted."""
    os.sched_setaffinity(0, {core})
    set_priority()


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pin this process to one core for the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Table:
    """Figures under their columns, for rows that are printed as they are measured.

    Parameters
    ----------
    columns : name and format of each column, such as `>8.2f`.

    Attributes
    ----------
    head : the line of names.
    """

    def __init__(self, *columns: tuple[str, str]) -> None:
        self._formats = [form for _, form in columns]
        self.head = "".join(format(name, re.sub(r"\+|\..*$|[a-z%]*$", "", form)) for name, form in columns)

    def row(self, *values: object) -> str:
        return "".join(map(format, values, self._formats))


def aligned(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of rows under their columns; the first column is text."""
    cells = [list(map(str, row)) for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *others in cells:
        right = (value.rjust(width) for value, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *right]).rstrip()
