"""Measures of classes are scikit-learn's, at every prefix, weighted, and in as many passes as memory demands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, brier_score_loss, log_loss, roc_auc_score
from sklearn.metrics import roc_curve as sklearn_curve

from anytime import AnytimeClassifier, evaluate, open_table
from anytime.evaluation import classes as measures
from anytime.evaluation.classes import ClassMeasures, roc_auc, roc_curve
from models.commands import Capture, document, output
from models.present import present


def rows(count: int, seed: int, rare: float = 1.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(count, 3)).round(1), columns=["a", "b", "c"])
    score = frame["a"] + 0.5 * frame["b"] + rng.normal(size=count)
    frame["two"] = np.where(score > rare, "yes", "no")
    frame["three"] = np.digitize(score, [-1, 1])
    frame["w"] = rng.integers(0, 4, count).astype(float)
    return frame


@pytest.mark.parametrize("stored", [2**26, 300])
@pytest.mark.parametrize("weights", [None, "w"])
@pytest.mark.parametrize(("target", "family"), [("two", "auto"), ("two", "gaussian"), ("three", "auto")])
def test_the_measures_are_those_of_scikit_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, family: Any, weights: str | None, stored: int
) -> None:
    monkeypatch.setattr(measures, "MAX_STORED", stored)
    fitted = AnytimeClassifier(alpha=1e-2, family=family).fit(rows(200, 0)[["a", "b", "c"]], rows(200, 0)[target])
    test = rows(150, 1)
    test.to_parquet(tmp_path / "t.parquet")
    found = present(evaluate(fitted.model_, open_table(tmp_path / "t.parquet"), weights=weights).classes)
    w = None if weights is None else test[weights].to_numpy()
    y, labels = test[target].to_numpy(), fitted.classes_
    for k, P in enumerate(fitted.staged_predict_proba(test[["a", "b", "c"]])):
        guess = labels[P.argmax(axis=1)]
        scores, several = (P[:, 1], {}) if len(labels) == 2 else (P, {"multi_class": "ovr"})
        squares = np.square(P - (y[:, None] == labels)).sum(axis=1)
        assert {name: values[k] for name, values in found.by_name().items()} == pytest.approx(
            {
                "accuracy": accuracy_score(y, guess, sample_weight=w),
                "balanced_accuracy": balanced_accuracy_score(y, guess, sample_weight=w),
                "auc": roc_auc_score(y, scores, sample_weight=w, **several),
                "log_loss": log_loss(y, P, labels=labels, sample_weight=w),
                "brier": brier_score_loss(y == labels[1], P[:, 1], sample_weight=w)
                if len(labels) == 2
                else np.average(squares, weights=w),
            }
        )
    assert found.majority == pytest.approx(max(np.average(y == label, weights=w) for label in labels))


def test_a_curve_has_the_points_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    positive, scores, weights = rng.random(80) < 0.3, rng.integers(0, 9, 80).astype(float), rng.random(80)
    x, y = roc_curve(positive, scores, weights)
    expected = sklearn_curve(positive, scores, sample_weight=weights, drop_intermediate=False)
    np.testing.assert_allclose(x, expected[0], atol=1e-12)
    np.testing.assert_allclose(y, expected[1], atol=1e-12)
    assert roc_auc(positive, scores, weights) == pytest.approx(roc_auc_score(positive, scores, sample_weight=weights))


def test_one_class_in_the_table_has_no_auc(tmp_path: Path) -> None:
    fitted = AnytimeClassifier(alpha=1e-2).fit(rows(200, 0)[["a", "b", "c"]], rows(200, 0)["two"])
    test = rows(50, 1)
    test[test["two"] == "no"].to_parquet(tmp_path / "t.parquet")
    found = present(evaluate(fitted.model_, open_table(tmp_path / "t.parquet")).classes)
    assert (found.auc, found.majority) == (None, 1.0)


def test_an_accuracy_of_the_majority_is_noted(desk: Path, capsys: Capture) -> None:
    rows(400, 0, rare=2.6).to_csv("rare.csv", index=False)
    rows(400, 0).to_csv("even.csv", index=False)
    for name, noted in (("rare", True), ("even", False)):
        words = ["train", f"{name}.csv", "--target", "two", "--drop", "three", "--drop", "w", "--out", "m.safetensors"]
        shown = output(capsys, *words, "--family", "gaussian", "--basis", "linear", "--test", f"{name}.csv")
        assert ("the share of the most frequent class, at every prefix" in shown) == noted
        assert all(name in shown for name in ("accuracy", "balanced", "AUC", "log loss", "Brier"))


@pytest.mark.parametrize("target", ["two", "three"])
def test_compare_measures_the_classes_of_every_method_at_every_prefix(desk: Path, capsys: Capture, target: str) -> None:
    train, test = (rows(200, seed)[["a", "b", "c", target]] for seed in (0, 1))
    train.loc[::9, "b"] = np.nan
    train.to_parquet("train.parquet")
    test.to_parquet("test.parquet")
    call = ["compare", "train.parquet", "--target", target, "--task", "binary" if target == "two" else "multiclass"]
    call += ["--alpha", "0.01", "--folds", "0", "--basis", "hinge:2", "--test", "test.parquet"]
    methods = {each["name"]: each["test"] for each in document(capsys, *call)["methods"]}
    for name, method in {"CS-G-FR": "fr", "CS-G-OMP": "omp", "Single": "single", "Sparse": "sparse"}.items():
        estimator = AnytimeClassifier(family="gaussian", method=method, alpha=0.01, basis="hinge:2")
        estimator.fit(train.drop(columns=target), train[target])
        expected = present(evaluate(estimator.model_, open_table("test.parquet")).classes)
        for measure, values in expected.by_name().items():
            np.testing.assert_allclose(methods[name][measure], values, rtol=1e-9)
        assert methods[name]["majority"] == expected.majority
    assert not {"FR Oracle", "Sparse (shrunken)"} & {name for name, each in methods.items() if "auc" in each}
    shown = output(capsys, *call)
    assert "test measures of classes at half of the cost" in shown
    half = 1 if len(methods["CS-G-FR"]["auc"]) == 4 else 0
    assert f"{methods['CS-G-FR']['auc'][half]:.4g}" in shown


@pytest.mark.parametrize(
    ("accuracy", "words"),
    [([0.8, 0.8, 0.8], "at every prefix"), ([0.8, 0.79, 0.8, 0.9], "up to step 2 of 3"), ([0.8, 0.9, 0.8], None)],
)
def test_a_note_says_up_to_which_step_accuracy_is_that_of_the_most_frequent_class(
    accuracy: list[float], words: str | None
) -> None:
    values = np.array(accuracy)
    note = ClassMeasures(values, values, None, values, values, 0.8).note
    assert (note is None) == (words is None)
    assert words is None or words in str(note)
