"""Classifiers and counts by the estimators and the command line: what is told, how penalties are chosen, bad input."""

from __future__ import annotations

import json
from contextlib import nullcontext
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
from anytime.moments.accumulate import fold_moments_of
from anytime.target import Target, check_family
from anytime.training.fit import fit
from anytime.training.options import Options
from anytime.types import FamilyName, Float, Task

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


def counts(y: Float) -> Float:
    return np.random.default_rng(1).poisson(np.exp(np.clip(y, -2, 2))).astype(np.float64)


X, y = table()
UP, THREE, COUNTS = y > 0, np.digitize(y, [-0.9, 0.4]), counts(y)


def likely(kind: str, groups: Any = GROUPS, **options: Any) -> Any:
    """An estimator of classes or of counts."""
    if kind == "classes":
        return AnytimeClassifier(groups, **options)
    return AnytimeRegressor(groups, family="poisson", **options)


# What is told.


@pytest.mark.parametrize(("reported", "family"), [(UP, "binomial"), (THREE, "multinomial")], ids=["2", "3"])
def test_the_family_of_a_classifier_is_that_of_its_classes(reported: Any, family: FamilyName) -> None:
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
    for budget, proba in zip(estimator.costs_, stages, strict=True):
        scores = estimator.decision_function(X, budget=budget)
        assert (proba > 0).all()
        np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-12)
        if classes == 2:
            np.testing.assert_allclose(scores, np.log(proba[:, 1] / proba[:, 0]), atol=1e-9)
        else:
            np.testing.assert_allclose(scores.sum(axis=1), 0.0, atol=1e-9)
            np.testing.assert_allclose(np.diff(scores, axis=1), np.diff(np.log(proba), axis=1), atol=1e-9)
    # The intercept is not penalised: on the training rows mean probabilities are the shares.
    np.testing.assert_allclose(stages[-1].mean(axis=0), np.bincount(reported) / 200, atol=1e-6)


def test_counts_are_told_as_expected_counts() -> None:
    estimator = AnytimeRegressor(GROUPS, family="poisson").fit(X, COUNTS)
    stages = np.array(list(estimator.staged_predict(X)))
    assert stages.shape == (4, 120)
    assert (stages > 0).all()
    assert stages.mean(axis=1) == pytest.approx(COUNTS.mean(), rel=1e-6)
    scores = [d2_tweedie_score(COUNTS, stage, power=1) for stage in stages]
    assert scores == sorted(scores)
    assert scores[0] == pytest.approx(0.0, abs=1e-12)
    assert [0.0, *(step.r2 for step in estimator.model_.manifest.steps)] == pytest.approx(scores, abs=1e-9)


@pytest.mark.parametrize("kind", ["classes", "counts"])
def test_deviances_on_the_training_rows_are_those_of_scikit_learn(kind: str) -> None:
    estimator = likely(kind).fit(X, THREE if kind == "classes" else COUNTS)
    if kind == "classes":
        wanted = [2 * log_loss(THREE, p) for p in estimator.staged_predict_proba(X)]
    else:
        wanted = [mean_poisson_deviance(COUNTS, p) for p in estimator.staged_predict(X)]
    manifest = estimator.model_.manifest
    assert [manifest.prior_deviance, *(step.deviance for step in manifest.steps)] == pytest.approx(wanted, rel=1e-9)


# Penalties and folds.


@pytest.mark.parametrize("kind", ["classes", "counts"])
def test_the_penalty_is_chosen_by_deviance(kind: str) -> None:
    X, y = table(90)
    X = np.hstack([X, np.random.default_rng(2).normal(size=(90, 30))])  # so that no penalty would be ruinous
    noise = [{"name": f"n{j}", "features": [f"n{j}_{i}" for i in range(10)], "cost": 1} for j in range(3)]
    groups = {"groups": [*GROUPS["groups"], *noise]}
    reported = y > 0 if kind == "classes" else counts(y)
    chosen, tiny = (likely(kind, groups, alpha=alpha, cv=3).fit(X, reported) for alpha in ("cv", 1e-7))
    assert chosen.curve_.cv_error[-1] < 0.5 * tiny.curve_.cv_error[-1]
    assert chosen.fit_.alphas[-1] > 1e-4
    assert chosen.model_.manifest.prior_error == pytest.approx(chosen.curve_.cv_error[0])


