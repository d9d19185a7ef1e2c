"""adelie: a path of the Group Lasso (group elastic net at alpha 1), from the Gram or from rows.

From the Gram: 1/2 w'S w - q'w + lambda sum_g penalty_g |w_g|; the penalties are the costs of the groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import adelie
import numpy as np

from benchmarks.peers.adapters.worker import Call, Problem

__all__ = ["CALLS"]

Timed = tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]


def _starts(problem: Problem) -> Any:
    return np.cumsum(problem["sizes"]) - problem["sizes"]


def from_gram(problem: Problem, options: dict[str, Any]) -> Timed:
    """The path of 100 penalties from the Gram."""
    A, v = np.asfortranarray(problem["S"]), problem["q"].copy()
    groups, penalty = _starts(problem), problem["costs"].astype(np.float64)

    def run() -> Any:
        return adelie.solver.gaussian_cov(
            A,
            v,
            groups=groups,
            penalty=penalty,
            n_threads=options["threads"],
            early_exit=options["early_exit"],
            lmda_path_size=100,
            progress_bar=False,
        )

    return run, _read


def from_rows(problem: Problem, options: dict[str, Any]) -> Timed:
    """The same path from rows, which must be in Fortran order."""
    X, y = np.asfortranarray(problem["X"]), problem["y"].copy()
    groups, penalty = _starts(problem), problem["costs"].astype(np.float64)

    def run() -> Any:
        return adelie.grpnet(
            X=X,
            glm=adelie.glm.gaussian(y=y, dtype=np.float64),
            groups=groups,
            penalty=penalty,
            n_threads=options["threads"],
            early_exit=options["early_exit"],
            lmda_path_size=100,
            progress_bar=False,
        )

    return run, _read


def _read(state: Any) -> dict[str, Any]:
    return {"coef": state.betas.toarray(), "lambdas": len(state.lmdas)}


CALLS: dict[str, Call] = {"gram": from_gram, "rows": from_rows}
