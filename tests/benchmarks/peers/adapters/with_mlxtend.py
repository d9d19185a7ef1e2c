"""mlxtend: forward selection of feature groups, a new fit on the rows for every candidate; without costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mlxtend.feature_selection import SequentialFeatureSelector
from sklearn.linear_model import LinearRegression

from benchmarks.peers.adapters.worker import Call, Problem

__all__ = ["CALLS"]


def forward(problem: Problem, options: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]:
    """Select all groups by the explained variance on the training rows."""
    X, y, sizes = problem["X"], problem["y"], problem["sizes"]
    ends = np.cumsum(sizes).tolist()
    groups = [list(range(end - size, end)) for end, size in zip(ends, sizes.tolist(), strict=True)]

    def run() -> Any:
        selector = SequentialFeatureSelector(
            LinearRegression(),
            k_features=len(groups),
            forward=True,
            floating=False,
            scoring="r2",
            cv=0,
            feature_groups=groups,
            n_jobs=options["threads"],
        )
        return selector.fit(X, y)

    def read(selector: Any) -> dict[str, Any]:
        owner = np.repeat(np.arange(len(sizes)), sizes)
        selected: list[int] = []
        explained = []
        for number in sorted(selector.subsets_):
            step = selector.subsets_[number]
            new = set(owner[list(step["feature_idx"])].tolist()) - set(selected)
            selected += sorted(new)
            explained.append(float(step["avg_score"]))
        return {"order": np.array(selected), "explained": 0.5 * np.array(explained)}

    return run, read


CALLS: dict[str, Call] = {"rows": forward}
