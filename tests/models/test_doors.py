"""What one door accepts, the others do: tables of any type, arrays, weights; and the same model by every door."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from anytime import AnytimeClassifier, AnytimeRegressor, AnytimeWarning, TableError, certify, load, resequence
from anytime.cli.main import main
from anytime.errors import AnytimeError, ValuesError, in_python
from anytime.evaluation.calibrate import calibrate
from anytime.evaluation.evaluate import evaluate
from anytime.evaluation.report import report
from anytime.families import FAMILIES, family_of
from anytime.loaded import LoadedModel
from anytime.moments.files import StoredMoments
from models.commands import Capture, ran, refusal
from models.present import present
from models.refusals import assert_refused
from models.table_types import TYPES

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
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


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


QUICK: list[dict[str, Any]] = [
    *({"family": family, "basis": "linear"} for family in FAMILIES),
    *({"family": family} for family in ("gaussian", "poisson")),
    *({"family": family, "basis": "linear", "clamp": "auto"} for family in ("gaussian", "binomial")),
    *({"family": family, "alpha": 0.01} for family in FAMILIES),
    *({"family": family, "basis": "hinge:2", "alpha": 0.01} for family in ("gamma", "multinomial")),
    *({}, {"alpha": 0.0}, {"method": "sparse"}),  # classes whose family is chosen
]
OTHERS = [
    {"family": family} | more
    for family in FAMILIES
    for more in ({}, {"basis": "linear", "clamp": "auto"}, {"basis": "hinge:2", "alpha": 0.01})
]
OPTIONS = [*QUICK, *(pytest.param(each, marks=pytest.mark.heavy) for each in OTHERS if each not in QUICK)]


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_both_doors_lead_to_the_same_model(options: dict[str, Any]) -> None:
    X = table()
    y = target_of(options.get("family", "binomial"), X)
    X.assign(y=y).to_parquet("t.parquet")
    groups = {"groups": [{"name": c, "features": [c], "cost": 1.0} for c in X]}
    Path("g.json").write_text(json.dumps(groups))
    call = ["train", "t.parquet", "--groups", "g.json", "--target", "y", "--out", "m.safetensors"]
    assert main([*call, *words_of(options)]) == 0
    model = load("m.safetensors")
    kind: Any = AnytimeRegressor if model.manifest.classes is None else AnytimeClassifier
    estimator = kind(groups, **options).fit(X, y)
    ours, theirs = model.manifest, estimator.model_.manifest
    assert (ours.groups, ours.family) == (theirs.groups, theirs.family)
    assert [(step.group, step.alpha) for step in ours.steps] == [(step.group, step.alpha) for step in theirs.steps]
    np.testing.assert_allclose(model.prefixes.packed, estimator.fit_.prefixes.packed, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(model.prefixes.intercept, estimator.fit_.prefixes.intercept, rtol=1e-12)


FAR = {"infinite": np.inf, "-infinite": -np.inf, "too large to square": 1e200}


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("why", "file"), [("infinite", "t.csv"), ("-infinite", "t.parquet"), ("too large to square", "t.csv")]
)
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
def test_a_column_without_moments_is_left_out_by_both_doors(why: str, options: dict[str, Any], file: str) -> None:
    X = table()[["a", "c", "d"]]
    y = target_of(options.get("family", "gaussian"), X.assign(t="level 1"))
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
def test_moments_leave_out_a_column_of_the_first_table_and_refuse_one_of_the_next(capsys: Capture) -> None:
    X = table()[["a", "c", "d"]].assign(y=np.arange(ROWS) % 7)
    X.to_csv("good.csv", index=False)
    X.assign(c=np.where(X.index == 5, np.inf, X["c"])).to_csv("bad.csv", index=False)
    call = ["--target", "y", "--task", "regression", "--out", "m.moments"]
    assert "left out 1 column: 'c' holds 1 infinite value" in ran(capsys, "moments", "bad.csv", "good.csv", *call).err
    stored = StoredMoments.load(Path("m.moments"))
    assert (stored.record.groups.features, stored.total.rows) == (("a", "d"), 2 * ROWS)
    assert "bad.csv: column 'c' holds 1 infinite value, the first in row 5" in refusal(
        capsys, "moments", "good.csv", "bad.csv", *call
    )


# Tables and weights: every door, with every type of table.


def numbers(html: str) -> list[float]:
    """The numbers of a page but for counts of rows, which weights of 0 do not change, and rounding errors."""
    return [float(each) for each in re.findall(r"-?\d+\.\d+(?![\de])", html)]


MEASURED: dict[str, Callable[..., Any]] = {
    "evaluate": lambda model, table, **given: evaluate(model, table, **given).measures["log_loss"],
    "report": lambda model, table, **given: numbers(report(model, table, **given)),
    "plot": lambda model, table, **given: numbers(model.plot(table, **given).html),
    "plot_calibration": lambda model, table, **given: numbers(model.plot_calibration(table, **given).html),
    "what_if": lambda model, table, **given: model.what_if(costs={"a": 9.0}, data=table, **given).after.prefixes.packed[
        :, 0
    ],
}
"""What is measured on a table with the target, and takes a column of weights."""

DOORS: dict[str, Callable[..., Any]] = MEASURED | {
    "report, calibrated": lambda model, table: numbers(report(model, calibration=table)),
    "calibrate": lambda model, table: present(calibrate(model, table).manifest.calibration).thresholds,
}


def labelled() -> pd.DataFrame:
    """The table with a target of two classes, and weights, a third of them 0."""
    frame = table()
    return frame.assign(y=target_of("binomial", frame), w=np.arange(ROWS) % 3)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    X = table()
    return AnytimeClassifier(alpha=1e-2, basis="linear").fit(X, target_of("binomial", X)).model_


@pytest.fixture(scope="module")
def of_pandas(model: LoadedModel) -> dict[str, Any]:
    return {name: door(model, labelled()) for name, door in DOORS.items()}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_accepts_every_type_of_table(
    door: str, kind: str, model: LoadedModel, of_pandas: dict[str, Any], tmp_path: Path
) -> None:
    found = DOORS[door](model, TYPES[kind](labelled(), tmp_path))
    np.testing.assert_allclose(found, of_pandas[door], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("door", MEASURED)
def test_every_door_obeys_weights(door: str, model: LoadedModel, of_pandas: dict[str, Any]) -> None:
    frame, measured = labelled(), partial(MEASURED[door], model)
    weighted = measured(frame, weights="w")
    assert np.shape(weighted) != np.shape(of_pandas[door]) or not np.allclose(weighted, of_pandas[door])
    np.testing.assert_allclose(measured(frame.assign(w=5.0), weights="w"), of_pandas[door], rtol=1e-9)
    np.testing.assert_allclose(measured(frame[frame["w"] > 0], weights="w"), weighted, rtol=1e-9, atol=1e-12)


def test_weights_of_a_test_table_are_asked_for_where_training_had_some() -> None:
    X = table()
    estimator = AnytimeRegressor().fit(X, target_of("gaussian", X), sample_weight=np.arange(ROWS) % 3)
    frame = X.assign(y=target_of("gaussian", X), w=1.0)
    remark = "training weighted its rows by 'sample_weight', and those of the table count equally"
    assert remark in str(evaluate(estimator.model_, frame).unweighted)
    assert remark[1:] in report(estimator.model_, frame).replace("&#x27;", "'")
    assert evaluate(estimator.model_, frame, weights="w").unweighted is None


def test_weights_without_a_table_are_refused(model: LoadedModel) -> None:
    for door in (model.plot, partial(report, model), partial(model.what_if, costs={"a": 2.0})):
        assert_refused(partial(door, weights="w"), "weights is 'w', but there is no table", error=ValuesError)


@pytest.mark.parametrize(
    "door", [certify, resequence, report, partial(evaluate, table=()), partial(calibrate, table=())]
)
def test_what_is_no_model_is_named(door: Callable[[Any], Any]) -> None:
    for given in ("m.safetensors", AnytimeRegressor().fit(table(), target_of("gaussian", table()))):
        named = f"the model is {type(given).__name__}; expected a Model, as of anytime.load(path)"
        assert_refused(partial(door, given), named, error=ValuesError)


@pytest.mark.parametrize("groups", [None, {"a": ["x2"], "b": ["x0", "x5"]}], ids=["all columns", "some columns"])
@pytest.mark.parametrize("kind", [AnytimeRegressor, AnytimeClassifier])
def test_what_is_loaded_or_fitted_to_an_array_takes_arrays_and_frames(kind: Any, groups: Any, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 6))
    fitted = kind(groups, alpha=1e-3).fit(X, X[:, 2] > 0)
    fitted.save(tmp_path / "m.safetensors")
    loaded = kind.load(tmp_path / "m.safetensors")
    for estimator in (fitted, loaded):
        assert estimator.n_features_in_ == 6
        assert not hasattr(estimator, "feature_names_in_")
        for given in (X, pd.DataFrame(X), pd.DataFrame(X, columns=list("abcdef")), pl.DataFrame(X), X.tolist()):
            np.testing.assert_array_equal(estimator.predict(given), fitted.predict(X))
        assert_refused(partial(estimator.predict, X[:, :5]), "5 features", error=AnytimeError)
    np.testing.assert_array_equal(loaded.get_feature_names_out(), fitted.get_feature_names_out())
    np.testing.assert_array_equal(loaded.coef_, fitted.coef_)
