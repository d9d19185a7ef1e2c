"""Which features trees ask for, from what LightGBM and XGBoost tell of them. Needs neither."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

__all__ = ["lightgbm_features", "used_by_rounds", "xgboost_features"]


def lightgbm_features(node: dict[str, Any]) -> Iterator[int]:
    """Features of the splits of a tree, as `Booster.dump_model` tells it."""
    left = [node]
    while left:
        at = left.pop()
        if "split_feature" in at:
            yield int(at["split_feature"])
            left += [at["left_child"], at["right_child"]]


def xgboost_features(node: dict[str, Any]) -> Iterator[int]:
    """Features of the splits of a tree, as `Booster.get_dump(dump_format="json")` tells it, named f0, f1, ..."""
    left = [node]
    while left:
        at = left.pop()
        if "split" in at:
            yield int(str(at["split"]).removeprefix("f"))
            left += at.get("children", [])


def used_by_rounds(trees: Iterable[Iterable[int]], per_round: int, rounds: Iterable[int], D: int) -> Any:
    """(len(rounds), D) which features the trees of the first so many rounds ask for.

    Parameters
    ----------
    trees : features of each tree, in the order in which they were grown.
    per_round : trees that a round grows, one for each score.
    rounds : numbers of rounds, ascending.
    """
    wanted = list(rounds)
    used = np.zeros((len(wanted), D), dtype=np.bool_)
    for number, features in enumerate(trees):
        first = next((i for i, upto in enumerate(wanted) if number // per_round < upto), None)
        if first is None:
            break
        used[first:, list(features)] = True
    return used
