"""Ways to train that are compared with ours, and the processes in which they run, one call at a time.

Arrays are passed in files, everything else as lines of JSON.
"""

from __future__ import annotations

import json
import os
import select
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Process
from benchmarks.peers.environments import Environment, FailedError, installed
from benchmarks.peers.report import Finding, Measurements, Sheet, cell, interleave, mebibytes

GRAM = ("S", "q", "sizes", "costs", "rows")
ROWS = ("X", "y", "sizes", "costs", "rows")
OURS = "ours: exact FR of all groups, all coefficients"
FLOOR = "X.T @ X by numpy: the floor"
LONG_S, FEW = 4.0, 3
"""Measurements that take longer than LONG_S have this many rounds."""

TIMEOUT_S = 120.0
"""Timeout of a peer's answer."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "LOKY_MAX_CPU_COUNT")


@dataclass(frozen=True)
class Peer:
    """A way to train.

    Attributes
    ----------
    label : what it computes.
    environment : "ours", or a file of `requirements`.
    call : a function of `adapters`, as "module.function".  arrays : its input.  options : of the call.
    """

    label: str
    environment: str
    call: str
    arrays: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


FROM_GRAM = (
    Peer(OURS, "ours", "with_ours.gram", GRAM),
    Peer("adelie gaussian_cov, 100 lambdas", "adelie", "solvers.adelie_gram", GRAM, {"early_exit": False}),
    Peer("adelie gaussian_cov, default early exit", "adelie", "solvers.adelie_gram", GRAM, {"early_exit": True}),
    Peer("scikit-learn orthogonal_mp_gram, all columns", "ours", "solvers.pursuit", GRAM),
)
"""The Gram is the input."""

FROM_ROWS = (
    Peer(OURS, "ours", "with_ours.rows", ROWS),
    Peer(FLOOR, "ours", "with_ours.product", ROWS),
    Peer("adelie grpnet, 100 lambdas", "adelie", "solvers.adelie_rows", ROWS, {"early_exit": False}),
    Peer("adelie grpnet, default early exit", "adelie", "solvers.adelie_rows", ROWS, {"early_exit": True}),
)
"""The rows are the input."""


def make_problem(n: int, D: int, size: int, folder: Path, seed: int = 0) -> str:
    """Write a regression for the processes of the peers, and return its size in words.

    Columns X (n, D) and target y (n,) are centred with deviation 1, and neighbouring columns are correlated; S and q
    are X'X/n and X'y/n. Groups are consecutive columns, with `sizes` and `costs` of 1 to 10.
    """
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D))
    for start in range(0, n, 1024):
        X[start : start + 1024, 1:] += 0.5 * X[start : start + 1024, :-1]
    J = -(-D // size)
    strength = np.repeat(rng.uniform(0, 1, J) ** 4, size)[:D]  # few groups matter much, many a little
    y = X @ (strength * rng.standard_normal(D)) + 5 * rng.standard_normal(n)
    X -= X.mean(axis=0)
    X /= X.std(axis=0)
    y = (y - y.mean()) / y.std()
    sizes = np.diff([*range(0, D, size), D])
    given = {"X": X, "y": y, "S": X.T @ X / n, "q": X.T @ y / n, "sizes": sizes, "costs": rng.uniform(1, 10, J)}
    write_arrays(folder, given | {"rows": np.array(n)})
    return f"n={n:,} D={D:,}, {J:,} groups of {'one' if J == D else D // J}"


def write_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write each array to a file of its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables of a number of threads."""
    return dict.fromkeys(THREADS, str(threads))


