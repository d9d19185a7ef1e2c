"""The parts of the report on published figures, each by its own protocol, and on real prices.

Ours has its defaults and is chosen on training rows only. A peer of each table is rerun on the same rows, so that its
difference from ours has a paired error; printed figures have none. Real prices: AUC against dollars on NHANES I, and
what each test is worth. `deploy/docs/gallery/nhanes.py` shows its figures; a measurement that is no quick look writes
them next to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedShuffleSplit

from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.groups import COST_TOLERANCE, FeatureGroups, load_groups
from anytime.types import Float, Index
from benchmarks.peers.defaults import errors, peer_scores
from benchmarks.peers.quality import LIGHTGBM, QualitySet, boosted, fitted, load, process_of, value_at_budgets
from benchmarks.peers.report import Finding, Part, Picture, Section, Sheet, difference, drawn

OURS = "ours, defaults"
VARIANTS: dict[str, dict[str, Any]] = {OURS: {}, "ours, without pairs": {"pairs": 0}}
"""The options of ours; the first is compared."""

PEERS = {"boosting": "LightGBM, defaults, rerun", "ebm": "EBM with pairs, 4 outer bags, rerun"}

TEXT = (
    "Ours and the peer that is rerun have the same training rows and their defaults. Values of the others are as "
    "printed by their source. Errors are standard errors over the test queries, or over the splits, which share rows.",
)


class Rows(NamedTuple):
    """A table (n, D) with its target (n,), the training and test rows of each split, and the query of each row."""

    X: pd.DataFrame
    y: NDArray[Any]
    splits: list[tuple[Index, Index]]
    groups: FeatureGroups | None = None
    query: NDArray[Any] | None = None


@dataclass(frozen=True)
class Protocol:
    """A published comparison.

    Attributes
    ----------
    what : of the rows.  source : of the protocol and the figures.  weakness : of the protocol.
    measure : of the test rows.
    at_least : what ours must reach, but for its paired standard error.
    printed : figures of each model.
    peer : the environment of the peer that is rerun.
    """

    what: str
    source: str
    weakness: str
    measure: str
    at_least: float
    printed: dict[str, float]
    peer: str
    read: Callable[[Path], Rows]


def ndcg(y: Float, scores: Float, query: NDArray[Any]) -> Float:
    """Return the NDCG@10 of each query, ascending: gains 2^y - 1, ties by ascending y, 1 if no row is relevant."""
    found = []
    for rows in (query == each for each in np.unique(query)):
        gains = 2.0 ** y[rows] - 1.0
        weights = 1.0 / np.log2(np.arange(2, min(len(gains), 10) + 2))
        reached, best = (
            gains[order[:10]] @ weights for order in (np.lexsort((gains, -scores[rows])), np.argsort(-gains))
        )
        found.append(reached / best if best else 1.0)
    return np.array(found)


def _mq2008(data: Path) -> Rows:
    table, groups = pd.read_parquet(data / "mq2008" / "data.parquet"), load_groups(data / "mq2008" / "groups.json")
    folds, y = table["fold"].to_numpy(), table["relevance"].to_numpy(np.float64)
    split = np.flatnonzero(np.isin(folds, (2, 3, 4))), np.flatnonzero(folds == 1)
    return Rows(table[[*groups.features]], y, [split], groups, table["qid"].to_numpy())


def _interpret(X: pd.DataFrame, y: NDArray[Any]) -> Rows:
    """Return the splits of InterpretML's table."""
    return Rows(X, y, list(StratifiedShuffleSplit(n_splits=3, test_size=0.25, random_state=1337).split(X, y)))


def _table(data: Path, *, name: str, target: str, event: str) -> Rows:
    table = pd.read_parquet(data / name / "data.parquet")
    return _interpret(table.drop(columns=target), (table[target] == event).to_numpy(np.intp))


def _breast_cancer(_: Path) -> Rows:
    return _interpret(*load_breast_cancer(return_X_y=True, as_frame=True))


