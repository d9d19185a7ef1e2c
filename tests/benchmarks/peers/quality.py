"""The part of the report on anytime quality: accuracy against cost, by linear prefixes and by boosted trees.

A model computes every group that contains one of its features, with all that those groups require. Of many models
at many costs, the one that validates best within a budget, on rows not used for fitting, gives the value on the
test rows. The real data sets are three tables: rows to fit, to choose
models, and to test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.evaluation.evaluate import ndcg
from anytime.groups import COST_TOLERANCE, FeatureGroups, load_groups
from anytime.types import Bool, Float, Index
from benchmarks.peers.report import Cell, Finding, Part, Picture, Section, Sheet, difference, digits, drawn
from benchmarks.peers.solvers import Worker, loaded

KDD_ROWS = 48_000, 24_000, 50_000
"""Rows of KDD Cup 1999 to fit, to choose models, and of its test table."""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of one part.

    Attributes
    ----------
    X : (n, D) with the groups' features in order.  y : (n,).  query : (n,) ascending, if rows are ranked.
    """

    X: Float
    y: Float
    query: NDArray[Any] | None = None

    @property
    def queries(self) -> Index:
        """Number of rows of each query, in order."""
        return np.unique(self.query, return_counts=True)[1] if self.query is not None else np.array([len(self.y)])

    @cached_property
    def distinct(self) -> tuple[Index, Index]:
        """The rows ordered so that equal ones are neighbours, and the number of rows of each distinct one."""
        _, number, counts = np.unique(self.X, axis=0, return_inverse=True, return_counts=True)
        return np.argsort(number.ravel(), kind="stable"), counts.astype(np.intp)

    def at(self, rows: Index) -> Table:
        """Return some of the rows, grouped by query."""
        selected = rows if self.query is None else rows[np.argsort(self.query[rows], kind="stable")]
        return Table(self.X[selected], self.y[selected], None if self.query is None else self.query[selected])

    def joined(self, other: Table) -> Table:
        """Return the rows of both, grouped by query."""
        query = None if self.query is None else np.concatenate([self.query, np.asarray(other.query)])
        both = Table(np.concatenate([self.X, other.X]), np.concatenate([self.y, other.y]), query)
        return both.at(np.arange(len(both.y)))

    def divided(self, chosen: Bool) -> tuple[Table, Table]:
        """Return the rows to fit on, and those to choose by."""
        return self.at(np.flatnonzero(~chosen)), self.at(np.flatnonzero(chosen))


Tables = tuple[Table, ...]
"""Rows to fit, to choose models, and to test."""


@dataclass(frozen=True, eq=False)
class QualitySet:
    """A data set.

    Attributes
    ----------
    measures : of scores; larger is better.
    classes : number of classes; 1 for relevances, which are ranked, and predicted as numbers.
    """

    name: str
    what: str
    measures: tuple[str, ...]
    classes: int
    groups: FeatureGroups
    fit: Table
    choose: Table
    test: Table

    @property
    def task(self) -> str:
        """What is predicted."""
        return {1: "ranking", 2: "binary"}.get(self.classes, "multiclass")

    def units(self, measure: str, part: Table, scores: Float) -> tuple[Float, Float]:
        """Return the terms of the quality of scores (m, n), or (m, n, classes), for each query or distinct row.

        Rows of equal features have equal scores, so they count as one unit (KDD Cup 1999 repeats each row eight times).
        The area under the ROC curve is one unit.

        Returns
        -------
        terms : (m, u).  weights : (u,). A model's quality is the sum of its terms over the sum of the weights.
        """
        if measure == "AUC":
            return np.array([[roc_auc_score(part.y, each)] for each in scores]), np.ones(1)
        if measure == "NDCG@5":
            assert part.query is not None
            _, starts, counts = np.unique(part.query, return_index=True, return_counts=True)
            queries = [slice(start, start + count) for start, count in zip(starts, counts, strict=True) if count > 1]
            found = [ndcg(part.y[rows], scores[:, rows].T, part.query[rows]) for rows in queries]
            return np.column_stack([value for value in found if value is not None]), np.ones(len(queries))
        if measure == "r2":
            weights = np.square(part.y - self.fit.y.mean())
            terms = np.column_stack([weights, (weights - np.square(scores - part.y)).T])
            assert part.query is not None
            _, first = np.unique(part.query, return_index=True)
            sums = np.add.reduceat(terms, first, axis=0)
            return sums[:, 1:].T, sums[:, 0]
        likely = scores.argmax(axis=2) if scores.ndim == 3 else (scores > 0).astype(np.intp)
        order, sizes = part.distinct
        hits = (likely == part.y)[:, order].astype(np.float64)
        return np.add.reduceat(hits, np.cumsum(sizes) - sizes, axis=1), sizes.astype(np.float64)

    def prior(self, measure: str) -> tuple[Float, Float]:
        """Return the terms and weights of the quality on the test rows without any feature, (u,) each."""
        n = len(self.test.y)
        if measure == "r2":
            scores = np.full((1, n), self.fit.y.mean())
        elif self.task == "multiclass":
            scores = np.tile(np.bincount(self.fit.y.astype(np.intp), minlength=self.classes), (1, n, 1))
        else:
            scores = np.full((1, n), self.fit.y.mean() - 0.5)
        terms, weights = self.units(measure, self.test, scores)
        return terms[0], weights


