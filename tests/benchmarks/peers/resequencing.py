"""The part of the report on re-sequencing: a saved model of 500 features at other costs, without data."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from anytime.estimators import AnytimeRegressor
from anytime.groups import load_groups
from anytime.loaded import load
from anytime.training.resequencing import resequence
from benchmarks.peers.environments import ours
from benchmarks.peers.measurements import FailedError, Spread, interleave
from benchmarks.peers.section import Cell, Finding, Section, Sheet, cell

__all__ = ["resequencing"]

FEATURES, ROWS = 500, 5_000
LIMIT_S = 1.0
SIZES = (10, 1)

TEXT = (
    "The command is a separate process: it starts Python, reads and checks the model file with its moments, orders "
    "the groups, fits every prefix, writes it and prints the steps. The call has the model in memory and returns the "
    "new one, unsaved. Starting is the command `anytime --version`, which does no work. Processor time is "
    "shown next to elapsed time: the rest is waiting for the shared machine.",
)


def resequencing(quick: bool) -> Section:
    """Measure, and return the section."""
    rounds = 3 if quick else 11
    findings: list[Finding] = []
    rows: list[tuple[Cell, ...]] = []
    with tempfile.TemporaryDirectory() as place:
        for size in SIZES:
            size_findings, size_rows = _at_size(size, Path(place), rounds)
            findings += size_findings
            rows += size_rows
    table = Sheet(f"{FEATURES} features at other costs", ("", "seconds", "of processor time"), tuple(rows))
    title = "Re-sequencing a saved model"
    return Section("resequence", title, "", (ours().versions_text(),), tuple(findings), TEXT, (table,))


def _at_size(size: int, folder: Path, rounds: int) -> tuple[list[Finding], list[tuple[Cell, ...]]]:
    """Measure a model with groups of one size."""
    rng = np.random.default_rng(size)
    X = rng.standard_normal((ROWS, FEATURES))
    y = X @ rng.standard_normal(FEATURES) + 5 * rng.standard_normal(ROWS)
    saved, out, costs = (folder / f"old{size}.safetensors", folder / f"new{size}.safetensors", folder / f"{size}.json")
    AnytimeRegressor(_groups(size, rng), basis="linear").fit(X, y).save(saved)
    costs.write_text(json.dumps(_groups(size, rng)), encoding="utf-8")
    model, groups = load(saved), load_groups(costs)
    start = [sys.executable, "-m", "anytime"]
    command = [*start, "resequence", str(saved), "--costs", str(costs), "--out", str(out)]
    measures: dict[str, Callable[[], float]] = {
        "the command": partial(_command, command),
        "of it, starting": partial(_command, [*start, "--version"]),
        "the call": lambda: _timed(lambda: resequence(model, groups)),
        "the call, and saving": lambda: _timed(lambda: resequence(model, groups).save(out)),
        "loading": lambda: _timed(lambda: load(saved)),
    }
    cpu_s: dict[str, list[float]] = {name: [] for name in measures}
    measured = interleave({name: partial(_counted, measure, cpu_s[name]) for name, measure in measures.items()}, rounds)
    what = f"{FEATURES // size} groups of {'one' if size == 1 else size}"
    findings = [Finding("absent", f"{name}, {what}: {why}") for name, why in measured.failed.items()]
    for name in ("the command", "the call"):
        spread = measured.spread(name)
        if spread is not None:
            work = f"of processor time {Spread.of(cpu_s[name][1:])} s"
            verdict = f"{name}, {what}: {spread} s, {work}, limit {LIMIT_S:g} s"
            findings.append(Finding("holds" if spread.median <= LIMIT_S else "missed", verdict))
    rows: list[tuple[Cell, ...]] = [
        (f"{name}, {what}", cell(measured.spread(name)), str(Spread.of(cpu_s[name][1:])))
        for name in measures
        if measured.values[name]
    ]
    return findings, rows


def _counted(measure: Callable[[], float], cpu_s: list[float]) -> float:
    """Run a measurement, and append the processor time of this process and its children to `cpu_s`."""

    def spent() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in used)

    before = spent()
    seconds = measure()
    cpu_s.append(spent() - before)
    return seconds


def _groups(size: int, rng: np.random.Generator) -> dict[str, object]:
    groups = [
        {"name": f"g{j}", "features": [f"x{j + i}" for i in range(size)], "cost": round(float(rng.uniform(1, 10)), 3)}
        for j in range(0, FEATURES, size)
    ]
    return {"cost_unit": "ms", "groups": groups}


def _command(command: list[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise FailedError(done.stderr.strip()[:200])
    return seconds


def _timed(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start