INTERPRET: dict[str, Any] = {
    "source": "README of InterpretML (interpretml/interpret): three splits, a quarter of the rows to test",
    "weakness": "Its three splits overlap, so the printed deviations are no standard errors. README and notebook "
    "differ in places. The printed EBM is of another version and has 14 outer bags.",
    "measure": "AUC",
    "peer": "ebm",
}
NAMES = ("logistic regression", "random forest", "XGBoost", "EBM")

PROTOCOLS = {
    "breast cancer": Protocol(
        "569 rows of scikit-learn, 30 columns",
        at_least=0.994,
        printed=dict(zip(NAMES, (0.995, 0.992, 0.992, 0.995), strict=True)),
        read=_breast_cancer,
        **INTERPRET,
    ),
    "telco": Protocol(
        "IBM's customer churn: 7,043 rows, 19 columns",
        at_least=0.853,
        printed=dict(zip(NAMES, (0.849, 0.824, 0.828, 0.852), strict=True)),
        read=partial(_table, name="telco", target="Churn", event="Yes"),
        **INTERPRET,
    ),
    "adult": Protocol(
        "UCI's Adult: 32,561 rows, 14 columns",
        at_least=0.928,
        printed=dict(zip(NAMES, (0.907, 0.903, 0.927, 0.928), strict=True)),
        read=partial(_table, name="adult", target="Income", event=">50K"),
        **INTERPRET,
    ),
    "MQ2008": Protocol(
        "LETOR 4.0: 9,630 rows of folds 2 to 4 to train on, 2,874 rows of fold 1 to test",
        "ranking/Readme.md of catboost/benchmarks",
        "The printed figures are the best of 48 settings and of all iterations on the test fold itself.",
        "NDCG@10",
        0.8145,
        {
            "CatBoost RMSE": 0.8304,
            "CatBoost QueryRMSE": 0.8296,
            "CatBoost PairLogit": 0.8300,
            "CatBoost YetiRank": 0.8288,
            "XGBoost": 0.8229,
            "LightGBM": 0.8227,
        },
        "boosting",
        _mq2008,
    ),
}
"""The quickest first."""


def units(rows: Rows, test: Index, scores: Float) -> Float:
    """Return the measure of each query of the test rows, or of all of them."""
    y = rows.y[test]
    return np.array([roc_auc_score(y, scores)]) if rows.query is None else ndcg(y, scores, rows.query[test])


def curve(rows: Rows, options: dict[str, Any]) -> tuple[Float, Float]:
    """Return budgets (b,) and the measure of ours (b, units) within each, over all splits."""
    found = []
    for train, test in rows.splits:
        X, y = rows.X.iloc[train], rows.y[train]
        if rows.query is None:
            model = AnytimeClassifier(rows.groups, **options).fit(X, y)
            staged = [likely[:, 1] for likely in model.staged_predict_proba(rows.X.iloc[test])]
        else:
            model = AnytimeRegressor(rows.groups, **options).fit(X, y, query=rows.query[train])
            staged = list(model.staged_predict(rows.X.iloc[test]))
        found.append((model.curve_.costs, np.array([units(rows, test, scores) for scores in staged])))
    budgets = np.unique(np.concatenate([costs for costs, _ in found]))
    limits = budgets * (1 + COST_TOLERANCE)
    return budgets, np.hstack([each[np.searchsorted(costs, limits, side="right") - 1] for costs, each in found])


def rerun(rows: Rows, peer: str) -> Float:
    """Return the measure of a peer with all columns, (units,); raise `FailedError` if it fails."""
    is_text = [not pd.api.types.is_numeric_dtype(kind) for kind in rows.X.dtypes]
    codes = rows.X.apply(lambda column: column if column.dtype.kind in "biuf" else pd.factorize(column)[0])
    X, columns = codes.to_numpy(np.float64), np.ones((1, len(is_text)), dtype=np.bool_)
    options = {
        "classes": 1 if rows.query is not None else 2,
        "pairs": True,
        "nominal": np.flatnonzero(is_text).tolist(),
    }
    return np.concatenate(
        [
            units(rows, test, peer_scores(peer, X[train], rows.y[train], X[test], columns, **options)[0])
            for train, test in rows.splits
        ]
    )


