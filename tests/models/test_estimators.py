"""The estimators keep scikit-learn's conventions, and say what the saved model says."""

from __future__ import annotations

import json
import pickle
import re
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import Ridge
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import KFold, ShuffleSplit, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import anytime
from anytime import AnytimeClassifier, AnytimeRegressor
from anytime.errors import AnytimeError, AnytimeWarning, GroupsError, TableError, TrainingError, ValuesError
from anytime.moments.accumulate import accumulate
from anytime.training import train as training
from anytime.training.train import LONG_PASS
from anytime.types import Float
from models.opening import by_group, opened
from models.refusals import assert_refused

pytestmark = pytest.mark.usefixtures("linear_by_default")

Estimator = AnytimeRegressor | AnytimeClassifier

GROUPS: dict[str, Any] = {
    "cost_unit": "ms",
    "groups": [
        {"name": "edges", "features": ["e0", "e1"], "cost": 2.0},
        {"name": "colour", "features": ["c0"], "cost": 1.0},
        {"name": "shape", "features": ["s0", "s1", "s2"], "cost": 5.0},
    ],
}
FEATURES = ["e0", "e1", "c0", "s0", "s1", "s2"]


def table(rows: int = 80, seed: int = 0, missing: float = 0.0) -> tuple[Float, Float]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 6)) + 3.0
    y = X @ [1.0, -2.0, 0.5, 0.0, 1.0, 3.0] + rng.normal(size=rows)
    X[rng.random(X.shape) < missing] = np.nan
    return X, y


X, y = table()
UP = y > y.mean()
FRAME = pd.DataFrame(X, columns=FEATURES)
X.flags.writeable = y.flags.writeable = False


def labels(names: list[Any]) -> Any:
    """As many equal classes as names, by the value of y."""
    return np.array(names)[np.searchsorted(np.quantile(y, np.linspace(0, 1, len(names) + 1)[1:-1]), y)]


def target_of(kind: type[Estimator]) -> Any:
    return y if kind is AnytimeRegressor else UP


# scikit-learn's own promises.


def checks() -> Iterator[Any]:
    """scikit-learn's checks of the estimators; two estimators run each time."""
    estimators: list[Estimator] = [
        AnytimeRegressor(),
        AnytimeRegressor(family="poisson"),
        AnytimeClassifier(alpha=0.1, basis="linear"),
        AnytimeClassifier(),
        AnytimeClassifier(cv=2),
        AnytimeClassifier(family="gaussian"),
        AnytimeClassifier(family="gaussian", cv=2),
    ]
    quick = (estimators[0], estimators[2])
    for estimator in estimators:
        for checked, check in estimator_checks_generator(estimator):
            marks = () if estimator in quick else (pytest.mark.heavy,)
            yield pytest.param(checked, check, id=f"{estimator}-{getattr(check, 'func', check).__name__}", marks=marks)


