"""Training compared with the product that it needs: `python tests/benchmarks/training.py`.

Everything is interleaved in one process, and printed as the ratio of medians to numpy's `X.T @ X` on two threads,
because seconds on a shared machine mean little. The memory of a basis is measured in a separate process.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.csv

from anytime import AnytimeRegressor
from anytime.data.dataset import Dataset
from anytime.data.formats import csv, open_table
from anytime.data.survey import settle_target, surveyed
from anytime.features.expansion import Expansion
from anytime.features.learning import Sample, learned_groups
from anytime.folds import FoldStream
from anytime.groups import FeatureGroups, load_groups
from anytime.moments.accumulate import fold_moments_of, moments_of
from anytime.moments.moments import Gram
from anytime.selection import sequence
from anytime.training.fit import fit
from anytime.training.options import Options
from anytime.types import Float, Method

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import Row, flag, megabytes, report, script_options, timed, turns

THREADS = 2


def problem(n: int, D: int, size: int) -> tuple[Float, Float, FeatureGroups]:
    """Return a regression with n rows and D correlated columns in groups of one size, costs 1 to 10."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, D))
    for start in range(0, n, 1024):  # in place and in pieces, so that the data are the peak of memory so far
        X[start : start + 1024, 1:] += 0.5 * X[start : start + 1024, :-1]
    y = X[:, ::7] @ rng.standard_normal(len(range(0, D, 7))) + 5 * rng.standard_normal(n)
    names = [f"x{j}" for j in range(D)]
    groups = [
        {"name": f"g{j}", "features": names[j : j + size], "cost": float(rng.uniform(1, 10))} for j in range(0, D, size)
    ]
    return X, y, load_groups({"cost_unit": "ms", "groups": groups})


