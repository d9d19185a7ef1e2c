"""How good a prefix is, counted again row by row, on made-up tables and on real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import mean_squared_error, ndcg_score, r2_score

from anytime.cli.main import main
from anytime.data.dataset import Dataset
from anytime.data.formats import open_table
from anytime.data.survey import settle_target, survey
from anytime.errors import TableError
from anytime.evaluation.evaluate import Evaluation, evaluate, ndcg
from anytime.groups import load_groups
from anytime.model.curve import plateau_level, stopping_cost, timeliness
from anytime.model.model import Model
from anytime.model.prefixes import PrefixModels
from anytime.training.fit import fit, provenance
from anytime.training.options import Options
from anytime.types import Float
from models.commands import Capture, document, output, ran
from models.present import present
from models.spies import spied

FEATURES = ["a", "b", "c", "d"]
GROUPS = {
    "groups": [
        {"name": "ab", "features": ["a", "b"], "cost": 2.0},
        {"name": "c", "features": ["c"], "cost": 1.0},
        {"name": "d", "features": ["d"], "cost": 0.0},
    ],
    "bases": {name: {"missing": False} for name in FEATURES},
}


def rows(seed: int, count: int = 300) -> pd.DataFrame:
    """Features with gaps, and a column for each task."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 4)) * [1, 2, 3, 1] + [0, 5, -3, 100]
    score = (X - X.mean(axis=0)) @ [1.0, 0.5, 0.2, -0.3] + 0.5 * rng.normal(size=count)
    frame = pd.DataFrame(X, columns=FEATURES)
    frame["y"] = score
    frame["z"] = 3 - 2 * X[:, 0] + rng.normal(size=count)
    frame["sign"] = np.where(score > 0, "up", "down")
    frame["level"] = np.array(["high", "low", "mid"])[np.digitize(score, [-1, 1])]
    frame["grade"] = np.clip(np.round(score + 2), 0, 4).astype(int)
    frame["query"] = np.sort(rng.integers(0, 60, size=count))
    frame.loc[::17, "b"] = np.nan
    return frame


TRAIN, TEST = rows(0), rows(1, 150)


def trained(folder: Path, targets: list[str], *, query: str | None = None, task: Any = "auto") -> tuple[Model, Path]:
    """A model and the table to test it on."""
    TRAIN.to_parquet(folder / "train.parquet")
    TEST.to_parquet(folder / "test.parquet")
    table = open_table(folder / "train.parquet")
    target = settle_target(survey(table, targets), task)
    dataset = Dataset(table, load_groups(GROUPS), target, query)
    fitted = fit(dataset.moments(), dataset.groups, Options(alpha=0.01))
    return fitted.model("m", target, provenance(fitted, "train"), query=query), folder / "test.parquet"


def evaluated(folder: Path, targets: list[str], **options: Any) -> tuple[Model, Evaluation, Float]:
    """A model, its evaluation, and the scores (steps + 1, rows, P) of the test rows."""
    model, test = trained(folder, targets, **options)
    X = TEST[FEATURES].to_numpy()
    return (
        model,
        evaluate(model, open_table(test)),
        model.prefixes.predict_all(np.where(np.isnan(X), model.prefixes.mean, X)),
    )


