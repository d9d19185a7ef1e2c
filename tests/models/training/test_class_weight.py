"""Class weights are weights of rows, and balanced ones make all classes equally heavy, in both doors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.utils.class_weight import compute_sample_weight

from anytime import AnytimeClassifier, load
from anytime.cli.main import main
from anytime.errors import TrainingError
from models.refusals import assert_refused

X = ["a", "b"]


def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 2)), columns=X)
    frame["two"] = np.where(frame["a"] + rng.logistic(size=300) > 2.5, "yes", "no")
    frame["three"] = np.digitize(frame["a"] + rng.normal(size=300), [-1.5, 2])
    frame["w"] = rng.integers(0, 3, 300).astype(float)
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
    expected = AnytimeClassifier(**options).fit(frame[X], frame[target], compute_sample_weight(given, frame[target]))
    np.testing.assert_allclose(found.predict_proba(frame[X]), expected.predict_proba(frame[X]), atol=1e-9)


def test_rows_of_a_class_of_weight_0_are_left_out() -> None:
    frame = rows()
    found = AnytimeClassifier(class_weight={0: 0.0}, family="gaussian", basis="linear").fit(frame[X], frame["three"])
    assert found.model_.manifest.provenance.rows == (frame["three"] > 0).sum()
    np.testing.assert_allclose(found.predict_proba(frame[X])[:, 0], 0.0, atol=1e-9)


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({0: 0.0}, "class 0 is in no row of 253; a likelihood needs 1 or more"),
        ({1: -2}, "class_weight of 1 is -2; expected 0, or 1e-100 to 1e+100"),
        ({7: 1.0}, "class_weight has 7; expected classes of the target: 0, 1, 2"),
        ("even", "class_weight is 'even'; expected 'balanced', a dict or None"),
    ],
)
def test_invalid_class_weights_are_refused(weights: Any, why: str) -> None:
    assert_refused(
        lambda: AnytimeClassifier(class_weight=weights).fit(rows()[X], rows()["three"]), why, error=TrainingError
    )


@pytest.mark.parametrize("weights", [None, "w"])
@pytest.mark.parametrize(("target", "family"), [("two", "binomial"), ("two", "gaussian"), ("three", "multinomial")])
@pytest.mark.usefixtures("desk")
def test_the_command_trains_the_model_of_the_estimator(target: str, family: Any, weights: str | None) -> None:
    frame = rows()
    frame[[*X, target, "w"]].to_csv("t.csv", index=False)
    words = ["train", "t.csv", "--target", target, "--family", family, "--class-weight", "balanced"]
    words += ["--alpha", "0.001", "--folds", "0", "--basis", "linear", "--out", "m.safetensors"]
    words += ["--task", "multiclass"] * (target == "three") + (["--weights", "w"] if weights else ["--drop", "w"])
    assert main(words) == 0
    expected = AnytimeClassifier(class_weight="balanced", alpha=1e-3, family=family, basis="linear").fit(
        frame[X], frame[target], sample_weight=None if weights is None else frame[weights]
    )
    np.testing.assert_allclose(
        load("m.safetensors").predict_proba("t.csv"), expected.predict_proba(frame[X]), atol=1e-7
    )
    words = ["resequence", "m.safetensors", "--cost", "b=0.5", "--data", "t.csv", "--out", "r.safetensors"]
    assert main(words + ["--weights", "w"] * (weights is not None)) == 0
    again = load("r.safetensors")
    weights_of = [AnytimeClassifier.load(name).class_weight for name in ("m.safetensors", "r.safetensors")]
    assert weights_of[0] == weights_of[1] is not None
    np.testing.assert_allclose(again.predict_proba("t.csv"), expected.predict_proba(frame[X]), atol=1e-6)
    assert again.manifest.provenance.weights == weights


def test_a_stream_refuses_balanced_classes() -> None:
    assert_refused(
        lambda: AnytimeClassifier(class_weight="balanced", family="gaussian").partial_fit(rows()[X], rows()["two"]),
        "partial_fit expects None",
        error=TrainingError,
    )
