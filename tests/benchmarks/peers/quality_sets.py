"""The real data sets as three tables: rows to fit, to choose models, and to test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from anytime.evaluation.evaluate import ndcg
from anytime.groups import FeatureGroups, load_groups
from anytime.types import Bool, Float, Index

KDD_ROWS = 48_000, 24_000, 50_000
"""Rows of KDD Cup 1999 to fit, to choose models, and of its test table."""


@dataclass(frozen=True, eq=False)
class Part:
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

    def at(self, rows: Index) -> Part:
        """Return some of the rows, grouped by query."""
        selected = rows if self.query is None else rows[np.argsort(self.query[rows], kind="stable")]
        return Part(self.X[selected], self.y[selected], None if self.query is None else self.query[selected])

    def joined(self, other: Part) -> Part:
        """Return the rows of both, grouped by query."""
        query = None if self.query is None else np.concatenate([self.query, np.asarray(other.query)])
        both = Part(np.concatenate([self.X, other.X]), np.concatenate([self.y, other.y]), query)
        return both.at(np.arange(len(both.y)))

    def divided(self, chosen: Bool) -> tuple[Part, Part]:
        """Return the rows to fit on, and those to choose by."""
        return self.at(np.flatnonzero(~chosen)), self.at(np.flatnonzero(chosen))


Parts = tuple[Part, ...]
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
    fit: Part
    choose: Part
    test: Part

    @property
    def task(self) -> str:
        """What is predicted."""
        return {1: "ranking", 2: "binary"}.get(self.classes, "multiclass")

    def units(self, measure: str, part: Part, scores: Float) -> tuple[Float, Float]:
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


def _classed(path: Path, groups: FeatureGroups, target: str) -> Part:
    """Return rows with a class as target."""
    X, y = read_rows(path, groups, target)
    return Part(X, y.astype(np.intp))


def _at_random(whole: Part, rng: np.random.Generator, *ends: int) -> Parts:
    return tuple(whole.at(rows) for rows in np.split(rng.permutation(len(whole.y)), ends))


def _heart_cleveland(folder: Path, groups: FeatureGroups, rng: np.random.Generator) -> Parts:
    return _at_random(_classed(folder / "data.parquet", groups, "disease"), rng, 160, 200)


def _nhanes(folder: Path, groups: FeatureGroups, rng: np.random.Generator) -> Parts:
    table = pd.read_parquet(folder / "data.parquet")
    died = (table["died_within_10_years"] == "yes").to_numpy(np.intp)
    return _at_random(Part(table[[*groups.features]].to_numpy(np.float64), died), rng, 5_000, 6_500)


def _mq2008(folder: Path, groups: FeatureGroups, _: object) -> Parts:
    X, y, query, fold = read_rows(folder / "data.parquet", groups, "relevance", "qid", "fold")
    return tuple(Part(X, y, query).at(np.flatnonzero(np.isin(fold, folds))) for folds in ((1, 2, 3), (4,), (5,)))


def _yahoo_sample(folder: Path, groups: FeatureGroups, _: object) -> Parts:
    train, test = (
        Part(*read_rows(folder / f"{half}.parquet", groups, "relevance", "qid")) for half in ("train", "test")
    )
    assert train.query is not None
    return *train.divided(np.isin(train.query, np.unique(train.query)[::5])), test.at(np.arange(len(test.y)))


def _kddcup99(folder: Path, groups: FeatureGroups, _: object) -> Parts:
    train, test = (_classed(folder / f"{half}.parquet", groups, "attack") for half in ("train", "test"))
    first, second, third = KDD_ROWS
    return train.at(np.arange(first)), train.at(np.arange(first, first + second)), test.at(np.arange(third))


def _mfeat(folder: Path, groups: FeatureGroups, _: object) -> Parts:
    train, test = (_classed(folder / f"{half}.parquet", groups, "digit") for half in ("train", "test"))
    return *train.divided(np.arange(len(train.y)) % 5 == 0), test


RANKING = ("NDCG@5", "r2")

SETS: dict[str, tuple[tuple[str, ...], int, str, Callable[[Path, FeatureGroups, np.random.Generator], Parts]]] = {
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
