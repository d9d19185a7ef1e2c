"""A model with pairs in service: clients see raw groups alone, and answers use the products of what arrived."""

from __future__ import annotations

import numpy as np
import pytest

from anytime import AnytimeRegressor
from anytime.model.model import Model
from lazily import Lazy
from service.serving import Running, expected, timeless

VALUES = {"a": [1.5, -0.5], "b": [0.7], "c": [-1.0]}


def paired_model() -> Model:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 4))
    y = X[:, 0] + X[:, 0] * X[:, 2] + X[:, 0] * X[:, 1] + rng.normal(size=500)
    parts = {"a": ["a0", "a1"], "b": ["b0"], "c": ["c0"]}
    groups = {"groups": [{"name": name, "features": own, "cost": 2.0} for name, own in parts.items()]}
    return AnytimeRegressor(groups, pairs=2).fit(X, y).model_


MODELS: Lazy[str, Model] = Lazy({"model": paired_model})


@pytest.mark.parametrize("policy", ["prefix", "arrived"])
@pytest.mark.parametrize("names", [[], ["a"], ["b", "c"], ["b", "a"], ["c", "b", "a"]])
def test_the_answer_is_the_librarys(service: Running, policy: str, names: list[str]) -> None:
    groups = {name: VALUES[name] for name in names}
    answer = service.post({"groups": groups}, policy=policy).json()
    assert timeless(answer) == expected(MODELS["model"], groups, policy=policy)
    assert set(answer["groups"]) | set(answer["missing"]) <= {"a", "b", "c"}


def test_descriptions_and_plans_name_raw_groups_alone(service: Running) -> None:
    received = service.get("/models/model").json()
    assert [group["name"] for group in received["groups"]] == ["a", "b", "c"]
    assert sorted(name for step in received["steps"] for name in step["adds"]) == ["a", "b", "c"]
    pairs = [pair for step in received["steps"] for pair in step.get("pairs", [])]
    assert sorted(pairs) == [["a0", "a1"], ["a0", "b0"]]
    assert received["total_cost"] == 6.0
    plan = service.get("/models/model/plan", have="a").json()
    assert sorted(name for step in plan["steps"] for name in step["compute"]) == ["b", "c"]
