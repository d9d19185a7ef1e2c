"""The solvers of peers, from the Gram or from rows: each function imports its package, and compiles before it is timed.

Penalties of the Group Lasso are mu, 1/(2n) |y - Xw|^2 + mu sum_g cost_g |w_g|.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from benchmarks.peers.adapters.worker import Problem, Timed


def _coef(coef: Any) -> dict[str, Any]:
    return {"coef": np.asarray(coef, dtype=np.float64).ravel()}


def pursuit(problem: Problem, _options: dict[str, Any]) -> Timed:
    """scikit-learn's orthogonal matching pursuit of all columns, one by one."""
    from sklearn.linear_model import orthogonal_mp_gram

    C, q = problem["S"].copy(), problem["q"].copy()
    C[np.diag_indices(len(C))] += 1e-5
    return lambda: orthogonal_mp_gram(C, q, n_nonzero_coefs=len(C)), _coef


def _adelie(problem: Problem, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a path of 100 penalties of the Group Lasso (group elastic net at alpha 1)."""
    return {
        "groups": np.cumsum(problem["sizes"]) - problem["sizes"],
        "penalty": problem["costs"].astype(np.float64),
        "n_threads": options["threads"],
        "early_exit": options["early_exit"],
        "lmda_path_size": 100,
        "progress_bar": False,
    }


def _adelie_read(state: Any) -> dict[str, Any]:
    return {"coef": state.betas.toarray(), "lambdas": len(state.lmdas)}


def adelie_gram(problem: Problem, options: dict[str, Any]) -> Timed:
    """The path from the Gram: 1/2 w'S w - q'w + lambda sum_g cost_g |w_g|."""
    import adelie

    A, v, path = np.asfortranarray(problem["S"]), problem["q"].copy(), _adelie(problem, options)
    return lambda: adelie.solver.gaussian_cov(A, v, **path), _adelie_read


def adelie_rows(problem: Problem, options: dict[str, Any]) -> Timed:
    """The same path from rows, which must be in Fortran order."""
    import adelie

    X, y, path = np.asfortranarray(problem["X"]), problem["y"].copy(), _adelie(problem, options)
    return lambda: adelie.grpnet(X=X, glm=adelie.glm.gaussian(y=y, dtype=np.float64), **path), _adelie_read


def celer(problem: Problem, options: dict[str, Any]) -> Timed:
    """The optimum at one penalty, and whether celer reports convergence. Its tolerance is half of ours."""
    from celer import GroupLasso

    X, y = np.asfortranarray(problem["X"]), problem["y"].copy()
    sizes, weights = problem["sizes"].tolist(), problem["costs"].astype(np.float64)

    def solve(X: Any, y: Any, mu: float, tolerance: float) -> tuple[Any, bool]:
        more = {"tol": 0.5 * tolerance, "max_iter": 1000, "fit_intercept": False}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            solver = GroupLasso(groups=sizes, alpha=mu, weights=weights, **more).fit(X, y)
        return solver.coef_, not any("onverge" in str(warning.message) for warning in caught)

    solve(np.asfortranarray(X[:200]), y[:200], 10 * options["mu"], 1e-4)
    return lambda: solve(
        X, y, options["mu"], options["tolerance"]
    ), lambda found: _coef(found[0]) | {"converged": found[1]}