@pytest.mark.parametrize("kind", ["numbers", "classes", "counts"])
def test_rows_of_one_query_stay_in_one_fold(kind: str) -> None:
    rng = np.random.default_rng(3)
    queries = np.repeat(np.arange(24), 6)
    # Ten numbers differ between queries and have no other information: the other rows of a query give the answer.
    X, y = rng.normal(size=(24, 10))[queries], 3 * rng.integers(0, 2, size=24)[queries]
    options: dict[str, Any] = {"cv": 4, "alpha": 1e-2}
    estimator: Any = AnytimeRegressor(**options) if kind == "numbers" else likely(kind, None, **options)
    names = np.array([f"query {q}" for q in queries])
    by_row, *found = (
        estimator.fit(X, y, query=keys).curve_.cv_error.tolist() for keys in (None, queries, names, names.tolist())
    )
    assert found[0][-1] > 2 * by_row[-1]
    assert found == found[:1] * 3


def test_rows_of_each_class_are_dealt_over_the_folds() -> None:
    """Five rows of a class in five folds: one in each, however they stand."""
    X, y = table(100)
    reported = np.where(np.arange(100) < 5, "rare", np.where(y > 0, "up", "down"))
    errors = [AnytimeClassifier(GROUPS, cv=5, random_state=seed).fit(X, reported).curve_.cv_error for seed in range(5)]
    assert all(found is not None and np.isfinite(found).all() for found in errors)


# Bad input of the estimators.


