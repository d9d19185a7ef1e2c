"""Training compared with solvers of the same normal equations, and of the same rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import Absent, Environment, ours, prepared
from benchmarks.peers.measurements import FailedError, Measurements, Spread, interleave
from benchmarks.peers.problems import SyntheticProblem
from benchmarks.peers.section import Finding, Sheet, cell, mebibytes
from benchmarks.peers.workers import Process

__all__ = ["FROM_GRAM", "FROM_ROWS", "OURS", "Peer", "Round", "measure", "sheet"]

GRAM = ("S", "q", "sizes", "costs", "rows")
ROWS = ("X", "y", "sizes", "costs", "rows")
OURS = "ours: exact FR of all groups, all coefficients"
LONG_S, FEW = 4.0, 3
"""Measurements that take longer than LONG_S have this many rounds."""


@dataclass(frozen=True)
class Peer:
    """A way to train that is compared with ours.

    Attributes
    ----------
    label : what it computes.
    environment : "ours", or a file of `requirements`.
    module : a file of `adapters`.  call : in it.  arrays : its input.  options : of the call.
    """

    label: str
    environment: str
    module: str
    call: str
    arrays: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


FROM_GRAM = (
    Peer(OURS, "ours", "with_ours", "gram", GRAM),
    Peer("adelie gaussian_cov, 100 lambdas", "adelie", "with_adelie", "gram", GRAM, {"early_exit": False}),
    Peer("adelie gaussian_cov, default early exit", "adelie", "with_adelie", "gram", GRAM, {"early_exit": True}),
    Peer("scikit-learn orthogonal_mp_gram, all columns", "ours", "with_sklearn", "gram", GRAM, {"path": False}),
    Peer("the same with the coefficients of every step", "ours", "with_sklearn", "gram", GRAM, {"path": True}),
)
"""The Gram is the input."""

FROM_ROWS = (
    Peer(OURS, "ours", "with_ours", "rows", ROWS),
    Peer("X.T @ X by numpy: the floor", "ours", "with_ours", "product", ROWS),
    Peer("adelie grpnet, 100 lambdas", "adelie", "with_adelie", "rows", ROWS, {"early_exit": False}),
    Peer("adelie grpnet, default early exit", "adelie", "with_adelie", "rows", ROWS, {"early_exit": True}),
    Peer("ours: Group Lasso, one lambda", "ours", "with_ours", "group lasso", ROWS, {"tolerance": 1e-6}),
    Peer("celer GroupLasso, one lambda", "celer", "with_celer", "rows", ROWS, {"tolerance": 1e-6}),
    Peer("skglm GroupLasso, one lambda", "skglm", "with_skglm", "rows", ROWS, {"tolerance": 1e-5}),
    Peer("SPAMS fistaTree, one lambda", "spams", "with_spams", "rows", ROWS, {"tolerance": 1e-6}),
    Peer("abess, the best 10 groups", "abess", "with_abess", "rows", ROWS, {"support": 10, "path": False}),
    Peer("abess, the best 1 to 12 groups", "abess", "with_abess", "rows", ROWS, {"support": 12, "path": True}),
)
"""The rows are the input: ours and adelie's compute a whole path, the others what their labels say."""


@dataclass(frozen=True)
class Round:
    """Measurements of some peers on one problem.

    Attributes
    ----------
    seconds : of each peer.
    memory : peak during the work, minus the memory of its process with the data loaded, in MiB.
    results : arrays returned, by the peer's label.
    numbers : numbers returned.
    """

    problem: str
    threads: int
    seconds: Measurements
    memory: dict[str, float]
    results: dict[str, dict[str, Any]]
    numbers: dict[str, dict[str, Any]]

    def ratio(self, theirs: str, mine: str = OURS) -> Spread | None:
        """Return our time as a share of theirs."""
        return self.seconds.ratio(mine, theirs)


def measure(
    peers: tuple[Peer, ...],
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
    memory: dict[str, float] = {}
    results: dict[str, dict[str, Any]] = {}
    numbers: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        measures: dict[str, Callable[[], float]] = {}
        for number, peer in enumerate(peers):
            environment = ours() if peer.environment == "ours" else prepared(peer.environment)
            if isinstance(environment, Absent):
                failed[peer.label] = environment.why
                continue
            options = {"threads": threads, **(extra or {}), **peer.options}
            try:
                process = stack.enter_context(_start(environment, peer, problem, threads, log / f"{number}.log"))
                numbers[peer.label], results[peer.label] = process.arrays(peer.call, options)
            except FailedError as error:
                failed[peer.label] = str(error)
                continue
            memory[peer.label] = numbers[peer.label]["peak_mib"] - numbers[peer.label]["before_mib"]
            measures[peer.label] = partial(_seconds, process, peer.call, options)
        # Each has run once already, for its results.
        seconds_by_label = interleave(measures, rounds, long=LONG_S, few=few, warm_up=False)
    return Round(
        problem.name,
        threads,
        Measurements(seconds_by_label.values, failed | seconds_by_label.failed),
        memory,
        results,
        numbers,
    )


def _start(environment: Environment, peer: Peer, problem: SyntheticProblem, threads: int, log: Path) -> Process:
    process = Process(environment, peer.module, threads, log)
    try:
        process.load(problem.folder, peer.arrays)
    except FailedError:
        process.close()
        raise
    return process


def _seconds(process: Process, call: str, options: Mapping[str, Any]) -> float:
    return float(process.run(call, options)["seconds"])


def sheet(found: Round, caption: str) -> tuple[Sheet, list[Finding]]:
    """Return the table of a round, and failed measurements."""
    rows = []
    for label in (*found.seconds.values, *(set(found.seconds.failed) - set(found.seconds.values))):
        seconds = found.seconds.spread(label)
        ratio = None if label == OURS else found.ratio(label)
        memory = mebibytes(found.memory[label]) if label in found.memory else None
        rows.append((label, cell(seconds), cell(ratio), memory))
    threads = f"{found.threads} thread{'s' if found.threads > 1 else ''}"
    table = Sheet(
        f"{caption}; {found.problem}, {threads}",
        ("", "seconds", "ours / theirs", "memory beyond the data"),
        tuple(rows),
    )
    where = f"{found.problem}, {threads}"
    return table, [Finding("absent", f"{label} ({where}): {why}") for label, why in found.seconds.failed.items()]
