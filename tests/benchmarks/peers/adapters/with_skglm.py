"""skglm: one penalty of the Group Lasso, from rows, as 1/(2n) |y - Xw|^2 + alpha sum_g weight_g |w_g|."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from skglm import GroupLasso

from benchmarks.peers.adapters.worker import Call, Problem

__all__ = ["CALLS"]


def group_lasso(problem: Problem, options: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]:
    """The optimum at one penalty. Compiled before it is timed."""
    X, y = np.asfortranarray(problem["X"]), problem["y"].copy()
    sizes, weights = problem["sizes"].tolist(), problem["costs"].astype(np.float64)

    def solve(X: Any, y: Any, mu: float, tolerance: float) -> Any:
        solver = GroupLasso(groups=sizes, alpha=mu, weights=weights, tol=tolerance, fit_intercept=False)
        return solver.fit(X, y).coef_

    solve(np.asfortranarray(X[:200]), y[:200], 10 * options["mu"], 1e-2)

    def run() -> Any:
        return solve(X, y, options["mu"], options["tolerance"])

    def read(coef: Any) -> dict[str, Any]:
        return {"coef": np.asarray(coef, dtype=np.float64).ravel()}

    return run, read


CALLS: dict[str, Call] = {"rows": group_lasso}
