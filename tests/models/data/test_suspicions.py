"""Suspicious columns of a training table are named with a remedy, and others are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score

from anytime import AnytimeClassifier, AnytimeRegressor, load
from anytime.cli.main import main
from anytime.data.suspicions import ALONE, MIN_LEVEL, _area, _Labels, _predicts, suspicions
from anytime.errors import AnytimeWarning, in_python
from anytime.features.learning import Sample
from models.commands import Capture, output
from models.properties import quick

ROWS = 400
WORDS = {
    "wild": "wild values",
    "alone": "predicts the target almost perfectly",
    "identifier": "like an identifier or a row number",
    "gaps": "missing values predict the target",
}


def clean(seed: int, rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "normal": rng.normal(size=rows),
            "tail": np.exp(rng.normal(size=rows)),
            "flat": rng.uniform(size=rows),
            "count": rng.poisson(3.0, rows),
            "rare": (rng.random(rows) < 0.02) * rng.exponential(size=rows),
            "sparse": np.where(rng.random(rows) < 0.2, np.nan, rng.normal(size=rows)),
            "town": rng.choice(["Oslo", "Rome", "Lima"], rows),
        }
    )


def found(frame: pd.DataFrame, y: Any) -> tuple[str, ...]:
    y = np.asarray(y)
    columns = {name: frame[name].to_numpy() for name in frame} | {"y": y if y.dtype.kind != "U" else y.astype(object)}
    return suspicions(Sample(columns, numbers=np.arange(len(frame))), list(frame), ["y"])


def kinds(texts: tuple[str, ...]) -> Iterator[str]:
    for text in texts:
        yield next(kind for kind, words in WORDS.items() if words in text)


@pytest.mark.parametrize("seed", range(30))
def test_an_ordinary_table_is_not_suspicious(seed: int) -> None:
    frame, rng = clean(seed), np.random.default_rng(seed + 1000)
    score = frame["normal"] + frame["flat"] + rng.normal(size=ROWS)
    for y in (score, np.exp(score / 2), score > 0, np.where(score > 1, "high", np.where(score < 0, "low", "middle"))):
        assert found(frame, y) == ()


@quick(30)
@given(
    seed=st.integers(0, 1000),
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=3, unique=True),
    size=st.floats(1e3, 1e6),
    column=st.sampled_from(["normal", "flat", "sparse", "y"]),
)
def test_wild_cells_are_named_with_their_rows(seed: int, rows: list[int], size: float, column: str) -> None:
    frame = clean(seed).assign(y=np.random.default_rng(seed).normal(size=ROWS))
    frame.loc[rows, column] = size * np.where(np.arange(len(rows)) % 2, -1.0, 1.0) * (1 + np.arange(len(rows)))
    (text,) = (each for each in found(frame.drop(columns="y"), frame["y"]) if WORDS["wild"] in each)
    assert f"{column!r} (" in text
    assert all(f"in row {row}" in text for row in rows)
    assert text.index(f"in row {rows[-1]}") <= text.index(f"in row {rows[0]}"), "the worst value is first"


def test_only_the_worst_columns_are_described() -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(ROWS, 9)), columns=list("abcdefghi"))
    for j, name in enumerate(frame):
        frame.loc[j, name] = 1e4 * 2.0**j
    (text,) = found(frame, np.random.default_rng(1).normal(size=ROWS))
    assert text.startswith("wild values, far from all others: 'i' (2.56e+06 in row 8), 'h' (")
    assert "and 6 more" in text


COPIES: dict[str, Callable[[Any], Any]] = {
    "linear": lambda y: 3.0 - 2.0 * y + 1e-3 * np.random.default_rng(0).normal(size=len(y)),
    "threshold": lambda y: np.where(y > 0, 5.0, 1.0) + np.random.default_rng(0).uniform(size=len(y)),
    "levels": lambda y: np.where(y > 0, "paid", "due").astype(object),
    "flag": lambda y: y > 0,
    "number": lambda y: np.where(y > 0, 7, 3),
}


@pytest.mark.parametrize("copy", COPIES)
def test_a_column_that_predicts_alone_is_named(copy: str) -> None:
    y = np.random.default_rng(103).normal(size=ROWS)
    frame = clean(3).assign(leak=COPIES[copy](y))
    (text,) = found(frame, y if copy == "linear" else np.where(y > 0, "yes", "no"))
    assert text.startswith("'leak' alone predicts the target almost perfectly")
    if copy != "linear":
        many = np.where(y > 0, "yes", np.where(np.arange(ROWS) % 2, "no", "never"))
        assert found(frame, many) == (), "it does not tell two of three classes apart"


def test_the_area_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    x, codes = rng.integers(0, 9, 200).astype(float), rng.integers(0, 2, 200)
    assert _area(rankdata(x), codes) == pytest.approx(roc_auc_score(codes, x), rel=1e-12)


@given(st.integers(0, 2**32 - 1))
@quick(60)
def test_levels_that_determine_classes_are_those_of_a_literal_count(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(20, 60))
    levels = rng.integers(0, rng.integers(2, rows), rows)
    classes = np.where(
        rng.random(rows) < 0.1 * rng.integers(0, 2), rng.integers(0, 9, rows), levels % rng.integers(3, 9)
    )
    if len(np.unique(classes)) < 3 or len(np.unique(levels)) < 2:
        return
    words, kinds = np.array([f"level {each}" for each in levels]), np.array([f"class {each}" for each in classes])
    most = sum(max(np.sum((levels == level) & (classes == kind)) for kind in set(classes)) for level in set(levels))
    expected = len(set(levels)) * MIN_LEVEL <= rows and most >= ALONE * rows
    assert _predicts(words, _Labels.of(kinds)) == expected


@pytest.mark.parametrize("numbers", [np.arange(ROWS) + 17, np.random.default_rng(0).permutation(ROWS)])
def test_numbers_of_rows_are_named(numbers: Any) -> None:
    (text,) = found(clean(0).assign(id=numbers), np.random.default_rng(1).normal(size=ROWS))
    assert text.startswith("'id' has a different whole number in every row")


def test_gaps_that_predict_the_target_are_named_with_what_they_explain() -> None:
    rng = np.random.default_rng(105)
    y = rng.normal(size=ROWS)
    gap = (y > 0.5) & (rng.random(ROWS) < 0.7)
    frame = clean(5).assign(lab=np.where(gap, np.nan, rng.normal(size=ROWS)))
    for target in (y, y > 0, np.where(y > 0.5, "high", "low")):
        (text,) = found(frame, target)
        numbers = np.asarray(target == "high" if np.asarray(target).dtype.kind == "U" else target, dtype=float)
        explained = np.corrcoef(gap, numbers)[0, 1] ** 2
        assert f"'lab' ({100 * gap.mean():.2g} % of its values; they explain {explained:.2g})" in text


@pytest.mark.parametrize("basis", ["auto", "linear", "hinge:3"])
@pytest.mark.usefixtures("desk")
def test_both_doors_say_the_same_and_the_model_keeps_it(basis: str, capsys: Capture) -> None:
    rng = np.random.default_rng(6)
    frame = clean(6)
    y = np.asarray(frame["normal"] + rng.normal(size=ROWS))
    frame["leak"], frame["id"] = 2.0 * y + 1e-3 * rng.normal(size=ROWS), np.arange(ROWS)
    frame.loc[[4, 90], "flat"] = [1e5, -1e6]
    with pytest.warns(AnytimeWarning) as raised:
        AnytimeRegressor(basis=basis).fit(frame, y)
    warned = [str(each.message) for each in raised if issubclass(each.category, AnytimeWarning)]
    frame.assign(y=y).to_csv("t.csv", index=False)
    assert main(["train", "t.csv", "--target", "y", "--basis", basis, "--out", "m.safetensors"]) == 0
    stored = load("m.safetensors").manifest.warnings
    assert list(kinds(tuple(each for each in warned if any(words in each for words in WORDS.values())))) == [
        "wild",
        "alone",
        "identifier",
    ]
    assert set(warned) <= set(map(in_python, stored))
    assert not [text for text in stored if f"warning: {text}" not in output(capsys, "show", "m.safetensors")]


def test_classes_are_compared_with_text_and_numbers() -> None:
    y = np.random.default_rng(8).integers(0, 3, ROWS)
    with pytest.warns(AnytimeWarning, match="'code' alone predicts the target"):
        AnytimeClassifier().fit(clean(8).assign(code=np.array(["p", "q", "r"])[y]), y)
