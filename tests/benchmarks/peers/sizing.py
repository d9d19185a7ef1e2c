"""The part of the report on size: training time by rows, columns and groups, compared with two floors.

The floors are reading the table once (a sum over all numbers, with as many threads as the rest) and `X.T @ X`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from anytime.types import Float
from benchmarks.peers.environments import ours
from benchmarks.peers.measurements import FailedError, Spread, digits, ratios
from benchmarks.peers.report import Cell, Finding, Section, Sheet, cell, drawn, mebibytes
from benchmarks.peers.solvers import loaded

ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
COLUMNS = (50, 100, 200, 500, 1000, 2000)
MAX_NUMBERS = 10**9
"""Numbers in the largest table: 8 GB."""

GROUP = 10
GROUPS = (50, 100, 200, 400, 1000, 2000)
"""Numbers of groups of the same 2,000 columns."""

FLOORS = ("reading", "X.T @ X")
CORES = 2
TIMEOUT_S = 900.0

TEXT = (
    "Everything at one size is interleaved in one process. Reading is a sum over all numbers by two threads; "
    "X.T @ X is numpy's, in float64, on two threads. Ours also centres and handles missing values in that pass.",
    "Exact forward regression scores every remaining group at every step, so the number of scores is quadratic in "
    "the number of groups, which is unavoidable: each score is a few operations in one stacked product. So is the "
    "number of coefficients of all prefixes. Nothing else may be quadratic.",
)


class Size(msgspec.Struct):
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
    design = np.column_stack([np.ones(len(x)), np.log(np.asarray(x, dtype=np.float64))])
    found: Float = np.linalg.lstsq(design, np.log(np.asarray(seconds)), rcond=None)[0][1:]
    return found


def sizing(_data: Path, quick: bool) -> Section:
    """Measure, and return the section."""
    sizes: list[Size] = []
    findings: list[Finding] = []
    for n, D in grid(quick):
        work = n * D * D
        try:
            sizes.append(_at(n, D, GROUP, 9 if work < 10**10 else 3 if work < 10**11 else 1 if work < 10**12 else 0))
        except FailedError as error:
            findings.append(Finding("absent", f"n={n:,} D={D:,}: {error}"))
    used = 500 if quick else 2000
    by_groups = [_at(10_000, used, used // J, 5) for J in GROUPS if used >= J]
    findings += [*_rows_and_columns(sizes), _groups(by_groups, used)]
    rows: list[tuple[Cell, ...]] = []
    for size in sizes:
        relative = [cell(ratios(size.seconds["training"], size.seconds[floor])) for floor in FLOORS]
        medians = [digits(size.median(name)) for name in (*FLOORS, "training", "path")]
        memory = mebibytes(size.data_mib), mebibytes(size.beyond_mib)
        rows.append((f"{size.n:,} x {size.D:,}", *medians, *relative, *memory))
    timed = "reading s", "X.T @ X s", "training s", "of it, path s", "training / reading", "training / X.T @ X"
    caption = f"Training whole (moments, exact FR, all coefficients) in groups of {GROUP}, {CORES} threads"
    table = Sheet(caption, ("rows x columns", *timed, "data", "memory beyond"), tuple(rows))
    of_path = [
        (s.groups, cell(Spread.of(s.seconds["path"])), cell(ratios(s.seconds["path"], s.seconds["X.T @ X"])))
        for s in by_groups
    ]
    caption = f"The path by the number of groups, of the same {used:,} columns, the Gram given"
    path = Sheet(caption, ("groups", "seconds", "of X.T @ X at 10,000 rows"), tuple(of_path))
    of_size: dict[str, dict[str, tuple[list[int], list[float]]]] = {}
    for name in ("training", *FLOORS):
        for D in sorted({size.D for size in sizes}):
            same = sorted((size for size in sizes if size.D == D), key=lambda size: size.n)
            line = [size.n for size in same], [size.median(name) for size in same]
            of_size.setdefault(name, {})[f"D = {D:,}"] = line
    J = [size.groups for size in by_groups]
    of_groups = {"": {name: (J, [size.median(name) for size in by_groups]) for name in ("path", "X.T @ X")}}
    caption = "Seconds by rows and columns, on logarithmic axes: training and the floors."
    first = drawn(caption, of_size, "rows n", "seconds", "xy")
    caption = f"The path by the number of groups, and X.T @ X of 10,000 rows; {used:,} columns."
    second = drawn(caption, of_groups, f"groups of the same {used:,} columns", "seconds", "xy")
    pictures = first, second
    return Section("Training by size", (ours().versions_text,), tuple(findings), TEXT, (table, path), pictures)


def _at(n: int, D: int, size: int, rounds: int) -> Size:
    options = {"n": n, "D": D, "size": size, "rounds": rounds, "threads": CORES}
    with loaded(ours(), "with_ours", {}, CORES) as process:
        found = process.run("training", options, TIMEOUT_S)
    beyond_mib = found["peak_mib"] - found["before_mib"]
    measured = Size(n, D, found["groups"], found["each"], found["data_mib"], beyond_mib)
    medians = ", ".join(f"{name} {digits(measured.median(name))} s" for name in measured.seconds)
    print(f"  {n:>10,} x {D:>5,}: {medians}", flush=True)
    return measured


def _rows_and_columns(sizes: Sequence[Size]) -> list[Finding]:
    """Return exponents of training and of the floors, over the sizes that take long enough to measure."""
    findings = []
    for name in ("training", *FLOORS):
        long_enough = [size for size in sizes if size.median(name) > 0.002]
        if min(len({size.n for size in long_enough}), len({size.D for size in long_enough})) > 1:
            b = exponents([(size.n, size.D) for size in long_enough], [size.median(name) for size in long_enough])
            text = f"{name} grows as n^{b[0]:.2f} D^{b[1]:.2f} (fitted on {len(long_enough)} sizes)"
            findings.append(Finding("noted", text))
    tall = [size for size in sizes if size.n >= 50 * size.D]
    if tall:
        multiples = [size.median("training") / max(size.median(floor) for floor in FLOORS) for size in tall]
        worst = tall[int(np.argmax(multiples))]
        low, middle, high = (digits(float(np.quantile(multiples, q))) for q in (0, 0.5, 1))
        text = f"with at least 50 rows per column it takes {low} to {high} times the higher floor, median {middle}"
        findings.append(Finding("noted", f"{text}; largest at {worst.n:,} x {worst.D:,}"))
    return findings


def _groups(sizes: Sequence[Size], D: int) -> Finding:
    """Return the exponent of the path in the number of groups."""
    seconds = {size.groups: size.median("path") for size in sizes}
    few, many = min(seconds), max(seconds)
    b = exponents([(J,) for J in seconds], list(seconds.values()))[0]
    words = f"of {D:,} columns, {many:,} groups take {digits(seconds[many] / seconds[few])} times as long as {few}"
    text = f"the path grows as groups^{b:.2f} ({words}); limit: less than quadratic"
    return Finding("holds" if b < 1.5 else "missed", text)