def columns_of(names: Sequence[str], groups: FeatureGroups) -> Bool:
    """Return which of all features those of some groups are, (D,)."""
    return np.array([group.name in names for group in groups.groups for _ in group.features])


def read_rows(path: Path, groups: FeatureGroups, target: str, *further: str) -> list[Any]:
    """Return features, target and further columns of a table of numbers."""
    table = pd.read_parquet(path, columns=[*groups.features, target, *further])
    features, y = table[[*groups.features]], table[target]
    return [features.to_numpy(np.float64), y.to_numpy(np.float64), *(table[name].to_numpy() for name in further)]


def _classed(path: Path, groups: FeatureGroups, target: str) -> Table:
    """Return rows with a class as target."""
    X, y = read_rows(path, groups, target)
    return Table(X, y.astype(np.intp))


def _at_random(whole: Table, rng: np.random.Generator, *ends: int) -> Tables:
    return tuple(whole.at(rows) for rows in np.split(rng.permutation(len(whole.y)), ends))


def _heart_cleveland(folder: Path, groups: FeatureGroups, rng: np.random.Generator) -> Tables:
    return _at_random(_classed(folder / "data.parquet", groups, "disease"), rng, 160, 200)


def _nhanes(folder: Path, groups: FeatureGroups, rng: np.random.Generator) -> Tables:
    table = pd.read_parquet(folder / "data.parquet")
    died = (table["died_within_10_years"] == "yes").to_numpy(np.intp)
    return _at_random(Table(table[[*groups.features]].to_numpy(np.float64), died), rng, 5_000, 6_500)


def _mq2008(folder: Path, groups: FeatureGroups, _: object) -> Tables:
    X, y, query, fold = read_rows(folder / "data.parquet", groups, "relevance", "qid", "fold")
    return tuple(Table(X, y, query).at(np.flatnonzero(np.isin(fold, folds))) for folds in ((1, 2, 3), (4,), (5,)))


def _yahoo_sample(folder: Path, groups: FeatureGroups, _: object) -> Tables:
    train, test = (
        Table(*read_rows(folder / f"{half}.parquet", groups, "relevance", "qid")) for half in ("train", "test")
    )
    assert train.query is not None
    return *train.divided(np.isin(train.query, np.unique(train.query)[::5])), test.at(np.arange(len(test.y)))


def _kddcup99(folder: Path, groups: FeatureGroups, _: object) -> Tables:
    train, test = (_classed(folder / f"{half}.parquet", groups, "attack") for half in ("train", "test"))
    first, second, third = KDD_ROWS
    return train.at(np.arange(first)), train.at(np.arange(first, first + second)), test.at(np.arange(third))


