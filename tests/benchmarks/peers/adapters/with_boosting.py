"""Gradient boosting at some feature cost: LightGBM with cost-effective penalties, XGBoost by prefixes of its trees.

Each call fits models on the training rows and scores two other tables by prefixes of the trees. A *point* is one such
prefix: its scores, and the features that its trees use.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import lightgbm
import numpy as np
import xgboost

from benchmarks.peers.adapters.trees import lightgbm_features, used_by_rounds, xgboost_features
from benchmarks.peers.adapters.worker import Call, Problem

__all__ = ["CALLS"]

Timed = tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]
Point = tuple[Any, Any, Any]


def by_lightgbm(problem: Problem, options: dict[str, Any]) -> Timed:
    """Fit a model for each trade-off; a feature is charged at its first split (`cegb_*`)."""
    X, y, D = problem["X"], problem["y"], problem["X"].shape[1]
    rounds = options["rounds"]
    parameters = {
        "objective": options["objective"],
        "learning_rate": 0.1,
        "num_leaves": options["leaves"],
        "num_threads": options["threads"],
        "deterministic": True,
        "seed": 0,
        "verbosity": -1,
    }
    if options["classes"] > 2:
        parameters["num_class"] = options["classes"]

    def fitted(tradeoff: float, prices: Any) -> list[Point]:
        priced = {"cegb_tradeoff": tradeoff, "cegb_penalty_feature_coupled": prices.tolist()} if tradeoff > 0 else {}
        table = lightgbm.Dataset(X, y, group=_sizes(problem, options), params={"verbosity": -1})
        model = lightgbm.train(parameters | priced, table, num_boost_round=rounds[-1])
        found = model.dump_model()
        trees = [lightgbm_features(tree["tree_structure"]) for tree in found["tree_info"]]
        used = used_by_rounds(trees, int(found["num_tree_per_iteration"]), rounds, D)

        def scores(name: str, upto: int) -> Any:
            return np.asarray(model.predict(problem[name], num_iteration=upto, raw_score=True), dtype=np.float32)

        return [(scores("Xv", upto), scores("Xt", upto), used[i]) for i, upto in enumerate(rounds)]

    def run() -> list[Point]:
        points = fitted(0.0, problem["shared"])
        for prices in (problem["shared"], problem["full"]):
            for tradeoff in options["tradeoffs"]:
                points += fitted(tradeoff * len(y), prices)
        return points

    return run, _read


def by_xgboost(problem: Problem, options: dict[str, Any]) -> Timed:
    """Fit one model, and use its prefixes by `iteration_range`."""
    X, y, D = problem["X"], problem["y"], problem["X"].shape[1]
    rounds = options["rounds"]
    parameters = {
        "objective": options["objective"],
        "eta": 0.1,
        "max_depth": options["depth"],
        "nthread": options["threads"],
        "tree_method": "hist",
        "seed": 0,
    }
    if options["classes"] > 2:
        parameters["num_class"] = options["classes"]

    def run() -> list[Point]:
        table = xgboost.DMatrix(X, y)
        sizes = _sizes(problem, options)
        if sizes is not None:
            table.set_group(sizes)
        model = xgboost.train(parameters, table, num_boost_round=rounds[-1])
        trees = [xgboost_features(json.loads(tree)) for tree in model.get_dump(dump_format="json")]
        used = used_by_rounds(trees, options["classes"] if options["classes"] > 2 else 1, rounds, D)
        tables = {name: xgboost.DMatrix(problem[name]) for name in ("Xv", "Xt")}

        def scores(name: str, upto: int) -> Any:
            return model.predict(tables[name], iteration_range=(0, upto), output_margin=True)

        return [(scores("Xv", upto), scores("Xt", upto), used[i]) for i, upto in enumerate(rounds)]

    return run, _read


def _sizes(problem: Problem, options: dict[str, Any]) -> Any:
    """Return the rows of each query, if the objective ranks; queries are consecutive."""
    return problem["queries"] if options["ranks"] else None


def _read(points: list[Point]) -> dict[str, Any]:
    validation, test, used = (np.stack([point[i] for point in points]) for i in range(3))
    return {"validation": validation.astype(np.float32), "test": test.astype(np.float32), "used": used}


CALLS: dict[str, Call] = {"lightgbm": by_lightgbm, "xgboost": by_xgboost}
