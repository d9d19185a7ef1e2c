"""Explainable boosting machines (interpret) on the columns of each prefix, with and without pairs of columns.

Each call fits one machine for each prefix on its columns alone, and scores two other tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

from benchmarks.peers.adapters.worker import Call, Problem

__all__ = ["CALLS"]

OUTER_BAGS = 4
"""Fits that a machine averages; interpret's default of 14 takes three times as long."""


def by_ebm(problem: Problem, options: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]:
    """Fit a machine for each prefix (m, D) of columns; options are `classes` (1 for numbers), `threads` and `pairs`."""
    several = options["classes"] > 1
    kind = ExplainableBoostingClassifier if several else ExplainableBoostingRegressor

    def scores(model: Any, X: Any) -> Any:
        return model.decision_function(X) if several else model.predict(X)

    def run() -> list[tuple[Any, Any, float]]:
        found = []
        for columns in problem["prefixes"]:
            model = kind(
                interactions="3x" if options["pairs"] else 0,
                outer_bags=OUTER_BAGS,
                n_jobs=options["threads"],
                random_state=0,
            )
            model.fit(problem["X"][:, columns], problem["y"])
            start = time.perf_counter()
            test = scores(model, problem["Xt"][:, columns])
            seconds = time.perf_counter() - start
            found.append((scores(model, problem["Xv"][:, columns]), test, seconds / len(test)))
        return found

    def read(found: list[tuple[Any, Any, float]]) -> dict[str, Any]:
        validation, test = (np.stack([point[i] for point in found]).astype(np.float32) for i in range(2))
        return {"validation": validation, "test": test, "row_us": 1e6 * found[-1][2]}

    return run, read


CALLS: dict[str, Call] = {"ebm": by_ebm}