def _mfeat(folder: Path, groups: FeatureGroups, _: object) -> Tables:
    train, test = (_classed(folder / f"{half}.parquet", groups, "digit") for half in ("train", "test"))
    return *train.divided(np.arange(len(train.y)) % 5 == 0), test


RANKING = ("NDCG@5", "r2")

SETS: dict[str, tuple[tuple[str, ...], int, str, Callable[[Path, FeatureGroups, np.random.Generator], Tables]]] = {
    "mq2008": (RANKING, 1, "MQ2008 (LETOR 4.0): folds 1 to 3 to fit on, 4 to choose by, 5 to test", _mq2008),
    "yahoo_sample": (RANKING, 1, "a sample of Yahoo! Learning to Rank; every fifth query to choose by", _yahoo_sample),
    "kddcup99": (
        ("accuracy",),
        2,
        "KDD Cup 1999: {:,} rows to fit on, {:,} to choose by, {:,} of other days".format(*KDD_ROWS),
        _kddcup99,
    ),
    "mfeat": (("accuracy",), 10, "Multiple Features: digits; every fifth training row to choose by", _mfeat),
    "heart_cleveland": (
        ("accuracy",),
        2,
        "heart disease, Cleveland: 160 rows to fit on, 40 to choose by, 103 to test",
        _heart_cleveland,
    ),
    "nhanes": (("AUC",), 2, "NHANES I: 5,000 persons to fit on, 1,500 to choose by, 3,035 to test", _nhanes),
}
"""The measures of each, the number of its classes (1 for relevances), what it is, and how it is read and split."""


def load(name: str, data: Path, seed: int = 0) -> QualitySet:
    """Load a data set from the common folder; `seed` is that of a random split."""
    measures, classes, what, parts = SETS[name]
    groups = load_groups(data / name / "groups.json")
    return QualitySet(name, what, measures, classes, groups, *parts(data / name, groups, np.random.default_rng(seed)))


SHARES = (0.05, 0.25, 1.0)
"""Shares of the cost of all groups over which curves are averaged."""

LINEAR, BASIS, LIKELIHOOD = "ours, linear columns", "ours, basis by cross-validation", "ours, linear, likelihood"
LIGHTGBM, XGBOOST = "LightGBM, a model for each budget", "XGBoost, prefixes of one model"
EBM, EBM_PAIRS = "EBM, refitted on each prefix's columns", "EBM with pairs, refitted likewise"

REQUIRED = {"r2": 0.354, "NDCG@5": 0.738}
"""Of the basis chosen by cross-validation on all training rows of yahoo_sample, with all features."""

ROUNDS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 200)
"""Numbers of rounds whose prefixes are offered; up to 55 for many classes, where a round is one tree per class."""

TRADEOFFS = tuple(float(value) for value in np.logspace(-6.5, -1.5, 8))
"""Of LightGBM, besides none: weight of a unit of cost, per row, against the loss."""

OBJECTIVES = {
    LIGHTGBM: {"binary": ("binary",), "multiclass": ("multiclass",), "ranking": ("regression", "lambdarank")},
    XGBOOST: {
        "binary": ("binary:logistic",),
        "multiclass": ("multi:softprob",),
        "ranking": ("reg:squarederror", "rank:ndcg"),
    },
}
"""By task; the second is a ranker, whose scores are not relevances."""

