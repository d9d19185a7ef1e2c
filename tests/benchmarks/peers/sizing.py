"""The part of the report on size: training time by rows, columns and groups, compared with two floors.

The floors are reading the table once (a sum over all numbers, with as many threads as the rest) and `X.T @ X`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.measurements import Spread, digits, ratios
from benchmarks.peers.report import Cell, Finding, Part, Section, Sheet, cell, mebibytes
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

TIMED = ("reading s", "X.T @ X s", "training s", "of it, path s", "training / reading", "training / X.T @ X")


def grid(quick: bool) -> list[tuple[int, int]]:
    """Return rows and columns of the tables, the smallest first."""
    limit = MAX_NUMBERS // 100 if quick else MAX_NUMBERS
    return sorted(((n, D) for n in ROWS for D in COLUMNS if n * D <= limit), key=lambda size: size[0] * size[1] ** 2)


def sizing(_data: Path, quick: bool) -> Section:
    """Measure, and return the section."""
    part, rows = Part("Training by size", "ours"), list[tuple[Cell, ...]]()
    for n, D in grid(quick):
        with part.trying(f"n={n:,} D={D:,}"):
            work = n * D * D
            found = _at(n, D, GROUP, 9 if work < 10**10 else 3 if work < 10**11 else 1 if work < 10**12 else 0)
            seconds = found["each"]
            relative = [cell(ratios(seconds["training"], seconds[floor])) for floor in FLOORS]
            medians = [digits(Spread.of(seconds[name]).median) for name in (*FLOORS, "training", "path")]
            memory = mebibytes(found["data_mib"]), mebibytes(found["peak_mib"] - found["before_mib"])
            rows.append((f"{n:,} x {D:,}", *medians, *relative, *memory))
    caption = f"Training whole (moments, exact FR, all coefficients) in groups of {GROUP}, {CORES} threads"
    part.sheets.append(Sheet(caption, ("rows x columns", *TIMED, "data", "memory beyond"), tuple(rows)))
    used = 500 if quick else 2000
    measured = [_at(10_000, used, used // J, 5) for J in GROUPS if used >= J]
    by_groups = {each["groups"]: each["each"] for each in measured}
    of_path = [
        (J, cell(Spread.of(seconds["path"])), cell(ratios(seconds["path"], seconds["X.T @ X"])))
        for J, seconds in by_groups.items()
    ]
    caption = f"The path by the number of groups, of the same {used:,} columns, the Gram given"
    part.sheets.append(Sheet(caption, ("groups", "seconds", "of X.T @ X at 10,000 rows"), tuple(of_path)))
    part.findings.append(growth({J: Spread.of(each["path"]).median for J, each in by_groups.items()}, used))
    return part.section(*TEXT)


def _at(n: int, D: int, size: int, rounds: int) -> dict[str, Any]:
    options = {"n": n, "D": D, "size": size, "rounds": rounds, "threads": CORES}
    with loaded("ours", "with_ours", {}, CORES) as process:
        found = process.run("training", options, TIMEOUT_S)
    medians = ", ".join(f"{name} {digits(Spread.of(each).median)} s" for name, each in found["each"].items())
    print(f"  {n:>10,} x {D:>5,}: {medians}", flush=True)
    return found


def growth(seconds: Mapping[int, float], D: int) -> Finding:
    """Return whether the time of the path grows less than quadratically with the number of groups."""
    exponent = np.polyfit(np.log([*seconds]), np.log([*seconds.values()]), 1)[0]
    few, many = min(seconds), max(seconds)
    words = f"of {D:,} columns, {many:,} groups take {digits(seconds[many] / seconds[few])} times as long as {few}"
    text = f"the path grows as groups^{exponent:.2f} ({words}); limit: less than quadratic"
    return Finding("holds" if exponent < 1.5 else "missed", text)
