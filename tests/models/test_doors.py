"""Estimators and the command line: the same data, options and seed give the same model, for every family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeClassifier, AnytimeRegressor, AnytimeWarning, TableError, load
from anytime.cli.main import main
from anytime.errors import in_python
from anytime.families import FAMILIES, family_of
from anytime.moments.files import StoredMoments

ROWS = 300


def table() -> pd.DataFrame:
    """Numbers with gaps, and text with levels of all sizes."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(ROWS, 4)), columns=list("abcd"))
    frame["t"] = rng.choice([f"level {i}" for i in range(25)], ROWS)
    frame.loc[::7, "b"] = np.nan
    return frame


def words_of(options: dict[str, Any]) -> list[str]:
    """Options of an estimator as those of the command."""
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def target_of(family: Any, X: pd.DataFrame) -> Any:
    rng = np.random.default_rng(1)
    eta = 0.5 * X["a"].to_numpy() + 0.5 * (X["t"] < "level 14").to_numpy()
    noisy = eta + 0.5 * rng.normal(size=ROWS)
    tasks = family_of(family).tasks
    if "regression" in tasks:
        return noisy if family == "gaussian" else np.exp(noisy)
    if "binary" in tasks:
        return np.where(noisy > 0.3, "yes", "no")
    if "multiclass" in tasks:
        return np.array(["u", "v", "w"])[np.digitize(noisy, [0, 0.6])]
    return rng.poisson(np.exp(eta) * rng.gamma(3, 1 / 3, ROWS))


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    "options", [{}, {"basis": "linear"}, {"alpha": 0.01}, {"basis": "hinge:2", "alpha": 0.01}], ids=str
)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_both_doors_lead_to_the_same_model(family: Any, options: dict[str, Any]) -> None:
    X = table()
    y = target_of(family, X)
    X.assign(y=y).to_parquet("t.parquet")
    groups = {"groups": [{"name": c, "features": [c], "cost": 1.0} for c in X]}
    Path("g.json").write_text(json.dumps(groups))
    call = ["train", "t.parquet", "--groups", "g.json", "--target", "y", "--family", family, "--out", "m.safetensors"]
    assert main([*call, *words_of(options)]) == 0
    model = load("m.safetensors")
    kind: Any = AnytimeRegressor if model.manifest.classes is None else AnytimeClassifier
    estimator = kind(groups, family=family, **options).fit(X, y)
    ours, theirs = model.manifest, estimator.model_.manifest
    assert ours.groups == theirs.groups
    assert [(step.group, step.alpha) for step in ours.steps] == [(step.group, step.alpha) for step in theirs.steps]
    np.testing.assert_allclose(model.prefixes.packed, estimator.fit_.prefixes.packed, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(model.prefixes.intercept, estimator.fit_.prefixes.intercept, rtol=1e-12)


FAR = {"infinite": np.inf, "-infinite": -np.inf, "too large to square": 1e200}


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("file", ["t.csv", "t.parquet"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"basis": "hinge:2"},
        {"basis": "auto"},
        {"clamp": "auto"},
        {"family": "poisson", "clamp": "off"},
        {"pairs": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("why", FAR)
def test_a_column_without_moments_is_left_out_by_both_doors(why: str, options: dict[str, Any], file: str) -> None:
    X = table()[["a", "c", "d"]]
    family: Any = options.get("family", "gaussian")
    y = target_of(family, X.assign(t="level 1"))
    wrong = X.assign(c=X["c"].mask(X.index % 100 == 5, FAR[why]))
    wrong.assign(y=y).to_csv("t.csv", index=False, float_format="%.17g")
    wrong.assign(y=y).to_parquet("t.parquet")
    call = ["train", file, "--target", "y", "--out", "m.safetensors", "--test", file]
    assert main([*call, *words_of(options)]) == 0
    model = load("m.safetensors")
    with pytest.warns(AnytimeWarning, match="left out 1 column: 'c' holds") as said:
        estimator = AnytimeRegressor(alpha="cv", cv=5, **options).fit(wrong, y)
    (remark,) = (str(each.message) for each in said if "left out" in str(each.message))
    assert why.strip("-") in remark
    if "infinite" in why:
        assert "holds 3 infinite values, the first in row 5 (counted from 0)" in remark
    assert remark in map(in_python, model.manifest.warnings)
    assert model.groups.features == estimator.model_.groups.features == ("a", "d")
    assert model.manifest.stopped is not None
    assert model.manifest.stopped.left_out == ("c",)
    without = AnytimeRegressor(alpha="cv", cv=5, **options).fit(X[["a", "d"]], y)
    np.testing.assert_allclose(model.prefixes.packed, without.fit_.prefixes.packed, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(estimator.predict(wrong), without.predict(X[["a", "d"]]))
    for each in (wrong[["c"]], wrong[["c"]].assign(e=wrong["c"])):
        with pytest.raises(TableError, match=r"'[ce]' holds"):
            AnytimeRegressor(**options).fit(each, y)


@pytest.mark.usefixtures("desk")
def test_moments_leave_out_a_column_of_the_first_table_and_refuse_one_of_the_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    X = table()[["a", "c", "d"]].assign(y=np.arange(ROWS) % 7)
    wrong = X.assign(c=np.where(X.index == 5, np.inf, X["c"]))
    for name, frame in (("good.csv", X), ("bad.csv", wrong)):
        frame.to_csv(name, index=False)
    call = ["--target", "y", "--task", "regression", "--out", "m.moments"]
    assert main(["moments", "bad.csv", "good.csv", *call]) == 0
    assert "left out 1 column: 'c' holds 1 infinite value" in capsys.readouterr().err
    stored = StoredMoments.load(Path("m.moments"))
    assert stored.record.groups.features == ("a", "d")
    assert stored.total.rows == 2 * ROWS
    assert main(["moments", "good.csv", "bad.csv", *call]) == 2
    assert "bad.csv: column 'c' holds 1 infinite value, the first in row 5" in capsys.readouterr().err


def test_an_infinite_value_in_a_row_that_does_not_count_changes_nothing() -> None:
    X, weights = table()[["a", "c", "d"]], np.ones(ROWS)
    y, weights[5] = target_of("gaussian", X.assign(t="level 1")), 0.0
    wrong = X.assign(c=np.where(X.index == 5, np.inf, X["c"]))
    for basis in (None, "hinge:2"):
        fitted = [AnytimeRegressor(basis=basis).fit(each, y, sample_weight=weights) for each in (X, wrong)]
        np.testing.assert_array_equal(*(each.predict(X) for each in fitted))
