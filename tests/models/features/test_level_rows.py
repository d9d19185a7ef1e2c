"""How many rows a level needs: stated, or selected by cross-validation from the same moments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeClassifier, AnytimeRegressor, load
from anytime.cli.main import main
from anytime.errors import GroupsError, TrainingError
from anytime.features.bases import LEVEL_ROWS
from anytime.features.expansion import Expansion
from anytime.groups import load_groups
from anytime.moments.accumulate import moments_of


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
    errors = [fit.fit_.curve.cv_error for fit in stated]
    areas = [error[:-1].mean() for error in errors if error is not None]  # each step costs 1
    best = stated[int(np.argmin(areas))]
    assert len({len(fit.get_feature_names_out()) for fit in stated}) == 3
    assert list(chosen.get_feature_names_out()) == list(best.get_feature_names_out())
    assert chosen.sequence_ == best.sequence_
    np.testing.assert_allclose(chosen.alphas_, best.alphas_)
    np.testing.assert_allclose(chosen.predict(X), best.predict(X), rtol=1e-8)
    assert "level_rows" not in chosen.model_.manifest.groups.model_dump_json()


@pytest.mark.parametrize("least", LEVEL_ROWS)
def test_sums_of_moments_are_the_moments_of_the_joined_levels(least: int) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(-1, 6, size=(400, 2)).astype(float)
    codes[rng.random(400) < 0.1, 1] = np.nan
    y = rng.normal(size=400)
    levels: dict[str, Any] = {
        "basis": "categories",
        "levels": list("abcdef"),
        "other": True,
        "level_rows": [40, 20, 9, 6, 4, 3],
    }
    groups = load_groups(
        {"groups": [{"name": "g", "features": ["u", "v"], "cost": 1}], "bases": {"u": levels, "v": levels}}
    )
    whole = Expansion.of(groups)
    joined, starts = whole.with_min_level_rows(least)
    assert joined.columns[0].basis.labels == tuple("abcdef"[: sum(n >= least for n in levels["level_rows"])])
    found = moments_of(whole.expand(codes), y)
    # Columns of terms are missing together, as in a pass that knows the expansion.
    expected, summed = joined.expand(codes), np.add.reduceat(whole.expand(codes), starts, axis=1)
    np.testing.assert_array_equal(summed, expected)
    present = ~np.isnan(codes).any(axis=1)
    direct = moments_of(expected[present], y[present])
    sums = moments_of(whole.expand(codes)[present], y[present]).summed(starts)
    np.testing.assert_allclose(sums.mean, direct.mean, atol=1e-12)
    np.testing.assert_allclose(sums.scatter, direct.scatter, atol=1e-10)
    assert found.features == whole.size


@pytest.mark.parametrize("family", ["binomial", "gaussian"])
def test_classes_select_by_least_squares(family: Any) -> None:
    X, y = table(gaps=0.1)
    fitted = AnytimeClassifier(family=family).fit(X, y > 0)
    assert fitted.score(X, y > 0) > 0.8
    assert any("state=" in name for name in fitted.get_feature_names_out())


def test_an_estimator_has_folds_where_rare_levels_are_to_be_selected() -> None:
    X, y = table()
    by_default = AnytimeRegressor(alpha=1e-3, basis="linear").fit(X, y)
    stated = AnytimeRegressor(alpha=1e-3, basis="linear", cv=5).fit(X, y)
    assert list(by_default.get_feature_names_out()) == list(stated.get_feature_names_out())
    np.testing.assert_array_equal(by_default.predict(X), stated.predict(X))
    assert AnytimeRegressor(alpha=1e-3, basis="linear", min_level_rows=10).fit(X, y).curve_.cv_error is None


def test_without_folds_nothing_is_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    X, y = table()
    X.assign(y=y).to_parquet("t.parquet")
    assert (
        main(["train", "t.parquet", "--target", "y", "--folds", "0", "--alpha", ".001", "--out", "m.safetensors"]) == 0
    )
    stated = AnytimeRegressor(alpha=1e-3, basis="linear", min_level_rows=10).fit(X, y)
    assert load("m.safetensors").terms.features == tuple(stated.get_feature_names_out())


def test_the_command_line_has_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    X, y = table()
    X.assign(y=y).to_parquet("t.parquet")
    X.assign(y=y)[:60].to_parquet("v.parquet")
    groups = {"groups": [{"name": c, "features": [c], "cost": 1} for c in X]}
    Path("g.json").write_text(json.dumps(groups))
    call = ["train", "t.parquet", "--groups", "g.json", "--target", "y", "--out", "m.safetensors"]
    assert main(call) == 0
    said = capsys.readouterr().out
    assert said.count("by cross-validation (--min-level-rows): 'state' keeps") == 1
    assert "warning: levels" not in said
    ours, theirs = load("m.safetensors").prefixes, AnytimeRegressor(groups).fit(X, y).fit_.prefixes
    np.testing.assert_allclose(ours.packed, theirs.packed, rtol=1e-12)
    assert main([*call, "--validation", "v.parquet"]) == 0
    assert main([*call, "--min-level-rows", "3", "--test", "v.parquet"]) == 0
    assert main([*call, "--min-level-rows", "1"]) == 2
    assert "--min-level-rows is 1; expected a whole number, 2 or more, or 'auto'" in capsys.readouterr().err


def test_partial_fit_is_fit() -> None:
    X, y = table()
    parts = AnytimeRegressor(random_state=0).partial_fit(X[:100], y[:100]).partial_fit(X[100:], y[100:])
    whole = AnytimeRegressor(random_state=0).fit(X, y)
    assert list(parts.get_feature_names_out()) == list(whole.get_feature_names_out())
    np.testing.assert_allclose(parts.predict(X), whole.predict(X), rtol=1e-8)


def test_invalid_numbers_of_rows_are_one_line() -> None:
    X, y = table()
    wrong: list[Any] = [1, 2.5, True, "few"]
    for least in wrong:
        with pytest.raises(TrainingError, match=r"min_level_rows is .*; expected a whole number, 2 or more, or 'auto'"):
            AnytimeRegressor(min_level_rows=least).fit(X, y)
    levels = {"basis": "categories", "levels": ["a", "b"], "other": True, "level_rows": [1, 2]}
    groups = {"groups": [{"name": "g", "features": ["state"], "cost": 1}], "bases": {"state": levels}}
    with pytest.raises(
        GroupsError, match=r"its level_rows are .*; expected a number for each level, the largest first"
    ):
        AnytimeRegressor(groups).fit(X, y)
