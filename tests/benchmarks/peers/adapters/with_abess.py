"""abess: best subsets of groups by splicing, from rows, without costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from abess import LinearRegression

from benchmarks.peers.adapters.worker import Call, Problem

__all__ = ["CALLS"]


def subsets(problem: Problem, options: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]:
    """Return the best set of `support` groups, or of each number of them up to it."""
    X, y = np.ascontiguousarray(problem["X"]), problem["y"].copy()
    group = np.repeat(np.arange(len(problem["sizes"])), problem["sizes"])
    sizes = range(1, options["support"] + 1) if options["path"] else [options["support"]]

    def run() -> Any:
        return LinearRegression(support_size=sizes, group=group, thread=options["threads"]).fit(X, y)

    def read(model: Any) -> dict[str, Any]:
        return {"coef": np.asarray(model.coef_, dtype=np.float64).ravel()}

    return run, read


CALLS: dict[str, Call] = {"rows": subsets}
