"""The order of groups for several models, compared with all orders."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from anytime.errors import ExtractorError
from anytime.estimators import AnytimeRegressor
from anytime.inference.planning import planned
from anytime.model.model import Model
from models.refusals import assert_refused

COSTS = {"a": 1.0, "b": 2.0, "c": 4.0, "p": 3.0, "d": 1.0}
FEATURES = {"a": ["a0", "a1"], "b": ["b0"], "c": ["c0", "c1", "c2"], "p": [], "d": ["d0"]}


def a_model(weights: dict[str, float], groups: str = "abcpd", requires: dict[str, list[str]] | None = None) -> Model:
    requires = {"d": ["p"]} if requires is None else requires
    rng = np.random.default_rng(3)
    described = [
        {"name": name, "features": FEATURES[name], "cost": COSTS[name], "requires": requires.get(name, [])}
        for name in groups
    ]
    columns = [feature for name in groups for feature in FEATURES[name]]
    X = rng.normal(size=(300, len(columns)))
    y = X @ np.array([weights.get(column[0], 0.0) for column in columns]) + 0.1 * rng.normal(size=300)
    return AnytimeRegressor({"cost_unit": "ms", "groups": described}, alpha=1e-3, basis="linear").fit(X, y).model_


def order_of(models: list[Model], extractors: str = "abcd", order: list[str] | None = None) -> list[str]:
    tasks = planned(models, [model.steps for model in models], list(extractors), order)
    return [task.group for step in tasks for task in step]


def area(models: list[Model], order: list[str]) -> float:
    """The area under the sum of the models' errors, by the definition, while groups are computed in an order."""
    total, done, spent_on = 0.0, set[str](), set[str]()
    for name in order:
        error = 0.0
        for model in models:
            prefix = 0
            while prefix < model.steps and done >= set(model.manifest.steps[prefix].adds) - {"p"}:
                prefix += 1
            error += 1.0 - float(model.explained_shares[prefix])
        needed = {name, "p"} if name == "d" else {name}
        total += error * sum(COSTS[each] for each in needed - spent_on)
        spent_on |= needed
        done.add(name)
    return total


def test_one_model_has_its_own_order_with_groups_that_others_use() -> None:
    model = a_model({"a": 1.0, "b": 3.0, "c": 0.5, "d": 0.8})
    assert order_of([model]) == [name for step in model.manifest.steps for name in step.adds if name != "p"]
    tasks = {task.group: task for step in planned([model], [model.steps], "abcpd") for task in step}
    assert (tasks["d"].uses, tasks["d"].needs, tasks["p"].shared) == (("p",), frozenset("p"), True)
    assert list(tasks).index("p") < list(tasks).index("d")


@pytest.mark.parametrize("seed", range(12))
def test_an_order_for_several_models_is_nearly_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    models = [a_model(dict(zip("abcd", rng.exponential(1.0, 4), strict=True))) for _ in range(2 + seed % 2)]
    found = order_of(models)
    assert sorted(found) == list("abcd")
    assert area(models, found) <= 1.25 * min(area(models, list(order)) for order in permutations("abcd"))
    assert area(models, found) <= max([area(models, order_of([model])) for model in models]) + 1e-9


def test_a_group_of_one_model_alone_is_in_the_order() -> None:
    first, second = a_model({"a": 1.0, "b": 0.1}, "ab"), a_model({"a": 0.1, "c": 2.0}, "ac")
    assert sorted(order_of([first, second], "abc")) == ["a", "b", "c"]


def test_a_budget_limits_each_model() -> None:
    model = a_model({"a": 1.0, "b": 3.0, "c": 0.5, "d": 0.8})
    tasks = planned([model], [1], "abcd")
    assert [[task.group for task in step] for step in tasks] == [list(model.manifest.steps[0].adds)]
    assert planned([model, model], [0, 0], "abcd") == []


def test_an_order_may_be_given() -> None:
    assert order_of([a_model({"a": 1.0, "b": 3.0})], order=["c", "d", "a", "b"]) == ["c", "d", "a", "b"]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (["a", "b", "d"], "order lacks 'c'"),
        (["a", "b", "c", "d", "a"], "order has group 'a' twice"),
        (["a", "b", "c", "d", "e"], "order has 'e', which is no group"),
        (["d", "p", "a", "b", "c"], "group 'd' before 'p', which it requires"),
    ],
)
def test_an_order_that_is_none_is_refused(order: list[str], message: str) -> None:
    extractors = "abcpd" if "p" in order else "abcd"
    assert_refused(lambda: order_of([a_model({"a": 1.0})], extractors, order), message, error=ExtractorError)


def test_models_must_agree_on_a_group() -> None:
    assert_refused(
        lambda: order_of([a_model({"a": 1.0}), a_model({"a": 1.0}, requires={"d": ["a"]})]),
        "group 'd' of model ",
        " has other features or requirements",
        error=ExtractorError,
    )