def interleave(
    candidates: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return median seconds of each candidate, interleaved so that noise affects all alike."""
    seconds = turns({name: partial(timed, run, clock) for name, run in candidates.items()}, repeats)
    return {name: statistics.median(values) for name, values in seconds.items()}


def train(X: Float, y: Float, groups: FeatureGroups, method: Method) -> float:
    """Compute moments, exact sequence, and the coefficients of all prefixes, which are read."""
    parts = fold_moments_of(X, y, n_jobs=THREADS, expansion=Expansion.of(groups).plain)
    return float(fit(parts, groups, Options(method=method, alpha=1e-5)).prefixes.packed.sum())


def fits(X: Float, y: Float, groups: FeatureGroups) -> dict[str, Callable[[], object]]:
    """Return the fit of the estimator on the same table in each form that it may have, by its name."""
    columns = list(groups.features)
    forms: dict[str, Any] = {
        "C-ordered": X,
        "F-ordered": np.asfortranarray(X),
        "DataFrame": pd.DataFrame(X, columns=columns),
        "float32 DataFrame": pd.DataFrame(X.astype(np.float32), columns=columns),
        "float32 array": X.astype(np.float32),
    }
    estimator = AnytimeRegressor(groups, basis="linear", alpha=1e-5)
    return {name: partial(estimator.fit, form, y) for name, form in forms.items()}


def basis_report(n: int, D: int, size: int, basis: str, repeats: int) -> bool:
    """Print the cost of training on terms over the product of the same expanded matrix, and the peak memory.

    Return whether the limits are kept.
    """
    X, y, groups = problem(n, D, size)
    groups = learned_groups(groups, Sample(dict(zip(groups.features, X.T, strict=True))), basis)
    data, before = X.nbytes / 2**20, megabytes()
    train(X, y, groups, "fr")
    trained = megabytes()
    T = np.ascontiguousarray(Expansion.of(groups).expand(X))
    seconds = interleave({"product": lambda: T.T @ T, "fr": lambda: train(X, y, groups, "fr")}, repeats)
    print(f"\nn={n}, {D} columns with basis {basis}, {T.shape[1]} terms")
    ratio = seconds["fr"] / seconds["product"]
    kept = report([Row("moments of terms + FR + all coefficients / T.T @ T", ratio, 1.3)])
    print(f"peak memory: data {data:.0f} MiB; with data {before:.0f}, trained {trained:.0f} (limit: data + 300)")
    return kept and trained - before <= 300


def trained_table(path: Path, groups: FeatureGroups, basis: str | None = None, *, keep: bool = True) -> float:
    """Train on a file as the command does; without `keep`, no cells of a CSV file stay in memory or on disk."""
    limits = csv.STORE_BYTES, csv.STORE_SHARE
    if not keep:
        csv.STORE_BYTES, csv.STORE_SHARE = 0, 0.0
    try:
        table = open_table(path)
        bases, found = surveyed(table, groups, ["y"], option=basis)
        rows = Dataset(table, bases, settle_target(found))
        return float(fit(rows.moments(), bases, Options(alpha=1e-5)).prefixes.packed.sum())
    finally:
        csv.STORE_BYTES, csv.STORE_SHARE = limits


def tables_report(rows: int, D: int, repeats: int) -> list[Row]:
    """Return processor time of training on files over that of reading the CSV file by pyarrow, and X.T @ X."""
    X, y, groups = problem(rows, D, 1)
    with tempfile.TemporaryDirectory() as folder:
        frame = pd.DataFrame(X.round(5), columns=list(groups.features)).assign(y=y)
        written, columnar = Path(folder, "t.csv"), Path(folder, "t.parquet")
        frame.to_csv(written, index=False)
        frame.to_parquet(columnar)

        def read() -> object:
            cells = np.column_stack([column.to_numpy() for column in pyarrow.csv.read_csv(written).columns])
            return cells.T @ cells

        candidates: dict[str, Callable[[], object]] = {
            "read": read,
            "CSV": lambda: trained_table(written, groups),
            "CSV, nothing kept": lambda: trained_table(written, groups, keep=False),
            "CSV, hinges": lambda: trained_table(written, groups, "hinge"),
            "Parquet": lambda: trained_table(columnar, groups),
        }
        seconds = interleave(candidates, repeats, time.process_time)
    limits = {"CSV": 1.6, "CSV, nothing kept": 2.6, "CSV, hinges": None, "Parquet": 1.0}
    what = f"{rows} rows of {D} columns; processor time / pyarrow's read of the CSV + X.T @ X"
    return [Row(f"{name}: {what}", seconds[name] / seconds["read"], limit) for name, limit in limits.items()]


def path(X: Float, y: Float, groups: FeatureGroups) -> float:
    """Fit twenty penalties on five folds, with the order learned at each of them."""
    folds = FoldStream(5, np.random.default_rng(0)).take(len(y))
    parts = fold_moments_of(X, y, folds=folds, count=5, n_jobs=THREADS)
    return float(fit(parts, groups, Options(alpha="cv")).prefixes.packed.sum())


def main() -> None:
    """Measure and print; exit with 1 if a limit is exceeded."""
    args = script_options(
        __doc__,
        rows={"type": int, "default": 100_000},
        columns={"type": int, "default": 500},
        size={"type": int, "default": 10, "help": "columns in a group"},
        repeats={"type": int, "default": 9},
        basis={"default": "hinge:4", "help": "basis of the columns in the last measurement"},
        only_basis=flag("measure only the cost of a basis"),
        only_tables=flag("measure only training on files"),
    )
    if args.only_tables:
        sys.exit(0 if report(tables_report(300_000, 50, args.repeats)) else 1)
    if args.only_basis:
        kept = basis_report(args.rows, args.columns // 5, max(1, args.size // 5), args.basis, args.repeats)
        sys.exit(0 if kept else 1)
    # First, because a process inherits the peak memory of the one that started it.
    command = [sys.executable, __file__, *(f"--{name}={getattr(args, name)}" for name in ("rows", "columns", "size"))]
    only_basis = [*command, "--only-basis", "--basis", args.basis, "--repeats", str(args.repeats)]
    kept = subprocess.run(only_basis, check=False).returncode == 0
    X, y, groups = problem(args.rows, args.columns, args.size)
    moments = moments_of(X, y, n_jobs=THREADS)
    gram = Gram.of(moments)
    seconds = interleave(
        {
            "product": lambda: X.T @ X,
            "moments": lambda: moments_of(X, y, n_jobs=THREADS),
            "fr": lambda: train(X, y, groups, "fr"),
            "omp": lambda: train(X, y, groups, "omp"),
            "fr path": lambda: sequence(gram, groups, "fr"),
            "omp path": lambda: sequence(gram, groups, "omp"),
        },
        args.repeats,
    )
    product = seconds["product"]
    cv = interleave({"product": lambda: X.T @ X, "cv": lambda: path(X, y, groups)}, max(3, args.repeats // 3))
    estimated = interleave({"product": lambda: X.T @ X} | fits(X, y, groups), args.repeats)
    print(f"\nn={args.rows} D={args.columns}, {len(groups)} groups, {THREADS} threads; X.T @ X takes {product:.3f} s\n")
    rows = [
        Row("moments / X.T @ X", seconds["moments"] / product, None),
        Row("moments + FR + all coefficients / X.T @ X", seconds["fr"] / product, 1.5),
        Row("the same with OMP / X.T @ X", seconds["omp"] / product, None),
        Row("training with FR / with OMP", seconds["fr"] / seconds["omp"], 1.1),
        Row("FR path, Gram given / X.T @ X", seconds["fr path"] / product, 0.15),
        Row("FR path / OMP path, Gram given", seconds["fr path"] / seconds["omp path"], None),
        Row("20 alphas x 5 folds / X.T @ X", cv["cv"] / cv["product"], 6.0),
    ]
    rows += [
        Row(f"AnytimeRegressor.fit, {form} / X.T @ X", seconds / estimated["product"], 1.2)
        for form, seconds in estimated.items()
        if form != "product"
    ]
    rows += tables_report(300_000, 50, max(3, args.repeats // 3))
    sys.exit(0 if report(rows) and kept else 1)


if __name__ == "__main__":
    main()