REFITTED = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""Shares of the cost at which a peer that knows no prefixes is fitted again, if there are more than 16 prefixes."""

TIMEOUT_S = 3600.0

LEAST_SQUARES: dict[str, Any] = {"family": "gaussian", "alpha": "cv"}
LIKELIHOODS: dict[str, dict[str, Any]] = {
    "ranking": {"family": "poisson", "alpha": 1e-4},
    "binary": {"family": "binomial", "alpha": 1e-4},
    "multiclass": {"family": "multinomial", "alpha": 1e-2},
}
"""Options of ours; relevances are counts."""

TEXT = (
    "All methods fit on the same rows. A budget pays for every group that contains a feature of the model. Ours "
    "answers as in service: by the longest prefix within the budget, without looking at other rows. XGBoost is one "
    "model whose first trees answer (iteration_range); their number and depth are chosen on validation rows. LightGBM "
    "charges a feature at its first split (cegb_penalty_feature_coupled; it knows features, not groups, "
    "so a feature is priced at its share of its group or at all of it, both tried) at each of many trade-offs "
    "(cegb_tradeoff); for each budget the best on the validation rows of all models and prefixes is selected. "
    "So LightGBM has an advantage over an anytime predictor: it knows the budget before it is fitted. It would "
    "need one model per budget in service, and the next one cannot continue the work of the last.",
    "An explainable boosting machine (EBM) knows no prefixes: it is fitted again on the columns of our "
    "basis's prefixes (of up to nine of them if there are many), so that it pays the same, once without and once with "
    "pairs of columns (for two classes or numbers). Each is a model of its own.",
    "The mean of a curve over budgets up to a share of the cost of all groups is its timeliness, for an interrupted "
    "client (each value applies until the next is paid). After each mean, in brackets: by how much the basis chosen by "
    "cross-validation (--basis auto, on the rows to fit on alone) is better than this row, and the standard error of "
    "that difference over 1,000 bootstrap samples of the queries or distinct test rows. Two means are called equal "
    "unless they differ by two standard errors.",
)


@dataclass(frozen=True, eq=False)
class Points:
    """Models that a method offers.

    Attributes
    ----------
    costs : (m,) of each.
    validation : (m,) quality of each on the rows to choose by; larger is better.
    test : (m,) quality of each, or (m, u) with one value per test row or query.
    """

    costs: Float
    validation: Float
    test: Float

    def joined(self, other: Points) -> Points:
        """Return the models of both."""
        return Points(*(np.concatenate([vars(self)[name], vars(other)[name]]) for name in vars(self)))


def cost_of(used: Bool, groups: FeatureGroups) -> Float:
    """Return the cost of models that use some features (m, D), (m,)."""
    costs = np.zeros(len(used))
    for row, features in enumerate(used):
        active = [g for g, columns in enumerate(groups.slices) if features[columns].any()]
        costs[row] = groups.costs[sorted({h for g in active for h in (*groups.prerequisites[g], g)})].sum()
    return costs


def feature_prices(groups: FeatureGroups) -> tuple[Float, Float]:
    """Return two prices of each feature, if only features have prices: its share of its group, or all of it."""
    sizes = np.array([len(group.features) for group in groups.groups])
    return np.repeat(groups.costs / np.maximum(sizes, 1), sizes), np.repeat(groups.costs, sizes)


def value_at_budgets(points: Points, budgets: Float, prior: Float | float, *, chosen: bool) -> Float:
    """Return the test value or values of each budget, (budgets,) or (budgets, u); `prior` below the cheapest model.

    Parameters
    ----------
    chosen : use the model that validates best within the budget; otherwise the most expensive one within it, as a
        server without validation data does.
    """
    order = np.lexsort((points.validation, points.costs))
    costs, validation, test = points.costs[order], points.validation[order], points.test[order]
    values = np.tile(prior, (len(budgets), *[1] * (test.ndim - 1)))
    for i, affordable in enumerate(np.searchsorted(costs, budgets * (1 + 1e-9), side="right")):
        if affordable:
            values[i] = test[int(np.argmax(validation[:affordable])) if chosen else affordable - 1]
    return values


def mean_upto(budgets: Float, values: Float, stop: float) -> Float:
    """Return the mean of a step function of the budget, (budgets,) or (budgets, u), over the budgets up to `stop`."""
    inside = budgets < stop
    mean: Float = np.diff(np.append(budgets[inside], stop)) @ values[inside] / stop
    return mean


def difference_error(difference: Float, weight: Float, draws: int = 1000, seed: int = 0) -> float:
    """Return the bootstrapped standard error of sum(difference) / sum(weight), over test rows or queries, (u,) each."""
    generator, n = np.random.default_rng(seed), len(weight)
    counts = (np.bincount(generator.integers(n, size=n), minlength=n) for _ in range(draws))
    return float(np.std([count @ difference / (count @ weight) for count in counts], ddof=1))


class Candidates(NamedTuple):
    """What a method offers, by measure, and the seconds of fitting; of ours, the columns (m, D) of each prefix."""

    points: dict[str, Points]
    seconds: float
    columns: Bool | None = None


@dataclass(frozen=True, eq=False)
class Cells:
    """The results of one measure on a data set: averages over budgets up to each share of the cost, and the end.

    Attributes
    ----------
    terms : of each method, (cells, u), one term per query or distinct test row.
    weights : (u,). A value is the sum of its terms over the sum of the weights.
    """

    terms: dict[str, Float]
    weights: Float

    def values(self, name: str) -> Float:
        """Return a method's values, (cells,)."""
        found: Float = self.terms[name].sum(axis=1) / self.weights.sum()
        return found

    def against(self, name: str) -> list[tuple[float, float]]:
        """Return by how much the basis is better than a method in each cell, and the standard error."""
        gains = self.terms[BASIS] - self.terms[name]
        return [(float(gain.sum() / self.weights.sum()), difference_error(gain, self.weights)) for gain in gains]


