"""Columns whose type is stated, learned or unclear: categories, dates, rare levels, and text among numbers."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from anytime import AnytimeRegressor, AnytimeWarning, load
from anytime.cli.main import main
from models.commands import refusal

pytestmark = pytest.mark.usefixtures("linear_by_default")

GROUPS: dict[str, Any] = {"groups": {"who": ["city"], "what": ["member", "weight"]}}


def frame(**columns: Any) -> pd.DataFrame:
    """Text with gaps, booleans, floats and a target, or other columns in place of them."""
    rng = np.random.default_rng(0)
    own = {
        "city": [None if k % 20 == 0 else city for k, city in enumerate(rng.choice(["Oslo", "Rome"], 240).tolist())],
        "member": rng.random(240) < 0.3,
        "weight": rng.normal(size=240).round(3),
        "y": rng.normal(size=240).round(6),
    }
    return pd.DataFrame(own | columns)


def write(content: pd.DataFrame, path: str) -> None:
    {".csv": content.to_csv, ".parquet": content.to_parquet}[Path(path).suffix](path, index=False)


def trained(path: str, *more: str, groups: Any = GROUPS, target: str = "y") -> Any:
    Path("g.json").write_text(json.dumps(groups))
    command = ["train", path, "--groups", "g.json", "--target", target, "--alpha", "0.01", "--folds", "0"]
    assert main([*command, *more, "--out", "m.safetensors"]) == 0
    return load("m.safetensors")


REFUSED = ["--groups", "g.json", "--target", "y", "--out", "m.safetensors"]
HEAVY = {"basis": "categories", "levels": ["heavy"], "other": True}


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_categories_of_an_array_are_its_whole_numbers(kind: type[np.generic]) -> None:
    ids = np.array([100, 101, 7] * 40)
    X, y = np.column_stack([np.arange(120) % 5, ids]).astype(kind), np.where(ids == 101, 9.0, ids / 100)
    groups = {"groups": {"g": ["x1"], "h": ["x0"]}, "bases": {"x1": "categories"}}
    for method, table in (("fit", X), ("partial_fit", X), ("fit", csr_array(X))):
        fitted = getattr(AnytimeRegressor(groups, alpha=1e-9), method)(table, y)
        assert fitted.model_.groups.bases["x1"].levels == (7, 100, 101)
        np.testing.assert_allclose(fitted.predict(table), y, atol=1e-6)


def test_svmlight_columns_may_have_any_basis_of_numbers(desk: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{rng.normal():.4f} 1:{rng.normal():.4f} 2:{rng.integers(0, 3)}" for _ in range(120)]
    Path("t.svm").write_text("\n".join(lines) + "\n")
    groups = {"groups": [{"name": "g", "features": ["f1", "f2"], "cost": 1}], "bases": {"f2": "categories"}}
    columns = trained("t.svm", "--basis", "hinge:1", groups=groups, target="target").groups.bases
    assert columns["f1"].basis == "hinge:1"
    assert sorted(columns["f2"].levels or ()) == [0, 1, 2]


DATES = [datetime.datetime(2020, 1, 1) + datetime.timedelta(days=k) for k in range(240)]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_dates_in_text_are_dates_unless_the_groups_state_the_basis(suffix: str, desk: Path) -> None:
    days = [str(day.date()) for day in DATES]
    write(frame(weight=days), f"t{suffix}")
    assert trained(f"t{suffix}").terms.features[-2:] == ("weight weekday=Sat", "weight weekday=Sun")
    fitted = AnytimeRegressor(GROUPS).fit(frame(weight=days), np.arange(240.0))
    assert fitted.get_feature_names_out()[-1] == "weight weekday=Sun"
    with pytest.warns(AnytimeWarning, match="'weight' holds dates, and 'soon', which is no date in ISO form"):
        AnytimeRegressor(GROUPS).fit(frame(weight=[*days[1:], "soon"]), np.arange(240.0))
    stated = GROUPS | {"bases": {"weight": HEAVY | {"levels": [days[0]]}}}
    assert trained(f"t{suffix}", groups=stated).terms.features[-2:] == ("weight=2020-01-01", "weight is other")


MIXED = [*(f"{0.5 * k}" for k in range(239)), "heavy"]
"""Numbers, and one word among them."""


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_text_among_numbers_is_left_out_unless_the_groups_state_the_basis(
    suffix: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(frame(weight=MIXED), f"t{suffix}")
    assert "weight" not in trained(f"t{suffix}").groups.features
    where = "'weight' holds text, as 'heavy' in row 239 (counted from 0)"
    assert f"left out 1 column: {where}; expected numbers, text or dates: " in capsys.readouterr().out
    stated = trained(f"t{suffix}", groups=GROUPS | {"bases": {"weight": HEAVY}})
    assert stated.terms.features[-2:] == ("weight=heavy", "weight is other")


def test_unusable_columns_are_named_together_and_their_groups_are_no_steps(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = frame(city=["unknown", *map(str, range(239))], weight=MIXED)
    groups = {
        "groups": [
            *({"name": name, "features": [name], "cost": 1.0} for name in ("city", "member")),
            {"name": "weight", "features": ["weight"], "cost": 1.0, "requires": ["scale"]},
            {"name": "scale", "features": [], "cost": 5.0},
        ]
    }
    write(table, "t.csv")
    model = trained("t.csv", groups=groups)
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "left out 2 columns" in line)
    assert all(words in said for words in ("'city' holds", "'weight' holds text, as 'heavy'"))
    assert model.groups.names == ("member",)
    assert set(model.manifest.stopped.left_out) == {"city", "weight", "scale"}
    with pytest.warns(AnytimeWarning, match="left out 2 columns"):
        fitted = AnytimeRegressor(groups, alpha=1e-3).fit(table, np.arange(240.0))
    assert fitted.sequence_ == ["member"]


def test_a_table_without_usable_columns_is_refused_in_one_line(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(frame(city=MIXED, weight=MIXED[::-1]), "t.csv")
    Path("g.json").write_text(json.dumps({"groups": {"both": ["city", "weight"]}}))
    error = refusal(capsys, "train", "t.csv", *REFUSED)
    assert re.search("no column of the groups is usable: 'city' holds text.*; 'weight' holds text", error)


def test_rare_levels_are_named_with_their_rows_and_a_column_of_rare_levels_is_left_out() -> None:
    X = pd.DataFrame({"z": np.arange(60.0) % 7, "few": ["a"] * 40 + ["b"] * 15 + list("cdefg")})
    fitted = AnytimeRegressor(alpha=1e-3, min_level_rows=10).fit(X, np.arange(60.0))
    said = "levels of fewer than 10 rows share one term: 'few' (5 levels, 5 rows)"
    assert fitted.model_.manifest.decisions == (said,)
    X["key"] = [f"k{i}" for i in range(60)]
    with pytest.warns(AnytimeWarning, match=r"'key' has no level that 10 rows share \(60 levels, 60 rows\)"):
        fitted = AnytimeRegressor(alpha=1e-3, min_level_rows=10).fit(X, np.arange(60.0))
    assert set(fitted.sequence_) == {"z", "few"}
    X.loc[::3, "key"] = None  # a gap says something too
    assert set(AnytimeRegressor(alpha=1e-3, min_level_rows=10).fit(X, np.arange(60.0)).sequence_) == {"z", "few", "key"}


def test_stated_dates_may_be_seconds_in_a_csv_file(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dated = GROUPS | {"types": {"weight": "date"}}
    seconds = [day.replace(tzinfo=datetime.UTC).timestamp() for day in DATES]
    write(frame(weight=seconds), "t.csv")
    assert trained("t.csv", groups=dated).terms.features[-1] == "weight weekday=Sun"
    write(frame(weight=[1000 * second for second in seconds]), "t.csv")
    said = refusal(capsys, "train", "t.csv", *REFUSED)
    assert "column 'weight' holds 1.5778368e+12 in row 0" in said
    assert "expected seconds since 1970 UTC or an ISO date, of the years 1 to 9999" in said
