"""Every way to train that is compared with ours, as one table, and the processes in which they run, one call at a time.

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
from benchmarks.peers.environments import Absent, Environment, prepared
from benchmarks.peers.measurements import FailedError, Measurements, interleave
from benchmarks.peers.problems import SyntheticProblem, write_arrays
from benchmarks.peers.report import Finding, Sheet, cell, mebibytes

GRAM = ("S", "q", "sizes", "costs", "rows")
ROWS = ("X", "y", "sizes", "costs", "rows")
OURS = "ours: exact FR of all groups, all coefficients"
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
    Peer("scikit-learn orthogonal_mp_gram, all columns", "ours", "solvers.pursuit", GRAM, {"path": False}),
    Peer("the same with the coefficients of every step", "ours", "solvers.pursuit", GRAM, {"path": True}),
)
"""The Gram is the input."""

FROM_ROWS = (
    Peer(OURS, "ours", "with_ours.rows", ROWS),
    Peer("X.T @ X by numpy: the floor", "ours", "with_ours.product", ROWS),
    Peer("adelie grpnet, 100 lambdas", "adelie", "solvers.adelie_rows", ROWS, {"early_exit": False}),
    Peer("adelie grpnet, default early exit", "adelie", "solvers.adelie_rows", ROWS, {"early_exit": True}),
    Peer("ours: Group Lasso, one lambda", "ours", "with_ours.group_lasso", ROWS, {"tolerance": 1e-6}),
    Peer("celer GroupLasso, one lambda", "celer", "solvers.celer", ROWS, {"tolerance": 1e-6}),
    Peer("skglm GroupLasso, one lambda", "skglm", "solvers.skglm", ROWS, {"tolerance": 1e-5}),
    Peer("SPAMS fistaTree, one lambda", "spams", "solvers.spams", ROWS, {"tolerance": 1e-6}),
    Peer("abess, the best 10 groups", "abess", "solvers.abess", ROWS, {"support": 10, "path": False}),
    Peer("abess, the best 1 to 12 groups", "abess", "solvers.abess", ROWS, {"support": 12, "path": True}),
)
"""The rows are the input: ours and adelie's compute a whole path, the others what their labels say."""

SELECTION = (
    Peer("ours from rows, cost-blind", "ours", "with_ours.rows", ROWS, {"cost_blind": True}),
    Peer("mlxtend SequentialFeatureSelector with feature_groups", "mlxtend", "solvers.mlxtend", ROWS),
)
"""The same selection of groups without costs."""


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
def loaded(
    environment: Environment | Absent, module: str, arrays: Mapping[str, NDArray[Any]], threads: int = 1
) -> Iterator[Worker]:
    """Run a process that has read some arrays; raise FailedError without its environment."""
    if isinstance(environment, Absent):
        raise FailedError(environment.why)
    with tempfile.TemporaryDirectory() as folder:
        write_arrays(Path(folder), arrays)
        with Worker(environment, module, threads, Path(folder) / "log") as process:
            process.load(Path(folder), tuple(arrays))
            yield process


@dataclass(frozen=True)
class Round:
    """Measurements of some peers on one problem, by the peer's label.

    Attributes
    ----------
    problem : what was measured, and on how many threads.
    results, numbers : arrays and numbers returned.
    """

    problem: str
    seconds: Measurements
    results: dict[str, dict[str, Any]]
    numbers: dict[str, dict[str, Any]]

    def sheet(self, caption: str, mine: str = OURS) -> Sheet:
        """Return the table; memory is the peak during the work, minus that of the process with the data loaded."""
        rows = []
        for label in dict.fromkeys([*self.seconds.values, *self.seconds.failed]):
            ratio, numbers = None if label == mine else self.seconds.ratio(mine, label), self.numbers.get(label)
            memory = mebibytes(numbers["peak_mib"] - numbers["before_mib"]) if numbers else None
            rows.append((label, cell(self.seconds.spread(label)), cell(ratio), memory))
        columns = ("", "seconds", "ours / theirs", "memory beyond the data")
        return Sheet(f"{caption}; {self.problem}", columns, tuple(rows))

    @property
    def absent(self) -> list[Finding]:
        """Failed measurements."""
        return [Finding("absent", f"{label} ({self.problem}): {why}") for label, why in self.seconds.failed.items()]


def measure(
    peers: Sequence[Peer],
    problem: SyntheticProblem,
    threads: int,
    rounds: int,
    extra: Mapping[str, Any] | None = None,
    few: int = FEW,
) -> Round:
    """Measure peers, interleaved, each in its own process with the data loaded.

    Parameters
    ----------
    extra : options of every peer.
    few : rounds of slow measurements.
    """
    results: dict[str, dict[str, Any]] = {}
    numbers: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    measures: dict[str, Callable[[], float]] = {}

    def seconds(process: Worker, call: str, options: Mapping[str, Any]) -> float:
        return float(process.run(call, options)["seconds"])

    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, peer in enumerate(peers):
            environment, (module, call) = prepared(peer.environment), peer.call.split(".")
            options = {"threads": threads, **(extra or {}), **peer.options}
            if isinstance(environment, Absent):
                failed[peer.label] = environment.why
                continue
            try:
                process = stack.enter_context(Worker(environment, module, threads, log / f"{number}.log"))
                process.load(problem.folder, peer.arrays)
                numbers[peer.label], results[peer.label] = process.arrays(call, options)
            except FailedError as error:
                failed[peer.label] = str(error)
                continue
            measures[peer.label] = partial(seconds, process, call, options)
        # Each has run once already, for its results.
        found = interleave(measures, rounds, long=LONG_S, few=few, warm_up=False)
    where = f"{problem.name}, {threads} thread{'s' if threads > 1 else ''}"
    return Round(where, Measurements(found.values, failed | found.failed), results, numbers)
