"""Models whose training stopped early, and models with pairs: clients see the raw groups that are in the model."""

from __future__ import annotations

import numpy as np
import pytest

from anytime.estimators import AnytimeRegressor
from anytime.model.model import Model
from lazily import Lazy
from service.serving import Running, changed, expected, problem_in, timeless

STOPPED = {
    "groups": [
        {"name": "noise", "features": ["n0", "n1"], "cost": 1.0},
        {"name": "visit", "features": [], "cost": 2.0},
        {"name": "test", "features": ["t0"], "cost": 1.0, "requires": ["visit"]},
        {"name": "hog", "features": ["h0", "h1"], "cost": 4.0},
    ]
}
PARTS = {"a": ["a0", "a1"], "b": ["b0"], "c": ["c0"]}
PAIRED = {"groups": [{"name": name, "features": own, "cost": 2.0} for name, own in PARTS.items()]}
VALUES = {"test": [1.5], "hog": [0.5, -1.0], "a": [1.5, -0.5], "b": [0.7], "c": [-1.0]}
RNG = np.random.default_rng(0)


def stopped() -> Model:
    """Three steps were possible; the noise was left out."""
    X = RNG.normal(size=(80, 5))
    y = X @ [0.01, 0.0, 2.0, 1.0, -1.0] + 0.1 * RNG.normal(size=80)
    return changed(AnytimeRegressor(STOPPED, epsilon=0.05, alpha=1e-4, basis="linear").fit(X, y).model_, name="stopped")


def paired() -> Model:
    X = RNG.normal(size=(500, 4))
    y = X[:, 0] + X[:, 0] * X[:, 2] + X[:, 0] * X[:, 1] + RNG.normal(size=500)
    return changed(AnytimeRegressor(PAIRED, pairs=2, basis="linear").fit(X, y).model_, name="paired")


MODELS: Lazy[str, Model] = Lazy({"stopped": stopped, "paired": paired})


@pytest.mark.parametrize("policy", ["prefix", "arrived"])
@pytest.mark.parametrize(
    ("name", "groups"),
    [("stopped", "test"), ("stopped", "test hog"), ("paired", ""), ("paired", "b a"), ("paired", "c b a")],
)
def test_the_answer_is_the_librarys(service: Running, policy: str, name: str, groups: str) -> None:
    values = {group: VALUES[group] for group in groups.split()}
    answer = service.post({"groups": values}, model=name, policy=policy).json()
    assert timeless(answer) == expected(MODELS[name], values, policy=policy)


def test_the_description_of_a_model_that_was_stopped_says_so_and_the_groups_left_out_are_unknown(
    service: Running,
) -> None:
    described = service.get("/models/stopped").json()
    assert MODELS["stopped"].manifest.stopped is not None
    assert described["stopped"] == MODELS["stopped"].manifest.stopped.model_dump(mode="json")
    assert described["stopped"]["left_out"] == ["noise"]
    assert [group["name"] for group in described["groups"]] == ["visit", "test", "hog"]
    assert "'noise'" in problem_in(service.post({"groups": {"noise": [1.0, 2.0]}}, model="stopped"), 422)["detail"]


def test_descriptions_and_plans_name_raw_groups_alone(service: Running) -> None:
    described = service.get("/models/paired").json()
    assert [group["name"] for group in described["groups"]] == ["a", "b", "c"]
    assert sorted(name for step in described["steps"] for name in step["adds"]) == ["a", "b", "c"]
    pairs = [pair for step in described["steps"] for pair in step.get("pairs", [])]
    assert sorted(pairs) == [["a0", "a1"], ["a0", "b0"]]
    assert described["total_cost"] == 6.0
    plan = service.get("/models/paired/plan", have="a").json()
    assert sorted(name for step in plan["steps"] for name in step["compute"]) == ["b", "c"]
