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
from benchmarks.peers.adapters.with_ours import groups_of
from benchmarks.peers.measurements import FailedError, Spread, interleave
from benchmarks.peers.report import Cell, Finding, Part, Section, Sheet, cell

FEATURES, ROWS, LIMIT_S = 500, 5_000, 1.0

TEXT = (
    "The command is a separate process: it starts Python, reads and checks the model file with its moments, orders "
    "the groups, fits every prefix, writes it and prints the steps. The call has the model in memory and returns the "
    "new one, unsaved. Starting is the command `anytime --version`, which does no work. Processor time is "
    "shown next to elapsed time: the rest is waiting for the shared machine.",
)


def resequencing(_data: Path, quick: bool) -> Section:
    """Measure, and return the section."""
    part, rows = Part("Re-sequencing a saved model", "ours"), list[tuple[Cell, ...]]()
    for size in (10, 1):
        with tempfile.TemporaryDirectory() as place:
            _at_size(size, Path(place), 3 if quick else 11, part, rows)
    columns = ("", "seconds", "of processor time")
    part.sheets.append(Sheet(f"{FEATURES} features at other costs", columns, tuple(rows)))
    return part.section(*TEXT)


def _at_size(size: int, folder: Path, rounds: int, part: Part, rows: list[tuple[Cell, ...]]) -> None:
    """Measure a model with groups of one size."""
    rng = np.random.default_rng(size)
    X = rng.standard_normal((ROWS, FEATURES))
    y = X @ rng.standard_normal(FEATURES) + 5 * rng.standard_normal(ROWS)
    saved, out, costs = folder / "old.safetensors", folder / "new.safetensors", folder / "costs.json"
    J = FEATURES // size
    before, after = (groups_of({"sizes": np.full(J, size), "costs": rng.uniform(1, 10, J)}) for _ in range(2))
    AnytimeRegressor(before, basis="linear").fit(X, y).save(saved)
    costs.write_text(json.dumps(after.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
    model, groups = load(saved), load_groups(costs)
    start = [sys.executable, "-m", "anytime"]
    acts: dict[str, Callable[[], object]] = {
        "the command": partial(_run, [*start, "resequence", str(saved), "--costs", str(costs), "--out", str(out)]),
        "of it, starting": partial(_run, [*start, "--version"]),
        "the call": lambda: resequence(model, groups),
        "the call, and saving": lambda: resequence(model, groups).save(out),
        "loading": lambda: load(saved),
    }
    cpu_s: dict[str, list[float]] = {name: [] for name in acts}
    found = interleave({name: partial(_timed, act, cpu_s[name]) for name, act in acts.items()}, rounds)
    what = f"{J} groups of {'one' if size == 1 else size}"
    part.findings += [Finding("absent", f"{name}, {what}: {why}") for name, why in found.failed.items()]
    for name in acts:
        spread = found.spread(name)
        if spread is not None:
            work = str(Spread.of(cpu_s[name][1:]))
            rows.append((f"{name}, {what}", cell(spread), work))
            if name in ("the command", "the call"):
                text = f"{name}, {what}: {spread} s, of processor time {work} s, limit {LIMIT_S:g} s"
                part.findings.append(Finding("holds" if spread.median <= LIMIT_S else "missed", text))


def _timed(act: Callable[[], object], cpu_s: list[float]) -> float:
    """Return the seconds of a call, and append the processor time of this process and its children."""

    def spent() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in used)

    before, start = spent(), time.perf_counter()
    act()
    seconds = time.perf_counter() - start
    cpu_s.append(spent() - before)
    return seconds


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise FailedError(done.stderr.strip()[:200])
