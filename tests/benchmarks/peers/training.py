"""The parts of the report on training: from the Gram, from rows, by size, at other costs, and the Group Lasso.

Size: training time by rows, columns and groups, compared with two floors: reading the table once (a sum over all
numbers, with as many threads as the rest) and `X.T @ X`. Other costs: a saved model of 500 features, without data.

The cost-weighted Group Lasso on real data is compared with celer: at some shares of the smallest penalty with an
all-zero solution, both solve from zero, on the same standardised rows, to the same duality gap. Differences are
relative; with collinear columns the coefficients need not be unique, but the objective and the predictions are. Our
time includes the pass over the rows that computes the moments.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anytime.estimators import AnytimeRegressor
from anytime.groups import FeatureGroups, load_groups
from anytime.loaded import load
from anytime.training.resequencing import resequence
from anytime.types import Float
from benchmarks.harness import spent, turns
from benchmarks.peers.adapters.with_ours import groups_of
from benchmarks.peers.quality import read_rows
from benchmarks.peers.report import (
    Cell,
    Finding,
    Part,
    Section,
    Sheet,
    Spread,
    cell,
    compared,
    digits,
    mebibytes,
    ratios,
    within,
)
from benchmarks.peers.solvers import FLOOR, FROM_GRAM, FROM_ROWS, OURS, loaded, make_problem, measure

ADELIE, EARLY, PURSUIT = (FROM_GRAM[i].label for i in (1, 2, 3))
LIMITS = {ADELIE: 0.45, PURSUIT: 0.25}
"""50 groups of 10. BLAS, LAPACK and copies of the matrix take three quarters of the time: the floor is about .35."""

SINGLE_LIMITS = {ADELIE: 0.75, PURSUIT: 1}
"""500 groups of one. A step is a product of the panel with a vector and a dozen passes over at most 500 numbers: 22 us
in numpy."""

WIDE_LIMITS = {ADELIE: 0.5, PURSUIT: 1}
"""200 groups of 10."""

WHAT = (
    "What is compared, exactly. Ours orders all groups by exact forward regression (the gain of each group left, at "
    "every step, per cost), and has the coefficients of every prefix at the end: a whole anytime model. adelie "
    "follows a path of the Group Lasso, weighted by the same costs, over 100 penalties down to a hundredth of the "
    "largest: other sets, shrunken coefficients, no sequence of all groups; by default it stops the path early, when "
    "further steps gain little. orthogonal_mp_gram adds all columns one by one, without groups or costs. No other "
    "method computes what ours computes; the ratios compare the time of each for its own result. Environments, "
    "compilation and loading are not timed; measurements of more than four seconds have fewer rounds. Memory is the "
    "peak of the process during the work minus its peak before: memory that a solver had already allocated is not "
    "shown."
)
FROM_THE_GRAM = "All use the same standardised X'X/n and X'y/n (the pursuit with our 1e-5 on the diagonal)."
FROM_THE_ROWS = (
    "All use the same standardised rows, in the memory order that each prefers. On 2,000 columns only the floor is "
    "compared."
)


def training(_data: Path, quick: bool) -> Section:
    """Measure from the Gram, and return the section."""
    part, rounds = Part("Training from the Gram", "ours", "adelie"), 9 if quick else 15
    sizes = [(500, 10, LIMITS), (500, 1, SINGLE_LIMITS), (2000, 10, WIDE_LIMITS)]
    for seed, (D, size, limits) in enumerate(sizes[: 2 if quick else 3]):
        with tempfile.TemporaryDirectory() as folder:
            what, wide = make_problem(50_000, D, size, Path(folder), seed), D == 2000
            for threads in (2, 1):
                found = measure(FROM_GRAM, what, Path(folder), threads, 5 if wide else rounds, few=2 if wide else 3)
                part.sheets.append(found.sheet("From the Gram"))
                part.findings += found.absent
                for label, limit in limits.items():
                    text = f"ours / {label} ({found.problem})"
                    part.findings.append(within(text, found.seconds.ratio(OURS, label), limit))
                early = found.seconds.ratio(OURS, EARLY)
                if early is not None:
                    stops = f"which stops after {found.numbers[EARLY]['lambdas']} lambdas ({found.problem})"
                    text = f"ours / adelie as it is by default, {stops}: {early}"
                    part.findings.append(compared(text, early.median < 1))
    return part.section(WHAT, FROM_THE_GRAM)


def rows(_data: Path, quick: bool) -> Section:
    """Measure from rows, and return the section."""
    part, n = Part("Training from rows", "ours", "adelie"), 10_000 if quick else 50_000
    sizes = [(500, 0, 2, 4, 7), (500, 0, 1, 3, 7), (2000, 2, 2, 2, 3)]
    for D, seed, threads, peers, rounds in sizes[: 2 if quick else 3]:
        with tempfile.TemporaryDirectory() as folder:
            what = make_problem(n, D, 10, Path(folder), seed)
            found = measure(FROM_ROWS[:peers], what, Path(folder), threads, 3 if quick else rounds)
        part.sheets.append(found.sheet("From rows"))
        part.findings += found.absent
        for label in found.seconds.values:
            ratio = found.seconds.ratio(OURS, label)
            if ratio is not None and label != OURS:
                finding = compared(f"from rows, ours / {label} ({found.problem}): {ratio}", ratio.median < 1)
                part.findings.append(Finding("noted", finding.text) if label == FLOOR else finding)
    return part.section(WHAT, FROM_THE_ROWS)


SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
WIDTHS = (50, 100, 200, 500, 1000, 2000)
MAX_NUMBERS = 10**9
"""Numbers in the largest table: 8 GB."""

GROUP = 10
GROUPS = (50, 100, 200, 400, 1000, 2000)
"""Numbers of groups of the same 2,000 columns."""

FLOORS = ("reading", "X.T @ X")
CORES = 2
SIZE_TIMEOUT_S = 900.0

SIZE_TEXT = (
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
    return sorted(((n, D) for n in SIZES for D in WIDTHS if n * D <= limit), key=lambda size: size[0] * size[1] ** 2)


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
    return part.section(*SIZE_TEXT)


def _at(n: int, D: int, size: int, rounds: int) -> dict[str, Any]:
    options = {"n": n, "D": D, "size": size, "rounds": rounds, "threads": CORES}
    with loaded("ours", "with_ours", {}, CORES) as process:
        found = process.run("training", options, SIZE_TIMEOUT_S)
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


FEATURES, MODEL_ROWS, SECONDS = 500, 5_000, 1.0

RESEQUENCING_TEXT = (
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
            _resequenced(size, Path(place), 3 if quick else 11, part, rows)
    columns = ("", "seconds", "of processor time")
    part.sheets.append(Sheet(f"{FEATURES} features at other costs", columns, tuple(rows)))
    return part.section(*RESEQUENCING_TEXT)


def _resequenced(size: int, folder: Path, rounds: int, part: Part, rows: list[tuple[Cell, ...]]) -> None:
    """Measure a model with groups of one size."""
    rng = np.random.default_rng(size)
    X = rng.standard_normal((MODEL_ROWS, FEATURES))
    y = X @ rng.standard_normal(FEATURES) + 5 * rng.standard_normal(MODEL_ROWS)
    saved, out, costs = folder / "old.safetensors", folder / "new.safetensors", folder / "costs.json"
    J = FEATURES // size
    before, after = (groups_of({"sizes": np.full(J, size), "costs": rng.uniform(1, 10, J)}) for _ in range(2))
    AnytimeRegressor(before, basis="linear").fit(X, y).save(saved)
    costs.write_text(json.dumps(after.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
    model, groups = load(saved), load_groups(costs)
    acts: dict[str, Callable[[], tuple[float, float]]] = {
        "the command": partial(_command, "resequence", saved, "--costs", costs, "--out", out),
        "of it, starting": partial(_command, "--version"),
        "the call": partial(_call, lambda: resequence(model, groups)),
        "the call, and saving": partial(_call, lambda: resequence(model, groups).save(out)),
        "loading": partial(_call, lambda: load(saved)),
    }
    what = f"{J} groups of {'one' if size == 1 else size}"
    for name, found in turns(acts, rounds).items():
        spread, work = (Spread.of(values) for values in zip(*found, strict=True))
        rows.append((f"{name}, {what}", cell(spread), cell(work)))
        if name in ("the command", "the call"):
            text = f"{name}, {what}: {spread} s, of processor time {work} s, limit {SECONDS:g} s"
            part.findings.append(Finding("holds" if spread.median <= SECONDS else "missed", text))


def _command(*words: object) -> tuple[float, float]:
    """Return the seconds and the processor time of a command of ours."""
    found = spent([sys.executable, "-m", "anytime", *words])
    return found.seconds, found.processor_s


def _call(act: Callable[[], object]) -> tuple[float, float]:
    work, start = time.process_time(), time.perf_counter()
    act()
    return time.perf_counter() - start, time.process_time() - work


SHARES = (0.5, 0.1, 0.03, 0.01, 0.003)
TABLES = {
    "mq2008": ("data", "relevance", None),
    "yahoo_sample": ("train", "relevance", None),
    "kddcup99": ("train", "attack", 20_000),
}
TOLERANCE = 1e-12
"""Duality gap, as a share of half the variance."""

AGREED = 1e-5
"""Relative difference up to which two solutions are equal."""

LASSO_COLUMNS = ("mu/mu_max", "groups", "coefficients", "predictions", "objective", "our gap", "ours/theirs", "theirs")


def group_lasso(data: Path, quick: bool) -> Section:
    """Solve by both, and compare."""
    part = Part("The Group Lasso compared with celer, on real data", "ours", "celer")
    for name in list(TABLES)[: 1 if quick else None]:
        with part.trying(f"celer on {name}"):
            _compare(name, data, part)
    return part.section()


def _compare(name: str, data: Path, part: Part) -> None:
    """Add a row for each penalty, and whether all agree."""
    X, y, groups = _problem(data, name)
    kept = [(columns, cost) for columns, cost in zip(groups.slices, groups.costs, strict=True) if X[:, columns].size]
    largest = max(float(np.linalg.norm(X[:, columns].T @ y)) / (len(y) * cost) for columns, cost in kept)
    sizes = np.array([columns.stop - columns.start for columns, _ in kept])
    arrays = {"X": X, "y": y, "sizes": sizes, "costs": np.array([cost for _, cost in kept])}

    def objective(mu: float, w: Float) -> float:
        norms = [np.linalg.norm(w[columns]) for columns in groups.slices]
        return float(np.mean((y - X @ w) ** 2) / 2 + mu * (groups.costs @ norms))

    rows: list[tuple[Cell, ...]] = []
    agreed, faster = True, 0
    with loaded("ours", "with_ours", arrays, 2) as mine, loaded("celer", "solvers", arrays, 2) as theirs:
        for share in SHARES:
            options = {"mu": share * largest, "tolerance": TOLERANCE, "threads": 2}
            own, own_arrays = mine.arrays("group_lasso", options)
            other, other_arrays = theirs.arrays("celer", options)
            w, v = own_arrays["coef"], other_arrays["coef"]
            worse = objective(share * largest, w) / objective(share * largest, v) - 1
            coefficients, predictions = _difference(w, v), _difference(X @ w, X @ v)
            agreed &= min(coefficients, max(predictions, abs(worse))) <= AGREED
            ratio = own["seconds"] / other["seconds"]
            faster += ratio < 1
            texts = f"{coefficients:.1e}", f"{predictions:.1e}", f"{worse:+.1e}", f"{own['gap']:.1e}", digits(ratio)
            took = f"{digits(other['seconds'])} s{'' if other['converged'] else ', not converged'}"
            rows.append((share, own["active"], *texts, took))
    caption = f"{name}: {len(X):,} rows, {X.shape[1]} columns, {len(groups)} groups, gap {TOLERANCE:g}, 2 threads"
    words = "the same optimum" if agreed else f"optima differ by more than {AGREED:g}"
    text = f"{name}: {words}; ours is faster at {faster} of {len(SHARES)} penalties"
    part.sheets.append(Sheet(caption, LASSO_COLUMNS, tuple(rows)))
    part.findings.append(Finding("holds" if agreed else "missed", text))


def _problem(folder: Path, name: str) -> tuple[Float, Float, FeatureGroups]:
    """Return standardised rows without constant columns, the response, and the groups."""
    file, target, rows = TABLES[name]
    groups = load_groups(folder / name / "groups.json")
    groups = _fives(groups) if name == "yahoo_sample" else groups
    X, y = (values[:rows] for values in read_rows(folder / name / f"{file}.parquet", groups, target))
    is_constant = np.ptp(X, axis=0) == 0
    X = (X - X.mean(axis=0))[:, ~is_constant] / X.std(axis=0)[~is_constant]
    groups = groups.without(np.array(groups.features)[is_constant].tolist())
    return np.asfortranarray(X), (y - y.mean()) / y.std(), groups


def _fives(single: FeatureGroups) -> FeatureGroups:
    """Return random groups of five features of the same cost, as in the paper; a group costs the sum."""
    rng = np.random.default_rng(0)
    groups = []
    for cost in sorted(set(single.costs.tolist())):
        same_cost = rng.permutation([group.features[0] for group in single.groups if group.cost == cost]).tolist()
        for start in range(0, len(same_cost), 5):
            members = same_cost[start : start + 5]
            groups.append({"name": f"{cost:g}-{start}", "features": members, "cost": cost * len(members)})
    return load_groups({"cost_unit": single.cost_unit, "groups": groups})


def _difference(a: Float, b: Float) -> float:
    """Return the difference relative to the second."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