class Worker(Process):
    """One module of `adapters` in a process limited to some threads and as many cores, with its output in `log`."""

    def __init__(self, environment: Environment, module: str, threads: int, log: Path) -> None:
        worker, variables = "benchmarks.peers.adapters.worker", thread_variables(threads)
        super().__init__(worker, module, python=environment.python, log=log, **variables)
        self.log = log
        os.sched_setaffinity(self.popen.pid, set(range(min(threads, os.cpu_count() or 1))))

    def load(self, folder: Path, arrays: Sequence[str]) -> None:
        """Read some arrays of a folder."""
        self._request({"folder": str(folder), "arrays": list(arrays)}, TIMEOUT_S)

    def run(
        self, call: str, options: Mapping[str, Any] | None = None, timeout_s: float = TIMEOUT_S, out: str | None = None
    ) -> dict[str, Any]:
        """Run the timed call once; return `seconds`, `peak_mib` and the numbers of the call.

        Raises
        ------
        FailedError
            The peer raised, crashed, or timed out.
        """
        return self._request({"call": call, "options": dict(options or {}), "out": out}, timeout_s)

    def arrays(
        self, call: str, options: Mapping[str, Any] | None = None, timeout_s: float = TIMEOUT_S
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """As `run`, with the arrays of the result."""
        with tempfile.TemporaryDirectory() as folder:
            reply = self.run(call, options, timeout_s, f"{folder}/out.npz")
            with np.load(f"{folder}/out.npz", allow_pickle=False) as file:
                return reply, dict(file)

    def _request(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self.popen.stdout is not None
        try:
            self.say(json.dumps(request))
            if not select.select([self.popen.stdout], (), (), timeout_s)[0]:
                self.popen.kill()
                raise FailedError(f"no answer within {timeout_s:g} s")
            reply: dict[str, Any] = json.loads(self.line("{"))
        except (OSError, RuntimeError):
            code, printed = self.popen.wait(), self.log.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((text.strip() for text in reversed(printed) if text.strip()), "nothing was printed")
            raise FailedError(f"its process ended with {code}: {last[:200]}") from None
        if "error" in reply:
            raise FailedError(reply["error"])
        return reply


@contextmanager
def loaded(peer: str, module: str, arrays: Mapping[str, NDArray[Any]], threads: int = 1) -> Iterator[Worker]:
    """Run a process of a peer that has read some arrays; raise FailedError without its environment."""
    environment = installed(peer)
    with tempfile.TemporaryDirectory() as folder, Worker(environment, module, threads, Path(folder) / "log") as process:
        write_arrays(Path(folder), arrays)
        process.load(Path(folder), tuple(arrays))
        yield process


@dataclass(frozen=True)
class Round:
    """Measurements of some peers on one problem, by the peer's label.

    Attributes
    ----------
    problem : what was measured, and on how many threads.
    numbers : what their calls returned.
    """

    problem: str
    seconds: Measurements
    numbers: dict[str, dict[str, Any]]

    def sheet(self, caption: str) -> Sheet:
        """Return the table; memory is the peak during the work, minus that of the process with the data loaded."""
        rows = []
        for label in dict.fromkeys([*self.seconds.values, *self.seconds.failed]):
            ratio, numbers = None if label == OURS else self.seconds.ratio(OURS, label), self.numbers.get(label)
            memory = mebibytes(numbers["peak_mib"] - numbers["before_mib"]) if numbers else None
            rows.append((label, cell(self.seconds.spread(label)), cell(ratio), memory))
        columns = ("", "seconds", "ours / theirs", "memory beyond the data")
        return Sheet(f"{caption}; {self.problem}", columns, tuple(rows))

    @property
    def absent(self) -> list[Finding]:
        """Failed measurements."""
        return [Finding("absent", f"{label} ({self.problem}): {why}") for label, why in self.seconds.failed.items()]


def measure(peers: Sequence[Peer], what: str, folder: Path, threads: int, rounds: int, few: int = FEW) -> Round:
    """Measure peers on the problem of a folder, interleaved, each in its own process with the data loaded.

    Parameters
    ----------
    what : the problem in words.
    few : rounds of slow measurements.
    """
    numbers: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    measures: dict[str, Callable[[], float]] = {}

    def seconds(process: Worker, call: str, options: Mapping[str, Any]) -> float:
        return float(process.run(call, options)["seconds"])

    with ExitStack() as stack:
        for number, peer in enumerate(peers):
            (module, call), options = peer.call.split("."), {"threads": threads, **peer.options}
            try:
                worker = Worker(installed(peer.environment), module, threads, folder / f"{number}.log")
                process = stack.enter_context(worker)
                process.load(folder, peer.arrays)
                numbers[peer.label] = process.run(call, options)
            except FailedError as error:
                failed[peer.label] = str(error)
                continue
            measures[peer.label] = partial(seconds, process, call, options)
        # Each has run once already, for its numbers.
        found = interleave(measures, rounds, long=LONG_S, few=few, warm_up=False)
    where = f"{what}, {threads} thread{'s' if threads > 1 else ''}"
    return Round(where, Measurements(found.values, failed | found.failed), numbers)
