"""The part of the report on size: training time by rows, columns and groups, compared with two floors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anytime.types import Float
from anytime_reproduction.report import curve, panels
from benchmarks.peers.environments import ours
from benchmarks.peers.measurements import FailedError, Spread, digits, ratios
from benchmarks.peers.section import Cell, Finding, Picture, Section, Sheet, Verdict, cell, mebibytes, picture
from benchmarks.peers.workers import THREADS

__all__ = ["Size", "exponents", "grid", "sizing"]

ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
COLUMNS = (50, 100, 200, 500, 1000, 2000)
MAX_NUMBERS = 10**9
"""Numbers in the largest table: 8 GB."""

GROUP = 10
GROUPS = (50, 100, 200, 400, 1000, 2000)
"""Numbers of groups of the same 2,000 columns."""

FLOORS = ("reading", "X.T @ X")
CORES = 2


@dataclass(frozen=True)
class Size:
    """Measurements at one size."""

    n: int
    D: int
    groups: int
    seconds: dict[str, list[float]]
    data_mib: float
    beyond_mib: float

    def median(self, name: str) -> float:
        """Seconds."""
        return Spread.of(self.seconds[name]).median


def grid(quick: bool) -> list[tuple[int, int]]:
    """Return rows and columns of the tables, the smallest first."""
    limit = MAX_NUMBERS // 100 if quick else MAX_NUMBERS
    return sorted(((n, D) for n in ROWS for D in COLUMNS if n * D <= limit), key=lambda size: size[0] * size[1] ** 2)


def exponents(x: Sequence[Sequence[float]], seconds: Sequence[float]) -> Float:
    """Return b of seconds = a prod_j x_j^b_j, (len of a row of x,), by least squares of the logarithms."""
    logs = np.log(np.asarray(x, dtype=np.float64))
    design = np.column_stack([np.ones(len(logs)), logs])
    found: Float = np.linalg.lstsq(design, np.log(np.asarray(seconds)), rcond=None)[0][1:]
    return found


def sizing(quick: bool) -> Section:
    """Measure, and return the section."""
    sizes: list[Size] = []
    findings: list[Finding] = []
    for n, D in grid(quick):
        work = n * D * D
        try:
            sizes.append(_at(n, D, GROUP, 9 if work < 10**10 else 3 if work < 10**11 else 1 if work < 10**12 else 0))
        except FailedError as error:
            findings.append(Finding("absent", f"n={n:,} D={D:,}: {error}"))
    columns_used = 500 if quick else 2000
    by_groups = [_at(10_000, columns_used, columns_used // J, 5) for J in GROUPS if columns_used >= J]
    findings += [*_rows_and_columns(sizes), *_groups(by_groups, columns_used)]
    rows: list[tuple[Cell, ...]] = []
    for each in sizes:
        relative = [cell(ratios(each.seconds["training"], each.seconds[floor])) for floor in FLOORS]
        medians = [digits(each.median(name)) for name in ("reading", "X.T @ X", "training", "path")]
        rows.append(
            (f"{each.n:,} x {each.D:,}", *medians, *relative, mebibytes(each.data_mib), mebibytes(each.beyond_mib))
        )
    columns = (
        "rows x columns",
        "reading s",
        "X.T @ X s",
        "training s",
        "of it, path s",
        "training / reading",
        "training / X.T @ X",
        "data",
        "memory beyond",
    )
    table = Sheet(
        f"Training whole (moments, exact FR, all coefficients) in groups of {GROUP}, {CORES} threads",
        columns,
        tuple(rows),
    )
    by_groups_sheet = Sheet(
        f"The path by the number of groups, of the same {columns_used:,} columns, the Gram given",
        ("groups", "seconds", "of X.T @ X at 10,000 rows"),
        tuple(
            (
                each.groups,
                cell(Spread.of(each.seconds["path"])),
                cell(ratios(each.seconds["path"], each.seconds["X.T @ X"])),
            )
            for each in by_groups
        ),
    )
    text = (
        "Everything at one size is interleaved in one process. Reading is a sum over all numbers by two threads; "
        "X.T @ X is numpy's, in float64, on two threads. Ours also centres and handles missing values in that pass.",
        "Exact forward regression scores every remaining group at every step, so the number of scores is quadratic in "
        "the number of groups, which is unavoidable: each score is a few operations in one stacked product. So is the "
        "number of coefficients of all prefixes. Nothing else may be quadratic.",
    )
    pictures = (_by_size(sizes), _by_groups(by_groups, columns_used))
    return Section(
        "size",
        "Training by size",
        "",
        (ours().versions_text(),),
        tuple(findings),
        text,
        (table, by_groups_sheet),
        pictures,
    )


def _at(n: int, D: int, size: int, rounds: int) -> Size:
    variables = os.environ | {name: str(CORES) for name in THREADS}
    variables["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    command = [sys.executable, "-m", "benchmarks.peers.sizing_child", *map(str, (n, D, size, rounds, CORES))]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=variables, timeout=900)
    except subprocess.CalledProcessError as error:
        raise FailedError(f"ended with {error.returncode}: {(error.stderr.splitlines() or [''])[-1]}") from error
    except subprocess.TimeoutExpired as error:
        raise FailedError("took more than a quarter of an hour") from error
    found = json.loads(done.stdout)
    print(
        f"  {n:>10,} x {D:>5,}: "
        + ", ".join(f"{name} {digits(Spread.of(s).median)} s" for name, s in found["seconds"].items()),
        flush=True,
    )
    return Size(n, D, -(-D // size), found["seconds"], found["data_mib"], found["beyond_mib"])


def _rows_and_columns(sizes: Sequence[Size]) -> list[Finding]:
    """Return exponents of training and of the floors, over the sizes that take long enough to measure."""
    findings = []
    for name in ("training", *FLOORS):
        long_enough = [each for each in sizes if each.median(name) > 0.002]
        if len({each.n for each in long_enough}) < 2 or len({each.D for each in long_enough}) < 2:
            continue
        b = exponents([(each.n, each.D) for each in long_enough], [each.median(name) for each in long_enough])
        findings.append(
            Finding("noted", f"{name} grows as n^{b[0]:.2f} D^{b[1]:.2f} (fitted on {len(long_enough)} sizes)")
        )
    tall = [each for each in sizes if each.n >= 50 * each.D]
    if tall:
        multiples = [each.median("training") / max(each.median(floor) for floor in FLOORS) for each in tall]
        worst = int(np.argmax(multiples))
        findings.append(
            Finding(
                "noted",
                f"with at least 50 rows per column it takes {digits(min(multiples))} to {digits(max(multiples))} "
                f"times the higher floor, median {digits(float(np.median(multiples)))}; largest at "
                f"{tall[worst].n:,} x {tall[worst].D:,}",
            )
        )
    return findings


def _groups(sizes: Sequence[Size], D: int) -> list[Finding]:
    """Return the exponent of the path in the number of groups."""
    seconds: Mapping[int, float] = {each.groups: each.median("path") for each in sizes}
    few, many = min(seconds), max(seconds)
    b = exponents([(J,) for J in seconds], list(seconds.values()))[0]
    verdict: Verdict = "holds" if b < 1.5 else "missed"
    words = f"of {D:,} columns, {many:,} groups take {digits(seconds[many] / seconds[few])} times as long as {few}"
    return [Finding(verdict, f"the path grows as groups^{b:.2f} ({words}); limit: less than quadratic")]


def _by_size(sizes: Sequence[Size]) -> Picture:
    figure, axes = panels(3, width=4.4, height=4.0)
    for axis, name in zip(axes, ("training", *FLOORS), strict=True):
        for number, D in enumerate(sorted({each.D for each in sizes})):
            points = sorted((each.n, each.median(name)) for each in sizes if each.D == D)
            curve(axis, np.array([n for n, _ in points]), np.array([s for _, s in points]), f"D = {D:,}", number)
        axis.set(xscale="log", yscale="log", xlabel="rows n", title=name, ylim=(1e-5, 1e3))
    axes[0].set_ylabel("seconds")
    axes[0].legend(fontsize=7, loc="upper left")
    return picture("Seconds by rows and columns, on logarithmic axes: training and the floors.", figure)


def _by_groups(sizes: Sequence[Size], D: int) -> Picture:
    figure, (axis,) = panels(1, width=5.5, height=4.0)
    for number, name in enumerate(("path", "X.T @ X")):
        groups, seconds = ([each.groups for each in sizes], [each.median(name) for each in sizes])
        curve(axis, np.array(groups), np.array(seconds), name, number)
    axis.set(xscale="log", yscale="log", xlabel=f"groups of the same {D:,} columns", ylabel="seconds")
    axis.legend(fontsize=8)
    return picture(f"The path by the number of groups, and X.T @ X of 10,000 rows; {D:,} columns.", figure)