NOTHING = np.zeros(120)
ONE = (np.arange(120) == 11).astype(float)
REFUSED: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "one class": (AnytimeClassifier(GROUPS), np.full(120, 3), {}, "y has one class, 3; expected 2 or more"),
    "classes without weight": (likely("classes"), UP, {"sample_weight": NOTHING}, "weight"),
    "counts without weight": (likely("counts"), COUNTS, {"sample_weight": NOTHING}, "weight"),
    "a count below 0": (likely("counts"), np.where(ONE > 0, -2, COUNTS), {}, "-2.*expected counts, 0 or more"),
    "several counts": (likely("counts"), np.column_stack([COUNTS, COUNTS]), {}, "one count per row|1d array"),
    "counts in one fold": (likely("counts", cv=2), ONE, {}, "fewer than two folds can be held out"),
    **{
        f"one class with weight, {cv} folds": (
            AnytimeClassifier(GROUPS, cv=cv),
            np.where(UP, "up", "down"),
            {"sample_weight": (~UP).astype(float)},
            "y has one class, 'down'",
        )
        for cv in (None, 3)
    },
    **{
        f"no count, {cv} folds": (likely("counts", cv=cv), NOTHING, {}, "every count with weight is 0")
        for cv in (None, 3)
    },
    **{
        f"{family} for {what}": (
            kind(GROUPS, family=family),
            reported,
            {},
            f"family {family} does not fit target.*{what}.*choose {choose} or gaussian$",
        )
        for kind, family, reported, what, choose in (
            (AnytimeClassifier, "poisson", UP.astype(int), "2 classes", "binomial"),
            (AnytimeClassifier, "poisson", THREE, "3 classes", "multinomial"),
            (AnytimeClassifier, "binomial", THREE, "3 classes", "multinomial"),
            (AnytimeClassifier, "multinomial", UP.astype(int), "2 classes", "binomial"),
            (AnytimeRegressor, "binomial", y, "task regression", "gamma"),
            (AnytimeRegressor, "multinomial", y, "task regression", "gamma"),
        )
    },
    **{
        f"no family of {kind.__name__}": (
            kind(GROUPS, family="beta"),
            UP.astype(int),
            {},
            "family is 'beta'; expected one of gaussian, binomial, multinomial, poisson",
        )
        for kind in (AnytimeClassifier, AnytimeRegressor)
    },
}
"""Estimators, targets and options of `fit`, and why they are refused."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_in_one_line(name: str) -> None:
    estimator, reported, options, why = REFUSED[name]
    with pytest.raises(ValueError, match=why) as caught:
        estimator.fit(X, reported, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("folds", [None, 3])
def test_a_class_of_one_row_trains(classes: int, folds: int | None) -> None:
    reported = np.where(np.arange(120) == 17, "once", "often" if classes == 2 else np.where(UP, "up", "down"))
    with pytest.warns(AnytimeWarning, match="class 'once' is in one row"):
        fitted = AnytimeClassifier(GROUPS, cv=folds).fit(X, reported)
    assert np.isfinite(fitted.predict_proba(X)).all()


@pytest.mark.parametrize("folds", [None, 3])
def test_a_class_without_weight_is_none(folds: int | None) -> None:
    many = np.array(["down", "mid", "up"])[THREE]
    weighted = AnytimeClassifier(GROUPS, cv=folds).fit(X, many, (many != "up").astype(float))
    without = AnytimeClassifier(GROUPS, cv=folds).fit(X[many != "up"], many[many != "up"])
    assert weighted.classes_.tolist() == ["down", "mid"]
    np.testing.assert_allclose(weighted.predict_proba(X), without.predict_proba(X), rtol=1e-12)


def test_counts_in_one_fold_only_are_not_held_out() -> None:
    fitted = likely("counts", cv=3).fit(X, ONE)
    assert len(fitted.fit_.measured.weights) == 2


@pytest.mark.parametrize("classes", [2, 3])
def test_a_class_in_one_fold_only_is_not_held_out(classes: int) -> None:
    queries = np.arange(120) // 10
    reported = np.where(queries == 4, "here", "there" if classes == 2 else np.where(UP, "up", "down"))
    measured = likely("classes", alpha="cv", cv=3).fit(X, reported, query=queries).fit_.measured
    assert measured.weights.sum() == 110
    assert np.isfinite(measured.mean).all()


def test_a_likelihood_without_rows_is_refused() -> None:
    parts = fold_moments_of(X, UP.astype(float))
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
    with nullcontext() if fits else pytest.raises(TrainingError, match=f"family {family}.*choose"):
        check_family(family, target)


@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_the_task_is_that_of_the_family_where_one_is_given(family: FamilyName | None, tmp_path: Path) -> None:
    pd.DataFrame({"x": range(6), "two": [0, 1] * 3, "three": [0, 1, 2] * 2}).to_csv(tmp_path / "t.csv", index=False)
    wanted: Any = {
        None: ("binary", "regression"),
        "gaussian": ("binary", "regression"),
        "binomial": ("binary", TableError),
        "multinomial": (TrainingError, "multiclass"),
        "poisson": ("count", "count"),
    }[family]
    for column, task in zip(("two", "three"), wanted, strict=True):
        found = survey(open_table(tmp_path / "t.csv"), [column])
        with nullcontext() if isinstance(task, str) else pytest.raises(task):
            assert settle_target(found, "auto", family).task == task


# The command line and tables.


@pytest.fixture
def desk(desk: Path) -> Path:
    frame = pd.DataFrame(X, columns=FEATURES)
    frame["y"], frame["kind"], frame["grade"] = y, np.where(UP, "up", "down"), THREE
    frame["n"], frame["w"], frame["q"] = COUNTS.astype(int), 1.0, np.arange(120) // 10
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
    manifest = model.manifest
    reported = [manifest.prior_deviance, *(step.deviance for step in manifest.steps)]
    assert evaluate(model, open_table("train.csv")).deviance == pytest.approx(reported, rel=1e-6)
    if "cv" not in options:
        kind: Any = AnytimeRegressor if target == "n" else AnytimeClassifier
        family = {"kind": "binomial", "grade": "multinomial", "n": "poisson"}[target]
        estimator = kind(GROUPS, family=family, alpha=0.01).fit(frame[FEATURES], frame[target])
        assert [step.group for step in manifest.steps] == estimator.sequence_
        np.testing.assert_allclose(model.prefixes.packed, estimator.fit_.prefixes.packed, rtol=1e-9, atol=1e-12)


WEIGHTED = ["kind", "--family", "binomial", "--weights", "w"]
NEGATIVE = "train.csv: target 'n' holds -3; expected counts, 0 or more"


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("column", "rows", "value", "words", "why"),
    [
        ("n", 7, -3, ["n", "--family", "poisson"], NEGATIVE),
        ("n", 7, -3, ["n", "--task", "count"], NEGATIVE),
        ("w", UP, 0.0, WEIGHTED, "target 'kind' is 'down' in every row"),
        ("w", slice(None), 0.0, WEIGHTED, "weight"),
        ("grade", slice(None), 1, ["grade", "--family", "multinomial"], "'grade' is 1 in every row"),
    ],
)
def test_targets_and_weights_that_tell_nothing_are_refused_on_the_command_line(
    column: str, rows: Any, value: float, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(column, rows, value)
    assert why in failed(capsys, *call(*words))


def test_a_negative_count_in_a_table_to_measure_on_is_told_by_its_row(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(call("n", "--family", "poisson")) == 0
    change("n", 7, -3)
    with pytest.raises(TableError, match=r"target 'n' is -3 in row 7; expected counts, 0 or more"):
        evaluate(anytime.load("m.safetensors"), open_table("train.csv"))


def test_a_label_never_seen_in_training_is_refused_in_evaluation(desk: Path) -> None:
    for target, family, strange in (("kind", "binomial", "sideways"), ("grade", "multinomial", 9)):
        assert main(call(target, "--family", family)) == 0
        change(target, 5, strange)
        with pytest.raises(TableError, match=f"target {strange!r} was never seen in training; known: "):
            evaluate(anytime.load("m.safetensors"), open_table("train.csv"))


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


def test_classes_of_one_row_are_a_warning_of_the_command(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change("grade", slice(None), 1)
    change("grade", [3, 4], [0, 2])
    assert main([*call("grade", "--family", "multinomial")]) == 0
    assert "warning: classes of one row: '0', '2'" in capsys.readouterr().out


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