@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_the_conventions_of_scikit_learn_are_kept(estimator: Estimator, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("kind", [AnytimeRegressor, AnytimeClassifier])
def test_the_constructor_stores_and_nothing_else(kind: type[Estimator]) -> None:
    given: dict[str, Any] = {
        "groups": {"groups": "nonsense"},
        "family": "nonsense",
        "method": "nonsense",
        "cost_blind": True,
        "doubling": True,
        "alpha": -3.0,
        "cv": 0,
        "one_se": True,
        "nested": True,
        "epsilon": -1.0,
        "basis": "nonsense",
        "clamp": -1.0,
        "min_level_rows": -1,
        "pairs": -1,
        "class_weight": "nonsense",
        "n_jobs": 3,
        "random_state": 7,
    }
    estimator = kind(**given)
    assert estimator.get_params() == given
    assert clone(estimator).get_params() == given
    assert estimator.set_params(alpha=0.5).alpha == 0.5
    assert "alpha=0.5" in repr(estimator)


# What is learned.


def test_without_groups_each_column_is_one_at_cost_1() -> None:
    estimator = AnytimeRegressor().fit(X, y)
    assert sorted(estimator.sequence_) == [f"x{j}" for j in range(6)]
    assert estimator.curve_.costs.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert AnytimeRegressor().fit(FRAME, y).sequence_ == [FEATURES[int(name[1:])] for name in estimator.sequence_]


# Budgets and stages.


@pytest.fixture(scope="module")
def fitted(linear_by_default: None) -> AnytimeRegressor:
    return AnytimeRegressor(GROUPS).fit(X, y)


def test_a_budget_buys_the_longest_prefix_within_it(fitted: AnytimeRegressor) -> None:
    staged = list(fitted.staged_predict(X))
    assert len(staged) == 4
    np.testing.assert_allclose(staged[0], np.full(len(X), y.mean()))
    for k, cost in enumerate(fitted.costs_):
        np.testing.assert_array_equal(fitted.predict(X, budget=cost), staged[k])
        np.testing.assert_array_equal(fitted.predict(X, budget=cost * (1 - 1e-12)), staged[k])
        if k > 0:
            np.testing.assert_array_equal(fitted.predict(X, budget=cost * 0.999), staged[k - 1])
    for enough in (None, np.inf, 1e9):
        np.testing.assert_array_equal(fitted.predict(X, budget=enough), staged[-1])
    errors = np.square(y - staged).mean(axis=1).tolist()
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("budget", [-1.0, -1e-9, float("nan"), -np.inf], ids=str)
@pytest.mark.parametrize("kind", [AnytimeRegressor, AnytimeClassifier])
def test_a_budget_that_is_none_is_refused(budget: float, kind: type[Estimator]) -> None:
    estimator = kind(GROUPS).fit(X, target_of(kind))
    assert_refused(
        lambda: estimator.predict(X, budget=budget),
        "budget is ",
        "expected a number of ms, 0 or more",
        error=ValuesError,
    )


# Columns.


def test_columns_of_a_table_are_found_by_name_in_any_order_and_others_are_left_alone(fitted: AnytimeRegressor) -> None:
    shuffled = FRAME[["s2", "c0", "e1", "s0", "e0", "s1"]].assign(note="text", extra=1.0)
    estimator = AnytimeRegressor(GROUPS).fit(shuffled, y)
    for other in (FRAME, shuffled, FRAME.assign(extra=np.inf)[["extra", *reversed(FEATURES)]]):
        np.testing.assert_allclose(estimator.predict(other), fitted.predict(X), rtol=1e-12)
    assert estimator.n_features_in_ == 6
    assert estimator.feature_names_in_.tolist() == FEATURES


def test_columns_of_an_array_stand_in_the_order_of_the_groups_or_are_called_by_number(fitted: AnytimeRegressor) -> None:
    numbered = {
        "groups": [
            {"name": "edges", "features": ["x4", "x0"], "cost": 2.0},
            {"name": "colour", "features": ["x7"], "cost": 1.0},
            {"name": "shape", "features": ["x1", "x2", "x3"], "cost": 5.0},
        ]
    }
    wide = np.full((len(X), 9), np.nan)
    wide[:, [4, 0, 7, 1, 2, 3]] = X
    wide[:, [5, 6, 8]] = 99.0
    for given in (wide, sparse.csr_array(wide)):
        found = AnytimeRegressor(numbered).fit(given, y).predict(given)
        np.testing.assert_allclose(found, fitted.predict(X), rtol=1e-10)


@pytest.mark.parametrize(
    ("groups", "given", "why"),
    [
        ({"groups": [{"name": "a", "features": ["x0"], "cost": -1.0}]}, X, "-1.0"),
        ({"groups": [{"name": "a", "features": ["x0", "x0"], "cost": 1.0}]}, X, "twice"),
        ({"groups": [{"name": "a", "features": ["x0"], "cost": 1.0, "requires": ["b"]}]}, X, "'b'"),
        ({"groups": []}, X, "no groups"),
        ({"groups": [{"name": "a", "cost": 1.0}]}, X, "features"),
        ({}, X, "no groups"),
        ("no such file.json", X, "no such file"),
        (GROUPS, X[:, :5], "5 columns without names and the groups have 6 features"),
        (GROUPS, FRAME.drop(columns="c0"), "no column 'c0'"),
    ],
    ids=["negative", "twice", "unknown", "none", "no features", "empty", "no file", "narrow table", "missing column"],
)
@pytest.mark.parametrize("kind", [AnytimeRegressor, AnytimeClassifier])
def test_bad_groups_and_those_that_do_not_fit_the_table_are_refused(
    kind: type[Estimator], groups: Any, given: Any, why: str
) -> None:
    assert_refused(lambda: kind(groups).fit(given, target_of(kind)), why, error=GroupsError)


@pytest.mark.parametrize("kind", [AnytimeRegressor, AnytimeClassifier])
@pytest.mark.parametrize("edited", [False, True])
def test_what_was_fitted_needs_its_groups_file_no_more(tmp_path: Path, kind: type[Estimator], edited: bool) -> None:
    target = target_of(kind)
    file = tmp_path / "groups.json"
    file.write_text(json.dumps(GROUPS))
    estimator = kind(file, family="gaussian", alpha=1e-5).partial_fit(FRAME, target)
    expected = estimator.predict(FRAME)
    joblib.dump(kind(file, family="gaussian", alpha=1e-5).fit(FRAME, target), tmp_path / "estimator.joblib")
    if edited:
        file.write_text(json.dumps({"groups": GROUPS["groups"][:2]}))
    else:
        file.unlink()
    np.testing.assert_allclose(joblib.load(tmp_path / "estimator.joblib").predict(FRAME), expected, rtol=1e-9)
    assert estimator.partial_fit(FRAME, target).model_.manifest.provenance.rows == 2 * len(X)
    np.testing.assert_allclose(estimator.predict(FRAME), expected, rtol=1e-9)


# Values.


@pytest.mark.parametrize("layout", [sparse.csr_array, sparse.csc_array, sparse.coo_array, sparse.csr_matrix])
@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("options", [{}, {"basis": "hinge:2"}, {"alpha": "cv", "cv": 3}], ids=str)
def test_sparse_tables_are_as_dense_ones(layout: Any, missing: float, options: dict[str, Any]) -> None:
    some = np.where(X > 3, X, 0.0)
    some[np.random.default_rng(1).random(X.shape) < missing] = np.nan
    dense, thin = (AnytimeRegressor(GROUPS, **options).fit(table, y) for table in (some, layout(some)))
    assert thin.sequence_ == dense.sequence_
    np.testing.assert_allclose(thin.predict(layout(some)), dense.predict(some), rtol=1e-10)
    np.testing.assert_allclose(thin.predict(some, budget=3.0), dense.predict(some, budget=3.0), rtol=1e-10)


@pytest.mark.parametrize("options", [{}, {"basis": "hinge:2"}, {"basis": "auto"}, {"clamp": 0.1}], ids=str)
def test_a_column_with_an_infinity_is_left_out_of_arrays_and_streams_and_refused_in_later_rows(
    options: dict[str, Any], fitted: AnytimeRegressor
) -> None:
    infinite = X.copy()
    infinite[5, 2] = np.inf
    said = "column{} 'c0' holds 1 infinite value, the first in row"
    for rows in (infinite, sparse.csr_array(infinite)):
        with pytest.warns(AnytimeWarning, match=f"left out 1 {said.format(':')}"):
            estimator = AnytimeRegressor(GROUPS, **options).fit(rows, y)
        assert sorted(estimator.sequence_) == ["edges", "shape"]
        for sign in (1, -1):
            assert_refused(partial(fitted.predict, sign * rows), said.format(""))
    # While bases are learned, the rows of a stream are kept.
    outcome = pytest.warns(AnytimeWarning) if options else pytest.raises(TableError, match="X: " + said.format(""))
    with outcome:
        AnytimeRegressor(GROUPS, **options).partial_fit(X, y).partial_fit(infinite, y)


def test_a_target_that_cannot_be_squared_is_named() -> None:
    Y = pd.DataFrame({"near": y, "far": np.where(np.arange(80) == 7, 1e200, y)})
    assert_refused(
        lambda: AnytimeRegressor(GROUPS).fit(X, Y), "column 'far' holds values that are infinite or too large to square"
    )


# Cross-validation.


def test_cross_validation_chooses_penalties_and_has_errors() -> None:
    estimator = AnytimeRegressor(GROUPS, alpha="cv").fit(X, y)
    errors = np.asarray(estimator.curve_.cv_error)
    assert errors.shape == estimator.alphas_.shape == estimator.costs_.shape == (4,)
    assert errors[0] == pytest.approx(np.var(y), rel=0.1)
    assert errors[-1] == pytest.approx(1.0, rel=0.5)
    assert estimator.model_.manifest.provenance.folds == 5
    assert [step.alpha for step in estimator.model_.manifest.steps] == estimator.alphas_[1:].tolist()
    assert (estimator.alpha_, estimator.costs_.tolist()) == (estimator.fit_.alpha, estimator.curve_.costs.tolist())


@pytest.mark.parametrize("kind", [AnytimeRegressor, AnytimeClassifier])
def test_the_seed_decides_the_folds(kind: type[Estimator]) -> None:
    errors = [
        np.asarray(
            kind(GROUPS, family="gaussian", cv=3, random_state=seed).fit(X, target_of(kind)).curve_.cv_error
        ).tolist()
        for seed in (0, np.int64(0), 1, np.random.RandomState(0), np.random.RandomState(0))
    ]
    assert errors[0] == errors[1] != errors[2]
    assert errors[3] == errors[4]


ROWS, HALVES = np.arange(len(y)), tuple(np.array_split(np.arange(len(y)), 2))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"alpha": -1.0}, "alpha is -1.0"),
        ({"alpha": np.nan}, "alpha is nan"),
        ({"alpha": "best"}, "'best'"),
        ({"method": "lasso"}, "'lasso'"),
        ({"cv": 1}, "cv is 1"),
        ({"cv": 0, "alpha": "cv"}, "cv is 0"),
        ({"cv": "five"}, "cv is 'five'"),
        ({"cv": 2.5}, "cv is 2.5"),
        *(
            ({"clamp": clamp}, f"clamp is {clamp!r}; expected a quantile Q from 0 to")
            for clamp in (-0.1, 0.5, True, "on")
        ),
        *(
            ({"epsilon": epsilon}, f"epsilon is {epsilon}; expected a finite number above 0")
            for epsilon in (0.0, -1.0, np.nan, np.inf)
        ),
        *(
            ({"min_level_rows": least}, f"min_level_rows is {least!r}; expected a whole number, 2 or more, or 'auto'")
            for least in (1, 0, -3, 2.5, True, "10", "few", None)
        ),
        *(
            ({"cv": cv}, said)
            for cv, said in (
                (ShuffleSplit(3, random_state=0), "cv makes 3 folds that test 24 rows of 80"),
                (
                    TimeSeriesSplit(3),
                    "cv trains fold 0 on 20 rows, and not once on each of the 60 rows that it does not test",
                ),
                ([([0], [1])], "cv trains fold 0 on 1 rows"),
                ([(HALVES[0][2:], HALVES[1]), HALVES], "cv trains fold 0 on 38 rows"),
                ([(np.append(HALVES[0], 0), HALVES[1]), HALVES], "cv trains fold 0 on 41 rows"),
                ([(ROWS, HALVES[1]), HALVES], "cv trains fold 0 on 80 rows"),
                ([HALVES, HALVES], "cv makes 2 folds that test 80 rows of 80"),
                ([HALVES, (HALVES[1], [*HALVES[0], 0])], "cv makes 2 folds that test 81 rows of 80"),
                ([(ROWS, ROWS[:0])], "cv makes 1 folds that test 0 rows of 80"),
                ([HALVES, (HALVES[1], HALVES[0] + 80)], "cv does not split 80 rows (index 80 is out of bounds"),
                ([1, 2], "cv does not split 80 rows (cannot unpack non-iterable int"),
                (KFold(81), "cv does not split 80 rows (Cannot have number of splits n_splits=81 greater"),
            )
        ),
    ],
)
def test_options_and_splits_are_obeyed_or_refused_and_never_some_of_their_rows(
    options: dict[str, Any], said: str
) -> None:
    assert_refused(lambda: AnytimeRegressor(GROUPS, **options).fit(X, y), said, error=TrainingError)


