"""What is measured means the same for every table and in every interface.

R² is that of scikit-learn on the table at hand; weights count in every table of a call; a seed gives one set of folds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    brier_score_loss,
    d2_log_loss_score,
    d2_tweedie_score,
    log_loss,
    mean_squared_error,
    ndcg_score,
    r2_score,
    roc_auc_score,
    roc_curve as sklearn_curve,
)

from anytime.cli import train as train_command
from anytime.cli.main import main
from anytime.cli.summary import steps_table
from anytime.data.formats import open_table
from anytime.errors import TableError
from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.evaluation import classes as measures
from anytime.evaluation.classes import ClassMeasures, roc_auc, roc_curve
from anytime.evaluation.evaluate import evaluate, ndcg
from anytime.families import family_of
from anytime.inference.prediction import Prediction
from anytime.loaded import load
from anytime.model.curve import plateau_level, stopping_cost, timeliness
from anytime.model.model import Model
from anytime.model.prefixes import PrefixModels
from anytime.types import Float
from models.commands import Capture, document, output, ran, refusal
from models.present import present
from models.spies import spied

FEATURES = ["a", "b", "c", "d"]
GROUPS = {
    "groups": [
        {"name": "ab", "features": ["a", "b"], "cost": 2.0},
        {"name": "c", "features": ["c"], "cost": 1.0},
        {"name": "d", "features": ["d"], "cost": 0.5},
    ],
    "bases": {name: {"missing": False} for name in FEATURES},
}


def rows(seed: int, spread: float, count: int = 200) -> pd.DataFrame:
    """Features of some spread, about other means in other tables, with gaps; a column for each task, and weights."""
    rng = np.random.default_rng(seed)
    X = spread * rng.normal(size=(count, 4)) * [1, 2, 3, 1] + [0, 5 + spread, -3, 100]
    score = (X - [0, 5, -3, 100]) @ [1.0, 0.5, 0.2, -0.3] + rng.normal(size=count)
    frame = pd.DataFrame(X, columns=FEATURES)
    frame["y"], frame["z"] = score, 3 - 20 * X[:, 0] + rng.normal(size=count)
    frame["sign"] = np.where(score + rng.normal(size=count) > 1, "up", "down")
    frame["level"] = np.array(["high", "low", "mid"])[np.digitize(score + rng.normal(size=count), [0, 2])]
    frame["n"] = rng.poisson(np.exp(np.clip(0.3 * score, -3, 3)))
    frame["w"] = rng.uniform(0.1, 3.0, count)
    frame["grade"] = np.clip(np.round(score + 2), 0, 4).astype(int)
    frame["query"] = np.sort(rng.integers(0, 60, size=count))
    frame.loc[::17, "b"] = np.nan
    return frame


TRAIN, TEST = rows(0, 1.0), rows(1, 2.5)


@pytest.fixture(autouse=True)
def desk(desk: Path) -> None:
    TRAIN.to_parquet("train.parquet")
    TEST.to_parquet("test.parquet")
    Path("groups.json").write_text(json.dumps(GROUPS))


def command(*options: str) -> list[str]:
    return ["train", "train.parquet", "--groups", "groups.json", "--out", "m.safetensors", *options]


def aims(targets: list[str]) -> list[str]:
    return [part for target in targets for part in ("--target", target)]


def trained(*options: str) -> Model:
    """A model at a fixed penalty."""
    assert main(command("--alpha", "0.01", "--folds", "0", *options)) == 0
    return load("m.safetensors")


def assert_equal(found: Any, expected: Any, what: str = "") -> None:
    """To 1e-9, relative to 1 where the value is smaller: rounding of sums over some hundred rows is far below."""
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9, err_msg=what)


def scores(model: Model, frame: pd.DataFrame) -> Float:
    """Scores (steps + 1, rows, P) of every prefix."""
    X = frame[FEATURES].to_numpy()
    return model.prefixes.predict_all(np.where(np.isnan(X), model.prefixes.mean, X))


def shown(capture: Capture) -> list[float]:
    """R² of every step, as `show --json` prints it."""
    return [step["r2"] for step in document(capture, "show", "m.safetensors")["steps"]]


def measured(capture: Capture, *options: str) -> list[float | None]:
    """R² of every prefix, as `evaluate --json` prints it."""
    return [
        prefix["r2"] for prefix in document(capture, "evaluate", "m.safetensors", "test.parquet", *options)["prefixes"]
    ]


@pytest.mark.parametrize("weights", [[], ["--weights", "w"]], ids=["equal", "weighted"])
@pytest.mark.parametrize("targets", [["y"], ["y", "z"]], ids=["one", "two"])
@pytest.mark.parametrize("alpha", ["cv", "0.3"])
def test_r2_is_that_of_scikit_learn_in_training_and_on_a_test_table_of_another_variance(
    targets: list[str], weights: list[str], alpha: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TEST["y"].var() > 4 * TRAIN["y"].var()
    table = Mock(side_effect=steps_table)
    monkeypatch.setattr(train_command, "steps_table", table)
    assert main(command(*aims(targets), "--alpha", alpha, *weights, "--test", "test.parquet")) == 0
    model = load("m.safetensors")

    def expected(frame: pd.DataFrame) -> list[float]:
        w = frame["w"] if weights else None
        return [r2_score(frame[targets], s, sample_weight=w) for s in scores(model, frame)]

    assert_equal(table.call_args.args[1].r2, expected(TEST))
    assert_equal(measured(capsys, *weights), expected(TEST))
    assert_equal([0.0, *shown(capsys)], expected(TRAIN))
    assert model.expected(model.steps).r2 == model.manifest.steps[-1].r2
    if alpha == "0.3":  # F includes the penalty
        assert 2 * model.manifest.steps[-1].explained_variance / len(targets) < expected(TRAIN)[-1] - 0.01


@pytest.mark.parametrize("weights", [[], ["--weights", "w"]], ids=["equal", "weighted"])
@pytest.mark.parametrize(("family", "target"), [("binomial", "sign"), ("multinomial", "level"), ("poisson", "n")])
def test_r2_of_a_likelihood_is_the_share_of_the_tables_own_null_deviance(
    family: Any, target: str, weights: list[str], capsys: Capture
) -> None:
    model = trained("--target", target, "--family", family, *weights)

    def expected(frame: pd.DataFrame) -> list[float]:
        w, truth = frame["w"] if weights else None, frame[target]
        if family == "poisson":
            means = [family_of(family).mean(s)[:, 0] for s in scores(model, frame)]
            return [d2_tweedie_score(truth, mean, power=1, sample_weight=w) for mean in means]
        likely = [family_of(family).probabilities(s) for s in scores(model, frame)]
        return [d2_log_loss_score(truth, p, sample_weight=w) for p in likely]

    # scikit-learn clips probabilities at 2.2e-16, far below any here.
    assert_equal(measured(capsys, *weights), expected(TEST))
    assert_equal([0.0, *shown(capsys)], expected(TRAIN))


@pytest.mark.parametrize(
    ("targets", "family", "constant"),
    [(["y"], "gaussian", "y"), (["y", "z"], "gaussian", "z"), (["n"], "poisson", "n"), (["sign"], "binomial", "sign")],
    ids=str,
)
def test_r2_is_null_where_a_response_does_not_vary(
    targets: list[str], family: str, constant: str, capsys: Capture
) -> None:
    TEST.assign(**{constant: TRAIN[constant].max()}).to_parquet("test.parquet")
    options = ["--family", family, "--alpha", "0.01", "--folds", "0", "--test", "test.parquet"]
    assert output(capsys, *command(*aims(targets), *options)).splitlines()[4].split()[3] == "-"
    assert measured(capsys) == [None] * 4
    found = evaluate(load("m.safetensors"), open_table("test.parquet"))
    assert found.r2 is None
    assert np.isfinite(found.mse).all()


@pytest.mark.parametrize(("target", "family"), [("sign", "gaussian"), ("level", "gaussian"), ("sign", "binomial")])
def test_the_mse_of_classes_is_that_of_the_probabilities(target: str, family: str) -> None:
    model = trained("--target", target, "--family", family)
    found = evaluate(model, open_table("test.parquet"))
    classes = present(model.manifest.classes)
    one_hot = (TEST[target].to_numpy()[:, np.newaxis] == np.array(classes, dtype=object)).astype(float)
    likely = [family_of(family).probabilities(s) for s in scores(model, TEST)]
    wanted = [np.square(p - one_hot)[:, -1 if len(classes) == 2 else slice(None)].mean() for p in likely]
    np.testing.assert_allclose(found.mse, wanted, rtol=1e-9)


def test_r2_in_training_is_none_where_a_response_is_constant() -> None:
    model = AnytimeRegressor(GROUPS, cv=2).fit(TRAIN, TRAIN[["y", "z"]].assign(z=7.0)).model_
    assert [model.expected(prefix).r2 for prefix in range(model.steps + 1)] == [None] * 4
    partial = Prediction(model)
    partial.add("d", [100.0])
    assert partial.answer(policy="arrived").expected.r2 is None


def test_compare_has_the_r2_of_each_methods_coefficients_on_both_tables(capsys: Capture) -> None:
    call = ["compare", "train.parquet", "--groups", "groups.json", "--target", "y", "--target", "z", "--weights", "w"]
    call += ["--alpha", "0.3", "--folds", "0", "--test", "test.parquet"]
    methods = {method["name"]: method for method in document(capsys, *call)["methods"]}
    trained("--target", "y", "--target", "z", "--weights", "w", "--alpha", "0.3", "--method", "fr")
    found = methods["CS-G-FR"]
    assert_equal(found["test"]["r2"], measured(capsys, "--weights", "w"))
    assert_equal(found["train"]["r2"][1:], shown(capsys))
    for side in ("train", "test"):
        oracle = methods["FR Oracle"][side]["r2"]
        assert [oracle[0], oracle[-1]] == pytest.approx([found[side]["r2"][0], found[side]["r2"][-1]])
    assert f"{found['test']['r2'][-1]:.4f}" in output(capsys, *call)


# Explained variance and error.


@pytest.mark.parametrize("targets", [["y"], ["y", "z"]], ids=["one", "two"])
def test_explained_variance_and_error_are_those_of_the_rows(targets: list[str]) -> None:
    model, Y = trained(*aims(targets)), TEST[targets].to_numpy()
    found = evaluate(model, open_table("test.parquet"))
    standard = (Y - model.prefixes.intercept) / model.prefixes.response_scale
    residual = (Y - scores(model, TEST)) / model.prefixes.response_scale
    F = 0.5 * np.mean(standard**2, axis=0).sum() - 0.5 * np.mean(residual**2, axis=1).sum(axis=1)
    assert_equal(found.explained_variance, F)
    assert_equal(found.mse, [mean_squared_error(Y, s) for s in scores(model, TEST)])
    assert found.costs.tolist() == [0.0, *(step.cumulative_cost for step in model.manifest.steps)]
    assert (found.rows, found.accuracy, found.ndcg, found.explained_variance[0]) == (len(TEST), None, None, 0.0)


@pytest.fixture
def counts() -> list[str]:
    """A command that learns counts; in test.csv and all.csv there is a row of which absurdly many are predicted."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 4)), columns=FEATURES)
    frame["n"] = rng.poisson(np.exp(0.3 * frame["a"] + 0.2 * frame["c"] + 0.1 * frame["d"]))
    frame[:300].to_csv("train.csv", index=False)
    frame.loc[399, "c"] = 5000.0
    frame.to_csv("all.csv", index=False)
    frame[300:].to_csv("test.csv", index=False)
    command = ["train", "train.csv", "--groups", "groups.json", "--target", "n"]
    return [*command, "--family", "poisson", "--basis", "linear"]  # the default clamps the row


