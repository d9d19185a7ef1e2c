"""Streams: batch after batch gives what all rows at once would have given, and what is old may fade."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GroupKFold

from anytime import AnytimeClassifier, AnytimeRegressor
from anytime.errors import TableError, TrainingError
from anytime.types import Float
from models.refusals import assert_refused

pytestmark = pytest.mark.usefixtures("linear_by_default")

GROUPS: dict[str, Any] = {
    "groups": [
        {"name": "a", "features": ["x0", "x1"], "cost": 3.0},
        {"name": "b", "features": ["x2"], "cost": 1.0},
        {"name": "c", "features": ["x3", "x4"], "cost": 2.0},
    ]
}


def rows(count: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 5))
    X[::11, 2] = np.nan
    return X, np.nan_to_num(X) @ np.arange(1.0, 6.0) + rng.normal(size=count)


def fed(estimator: Any, edges: Iterable[int], *arrays: np.ndarray, **how: Any) -> Any:
    """Return the estimator after batches of X, y and perhaps weights, cut at some rows."""
    for start, stop in pairwise(edges):
        estimator.partial_fit(*(each[start:stop] for each in arrays), **how)
    return estimator


def test_weights_and_several_responses_are_taken() -> None:
    X, y = rows()
    Y, w = np.column_stack([y, X[:, 0]]), np.linspace(0, 2, 300)
    stream = fed(AnytimeRegressor(GROUPS, alpha=1e-3), (0, 99, 300), X, Y, w)
    whole = AnytimeRegressor(GROUPS, alpha=1e-3).fit(X, Y, sample_weight=w)
    np.testing.assert_allclose(stream.predict(X), whole.predict(X), atol=1e-9)


def test_classes_that_come_later_are_told_before() -> None:
    X, y = rows()
    labels = np.digitize(y, [-4.0, 4.0])
    order = np.argsort(labels, kind="stable")
    X, labels = X[order], labels[order]
    empty, whole = (AnytimeClassifier(GROUPS, family="gaussian", alpha=1e-3) for _ in range(2))
    stream = fed(empty, range(0, 301, 60), X, labels, classes=[0, 1, 2])
    whole.fit(X, labels)
    np.testing.assert_allclose(stream.predict_proba(X), whole.predict_proba(X), atol=1e-8)
    np.testing.assert_array_equal(stream.classes_, [0, 1, 2])


def test_a_fit_begins_anew() -> None:
    X, y = rows()
    model = AnytimeRegressor(GROUPS, alpha=1e-3).partial_fit(X, -y).fit(X[:100], y[:100])
    assert model.model_.manifest.provenance.rows == 100
    assert model.partial_fit(X[100:], y[100:]).model_.manifest.provenance.rows == 200


def test_what_a_stream_cannot_take_is_refused_and_changes_nothing() -> None:
    X, y = rows()
    stream = AnytimeRegressor(GROUPS, alpha=1e-3).partial_fit(X, y)
    before = stream.predict(X)
    bad = X.copy()
    bad[:, 1] = 1e200
    for error, why, arguments, options in (
        (TrainingError, "decay is 1.5", (X, y), {"decay": 1.5}),
        (TrainingError, "y has 2 columns; earlier rows had 1", (X, np.column_stack([y, y])), {}),
        (TableError, "too large to square", (bad, y), {}),
        (ValueError, "X has 4 features", (X[:, :4], y), {}),
    ):
        assert_refused(partial(stream.partial_fit, *arguments, **options), why, error=error)
        np.testing.assert_array_equal(stream.predict(X), before)
    assert not hasattr(AnytimeRegressor(GROUPS, family="poisson"), "partial_fit")
    assert not hasattr(AnytimeClassifier(GROUPS), "partial_fit")
    classifier = AnytimeClassifier(GROUPS, family="gaussian")
    assert_refused(
        lambda: classifier.partial_fit(X, np.ones(300, dtype=int)),
        "one class, 1; give all of them by classes=",
        error=TrainingError,
    )
    assert_refused(
        lambda: classifier.partial_fit(X, np.ones(300, dtype=int), classes=[]),
        "y has no class; give all of them by classes=",
        error=TrainingError,
    )
    classifier.partial_fit(X, (y > 0).astype(int))
    assert_refused(
        lambda: classifier.partial_fit(X, np.full(300, 2)), "class 2, which the first rows lack", error=TrainingError
    )


def test_what_is_refused_takes_no_folds_from_the_rows_after_it() -> None:
    X, y = rows()
    broken = X[:50].copy()
    broken[3, 0] = np.inf
    streams = [AnytimeRegressor(GROUPS, alpha="cv", cv=3, random_state=0).partial_fit(X[:100], y[:100]) for _ in "ab"]
    disturbed, calm = streams
    assert_refused(lambda: disturbed.partial_fit(broken, y[:50]), "infin", error=ValueError)
    disturbed.set_params(epsilon=1e6)
    assert_refused(lambda: disturbed.partial_fit(X[:50], y[:50]), "epsilon", error=TrainingError)
    disturbed.set_params(epsilon=None)
    steps = [stream.partial_fit(X[100:], y[100:]).model_.manifest.steps for stream in (disturbed, calm)]
    assert steps[0] == steps[1]


# Rows in several calls are rows of one table, and columns of the caller never meet those that training adds.

ROWS = 120


def plain_rows(seed: int = 0) -> tuple[Float, Float]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, 3))
    return X, X @ [1.0, 2.0, -1.0] + 0.1 * rng.normal(size=ROWS)


@pytest.mark.parametrize("name", ["weights", "query", "folds", "y"])
def test_a_target_may_have_the_name_of_a_column_that_training_adds(name: str) -> None:
    X, y = plain_rows()
    given: dict[str, Any] = {"sample_weight": np.linspace(1, 2, ROWS), "query": np.arange(ROWS) // 2}
    fits = [
        AnytimeRegressor(alpha=0.1, basis="linear", cv=GroupKFold(3)).fit(X, pd.Series(y, name=each), **given)
        for each in ("y", name)
    ]
    assert fits[1].score(X, y) > 0.9
    np.testing.assert_array_equal(fits[0].predict(X), fits[1].predict(X))


@pytest.mark.filterwarnings("ignore::anytime.AnytimeWarning")
@pytest.mark.parametrize("basis", ["linear", "hinge:2", None])
def test_a_column_may_be_empty_in_the_first_rows_of_a_stream(basis: str | None) -> None:
    X, y = plain_rows()
    X[:40, 2] = np.nan
    whole, stream = (AnytimeRegressor(alpha=1e-3, basis=basis) for _ in range(2))
    whole.fit(X, y)
    stream.partial_fit(X[:40], y[:40]).partial_fit(X[40:], y[40:])
    assert list(stream.get_feature_names_out()) == list(whole.get_feature_names_out())
    assert stream.score(X, y) == pytest.approx(whole.score(X, y), abs=1e-2)


def test_rows_whose_weights_have_decayed_below_the_least_count_no_more() -> None:
    X, y = plain_rows()
    stream = AnytimeRegressor(alpha=1e-3, basis="hinge:2")
    for _ in range(4):
        stream.partial_fit(X, y, decay=1e-60)
    assert stream.score(X, y) > 0.9


@pytest.mark.filterwarnings("ignore:X has feature names")
def test_later_rows_of_a_stream_go_by_the_columns_of_the_first() -> None:
    X, y = plain_rows()
    stream = AnytimeRegressor(alpha=1e-3, basis="linear").partial_fit(X, y)
    stream.partial_fit(pd.DataFrame(X, columns=["a", "b", "c"]), y)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    named = AnytimeRegressor({"groups": [["a", "b"]]}, alpha=1e-3, basis="hinge:1")
    named.partial_fit(frame, y).partial_fit(frame[["b", "a"]], y)
    assert named.n_features_in_ == 2


def test_numpys_booleans_are_booleans() -> None:
    X, y = plain_rows()
    stated: dict[str, Any] = dict.fromkeys(("cost_blind", "doubling", "nested", "one_se"), np.True_)
    assert np.isfinite(AnytimeRegressor(alpha=0.1, basis="linear", **stated).fit(X, y).predict(X)).all()


def test_two_targets_of_one_name_are_refused() -> None:
    X, y = plain_rows()
    assert_refused(
        lambda: AnytimeRegressor().fit(X, pd.DataFrame(np.c_[y, -y], columns=["a", "a"])),
        "y has more than one column named 'a'",
    )


def test_an_estimator_of_many_coefficients_can_be_pickled() -> None:
    rng = np.random.default_rng(0)
    classes = np.arange(400) % 12
    X = rng.normal(size=(400, 100)) + np.eye(12, 100)[classes]
    fitted = AnytimeClassifier([[f"x{j}" for j in range(100)]], family="multinomial", alpha=0.1, basis="linear")
    fitted.fit(X, classes)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))
