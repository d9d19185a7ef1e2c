"""A model with pairs in service: clients see raw groups alone, and answers use the products of what arrived."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from anytime import AnytimeRegressor
from anytime.model.model import Model
from anytime_service.settings import Settings
from service.serving import Running, expected, run_service, timeless

VALUES = {"a": [1.5, -0.5], "b": [0.7], "c": [-1.0]}


def paired_model() -> Model:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 4))
    y = X[:, 0] + X[:, 0] * X[:, 2] + X[:, 0] * X[:, 1] + rng.normal(size=500)
    parts = {"a": ["a0", "a1"], "b": ["b0"], "c": ["c0"]}
    groups = {"groups": [{"name": name, "features": own, "cost": 2.0} for name, own in parts.items()]}
    return AnytimeRegressor(groups, pairs=2).fit(X, y).model_


@pytest.fixture(scope="module")
def paired() -> Model:
    return paired_model()


@pytest.fixture(scope="module")
def server(paired: Model) -> Iterator[Running]:
    settings = Settings(port=0)
    with run_service([paired], settings) as service:
        yield service


@pytest.mark.parametrize("policy", ["prefix", "arrived"])
@pytest.mark.parametrize("names", [[], ["a"], ["b", "c"], ["b", "a"], ["c", "b", "a"]])
def test_the_answer_is_the_librarys(server: Running, paired: Model, policy: str, names: list[str]) -> None:
    groups = {name: VALUES[name] for name in names}
    answer = server.post({"groups": groups}, policy=policy).json()
    assert timeless(answer) == expected(paired, groups, policy=policy)
    assert set(answer["groups"]) | set(answer["missing"]) <= {"a", "b", "c"}


def test_descriptions_and_plans_name_raw_groups_alone(server: Running) -> None:
    received = server.get("/models/model").json()
    assert [group["name"] for group in received["groups"]] == ["a", "b", "c"]
    assert sorted(name for step in received["steps"] for name in step["adds"]) == ["a", "b", "c"]
    pairs = [pair for step in received["steps"] for pair in step.get("pairs", [])]
    assert sorted(pairs) == [["a0", "a1"], ["a0", "b0"]]
    assert received["total_cost"] == 6.0
    plan = server.get("/models/model/plan", have="a").json()
    assert sorted(name for step in plan["steps"] for name in step["compute"]) == ["b", "c"]
