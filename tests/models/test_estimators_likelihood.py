"""Classifiers and counts by the estimators: what they report, how penalties are chosen, bad input."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, mean_poisson_deviance

from anytime import AnytimeClassifier, AnytimeRegressor
from anytime.data.formats import open_table
from anytime.data.survey import settle_target, survey
from anytime.errors import TableError, TrainingError
from anytime.evaluation.evaluate import evaluate
from anytime.groups import load_groups
from anytime.moments.accumulate import fold_moments_of
from anytime.target import Target, check_family
from anytime.training.fit import fit
from anytime.training.options import Options
from anytime.types import FamilyName, Float, Task
from models.refusals import assert_refused

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


# What they report.


@pytest.mark.parametrize(("reported", "family"), [(UP, "binomial"), (THREE, "multinomial")], ids=["2", "3"])
def test_the_family_of_a_classifier_is_that_of_its_classes(reported: Any, family: FamilyName) -> None:
    plain, named = AnytimeClassifier(GROUPS).fit(X, reported), AnytimeClassifier(GROUPS, family=family).fit(X, reported)
    assert plain.model_.manifest.family == named.model_.manifest.family == family
    np.testing.assert_array_equal(plain.predict_proba(X), named.predict_proba(X))
    assert AnytimeRegressor(GROUPS).fit(X, y).model_.manifest.family == "gaussian"
    assert plain.guarantee_.gamma is None
    assert [
        AnytimeRegressor(family=name).__sklearn_tags__().target_tags.positive_only for name in ("gaussian", "poisson")
    ] == [False, True]
    assert plain.guarantee_.why


def test_deviances_of_training_and_of_an_evaluation_are_those_of_scikit_learn() -> None:
    classes, counts = likely("classes").fit(X, THREE), likely("counts").fit(X, COUNTS)
    for model, target, wanted in (
        (classes.model_, THREE, [2 * log_loss(THREE, p) for p in classes.staged_predict_proba(X)]),
        (counts.model_, COUNTS, [mean_poisson_deviance(COUNTS, p) for p in counts.staged_predict(X)]),
    ):
        manifest = model.manifest
        assert [manifest.prior_deviance, *(step.deviance for step in manifest.steps)] == pytest.approx(wanted, rel=1e-9)
        assert evaluate(model, pd.DataFrame(X, columns=FEATURES).assign(y=target)).deviance == pytest.approx(wanted)


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


@pytest.mark.parametrize("folds", [None, 3])
def test_a_class_without_weight_is_none(folds: int | None) -> None:
    many = np.array(["down", "mid", "up"])[THREE]
    weighted = AnytimeClassifier(GROUPS, cv=folds).fit(X, many, (many != "up").astype(float))
    without = AnytimeClassifier(GROUPS, cv=folds).fit(X[many != "up"], many[many != "up"])
    assert weighted.classes_.tolist() == ["down", "mid"]
    np.testing.assert_allclose(weighted.predict_proba(X), without.predict_proba(X), rtol=1e-12)


def test_counts_in_one_fold_only_are_not_held_out() -> None:
    assert len(likely("counts", cv=3).fit(X, ONE).fit_.measured.weights) == 2


@pytest.mark.parametrize("classes", [2, 3])
def test_a_class_in_one_fold_only_is_not_held_out(classes: int) -> None:
    queries = np.arange(120) // 10
    reported = np.where(queries == 4, "here", "there" if classes == 2 else np.where(UP, "up", "down"))
    measured = likely("classes", alpha="cv", cv=3).fit(X, reported, query=queries).fit_.measured
    assert measured.weights.sum() == 110
    assert np.isfinite(measured.mean).all()


def test_a_likelihood_without_rows_is_refused() -> None:
    parts = fold_moments_of(X, UP.astype(float))
    assert_refused(
        lambda: fit(parts, load_groups(GROUPS), Options(alpha=0.1, family="binomial")),
        "needs rows; pass",
        error=TrainingError,
    )


# Targets.


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", TASKS)
def test_each_family_has_its_task(family: FamilyName, task: Task) -> None:
    target = Target(task, ("y",), {"binary": ("a", "b"), "multiclass": ("a", "b", "c")}.get(task))
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


def test_a_negative_count_in_a_table_to_measure_on_is_told_by_its_row() -> None:
    frame = pd.DataFrame(X, columns=FEATURES).assign(n=COUNTS)
    model = likely("counts").fit(frame[FEATURES], frame["n"]).model_
    assert_refused(
        lambda: evaluate(model, frame.assign(n=np.where(frame.index == 7, -3, COUNTS))),
        "target 'n' is -3 in row 7; expected counts, 0 or more",
    )
