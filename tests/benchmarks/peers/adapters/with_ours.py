"""Our own library, in a process like those of the peers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from anytime._linalg import single_blas_thread
from anytime.groups import FeatureGroups, load_groups
from anytime.model.prefixes import PrefixModels, prefix_models, staircase
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection import FactoredOrder, sequence
from anytime_reproduction.lasso.sparse import group_lasso_path
from benchmarks.harness import timed, turns
from benchmarks.peers.adapters.worker import Problem, Timed

ALPHA = 1e-5
UNIQUE_ROWS = 8_192
PIECE = 65_536
"""Rows that one thread reads at once."""


def groups_of(problem: Problem) -> FeatureGroups:
    """Return the groups of the problem's sizes and costs."""
    ends = np.cumsum(problem["sizes"]).tolist()
    groups = [
        {"name": f"g{g}", "features": [f"x{j}" for j in range(start, end)], "cost": float(cost)}
        for g, (start, end, cost) in enumerate(zip([0, *ends[:-1]], ends, problem["costs"], strict=True))
    ]
    return load_groups({"cost_unit": "ms", "groups": groups})


def gram_of(problem: Problem) -> Gram:
    """Return the problem's standardised normal equations."""
    S, q = problem["S"], problem["q"][:, np.newaxis]
    ones, none, single = np.ones(len(S)), np.zeros(len(S)), np.ones(1)
    return Gram(S, q, single, none, ones, np.zeros(1), single, none.astype(np.bool_), float(problem["rows"]))


def coefficients(gram: Gram, found: FactoredOrder) -> PrefixModels:
    """Return the coefficients of all prefixes, in the units of the rows."""
    with single_blas_thread():
        W = staircase(found.state.factor, found.state.z, found.ends)
    return prefix_models(gram, found.columns, found.ends, W)


def _path(of: Gram, groups: FeatureGroups) -> FactoredOrder:
    order = sequence(of, groups, "fr", ALPHA)
    coefficients(of, order)
    return order


def _read(order: FactoredOrder) -> dict[str, Any]:
    return {"order": np.array([step.adds[-1] for step in order.steps]), "explained": order.explained_variance}


def gram(problem: Problem, _options: dict[str, Any]) -> Timed:
    """Exact forward regression of all groups with all coefficients, from the Gram."""
    of, groups = gram_of(problem), groups_of(problem)
    return lambda: _path(of, groups), _read


def rows(problem: Problem, options: dict[str, Any]) -> Timed:
    """The same from rows."""
    X, y, groups = problem["X"], problem["y"], groups_of(problem)
    return lambda: _path(Gram.of(moments_of(X, y, n_jobs=options["threads"])), groups), _read


def group_lasso(problem: Problem, options: dict[str, Any]) -> Timed:
    """One penalty of the cost-weighted Group Lasso, from rows."""
    X, y, groups = problem["X"], problem["y"][:, np.newaxis], groups_of(problem)

    def run() -> Any:
        of = Gram.of(moments_of(X, y, n_jobs=options["threads"]))
        return group_lasso_path(of, groups.slices, groups.costs, mu=[options["mu"]], tolerance=options["tolerance"])

    def read(path: Any) -> dict[str, Any]:
        return {"coef": path.coef[0][:, 0], "gap": float(path.gaps[0]), "active": int(path.active[0].sum())}

    return run, read


def product(problem: Problem, _options: dict[str, Any]) -> Timed:
    """The floor: X.T @ X by numpy, with all threads of this process."""
    X = problem["X"]
    return (lambda: X.T @ X), lambda _: {}


def training(_: Problem, options: dict[str, Any]) -> Timed:
    """Training and its parts at one size, next to two floors: seconds of each, in turns.

    Rows repeat after the first thousands: their values do not affect the time.
    """
    n, D, size, threads = (options[name] for name in ("n", "D", "size", "threads"))
    rng = np.random.default_rng(0)
    unique = rng.standard_normal((min(n, UNIQUE_ROWS), D))
    unique[:, 1:] += 0.5 * unique[:, :-1]
    target = unique @ rng.standard_normal(D) + 5 * rng.standard_normal(len(unique))
    X, y = np.resize(unique, (n, D)), np.resize(target, n)
    groups = groups_of({"sizes": np.diff([*range(0, D, size), D]), "costs": rng.uniform(1, 10, -(-D // size))})
    pool, given = ThreadPoolExecutor(threads), Gram.of(moments_of(X[:UNIQUE_ROWS], y[:UNIQUE_ROWS]))

    def path(of: Gram) -> None:
        coefficients(of, sequence(of, groups, "fr"))

    measures: dict[str, Callable[[], object]] = {
        "reading": lambda: list(pool.map(lambda start: X[start : start + PIECE].sum(), range(0, n, PIECE))),
        "X.T @ X": lambda: X.T @ X,
        "moments": lambda: moments_of(X, y, n_jobs=threads),
        "path": lambda: path(given),
        "training": lambda: path(Gram.of(moments_of(X, y, n_jobs=threads))),
    }

    def run() -> dict[str, list[float]]:
        if not options["rounds"]:
            return {name: [timed(act)] for name, act in measures.items()}
        return turns({name: partial(timed, act) for name, act in measures.items()}, options["rounds"])

    return run, lambda each: {"each": each, "groups": len(groups), "data_mib": X.nbytes / 2**20}
