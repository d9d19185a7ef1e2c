"""`anytime train --pairs`: pairs in the model, in reports and in other commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeRegressor, load
from anytime.cli.main import main
from models.commands import Capture, document, output, refusal

GROUPS = {
    "groups": [
        {"name": "a", "features": ["a0", "a1"], "cost": 4.0},
        {"name": "b", "features": ["b0"], "cost": 0.5},
        {"name": "c", "features": ["c0"], "cost": 2.0},
    ]
}
TRAIN = ["train", "train.parquet", "--groups", "groups.json", "--target", "y", "--out", "m.safetensors"]


def rows(seed: int, count: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(count, 4)), columns=["a0", "a1", "b0", "c0"])
    frame["y"] = frame["a0"] + frame["a0"] * frame["b0"] + frame["a0"] * frame["a1"] + rng.normal(size=count)
    frame["up"] = (frame["y"] > 0).map({True: "yes", False: "no"})
    return frame


@pytest.fixture(autouse=True)
def desk(desk: Path) -> None:
    rows(0, 800).to_parquet("train.parquet")
    rows(1, 300).to_parquet("test.parquet")
    Path("groups.json").write_text(json.dumps(GROUPS))


def test_the_model_is_that_of_the_estimator(capsys: Capture) -> None:
    out = output(capsys, *TRAIN, "--pairs", "2", "--folds", "4", "--test", "test.parquet")
    assert "pairs: 'a0 * a1', 'a0 * b0'" in out
    model = load("m.safetensors")
    frame = rows(0, 800)
    found = AnytimeRegressor(GROUPS, alpha="cv", cv=4, pairs=2).fit(frame[["a0", "a1", "b0", "c0"]], frame["y"])
    assert model.manifest.steps == found.model_.manifest.steps
    np.testing.assert_allclose(model.prefixes.packed, found.model_.prefixes.packed, rtol=1e-9)
    steps = document(capsys, "show", "m.safetensors")["steps"]
    assert {name for step in steps for name in step["adds"]} == {"a", "b", "c"}
    assert sorted(pair for step in steps for pair in step.get("pairs", [])) == [["a0", "a1"], ["a0", "b0"]]


def test_constant_products_do_not_count_as_informative(capsys: Capture) -> None:
    cells = np.array([*("xy", "yx", "yy", "zx", "zz")] * 160)  # the product of a1=z and b0=y is constant
    frame = rows(0, 800).assign(a1=[cell[0] for cell in cells], b0=[cell[1] for cell in cells])
    frame["y"] = frame["c0"] + 9.0 * (cells == "yx")
    frame.to_parquet("train.parquet")
    out = output(capsys, *TRAIN, "--pairs", "1")
    model = load("m.safetensors")
    constant = model.terms.features.index("a1=z * b0=y")
    assert model.prefixes.mean[constant] == 0.0
    # a0, c0 and three levels of each of a1 and b0; last levels, which the others determine, are not listed
    assert "4 columns, 8 terms: 8 informative, 0 constant, 0 collinear with others" in out
    assert "pairs: 'a1 * b0' (4 terms)" in out


def test_auto_and_a_likelihood_and_a_stopping_rule() -> None:
    assert main([*TRAIN, "--pairs", "auto", "--validation", "test.parquet"]) == 0
    assert len(load("m.safetensors").groups.pairs) >= 2
    binary = [word.replace("y", "up") if word == "y" else word for word in TRAIN]
    assert main([*binary, "--pairs", "2", "--family", "binomial", "--alpha", "0.01"]) == 0
    model = load("m.safetensors")
    assert [tuple(side.column for side in pair) for pair in model.groups.pairs] == [("a0", "a1"), ("a0", "b0")]


def test_other_commands_handle_pairs_or_refuse_them_in_one_line(capsys: Capture) -> None:
    assert main([*TRAIN, "--pairs", "2"]) == 0
    for name, *options in (
        ["evaluate", "test.parquet"],
        ["export", "--to", "json"],
        ["resequence", "--without", "c", "--out", "n.safetensors"],
    ):
        assert main([name, "m.safetensors", *options]) == 0
    assert load("n.safetensors").groups.pairs == load("m.safetensors").groups.pairs
    error = refusal(capsys, "certify", "m.safetensors", "--out", "c.safetensors")
    assert "error: model 'm' has pairs of columns, which certificates do not support" in error
