"""How many rows a level needs: stated, or selected by cross-validation from the same moments.

No indicator discloses fewer rows than `min_level_rows`, of text, hinges and dates alike.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeRegressor, load
from models.commands import Capture, output

LEVEL_ROWS = (10, 5, 2)
"""The numbers that cross-validation compares."""


def names_of(fitted: Any) -> list[str]:
    return list(fitted.get_feature_names_out())


def table(rows: int = 260, noise: float = 0.2, gaps: float = 0.0) -> tuple[pd.DataFrame, Any]:
    """Two columns of text with levels of all sizes, and numbers; the first decides the target."""
    rng = np.random.default_rng(0)
    share = 0.87 ** np.arange(40)
    state = rng.choice([f"s{i:02d}" for i in range(40)], rows, p=share / share.sum()).astype(object)
    plot = rng.choice([f"p{i:02d}" for i in range(60)], rows).astype(object)
    x = rng.normal(size=rows)
    effect = dict(zip(sorted(set(state)), rng.normal(size=len(set(state))), strict=True))
    y = np.array([effect[s] for s in state]) + 0.3 * x + noise * rng.normal(size=rows)
    state[rng.random(rows) < gaps] = None
    return pd.DataFrame({"state": state, "plot": plot, "x": x}), y


@pytest.mark.parametrize("gaps", [0.0, 0.1])
@pytest.mark.parametrize("noise", [0.2, 3.0])
def test_the_selected_model_is_the_best_of_those_with_the_number_stated(noise: float, gaps: float) -> None:
    X, y = table(noise=noise, gaps=gaps)
    chosen = AnytimeRegressor().fit(X, y)
    stated = [AnytimeRegressor(min_level_rows=least).fit(X, y) for least in LEVEL_ROWS]
    errors = [fit.curve_.cv_error for fit in stated]
    areas = [error[:-1].mean() for error in errors if error is not None]  # each step costs 1
    best = stated[int(np.argmin(areas))]
    assert len({len(names_of(fit)) for fit in stated}) == 3
    assert (names_of(chosen), chosen.sequence_) == (names_of(best), best.sequence_)
    np.testing.assert_allclose(chosen.alphas_, best.alphas_)
    np.testing.assert_allclose(chosen.predict(X), best.predict(X), rtol=1e-8)
    assert "level_rows" not in chosen.model_.manifest.groups.model_dump_json()


def test_an_estimator_has_folds_where_rare_levels_are_to_be_selected() -> None:
    X, y = table()
    by_default = AnytimeRegressor(alpha=1e-3, basis="linear").fit(X, y)
    stated = AnytimeRegressor(alpha=1e-3, basis="linear", cv=5).fit(X, y)
    assert names_of(by_default) == names_of(stated)
    np.testing.assert_array_equal(by_default.predict(X), stated.predict(X))
    assert AnytimeRegressor(alpha=1e-3, basis="linear", min_level_rows=10).fit(X, y).curve_.cv_error is None


def test_the_command_says_what_was_selected_and_selects_nothing_without_folds(desk: Path, capsys: Capture) -> None:
    X, y = table()
    X.assign(y=y).to_parquet("t.parquet")
    (desk / "g.json").write_text(json.dumps({"groups": [{"name": c, "features": [c], "cost": 1} for c in X]}))
    call = ["train", "t.parquet", "--groups", "g.json", "--target", "y", "--out", "m.safetensors"]
    said = output(capsys, *call)
    assert said.count("by cross-validation (--min-level-rows): 'state' keeps") == 1
    assert "warning: levels" not in said
    output(capsys, *call, "--folds", "0", "--alpha", ".001")
    stated = AnytimeRegressor(alpha=1e-3, basis="linear", min_level_rows=10).fit(X, y)
    assert load("m.safetensors").terms.features == tuple(names_of(stated))


# Of text, hinges and dates.


RNG = np.random.default_rng(1)
FEW = pd.DataFrame(
    {
        "pay": np.where(np.arange(60) < 12, 7.0, np.round(RNG.normal(50, 9, 60), 2)),
        "port": np.repeat(["Oslo", "Rome", "Nice", "Cork", "Bern"], [30, 18, 7, 3, 2]),
        "when": pd.to_datetime("2024-01-01") + pd.to_timedelta(np.repeat([0, 31, 60], [40, 14, 6]), unit="D"),
    }
)
Y = np.abs(FEW["pay"].to_numpy() - 45) + RNG.normal(size=60)  # hinges are selected, and common values with them
COUNTS = {
    "pay=7": 12,
    "port=Oslo": 30,
    "port=Rome": 18,
    "port=Nice": 7,
    "port=Cork": 3,
    "port=Bern": 2,
    "when month=1": 40,
    "when month=2": 14,
    "when month=3": 6,
}


@pytest.mark.parametrize("least", [2, 3, 6, 7, 10, 13, 19])
def test_a_level_has_an_indicator_where_enough_rows_have_it(least: int) -> None:
    terms = names_of(AnytimeRegressor(basis="auto", cv=3, min_level_rows=least).fit(FEW, Y))
    assert {name for name in COUNTS if name in terms} == {name for name, count in COUNTS.items() if count >= least}


@pytest.mark.parametrize("basis", ["hinge", "hinge:0", "hinge:7", "auto", "linear"])
@pytest.mark.parametrize("values", [(0.0, 1.0), (3.0, 7.5), (5.0, 5.0)])
def test_a_column_of_two_values_has_one_term(basis: str, values: tuple[float, float]) -> None:
    column = pd.DataFrame({"x": np.repeat(values, [45, 15]), "z": FEW["pay"]})
    names = names_of(AnytimeRegressor(basis=basis, cv=3).fit(column, Y))
    assert [name for name in names if name.startswith("x")] == ["x"]


def test_a_date_of_two_values_has_one_term() -> None:
    dates = pd.DataFrame({"when": pd.to_datetime(["2024-01-01", "2024-05-05"] * 30)})
    assert names_of(AnytimeRegressor().fit(dates, Y)) == ["when in years"]