def test_a_splitter_that_tears_a_query_apart_is_refused() -> None:
    halves = [HALVES, HALVES[::-1]]
    AnytimeRegressor(GROUPS, cv=halves).fit(X, y, query=ROWS // 40)
    assert_refused(
        lambda: AnytimeRegressor(GROUPS, cv=halves).fit(X, y, query=ROWS // 30),
        "cv assigns the rows of query 1 to several folds; ",
        " such as GroupKFold",
        error=TrainingError,
    )


def test_long_passes_use_all_cores_unless_joblib_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def recorded(*args: Any, n_jobs: int | None, **options: Any) -> Any:
        used.append(joblib.effective_n_jobs(n_jobs))
        return accumulate(*args, n_jobs=n_jobs, **options)

    monkeypatch.setattr("anytime.data.dataset.accumulate", recorded)
    monkeypatch.setattr("anytime.training.train.cpu_count", lambda: 3)
    long = np.random.default_rng(0).normal(size=(LONG_PASS // 8, 8))

    def fit(rows: int = len(long), **options: Any) -> None:
        AnytimeRegressor(**options).fit(long[:rows], long[:rows, 0])

    fit()
    fit(100)
    fit(100, n_jobs=2)
    for stated in (1, 2):
        with joblib.parallel_config(backend="threading", n_jobs=stated):
            fit()
    joblib.Parallel(n_jobs=2, prefer="threads")([joblib.delayed(fit)()])
    assert used == [3, 1, 2, 1, 2, 1]


STORED: dict[str, Any] = {
    "C order": np.ascontiguousarray,
    "F order": np.asfortranarray,
    "float32": lambda X: X.astype(np.float32),
    "DataFrame": lambda X: pd.DataFrame(X, columns=FEATURES),
    "DataFrame of columns": lambda X: pd.DataFrame({name: X[:, j].copy() for j, name in enumerate(FEATURES)}),
    "float32 DataFrame": lambda X: pd.DataFrame(X, columns=FEATURES, dtype=np.float32),
}


@pytest.fixture(scope="module")
def large(linear_by_default: None) -> tuple[Float, Float, Float]:
    """A table whose numbers need no more than single precision, and what is fitted to it."""
    X, y = table(rows=900_000)
    X = X.astype(np.float32).astype(np.float64)
    return X, y, AnytimeRegressor(GROUPS, n_jobs=1).fit(X, y).coef_


@pytest.mark.parametrize("stored", STORED)
def test_a_table_is_fitted_however_it_is_stored_and_never_copied_whole(
    stored: str, large: tuple[Float, Float, Float]
) -> None:
    X, y, expected = large
    given = STORED[stored](X)
    tracemalloc.start()
    found = AnytimeRegressor(GROUPS, n_jobs=2).fit(given, y).coef_
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < X.nbytes / 4
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


# Saved models.


LABELS: dict[str, tuple[list[Any], Callable[[Any], Any]]] = {
    **{
        str(names): (names, np.asarray)
        for names in (["a", "b", "ü"], [0, 1], [-5, 3, 12], [False, True], [1.0, 2.0], [-1.0, 0.0, 1.0])
    },
    "objects of booleans": ([False, True], lambda t: t.astype(object)),
    "objects of integers": ([-3, 2, 2**40], lambda t: t.astype(object)),
    "objects of text": (["no", "yes"], lambda t: t.astype(object)),
    "boolean": ([False, True], lambda t: pd.Series(t, dtype="boolean", name="label")),
    "Int64": ([0, 1, 7], lambda t: pd.array(t, dtype="Int64")),
    "string": (["no", "yes"], lambda t: pd.Series(t, dtype="string")),
    "categories": (["no", "yes"], pd.Categorical),
    "categories of integers": ([4, 5], lambda t: pd.Series(t, dtype="category")),
    "a list of booleans": ([False, True], np.ndarray.tolist),
    "a list of integers": ([1, 2, 3], np.ndarray.tolist),
    "a column": ([1, 2, 3], lambda t: t[:, np.newaxis]),
    "polars": ([False, True], pl.Series),
    "Arrow": (["no", "yes"], pa.array),
}
"""Names of classes, and what holds the labels."""


@pytest.mark.filterwarnings("ignore:A column-vector y was passed")
@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("family", ["auto", "gaussian"])
def test_labels_are_the_same_whatever_holds_them_and_in_the_file(
    kind: str, family: Literal["auto", "gaussian"], tmp_path: Path
) -> None:
    names, held_by = LABELS[kind]
    target = labels(names)
    held = held_by(target)
    options: dict[str, Any] = {"alpha": 1e-3, "cv": 4, "random_state": 7}
    estimator = AnytimeClassifier(GROUPS, family=family, **options).fit(X, held)
    estimator.save(tmp_path / "m.safetensors")
    model = anytime.load(tmp_path / "m.safetensors")
    loaded = AnytimeClassifier.load(tmp_path / "m.safetensors")
    assert options.items() <= loaded.get_params().items()
    for classes in (estimator.classes_.tolist(), model.manifest.classes or (), loaded.classes_.tolist()):
        assert [(type(each), each) for each in classes] == [(type(each), each) for each in names]
    for each in (estimator, loaded):
        assert each.score(X, held) == each.staged_score(X, held)[-1] == accuracy_score(target, each.predict(X)) > 0.6
    received = opened(model, by_group(model.groups, X), len(X))
    stages = zip(model.costs.tolist(), estimator.staged_predict_proba(X), estimator.staged_predict(X), strict=True)
    for budget, probabilities, predicted in stages:
        answer = received.answer(budget=budget)
        np.testing.assert_allclose(answer.probabilities, probabilities, atol=1e-12)
        assert answer.prediction == predicted.tolist()
    if family == "gaussian":
        stream = AnytimeClassifier(GROUPS, family=family, alpha=1e-3).partial_fit(X, held)
        assert stream.partial_fit(X[:0], held[:0]) is stream, "no rows change nothing"
        np.testing.assert_allclose(stream.predict_proba(X), estimator.predict_proba(X), atol=1e-12)


def test_what_is_not_fitted_can_neither_predict_nor_be_saved(tmp_path: Path) -> None:
    uses: list[Callable[[AnytimeRegressor], Any]] = [
        lambda estimator: estimator.predict(X),
        lambda estimator: estimator.save(tmp_path / "m.safetensors"),
        lambda estimator: estimator.model_,
    ]
    for use in uses:
        assert_refused(partial(use, AnytimeRegressor(GROUPS)), "not fitted", error=ValueError)
    assert not list(tmp_path.iterdir())


# Classes.


@pytest.mark.parametrize("family", ["auto", "gaussian"])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_probabilities_are_probabilities_and_agree_with_what_is_predicted(
    classes: int, family: Literal["auto", "gaussian"]
) -> None:
    # Classes are of unlike sizes: base rates are no ties.
    target = np.digitize(y, np.quantile(y, [0.2, 0.55, 0.7, 0.87][: classes - 1]))
    estimator = AnytimeClassifier(GROUPS, family=family).fit(X, target)
    staged = list(zip(estimator.staged_predict_proba(X), estimator.staged_predict(X), strict=True))
    np.testing.assert_allclose(staged[0][0], np.tile(np.bincount(target) / len(target), (len(X), 1)), atol=1e-12)
    for budget, (proba, predicted) in zip(estimator.costs_, staged, strict=True):
        assert proba.shape == (len(X), classes)
        assert ((proba >= 0) & (proba <= 1)).all()
        np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-12)
        np.testing.assert_array_equal(proba, estimator.predict_proba(X, budget=budget))
        np.testing.assert_array_equal(predicted, estimator.predict(X, budget=budget))
        scores = estimator.decision_function(X, budget=budget)
        chosen = (scores > 0).astype(int) if classes == 2 else scores.argmax(axis=1)
        np.testing.assert_array_equal(predicted, estimator.classes_[chosen])
        if family == "auto":
            logs = np.log(proba)
            log_odds = logs[:, 1] - logs[:, 0] if classes == 2 else logs - logs.mean(axis=1, keepdims=True)
            np.testing.assert_allclose(scores, log_odds, atol=1e-9)
            # The intercept is not penalised: on the training rows mean probabilities are the shares.
            np.testing.assert_allclose(proba.mean(axis=0), np.bincount(target) / len(X), atol=1e-6)


def test_a_fit_that_is_refused_leaves_what_was_learned_before() -> None:
    target = labels(["a", "b", "c"])
    estimator = AnytimeClassifier(GROUPS).fit(X, target)
    before = estimator.predict_proba(X)
    for arguments, why in (((X, np.full(len(X), "a")), "one class"), ((X[:, :5], target), "5 columns")):
        assert_refused(partial(estimator.fit, *arguments), why, error=(GroupsError, TrainingError))
        np.testing.assert_array_equal(estimator.predict_proba(X), before)
        assert estimator.model_.manifest.classes == ("a", "b", "c")


def test_classes_of_one_row_train_and_their_rows_are_never_held_out() -> None:
    target = labels(["a", "b", "c"]).astype(object)
    target[[3, 17, 40, 41]] = ["once", "only", "single", "lone"]
    for alpha in (1e-3, "cv"):
        with pytest.warns(AnytimeWarning, match="classes with one row each: 'lone', 'once', 'only', 'single'"):
            estimator = AnytimeClassifier(GROUPS, alpha=alpha).fit(X, target)
        assert estimator.predict_proba(X).shape == (len(X), 7)
    assert np.isfinite(np.asarray(estimator.curve_.cv_error)).all()
    once = np.where(np.arange(len(X)) == 17, "once", "often")
    with pytest.warns(AnytimeWarning, match="class 'once' has one row"):
        binary = AnytimeClassifier(GROUPS, family="binomial").fit(X, once)
    assert binary.fit_.measured is not None
    # The deviance of the base rate on held-out rows: none is 'once', which every fold's rate counts.
    expected = [-2 * np.log(1 - 1 / (len(X) - held)) for held in (15.0, 16.0)]
    for found in binary.fit_.measured.folds[:, 0]:
        assert np.isclose(found, expected, rtol=1e-6).any(), (found, expected)


# Columns that have no numbers

DAYS = pd.date_range("2024-01-01", periods=80)


@pytest.mark.parametrize(
    ("values", "said"),
    [(DAYS - DAYS[0], "'x2' is duration["), (["1.5", "two", "3", "4"] * 20, "'x2' holds text, as 'two' in row 1")],
    ids=["durations", "text"],
)
@pytest.mark.parametrize("groups", [None, {"groups": [{"name": "g", "features": ["x0", "x2"], "cost": 1}]}])
def test_a_column_of_a_dataframe_without_numbers_is_named_with_what_to_do(values: Any, said: str, groups: Any) -> None:
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    dated = frame.assign(x2=values)
    remedy = r"; expected numbers, text or dates: convert or fix such columns \(a duration to seconds"
    with pytest.warns(AnytimeWarning, match=f"^left out 1 column: {re.escape(said)}.*{remedy}") as caught:
        AnytimeRegressor(groups, alpha=1e-5).fit(dated, y)
    assert len(caught) == 1
    assert_refused(lambda: AnytimeRegressor(groups).fit(frame, y).predict(dated), "expected numbers")


def test_an_array_of_dates_has_the_terms_of_a_frame_and_a_target_of_dates_is_one_line() -> None:
    dates = np.column_stack([DAYS, DAYS[::-1]])
    array = AnytimeRegressor().fit(dates, y)
    frame = AnytimeRegressor().fit(pd.DataFrame(dates, columns=["x0", "x1"]), y)
    assert list(array.get_feature_names_out()) == list(frame.get_feature_names_out())
    np.testing.assert_array_equal(array.predict(dates), frame.predict(pd.DataFrame(dates, columns=["x0", "x1"])))
    assert_refused(
        lambda: AnytimeRegressor().fit(X, pd.Series(DAYS)), "y is datetime64[", "]; expected numbers: convert dates"
    )


# What a fitted estimator shows.


def test_coefficients_and_intercept_give_the_predictions_of_the_whole_sequence() -> None:
    for target in (y, np.column_stack([y, X[:, 0] - y]), y[:, np.newaxis]):
        estimator = AnytimeRegressor(GROUPS, alpha=1e-3).fit(X, target)
        scores = X @ estimator.coef_ + estimator.intercept_
        np.testing.assert_allclose(estimator.predict(X), scores, rtol=1e-9, atol=1e-9)
        assert estimator.coef_.shape == (X.shape[1], *target.shape[1:])
    classifier = AnytimeClassifier(GROUPS, alpha=1e-3).fit(X, UP)
    scores = X @ classifier.coef_ + classifier.intercept_
    np.testing.assert_allclose(classifier.decision_function(X), scores, rtol=1e-9, atol=1e-9)


def test_a_column_that_training_leaves_out_has_a_coefficient_of_zero_and_its_name() -> None:
    frame = pd.DataFrame({"a": X[:, 0], "text": [f"number {i}" for i in range(len(X))], "b": X[:, 1]})
    with pytest.warns(UserWarning, match="text"):
        estimator = AnytimeRegressor().fit(frame, y)
    assert list(estimator.get_feature_names_out()) == ["a", "text", "b"]
    assert (estimator.coef_ == 0.0).tolist() == [False, True, False]


def test_coefficients_follow_the_columns_of_the_input_and_not_those_of_the_groups() -> None:
    here = AnytimeRegressor(GROUPS).fit(FRAME, y)
    there = AnytimeRegressor(GROUPS).fit(FRAME[FEATURES[::-1]], y)
    expected = dict(zip(here.feature_names_in_, here.coef_, strict=True))
    assert dict(zip(there.feature_names_in_, there.coef_, strict=True)) == pytest.approx(expected)


def test_scores_are_those_of_scikit_learn_for_every_budget(fitted: AnytimeRegressor) -> None:
    classifier = AnytimeClassifier(GROUPS).fit(X, UP)
    for estimator, target, measure in ((fitted, y, r2_score), (classifier, UP, accuracy_score)):
        expected = [measure(target, predicted) for predicted in estimator.staged_predict(X)]
        np.testing.assert_allclose(estimator.staged_score(X, target), expected)
        assert estimator.score(X, target) == pytest.approx(expected[-1])
        assert estimator.score(X, target, budget=0.0) == pytest.approx(expected[0])
        weights = np.arange(len(X), dtype=float)
        last = measure(target, estimator.predict(X), sample_weight=weights)
        assert estimator.score(X, target, weights) == pytest.approx(last)


def test_a_splitter_assigns_the_rows_to_folds() -> None:
    folds = KFold(4, shuffle=True, random_state=5)
    masks = [tuple(np.isin(ROWS, part) for part in split) for split in folds.split(X)]
    by_splitter, *by_splits = (
        AnytimeRegressor(GROUPS, alpha=1e-2, cv=cv).fit(X, y) for cv in (folds, list(folds.split(X)), masks)
    )
    errors = np.asarray(by_splitter.curve_.cv_error)
    for each in by_splits:
        np.testing.assert_array_equal(errors, each.curve_.cv_error)
    scaled = make_pipeline(StandardScaler(), Ridge(alpha=1e-2 * len(X) * 3 / 4))
    literal = [
        np.square(y[test] - scaled.fit(X[train], y[train]).predict(X[test])).sum() for train, test in folds.split(X)
    ]
    assert errors[-1] == pytest.approx(sum(literal) / len(X), rel=1e-2)
    assert by_splitter.model_.manifest.provenance.folds == 4


# Errors name the remedy


def frame_of_rows(rows: int = 60) -> tuple[pd.DataFrame, pd.Series]:
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(rows, 3)), columns=["a1", "a2", "b"])
    return X, X["a1"] + X["b"]


WRONG_FITS: dict[str, tuple[Callable[[], Any], str]] = {
    "patterns after a transformer": (
        lambda: make_pipeline(StandardScaler(), AnytimeRegressor({"a": ["a*"], "b": ["b", "c?"]})).fit(
            *frame_of_rows()
        ),
        'set_output(transform="pandas") keeps names',
    ),
    "no column of a group": (
        lambda: AnytimeRegressor(GROUPS).fit(FRAME, y).predict(FRAME.drop(columns="s1")),
        "no column 's1'",
    ),
    "as many patterns as columns": (
        lambda: AnytimeRegressor({"a": ["a*", "c*"], "b": ["b"]}).fit(np.eye(3), [1, 2, 3]),
        'set_output(transform="pandas") keeps names',
    ),
    "one row": (lambda: AnytimeRegressor().fit(*(each[:1] for each in frame_of_rows())), "X has 1 row; expected at"),
    "text as numbers": (
        lambda: AnytimeRegressor().fit(frame_of_rows()[0], np.resize(["yes", "no"], 60)),
        "'yes'; AnytimeClassifier predicts classes",
    ),
    "the name of the target": (lambda: AnytimeRegressor().fit(frame_of_rows()[0], "y"), "such as X['y']"),
    "other order": (
        lambda: AnytimeRegressor().fit(*frame_of_rows()).predict(frame_of_rows()[0][["b", "a2", "a1"]]),
        "must be in the same order as they were in fit; `model_.predict` finds columns by their names",
    ),
    "a penalty of truth": (lambda: AnytimeRegressor(alpha=True).fit(*frame_of_rows()), "alpha is True; expected a"),
    "no family": (lambda: AnytimeRegressor(family=None).fit(*frame_of_rows()), "family is None; expected one of"),  # type: ignore[arg-type]
    "no thread": (
        lambda: AnytimeRegressor(n_jobs=0).fit(*frame_of_rows()),
        "n_jobs is 0; expected a number of threads",
    ),
    "rows without a class": (
        lambda: AnytimeClassifier().fit(frame_of_rows()[0], np.resize(["", "no", "yes"], 60)),
        "y has no value in 20 rows, the first in row 0",
    ),
    "a pickle": (lambda: AnytimeRegressor().fit(*frame_of_rows()).save("m.pkl"), "expected a .safetensors name"),
}


@pytest.mark.parametrize("name", list(WRONG_FITS))
def test_an_error_names_its_remedy(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, says = WRONG_FITS[name]
    assert_refused(call, says, error=AnytimeError)
    assert not list(tmp_path.iterdir())


def test_an_array_is_not_read_in_another_order_than_the_table_that_was_fitted() -> None:
    X, y = frame_of_rows()
    fitted = AnytimeRegressor({"b": ["b"], "a": ["a1", "a2"]}).partial_fit(X, y).partial_fit(X, y)
    fitted.predict(X)
    assert_refused(lambda: fitted.predict(X.to_numpy()), "X has no names of columns", error=TableError)
    assert len(fitted.fit(X[["b", "a1", "a2"]].to_numpy(), y).predict(X.to_numpy())) == len(X)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_a_fitted_estimator_keeps_no_row(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "sample_size", lambda _: 50)
    X, y = frame_of_rows(5000)
    fitted = getattr(AnytimeRegressor(basis="hinge:3"), method)(X, y)
    assert len(pickle.dumps(fitted)) < X.to_numpy().nbytes / 2


def test_what_was_fitted_decides_and_no_parameter_that_is_set_later() -> None:
    X, y = frame_of_rows()
    fitted = AnytimeRegressor(family="poisson").fit(X, np.exp(y).round())
    np.testing.assert_array_equal(fitted.predict(X[:5]), fitted.set_params(family="gaussian").predict(X[:5]))


def test_a_constant_target_is_a_warning() -> None:
    X, y = frame_of_rows()
    with pytest.warns(AnytimeWarning, match=r"target 'y' has one value in every row: every prefix predicts it"):
        constant = AnytimeRegressor().fit(X, np.full(60, 3.0))
    np.testing.assert_allclose(constant.predict(X), 3.0)
    with pytest.warns(AnytimeWarning, match="target 'v' has one value"):
        AnytimeRegressor().fit(X, pd.DataFrame({"u": y, "v": 1.0}))


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_few_rows_train_without_a_word_of_lapack(rows: int, capfd: pytest.CaptureFixture[str]) -> None:
    X, y = frame_of_rows()
    AnytimeRegressor({"a": ["a1", "a2"], "b": ["b"]}).fit(X[:rows], y[:rows])
    assert capfd.readouterr() == ("", "")


# Pipelines


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_column_transformer_in_front_keeps_the_names_that_groups_select(library: str) -> None:
    frame = frame_of_rows(120)[0].assign(city=np.resize(["Oslo", "Rome", "Lima"], 120))
    y = frame["a1"] + (frame["city"] == "Rome")
    X: Any = frame if library == "pandas" else pl.from_pandas(frame)
    parts = [("numbers", StandardScaler(), ["a1", "a2", "b"]), ("city", OneHotEncoder(sparse_output=False), ["city"])]
    before = ColumnTransformer(parts, verbose_feature_names_out=False).set_output(transform=library)
    fitted = make_pipeline(before, AnytimeRegressor({"lab": ["a?"], "desk": ["b", "city_*"]}, alpha=1e-6)).fit(X, y)
    model = fitted[-1]
    assert list(model.feature_names_in_) == ["a1", "a2", "b", "city_Lima", "city_Oslo", "city_Rome"]
    assert set(model.sequence_) == {"lab", "desk"}
    np.testing.assert_allclose(fitted.predict(X), y, atol=1e-2)
    np.testing.assert_allclose(model.model_.predict(before.transform(X)), fitted.predict(X), rtol=1e-9)