@pytest.mark.filterwarnings("error")
def test_a_row_that_is_predicted_without_bound_is_told_and_ends_nothing(counts: list[str], capsys: Capture) -> None:
    assert main([*counts, "--out", "m.safetensors"]) == 0
    call = ["evaluate", "m.safetensors", "test.csv"]
    assert " inf " in output(capsys, *call)
    prefixes = document(capsys, *call)["prefixes"]
    with_c = [step for step, row in enumerate(prefixes) if row["deviance"] is None]
    assert with_c
    assert 0 not in with_c
    assert all(prefixes[step]["mse"] is None for step in with_c)


@pytest.mark.filterwarnings("error")
def test_an_absurd_row_that_is_held_out_leaves_finite_errors_or_is_told(counts: list[str], capsys: Capture) -> None:
    counts[1] = "all.csv"
    fixed = ["--alpha", "1e-3"]
    for options in ([], ["--one-se"], [*fixed, "--clamp", "outliers"], [*fixed, "--folds", "0"]):
        assert main([*counts, *options, "--out", "m.safetensors"]) == 0
    *_, warning, said = ran(capsys, *counts, *fixed, "--out", "m.safetensors", code=2).err.splitlines()
    assert warning.startswith("warning: wild values, far from all others: 'c' (5000 in row 399)")
    assert said.startswith("error: the cross-validated error of prefix 3 is infinite")
    assert "fix such rows, limit the columns by --clamp outliers, or set alpha to a number" in said


