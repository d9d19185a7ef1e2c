"""The data sets of the experiments: parts and splits, random groups, stand-ins, and their natural measures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from sklearn.metrics import accuracy_score

from anytime.errors import AnytimeError
from anytime.groups import FeatureGroups, load_groups
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime_reproduction.experiment import Setting
from anytime_reproduction.sets import (
    FILES,
    RealSet,
    SetName,
    detection_stand_in,
    load_set,
    ranking_stand_in,
    read_yahoo,
    regrouped,
    regrouping,
    small_ranking_stand_in,
)
from models.present import present
from models.properties import quick
from models.refusals import assert_refused

NAMES: tuple[SetName, ...] = ("kddcup99", "yahoo_sample", "mq2008", "boston_housing")


def singles(costs: list[float]) -> FeatureGroups:
    content = [{"name": f"f{j}", "features": [f"f{j}"], "cost": cost} for j, cost in enumerate(costs)]
    return load_groups({"groups": content})


def small_set(costs: list[float], rows: int = 60) -> RealSet:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(rows, len(costs))) + rng.normal(size=(rows, 1))
    y = X @ rng.normal(size=len(costs)) + rng.normal(size=rows)
    return RealSet("made", singles(costs), X, y, np.arange(rows) % 3, (((0, 1), 2), ((0, 2), 1)))


# Parts and splits.


def test_a_split_trains_on_its_parts_and_sees_the_other_from_there() -> None:
    data = small_set([1.0, 2.0, 3.0])
    split = data.split(0)
    train, test = data.part != 2, data.part == 2
    expected = Gram.of(moments_of(data.X[train], data.y[train]))
    np.testing.assert_allclose(split.gram.S, expected.S, atol=1e-12)
    np.testing.assert_allclose(split.gram.q, expected.q, atol=1e-12)
    assert split.test.tolist() == np.flatnonzero(test).tolist()
    Z = (data.X[test] - data.X[train].mean(axis=0)) / data.X[train].std(axis=0)
    np.testing.assert_allclose(split.held.S, Z.T @ Z / test.sum(), atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_without_real_data_a_stand_in_describes_itself_and_every_split_has_rows_to_train_on_and_others(
    name: SetName,
) -> None:
    data = load_set(name, Setting())
    assert any(word in data.what for word in ("scikit-learn", "synthetic"))
    assert np.isfinite(data.X).all()
    assert (data.groups.costs > 0).all()
    assert len(data.X) == len(data.y) == len(data.part)
    assert data.X.shape[1] == len(data.groups.features)
    for train, test in data.splits:
        assert test not in train
        assert np.isin(data.part, train).any()
        assert (data.part == test).any()


# Random groups.


@quick(max_examples=50)
@given(st.lists(st.sampled_from([1.0, 5.0, 20.0, 0.0]), min_size=1, max_size=25), st.integers(1, 6), st.integers(0, 99))
def test_random_groups_have_every_feature_once_at_one_price(costs: list[float], size: int, seed: int) -> None:
    data = small_set(costs, rows=5)
    found = regrouped(Setting(seed=seed), data, size)
    price = dict(zip(data.groups.features, costs, strict=True))
    assert sorted(found.groups.features) == sorted(data.groups.features)
    for group in found.groups.groups:
        prices = [price[feature] for feature in group.features]
        assert len(set(prices)) == 1
        assert group.cost == pytest.approx(sum(prices))
        assert len(prices) <= size
    assert found.groups.costs.sum() == pytest.approx(sum(costs))
    # Only the last group of a price may be smaller.
    full = sum(len(group.features) == size for group in found.groups.groups)
    assert full == sum(costs.count(cost) // size for cost in set(costs))
    column = {feature: data.X[:, j] for j, feature in enumerate(data.groups.features)}
    np.testing.assert_array_equal(found.X, np.column_stack([column[feature] for feature in found.groups.features]))


def test_the_features_of_a_group_share_its_cost() -> None:
    groups = load_groups({"groups": [{"name": "a", "features": ["p", "q"], "cost": 6.0}]})
    assert regrouped(Setting(), replace(small_set([1.0, 1.0]), groups=groups), 1).groups.costs.tolist() == [3.0, 3.0]


def test_random_groups_are_those_of_their_seed_and_number() -> None:
    data = small_set([1.0] * 20)
    first, second, third = (regrouped(Setting(seed=seed), data, 5).groups for seed in (1, 1, 2))
    assert first == second != third
    assert regrouping(Setting(seed=1), data.groups, 5)[0] == first != regrouping(Setting(seed=1), data.groups, 5, 1)[0]


def test_without_a_size_the_groups_stay_as_they_are() -> None:
    groups, order = regrouping(Setting(), singles([1.0, 2.0]), None)
    assert (groups, order.tolist()) == (singles([1.0, 2.0]), [0, 1])


# Stand-ins.


@pytest.mark.parametrize("made", [detection_stand_in, ranking_stand_in, small_ranking_stand_in])
def test_stand_ins_are_the_same_for_a_seed_and_others_for_another(made: Callable[[int], RealSet]) -> None:
    first, again, other = made(1), made(1), made(2)
    assert first.groups == again.groups
    assert all(np.array_equal(getattr(first, name), getattr(again, name)) for name in ("X", "y", "part"))
    assert first.groups != other.groups


# Measures.


def test_accuracy_is_that_of_scikit_learn() -> None:
    data = load_set("kddcup99", Setting())
    assert data.measure == "accuracy"
    rows = np.flatnonzero(data.part == 1)
    scores = np.random.default_rng(0).uniform(0, 1, size=(4, len(rows)))
    expected = [accuracy_score(data.y[rows], model >= 0.5) for model in scores]
    np.testing.assert_allclose(present(data.measured(rows, scores)), expected)


def test_where_error_is_the_measure_there_is_no_other() -> None:
    assert small_set([1.0, 2.0]).measured(np.arange(4), np.zeros((2, 4))) is None


# Files.


def write_detection(folder: Path, rows: int) -> Setting:
    """A folder with a data set in the form of kddcup99."""
    rng = np.random.default_rng(rows)
    (folder / "kddcup99").mkdir()
    content = {"groups": [{"name": "g", "features": ["b", "a"], "cost": 2.0}]}
    (folder / "kddcup99" / "groups.json").write_text(json.dumps(content), encoding="utf-8")
    table = {"a": np.arange(rows, dtype=np.float64), "b": rng.normal(size=rows), "attack": rng.integers(0, 2, rows)}
    pd.DataFrame(table).to_parquet(folder / "kddcup99" / "train.parquet")
    return Setting(data=folder)


@pytest.mark.parametrize("rows", [5, 23, 1000])
def test_a_small_table_is_cut_into_five_sets_of_the_same_size(tmp_path: Path, rows: int) -> None:
    data = load_set("kddcup99", write_detection(tmp_path, rows))
    counts = np.bincount(data.part, minlength=6)
    assert counts[:5].tolist() == [rows // 5] * 5
    assert counts[5:].sum() == rows % 5
    assert f"5 sets of {rows // 5:,} rows" in data.what
    assert data.split(4).gram.weight == 4 * (rows // 5)
    np.testing.assert_array_equal(data.X[:, 1], np.arange(rows))  # columns are those of the groups file


def test_a_table_of_fewer_rows_than_sets_is_an_error(tmp_path: Path) -> None:
    assert_refused(lambda: load_set("kddcup99", write_detection(tmp_path, 4)), "at least 5", error=AnytimeError)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_without_the_data_set_is_an_error(tmp_path: Path, name: SetName) -> None:
    assert_refused(lambda: load_set(name, Setting(data=tmp_path)), name, error=AnytimeError)


@pytest.mark.parametrize(
    ("name", "groups", "features"), [("yahoo_sample", 218, 218), ("mq2008", 12, 46), ("boston_housing", 13, 13)]
)
def test_the_real_sets_are_as_their_folders_describe(
    shared_data: Path, name: SetName, groups: int, features: int
) -> None:
    data = load_set(name, Setting(data=shared_data))
    assert (len(data.groups), data.X.shape[1]) == (groups, features)
    for number in range(len(data.splits)):
        split = data.split(number)
        assert split.gram.weight + split.held.weight == len(data.X)


# The owners' Yahoo! files.

TRAIN = ["2 qid:1 1:0.5 3:1", "0 qid:1 3:0.25", "4 qid:2 1:0.125 5:0.75"]
TEST = ["1 qid:9 1:1 2:0.5", "0 qid:9 5:1"]
COSTS = "1,20,5,1E8,200,50"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, lines in zip(FILES, (TRAIN, TEST), strict=True):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "costs.txt").write_text(COSTS, encoding="utf-8")
    return tmp_path


def test_rows_relevances_queries_and_parts_are_those_of_the_files(folder: Path) -> None:
    data = read_yahoo(folder, folder / "costs.txt")
    assert data.groups.names == ("f1", "f2", "f3", "f5")
    assert data.groups.costs.tolist() == [1, 20, 5, 200]
    # What a line does not name is 0.
    assert data.X.tolist() == [[0.5, 0, 1, 0], [0, 0, 0.25, 0], [0.125, 0, 0, 0.75], [1, 0.5, 0, 0], [0, 0, 0, 1]]
    assert data.y.tolist() == [2, 0, 4, 1, 0]
    assert present(data.query).tolist() == [1, 1, 2, 9, 9]
    assert data.part.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("text", ["1,20,5,1E8,200,50\n", "1\n20\n5\n1e8\n200\n50\n", "1, 20, 5,\n100000000, 200, 50"])
def test_costs_may_stand_in_one_line_or_in_several(folder: Path, text: str) -> None:
    (folder / "costs.txt").write_text(text, encoding="utf-8")
    assert read_yahoo(folder, folder / "costs.txt").groups.costs.tolist() == [1, 20, 5, 200]


def test_features_that_cannot_be_had_are_left_out_though_rows_have_them(folder: Path) -> None:
    (folder / "costs.txt").write_text("1,20,2E8,1E8,200,50", encoding="utf-8")
    data = read_yahoo(folder, folder / "costs.txt")
    assert data.groups.names == ("f1", "f2", "f5")
    assert data.X.shape == (5, 3)


def test_the_rows_for_validation_are_not_read(folder: Path) -> None:
    (folder / "set1.valid.txt").write_text("nothing of that form", encoding="utf-8")
    assert len(read_yahoo(folder, folder / "costs.txt").X) == 5


WRONG: list[tuple[str, bytes | None, list[str]]] = [
    *(
        (FILES[0], "\n".join([*TRAIN, line, ""]).encode(), [words])
        for line, words in {
            "good qid:1 1:0.5": "good",
            "1 qid:1 7:0.5": "6",
            "1 qid:1 0:0.5": "0",
            "1 qid:1 3:0.5 1:0.5": "sorted",
            "1 qid:1 1:much": "much",
            "1 1:0.5": "qid",
            "nan qid:1 1:0.5": "not a number",
            "1 qid:1 1:nan": "not a number",
            "1 qid:1 1:inf": "not a number",
            "1 qid:first 1:0.5": "first",
        }.items()
    ),
    *((name, None, [name, *(FILES if name in FILES else ())]) for name in (*FILES, "costs.txt")),
    (FILES[0], b"\x00\xff\x9c\x01", ["expected"]),
    (FILES[1], b"", ["no rows"]),
    ("costs.txt", b"1,20,5", ["n_features"]),  # feature 5 has no cost
    ("costs.txt", b"1,20,5,-1,200,50", ["negative"]),
    ("costs.txt", b"1,20,5,nan,200,50", ["negative"]),
    ("costs.txt", b"1,20,5,cheap,200,50", ["cheap"]),
    ("costs.txt", b"", ["no costs"]),
    ("costs.txt", b"1e8,1e8,1e8,1e8,1e8", ["no row"]),
]
"""A file, its content (None: it is missing), and words of the error."""


@pytest.mark.parametrize(("name", "content", "words"), WRONG)
def test_a_file_that_is_missing_or_of_another_form_is_an_error(
    folder: Path, name: str, content: bytes | None, words: list[str]
) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    assert_refused(lambda: read_yahoo(folder, folder / "costs.txt"), *words)


def test_the_experiments_take_the_files_in_the_place_of_the_sample(folder: Path) -> None:
    data = load_set("yahoo_sample", Setting(yahoo=(folder, folder / "costs.txt")))
    assert (data.X.shape, data.measure, data.splits) == ((5, 4), "NDCG@5", (((0,), 1),))
    assert "3 training rows, 4 features" in data.what
    split = data.split(0)
    assert (split.test.tolist(), split.gram.weight, split.held.weight) == ([3, 4], 3, 2)
    np.testing.assert_allclose(split.gram.x_mean, data.X[:3].mean(axis=0))
