"""SPAMS: one penalty of the Group Lasso by accelerated gradients on a forest of groups, from rows.

It minimises 1/2 |y - Xw|^2 + lambda1 sum_g eta_g |w_g|, so lambda1 is n times our mu and eta the costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import spams

from benchmarks.peers.adapters.worker import Call, Problem

__all__ = ["CALLS"]


def group_lasso(problem: Problem, options: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]:
    """One penalty; `compute_gram` is on, as there are more rows than columns."""
    X, y = np.asfortranarray(problem["X"]), np.asfortranarray(problem["y"][:, np.newaxis])
    sizes, costs = problem["sizes"], problem["costs"]
    J = len(sizes)
    children = np.zeros((J + 1, J + 1), dtype=np.bool_)
    children[1:, 0] = True  # a root without columns or cost, above all groups
    tree = {
        "eta_g": np.concatenate([[0.0], costs]).astype(np.float64),
        "groups": scipy.sparse.csc_matrix(children),
        "own_variables": np.concatenate([[0], np.cumsum(sizes) - sizes]).astype(np.int32),
        "N_own_variables": np.concatenate([[0], sizes]).astype(np.int32),
    }
    start = np.zeros((X.shape[1], 1), order="F")

    def run() -> Any:
        return spams.fistaTree(
            y,
            X,
            start,
            tree,
            return_optim_info=False,
            numThreads=options["threads"],
            lambda1=len(y) * options["mu"],
            max_it=1000,
            tol=options["tolerance"],
            loss="square",
            regul="tree-l2",
            compute_gram=True,
            intercept=False,
            pos=False,
        )

    def read(coef: Any) -> dict[str, Any]:
        return {"coef": np.asarray(coef, dtype=np.float64).ravel()}

    return run, read


CALLS: dict[str, Call] = {"rows": group_lasso}
