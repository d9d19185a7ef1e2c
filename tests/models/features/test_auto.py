"""Basis "auto": the octiles are learned once, and cross-validation selects how many hinges the model has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime import AnytimeClassifier, AnytimeRegressor, load
from anytime.errors import TrainingError
from anytime.features.bases import Choice
from anytime.features.expansion import Expansion
from anytime.features.learning import Sample, learned_groups
from anytime.groups import FeatureGroups, load_groups
from anytime.types import Float
from models.commands import Capture, output, refusal
from models.present import present
from models.refusals import assert_refused

GROUPS: dict[str, Any] = {
    "groups": [
        {"name": "a", "features": ["bent", "kind"], "cost": 1.0},
        {"name": "b", "features": ["other", "steps"], "cost": 2.0},
    ]
}
ONE = load_groups({"groups": [{"name": "g", "features": ["x"], "cost": 1}]})
SIZES = (0, 1, 3, 7)


def frame(bends: int, rows: int = 500) -> pd.DataFrame:
    """A response that has so many bends in `bent`; gaps, text and a column of few values."""
    rng = np.random.default_rng(bends)
    found = pd.DataFrame({"bent": rng.uniform(0, 1, rows), "other": rng.normal(size=rows)})
    found["kind"] = np.where(np.arange(rows) % 100 == 7, "rare", rng.choice(["x", "y"], rows))
    found["steps"] = rng.integers(0, 4, rows).astype(float)
    found["y"] = np.abs((found["bent"] * (bends + 1)) % 2 - 1) + 0.1 * found["other"] + 0.05 * rng.normal(size=rows)
    found.loc[rng.random(rows) < 0.1, "bent"] = np.nan
    return found


def mean_error(errors: Float | None, costs: Float) -> float:
    """The error that a client observes on average, if it is interrupted at any cost."""
    return float(present(errors)[:-1] @ np.diff(costs) / costs[-1])


def size_of(groups: FeatureGroups) -> str:
    (basis,) = {groups.bases[name].basis for name in ("bent", "other", "steps")}
    return str(basis)


@given(st.lists(st.integers(0, 6), max_size=40))
def test_the_hinges_of_each_size_are_those_that_the_sample_alone_would_give(values: list[int]) -> None:
    sample = Sample({"x": np.array(values, dtype=float)})
    auto = Expansion.of(learned_groups(ONE, sample, "auto"))
    rows = np.append(np.linspace(-1, 7, 33), np.nan)[:, np.newaxis]
    for size in SIZES[1:]:
        direct = Expansion.of(learned_groups(ONE, sample, f"hinge:{size}", "auto"))
        found, spans = auto.reduced(Choice(size))
        terms = [start for start, _ in spans]
        assert (found.columns, found.groups) == (direct.columns, direct.groups)
        np.testing.assert_array_equal(auto.expand(rows)[:, terms], direct.expand(rows))


def test_without_hinges_a_column_has_one_term_even_if_it_has_common_values() -> None:
    auto = Expansion.of(learned_groups(ONE, Sample({"x": np.repeat([0.0, 1.0, 2.0, 3.0], 10)}), "auto"))
    assert auto.reduced(Choice(1))[0].terms.features == ("x", "x>1.5", "x=0", "x=1", "x=2", "x=3")
    line, [(term, _)] = auto.reduced(Choice(0))
    assert line.terms.features == ("x",)
    np.testing.assert_array_equal(auto.expand(np.array([[2.0], [0.5]]))[:, term], [2.0, 0.5])


@pytest.mark.parametrize("bends", [0, 1, 3, 7])
def test_the_size_with_the_least_error_is_selected_and_the_model_is_that_of_the_size(bends: int) -> None:
    table = frame(bends)
    auto = AnytimeRegressor(GROUPS, basis="auto", clamp=0, alpha="cv").fit(table, table["y"])
    bases = ["linear", *(f"hinge:{K}" for K in SIZES[1:])]
    single = [AnytimeRegressor(GROUPS, basis=basis, clamp=0, alpha="cv").fit(table, table["y"]) for basis in bases]
    errors = [mean_error(m.fit_.errors, m.costs_) for m in single]
    best = single[int(np.argmin(errors))]
    assert size_of(auto.model_.groups) == bases[int(np.argmin(errors))]
    assert auto.model_.groups.bases == best.model_.groups.bases
    assert auto.sequence_ == best.sequence_
    np.testing.assert_allclose(auto.predict(table), best.predict(table), rtol=1e-7, atol=1e-7)


def test_a_likelihood_has_the_size_that_least_squares_selects_on_its_moments() -> None:
    table = frame(1)
    classes = np.where(table["y"] > table["y"].median(), "up", "down")
    squares = AnytimeClassifier(GROUPS, basis="auto", family="gaussian", cv=3).fit(table, classes)
    logistic = AnytimeClassifier(GROUPS, basis="auto", cv=3).fit(table, classes)
    assert logistic.model_.groups.bases == squares.model_.groups.bases
    direct = AnytimeClassifier(GROUPS, basis=size_of(logistic.model_.groups), cv=3).fit(table, classes)
    np.testing.assert_allclose(logistic.predict_proba(table), direct.predict_proba(table), atol=1e-5)


@pytest.mark.parametrize("rows", [90, 1200])
def test_classes_in_few_rows_have_hinges_only_if_their_deviance_needs_them(rows: int) -> None:
    X = pd.DataFrame({"place": np.arange(rows, dtype=float), "noise": np.random.default_rng(0).normal(size=rows)})
    classes = np.array(["a", "b", "c"])[3 * np.arange(rows) // rows]  # a line separates them, which fits none of them
    groups = {"groups": [{"name": name, "features": [name], "cost": 1} for name in X]}
    bent = np.where(np.abs(X["place"] / rows - 0.5) < 0.25, "in", "out")
    sizes = {}
    for family, y in (("gaussian", classes), ("multinomial", classes), ("binomial", bent)):
        fitted = AnytimeClassifier(groups, family=family, random_state=0).fit(X, y)
        sizes[family] = present(present(fitted.model_.manifest.selected).hinges)
    assert min(sizes["gaussian"], sizes["binomial"]) > 0
    assert sizes["multinomial"] == (0 if rows == 90 else sizes["gaussian"])


def test_a_size_at_which_no_group_exceeds_epsilon_is_not_selected() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.uniform(-1, 1, 400)})  # the response has no linear part
    y = np.abs(X["x"]) + 0.02 * rng.normal(size=400)
    assert_refused(
        lambda: AnytimeRegressor(ONE, basis="hinge:0", epsilon=0.2, cv=5).fit(X, y), "longest is 0", error=TrainingError
    )
    found = AnytimeRegressor(ONE, basis="auto", epsilon=0.2, cv=5).fit(X, y)
    assert str(found.model_.groups.bases["x"].basis).startswith("hinge")
    assert_refused(
        lambda: AnytimeRegressor(ONE, basis="auto", epsilon=5.0, cv=5).fit(X, y),
        "choose a smaller epsilon",
        error=TrainingError,
    )


@pytest.mark.usefixtures("desk")
def test_the_command_selects_the_same_from_a_table_from_moments_and_with_a_validation_table(capsys: Capture) -> None:
    frame(3).to_csv("t.csv", index=False)
    frame(3, 80).to_csv("v.csv", index=False)
    Path("g.json").write_text(str(GROUPS).replace("'", '"'))
    base = ["t.csv", "--groups", "g.json", "--target", "y", "--basis", "auto"]
    output(capsys, "train", *base, "--out", "m.safetensors")
    output(capsys, "train", *base, "--out", "v.safetensors", "--validation", "v.csv")
    output(capsys, "moments", *base, "--out", "t.moments")
    output(capsys, "train", "t.moments", "--out", "n.safetensors")
    models = [load(f"{name}.safetensors") for name in "mnv"]
    assert [size_of(model.groups) for model in models] == ["hinge:7"] * 3
    np.testing.assert_allclose(models[0].prefixes.packed, models[1].prefixes.packed, rtol=1e-7, atol=1e-11)
    unfolded = ["--folds", "0", "--alpha", "0.1", "--out", "x.safetensors"]
    output(capsys, "train", *base, *unfolded)
    assert load("x.safetensors").groups.bases["bent"].basis == "linear"
    Path("g.json").write_text(json.dumps({**GROUPS, "bases": {"bent": {"basis": "auto"}}}))
    said = refusal(capsys, "train", *base, *unfolded)
    assert "basis 'auto' needs folds to select the number of hinges; give at least 2" in said
