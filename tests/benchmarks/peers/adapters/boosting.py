"""Trees at some feature cost: LightGBM with cost-effective penalties, XGBoost by prefixes of its trees, and EBM.

Each call fits models on the training rows and scores two other tables. A *point* is one model, or a prefix of its
trees: its scores of both tables, and the features that its trees use.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from benchmarks.peers.adapters.worker import Problem, Timed

OUTER_BAGS = 4
"""Fits that an EBM averages; interpret's default of 14 takes three times as long."""


def tree_features(tree: dict[str, Any]) -> Iterator[int]:
    """Yield the features of the splits of a tree of LightGBM's `dump_model`, or of XGBoost's `get_dump` (f0, ...)."""
    split = tree.get("split_feature", tree.get("split"))
    if split is not None:
        yield int(str(split).removeprefix("f"))
        for child in tree.get("children") or (tree["left_child"], tree["right_child"]):
            yield from tree_features(child)


def used_by_rounds(trees: Iterable[Iterable[int]], per_round: int, rounds: Iterable[int], D: int) -> Any:
    """Return which features the trees of the first rounds use, (len(rounds), D); `per_round` trees are one round."""
    counts = np.array(list(rounds))
    used = np.zeros((len(counts), D), dtype=np.bool_)
    for number, features in enumerate(trees):
        used[np.ix_(number // per_round < counts, np.array(list(features), dtype=np.intp))] = True
    return used


def _read(points: list[Any]) -> dict[str, Any]:
    return dict(zip(("validation", "test", "used"), map(np.stack, zip(*points, strict=True)), strict=False))


def _parameters(options: dict[str, Any]) -> dict[str, Any]:
    several = {"num_class": options["classes"]} if options["classes"] > 2 else {}
    return {"objective": options["objective"], "seed": 0} | several


def lightgbm(problem: Problem, options: dict[str, Any]) -> Timed:
    """Fit a model for each trade-off; a feature is charged at its first split (`cegb_*`)."""
    import lightgbm

    X, y, rounds = problem["X"], problem["y"], options["rounds"]
    look = {"learning_rate": 0.1, "num_leaves": options["leaves"], "num_threads": options["threads"]}
    parameters = _parameters(options) | look | {"deterministic": True, "verbosity": -1}

    def fitted(tradeoff: float, prices: Any) -> list[Any]:
        priced = {"cegb_tradeoff": tradeoff, "cegb_penalty_feature_coupled": prices.tolist()} if tradeoff > 0 else {}
        queries = problem["queries"] if options["ranks"] else None
        table = lightgbm.Dataset(X, y, group=queries, params={"verbosity": -1})
        model = lightgbm.train(parameters | priced, table, num_boost_round=rounds[-1])
        found = model.dump_model()
        trees = [list(tree_features(tree["tree_structure"])) for tree in found["tree_info"]]
        used = used_by_rounds(trees, int(found["num_tree_per_iteration"]), rounds, X.shape[1])

        def scores(name: str, upto: int) -> Any:
            return np.asarray(model.predict(problem[name], num_iteration=upto, raw_score=True), dtype=np.float32)

        return [(scores("Xv", upto), scores("Xt", upto), used[i]) for i, upto in enumerate(rounds)]

    def run() -> list[Any]:
        points = fitted(0.0, problem["shared"])
        for prices in (problem["shared"], problem["full"]):
            for tradeoff in options["tradeoffs"]:
                points += fitted(tradeoff * len(y), prices)
        return points

    return run, _read


def lightgbm_columns(problem: Problem, options: dict[str, Any]) -> Timed:
    """Fit LightGBM with its defaults on each set of columns (m, D); those in `nominal` are categories."""
    import lightgbm

    objective = {1: "regression", 2: "binary"}.get(options["classes"], "multiclass")
    parameters = _parameters(options | {"objective": objective}) | {"num_threads": 1, "verbosity": -1}

    def scores(columns: Any) -> Any:
        nominal = np.flatnonzero(np.isin(np.flatnonzero(columns), options.get("nominal", ()))).tolist()
        table = lightgbm.Dataset(problem["X"][:, columns], problem["y"], categorical_feature=nominal)
        model = lightgbm.train(parameters, table)
        return model.predict(problem["Xt"][:, columns], raw_score=True)

    return lambda: [scores(columns) for columns in problem["prefixes"]], lambda found: {"test": np.stack(found)}


def xgboost(problem: Problem, options: dict[str, Any]) -> Timed:
    """Fit one model, and use its prefixes by `iteration_range`."""
    import xgboost

    X, y, rounds = problem["X"], problem["y"], options["rounds"]
    look = {"eta": 0.1, "max_depth": options["depth"], "nthread": options["threads"], "tree_method": "hist"}

    def run() -> list[Any]:
        table = xgboost.DMatrix(X, y)
        if options["ranks"]:
            table.set_group(problem["queries"])
        model = xgboost.train(_parameters(options) | look, table, num_boost_round=rounds[-1])
        trees = [list(tree_features(json.loads(tree))) for tree in model.get_dump(dump_format="json")]
        used = used_by_rounds(trees, options["classes"] if options["classes"] > 2 else 1, rounds, X.shape[1])
        tables = [xgboost.DMatrix(problem[name]) for name in ("Xv", "Xt")]

        def scores(upto: int) -> list[Any]:
            return [model.predict(table, iteration_range=(0, upto), output_margin=True) for table in tables]

        return [(*scores(upto), used[i]) for i, upto in enumerate(rounds)]

    return run, _read


def ebm(problem: Problem, options: dict[str, Any]) -> Timed:
    """Fit an explainable boosting machine for each prefix (m, D) of columns, some `nominal`, with `pairs` or not."""
    from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

    several = options["classes"] > 1
    kind = ExplainableBoostingClassifier if several else ExplainableBoostingRegressor
    more = {"outer_bags": OUTER_BAGS, "n_jobs": options["threads"], "random_state": 0}

    def point(columns: Any) -> tuple[Any, Any, float]:
        types = ["nominal" if j in options.get("nominal", ()) else "auto" for j in np.flatnonzero(columns).tolist()]
        model = kind(interactions="3x" if options["pairs"] else 0, feature_types=types, **more)
        model.fit(problem["X"][:, columns], problem["y"])
        scores = model.decision_function if several else model.predict
        start = time.perf_counter()
        test = scores(problem["Xt"][:, columns])
        row_us = 1e6 * (time.perf_counter() - start) / len(test)
        return scores(problem["Xv"][:, columns]).astype(np.float32), test.astype(np.float32), row_us

    return lambda: [
        point(columns) for columns in problem["prefixes"]
    ], lambda points: _read([point[:2] for point in points]) | {"row_us": points[-1][2]}
