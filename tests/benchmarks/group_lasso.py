"""The cost-weighted Group Lasso beside a public solver: `python tests/benchmarks/group_lasso.py --data DIR`.

celer minimises 1/(2n) |y - Xw|^2 + alpha sum_g weight_g |w_g| over rows: alpha is our mu, the weights are the costs.
At some shares of the smallest penalty that makes all zero, both solve from nothing, on the same standardised rows, and
are held to the same duality gap. Differences are relative; where columns are collinear coefficients need not be unique,
but the objective and the predictions are. Ours is timed with the pass over the rows that makes the moments.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from anytime.accumulate import moments_of
from anytime.arrays import Float
from anytime.gram import Gram
from anytime.group_lasso import GroupLassoPath, group_lasso_path
from anytime.groups import FeatureGroups, load_groups

SHARES = (0.5, 0.1, 0.03, 0.01, 0.003)
TABLES = {
    "mq2008": ("data", "relevance", None),
    "yahoo_sample": ("train", "relevance", None),
    "kddcup99": ("train", "attack", 20_000),
}
AGREED = 1e-5
"""Relative difference up to which two solutions are the same."""


def problem(folder: Path, name: str) -> tuple[Float, Float, FeatureGroups]:
    """Standardised rows without constant columns, the response, and the groups."""
    file, target, rows = TABLES[name]
    table = pq.read_table(folder / name / f"{file}.parquet").slice(0, rows)
    groups = load_groups(folder / name / "groups.json")
    groups = fives(groups) if name == "yahoo_sample" else groups
    values = {feature: table[feature].to_numpy().astype(float) for feature in groups.features}
    groups = groups.without([feature for feature, column in values.items() if np.ptp(column) == 0])
    X = np.asfortranarray(np.column_stack([values[feature] for feature in groups.features]))
    y = table[target].to_numpy().astype(float)
    return np.asfortranarray((X - X.mean(axis=0)) / X.std(axis=0)), (y - y.mean()) / y.std(), groups


def fives(single: FeatureGroups) -> FeatureGroups:
    """Random groups of five features of the same cost, as the paper forms them; a group costs the sum."""
    rng = np.random.default_rng(0)
    groups = []
    for cost in sorted(set(single.costs.tolist())):
        alike = rng.permutation([group.features[0] for group in single.groups if group.cost == cost]).tolist()
        for start in range(0, len(alike), 5):
            members = alike[start : start + 5]
            groups.append({"name": f"{cost:g}-{start}", "features": members, "cost": cost * len(members)})
    return load_groups({"cost_unit": single.cost_unit, "groups": groups})


def ours(X: Float, y: Float, groups: FeatureGroups, mu: float, tolerance: float) -> GroupLassoPath:
    """One penalty, from rows."""
    gram = Gram.of(moments_of(X, y[:, np.newaxis]))
    return group_lasso_path(gram, groups.slices, groups.costs, mu=[mu], tolerance=tolerance)


def theirs(X: Float, y: Float, groups: FeatureGroups, mu: float, tolerance: float) -> tuple[Float, bool]:
    """The same by celer, and whether it says that it converged. Its tolerance is a share of |y|^2/n."""
    from celer import GroupLasso  # noqa: PLC0415

    filled = [g for g, group in enumerate(groups.groups) if group.features]
    sizes = [len(groups.groups[g].features) for g in filled]
    solver: Any = GroupLasso(
        groups=sizes,
        alpha=mu,
        weights=groups.costs[filled],
        tol=0.5 * tolerance,
        max_iter=1000,
        fit_intercept=False,
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        solver.fit(X, y)
    coef: Float = np.asarray(solver.coef_, dtype=np.float64).ravel()
    return coef, not any("onverge" in str(warning.message) for warning in told)


def objective(X: Float, y: Float, groups: FeatureGroups, mu: float, w: Float) -> float:
    """From the rows."""
    norms = [np.linalg.norm(w[columns]) for columns in groups.slices]
    return float(np.mean((y - X @ w) ** 2) / 2 + mu * (groups.costs @ norms))


def difference(a: Float, b: Float) -> float:
    """Relative to the second."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def beside(name: str, folder: Path, tolerance: float) -> bool:
    """Print a row for each penalty; returns whether all agree."""
    X, y, groups = problem(folder, name)
    filled = [(columns, cost) for columns, cost in zip(groups.slices, groups.costs, strict=True) if X[:, columns].size]
    largest = max(float(np.linalg.norm(X[:, columns].T @ y)) / (len(y) * cost) for columns, cost in filled)
    theirs(X[:200], y[:200], groups, 0.5 * largest, 1e-4)  # compiled before it is timed
    print(f"{name}: {len(X):,} rows, {X.shape[1]} columns, {len(groups)} groups, gap {tolerance:g}")
    print("  mu/mu_max  groups  coefficients  predictions  objective   our gap   ours/theirs  (theirs)")
    agreed = True
    for share in SHARES:
        mu = share * largest
        start = time.perf_counter()
        path = ours(X, y, groups, mu, tolerance)
        middle = time.perf_counter()
        other, converged = theirs(X, y, groups, mu, tolerance)
        end = time.perf_counter()
        w = path.coef[0][:, 0]
        apart = objective(X, y, groups, mu, w) / objective(X, y, groups, mu, other) - 1
        coefficients, predictions = difference(w, other), difference(X @ w, X @ other)
        agreed &= min(coefficients, max(predictions, abs(apart))) <= AGREED
        print(
            f"  {share:<9g}  {path.active[0].sum():>6}  {coefficients:>12.1e}  {predictions:>11.1e}  {apart:>+9.1e}  "
            f"{path.gaps[0]:>8.1e}  {(middle - start) / (end - middle):>11.3f}  "
            f"({end - middle:.2f} s{'' if converged else ', not converged'})",
            flush=True,
        )
    return agreed


def main() -> None:
    """Measure and print; exit 1 where the two disagree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data sets")
    parser.add_argument("--tolerance", type=float, default=1e-12, help="duality gap, as a share of half the variance")
    parser.add_argument("--only", choices=sorted(TABLES))
    options = parser.parse_args()
    if importlib.util.find_spec("celer") is None:
        sys.exit("celer is not installed here; `make bench-peers` makes an environment that has it")
    names = [options.only] if options.only else list(TABLES)
    agreed = [beside(name, options.data, options.tolerance) for name in names]
    if not all(agreed):
        sys.exit(f"the solvers disagree by more than {AGREED:g}")


if __name__ == "__main__":
    main()
