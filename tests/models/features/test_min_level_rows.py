"""No indicator discloses fewer rows than `min_level_rows`, of text, hinges and dates alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeRegressor, TrainingError, load
from anytime.cli.main import main

ROWS = 60
RNG = np.random.default_rng(1)
X = pd.DataFrame(
    {
        "pay": np.where(np.arange(ROWS) < 12, 7.0, np.round(RNG.normal(50, 9, ROWS), 2)),
        "port": np.repeat(["Oslo", "Rome", "Nice", "Cork", "Bern"], [30, 18, 7, 3, 2]),
        "when": pd.to_datetime("2024-01-01") + pd.to_timedelta(np.repeat([0, 31, 60], [40, 14, 6]), unit="D"),
    }
)
Y = np.abs(X["pay"].to_numpy() - 45) + RNG.normal(size=ROWS)  # hinges are selected, and common values with them
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


def terms_of(**options: Any) -> set[str]:
    return {*AnytimeRegressor(basis="auto", cv=3, **options).fit(X, Y).get_feature_names_out()}


@pytest.mark.parametrize("least", [2, 3, 6, 7, 10, 13, 19])
def test_a_level_has_an_indicator_where_enough_rows_have_it(least: int) -> None:
    terms = terms_of(min_level_rows=least)
    assert {name for name in COUNTS if name in terms} == {name for name, count in COUNTS.items() if count >= least}


LEAST: list[dict[str, Any]] = [{"min_level_rows": least} for least in (10, 5, 2)]


def test_ten_five_or_two_is_the_default() -> None:
    levels = [{name for name in terms_of(**options) if name.startswith("port")} for options in ({}, *LEAST)]
    assert levels[0] in levels[1:]


@pytest.mark.parametrize("least", [1, 0, -3, 2.5, True, "10", None])
def test_fewer_than_two_rows_are_refused(least: Any) -> None:
    with pytest.raises(TrainingError, match=r"min_level_rows is .*; expected a whole number, 2 or more"):
        terms_of(min_level_rows=least)


def test_the_commands_have_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, moments, out = (str(tmp_path / name) for name in ("t.csv", "t.moments", "m.safetensors"))
    X.assign(y=Y).to_csv(table, index=False)
    options = ["--target", "y", "--basis", "auto", "--folds", "3", "--min-level-rows", "3"]
    expected = terms_of(min_level_rows=3)
    assert main(["train", table, *options, "--out", out]) == 0
    assert {*load(out).terms.features} == expected
    assert main(["moments", table, *options, "--out", moments]) == 0
    assert main(["train", moments, "--out", out]) == 0
    assert {*load(out).terms.features} == expected
    assert main(["compare", table, *options]) == 0
    capsys.readouterr()
    assert main(["train", moments, "--min-level-rows", "3", "--out", out]) == 2
    assert "--min-level-rows requires a table" in capsys.readouterr().err
    assert main(["train", table, *options[:-1], "1", "--out", out]) == 2
    assert "--min-level-rows" in capsys.readouterr().err
    groups = str(tmp_path / "g.json")
    assert main(["basis", table, "--target", "y", "--basis", "hinge", "--min-level-rows", "3", "--out", groups]) == 0
    assert main(["train", table, "--groups", groups, "--target", "y", "--out", out]) == 0
    assert "port=Cork" in load(out).terms.features


@pytest.mark.parametrize("basis", ["hinge", "hinge:0", "hinge:7", "auto", "linear"])
@pytest.mark.parametrize("values", [(0.0, 1.0), (3.0, 7.5), (5.0, 5.0)])
def test_a_column_of_two_values_has_one_term(basis: str, values: tuple[float, float]) -> None:
    column = pd.DataFrame({"x": np.repeat(values, [45, 15]), "z": X["pay"]})
    names = AnytimeRegressor(basis=basis, cv=3).fit(column, Y).get_feature_names_out()
    assert [name for name in names if name.startswith("x")] == ["x"]


def test_a_date_of_two_values_has_one_term() -> None:
    dates = pd.DataFrame({"when": pd.to_datetime(["2024-01-01", "2024-05-05"] * 30)})
    assert AnytimeRegressor().fit(dates, Y).get_feature_names_out().tolist() == ["when in years"]
