"""celer: one penalty of the Group Lasso, from rows.

It minimises 1/(2n) |y - Xw|^2 + alpha sum_g weight_g |w_g|, with the costs as weights. Its tolerance is a share of
|y|^2/n, so half of ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from celer import GroupLasso

from benchmarks.peers.adapters.worker import Call, Problem

__all__ = ["CALLS"]


def group_lasso(problem: Problem, options: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]:
    """Return the optimum at one penalty, and whether celer reports convergence. Compiled before it is timed."""
    X, y = np.asfortranarray(problem["X"]), problem["y"].copy()
    sizes, weights = problem["sizes"].tolist(), problem["costs"].astype(np.float64)

    def solve(X: Any, y: Any, mu: float, tolerance: float) -> tuple[Any, bool]:
        solver = GroupLasso(
            groups=sizes, alpha=mu, weights=weights, tol=0.5 * tolerance, max_iter=1000, fit_intercept=False
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            solver.fit(X, y)
        return solver.coef_, not any("onverge" in str(warning.message) for warning in caught)

    solve(np.asfortranarray(X[:200]), y[:200], 10 * options["mu"], 1e-4)

    def run() -> tuple[Any, bool]:
        return solve(X, y, options["mu"], options["tolerance"])

    def read(found: tuple[Any, bool]) -> dict[str, Any]:
        return {"coef": np.asarray(found[0], dtype=np.float64).ravel(), "converged": found[1]}

    return run, read


CALLS: dict[str, Call] = {"rows": group_lasso}