CELLS = (*(f"over the first {share:.0%} of the cost" for share in SHARES), "with all features")


def quality(data: Path, quick: bool) -> Section:
    """Measure, and return the section."""
    part = Part("Anytime quality at equal feature cost", "ours", "boosting", "ebm")
    for name in list(SETS)[: 1 if quick else -1]:  # the last has a part of its own
        problem = load(name, data)
        candidates = {
            LINEAR: fitted(problem, **LEAST_SQUARES, basis="linear"),
            BASIS: fitted(problem, **LEAST_SQUARES, basis="auto"),
            LIKELIHOOD: fitted(problem, **LIKELIHOODS[problem.task], basis="linear"),
        }
        columns = candidates[BASIS].columns
        assert columns is not None
        with part.trying(f"boosting on {name}"), process_of(problem, "boosting", columns) as process:
            candidates |= {peer: boosted(problem, process, peer, quick) for peer in OBJECTIVES}
        with part.trying(f"ebm on {name}"), process_of(problem, "ebm", columns) as process:
            candidates |= _additive(problem, process, columns, part)
        for measure in problem.measures:
            budgets, curves, weights = _curves(problem, measure, candidates)
            ends = [share * budgets[-1] for share in SHARES]
            terms = {
                method: np.array([*(mean_upto(budgets, values, end) for end in ends), values[-1]])
                for method, values in curves.items()
            }
            cells = Cells(terms, weights)
            part.sheets.append(_sheet(problem, measure, cells, candidates))
            part.findings += compare_cells(f"{name}, {measure}", cells)
            part.pictures.append(_picture(problem, measure, budgets, curves, weights))
        if name == "yahoo_sample":
            part.findings += _required(problem)
        print(f"{name}: measured", flush=True)
    return part.section(*TEXT)


def fitted(problem: QualitySet, **options: Any) -> Candidates:
    """Return the prefixes of our model of the rows to fit on."""
    kind = AnytimeRegressor if problem.task == "ranking" else AnytimeClassifier
    start = time.perf_counter()
    model: Any = kind(problem.groups, n_jobs=2, **options).fit(problem.fit.X, problem.fit.y, query=problem.fit.query)
    seconds = time.perf_counter() - start
    staged = model.staged_predict if problem.task == "ranking" else model.staged_predict_proba
    choose, test = (np.array(list(staged(part.X))) for part in (problem.choose, problem.test))
    if problem.task == "binary":
        choose, test = choose[:, :, 1] - 0.5, test[:, :, 1] - 0.5
    columns = np.array([columns_of(names, problem.groups) for names in model.model_.computed])
    return Candidates(_points(problem, model.curve_.costs, choose, test), seconds, columns)


