"""Class weights are weights of rows, and balanced ones make all classes equally heavy, in both doors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.utils.class_weight import compute_sample_weight

from anytime import AnytimeClassifier, AnytimeRegressor, evaluate, load, open_table
from anytime.cli.main import main
from anytime.errors import TrainingError
from models.present import present

X = ["a", "b"]


def rows(count: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(count, 2)), columns=X)
    frame["two"] = np.where(frame["a"] + rng.logistic(size=count) > 2.5, "yes", "no")
    frame["three"] = np.digitize(frame["a"] + rng.normal(size=count), [-1.5, 2])
    frame["w"] = rng.integers(0, 3, count).astype(float)
    return frame


@pytest.mark.parametrize("family", ["gaussian", "auto"])
@pytest.mark.parametrize("target", ["two", "three"])
@pytest.mark.parametrize("weighting", ["balanced", "dict"])
def test_class_weights_are_weights_of_the_rows(target: str, family: Any, weighting: str) -> None:
    frame = rows()
    labels = np.unique(frame[target]).tolist()
    given = "balanced" if weighting == "balanced" else {label: k + 0.5 for k, label in enumerate(labels)}
    options: dict[str, Any] = {"alpha": 1e-3, "family": family, "basis": "linear"}
    found = AnytimeClassifier(class_weight=given, **options).fit(frame[X], frame[target])
    by_hand = compute_sample_weight(given, frame[target])
    expected = AnytimeClassifier(**options).fit(frame[X], frame[target], sample_weight=by_hand)
    np.testing.assert_allclose(found.predict_proba(frame[X]), expected.predict_proba(frame[X]), atol=1e-9)


def test_rows_of_a_class_of_weight_0_are_left_out() -> None:
    frame = rows()
    weights = {label: float(label > 0) for label in np.unique(frame["three"]).tolist()}
    options: dict[str, Any] = {"alpha": 1e-3, "family": "gaussian", "basis": "linear"}
    found = AnytimeClassifier(class_weight=weights, **options).fit(frame[X], frame["three"])
    used = frame[frame["three"] > 0]
    assert found.model_.manifest.provenance.rows == len(used)
    np.testing.assert_allclose(found.predict_proba(frame[X])[:, 0], 0.0, atol=1e-9)


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({1: -2}, r"class_weight of 1 is -2; expected 0, or 1e-100 to 1e\+100"),
        ({7: 1.0}, "class_weight has 7; expected classes of the target"),
        ("even", "class_weight is 'even'; expected 'balanced', a dict or None"),
    ],
)
def test_invalid_class_weights_are_refused(weights: Any, why: str) -> None:
    with pytest.raises(TrainingError, match=why):
        AnytimeClassifier(class_weight=weights).fit(rows()[X], rows()["three"])


@pytest.mark.parametrize("weights", [None, "w"])
@pytest.mark.parametrize(("target", "family"), [("two", "binomial"), ("two", "gaussian"), ("three", "multinomial")])
@pytest.mark.usefixtures("desk")
def test_the_command_trains_the_model_of_the_estimator(target: str, family: Any, weights: str | None) -> None:
    frame = rows()
    frame[[*X, target, "w"]].to_csv("t.csv", index=False)
    words = ["train", "t.csv", "--target", target, "--family", family, "--class-weight", "balanced"]
    words += ["--alpha", "0.001", "--folds", "0", "--basis", "linear", "--out", "m.safetensors"]
    words += ["--task", "multiclass"] if target == "three" else []
    words += ["--weights", "w"] if weights else ["--drop", "w"]
    assert main(words) == 0
    expected = AnytimeClassifier(class_weight="balanced", alpha=1e-3, family=family, basis="linear")
    expected.fit(frame[X], frame[target], sample_weight=None if weights is None else frame[weights])
    found = load("m.safetensors").predict_proba("t.csv")
    np.testing.assert_allclose(found, expected.predict_proba(frame[X]), atol=1e-7)


def test_a_rare_class_is_recognised(tmp_path: Path) -> None:
    frame = rows(2000)
    frame.to_parquet(tmp_path / "t.parquet")
    fits = (AnytimeClassifier(class_weight=each, alpha=1e-3).fit(frame[X], frame["two"]) for each in (None, "balanced"))
    plain, balanced = (present(evaluate(each.model_, open_table(tmp_path / "t.parquet")).classes) for each in fits)
    assert balanced.balanced_accuracy[-1] > plain.balanced_accuracy[-1] + 0.1


@pytest.mark.usefixtures("desk")
def test_what_has_no_classes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    frame = rows()
    frame.to_csv("t.csv", index=False)
    with pytest.raises(TrainingError, match="class weights require classes; target y is regression"):
        AnytimeRegressor(class_weight="balanced").fit(frame[X], frame["a"].to_numpy())
    with pytest.raises(TrainingError, match="partial_fit expects None"):
        AnytimeClassifier(class_weight="balanced", family="gaussian").partial_fit(frame[X], frame["two"])
    words = ["train", "t.csv", "--target", "a", "--class-weight", "balanced", "--out", "m.safetensors"]
    assert main(words) == 2
    assert "class weights require classes; target a is regression" in capsys.readouterr().err
    assert main(["moments", "t.csv", "--target", "two", "--out", "m.moments"]) == 0
    assert main(["train", "m.moments", "--class-weight", "balanced", "--out", "m.safetensors"]) == 2
    assert "--class-weight requires a table" in capsys.readouterr().err