@pytest.mark.parametrize("targets", [["y"], ["y", "z"]], ids=["one", "two"])
def test_explained_variance_and_error_are_those_of_the_rows(targets: list[str], tmp_path: Path) -> None:
    model, found, scores = evaluated(tmp_path, targets)
    Y = TEST[targets].to_numpy()
    standard = (Y - model.prefixes.intercept) / model.prefixes.response_scale
    residual = (Y - scores) / model.prefixes.response_scale
    F = 0.5 * np.mean(standard**2, axis=0).sum() - 0.5 * np.mean(residual**2, axis=1).sum(axis=1)
    assert found.rows == len(TEST)
    np.testing.assert_allclose(found.explained_variance, F, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(present(found.r2), [r2_score(Y, s) for s in scores], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.mse, [mean_squared_error(Y, s) for s in scores], rtol=1e-9)
    assert found.costs.tolist() == [0.0, *(step.cumulative_cost for step in model.manifest.steps)]
    assert (found.accuracy, found.ndcg) == (None, None)
    assert found.explained_variance[0] == 0.0


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command that learns counts; in test.csv and all.csv there is a row of which absurdly many are predicted."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 4)), columns=FEATURES)
    frame["n"] = rng.poisson(np.exp(0.3 * frame["a"] + 0.2 * frame["c"] + 0.1 * frame["d"]))
    frame[:300].to_csv("train.csv", index=False)
    frame.loc[399, "c"] = 5000.0
    frame.to_csv("all.csv", index=False)
    frame[300:].to_csv("test.csv", index=False)
    Path("groups.json").write_text(json.dumps(GROUPS))
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


def test_scores_of_many_prefixes_are_made_of_few_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, test = trained(tmp_path, ["level"])
    whole = evaluate(model, open_table(test))
    monkeypatch.setattr("anytime.data.dataset.BLOCK_VALUES", 120)
    with spied(PrefixModels, "predict_all") as predict_all:
        found = evaluate(model, open_table(test))
    assert max(len(call.args[1]) for call in predict_all.call_args_list) == 120 // ((model.steps + 1) * 3)
    np.testing.assert_array_equal(found.accuracy, whole.accuracy)


def test_ndcg_is_the_mean_over_queries_of_two_rows_or_more(tmp_path: Path) -> None:
    _, found, scores = evaluated(tmp_path, ["grade"], query="query")
    ranked = [part["grade"] for _, part in TEST.groupby("query") if len(part) > 1]
    expected = [np.mean([ndcg_score([each], [s[each.index, 0]], k=5) for each in ranked]) for s in scores]
    assert present(found.ndcg) == pytest.approx(expected, rel=1e-9)
    assert found.ndcg_queries == (len(ranked), sum((grades == 0).all() for grades in ranked))


def test_ndcg_of_a_perfect_order_is_one_and_leaves_out_single_rows() -> None:
    truth = np.array([3.0, 2, 1, 0, 4])
    keys = np.array(["q", "q", "q", "q", "alone"])
    scores = np.column_stack([truth, -truth, np.zeros(5)])
    best, worst, tied = present(ndcg(truth, scores, keys))
    assert best == pytest.approx(1.0)
    assert worst < tied < best


@pytest.mark.parametrize("truth", [[-1.0, 2.0], [1.0]])
def test_there_is_no_ndcg_without_relevances_or_without_pairs(truth: list[float]) -> None:
    assert ndcg(np.array(truth), np.zeros((len(truth), 1)), np.zeros(len(truth))) is None


def test_the_same_whatever_the_number_of_threads(tmp_path: Path) -> None:
    model, test = trained(tmp_path, ["y"])
    one, two = (evaluate(model, open_table(test), n_jobs=jobs) for jobs in (1, 2))
    assert np.array_equal(one.mse, two.mse)


def test_rows_without_a_target_are_refused_or_left_out(tmp_path: Path) -> None:
    model, test = trained(tmp_path, ["y"])
    TEST.assign(y=TEST["y"].where(TEST.index % 2 == 0)).to_parquet(test)
    with pytest.raises(TableError, match="75 of 150 rows have no target"):
        evaluate(model, open_table(test))
    found = evaluate(model, open_table(test), drop_missing=True)
    TEST[TEST.index % 2 == 0].to_parquet(test)
    assert found.rows == 75
    np.testing.assert_allclose(found.mse, evaluate(model, open_table(test)).mse)


# Timeliness


def test_timeliness_of_an_evaluation_stops_at_the_plateau_of_training(tmp_path: Path) -> None:
    model, found, _ = evaluated(tmp_path, ["y"])
    F = np.array([0.0, *(step.explained_variance for step in model.manifest.steps)])
    assert found.stop == stopping_cost(model.costs, F, plateau_level(model.costs, F))
    standard = (TEST["y"].to_numpy() - model.prefixes.intercept[0]) / model.prefixes.response_scale[0]
    risk = 0.5 * float(np.mean(standard**2))
    assert found.timeliness == pytest.approx(
        timeliness(model.costs, found.explained_variance, found.stop, risk, "trapezoid")
    )
    assert found.timeliness_step == pytest.approx(
        timeliness(model.costs, found.explained_variance, found.stop, risk, "step")
    )


# Real data
