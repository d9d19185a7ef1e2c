"""Warnings about a fit name what is wrong and its remedy, once, and say nothing of a fit that is right."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeRegressor, AnytimeWarning
from anytime.errors import in_python


def said(X: Any, y: Any, **options: Any) -> list[str]:
    """Return the warnings of a fit, which its model stores too."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", AnytimeWarning)
        fitted = AnytimeRegressor(**options).fit(X, y)
    texts = [str(each.message) for each in found]
    assert set(texts) <= set(map(in_python, fitted.model_.manifest.warnings))
    return texts


def problem(rows: int = 400, columns: int = 6, noise: float = 1.0) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns))
    y = X @ np.arange(1.0, columns + 1) + noise * rng.normal(size=rows)
    return pd.DataFrame(X, columns=[f"x{j}" for j in range(columns)]), y


def test_a_fit_that_is_right_has_none() -> None:
    assert said(*problem()) == []


def test_prefixes_worse_than_the_base_rate_are_named_with_the_budget_to_answer_with() -> None:
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.standard_t(2, size=(40, 30)), columns=[f"x{j}" for j in range(30)])
    y = X["x0"] + 4 * rng.normal(size=40)
    (text,) = (each for each in said(X, y, alpha=1e-6, cv=5) if "cross-validated" in each)
    assert "worse at step 30" in text
    assert ", above " in text
    assert "answer by the policy best or" in text


def test_prefixes_that_all_predict_nearly_exactly_are_not_worse_than_each_other() -> None:
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.normal(size=(60, 30)), columns=[f"x{j}" for j in range(30)])
    y = X["x0"] + X["x1"]
    noise = rng.normal(size=60)
    assert not any("worse at" in each for each in said(X, y + 3e-5 * noise, alpha=1e-9, cv=5))
    assert any("worse at" in each for each in said(X, y + 0.3 * noise, alpha=1e-9, cv=5))


def test_largest_penalties_are_a_warning_with_remedies() -> None:
    rng = np.random.default_rng(2)
    X = pd.DataFrame(rng.normal(size=(80, 20)), columns=[f"x{j}" for j in range(20)])
    assert any("prefixes have the largest penalty of the grid, 10" in each for each in said(X, rng.normal(size=80)))
    assert not any("largest penalty" in each for each in said(X, rng.normal(size=80), alpha=10.0, cv=5))


@pytest.mark.parametrize("rows", [30, 300])
def test_one_level_of_a_factor_and_columns_beyond_the_rows_are_not_called_collinear(rows: int) -> None:
    X, y = problem(rows, 40 if rows == 30 else 4)
    X["kind"], X["same"] = np.resize(["a", "b", "c"], rows), 1.0
    found = {}
    for name, table in (("factor", X), ("copy", X.assign(copy=2 * X["x1"]))):
        redundant = AnytimeRegressor(alpha=0.01).fit(table, y).model_.manifest.redundant
        assert redundant.constant == ("same",)
        found[name] = redundant.collinear
    assert found["factor"] == ()
    assert bool({*found["copy"]} & {"x1", "copy"}) == bool(found["copy"]) == (rows == 300)
