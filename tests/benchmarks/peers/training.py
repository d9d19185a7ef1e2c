"""Training beside solvers of the same normal equations, and of the same rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import Absent, Environment, ours, prepared
from benchmarks.peers.problems import Made
from benchmarks.peers.section import Finding, Sheet, cell, mebibytes
from benchmarks.peers.turns import FailedError, Spread, Taken, in_turns
from benchmarks.peers.workers import Process

__all__ = ["FROM_GRAM", "FROM_ROWS", "OURS", "Rival", "Round", "measured", "sheet"]

GRAM = ("S", "q", "sizes", "costs", "rows")
ROWS = ("X", "y", "sizes", "costs", "rows")
OURS = "ours: exact FR of all groups, all coefficients"
LONG_S, FEW = 4.0, 3
"""What takes longer is measured in so many rounds only."""


@dataclass(frozen=True)
class Rival:
    """A way to train that is measured beside ours.

    Attributes
    ----------
    label : what it computes, in words.
    environment : "ours", or a file of `requirements`.
    module : a file of `rivals`.  call : in it.  arrays : what it is given.  options : of the call.
    """

    label: str
    environment: str
    module: str
    call: str
    arrays: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


FROM_GRAM = (
    Rival(OURS, "ours", "with_ours", "gram", GRAM),
    Rival("adelie gaussian_cov, 100 lambdas", "adelie", "with_adelie", "gram", GRAM, {"early_exit": False}),
    Rival("adelie gaussian_cov, default early exit", "adelie", "with_adelie", "gram", GRAM, {"early_exit": True}),
    Rival("scikit-learn orthogonal_mp_gram, all columns", "ours", "with_sklearn", "gram", GRAM, {"path": False}),
    Rival("the same with the coefficients of every step", "ours", "with_sklearn", "gram", GRAM, {"path": True}),
)
"""The Gram given."""

FROM_ROWS = (
    Rival(OURS, "ours", "with_ours", "rows", ROWS),
    Rival("X.T @ X by numpy: the floor", "ours", "with_ours", "product", ROWS),
    Rival("adelie grpnet, 100 lambdas", "adelie", "with_adelie", "rows", ROWS, {"early_exit": False}),
    Rival("adelie grpnet, default early exit", "adelie", "with_adelie", "rows", ROWS, {"early_exit": True}),
    Rival("ours: Group Lasso, one lambda", "ours", "with_ours", "group lasso", ROWS, {"tolerance": 1e-6}),
    Rival("celer GroupLasso, one lambda", "celer", "with_celer", "rows", ROWS, {"tolerance": 1e-6}),
    Rival("skglm GroupLasso, one lambda", "skglm", "with_skglm", "rows", ROWS, {"tolerance": 1e-5}),
    Rival("SPAMS fistaTree, one lambda", "spams", "with_spams", "rows", ROWS, {"tolerance": 1e-6}),
    Rival("abess, the best 10 groups", "abess", "with_abess", "rows", ROWS, {"support": 10, "path": False}),
    Rival("abess, the best 1 to 12 groups", "abess", "with_abess", "rows", ROWS, {"support": 12, "path": True}),
)
"""From rows: ours and adelie's make a whole path, the others what their labels say."""


@dataclass(frozen=True)
class Round:
    """What was measured of some rivals on one problem.

    Attributes
    ----------
    seconds : of each rival.
    memory : peak while it worked, less what its process held with the data loaded, in MiB.
    results : arrays that each told, by the rival's label.
    told : numbers that each told.
    """

    problem: str
    threads: int
    seconds: Taken
    memory: dict[str, float]
    results: dict[str, dict[str, Any]]
    told: dict[str, dict[str, Any]]

    def ratio(self, theirs: str, mine: str = OURS) -> Spread | None:
        """Our time as a share of theirs."""
        return self.seconds.ratio(mine, theirs)


def measured(
    rivals: tuple[Rival, ...],
    made: Made,
    threads: int,
    rounds: int,
    more: Mapping[str, Any] | None = None,
    few: int = FEW,
) -> Round:
    """Measure rivals in turns, each in a process of its own that holds the data.

    Parameters
    ----------
    more : options of every rival.
    few : rounds of what takes long.
    """
    memory: dict[str, float] = {}
    results: dict[str, dict[str, Any]] = {}
    told: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        measures: dict[str, Callable[[], float]] = {}
        for number, rival in enumerate(rivals):
            environment = ours() if rival.environment == "ours" else prepared(rival.environment)
            if isinstance(environment, Absent):
                failed[rival.label] = environment.why
                continue
            options = {"threads": threads, **(more or {}), **rival.options}
            try:
                process = stack.enter_context(_begun(environment, rival, made, threads, log / f"{number}.log"))
                told[rival.label], results[rival.label] = process.arrays(rival.call, options)
            except FailedError as error:
                failed[rival.label] = str(error)
                continue
            memory[rival.label] = told[rival.label]["peak_mib"] - told[rival.label]["before_mib"]
            measures[rival.label] = partial(_seconds, process, rival.call, options)
        # Each has run once already, to give its results.
        taken = in_turns(measures, rounds, long=LONG_S, few=few, warm_up=False)
    return Round(made.name, threads, Taken(taken.values, failed | taken.failed), memory, results, told)


def _begun(environment: Environment, rival: Rival, made: Made, threads: int, log: Path) -> Process:
    process = Process(environment, rival.module, threads, log)
    try:
        process.load(made.folder, rival.arrays)
    except FailedError:
        process.close()
        raise
    return process


def _seconds(process: Process, call: str, options: Mapping[str, Any]) -> float:
    return float(process.run(call, options)["seconds"])


def sheet(found: Round, caption: str) -> tuple[Sheet, list[Finding]]:
    """A table of a round, and what could not be measured."""
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
