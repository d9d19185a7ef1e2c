"""What if a group cost more, or were not there: the model that training gives then, next to the model as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeClassifier, AnytimeRegressor, load
from anytime.cli.main import main
from anytime.errors import GroupsError, TrainingError, ValuesError
from anytime.loaded import LoadedModel
from models.commands import Capture, document, output
from models.refusals import assert_refused

pytestmark = pytest.mark.usefixtures("linear_by_default")

GROUPS: dict[str, Any] = {
    "cost_unit": "ms",
    "groups": [
        {"name": "a", "features": ["x0", "x1"], "cost": 4.0},
        {"name": "visit", "features": [], "cost": 1.0},
        {"name": "b", "features": ["x2"], "cost": 0.5, "requires": ["visit"]},
        {"name": "c", "features": ["x3"], "cost": 2.0},
    ],
}


def rows() -> pd.DataFrame:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 4)), columns=["x0", "x1", "x2", "x3"])
    frame["y"] = frame.sum(axis=1) + np.random.default_rng(1).normal(size=200)
    frame["kind"] = np.where(frame["y"] > 0, "up", "down")
    return frame


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return AnytimeRegressor(GROUPS, alpha=1e-3).fit(rows()[["x0", "x1", "x2", "x3"]], rows()["y"]).model_


def test_the_changed_model_is_the_one_that_training_gives(model: LoadedModel) -> None:
    found = model.what_if(costs={"c": 20.0, "a": "0.001 s"}, without=["b"], budgets=[1, 5, 100])
    costs = {"a": 1.0, "visit": 1.0, "c": 20.0}
    left = [group | {"cost": costs[group["name"]]} for group in GROUPS["groups"] if group["name"] in costs]
    retrained = (
        AnytimeRegressor(GROUPS | {"groups": left}, alpha=1e-3).fit(rows()[["x0", "x1", "x3"]], rows()["y"]).model_
    )
    assert [step.group for step in found.after.manifest.steps] == [step.group for step in retrained.manifest.steps]
    for each in found.budgets:
        before, after = (m.affordable(each.budget) for m in (model, retrained))
        assert each.groups == (model.computed[before], retrained.computed[after])
        assert each.costs == (model.costs[before], retrained.costs[after])
        r2 = np.array(each.r2, dtype=float)
        np.testing.assert_allclose(r2, np.array([model.expected(before).r2, retrained.expected(after).r2], dtype=float))
        one, other = map(set, each.groups)
        assert ({*each.enters}, {*each.leaves}) == (other - one, one - other)
        np.testing.assert_allclose(np.array(each.loss, dtype=float), r2[0] - r2[1])
    assert found.budgets[-1].shares[0] == 1.0
    assert "what" not in repr(found)
    assert "c costs 20, a costs 1, without b" in repr(found)


def test_without_budgets_half_and_all_of_the_cost_are_compared(model: LoadedModel) -> None:
    assert [each.budget for each in model.what_if(without=["c"]).budgets] == [3.75, 7.5]
    nothing = model.what_if()
    assert nothing.after is nothing.before


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"without": ["nix"]}, GroupsError, "there is no group 'nix'"),
        ({"costs": {"nix": 1}}, GroupsError, "there is no group 'nix'"),
        ({"without": ["visit"]}, GroupsError, "group 'b' requires 'visit'"),
        ({"without": ["a", "visit", "b", "c"]}, GroupsError, "all groups are left out"),
        ({"costs": {"a": -1}}, GroupsError, "the cost of group 'a' is -1"),
        ({"costs": {"a": "dear"}}, GroupsError, "the cost of group 'a' is 'dear'; expected a number"),
        ({"costs": {"a": "5 dollars"}}, GroupsError, "the costs are in 'dollars', 'ms'; expected one unit"),
        ({"budgets": [-1]}, ValuesError, "budget is -1"),
        ({"costs": {"b": 1}, "without": ["b"]}, GroupsError, "'b' has a new cost and is left out; expected one of"),
    ],
)
def test_a_change_that_does_not_fit_is_one_line(
    model: LoadedModel, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    assert_refused(lambda: model.what_if(**changes), message, error=kind)


@pytest.fixture
def desk(desk: Path, model: LoadedModel) -> Path:
    model.save("m.safetensors")
    rows().to_csv("t.csv", index=False)
    X = rows()[["x0", "x1", "x2", "x3"]]
    AnytimeClassifier(GROUPS, alpha=1e-2).fit(X, rows()["kind"]).save("classes.safetensors")
    return desk


def test_the_command_prints_both_curves_and_the_budgets(desk: Path, capsys: Capture) -> None:
    words = ["what-if", "m.safetensors", "--without", "c", "--cost", "a=9ms", "--budget", "6"]
    before = sorted(desk.iterdir())
    assert "model, a costs 9, without c (ms); r2 on the training rows" in output(capsys, *words)
    values = document(capsys, *words)
    found = load("m.safetensors").what_if(costs={"a": 9.0}, without=["c"], budgets=[6])
    expected = np.array([found.after.expected(k).r2 for k in range(found.after.steps + 1)], dtype=float)
    np.testing.assert_allclose([row["r2"] for row in values["after"]], expected)
    assert values["budgets"][0]["leaves"] == list(found.budgets[0].leaves)
    assert sorted(desk.iterdir()) == before


def test_one_group_or_budget_needs_no_list(model: LoadedModel) -> None:
    assert model.what_if(without=["c", "c"]).changes == model.what_if(without="c").changes == "without c"
    assert model.what_if(budgets=4).budgets == model.what_if(budgets=[4]).budgets
    assert_refused(lambda: model.what_if(budgets="all"), "budget is 'all'", error=ValuesError)  # type: ignore[arg-type]


def test_a_likelihood_needs_its_rows(desk: Path, capsys: Capture) -> None:
    assert_refused(lambda: load("classes.safetensors").what_if(without=["c"]), "add data=", error=TrainingError)
    words = ["what-if", "classes.safetensors", "--without", "c", "--data", "t.csv", "--budget", "4"]
    assert "without c" in output(capsys, *words)


def test_show_says_what_a_budget_buys(desk: Path, capsys: Capture) -> None:
    model = load("m.safetensors")
    first = model.manifest.steps[0]
    shown = output(capsys, "show", "m.safetensors", "--budget", "0", "--budget", "100")
    assert "budget 0 ms: no group (the base rate)" in shown
    assert f"next: {' + '.join(first.adds)} costs {first.cost:g} ms and adds" in shown
    assert "these are all steps" in shown
    (row,) = document(capsys, "show", "m.safetensors", "--budget", "2")["budgets"]
    assert row["groups"] == list(model.computed[model.affordable(2)])


def test_resequence_takes_one_cost_without_a_file(desk: Path) -> None:
    assert main(["resequence", "m.safetensors", "--cost", "c=50", "--out", "r.safetensors"]) == 0
    changed = load("r.safetensors")
    assert changed.manifest.steps[-1].group == "c"
    assert changed.costs[-1] == 55.5
