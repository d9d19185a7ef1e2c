"""What a group contributes alone is what a model that is fitted again without it loses; cancelling groups are named."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeClassifier, AnytimeRegressor
from anytime.errors import ValuesError
from anytime.evaluation.report import report
from anytime.evaluation.shapes import column_shapes
from anytime.inference.sharing import cancelling, group_sharing
from anytime.inference.subsets import arrived_model
from anytime.loaded import LoadedModel, load
from models.commands import Capture, document, output, ran

GROUPS = {"one": ["a", "b"], "two": ["c"], "three": ["d", "e"], "four": ["f"]}


def rows(count: int = 400, near: float = 1e-3, seed: int = 0, effect: float = 0.25) -> pd.DataFrame:
    """Columns: `c` and `d` are nearly the same, and the target depends on their difference."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(count, 6)), columns=list("abcdef"))
    frame["d"] = frame["c"] + near * rng.normal(size=count)
    frame["y"] = frame["a"] + 0.3 * frame["f"] + 0.5 * frame["c"] + 0.3 * rng.normal(size=count)
    frame["y"] += effect * (frame["c"] - frame["d"]) / near
    return frame


def features(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[list("abcdef")]


FRAME = rows()
X = features(FRAME)


def fitted(alpha: float) -> LoadedModel:
    return AnytimeRegressor(GROUPS, alpha=alpha).fit(X, FRAME["y"]).model_


@pytest.mark.parametrize("shape", [{}, {"basis": "hinge:2"}, {"pairs": 3, "cv": 3}], ids=str)
@pytest.mark.parametrize("responses", [1, 2])
def test_what_a_group_adds_alone_is_what_a_fit_without_it_loses(responses: int, shape: dict[str, Any]) -> None:
    frame = rows(near=0.3)
    Y = frame["y"] if responses == 1 else np.column_stack([frame["y"], frame["a"] - frame["e"]])
    whole = AnytimeRegressor(GROUPS, alpha=0.01, **shape).fit(features(frame), Y)
    sharing = {each.name: each for each in whole.model_.sharing()}
    assert set(sharing) == set(GROUPS)
    C, q = whole.fit_.gram.penalised(0.01)
    terms = whole.fit_.expansion.terms
    full = 0.5 * np.sum(q * np.linalg.solve(C, q))
    losses = {}
    for name in GROUPS:
        product = [g for g in terms.groups if g.name == name or name in g.requires]
        lost = {feature for group in product for feature in group.features}
        kept = [j for j, feature in enumerate(terms.features) if feature not in lost]
        part = 0.5 * np.sum(q[kept] * np.linalg.solve(C[np.ix_(kept, kept)], q[kept]))
        losses[name] = full - part
    assert list(sharing) == sorted(losses, key=lambda name: -losses[name])
    if responses == 1:
        unit = whole.fit_.prefixes.response_scale[0]
        for name, loss in losses.items():
            assert sharing[name].unique == pytest.approx(
                min(np.sqrt(2 * loss) * unit, sharing[name].strength), rel=1e-6
            )


def test_the_strength_is_the_deviation_of_the_contribution_and_shares_are_between_0_and_1() -> None:
    model = fitted(1e-6)
    answer = model.answer(X, explain=True)
    assert answer.contributions is not None
    for each in answer.sharing:
        assert each.strength == pytest.approx(answer.contributions.groups[each.name].std(), rel=1e-6)
        assert 0 <= each.shared <= 1
        assert each.unique <= each.strength
    assert model.answer(X).sharing == ()


def test_the_sharing_of_a_prefix_is_that_of_its_groups_whatever_was_asked_before() -> None:
    model = AnytimeRegressor(GROUPS, alpha="cv").fit(X, FRAME["y"]).model_
    assert len({step.alpha for step in model.manifest.steps}) > 1
    for prefix, groups in enumerate(model.needed):
        assert group_sharing(model, arrived=arrived_model(model, groups)) == group_sharing(replace(model), prefix)


def test_groups_that_cancel_are_named_with_the_remedy_and_a_larger_penalty_joins_them() -> None:
    model = fitted(1e-7)
    found = {each.name: each for each in model.sharing()}
    assert min(found["two"].strength, found["three"].strength) > 5 * FRAME["y"].std()
    assert found["two"].shared > 0.99
    assert (found["two"].partner, found["three"].partner) == ("three", "two")
    assert found["two"].correlation == pytest.approx(-1, abs=1e-3)
    note = model.answer(X, explain=True).note
    assert note == cancelling(model.sharing())
    assert "'three' and 'two'; read their sum" in str(note)
    assert escape(str(note)[1:]) in report(model)
    larger = fitted(0.1)
    assert cancelling(larger.sharing()) is None
    assert max(each.strength for each in larger.sharing()) < 2 * FRAME["y"].std()


def test_shapes_are_ordered_by_what_each_column_adds_alone() -> None:
    shapes = column_shapes(fitted(1e-4))
    assert [shape.unique for shape in shapes] == sorted((shape.unique or 0 for shape in shapes), reverse=True)
    strengths = [shape.strength for shape in shapes]
    assert strengths != sorted(strengths, reverse=True), "the columns that cancel are the strongest, and not the first"
    assert shapes[0].name == "a"


def test_a_model_without_covariances_has_none() -> None:
    model = fitted(1e-5)
    bare = type(model).of(replace(model, moments=None))
    assert bare.sharing() == ()
    assert bare.sharing(0) == ()
    with pytest.raises(ValuesError, match="prefix is 9; expected 0 to 4"):
        model.sharing(9)


def test_likelihoods_have_the_sharing_of_their_second_derivatives() -> None:
    found = {each.name: each for each in AnytimeClassifier(GROUPS, alpha=1e-6).fit(X, FRAME["y"] > 0).model_.sharing()}
    assert found["two"].shared > 0.99 > found["one"].shared


@pytest.mark.usefixtures("desk")
def test_the_command_shows_groups_and_columns(capsys: Capture) -> None:
    rows(effect=0.0).to_csv("t.csv", index=False)
    Path("g.json").write_text(json.dumps(GROUPS))
    call = ["train", "t.csv", "--groups", "g.json", "--target", "y", "--out"]
    output(capsys, *call, "m.safetensors", "--alpha", "1e-7", "--folds", "0")
    shown = output(capsys, "show", "m.safetensors", "--shapes")
    assert "contributions of collinear groups cancel: 'three' and 'two'" in shown
    values = document(capsys, "show", "m.safetensors", "--shapes")
    assert values["groups"] == list(map(asdict, load("m.safetensors").sharing()))
    said = ran(capsys, "predict", "m.safetensors", "t.csv", "--explain", "--out", "p.csv").err
    assert "contributions of collinear groups cancel" in said
    output(capsys, *call, "s.safetensors", "--one-se")
    assert cancelling(load("s.safetensors").sharing()) is None
