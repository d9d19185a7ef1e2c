"""The data sets of the experiments, in memory, with the parts that are held out in turn.

Without a folder of real data sets, scikit-learn's bundled sets and a synthetic one replace them.

The module also reads the owners' files of the Yahoo! Learning to Rank Challenge (webscope C14B, set 1), and the costs
of its features. `set1.train.txt` and `set1.test.txt` have one row per line, ``relevance qid:7 3:0.25 18:1``. The cost
file has the cost of each feature in order, separated by commas or lines; 1e8 or more marks an unavailable feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anytime.data.dataset import feature_matrix
from anytime.data.formats import open_table
from anytime.errors import AnytimeError, TableError, file_error, refuse
from anytime.evaluation.evaluate import ndcg
from anytime.groups import FeatureGroup, FeatureGroups, load_groups, singletons
from anytime.moments.accumulate import fold_moments_of
from anytime.moments.moments import Gram, HeldOutMoments, Moments
from anytime.types import Float, Index
from anytime_reproduction.experiment import Setting

SetName = Literal["kddcup99", "yahoo_sample", "mq2008", "boston_housing"]


@dataclass(frozen=True, eq=False)
class Split:
    """A training problem and the held-out table in its units; `test` are the held-out rows."""

    gram: Gram
    held: HeldOutMoments
    test: Index

    def ordered(self, order: Index) -> Split:
        held = replace(self.held, S=self.held.S[np.ix_(order, order)], q=self.held.q[order])
        return Split(self.gram.restricted(order), held, self.test)


@dataclass(frozen=True, eq=False)
class RealSet:
    """A data set in memory: X (n, D), its columns the groups' features in order, and the response y (n,).

    `what` describes it in the report. `part` (n,) has the part of each row, `splits` the training parts and the
    held-out part of each split, `query` (n,) the query of each row. `measure` is the natural measure of the problem,
    None where it is the error itself.
    """

    what: str
    groups: FeatureGroups
    X: Float
    y: Float
    part: Index
    splits: tuple[tuple[tuple[int, ...], int], ...]
    measure: Literal["accuracy", "NDCG@5"] | None = None
    query: NDArray[Any] | None = None

    @cached_property
    def moments(self) -> list[Moments]:
        return fold_moments_of(self.X, self.y, folds=self.part, count=int(self.part.max()) + 1)

    def split(self, number: int) -> Split:
        train, test = self.splits[number]
        gram = Gram.of(Moments.merged([self.moments[part] for part in train]))
        return Split(gram, gram.held_out_moments(self.moments[test]), np.flatnonzero(self.part == test))

    def measured(self, rows: Index, scores: Float) -> Float | None:
        """Return the natural measure of scores (models, rows) on some rows, (models,); larger is better."""
        if self.measure == "accuracy":
            return np.asarray(np.mean((scores >= 0.5) == (self.y[rows] >= 0.5), axis=1))
        return None if self.query is None else ndcg(self.y[rows], scores.T, self.query[rows])


# Groups.


def recosted(groups: FeatureGroups, costs: Iterable[float]) -> FeatureGroups:
    built = (group.model_copy(update={"cost": float(cost)}) for group, cost in zip(groups.groups, costs, strict=True))
    return FeatureGroups(cost_unit=groups.cost_unit, groups=tuple(built))


def consecutive_groups(sizes: Iterable[int], costs: Iterable[float]) -> FeatureGroups:
    return FeatureGroups(
        groups=tuple(
            FeatureGroup(name=f"G{g}", features=tuple(f"G{g}.{d + 1}" for d in range(size)), cost=float(cost))
            for g, (size, cost) in enumerate(zip(sizes, costs, strict=True), start=1)
        )
    )


def regrouping(
    setting: Setting, groups: FeatureGroups, size: int | None, number: int = 0
) -> tuple[FeatureGroups, Index]:
    """Return random groups of `size` features of equal cost, where a group costs their sum (section 5.1).

    The second return value is the old columns of the features in their new order. The grouping of a size and a number
    is the same in every experiment of a setting. The cost of a feature is an equal share of its group's cost; the last
    group of a cost may be smaller. Size None leaves the groups as they are.
    """
    if size is None:
        return groups, np.arange(len(groups.features))
    rng = np.random.default_rng([setting.seed, size, number])
    costs = np.concatenate(
        [np.full(len(g.features), c / len(g.features)) for g, c in zip(groups.groups, groups.costs, strict=True)]
    )
    chunks: list[tuple[float, list[int]]] = []
    for cost in np.unique(costs).tolist():
        shuffled = rng.permutation(np.flatnonzero(costs == cost)).tolist()
        chunks += [(cost, shuffled[start : start + size]) for start in range(0, len(shuffled), size)]
    built = tuple(
        FeatureGroup(
            name=f"{cost:g} x {number}",
            features=tuple(groups.features[column] for column in members),
            cost=cost * len(members),
        )
        for number, (cost, members) in enumerate(chunks)
    )
    order = np.array([column for _, members in chunks for column in members], dtype=np.intp)
    return FeatureGroups(cost_unit=groups.cost_unit, groups=built), order


def regrouped(setting: Setting, data: RealSet, size: int) -> RealSet:
    """Return the same data set in random groups, the first of `regrouping`."""
    groups, order = regrouping(setting, data.groups, size)
    return replace(data, groups=groups, X=data.X[:, order])


# Stand-ins.

COSTS = (1.0, 5.0, 20.0, 50.0, 100.0, 150.0, 200.0)  # the costs of Yahoo's features (section 5.1)
SETS = 5  # disjoint sets of AGRICULTURAL in the paper, and of its stand-in here

EACH = tuple((tuple(part for part in range(SETS) if part != test), test) for test in range(SETS))
"""Splits that hold out each of the five parts in turn."""

TRAIN_AND_TEST = (((0,), 1),)  # the split of a set with given training and held-out rows


def detection_stand_in(seed: int) -> RealSet:
    """Return breast cancer: ten quantities of cell nuclei, each with mean, error and worst value; two classes."""
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415

    loaded = load_breast_cancer()
    order = np.arange(30).reshape(3, 10).T
    rng = np.random.default_rng(seed)
    groups = consecutive_groups([3] * len(order), rng.integers(1, 20, len(order)))
    return RealSet(
        "breast cancer (scikit-learn), with costs assigned",
        groups,
        loaded.data[:, order.ravel()],
        loaded.target.astype(float),
        rng.integers(0, SETS, len(loaded.target)),
        EACH,
        "accuracy",
    )


def ranking_stand_in(seed: int) -> RealSet:
    """Return relevances 0 to 4 that depend on a few of 200 features, which form correlated families."""
    rng = np.random.default_rng(seed)
    rows, families, members = 4000, 40, 5
    X = np.repeat(rng.normal(size=(rows, families)), members, axis=1) * 0.7
    X += rng.normal(size=(rows, families * members))
    weights = np.where(rng.random(X.shape[1]) < 0.3, rng.normal(size=X.shape[1]), 0.0)
    latent = X @ weights
    latent += rng.normal(size=rows) * latent.std()
    y = np.searchsorted(np.quantile(latent, [0.3, 0.65, 0.85, 0.95]), latent).astype(np.float64)
    query = np.arange(rows) // 16
    groups = consecutive_groups([1] * X.shape[1], rng.choice(COSTS, X.shape[1]))
    part = (query % SETS == SETS - 1).astype(np.intp)
    return RealSet(
        f"a synthetic ranking problem, {int((part == 0).sum()):,} training rows, {X.shape[1]} features",
        groups,
        X,
        y,
        part,
        TRAIN_AND_TEST,
        "NDCG@5",
        query,
    )


def small_ranking_stand_in(seed: int) -> RealSet:
    """Return diabetes with squares and products of its ten quantities: 65 features, each its own group."""
    from sklearn.datasets import load_diabetes  # noqa: PLC0415
    from sklearn.preprocessing import PolynomialFeatures, scale  # noqa: PLC0415

    loaded = load_diabetes()
    X = PolynomialFeatures(2, include_bias=False).fit_transform(scale(loaded.data))
    rng = np.random.default_rng(seed)
    groups = consecutive_groups([1] * X.shape[1], rng.choice(COSTS, X.shape[1]))
    return RealSet(
        "diabetes (scikit-learn) with squares and products, with costs assigned",
        groups,
        X,
        loaded.target,
        rng.integers(0, SETS, len(X)),
        EACH,
    )


def boston_stand_in() -> RealSet:
    """Return diabetes with its ten quantities at cost 1."""
    from sklearn.datasets import load_diabetes  # noqa: PLC0415

    return _undivided(
        "diabetes (scikit-learn)", consecutive_groups([1] * 10, [1] * 10), *load_diabetes(return_X_y=True)
    )


def _undivided(what: str, groups: FeatureGroups, X: Float, y: Float) -> RealSet:
    return RealSet(what, groups, X, y, np.zeros(len(y), dtype=np.intp), ())


# The owners' Yahoo! files.

FILES = ("set1.train.txt", "set1.test.txt")  # of training rows and held-out rows; the validation rows are not read


def read_yahoo(folder: Path, costs: Path) -> RealSet:
    """Return the owners' rows in groups of one feature each, without unavailable features and those without values.

    Raise TableError if a file is missing, or does not have the form that the module docstring describes.
    """
    from sklearn.datasets import load_svmlight_files  # noqa: PLC0415

    prices = check_yahoo(folder, costs)
    try:
        loaded = load_svmlight_files(
            [str(folder / name) for name in FILES], n_features=len(prices), query_id=True, zero_based=False
        )
    except (ValueError, OSError) as error:
        raise TableError(
            f"cannot read the files in {str(folder)!r}: {' '.join(str(error).split())}; expected lines 'relevance "
            "qid:N id:value'"
        ) from error
    sparse, labels, queries = loaded[0::3], loaded[1::3], loaded[2::3]
    _check(folder, sparse, labels, queries)
    known = np.flatnonzero((prices < 1e8) & (sum(part.getnnz(axis=0) for part in sparse) > 0))
    if not len(known):
        raise TableError(f"no row in {str(folder)!r} has an available feature; expected a cost under 1e8 for some")
    groups = recosted(singletons(f"f{j + 1}" for j in known), prices[known])
    halves = [part[:, known].toarray() for part in sparse]
    return _ranking("Yahoo! Learning to Rank, set 1", groups, halves, labels, queries)


def _ranking(
    name: str, groups: FeatureGroups, X: Sequence[Float], y: Sequence[Float], query: Sequence[NDArray[Any]]
) -> RealSet:
    """Return a ranking problem from its training rows and its held-out rows, in this order."""
    return RealSet(
        f"{name}, {len(y[0]):,} training rows, {X[0].shape[1]} features",
        groups,
        np.concatenate(X),
        np.concatenate(y),
        np.repeat([0, 1], [len(half) for half in y]),
        TRAIN_AND_TEST,
        "NDCG@5",
        np.concatenate(query),
    )


def check_yahoo(folder: Path, costs: Path) -> Float:
    """Return the cost of each feature; raise TableError if a file is missing or the cost file has another form."""
    wanted = f"expected {' and '.join(FILES)} in the folder of --yahoo"
    refuse(
        {f"there is no {str(folder / name)!r}; {wanted}": not (folder / name).is_file() for name in FILES}, TableError
    )
    try:
        prices = np.array(costs.read_text(encoding="utf-8").replace(",", " ").split(), dtype=np.float64)
    except OSError as error:
        raise file_error(TableError, f"read the cost file {str(costs)!r}", error) from error
    except ValueError as error:
        raise TableError(
            f"cannot read the cost file {str(costs)!r}: {error}; expected a number for each feature"
        ) from error
    if not len(prices) or not (np.isfinite(prices) & (prices >= 0)).all():
        raise TableError(
            f"the cost file {str(costs)!r} has no costs, or a negative one; expected a number >= 0 for each feature"
        )
    return prices


def _check(folder: Path, sparse: Sequence[Any], labels: Sequence[Float], queries: Sequence[NDArray[Any]]) -> None:
    """Raise for errors that scikit-learn accepts: no rows, rows without a query, and values that are not finite."""
    for name, values, label, query in zip(FILES, sparse, labels, queries, strict=True):
        faults = {
            "no rows; expected lines 'relevance qid:N id:value'": not len(label),
            f"{len(label)} rows but {len(query)} queries; expected 'qid:N' in every line": len(query) != len(label),
            "a relevance or a value that is not a number; expected finite numbers": not (
                np.isfinite(label).all() and np.isfinite(values.data).all()
            ),
        }
        refuse({f"{str(folder / name)!r} has {fault}": found for fault, found in faults.items()}, TableError)


# The public data sets.

SET_ROWS = 96_000  # rows in each of the five sets, or a fifth of a smaller table; the paper has 100,000 of 510,000


def check_sets(names: Iterable[str], setting: Setting) -> None:
    """Raise AnytimeError if a file of some data sets is missing, before any work."""
    for name in names:
        if name == "yahoo_sample" and setting.yahoo is not None:
            check_yahoo(*setting.yahoo)
        elif setting.data is not None and not (setting.data / name / "groups.json").is_file():
            raise AnytimeError(
                f"there is no data set {str(setting.data / name)!r}; give --data a folder that has it, or omit --data"
            )


@lru_cache(maxsize=2)
def load_set(name: SetName, setting: Setting) -> RealSet:
    """Return a data set of the setting, or its stand-in; raise AnytimeError if its files are missing or invalid."""
    if name == "yahoo_sample" and setting.yahoo is not None:
        return read_yahoo(*setting.yahoo)
    read, stand_in = _SOURCES[name]
    return stand_in(setting.seed) if setting.data is None else read(setting.data / name)


def _read(folder: Path, file: str, *columns: str) -> Any:
    """Return groups, features and more columns of a data set's file."""
    groups = load_groups(folder / "groups.json")
    names = [*groups.features, *columns]
    parts = [
        (feature_matrix(batch, groups.features), *(batch.column(column) for column in columns))
        for batch in open_table(folder / file).batches(names, types=dict.fromkeys(names, "number"))
    ]
    return groups, *map(np.concatenate, zip(*parts, strict=True))