def _points(problem: QualitySet, costs: Float, validation: Float, test: Float) -> dict[str, Points]:
    found = {}
    for measure in problem.measures:
        terms, weights = problem.units(measure, problem.choose, validation)
        quality = terms.sum(axis=1) / weights.sum()
        found[measure] = Points(costs, quality, problem.units(measure, problem.test, test)[0])
    return found


def process_of(problem: QualitySet, peer: str, columns: Bool) -> AbstractContextManager[Worker]:
    """Run a peer's process with the rows to fit on, those to choose by, those to test, and prices of features."""
    shared, full = feature_prices(problem.groups)
    arrays = {"X": problem.fit.X, "y": problem.fit.y, "Xv": problem.choose.X, "Xt": problem.test.X}
    more = {
        "shared": shared,
        "full": full,
        "queries": problem.fit.queries,
        "prefixes": columns[_refits(problem, columns)],
    }
    return loaded(peer, "boosting", arrays | more)


def boosted(
    problem: QualitySet, process: Worker, name: str, quick: bool, tradeoffs: tuple[float, ...] = TRADEOFFS
) -> Candidates:
    """Return the models of LightGBM or XGBoost, of one setting or of the setting that validates best.

    LightGBM: every prefix of every model, for both ways to price features and some trade-offs, so one model for each
    budget that is known before the fit. XGBoost: the prefixes of one model. Relevances are fitted by squares, and for
    NDCG also by their rankers.
    """
    rounds = ROUNDS[:9] if problem.task == "multiclass" else ROUNDS
    settings: list[dict[str, Any]] = [{"depth": depth} for depth in (1, 2, 4, 6)]
    if name == LIGHTGBM:
        settings = [{"leaves": 15, "tradeoffs": tradeoffs[:: 4 if quick else 1]}]
    found: list[dict[str, Points]] = []
    seconds = 0.0
    for setting in settings:
        joined: dict[str, Points] = {}
        for ranks, objective in enumerate(OBJECTIVES[name][problem.task]):
            fixed = {"classes": problem.classes, "rounds": rounds, "threads": 1}
            options = {"objective": objective, "ranks": bool(ranks)} | fixed | setting
            outcome, arrays = process.arrays("lightgbm" if name == LIGHTGBM else "xgboost", options, TIMEOUT_S)
            seconds += outcome["seconds"]
            costs = cost_of(arrays["used"], problem.groups)
            points = _points(problem, costs, arrays["validation"], arrays["test"])
            for measure in problem.measures[: 1 if ranks else None]:
                new = points[measure]
                joined[measure] = joined[measure].joined(new) if measure in joined else new
        found.append(joined)
    return Candidates({measure: max((f[measure] for f in found), key=_validated) for measure in found[0]}, seconds)


def _validated(points: Points) -> float:
    """Return the mean of the validation results over budgets."""
    budgets = np.unique(np.concatenate([[0.0], points.costs]))
    mirrored = Points(points.costs, points.validation, points.validation)
    values = value_at_budgets(mirrored, budgets, float(points.validation.min()), chosen=True)
    return float(mean_upto(budgets, values, float(budgets[-1]) or 1.0))


def _refits(problem: QualitySet, columns: Bool) -> Any:
    """Return the prefixes at which a peer that knows none is fitted again."""
    costs = cost_of(columns, problem.groups)
    within = np.searchsorted(costs, np.array(REFITTED) * costs[-1] * (1 + COST_TOLERANCE), side="right") - 1
    return np.arange(1, len(costs)) if len(costs) <= 17 else np.unique(np.maximum(within, 1))


