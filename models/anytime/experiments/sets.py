"""The data sets of the experiments, in memory, with the parts that are held out in turn.

Where the folder of real data sets is not given, scikit-learn's bundled sets and a synthetic one take their places: the
experiments run alike, and say what they ran on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anytime.accumulate import fold_moments_of
from anytime.arrays import Float, Index
from anytime.errors import AnytimeError
from anytime.evaluation import ndcg
from anytime.experiments.experiment import Setting
from anytime.experiments.stand_ins import boston_stand_in, detection_stand_in, ranking_stand_in, small_ranking_stand_in
from anytime.experiments.yahoo import check_yahoo, read_yahoo
from anytime.gram import Gram, Held
from anytime.groups import FeatureGroup, FeatureGroups, load_groups
from anytime.moments import Moments
from anytime.tables import feature_matrix, numbers, open_table

__all__ = ["RealSet", "SetName", "Split", "check_sets", "load_set", "numbered_grouping", "regrouped", "regrouping"]

SetName = Literal["kddcup99", "yahoo_sample", "mq2008", "boston_housing"]

SETS = 5
"""Disjoint sets of AGRICULTURAL in the paper, and of what stands for it here."""

SET_ROWS = 96_000
"""Rows in each, or a fifth of a smaller table; the paper has 100,000 of 510,000."""


@dataclass(frozen=True, eq=False)
class Split:
    """A training problem and a table held out, as seen from it; `test` are its rows."""

    gram: Gram
    held: Held
    test: Index

    def ordered(self, order: Index) -> Split:
        """The same with the features in another order."""
        held = replace(self.held, S=self.held.S[np.ix_(order, order)], q=self.held.q[order])
        return Split(self.gram.restricted(order), held, self.test)


@dataclass(frozen=True, eq=False)
class RealSet:
    """A data set in memory.

    Attributes
    ----------
    name : its name among the experiments.  what : what it is, in words for the report.
    groups : groups with costs; the columns of X are their features in order.
    X : (n, D).  y : (n,) the response.  query : (n,) the query of each row, or None.
    part : (n,) part of each row.  splits : for each split, the parts trained on and the part held out.
    measure : natural measure of the problem; None where it is the error itself.
    """

    name: SetName
    what: str
    groups: FeatureGroups
    X: Float
    y: Float
    part: Index
    splits: tuple[tuple[tuple[int, ...], int], ...]
    measure: Literal["accuracy", "NDCG@5"] | None = None
    query: NDArray[Any] | None = None

    def moments(self) -> list[Moments]:
        """Moments of each part, in one pass."""
        return fold_moments_of(self.X, self.y, folds=self.part, count=int(self.part.max()) + 1)

    def split(self, number: int, moments: Many[Moments] | None = None) -> Split:
        """One split; `moments` are those of the parts, where they are known already."""
        known = self.moments() if moments is None else moments
        train, test = self.splits[number]
        gram = Gram.of(Moments.merged([known[part] for part in train]))
        return Split(gram, gram.beside(known[test]), np.flatnonzero(self.part == test))

    def measured(self, rows: Index, scores: Float) -> Float | None:
        """The natural measure of scores (models, rows) on some rows, (models,): larger is better."""
        if self.measure is None:
            return None
        if self.measure == "accuracy":
            accuracy: Float = np.mean((scores >= 0.5) == (self.y[rows] >= 0.5), axis=1)
            return accuracy
        assert self.query is not None  # noqa: S101
        return ndcg(self.y[rows], scores.T, self.query[rows])


def regrouping(groups: FeatureGroups, size: int, rng: np.random.Generator) -> tuple[FeatureGroups, Index]:
    """Random groups of `size` features that cost the same, a group costing their sum (section 5.1).

    What a feature costs is its group's cost, shared equally; the last group of a cost may be smaller. Returned with
    the old columns of the features in their new order.
    """
    prices: dict[float, list[int]] = {}
    for group, columns in zip(groups.groups, groups.slices, strict=True):
        for column in range(columns.start, columns.stop):
            prices.setdefault(group.cost / len(group.features), []).append(column)
    made: list[FeatureGroup] = []
    order: list[int] = []
    for price in sorted(prices):
        shuffled = rng.permutation(prices[price]).tolist()
        for start in range(0, len(shuffled), size):
            members = shuffled[start : start + size]
            names = tuple(groups.features[column] for column in members)
            made.append(FeatureGroup(name=f"{price:g} x {len(made)}", features=names, cost=price * len(members)))
            order += members
    return FeatureGroups(cost_unit=groups.cost_unit, groups=tuple(made)), np.array(order, dtype=np.intp)


def numbered_grouping(
    setting: Setting, groups: FeatureGroups, size: int, number: int = 0
) -> tuple[FeatureGroups, Index]:
    """One of the random groupings of a size, by its number: the same one in every experiment of a setting."""
    return regrouping(groups, size, np.random.default_rng([setting.seed, size, number]))


def regrouped(data: RealSet, size: int, rng: np.random.Generator) -> RealSet:
    """The same set in random groups, as by `regrouping`."""
    groups, order = regrouping(data.groups, size, rng)
    return replace(data, groups=groups, X=data.X[:, order])


def check_sets(names: Iterable[str], setting: Setting) -> None:
    """Look for the files of some data sets, before any work.

    Raises
    ------
    AnytimeError
        One is missing.
    """
    for name in names:
        if name == "yahoo_sample" and setting.yahoo is not None:
            check_yahoo(*setting.yahoo)
        elif setting.data is not None and not (setting.data / name / "groups.json").is_file():
            raise AnytimeError(
                f"there is no data set {str(setting.data / name)!r}; give --data a folder that has it, or none at all"
            )


@lru_cache(maxsize=2)
def load_set(name: SetName, setting: Setting) -> RealSet:
    """A data set of the setting, or what stands in for it.

    Raises
    ------
    AnytimeError
        The folder of data sets lacks this one, or its files are not what they should be.
    """
    return _READERS[name](setting)


def _read(folder: Path, file: str, target: str, more: str | None = None) -> tuple[FeatureGroups, Float, Float, Any]:
    """Groups, features, response and one more column of a data set's file."""
    groups = load_groups(folder / "groups.json")
    columns = [*groups.features, target, *([more] if more else [])]
    X, y, extra = [], [], []
    for batch in open_table(folder / file).batches(columns):
        X.append(feature_matrix(batch, groups.features))
        y.append(numbers(batch, target))
        extra.append(batch.columns[more or target])
    return groups, np.concatenate(X), np.concatenate(y), np.concatenate(extra)


