"""The models that each method offers on a data set: their costs, validation results and test results."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.groups import COST_TOLERANCE
from anytime.types import Bool, Float
from benchmarks.peers.budgets import Points, cost_of, mean_upto, prices, value_at_budgets
from benchmarks.peers.environments import Environment
from benchmarks.peers.quality_sets import QualitySet
from benchmarks.peers.workers import Process, write_arrays

__all__ = ["Candidates", "additive", "boosted", "by_least_squares", "by_likelihood"]

ROUNDS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 200)
"""Numbers of rounds whose prefixes are offered; up to 55 for many classes, where a round is one tree per class."""

TRADEOFFS = tuple(float(value) for value in np.logspace(-6.5, -1.5, 8))
"""Of LightGBM, besides none: weight of a unit of cost, per row, against the loss."""

DEPTHS = (1, 2, 4, 6)
"""Of XGBoost's trees; the model whose prefixes validate best on average over budgets is selected."""

TIMEOUT_S = 3600.0
LIKELIHOOD_ALPHA = 1e-4

REFITTED = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""Shares of the cost at which a peer that knows no prefixes is fitted again, if there are more than 16 prefixes."""


class Candidates(NamedTuple):
    """What a method offers, by measure, and the seconds of fitting; of ours, the columns (m, D) of each prefix."""

    points: dict[str, Points]
    seconds: float
    columns: Bool | None = None


def by_least_squares(problem: QualitySet, basis: str) -> Candidates:
    """Return the prefixes of our model; alpha, and K of the basis `auto`, by cross-validation on the rows to fit on."""
    if problem.task == "ranking":
        model: Any = AnytimeRegressor(problem.groups, alpha="cv", basis=basis, n_jobs=2)
    else:
        model = AnytimeClassifier(problem.groups, family="gaussian", alpha="cv", basis=basis, n_jobs=2)
    return _prefixes(problem, model)


def by_likelihood(problem: QualitySet) -> Candidates:
    """Return the same by a likelihood: Poisson for relevances as counts, logistic or softmax for classes."""
    if problem.task == "ranking":
        model: Any = AnytimeRegressor(
            problem.groups, family="poisson", alpha=LIKELIHOOD_ALPHA, basis="linear", n_jobs=2
        )
    else:
        family: Any = "binomial" if problem.task == "binary" else "multinomial"
        alpha = LIKELIHOOD_ALPHA if problem.task == "binary" else 1e-2
        model = AnytimeClassifier(problem.groups, family=family, alpha=alpha, basis="linear", n_jobs=2)
    return _prefixes(problem, model)


def _prefixes(problem: QualitySet, model: Any) -> Candidates:
    start = time.perf_counter()
    model.fit(problem.fit.X, problem.fit.y, query=problem.fit.query)
    seconds = time.perf_counter() - start
    staged = model.staged_predict if problem.task == "ranking" else model.staged_predict_proba
    scores = {}
    for name, part in (("choose", problem.choose), ("test", problem.test)):
        predicted = np.array(list(staged(part.X)))
        scores[name] = predicted[:, :, 1] - 0.5 if problem.task == "binary" else predicted
    columns = np.zeros((model.model_.steps + 1, len(problem.groups.features)), dtype=np.bool_)
    for prefix, names in enumerate(model.model_.computed):
        for name in names:
            columns[prefix, problem.groups.slices[problem.groups.position(name)]] = True
    return Candidates(_points(problem, model.curve_.costs, scores["choose"], scores["test"]), seconds, columns)


def _points(problem: QualitySet, costs: Float, validation: Float, test: Float) -> dict[str, Points]:
    found = {}
    for measure in problem.measures:
        terms, weights = problem.units(measure, problem.choose, validation)
        quality = terms.sum(axis=1) / weights.sum()
        found[measure] = Points(costs, quality, problem.units(measure, problem.test, test)[0])
    return found


def boosted(problem: QualitySet, environment: Environment, quick: bool) -> dict[str, Candidates]:
    """Return the models of LightGBM and XGBoost.

    LightGBM: every prefix of every model, for both ways to price features and some trade-offs, so one model for each
    budget that is known before the fit. XGBoost: the prefixes of one model. Relevances are fitted by squares, and for
    NDCG also by their rankers.

    Raises
    ------
    FailedError
        A peer raised or timed out.
    """
    shared, full = prices(problem.groups)
    found: dict[str, Candidates] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        arrays = _tables(problem) | {"shared": shared, "full": full, "queries": problem.fit.queries}
        write_arrays(folder, arrays)
        with Process(environment, "with_boosting", 1, folder / "log") as process:
            process.load(folder, tuple(arrays))
            for name in ("lightgbm", "xgboost"):
                found[name] = _boosted_by(problem, process, name, quick)
    return found


def additive(problem: QualitySet, environment: Environment, columns: Bool) -> dict[str, tuple[Candidates, float]]:
    """Return explainable boosting machines without and with pairs of columns, and their time to predict a row, in us.

    They are fitted again on the columns (m, D) of our prefixes, so that they pay the same. With pairs they know two
    classes at most. Relevances are fitted by squares. Raises FailedError as `boosted`.
    """
    costs = cost_of(columns, problem.groups)
    within = np.searchsorted(costs, np.array(REFITTED) * costs[-1] * (1 + COST_TOLERANCE), side="right") - 1
    chosen = np.arange(1, len(costs)) if len(costs) <= 17 else np.unique(np.maximum(within, 1))
    found: dict[str, tuple[Candidates, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        arrays = _tables(problem) | {"prefixes": columns[chosen]}
        write_arrays(folder, arrays)
        with Process(environment, "with_ebm", 1, folder / "log") as process:
            process.load(folder, tuple(arrays))
            for pairs in (False, True)[: 1 if problem.task == "multiclass" else 2]:
                options = {"classes": problem.classes, "threads": 1, "pairs": pairs}
                outcome, scored = process.arrays("ebm", options, TIMEOUT_S)
                points = _points(problem, costs[chosen], scored["validation"], scored["test"])
                found["pairs" if pairs else "columns"] = Candidates(points, outcome["seconds"]), outcome["row_us"]
    return found


def _tables(problem: QualitySet) -> dict[str, Any]:
    """Return the rows to fit on, those to choose by, and those to test."""
    return {"X": problem.fit.X, "y": problem.fit.y, "Xv": problem.choose.X, "Xt": problem.test.X}


def _boosted_by(problem: QualitySet, process: Process, name: str, quick: bool) -> Candidates:
    """Return the candidates of one of the two, over its settings."""
    settings: list[dict[str, Any]] = (
        [{"leaves": 15, "tradeoffs": TRADEOFFS[:: 4 if quick else 1]}]
        if name == "lightgbm"
        else [{"depth": depth} for depth in DEPTHS]
    )
    candidates: list[dict[str, Points]] = []
    seconds = 0.0
    for setting in settings:
        joined: dict[str, Points] = {}
        for objective, ranks in _objectives(problem, name):
            rounds = ROUNDS[:9] if problem.task == "multiclass" else ROUNDS
            options = {
                "objective": objective,
                "ranks": ranks,
                "classes": problem.classes,
                "rounds": rounds,
                "threads": 1,
            }
            outcome, arrays = process.arrays(name, options | setting, TIMEOUT_S)
            seconds += outcome["seconds"]
            costs = cost_of(arrays["used"], problem.groups)
            points = _points(problem, costs, arrays["validation"], arrays["test"])
            if ranks:  # scores of a ranker are not relevances
                points = {"NDCG@5": points["NDCG@5"]}
            joined |= {key: joined[key].joined(new) if key in joined else new for key, new in points.items()}
        candidates.append(joined)
    return Candidates({measure: _best([each[measure] for each in candidates]) for measure in problem.measures}, seconds)


def _objectives(problem: QualitySet, name: str) -> list[tuple[str, bool]]:
    if problem.task == "binary":
        return [("binary" if name == "lightgbm" else "binary:logistic", False)]
    if problem.task == "multiclass":
        return [("multiclass" if name == "lightgbm" else "multi:softprob", False)]
    if name == "lightgbm":
        return [("regression", False), ("lambdarank", True)]
    return [("reg:squarederror", False), ("rank:ndcg", True)]


def _best(candidates: list[Points]) -> Points:
    """Return the candidates whose mean over budgets validates best."""

    def validated(points: Points) -> float:
        budgets = np.unique(np.concatenate([[0.0], points.costs]))
        mirrored = Points(points.costs, points.validation, points.validation)
        floor = float(points.validation.min())
        values = value_at_budgets(mirrored, budgets, floor, chosen=True)
        return float(mean_upto(budgets, values, float(budgets[-1]) or 1.0))

    return max(candidates, key=validated)