def _additive(problem: QualitySet, process: Worker, columns: Bool, part: Part) -> dict[str, Candidates]:
    """Return explainable boosting machines without and with pairs of columns, and note their time to predict a row.

    They are fitted again on the columns (m, D) of our prefixes, so that they pay the same. With pairs they know two
    classes at most. Relevances are fitted by squares.
    """
    costs = cost_of(columns, problem.groups)[_refits(problem, columns)]
    found = {}
    for method in (EBM, EBM_PAIRS)[: 1 if problem.task == "multiclass" else 2]:
        options = {"classes": problem.classes, "threads": 1, "pairs": method == EBM_PAIRS}
        outcome, scored = process.arrays("ebm", options, TIMEOUT_S)
        found[method] = Candidates(_points(problem, costs, scored["validation"], scored["test"]), outcome["seconds"])
        text = f"{problem.name}: {method} predicts a row of many in {outcome['row_us']:.1f} us"
        part.findings.append(Finding("noted", text))
    return found


def _curves(
    problem: QualitySet, measure: str, candidates: dict[str, Candidates]
) -> tuple[Float, dict[str, Float], Float]:
    """Return every cost at which a curve changes, each method's terms there (budgets, u), and their weights (u,)."""
    points = {name: method.points[measure] for name, method in candidates.items()}
    costs = [offered.costs for offered in points.values()]
    budgets = np.unique(np.concatenate([[0.0], *costs, [problem.groups.costs.sum()]]))
    prior, weights = problem.prior(measure)
    curves = {
        name: value_at_budgets(offered, budgets, prior, chosen=name in OBJECTIVES) for name, offered in points.items()
    }
    return budgets, curves, weights


def compare_cells(where: str, cells: Cells) -> list[Finding]:
    """Compare the basis with linear columns, which it must not lose to, and with the best peer, in each cell."""
    findings = []
    peers = [name for name in cells.terms if not name.startswith("ours")]
    for i, what in enumerate(CELLS):
        best = [max(peers, key=lambda name: float(cells.values(name)[i]))] if peers else []
        for other in (LINEAR, *best):
            gain, error = cells.against(other)[i]
            values = f"{BASIS} {cells.values(BASIS)[i]:.4f}, {other} {cells.values(other)[i]:.4f}"
            finding = difference(f"{where}, {what}: {values}, difference", gain, error)
            if other == LINEAR:
                finding = Finding("missed" if finding.verdict == "behind" else "holds", finding.text)
            findings.append(finding)
    return findings


def _required(problem: QualitySet) -> list[Finding]:
    """Compare the basis, fitted on all training rows, with what is required of all features."""
    found = fitted(replace(problem, fit=problem.fit.joined(problem.choose)), **LEAST_SQUARES, basis="auto").points
    findings = []
    for measure, limit in REQUIRED.items():
        value = float(found[measure].test[-1].sum() / problem.prior(measure)[1].sum())
        words = f"{problem.name}, {measure} with all features, fitted on all training rows: {value:.4f}"
        findings.append(Finding("holds" if value >= limit else "missed", f"{words}, required {limit:g}"))
    return findings


def _sheet(problem: QualitySet, measure: str, cells: Cells, candidates: dict[str, Candidates]) -> Sheet:
    rows: list[tuple[Cell, ...]] = []
    for name in cells.terms:
        texts = [f"{value:.4f}" for value in cells.values(name)]
        if name != BASIS:
            against = cells.against(name)
            texts = [f"{text} ({gain:+.4f} ± {error:.4f})" for text, (gain, error) in zip(texts, against, strict=True)]
        rows.append((name, *texts, digits(candidates[name].seconds)))
    columns = ("", *(f"mean to {share:.0%} of cost" for share in SHARES), "all features", "seconds to fit")
    return Sheet(f"{problem.what}: {measure} on the test rows", columns, tuple(rows))


def _picture(problem: QualitySet, measure: str, budgets: Float, curves: dict[str, Float], weights: Float) -> Picture:
    lines = {"": {name: (budgets, terms.sum(axis=1) / weights.sum()) for name, terms in curves.items()}}
    caption = f"{problem.name}: {measure} on the test rows for what the features cost."
    return drawn(caption, lines, f"cost of the features ({problem.groups.cost_unit})", f"{measure} (test)", "x")
