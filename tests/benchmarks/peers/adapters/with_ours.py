"""Our own library, in a process like those of the peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anytime._linalg import single_blas_thread
from anytime.groups import FeatureGroups, load_groups
from anytime.model.prefixes import PrefixModels, prefix_models, staircase
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection import FactoredOrder, sequence
from anytime.selection.sparse import group_lasso_path
from benchmarks.peers.adapters.worker import Call, Problem

__all__ = ["CALLS", "coefficients", "gram_of", "groups_of", "product"]

Timed = tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]
ALPHA = 1e-5


def groups_of(problem: Problem) -> FeatureGroups:
    """Return the groups of the problem's sizes and costs."""
    ends = np.cumsum(problem["sizes"]).tolist()
    starts = [0, *ends[:-1]]
    groups = [
        {"name": f"g{g}", "features": [f"x{j}" for j in range(start, end)], "cost": float(cost)}
        for g, (start, end, cost) in enumerate(zip(starts, ends, problem["costs"], strict=True))
    ]
    return load_groups({"cost_unit": "ms", "groups": groups})


def gram_of(problem: Problem) -> Gram:
    """Return the problem's standardised normal equations."""
    S, q = problem["S"], problem["q"][:, np.newaxis]
    D = len(S)
    ones, none = np.ones(D), np.zeros(D)
    single = np.ones(1)
    weight = float(problem["rows"])
    return Gram(S, q, single, none, ones, np.zeros(1), single, none.astype(np.bool_), weight)


def coefficients(gram: Gram, found: FactoredOrder) -> PrefixModels:
    """Return the coefficients of all prefixes, in the units of the rows."""
    with single_blas_thread():
        W = staircase(found.state.factor, found.state.z, found.ends)
    return prefix_models(gram, found.columns, found.ends, W)


def from_gram(problem: Problem, options: dict[str, Any]) -> Timed:
    """Exact forward regression of all groups with all coefficients, from the Gram."""
    gram, groups = gram_of(problem), groups_of(problem)
    blind = bool(options.get("cost_blind"))

    def run() -> tuple[FactoredOrder, PrefixModels]:
        found = sequence(gram, groups, "fr", ALPHA, cost_blind=blind)
        return found, coefficients(gram, found)

    return run, _read


def from_rows(problem: Problem, options: dict[str, Any]) -> Timed:
    """The same from rows."""
    X, y, groups = problem["X"], problem["y"], groups_of(problem)
    blind = bool(options.get("cost_blind"))

    def run() -> tuple[FactoredOrder, PrefixModels]:
        gram = Gram.of(moments_of(X, y, n_jobs=options["threads"]))
        found = sequence(gram, groups, "fr", ALPHA, cost_blind=blind)
        return found, coefficients(gram, found)

    return run, _read


def group_lasso(problem: Problem, options: dict[str, Any]) -> Timed:
    """One penalty of the cost-weighted Group Lasso, from rows."""
    X, y, groups = problem["X"], problem["y"][:, np.newaxis], groups_of(problem)

    def run() -> Any:
        gram = Gram.of(moments_of(X, y, n_jobs=options["threads"]))
        return group_lasso_path(gram, groups.slices, groups.costs, mu=[options["mu"]], tolerance=options["tolerance"])

    def read(path: Any) -> dict[str, Any]:
        return {"coef": path.coef[0][:, 0], "gap": float(path.gaps[0]), "active": int(path.active[0].sum())}

    return run, read


def product(problem: Problem, options: dict[str, Any]) -> Timed:
    """The floor: X.T @ X by numpy, with all threads of this process."""
    X = problem["X"]
    return (lambda: X.T @ X), lambda _: {}


def _read(found: tuple[FactoredOrder, PrefixModels]) -> dict[str, Any]:
    order, models = found
    return {
        "order": np.array([step.adds[-1] for step in order.steps]),
        "explained": order.explained_variance,
        "spent": order.costs,
        "numbers": int(models.packed.size),
    }


CALLS: dict[str, Call] = {"gram": from_gram, "rows": from_rows, "group lasso": group_lasso, "product": product}