def published(data: Path, quick: bool) -> Section:
    """Measure, and return the section."""
    part = Part("Published figures", "ours", *PEERS)
    for name in list(PROTOCOLS)[: 1 if quick else None]:
        with part.trying(name):  # a set may not be in DATA
            protocol = PROTOCOLS[name]
            rows = protocol.read(data)
            curves = {variant: curve(rows, options) for variant, options in VARIANTS.items()}
            values = {variant: terms[-1] for variant, (_, terms) in curves.items()}
            with part.trying(f"{name}: {PEERS[protocol.peer]}"):
                values[PEERS[protocol.peer]] = rerun(rows, protocol.peer)
            part.findings += compare(name, protocol, values)
            part.sheets.append(sheet(name, protocol, values))
            cost = "columns" if rows.groups is None else "assigned cost"
            part.pictures.append(picture(name, protocol, curves, cost))
            print(f"{name}: measured", flush=True)
    return part.section(
        *TEXT, *(f"{name}: {of.what}. Source: {of.source}. {of.weakness}" for name, of in PROTOCOLS.items())
    )


def compare(name: str, protocol: Protocol, values: dict[str, Float]) -> list[Finding]:
    """Compare ours with what it must reach, and by paired differences with its other options and the peer."""
    ours, (_, other, *_) = values[OURS], VARIANTS
    reached = ours.mean() >= protocol.at_least - errors(ours - values[other])
    text = f"{name}, {protocol.measure} of {OURS}: {ours.mean():.4f}, required {protocol.at_least:g}"
    findings = [Finding("holds" if reached else "missed", text)]
    for way in (way for way in values if way != OURS):
        gain = ours - values[way]
        findings.append(difference(f"{name}: {OURS}, less {way},", float(gain.mean()), float(errors(gain))))
    return findings


def sheet(name: str, protocol: Protocol, values: dict[str, Float]) -> Sheet:
    ours = values[OURS]
    rows = [
        (
            way,
            f"{terms.mean():.4f}",
            f"{errors(terms):.4f}",
            f"{(ours - terms).mean():+.4f} ± {errors(ours - terms):.4f}",
        )
        for way, terms in values.items()
    ]
    printed = [
        (f"{way}, printed", f"{value:.4f}", "", f"{ours.mean() - value:+.4f}")
        for way, value in protocol.printed.items()
    ]
    caption = f"{name}: {protocol.measure} with all columns, {len(ours)} {'splits' if len(ours) < 9 else 'queries'}"
    return Sheet(caption, ("", protocol.measure, "standard error", "ours less it"), (*rows, *printed))


def picture(name: str, protocol: Protocol, curves: dict[str, tuple[Float, Float]], cost: str) -> Picture:
    """Draw ours against the cost, and the printed values, which need all columns, as lines."""
    lines = {variant: (budgets, terms.mean(axis=1)) for variant, (budgets, terms) in curves.items()}
    ends = np.array([0.0, max(budgets[-1] for budgets, _ in curves.values())])
    printed = {f"{way}, printed": (ends, np.full(2, value)) for way, value in protocol.printed.items()}
    caption = f"{name}: {protocol.measure} on the test rows by {cost}; printed values need all columns."
    return drawn(caption, {"": lines | printed}, cost, f"{protocol.measure} (test)")


GALLERY = Path(__file__).parents[3] / "deploy" / "docs" / "gallery" / "nhanes.json"
ONE_MODEL = "anytime, one model"
SPLITS = 5
TRADEOFFS = tuple(float(value) for value in np.logspace(-4.5, -1.5, 13))
"""Of LightGBM: from all tests to the free ones alone."""

COMPARED = (0.0, 5.0, 10.0, 20.0, 40.0, 68.09)
"""Dollars."""