def test_scores_of_many_prefixes_are_made_of_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained("--target", "level", "--family", "gaussian")
    whole = evaluate(model, open_table("test.parquet"))
    monkeypatch.setattr("anytime.data.dataset.BLOCK_VALUES", 120)
    with spied(PrefixModels, "predict_all") as predict_all:
        found = evaluate(model, open_table("test.parquet"))
    assert max(len(call.args[1]) for call in predict_all.call_args_list) == 120 // ((model.steps + 1) * 3)
    np.testing.assert_array_equal(found.accuracy, whole.accuracy)


def test_ndcg_is_the_mean_over_queries_of_two_rows_or_more() -> None:
    model = trained("--target", "grade", "--query", "query")
    found = evaluate(model, open_table("test.parquet"))
    ranked = [part["grade"] for _, part in TEST.groupby("query") if len(part) > 1]
    expected = [np.mean([ndcg_score([q], [s[q.index, 0]], k=5) for q in ranked]) for s in scores(model, TEST)]
    assert present(found.ndcg) == pytest.approx(expected, rel=1e-9)
    assert found.ndcg_queries == (len(ranked), sum((grades == 0).all() for grades in ranked))


@pytest.mark.parametrize("truth", [[-1.0, 2.0], [1.0]])
def test_there_is_no_ndcg_without_relevances_or_without_pairs(truth: list[float]) -> None:
    assert ndcg(np.array(truth), np.zeros((len(truth), 1)), np.zeros(len(truth))) is None


