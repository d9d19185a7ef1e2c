"""The part of the report on the defaults: compared with linear columns, hinges by hand, and peers on equal columns.

Each set is split at random several times. Peers are fitted on the columns of the groups that the default has at a
share of the cost, so that they pay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn import datasets
from sklearn.metrics import r2_score

from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.groups import COST_TOLERANCE, FeatureGroups, load_groups
from anytime.types import Bool, Float
from benchmarks.peers.adaptive import auroc
from benchmarks.peers.quality import columns_of, read_rows
from benchmarks.peers.report import Finding, Part, Section, Sheet, difference
from benchmarks.peers.solvers import loaded

SHARES = (0.05, 0.25, 1.0)
"""Shares of the cost of all groups."""

DEFAULT, LINEAR, BY_HAND = "default", "linear columns, least squares", "best of hinge:1, 3, 7"
PEERS = {"boosting": "LightGBM", "ebm": "EBM"}

TRAIN_ROWS, TEST_ROWS = 5_000, 20_000
"""Largest numbers of rows."""

TIMEOUT_S = 3600.0

ROUNDING = 1e-12
"""Of a mean difference and its standard error, which are equal where the ways differ on one split only."""

TEXT = (
    "R² or the area under the ROC curve (of several classes, the mean of each against the others) of the default "
    "without any option, on rows that were not trained on, with what 5 %, 25 % and all of the cost pay for. Below it, "
    "what other ways have more or less, with the standard error of the difference over the splits. The best of the "
    "hinges is that on these test rows, so it is optimistic by a little. LightGBM and EBM have the columns of the "
    "groups that the default has for the cost, and are trained for each cost.",
)


@dataclass(frozen=True, eq=False)
class Problem:
    """A data set: columns (n, D) of the groups in order, and numbers or classes from 0 (n,)."""

    X: Float
    y: Float
    groups: FeatureGroups
    are_classes: bool

    def split(self, seed: int) -> tuple[Float, Float, Float, Float]:
        """Return 70 % of the rows to train on, and the others, both up to a limit."""
        order = np.random.default_rng(seed).permutation(len(self.y))
        many = 7 * len(order) // 10
        train, test = order[: min(many, TRAIN_ROWS)], order[many:][:TEST_ROWS]
        return self.X[train], self.y[train], self.X[test], self.y[test]

    def model(self, **options: Any) -> Any:
        made = AnytimeClassifier if self.are_classes else AnytimeRegressor
        return made(self.groups, random_state=0, **options)

    def quality(self, y: Float, found: Float) -> float:
        """Return the quality of numbers (n,), or of scores (n, classes)."""
        return auroc(y.astype(np.intp), found) if self.are_classes else float(r2_score(y, found))


def _shared(*parts: str, target: str, are_classes: bool, data: Path, name: str) -> Problem:
    groups = load_groups(data / name / "groups.json")
    tables = [read_rows(data / name / f"{part}.parquet", groups, target) for part in parts]
    X, y = (np.concatenate(each) for each in zip(*tables, strict=True))
    return Problem(X, y, groups, are_classes)


def _public(load: Callable[[], Any], *, are_classes: bool, **_: Any) -> Problem:
    bunch = load()
    groups = [{"name": str(name), "features": [str(name)], "cost": 1.0} for name in bunch.feature_names]
    return Problem(bunch.data, bunch.target.astype(np.float64), load_groups({"groups": groups}), are_classes)


SETS: dict[str, tuple[int, Callable[..., Problem]]] = {
    "boston_housing": (5, partial(_shared, "data", target="MEDV", are_classes=False)),
    "diabetes": (5, partial(_public, datasets.load_diabetes, are_classes=False)),
    "mq2008": (5, partial(_shared, "data", target="relevance", are_classes=False)),
    "yahoo_sample": (5, partial(_shared, "train", "test", target="relevance", are_classes=False)),
    "heart_cleveland": (5, partial(_shared, "data", target="disease", are_classes=True)),
    "breast_cancer": (5, partial(_public, datasets.load_breast_cancer, are_classes=True)),
    "spambase": (5, partial(_shared, "train", "validation", "test", target="spam", are_classes=True)),
    "wine": (5, partial(_public, datasets.load_wine, are_classes=True)),
    "kddcup99": (5, partial(_shared, "train", target="attack", are_classes=True)),
    "digits": (5, partial(_public, datasets.load_digits, are_classes=True)),
    "mfeat": (1, partial(_shared, "train", "test", target="digit", are_classes=True)),
}
"""The number of splits, and how a set is read; the first is a quick look."""


def defaults(data: Path, quick: bool) -> Section:
    """Measure, and return the section."""
    part = Part("Defaults", *PEERS)
    for name in list(SETS)[: 1 if quick else None]:
        splits, read = SETS[name]
        problem = read(data=data, name=name)
        measured = [measure(problem, seed, PEERS, part) for seed in range(2 if quick else splits)]
        found = {
            way: np.array([one[way] for one in measured]) for way in measured[0] if all(way in m for m in measured)
        }
        part.findings += compare(name, found)
        part.sheets.append(sheet(f"{name}: {'AUROC' if problem.are_classes else 'R²'}, {len(measured)} splits", found))
        print(f"{name}: measured", flush=True)
    return part.section(*TEXT)


def measure(problem: Problem, seed: int, peers: Mapping[str, str], part: Part) -> dict[str, Float]:
    """Return the quality (3,) of each way on one split; a peer that fails is noted."""
    X, y, Xt, yt = problem.split(seed)
    default = problem.model().fit(X, y)
    found = {DEFAULT: _ours(problem, default, Xt, yt)}
    found[LINEAR] = _ours(problem, problem.model(basis="linear", family="gaussian").fit(X, y), Xt, yt)
    hinges = [problem.model(basis=f"hinge:{K}").fit(X, y) for K in (1, 3, 7)]
    found[BY_HAND] = np.max([_ours(problem, model, Xt, yt) for model in hinges], axis=0)
    columns = columns_at(default, problem.groups)
    for peer, label in peers.items():
        with part.trying(f"{peer}, split {seed}"):
            found[label] = _refitted(problem, peer, (X, y, Xt, yt), columns)
    return found


def _ours(problem: Problem, model: Any, X: Float, y: Float) -> Float:
    predict = model.predict_proba if problem.are_classes else model.predict
    budgets = [share * float(problem.groups.costs.sum()) for share in SHARES]
    return np.array([problem.quality(y, predict(X, budget=budget)) for budget in budgets])


def columns_at(model: Any, groups: FeatureGroups) -> Bool:
    """Return the columns (3, D) of the groups that a model has at each share of the cost."""
    limits = np.array(SHARES) * float(groups.costs.sum()) * (1 + COST_TOLERANCE)
    within = np.maximum(np.searchsorted(model.curve_.costs, limits, side="right") - 1, 0)
    return np.array([columns_of(model.model_.computed[prefix], groups) for prefix in within])


def peer_scores(peer: str, X: Float, y: Float, Xt: Float, columns: Bool, **options: Any) -> Float:
    """Return the scores (m, n), or (m, n, classes), of a peer that is fitted on each of the sets of columns (m, D)."""
    arrays = {"X": X, "y": y, "Xv": Xt[:1], "Xt": Xt, "prefixes": columns}
    call = "ebm" if peer == "ebm" else "lightgbm_columns"
    with loaded(peer, "boosting", arrays) as process:
        found: Float = process.arrays(call, {"threads": 1, "pairs": False} | options, TIMEOUT_S)[1]["test"]
    return found.astype(np.float64)


def _refitted(problem: Problem, peer: str, rows: tuple[Float, Float, Float, Float], columns: Bool) -> Float:
    """Return the quality (3,) of a peer that is fitted on the columns of each share; without columns, of the mean."""
    X, y, Xt, yt = rows
    some = columns.any(axis=1)
    found = np.full(len(columns), 0.5 if problem.are_classes else problem.quality(yt, np.full(len(yt), y.mean())))
    classes = int(y.max()) + 1 if problem.are_classes else 1
    scores = peer_scores(peer, X, y, Xt, columns[some], classes=classes)
    if classes == 2:
        scores = np.stack([-scores, scores], axis=2)
    elif classes > 2:  # each class against the others by its probability
        scores = softmax(scores, axis=2)
    found[some] = [problem.quality(yt, each) for each in scores]
    return found


def compare(name: str, found: dict[str, Float]) -> list[Finding]:
    """Compare the default with linear columns, which it must not lose to by a standard error, and with peers."""
    findings = []
    for way, values in found.items():
        gains = found[DEFAULT] - values
        for share, gain, error in zip(SHARES, gains.mean(axis=0), errors(gains), strict=True):
            finding = difference(f"{name}, {share:.0%} of the cost: default less {way}", gain, error)
            if way == LINEAR:
                findings.append(Finding("missed" if -gain > error + ROUNDING else "holds", finding.text))
            elif way in PEERS.values() and finding.verdict != "noted":
                findings.append(finding)
    return findings


def errors(gains: Float) -> Float:
    """Return the standard errors of means over the first axis; of one value they are unknown, and 0."""
    return gains.std(axis=0, ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else np.zeros(gains.shape[1:])


def sheet(caption: str, found: dict[str, Float]) -> Sheet:
    rows = [(DEFAULT, *(f"{value:.4f}" for value in found[DEFAULT].mean(axis=0)))]
    for way in (way for way in found if way != DEFAULT):
        gains = found[way] - found[DEFAULT]
        pairs = zip(gains.mean(axis=0), errors(gains), strict=True)
        rows.append((way, *(f"{gain:+.4f} ({error:.4f})" for gain, error in pairs)))
    return Sheet(caption, ("", *(f"{share:.0%} of the cost" for share in SHARES)), tuple(rows))
