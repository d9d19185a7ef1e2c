"""Rows in several calls are rows of one table, and columns of the caller never meet those that training adds."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GroupKFold

from anytime import AnytimeClassifier, AnytimeRegressor
from anytime.errors import TableError
from anytime.types import Float

ROWS = 120


def rows(seed: int = 0) -> tuple[Float, Float]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, 3))
    return X, X @ [1.0, 2.0, -1.0] + 0.1 * rng.normal(size=ROWS)


@pytest.mark.parametrize("name", ["weights", "query", "folds", "y"])
def test_a_target_may_have_the_name_of_a_column_that_training_adds(name: str) -> None:
    X, y = rows()
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
    X, y = rows()
    X[:40, 2] = np.nan
    whole, stream = (AnytimeRegressor(alpha=1e-3, basis=basis) for _ in range(2))
    whole.fit(X, y)
    stream.partial_fit(X[:40], y[:40]).partial_fit(X[40:], y[40:])
    assert list(stream.get_feature_names_out()) == list(whole.get_feature_names_out())
    assert stream.score(X, y) == pytest.approx(whole.score(X, y), abs=1e-2)


def test_rows_whose_weights_have_decayed_below_the_least_count_no_more() -> None:
    X, y = rows()
    stream = AnytimeRegressor(alpha=1e-3, basis="hinge:2")
    for _ in range(4):
        stream.partial_fit(X, y, decay=1e-60)
    assert stream.score(X, y) > 0.9


@pytest.mark.filterwarnings("ignore:X has feature names")
def test_later_rows_of_a_stream_go_by_the_columns_of_the_first() -> None:
    X, y = rows()
    stream = AnytimeRegressor(alpha=1e-3, basis="linear").partial_fit(X, y)
    stream.partial_fit(pd.DataFrame(X, columns=["a", "b", "c"]), y)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    named = AnytimeRegressor({"groups": [["a", "b"]]}, alpha=1e-3, basis="hinge:1")
    named.partial_fit(frame, y).partial_fit(frame[["b", "a"]], y)
    assert named.n_features_in_ == 2


def test_numpys_booleans_are_booleans() -> None:
    X, y = rows()
    stated: dict[str, Any] = dict.fromkeys(("cost_blind", "doubling", "nested", "one_se"), np.True_)
    assert np.isfinite(AnytimeRegressor(alpha=0.1, basis="linear", **stated).fit(X, y).predict(X)).all()


def test_two_targets_of_one_name_are_refused() -> None:
    X, y = rows()
    with pytest.raises(TableError, match="y has more than one column named 'a'"):
        AnytimeRegressor().fit(X, pd.DataFrame(np.c_[y, -y], columns=["a", "a"]))


def test_an_estimator_of_many_coefficients_can_be_pickled() -> None:
    rng = np.random.default_rng(0)
    classes = np.arange(400) % 12
    X = rng.normal(size=(400, 100)) + np.eye(12, 100)[classes]
    fitted = AnytimeClassifier([[f"x{j}" for j in range(100)]], family="multinomial", alpha=0.1, basis="linear")
    fitted.fit(X, classes)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))
