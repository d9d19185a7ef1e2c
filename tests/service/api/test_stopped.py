"""Models that training stopped early: served like any other."""

from __future__ import annotations

import numpy as np
import pytest

from anytime.estimators import AnytimeRegressor
from anytime.groups import load_groups
from anytime.model.model import Model
from service.serving import Running, expected, timeless

GROUPS = {
    "groups": [
        {"name": "noise", "features": ["n0", "n1"], "cost": 1.0},
        {"name": "visit", "features": [], "cost": 2.0},
        {"name": "test", "features": ["t0"], "cost": 1.0, "requires": ["visit"]},
        {"name": "hog", "features": ["h0", "h1"], "cost": 4.0},
    ]
}
VALUES = {"test": [1.5], "hog": [0.5, -1.0]}


@pytest.fixture(scope="module")
def model() -> Model:
    """Three steps were to be had; the noise was left out."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 5))
    y = X @ [0.01, 0.0, 2.0, 1.0, -1.0] + 0.1 * rng.normal(size=80)
    return AnytimeRegressor(load_groups(GROUPS), epsilon=0.05, alpha=1e-4).fit(X, y).model_


def test_the_summary_tells_that_it_was_stopped(model: Model, service: Running) -> None:
    reported = service.get("/models/model").json()
    assert model.manifest.stopped is not None
    assert reported["stopped"] == model.manifest.stopped.model_dump(mode="json")
    assert reported["stopped"]["left_out"] == ["noise"]
    assert [group["name"] for group in reported["groups"]] == ["visit", "test", "hog"]


@pytest.mark.parametrize("names", [["test"], ["hog"], ["test", "hog"]])
@pytest.mark.parametrize("policy", ["prefix", "arrived"])
def test_it_answers_as_the_library_does(model: Model, service: Running, names: list[str], policy: str) -> None:
    values = {name: VALUES[name] for name in names}
    assert timeless(service.post({"groups": values}, policy=policy).json()) == expected(model, values, policy=policy)


def test_a_group_that_was_left_out_is_refused_by_name(service: Running) -> None:
    reported = service.post({"groups": {"noise": [1.0, 2.0]}})
    assert reported.status_code == 422
    assert "'noise'" in reported.text
