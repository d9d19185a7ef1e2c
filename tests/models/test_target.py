"""What a target is: labels stay what they are, and a word among numbers is refused by its cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime.cli.main import main
from anytime.data.formats import open_table
from anytime.data.survey import check_words, settle_target, survey
from anytime.target import labels

ROWS = 120
DECIMALS = [f"{value:.3f}" for value in np.random.default_rng(0).normal(size=ROWS)]
WHOLE = [str(value) for value in np.random.default_rng(1).poisson(90, ROWS)]
RATINGS = [str(value) for value in np.random.default_rng(2).integers(1, 8, ROWS)]


def written(target: list[Any], suffix: str) -> Path:
    frame = pd.DataFrame({"a": np.arange(float(ROWS)), "y": target})
    path = Path(f"t{suffix}")
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    return path


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("word", ["unknown", "-", ".", "<0.5", "n.d."])
@pytest.mark.parametrize("numbers", [DECIMALS, WHOLE, RATINGS], ids=["decimals", "whole numbers", "ratings"])
@pytest.mark.parametrize("command", ["train", "moments"])
def test_a_word_in_a_target_of_numbers_is_refused_by_its_cell(
    command: str, numbers: list[str], word: str, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written([*numbers[:50], word, *numbers[51:]], suffix)
    out = {"train": "m.safetensors", "moments": "m.moments"}[command]
    for task in ("auto", "regression"):
        assert main([command, str(path), "--target", "y", "--task", task, "--out", out]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert f"target 'y' holds numbers, and text, as {word!r} in row 50 (counted from 0); expected" in error
        assert error.endswith("state --text y if they are classes")
    assert not Path(out).exists()


CLASSES = {
    "words": ["u", "v", "w"] * 40,
    "grades": ["K", "1", "2", "3"] * 30,
    "codes": ["1", "2", "3a", "3b"] * 30,
    "stated": [*DECIMALS[1:], "unknown"],
    "booleans": [True, False] * 60,
    "whole numbers": [1, 2] * 60,
    "a dictionary": pd.Categorical([*RATINGS[1:], "unknown"]),
}


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("target", CLASSES)
def test_labels_of_a_table_stay_labels(target: str) -> None:
    table = open_table(written(CLASSES[target], ".parquet"))
    found = survey(table, ["y"], types={"y": "text"} if target == "stated" else {})
    check_words(table, found, {"y"} if target == "stated" else {})
    assert set(settle_target(found).classes or ()) == set(CLASSES[target])


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (pd.Series([True, False], dtype="boolean"), "b"),
        (np.array([True, False], dtype=object), "b"),
        ([np.bool_(True), True], "b"),
        (pd.Series([1, 2], dtype="Int64"), "i"),
        (np.array([1, 2], dtype=object), "i"),
        (pd.Series(["a", "b"], dtype="string"), "O"),
        (np.array([1, 2], dtype=np.int8), "i"),
        (np.array([1.5, 2]), "f"),
        (np.array([True, 1], dtype=object), "O"),
        (np.array([1, "a"], dtype=object), "O"),
    ],
    ids=repr,
)
def test_classes_keep_their_own_type(given: Any, kind: str) -> None:
    found = labels(given)
    assert found.dtype.kind == kind
    assert found.tolist() == (given if isinstance(given, list) else given.tolist())