def _kddcup99(setting: Setting) -> RealSet:
    if setting.data is None:
        groups, X, y, part = detection_stand_in(setting.seed)
        return RealSet(
            "kddcup99", "breast cancer (scikit-learn), with costs assigned", groups, X, y, part, _each(SETS), "accuracy"
        )
    groups, X, y, _ = _read(setting.data / "kddcup99", "train.parquet", "attack")
    rows = min(SET_ROWS, len(y) // SETS)
    if rows == 0:
        raise AnytimeError(f"the data set kddcup99 has {len(y)} rows; expected at least {SETS}, one for each set")
    part = np.minimum(np.arange(len(y)) // rows, SETS)
    what = f"KDD Cup 1999, {SETS} sets of {rows:,} rows, {len(groups)} groups of {X.shape[1]} features"
    return RealSet("kddcup99", what, groups, X, y, part, _each(SETS), "accuracy")


def _yahoo_sample(setting: Setting) -> RealSet:
    train_on_first = (((0,), 1),)
    if setting.yahoo is not None:
        groups, X, y, query, part = read_yahoo(*setting.yahoo)
        what = f"Yahoo! Learning to Rank, set 1, {int((part == 0).sum()):,} training rows, {X.shape[1]} features"
    elif setting.data is not None:
        folder = setting.data / "yahoo_sample"
        halves = [_read(folder, f"{half}.parquet", "relevance", "qid") for half in ("train", "test")]
        groups = halves[0][0]
        X, y, query = (np.concatenate([half[i] for half in halves]) for i in (1, 2, 3))
        part = np.repeat([0, 1], [len(half[2]) for half in halves])
        what = f"a sample of Yahoo! Learning to Rank, {len(halves[0][2]):,} training rows, {X.shape[1]} features"
    else:
        groups, X, y, query, part = ranking_stand_in(setting.seed)
        what = f"a synthetic ranking problem, {int((part == 0).sum()):,} training rows, {X.shape[1]} features"
    return RealSet("yahoo_sample", what, groups, X, y, part, train_on_first, "NDCG@5", query)


def _mq2008(setting: Setting) -> RealSet:
    if setting.data is None:
        groups, X, y, part = small_ranking_stand_in(setting.seed)
        what = "diabetes (scikit-learn) with squares and products, with costs assigned"
        return RealSet("mq2008", what, groups, X, y, part, _each(SETS))
    folder = setting.data / "mq2008"
    groups, X, y, query = _read(folder, "data.parquet", "relevance", "qid")
    fold = np.concatenate([numbers(batch, "fold") for batch in open_table(folder / "data.parquet").batches(["fold"])])
    what = f"MQ2008 (LETOR 4.0), {len(y):,} rows, {X.shape[1]} features, its own five folds"
    return RealSet("mq2008", what, groups, X, y, fold.astype(np.intp) - 1, _each(SETS), "NDCG@5", query)


def _boston_housing(setting: Setting) -> RealSet:
    if setting.data is None:
        groups, X, y = boston_stand_in()
        what = "diabetes (scikit-learn)"
    else:
        groups, X, y, _ = _read(setting.data / "boston_housing", "data.parquet", "MEDV")
        what = f"Boston Housing, {len(y)} rows, {X.shape[1]} features"
    return RealSet("boston_housing", what, groups, X, y, np.zeros(len(y), dtype=np.intp), ())


def _each(parts: int) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Hold out each of the first `parts` parts in turn."""
    return tuple((tuple(p for p in range(parts) if p != test), test) for test in range(parts))


_READERS: dict[SetName, Callable[[Setting], RealSet]] = {
    "kddcup99": _kddcup99,
    "yahoo_sample": _yahoo_sample,
    "mq2008": _mq2008,
    "boston_housing": _boston_housing,
}
