"""The policy `best`: a shorter prefix answers where its cross-validated error is less by one standard error."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeClassifier, AnytimeRegressor, Model, Runner, load
from anytime.errors import ValuesError
from anytime.loaded import LoadedModel
from anytime.training.model_selection import Errors
from anytime.types import Float
from models.commands import Capture, ran
from models.opening import opened
from models.refusals import assert_refused

GROUPS: dict[str, Any] = {
    "groups": [
        {"name": "signal", "features": ["a", "b"], "cost": 1.0},
        *({"name": f"noise{i}", "features": [f"n{i}{j}" for j in range(12)], "cost": 5.0} for i in range(4)),
    ]
}
COLUMNS = [column for group in GROUPS["groups"] for column in group["features"]]


def table(rows: int, seed: int = 0) -> tuple[pd.DataFrame, Float]:
    """Return a table of two columns that matter and 48 that do not, and its target."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(rows, len(COLUMNS))), columns=COLUMNS)
    return X, np.asarray(X["a"] - X["b"] + rng.normal(size=rows))


def trained(**options: Any) -> AnytimeRegressor:
    X, y = table(80)
    with pytest.warns(UserWarning, match="cross-validated error"):
        return AnytimeRegressor(GROUPS, alpha="cv", basis="linear", clamp="off", **options).fit(X, y)


@pytest.fixture(scope="module")
def estimator() -> AnytimeRegressor:
    return trained()


