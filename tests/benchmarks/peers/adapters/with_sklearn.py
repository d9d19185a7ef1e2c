"""scikit-learn's orthogonal matching pursuit on the Gram: single columns, without groups or costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.linear_model import orthogonal_mp_gram

from benchmarks.peers.adapters.worker import Call, Problem

__all__ = ["CALLS"]


def pursuit(problem: Problem, options: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]:
    """All columns one by one; with `path` the coefficients after every step, otherwise the last ones."""
    C, q = problem["S"].copy(), problem["q"].copy()
    C[np.diag_indices(len(C))] += 1e-5

    def run() -> Any:
        return orthogonal_mp_gram(C, q, n_nonzero_coefs=len(C), return_path=options["path"])

    def read(coef: Any) -> dict[str, Any]:
        return {"coef": np.atleast_2d(np.asarray(coef).T)} if options["path"] else {}

    return run, read


CALLS: dict[str, Call] = {"gram": pursuit}