def test_the_same_whatever_the_number_of_threads() -> None:
    model = trained("--target", "y")
    one, two = (evaluate(model, open_table("test.parquet"), n_jobs=jobs) for jobs in (1, 2))
    assert np.array_equal(one.mse, two.mse)


def test_rows_without_a_target_are_refused_or_left_out() -> None:
    model, known = trained("--target", "y"), TEST.index % 2 == 0
    TEST.assign(y=TEST["y"].where(known)).to_parquet("test.parquet")
    with pytest.raises(TableError, match="100 of 200 rows have no target"):
        evaluate(model, open_table("test.parquet"))
    found = evaluate(model, open_table("test.parquet"), drop_missing=True)
    TEST[known].to_parquet("test.parquet")
    assert found.rows == 100
    np.testing.assert_allclose(found.mse, evaluate(model, open_table("test.parquet")).mse)


def test_timeliness_of_an_evaluation_stops_at_the_plateau_of_training() -> None:
    model = trained("--target", "y")
    found = evaluate(model, open_table("test.parquet"))
    F = np.array([0.0, *(step.explained_variance for step in model.manifest.steps)])
    assert found.stop == stopping_cost(model.costs, F, plateau_level(model.costs, F))
    standard = (TEST["y"].to_numpy() - model.prefixes.intercept[0]) / model.prefixes.response_scale[0]
    risk = 0.5 * float(np.mean(standard**2))
    areas = [timeliness(model.costs, found.explained_variance, found.stop, risk, s) for s in ("trapezoid", "step")]
    assert [found.timeliness, found.timeliness_step] == pytest.approx(areas)