@pytest.fixture(scope="module")
def model(estimator: AnytimeRegressor, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("best") / "m.safetensors"
    estimator.save(path)
    return load(path)


def literal(errors: Errors) -> list[int]:
    """Return the prefix that answers for each prefix, written as the documentation states it."""
    w = errors.weights / errors.weights.sum()
    found = []
    for k in range(errors.folds.shape[1]):
        means = [float(w @ errors.folds[:, j]) for j in range(k + 1)]
        j = min(range(k + 1), key=means.__getitem__)
        rises = errors.folds[:, k] - errors.folds[:, j]
        mean = float(w @ rises)
        deviation = float(np.sqrt(w @ (rises - mean) ** 2 / (len(w) - 1)))
        found.append(j if mean > deviation + 1e-12 * means[0] else k)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_the_prefix_of_least_error_answers_where_it_is_better_by_a_standard_error(seed: int) -> None:
    rng = np.random.default_rng(seed)
    folds, steps = int(rng.integers(2, 7)), int(rng.integers(1, 12))
    level = rng.choice([0.0, 0.1, 1.0])
    walk = np.cumsum(rng.normal(size=steps + 1)) + 20.0
    errors = Errors(walk + level * rng.normal(size=(folds, steps + 1)), rng.uniform(0.5, 2.0, folds))
    best = errors.best
    assert list(best) == literal(errors)
    assert all(best[k] <= k and best[best[k]] == best[k] for k in range(steps + 1))
    assert Errors(np.ones((folds, 4)), np.ones(folds)).best == (0, 1, 2, 3), "equal errors leave each prefix alone"


def test_the_model_stores_which_prefix_answers_and_the_estimator_reads_it(
    estimator: AnytimeRegressor, model: Model
) -> None:
    assert estimator.fit_.measured is not None
    best = literal(estimator.fit_.measured)
    assert list(model.best or ()) == best
    assert [step.best for step in model.manifest.steps] == best[1:]
    assert best[-1] < model.steps
    assert model.policies == ("prefix", "best", "arrived")


def test_a_prediction_and_the_command_answer_by_the_prefix_of_least_error(
    model: Model, tmp_path: Path, capsys: Capture
) -> None:
    X, _ = table(6, seed=1)
    X.to_csv(tmp_path / "x.csv", index=False)
    model.save(tmp_path / "m.safetensors")
    words = ["predict", str(tmp_path / "m.safetensors"), str(tmp_path / "x.csv"), "--policy", "best", "--out"]
    best = model.best or ()
    prediction = opened(model, {group["name"]: X[group["features"]].to_numpy() for group in GROUPS["groups"]}, len(X))
    for budget in (0.0, 1.0, 6.0, 11.0, 16.0, 21.0):
        prefix = best[model.affordable(budget)]
        answer = prediction.answer(budget, "best")
        assert (answer.prefix, answer.policy, answer.cost) == (prefix, "best", model.costs[prefix])
        assert (answer.complete, answer.note) == (True, None)
        ran(capsys, *words, str(tmp_path / "p.csv"), "--budget", str(budget))
        for found in (answer.prediction, pd.read_csv(tmp_path / "p.csv")["prediction"]):
            np.testing.assert_allclose(found, model.prefixes.predict(X.to_numpy(), prefix)[:, 0], rtol=1e-9)
    assert f"predicted by step {best[-1]} of {model.steps}" in ran(capsys, *words, str(tmp_path / "p.csv")).err


def test_a_number_of_steps_counts_like_their_cost(model: Model) -> None:
    X, _ = table(3, seed=2)
    found = tuple(LoadedModel.of(model).answer(X, prefix=k, policy="best").prefix for k in range(model.steps + 1))
    assert found == model.best


def test_groups_that_cannot_answer_are_not_computed(model: Model) -> None:
    computed: list[str] = []
    X, _ = table(1, seed=3)

    def compute(group: dict[str, Any], row: pd.DataFrame) -> Any:
        computed.append(group["name"])
        return row[group["features"]].to_numpy()

    best = model.steps if model.best is None else model.best[-1]
    with Runner(model, {group["name"]: partial(compute, group) for group in GROUPS["groups"]}) as runner:
        computed.clear()
        answer = runner.run(X, 20_000.0, policy="best")
    assert answer == replace(answer, prefix=best, policy="best", reason="complete", complete=True, missing=())
    assert computed == list(model.computed[best])


def test_a_model_without_errors_answers_by_prefix_and_says_so(tmp_path: Path) -> None:
    X, y = table(80)
    estimator = AnytimeRegressor(GROUPS, alpha=0.1, basis="linear", clamp="off").fit(X, y)
    estimator.save(tmp_path / "m.safetensors")
    model = load(tmp_path / "m.safetensors")
    answer = model.answer(X, policy="best")
    assert (answer.prefix, answer.policy) == (model.steps, "prefix")
    assert answer.note == "the model has no cross-validated errors; the prefix policy answered"
    assert_refused(
        lambda: estimator.predict(X, policy="best"),
        "policy is 'best', which needs errors on held-out rows",
        error=ValuesError,
    )


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("arrived", "policy is 'arrived', but X has every group"),
        ("worst", "policy is 'worst'; expected one of prefix, best, arrived"),
    ],
)
def test_the_estimators_refuse_another_policy(policy: Any, message: str, estimator: AnytimeRegressor) -> None:
    assert_refused(lambda: estimator.predict(table(3)[0], policy=policy), message, error=ValuesError)


@pytest.mark.parametrize("family", ["binomial", "gaussian"])
def test_classes_answer_by_the_best_prefix(family: str) -> None:
    X, y = table(80)
    with pytest.warns(UserWarning, match="cross-validated error"):
        estimator = AnytimeClassifier(GROUPS, alpha="cv", family=family, basis="linear", clamp="off").fit(X, y > 0)
    best = estimator.model_.best or ()
    assert best[-1] < len(best) - 1
    for k, (budget, staged) in enumerate(zip(estimator.costs_, estimator.staged_predict_proba(X), strict=True)):
        if best[k] == k:
            np.testing.assert_allclose(estimator.predict_proba(X, budget, policy="best"), staged, rtol=1e-12)
    assert estimator.score(X, y > 0, policy="best") == np.mean(estimator.predict(X, policy="best") == (y > 0))


def test_nested_errors_decide_where_they_are_those_of_the_table() -> None:
    fitted = trained(nested=True).fit_
    assert fitted.measured is not None
    np.testing.assert_allclose(fitted.measured.mean, np.asarray(fitted.errors, float), rtol=1e-12)
    assert fitted.measured.best == tuple(literal(fitted.measured))