PRICES_TEXT = (
    "Of each random split, ours is trained with its defaults on 5,000 persons, once for all budgets. LightGBM is "
    "trained on the same persons at each of many trade-offs between loss and prices (cegb_tradeoff), and for each "
    "budget the model is selected that has the largest area under the ROC curve (AUC) on 1,500 other persons: one "
    "model per budget. Both are tested on 3,035 further persons. Standard errors are over the splits, which share "
    "persons, so they are too small.",
    "A test is worth what it adds to the AUC: as the first one after what is free, or as the last one after all.",
)


def prices(data: Path, quick: bool) -> Section:
    """Measure, and return the section."""
    part, offered = Part("Real prices: NHANES I and Medicare", "ours", "boosting"), []
    splits = [load("nhanes", data, seed) for seed in range(2 if quick else SPLITS)]
    for problem in splits:
        ours = fitted(problem)
        assert ours.columns is not None
        offered.append({ONE_MODEL: ours.points["AUC"]})
        with part.trying(LIGHTGBM), process_of(problem, "boosting", ours.columns) as process:
            offered[-1][LIGHTGBM] = boosted(problem, process, LIGHTGBM, quick, TRADEOFFS).points["AUC"]
    names = [name for name in offered[0] if all(name in each for each in offered)]
    budgets = np.unique(np.concatenate([points.costs for each in offered for points in each.values()]))
    curves = {
        name: np.array([value_at_budgets(each[name], budgets, 0.5, chosen=name != ONE_MODEL)[:, 0] for each in offered])
        for name in names
    }
    tests = worth(splits)
    if LIGHTGBM in curves:
        gains = curves[ONE_MODEL] - curves[LIGHTGBM]
        for dollars in COMPARED:
            at = int(np.searchsorted(budgets, dollars + 1e-6, side="right")) - 1
            text = f"{dollars:g} dollars: {ONE_MODEL} {curves[ONE_MODEL][:, at].mean():.4f}, less {LIGHTGBM}"
            part.findings.append(difference(text, float(gains[:, at].mean()), float(errors(gains)[at])))
    found = {name: (budgets.tolist(), values.mean(axis=0).round(4).tolist()) for name, values in curves.items()}
    if not quick:
        GALLERY.write_text(json.dumps({"curves": found, "tests": tests}, indent=1) + "\n", encoding="utf-8")
    rows = tuple((name, f"{dollars:.2f}", *(f"{a:+.4f} ± {b:.4f}" for a, b in of)) for name, dollars, *of in tests)
    columns = ("", "dollars", "as the first one", "as the last one")
    part.sheets.append(Sheet("What each test adds to the AUC", columns, rows))
    caption = "NHANES I: AUC on the test persons for what the tests cost."
    part.pictures.append(drawn(caption, {"": found}, "dollars", "AUC (test)"))
    return part.section(*PRICES_TEXT)


def worth(splits: list[QualitySet]) -> list[tuple[str, float, tuple[float, float], tuple[float, float]]]:
    """Return each priced group, its cost, and the mean and standard error of what it adds as the first and the last."""
    groups = splits[0].groups
    free, priced = (np.flatnonzero(is_priced) for is_priced in (groups.costs == 0, groups.costs > 0))
    none, every = _auc(splits, free), _auc(splits, np.arange(len(groups)))
    found = []
    for g in priced.tolist():
        first, last = (
            _auc(splits, np.append(free, g)) - none,
            every - _auc(splits, np.delete(np.arange(len(groups)), g)),
        )
        of = [(float(each.mean()), float(errors(each))) for each in (first, last)]
        found.append((groups.names[g], float(groups.costs[g]), of[0], of[1]))
    return found


def _auc(splits: list[QualitySet], chosen: Index) -> Float:
    """Return the AUC of the model of some groups on each split."""
    found = []
    for problem in splits:
        groups = problem.groups.only(chosen.tolist())
        columns = np.isin(problem.groups.features, groups.features)
        model = AnytimeClassifier(groups).fit(problem.fit.X[:, columns], problem.fit.y)
        found.append(roc_auc_score(problem.test.y, model.predict_proba(problem.test.X[:, columns])[:, 1]))
    return np.array(found)
