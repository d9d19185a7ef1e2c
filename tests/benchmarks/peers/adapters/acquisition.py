"""Classes predicted from a hard budget of groups: our sequence, and peers with one list of groups for all rows.

The peers order the groups by their importance in a model of all columns, and fit one predictor for each budget. A
result has the probabilities of the test rows at each budget, and times in processor seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.peers.adapters.worker import MIN_S, Problem, Timed

Predictor = Callable[[Any], Any]
"""Columns (n, D) to probabilities (n, classes)."""


def processor_s(act: Callable[[], Any]) -> float:
    """Return the processor seconds of a call: the mean over at least `MIN_S`, after a call that does not count."""
    act()
    calls, start = 0, time.process_time()
    while (spent := time.process_time() - start) < MIN_S:
        act()
        calls += 1
    return spent / calls


def timed(problem: Problem, fit: Callable[[], Sequence[Predictor]]) -> Timed:
    """Return the call that fits a predictor for each budget, and reads their probabilities and times."""

    def run() -> Any:
        start = time.process_time()
        predictors = fit()
        return predictors, time.process_time() - start

    def read(found: Any) -> dict[str, Any]:
        predictors, fit_s = found
        last, X = predictors[-1], problem["Xt"]
        row, rows = X[:1], np.resize(X, (1000, X.shape[1]))
        times = {"row_s": processor_s(lambda: last(row)), "rows_s": processor_s(lambda: last(rows))}
        return {"test": np.stack([predictor(X) for predictor in predictors]), "fit_s": fit_s} | times

    return run, read


def sequence(problem: Problem, options: dict[str, Any]) -> Timed:
    """Ours with its defaults, on the rows to fit on alone."""
    from anytime.estimators import AnytimeClassifier
    from benchmarks.peers.adapters.with_ours import groups_of

    def fit() -> list[Predictor]:
        model = AnytimeClassifier(groups_of(problem)).fit(problem["X"], problem["y"])
        return [partial(model.predict_proba, budget=budget) for budget in options["budgets"]]

    return timed(problem, fit)


def _static(
    problem: Problem, options: dict[str, Any], fit: Callable[[Any], Predictor], importances: Callable[[Predictor], Any]
) -> Timed:
    """Return the call that orders groups by importance, and fits each budget's columns (indices) by `fit`."""
    group = np.repeat(np.arange(len(problem["sizes"])), problem["sizes"])

    def predictors() -> list[Predictor]:
        order = np.argsort(-importances(fit(np.arange(len(group)))), kind="stable")
        return [fit(np.flatnonzero(np.isin(group, order[:budget]))) for budget in options["budgets"]]

    return timed(problem, predictors)


def _sums(problem: Problem, importances: Any) -> Any:
    """Return the sum of the importances of each group's columns."""
    return np.add.reduceat(importances, np.cumsum(problem["sizes"]) - problem["sizes"])


def _both(problem: Problem) -> tuple[Any, Any]:
    """Return the rows to fit on and those to validate, for a peer that splits them itself."""
    return np.concatenate([problem["X"], problem["Xv"]]), np.concatenate([problem["y"], problem["yv"]])


def permutation(problem: Problem, options: dict[str, Any]) -> Timed:
    """A network of two layers, and the log loss of the rows to validate when a group's columns are permuted."""
    from sklearn.metrics import log_loss
    from sklearn.neural_network import MLPClassifier

    X, y = _both(problem)
    rng = np.random.default_rng(options["seed"])
    more = {"early_stopping": True, "validation_fraction": 0.25, "random_state": options["seed"]}

    def fit(columns: Any) -> Predictor:
        model = MLPClassifier((128, 128), **more).fit(X[:, columns], y)
        return lambda rows: model.predict_proba(rows[:, columns])

    def importances(predictor: Predictor) -> Any:
        ends, found = np.cumsum(problem["sizes"]), []
        for start, end in zip(ends - problem["sizes"], ends, strict=True):
            losses = []
            for _ in range(5):
                rows = problem["Xv"].copy()
                rows[:, start:end] = rng.permutation(rows[:, start:end])
                losses.append(log_loss(problem["yv"], predictor(rows), labels=np.arange(options["classes"])))
            found.append(np.mean(losses))
        return np.array(found)

    return _static(problem, options, fit, importances)


def lightgbm(problem: Problem, options: dict[str, Any]) -> Timed:
    """Boosted trees that stop by the rows to validate, and their gains."""
    import lightgbm

    several = {"objective": "multiclass", "num_class": options["classes"]}
    kind = several if options["classes"] > 2 else {"objective": "binary"}
    parameters = kind | {"verbosity": -1, "num_threads": 1, "deterministic": True, "seed": options["seed"]}
    gains = []

    def fit(columns: Any) -> Predictor:
        table = lightgbm.Dataset(problem["X"][:, columns], problem["y"])
        valid = table.create_valid(problem["Xv"][:, columns], problem["yv"])
        stop = [lightgbm.early_stopping(20, verbose=False)]
        model = lightgbm.train(parameters, table, 500, valid_sets=[valid], callbacks=stop)
        gains.append(model.feature_importance("gain"))

        def predictor(rows: Any) -> Any:
            likely = model.predict(rows[:, columns])
            return likely if likely.ndim == 2 else np.column_stack([1 - likely, likely])

        return predictor

    return _static(problem, options, fit, lambda _: _sums(problem, gains[-1]))


def ebm(problem: Problem, options: dict[str, Any]) -> Timed:
    """Explainable boosting machines without pairs, and the importances of their terms."""
    from interpret.glassbox import ExplainableBoostingClassifier

    from benchmarks.peers.adapters.boosting import OUTER_BAGS

    X, y = _both(problem)
    more = {"interactions": 0, "outer_bags": OUTER_BAGS, "n_jobs": 1, "random_state": options["seed"]}
    models = []

    def fit(columns: Any) -> Predictor:
        model = ExplainableBoostingClassifier(**more).fit(X[:, columns], y)
        models.append(model)
        return lambda rows: model.predict_proba(rows[:, columns])

    return _static(problem, options, fit, lambda _: _sums(problem, models[-1].term_importances()))
