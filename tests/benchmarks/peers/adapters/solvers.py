"""The solvers of peers, from the Gram or from rows: each function imports its package, and compiles before it is timed.

Penalties of the Group Lasso are mu, 1/(2n) |y - Xw|^2 + mu sum_g cost_g |w_g|; only SPAMS has another unit.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from benchmarks.peers.adapters.worker import Problem, Timed


def _coef(coef: Any) -> dict[str, Any]:
    return {"coef": np.asarray(coef, dtype=np.float64).ravel()}


def pursuit(problem: Problem, options: dict[str, Any]) -> Timed:
    """scikit-learn's orthogonal matching pursuit: single columns; with `path` the coefficients after every step."""
    from sklearn.linear_model import orthogonal_mp_gram

    C, q, path = problem["S"].copy(), problem["q"].copy(), options["path"]
    C[np.diag_indices(len(C))] += 1e-5
    return lambda: orthogonal_mp_gram(
        C, q, n_nonzero_coefs=len(C), return_path=path
    ), lambda coef: {"coef": np.atleast_2d(np.asarray(coef).T)} if path else {}


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


def skglm(problem: Problem, options: dict[str, Any]) -> Timed:
    """The optimum at one penalty."""
    from skglm import GroupLasso

    X, y = np.asfortranarray(problem["X"]), problem["y"].copy()
    sizes, weights = problem["sizes"].tolist(), problem["costs"].astype(np.float64)

    def solve(X: Any, y: Any, mu: float, tolerance: float) -> Any:
        return GroupLasso(groups=sizes, alpha=mu, weights=weights, tol=tolerance, fit_intercept=False).fit(X, y).coef_

    solve(np.asfortranarray(X[:200]), y[:200], 10 * options["mu"], 1e-2)
    return lambda: solve(X, y, options["mu"], options["tolerance"]), _coef


def spams(problem: Problem, options: dict[str, Any]) -> Timed:
    """One penalty by accelerated gradients on a forest of groups: 1/2 |y - Xw|^2 + n mu sum_g eta_g |w_g|."""
    import scipy.sparse
    import spams

    X, y = np.asfortranarray(problem["X"]), np.asfortranarray(problem["y"][:, np.newaxis])
    sizes, J = problem["sizes"], len(problem["sizes"])
    children = np.zeros((J + 1, J + 1), dtype=np.bool_)
    children[1:, 0] = True  # a root without columns or cost, above all groups
    tree = {
        "eta_g": np.concatenate([[0.0], problem["costs"]]).astype(np.float64),
        "groups": scipy.sparse.csc_matrix(children),
        "own_variables": np.concatenate([[0], np.cumsum(sizes) - sizes]).astype(np.int32),
        "N_own_variables": np.concatenate([[0], sizes]).astype(np.int32),
    }
    start = np.zeros((X.shape[1], 1), order="F")
    solver = {"lambda1": len(y) * options["mu"], "tol": options["tolerance"], "numThreads": options["threads"]}
    form = {"loss": "square", "regul": "tree-l2", "intercept": False, "pos": False, "max_it": 1000}
    more = solver | form | {"compute_gram": True, "return_optim_info": False}  # more rows than columns
    return lambda: spams.fistaTree(y, X, start, tree, **more), _coef


def abess(problem: Problem, options: dict[str, Any]) -> Timed:
    """Best subsets by splicing, without costs: of `support` groups, or of each number of them up to it."""
    from abess import LinearRegression

    X, y = np.ascontiguousarray(problem["X"]), problem["y"].copy()
    group = np.repeat(np.arange(len(problem["sizes"])), problem["sizes"])
    sizes = range(1 if options["path"] else options["support"], options["support"] + 1)
    more = {"group": group, "thread": options["threads"]}
    return lambda: LinearRegression(support_size=sizes, **more).fit(X, y), lambda model: _coef(model.coef_)


def mlxtend(problem: Problem, options: dict[str, Any]) -> Timed:
    """Forward selection of all groups by the explained variance: a fit for every candidate, without costs."""
    from mlxtend.feature_selection import SequentialFeatureSelector
    from sklearn.linear_model import LinearRegression

    X, y, owner = problem["X"], problem["y"], np.repeat(np.arange(len(problem["sizes"])), problem["sizes"])
    groups = [np.flatnonzero(owner == g).tolist() for g in range(len(problem["sizes"]))]
    more = {"scoring": "r2", "cv": 0, "feature_groups": groups, "n_jobs": options["threads"]}

    def read(selector: Any) -> dict[str, Any]:
        selected: list[int] = []
        steps = [step for _, step in sorted(selector.subsets_.items())]
        for step in steps:
            selected += sorted(set(owner[list(step["feature_idx"])].tolist()) - set(selected))
        return {"order": np.array(selected), "explained": 0.5 * np.array([float(step["avg_score"]) for step in steps])}

    return lambda: SequentialFeatureSelector(LinearRegression(), k_features=len(groups), **more).fit(X, y), read
