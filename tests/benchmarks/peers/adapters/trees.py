"""Features that trees use, from the dumps of LightGBM and XGBoost. Needs neither."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

__all__ = ["lightgbm_features", "used_by_rounds", "xgboost_features"]


def lightgbm_features(node: dict[str, Any]) -> Iterator[int]:
    """Yield the features of the splits of a tree of `Booster.dump_model`."""
    pending = [node]
    while pending:
        tree = pending.pop()
        if "split_feature" in tree:
            yield int(tree["split_feature"])
            pending += [tree["left_child"], tree["right_child"]]


def xgboost_features(node: dict[str, Any]) -> Iterator[int]:
    """Yield the features of the splits of a tree of `Booster.get_dump(dump_format="json")`, named f0, f1, ..."""
    pending = [node]
    while pending:
        tree = pending.pop()
        if "split" in tree:
            yield int(str(tree["split"]).removeprefix("f"))
            pending += tree.get("children", [])


def used_by_rounds(trees: Iterable[Iterable[int]], per_round: int, rounds: Iterable[int], D: int) -> Any:
    """Return which features the trees of the first rounds use, (len(rounds), D).

    Parameters
    ----------
    trees : features of each tree, in training order.
    per_round : trees per round, one for each score.
    rounds : numbers of rounds, ascending.
    """
    counts = list(rounds)
    used = np.zeros((len(counts), D), dtype=np.bool_)
    for number, features in enumerate(trees):
        first = next((i for i, upto in enumerate(counts) if number // per_round < upto), None)
        if first is None:
            break
        used[first:, list(features)] = True
    return used