def _kddcup99(folder: Path) -> RealSet:
    groups, X, y = _read(folder, "train.parquet", "attack")
    rows = min(SET_ROWS, len(y) // SETS)
    if rows == 0:
        raise AnytimeError(f"the data set kddcup99 has {len(y)} rows; expected at least {SETS}, one for each set")
    part = np.minimum(np.arange(len(y)) // rows, SETS)
    return RealSet(
        f"KDD Cup 1999, {SETS} sets of {rows:,} rows, {len(groups)} groups of {X.shape[1]} features",
        groups,
        X,
        y,
        part,
        EACH,
        "accuracy",
    )


def _yahoo_sample(folder: Path) -> RealSet:
    halves = [_read(folder, f"{half}.parquet", "relevance", "qid") for half in ("train", "test")]
    groups, X, y, query = zip(*halves, strict=True)
    return _ranking("a sample of Yahoo! Learning to Rank", groups[0], X, y, query)


def _mq2008(folder: Path) -> RealSet:
    groups, X, y, query, fold = _read(folder, "data.parquet", "relevance", "qid", "fold")
    return RealSet(
        f"MQ2008 (LETOR 4.0), {len(y):,} rows, {X.shape[1]} features, its own five folds",
        groups,
        X,
        y,
        fold.astype(np.intp) - 1,
        EACH,
        "NDCG@5",
        query,
    )


def _boston_housing(folder: Path) -> RealSet:
    groups, X, y = _read(folder, "data.parquet", "MEDV")
    return _undivided(f"Boston Housing, {len(y)} rows, {X.shape[1]} features", groups, X, y)


_SOURCES: dict[SetName, tuple[Callable[[Path], RealSet], Callable[[int], RealSet]]] = {
    "kddcup99": (_kddcup99, detection_stand_in),
    "yahoo_sample": (_yahoo_sample, ranking_stand_in),
    "mq2008": (_mq2008, small_ranking_stand_in),
    "boston_housing": (_boston_housing, lambda _: boston_stand_in()),
}
"""Reader of the files of each data set, and its stand-in for a seed."""
