"""Classifiers and counts by the estimators and the command line: what is told, how penalties are chosen, bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import d2_tweedie_score, log_loss, mean_poisson_deviance

import anytime
from anytime import AnytimeClassifier, AnytimeRegressor, AnytimeWarning
from anytime.cli.main import main
from anytime.data.formats import open_table
from anytime.data.survey import settle_target, survey
from anytime.errors import TableError, TrainingError
from anytime.evaluation.evaluate import evaluate
from anytime.folds import FoldAssigner
from anytime.groups import load_groups
from anytime.inference.prediction import Prediction
from anytime.moments.accumulate import fold_moments_of
from anytime.target import Target, check_family
from anytime.training.fit import fit
from anytime.training.options import Options
from anytime.types import FamilyName, Float, Index, Task

GROUPS: dict[str, Any] = {
    "cost_unit": "ms",
    "groups": [
        {"name": "a", "features": ["a0", "a1"], "cost": 2.0},
        {"name": "b", "features": ["b0"], "cost": 1.0},
        {"name": "c", "features": ["c0"], "cost": 4.0},
    ],
}
FEATURES = ["a0", "a1", "b0", "c0"]
FAMILIES: list[FamilyName] = ["gaussian", "binomial", "multinomial", "poisson"]
TASKS = get_args(Task)


def table(rows: int = 120, seed: int = 0) -> tuple[Float, Float]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 4))
    return X, X @ [1.0, -0.5, 0.8, 0.2] + rng.logistic(size=rows)


def three(y: Float) -> Any:
    return np.digitize(y, [-0.9, 0.4])


def counts(y: Float) -> Float:
    return np.random.default_rng(1).poisson(np.exp(np.clip(y, -2, 2))).astype(np.float64)


# What is told.


@pytest.mark.parametrize(("classes", "family"), [(2, "binomial"), (3, "multinomial")])
def test_the_family_of_a_classifier_is_that_of_its_classes(classes: int, family: FamilyName) -> None:
    X, y = table()
    reported = y > 0 if classes == 2 else three(y)
    plain, named = AnytimeClassifier(GROUPS).fit(X, reported), AnytimeClassifier(GROUPS, family=family).fit(X, reported)
    assert plain.model_.manifest.family == named.model_.manifest.family == family
    np.testing.assert_array_equal(plain.predict_proba(X), named.predict_proba(X))
    assert AnytimeRegressor(GROUPS).fit(X, y).model_.manifest.family == "gaussian"
    assert plain.guarantee_.gamma is None
    assert plain.guarantee_.why


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_scores_and_probabilities_have_their_shapes_and_signs(classes: int) -> None:
    X, y = table(200)
    reported = np.digitize(y, np.quantile(y, np.cumsum([0.12, 0.17, 0.2, 0.22])[: classes - 1]))
    estimator = AnytimeClassifier(GROUPS).fit(X, reported)
    stages = list(estimator.staged_predict_proba(X))
    assert len(stages) == len(list(estimator.staged_predict(X))) == 4
    for k, proba in enumerate(stages):
        budget = float(estimator.curve_.costs[k])
        scores = estimator.decision_function(X, budget=budget)
        assert proba.shape == (200, classes)
        assert (proba > 0).all()
        np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-12)
        assert scores.shape == ((200,) if classes == 2 else (200, classes))
        if classes == 2:
            np.testing.assert_allclose(scores, np.log(proba[:, 1] / proba[:, 0]), atol=1e-9)
            np.testing.assert_array_equal(estimator.predict(X, budget=budget), (scores > 0).astype(int))
        else:
            np.testing.assert_allclose(scores.sum(axis=1), 0.0, atol=1e-9)
            np.testing.assert_allclose(np.diff(scores, axis=1), np.diff(np.log(proba), axis=1), atol=1e-9)
            np.testing.assert_array_equal(estimator.predict(X, budget=budget), scores.argmax(axis=1))
    # The intercept is not penalised: on the training rows mean probabilities are the shares.
    np.testing.assert_allclose(stages[-1].mean(axis=0), np.bincount(reported) / 200, atol=1e-6)


def test_counts_are_told_as_expected_counts() -> None:
    X, y = table()
    estimator = AnytimeRegressor(GROUPS, family="poisson").fit(X, counts(y))
    stages = list(estimator.staged_predict(X))
    assert len(stages) == 4
    for stage in stages:
        assert stage.shape == (120,)
        assert (stage > 0).all()
        assert stage.mean() == pytest.approx(counts(y).mean(), rel=1e-6)
    scores = [d2_tweedie_score(counts(y), stage, power=1) for stage in stages]
    assert scores == sorted(scores)
    assert scores[0] == pytest.approx(0.0, abs=1e-12)
    r2 = [0.0, *(step.r2 for step in estimator.model_.manifest.steps)]
    np.testing.assert_allclose(np.array(r2, dtype=np.float64), scores, atol=1e-9)


@pytest.mark.parametrize("kind", ["classes", "counts"])
def test_deviances_on_the_training_rows_are_those_of_scikit_learn(kind: str) -> None:
    X, y = table()
    if kind == "classes":
        estimator: Any = AnytimeClassifier(GROUPS).fit(X, three(y))
        wanted = [2 * log_loss(three(y), p) for p in estimator.staged_predict_proba(X)]
    else:
        estimator = AnytimeRegressor(GROUPS, family="poisson").fit(X, counts(y))
        wanted = [mean_poisson_deviance(counts(y), p) for p in estimator.staged_predict(X)]
    manifest = estimator.model_.manifest
    assert manifest.prior_deviance is not None
    reported = [manifest.prior_deviance, *(step.deviance for step in manifest.steps)]
    np.testing.assert_allclose(reported, wanted, rtol=1e-9)


@pytest.mark.parametrize(
    "names", [["no", "yes"], ["a", "b", "ü"], [False, True], [0, 1], [-5, 3, 12], [1.0, 2.0], [-1.0, 0.0, 1.0]], ids=str
)
def test_classes_survive_saving_with_their_kind(tmp_path: Path, names: list[Any]) -> None:
    X, y = table()
    reported = np.array(names)[np.digitize(y, [-0.6, 0.6][: len(names) - 1])]
    estimator = AnytimeClassifier(GROUPS).fit(X, reported)
    assert estimator.classes_.tolist() == names
    assert estimator.classes_.dtype == reported.dtype
    estimator.save(tmp_path / "m.safetensors")
    model = anytime.load(tmp_path / "m.safetensors")
    assert [(type(c), c) for c in model.manifest.classes or ()] == [(type(c), c) for c in np.unique(reported).tolist()]
    opened = Prediction(model, rows=120)
    for group, columns in (("a", [0, 1]), ("b", [2]), ("c", [3])):
        opened.add(group, X[:, columns])
    for k, stage in enumerate(estimator.staged_predict_proba(X)):
        answer = opened.answer(budget=float(model.costs[k]))
        np.testing.assert_allclose(answer.probabilities, stage, atol=1e-12)
        assert answer.prediction == estimator.classes_[stage.argmax(axis=1)].tolist()


# Penalties and folds.


@pytest.mark.parametrize("kind", ["classes", "counts"])
def test_the_penalty_is_chosen_by_deviance(kind: str) -> None:
    X, y = table(90)
    rng = np.random.default_rng(2)
    X = np.hstack([X, rng.normal(size=(90, 30))])  # enough noise that no penalty would be ruinous
    noise = [{"name": f"n{j}", "features": [f"n{j}_{i}" for i in range(10)], "cost": 1} for j in range(3)]
    groups = {"groups": [*GROUPS["groups"], *noise]}
    if kind == "classes":
        estimator: Any = AnytimeClassifier(groups, alpha="cv", cv=3).fit(X, y > 0)
        tiny = AnytimeClassifier(groups, alpha=1e-7, cv=3).fit(X, y > 0)
    else:
        estimator = AnytimeRegressor(groups, family="poisson", alpha="cv", cv=3).fit(X, counts(y))
        tiny = AnytimeRegressor(groups, family="poisson", alpha=1e-7, cv=3).fit(X, counts(y))
    chosen, least = estimator.curve_.cv_error, tiny.curve_.cv_error
    assert chosen is not None
    assert least is not None
    assert chosen[-1] < 0.5 * least[-1]
    assert estimator.fit_.alphas[-1] > 1e-4
    assert estimator.model_.manifest.prior_error == pytest.approx(chosen[0])


@pytest.mark.parametrize("kind", ["classes", "counts"])
def test_rows_of_one_query_stay_in_one_fold(kind: str) -> None:
    rng = np.random.default_rng(3)
    queries = np.repeat(np.arange(24), 6)
    X, y = rng.normal(size=(24, 10))[queries], rng.integers(0, 2, size=24)[queries]
    options: dict[str, Any] = {"cv": 4, "alpha": 1e-2}
    estimator: Any = AnytimeClassifier(**options)
    if kind == "counts":
        estimator, y = AnytimeRegressor(family="poisson", **options), 3 * y
    by_row = estimator.fit(X, y).curve_.cv_error
    found = [estimator.fit(X, y, query=keys).curve_.cv_error for keys in (queries, [f"query {q}" for q in queries])]
    assert found[0][-1] > 2 * by_row[-1]
    assert found[0].tolist() == found[1].tolist()


def test_rows_of_each_class_are_dealt_over_the_folds() -> None:
    """Five rows of a class in five folds: one in each, however they stand."""
    X, y = table(100)
    reported = np.where(np.arange(100) < 5, "rare", np.where(y > 0, "up", "down"))
    errors = [AnytimeClassifier(GROUPS, cv=5, random_state=seed).fit(X, reported).curve_.cv_error for seed in range(5)]
    assert all(found is not None and np.isfinite(found).all() for found in errors)


def by_class(assigner: FoldAssigner, labels: Index) -> Index:
    folds = assigner.take(np.eye(3)[labels], None)
    assert folds is not None
    return folds


def test_stratified_folds_are_balanced_in_each_class_and_do_not_depend_on_batches() -> None:
    rng = np.random.default_rng(0)
    labels = rng.choice(3, size=200, p=[0.7, 0.25, 0.05])
    whole = by_class(FoldAssigner(4, 7, stratified=True), labels)
    for label in range(3):
        of_each = np.bincount(whole[labels == label], minlength=4)
        assert of_each.max() - of_each.min() <= 1
    by_batch = FoldAssigner(4, 7, stratified=True)
    parts = [by_class(by_batch, part) for part in np.split(labels, [0, 13, 14, 90])]
    for label in range(3):
        of_each = np.bincount(np.concatenate(parts)[labels == label], minlength=4)
        assert of_each.max() - of_each.min() <= 1


def test_stratified_folds_are_the_same_however_the_table_is_cut_into_batches() -> None:
    labels = np.random.default_rng(0).choice(3, size=200, p=[0.7, 0.25, 0.05])
    whole = by_class(FoldAssigner(4, 7, stratified=True), labels)
    by_batch = FoldAssigner(4, 7, stratified=True)
    parts = [by_class(by_batch, part) for part in np.split(labels, [0, 13, 14, 90])]
    assert np.concatenate(parts).tolist() == whole.tolist()


# Bad input of the estimators.


def refused(estimator: Any, X: Any, y: Any, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        estimator.fit(X, y, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("folds", [None, 3])
def test_a_class_of_one_row_trains(classes: int, folds: int | None) -> None:
    X, y = table()
    reported = np.where(np.arange(120) == 17, "once", "often" if classes == 2 else np.where(y > 0, "up", "down"))
    with pytest.warns(AnytimeWarning, match="class 'once' is in one row"):
        fitted = AnytimeClassifier(GROUPS, cv=folds).fit(X, reported)
    assert np.isfinite(fitted.predict_proba(X)).all()


def test_one_class_is_refused() -> None:
    assert "y has one class, 3; expected 2 or more" in refused(AnytimeClassifier(GROUPS), table()[0], np.full(120, 3))


@pytest.mark.parametrize("folds", [None, 3])
def test_a_class_without_weight_is_none(folds: int | None) -> None:
    X, y = table()
    two, many = np.array(["down", "up"])[(y > 0).astype(int)], np.array(["down", "mid", "up"])[three(y)]
    said = refused(AnytimeClassifier(GROUPS, cv=folds), X, two, sample_weight=(two != "up").astype(float))
    assert "y has one class, 'down'" in said
    weighted = AnytimeClassifier(GROUPS, cv=folds).fit(X, many, (many != "up").astype(float))
    without = AnytimeClassifier(GROUPS, cv=folds).fit(X[many != "up"], many[many != "up"])
    assert weighted.classes_.tolist() == ["down", "mid"]
    np.testing.assert_allclose(weighted.predict_proba(X), without.predict_proba(X), rtol=1e-12)


@pytest.mark.parametrize("kind", ["classes", "counts"])
def test_weights_that_are_all_zero_are_refused(kind: str) -> None:
    X, y = table()
    estimator: Any = AnytimeClassifier(GROUPS) if kind == "classes" else AnytimeRegressor(GROUPS, family="poisson")
    said = refused(estimator, X, counts(y) if kind == "counts" else y > 0, sample_weight=np.zeros(120))
    assert "weight" in said


def test_counts_below_zero_are_refused() -> None:
    X, y = table()
    reported = counts(y)
    reported[5] = -2
    said = refused(AnytimeRegressor(GROUPS, family="poisson"), X, reported)
    assert "-2" in said
    assert "expected counts, 0 or more" in said


def test_counts_that_are_all_zero_are_refused() -> None:
    X, _ = table()
    for folds in (None, 3):
        said = refused(AnytimeRegressor(GROUPS, family="poisson", cv=folds), X, np.zeros(120))
        assert "every count with weight is 0" in said


def test_counts_in_one_fold_only_are_not_held_out() -> None:
    X, _ = table()
    reported = (np.arange(120) == 11).astype(float)
    fitted = AnytimeRegressor(GROUPS, family="poisson", cv=3).fit(X, reported)
    assert fitted.fit_.measured is not None
    assert len(fitted.fit_.measured.weights) == 2
    said = refused(AnytimeRegressor(GROUPS, family="poisson", cv=2), X, reported)
    assert "fewer than two folds can be held out" in said


@pytest.mark.parametrize("classes", [2, 3])
def test_a_class_in_one_fold_only_is_not_held_out(classes: int) -> None:
    X, y = table()
    queries = np.arange(120) // 10
    reported = np.where(queries == 4, "here", "there" if classes == 2 else np.where(y > 0, "up", "down"))
    fitted = AnytimeClassifier(GROUPS, alpha="cv", cv=3).fit(X, reported, query=queries)
    assert fitted.fit_.measured is not None
    assert fitted.fit_.measured.weights.sum() == 110
    assert np.isfinite(fitted.fit_.measured.mean).all()


def test_several_counts_are_refused() -> None:
    X, y = table()
    said = refused(AnytimeRegressor(GROUPS, family="poisson"), X, np.column_stack([counts(y), counts(y)]))
    assert "one count per row" in said or "1d array" in said


WRONG_FAMILIES = [
    (AnytimeClassifier, "poisson", 2, "2 classes", "binomial or gaussian"),
    (AnytimeClassifier, "poisson", 3, "3 classes", "multinomial or gaussian"),
    (AnytimeClassifier, "binomial", 3, "3 classes", "multinomial or gaussian"),
    (AnytimeClassifier, "multinomial", 2, "2 classes", "binomial or gaussian"),
    (AnytimeRegressor, "binomial", 0, "task regression", "gamma or gaussian"),
    (AnytimeRegressor, "multinomial", 0, "task regression", "gamma or gaussian"),
]


@pytest.mark.parametrize(("kind", "family", "classes", "what", "choose"), WRONG_FAMILIES)
def test_a_family_that_does_not_fit_the_target_is_refused(
    kind: Any, family: str, classes: int, what: str, choose: str
) -> None:
    X, y = table()
    reported = {0: y, 2: (y > 0).astype(int), 3: three(y)}[classes]
    said = refused(kind(GROUPS, family=family), X, reported)
    assert f"family {family} does not fit target" in said
    assert what in said
    assert said.endswith(f"choose {choose}")


@pytest.mark.parametrize("kind", [AnytimeClassifier, AnytimeRegressor])
def test_a_family_that_is_none_is_refused(kind: Any) -> None:
    X, y = table()
    said = refused(kind(GROUPS, family="beta"), X, (y > 0).astype(int))
    assert "family is 'beta'; expected one of gaussian, binomial, multinomial, poisson" in said


def test_a_likelihood_without_rows_is_refused() -> None:
    X, y = table()
    parts = fold_moments_of(X, (y > 0).astype(float))
    with pytest.raises(TrainingError, match="needs rows; pass"):
        fit(parts, load_groups(GROUPS), Options(alpha=0.1, family="binomial"))


# Targets.


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", TASKS)
def test_each_family_has_its_task(family: FamilyName, task: Task) -> None:
    classes = {"binary": ("a", "b"), "multiclass": ("a", "b", "c")}.get(task)
    target = Target(task, ("y",), classes)
    fits = {"binomial": "binary", "multinomial": "multiclass", "poisson": "count"}.get(family) == task
    fits |= family == "gaussian" and task != "count"
    if fits:
        check_family(family, target)
        return
    with pytest.raises(TrainingError, match=f"family {family}.*choose"):
        check_family(family, target)


@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_the_task_is_that_of_the_family_where_one_is_given(family: FamilyName | None, tmp_path: Path) -> None:
    pd.DataFrame({"x": range(6), "two": [0, 1] * 3, "three": [0, 1, 2] * 2}).to_csv(tmp_path / "t.csv", index=False)
    opened = open_table(tmp_path / "t.csv")
    two, many = survey(opened, ["two"]), survey(opened, ["three"])
    wanted: Any = {
        None: ("binary", "regression"),
        "gaussian": ("binary", "regression"),
        "binomial": ("binary", TableError),
        "multinomial": (TrainingError, "multiclass"),
        "poisson": ("count", "count"),
    }[family]
    for found, task in zip((two, many), wanted, strict=True):
        if isinstance(task, str):
            assert settle_target(found, "auto", family).task == task
        else:
            with pytest.raises(task):
                settle_target(found, "auto", family)


# The command line and tables.


@pytest.fixture
def desk(desk: Path) -> Path:
    X, y = table()
    frame = pd.DataFrame(X, columns=FEATURES)
    frame["y"], frame["kind"], frame["grade"] = y, np.where(y > 0, "up", "down"), three(y)
    frame["n"], frame["w"], frame["q"] = counts(y).astype(int), 1.0, np.arange(120) // 10
    frame.to_csv("train.csv", index=False)
    Path("groups.json").write_text(json.dumps(GROUPS))
    return desk


def change(column: str, rows: Any, value: Any) -> None:
    frame = pd.read_csv("train.csv")
    frame.loc[rows, column] = value
    frame.to_csv("train.csv", index=False)


def call(target: str, *options: str) -> list[str]:
    fixed = [] if "--alpha" in options else ["--alpha", "0.01", "--folds", "0"]
    base = ["train", "train.csv", "--groups", "groups.json", "--target", target, "--out", "m.safetensors"]
    return [*base, *fixed, *options]


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert not Path("m.safetensors").exists()
    last = captured.err.splitlines()[-1]
    assert last.startswith("error: ")
    return last


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("kind", ["--family", "binomial"]),
        ("grade", ["--family", "multinomial"]),
        ("n", ["--family", "poisson"]),
        ("n", ["--task", "count"]),
        ("kind", ["--family", "binomial", "--alpha", "cv", "--folds", "3", "--query", "q", "--weights", "w"]),
        ("n", ["--family", "poisson", "--alpha", "cv", "--folds", "3", "--n-jobs", "2", "--one-se", "--doubling"]),
    ],
)
def test_the_command_trains_what_the_estimator_trains(desk: Path, target: str, options: list[str]) -> None:
    assert main(call(target, *options)) == 0
    model = anytime.load("m.safetensors")
    frame = pd.read_csv("train.csv")
    found = evaluate(model, open_table("train.csv"))
    manifest = model.manifest
    assert found.deviance is not None
    reported = [manifest.prior_deviance, *(step.deviance for step in manifest.steps)]
    np.testing.assert_allclose(found.deviance, np.array(reported, dtype=np.float64), rtol=1e-6)
    if "cv" not in options:
        kind: Any = AnytimeRegressor if target == "n" else AnytimeClassifier
        family = {"kind": "binomial", "grade": "multinomial", "n": "poisson"}[target]
        estimator = kind(GROUPS, family=family, alpha=0.01).fit(frame[FEATURES], frame[target])
        assert [step.group for step in manifest.steps] == estimator.sequence_
        np.testing.assert_allclose(model.prefixes.packed, estimator.fit_.prefixes.packed, rtol=1e-9, atol=1e-12)


def test_a_negative_count_is_refused_on_the_command_line(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change("n", 7, -3)
    for options in (["--family", "poisson"], ["--task", "count"]):
        said = failed(capsys, *call("n", *options))
        assert "train.csv: target 'n' holds -3; expected counts, 0 or more" in said


def test_a_negative_count_in_a_table_to_measure_on_is_told_by_its_row(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(call("n", "--family", "poisson")) == 0
    model = anytime.load("m.safetensors")
    change("n", 7, -3)
    with pytest.raises(TableError, match=r"target 'n' is -3 in row 7; expected counts, 0 or more"):
        evaluate(model, open_table("train.csv"))


def test_a_label_never_seen_in_training_is_refused_in_evaluation(desk: Path) -> None:
    for target, family, strange in (("kind", "binomial", "sideways"), ("grade", "multinomial", 9)):
        assert main(call(target, "--family", family)) == 0
        model = anytime.load("m.safetensors")
        change(target, 5, strange)
        with pytest.raises(TableError, match=f"target {strange!r} was never seen in training; known: "):
            evaluate(model, open_table("train.csv"))


BAD: list[Any] = [
    pytest.param("y", ["--family", "binomial"], ["'y'", "2 for task binary"], id="binomial for numbers"),
    pytest.param("grade", ["--family", "binomial"], ["'grade'", "3 values"], id="binomial for three classes"),
    pytest.param("kind", ["--family", "multinomial"], ["binomial or gaussian"], id="multinomial for two classes"),
    pytest.param("kind", ["--family", "poisson"], ["'kind'", "text"], id="poisson for classes"),
    pytest.param("y", ["--family", "poisson"], ["'y'", "expected counts"], id="poisson for numbers below 0"),
    pytest.param(
        "n", ["--family", "poisson", "--task", "regression"], ["poisson", "gaussian"], id="poisson as regression"
    ),
    pytest.param("n", ["--family", "gaussian", "--task", "count"], ["gaussian", "poisson"], id="gaussian for counts"),
    pytest.param("n", ["--target", "grade", "--family", "poisson"], ["2 targets"], id="several counts"),
    pytest.param("kind", ["--target", "grade", "--family", "binomial"], ["'kind'", "text"], id="several classes"),
    pytest.param("n", ["--family", "beta"], ["--family is 'beta'", "poisson"], id="no family"),
]


@pytest.mark.parametrize(("target", "options", "words"), BAD)
def test_a_family_that_does_not_fit_is_refused_on_the_command_line(
    target: str, options: list[str], words: list[str], desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = failed(capsys, *call(target, *options))
    for word in words:
        assert word in said


def test_classes_and_weights_that_tell_nothing_are_refused_on_the_command_line(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_csv("train.csv")
    change("w", frame["kind"] == "up", 0.0)
    said = failed(capsys, *call("kind", "--family", "binomial", "--weights", "w"))
    assert "target 'kind' is 'down' in every row" in said
    change("w", slice(None), 0.0)
    assert "weight" in failed(capsys, *call("kind", "--family", "binomial", "--weights", "w"))
    change("grade", slice(None), 1)
    change("grade", [3, 4], [0, 2])
    assert main([*call("grade", "--family", "multinomial")]) == 0
    assert "warning: classes of one row: '0', '2'" in capsys.readouterr().out
    Path("m.safetensors").unlink()
    change("grade", slice(None), 1)
    assert "'grade' is 1 in every row" in failed(capsys, *call("grade", "--family", "multinomial"))


def test_a_class_in_one_query_is_held_out_with_no_fold(desk: Path) -> None:
    frame = pd.read_csv("train.csv")
    frame["kind"] = np.where(frame["q"] == 4, "here", "there")
    frame.to_csv("train.csv", index=False)
    options = ["--family", "binomial", "--alpha", "cv", "--folds", "3", "--query", "q"]
    assert main([*call("kind", *options)]) == 0
    folds = FoldAssigner(3, 0, stratified=False).take(np.zeros((len(frame), 1)), frame["q"].to_numpy())
    assert folds is not None
    assert len(set(folds[frame["q"] == 4].tolist())) == 1


@pytest.mark.parametrize("method", ["fr", "omp", "no-whiten"])
def test_rare_events_order_the_groups_as_frequent_ones(method: Any) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 5))
    events = rng.poisson(np.exp(X[:, 3] + 0.5 * X[:, 1])).astype(float)
    for rate in (1.0, 1e-4, 1e-9):
        fitted = AnytimeRegressor(family="poisson", method=method, alpha=1e-12).fit(X, rate * events)
        assert fitted.sequence_[:2] == ["x3", "x1"]
    ill = (rng.random(2000) < 1 / (1 + np.exp(-2 * X[:, 2]))).astype(int)
    for prevalence in (1.0, 1e-7):
        weights = np.where(ill, prevalence, 1.0)
        assert AnytimeClassifier(method=method, alpha=1e-12).fit(X, ill, weights).sequence_[0] == "x2"