# Weights


def weighted(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A table with whole weights, some of them 0, and the table that has each row as often."""
    counts = np.arange(len(frame)) % 4
    return frame.assign(w=counts), frame.loc[frame.index.repeat(counts)].reset_index(drop=True)


@pytest.mark.parametrize(
    ("target", "options"),
    [("y", []), ("sign", []), ("level", ["--family", "multinomial"]), ("n", ["--family", "poisson"])],
    ids=["number", "class", "likelihood", "count"],
)
def test_a_weight_is_as_many_rows_in_everything_that_is_measured(target: str, options: list[str]) -> None:
    rows(2, 1.0).to_parquet("held.parquet")
    model = trained("--target", target, *options, "--calibrate", "held.parquet")
    for name, frame in zip(("some", "repeated"), weighted(TEST), strict=True):
        frame.to_parquet(f"{name}.parquet")
    one = evaluate(model, open_table("some.parquet"), weights="w")
    other = evaluate(model, open_table("repeated.parquet"))
    for name in ("explained_variance", "r2", "mse", "deviance", "accuracy", "coverage", "size"):
        value, expected = (np.array(getattr(each, name), dtype=np.float64) for each in (one, other))  # None is NaN
        assert_equal(value, expected, name)
    assert (one.timeliness, one.timeliness_step) == pytest.approx((other.timeliness, other.timeliness_step))


@pytest.mark.parametrize(("target", "family"), [("y", "gaussian"), ("sign", "binomial")])
def test_rows_of_a_tiny_weight_do_not_decide_where_training_stops(target: str, family: str) -> None:
    good, wrong = rows(2, 1.0).assign(w=1.0), rows(3, 1.0).assign(w=1e-6)
    # In these rows the target has nothing to do with the features.
    wrong[target] = wrong[target].sample(frac=1.0, random_state=0).to_numpy()
    stops = []
    for name, frame in (("good", good), ("both", pd.concat([good, *[wrong] * 9], ignore_index=True))):
        frame.to_parquet(f"{name}.parquet")
        options = ["--target", target, "--family", family, "--weights", "w", "--validation", f"{name}.parquet"]
        stops.append(present(trained(*options).manifest.stopped))
    assert stops[0].steps == stops[1].steps
    good_errors, both_errors = (np.array(present(stop.errors), dtype=np.float64) for stop in stops)
    np.testing.assert_allclose(both_errors, good_errors, rtol=1e-3)


@pytest.mark.parametrize("option", ["--validation", "--test"])
@pytest.mark.parametrize(
    ("change", "said"), [("drop", "has no column 'w'"), ("zero", "every weight in column 'w' is 0")]
)
@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_weights_that_a_table_of_the_call_lacks_are_an_error(
    family: str, option: str, change: str, said: str, capsys: Capture
) -> None:
    (TEST.drop(columns="w") if change == "drop" else TEST.assign(w=0.0)).to_parquet("test.parquet")
    call = command("--target", "sign", "--family", family, "--alpha", "0.01", "--folds", "0", "--weights", "w")
    assert said in refusal(capsys, *call, option, "test.parquet")


def test_moments_remember_the_column_of_the_weights(capsys: Capture) -> None:
    learn = ["--groups", "groups.json", "--target", "y", "--out", "t.moments"]
    assert main(["moments", "train.parquet", *learn, "--weights", "w"]) == 0
    out = ["--alpha", "0.01", "--out", "m.safetensors"]
    TEST.drop(columns="w").to_parquet("test.parquet")
    assert "has no column 'w'" in refusal(capsys, "train", "t.moments", *out, "--test", "test.parquet")
    assert "their weights are 'w', expected None" in refusal(capsys, "moments", "train.parquet", "t.moments", *learn)


# Folds


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize(
    ("target", "options", "learn"),
    [
        ("y", [], {}),
        ("y", ["--query", "q"], {"query": "q"}),
        ("sign", ["--family", "binomial"], {}),
        ("level", ["--family", "multinomial"], {}),
        ("n", ["--family", "poisson"], {}),
    ],
    ids=["rows", "queries", "two", "three", "counts"],
)
def test_the_same_seed_gives_the_same_folds_in_the_library_and_on_the_command_line(
    target: str, options: list[str], learn: dict[str, str], seed: int
) -> None:
    frame = TRAIN.assign(q=np.arange(len(TRAIN)) // 7)
    frame.to_parquet("train.parquet")
    assert main(command("--target", target, *options, "--alpha", "0.01", "--folds", "4", "--seed", str(seed))) == 0
    manifest = load("m.safetensors").manifest
    shared: dict[str, Any] = {"alpha": 0.01, "cv": 4, "random_state": seed}
    estimators: dict[str, Any] = {
        "y": AnytimeRegressor(GROUPS, **shared),
        "n": AnytimeRegressor(GROUPS, family="poisson", **shared),
    }
    estimator = estimators.get(target, AnytimeClassifier(GROUPS, **shared))
    estimator.fit(frame, frame[target], query=frame["q"] if learn else None)
    errors = [manifest.prior_error, *(step.cv_error for step in manifest.steps)]
    assert_equal(estimator.curve_.cv_error, np.array(errors, dtype=np.float64))


# Measures of classes.


def rows_of_classes(count: int, seed: int, rare: float = 1.0) -> pd.DataFrame:
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
    fitted = AnytimeClassifier(alpha=1e-2, family=family).fit(
        rows_of_classes(200, 0)[["a", "b", "c"]], rows_of_classes(200, 0)[target]
    )
    test = rows_of_classes(150, 1)
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
    fitted = AnytimeClassifier(alpha=1e-2).fit(rows_of_classes(200, 0)[["a", "b", "c"]], rows_of_classes(200, 0)["two"])
    test = rows_of_classes(50, 1)
    test[test["two"] == "no"].to_parquet(tmp_path / "t.parquet")
    found = present(evaluate(fitted.model_, open_table(tmp_path / "t.parquet")).classes)
    assert (found.auc, found.majority) == (None, 1.0)


def test_an_accuracy_of_the_majority_is_noted(desk: Path, capsys: Capture) -> None:
    rows_of_classes(400, 0, rare=2.6).to_csv("rare.csv", index=False)
    rows_of_classes(400, 0).to_csv("even.csv", index=False)
    for name, noted in (("rare", True), ("even", False)):
        words = ["train", f"{name}.csv", "--target", "two", "--drop", "three", "--drop", "w", "--out", "m.safetensors"]
        shown = output(capsys, *words, "--family", "gaussian", "--basis", "linear", "--test", f"{name}.csv")
        assert ("the share of the most frequent class, at every prefix" in shown) == noted
        assert all(name in shown for name in ("accuracy", "balanced", "AUC", "log loss", "Brier"))


@pytest.mark.parametrize("target", ["two", "three"])
def test_compare_measures_the_classes_of_every_method_at_every_prefix(desk: Path, capsys: Capture, target: str) -> None:
    train, test = (rows_of_classes(200, seed)[["a", "b", "c", target]] for seed in (0, 1))
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
