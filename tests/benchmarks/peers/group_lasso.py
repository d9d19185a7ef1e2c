"""The cost-weighted Group Lasso on real data compared with celer: the same optimum, and the time of each.

At some shares of the smallest penalty with an all-zero solution, both solve from zero, on the same standardised rows,
to the same duality gap. Differences are relative; with collinear columns the coefficients need not be unique, but the
objective and the predictions are. Our time includes the pass over the rows that computes the moments.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anytime.groups import FeatureGroups, load_groups
from anytime.types import Float
from benchmarks.peers.measurements import digits
from benchmarks.peers.quality_sets import read_rows
from benchmarks.peers.report import Cell, Finding, Part, Section, Sheet
from benchmarks.peers.solvers import loaded

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

COLUMNS = ("mu/mu_max", "groups", "coefficients", "predictions", "objective", "our gap", "ours/theirs", "theirs")


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
    part.sheets.append(Sheet(caption, COLUMNS, tuple(rows)))
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
