"""The part of the report on size: what training takes as rows, columns and groups grow, beside the two floors."""

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
from benchmarks.peers.section import Cell, Finding, Picture, Section, Sheet, Verdict, cell, mebibytes, picture
from benchmarks.peers.turns import FailedError, Spread, digits, ratios
from benchmarks.peers.workers import THREADS

__all__ = ["Size", "exponents", "grid", "sizing"]

ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
COLUMNS = (50, 100, 200, 500, 1000, 2000)
MOST = 10**9
"""Numbers in the largest table: 8 GB."""

GROUP = 10
GROUPS = (50, 100, 200, 400, 1000, 2000)
"""Numbers of groups of the same 2,000 columns."""

FLOORS = ("reading", "X.T @ X")
CORES = 2


@dataclass(frozen=True)
class Size:
    """What was measured at one size."""

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
    """Rows and columns of the tables, the smallest first."""
    most = MOST // 100 if quick else MOST
    return sorted(((n, D) for n in ROWS for D in COLUMNS if n * D <= most), key=lambda size: size[0] * size[1] ** 2)


def exponents(x: Sequence[Sequence[float]], seconds: Sequence[float]) -> Float:
    """Exponents b of seconds = a prod_j x_j^b_j, (len of a row of x,), by least squares of the logarithms."""
    logs = np.log(np.asarray(x, dtype=np.float64))
    design = np.column_stack([np.ones(len(logs)), logs])
    found: Float = np.linalg.lstsq(design, np.log(np.asarray(seconds)), rcond=None)[0][1:]
    return found


def sizing(quick: bool) -> Section:
    """Measure and tell."""
    sizes: list[Size] = []
    findings: list[Finding] = []
    for n, D in grid(quick):
        work = n * D * D
        try:
            sizes.append(_at(n, D, GROUP, 9 if work < 10**10 else 3 if work < 10**11 else 1 if work < 10**12 else 0))
        except FailedError as error:
            findings.append(Finding("absent", f"n={n:,} D={D:,}: {error}"))
    most = 500 if quick else 2000
    by_groups = [_at(10_000, most, most // J, 5) for J in GROUPS if most >= J]
    findings += [*_rows_and_columns(sizes), *_groups(by_groups, most)]
    rows: list[tuple[Cell, ...]] = []
    for each in sizes:
        beside = [cell(ratios(each.seconds["training"], each.seconds[floor])) for floor in FLOORS]
        told = [digits(each.median(name)) for name in ("reading", "X.T @ X", "training", "path")]
        rows.append((f"{each.n:,} x {each.D:,}", *told, *beside, mebibytes(each.data_mib), mebibytes(each.beyond_mib)))
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
    more = Sheet(
        f"The path by the number of groups, of the same {most:,} columns, the Gram given",
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
        "Everything at one size is measured in turns in one process. Reading is a sum over all numbers by two threads; "
        "X.T @ X is numpy's, in float64, on two threads. Ours centres, and knows missing values, on the same pass.",
        "Exact forward regression scores every group left at every step, so the number of scores is quadratic in the "
        "number of groups, and has to be: each score is a few operations in one stacked product. So are the "
        "coefficients of all prefixes, as numbers. Nothing else may be.",
    )
    drawn = (_by_size(sizes), _by_groups(by_groups, most))
    return Section("size", "Training by size", "", (ours().told(),), tuple(findings), text, (table, more), drawn)


def _at(n: int, D: int, size: int, rounds: int) -> Size:
    told = os.environ | {name: str(CORES) for name in THREADS}
    told["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    command = [sys.executable, "-m", "benchmarks.peers.sizing_child", *map(str, (n, D, size, rounds, CORES))]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=told, timeout=900)
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
    """Exponents of training and of the floors, over the sizes that take long enough to be told."""
    told = []
    for name in ("training", *FLOORS):
        some = [each for each in sizes if each.median(name) > 0.002]
        if len({each.n for each in some}) < 2 or len({each.D for each in some}) < 2:
            continue
        b = exponents([(each.n, each.D) for each in some], [each.median(name) for each in some])
        told.append(Finding("noted", f"{name} grows as n^{b[0]:.2f} D^{b[1]:.2f} (fitted on {len(some)} sizes)"))
    tall = [each for each in sizes if each.n >= 50 * each.D]
    if tall:
        over = [each.median("training") / max(each.median(floor) for floor in FLOORS) for each in tall]
        worst = int(np.argmax(over))
        told.append(
            Finding(
                "noted",
                f"where there are at least 50 rows a column, training takes {digits(min(over))} to {digits(max(over))} "
                f"times the higher floor, median {digits(float(np.median(over)))}; most at "
                f"{tall[worst].n:,} x {tall[worst].D:,}",
            )
        )
    return told


def _groups(sizes: Sequence[Size], D: int) -> list[Finding]:
    """The exponent of the path in the number of groups."""
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
            some = sorted((each.n, each.median(name)) for each in sizes if each.D == D)
            curve(axis, np.array([n for n, _ in some]), np.array([s for _, s in some]), f"D = {D:,}", number)
        axis.set(xscale="log", yscale="log", xlabel="rows n", title=name, ylim=(1e-5, 1e3))
    axes[0].set_ylabel("seconds")
    axes[0].legend(fontsize=7, loc="upper left")
    return picture("Seconds by rows and columns, on logarithmic axes: training, and the floors beside it.", figure)


def _by_groups(sizes: Sequence[Size], D: int) -> Picture:
    figure, (axis,) = panels(1, width=5.5, height=4.0)
    for number, name in enumerate(("path", "X.T @ X")):
        groups, seconds = ([each.groups for each in sizes], [each.median(name) for each in sizes])
        curve(axis, np.array(groups), np.array(seconds), name, number)
    axis.set(xscale="log", yscale="log", xlabel=f"groups of the same {D:,} columns", ylabel="seconds")
    axis.legend(fontsize=8)
    return picture(f"The path by the number of groups, beside X.T @ X of 10,000 rows; {D:,} columns.", figure)
