"""The owners' files of Yahoo! Learning to Rank are read as they are described, and what is not of that form is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anytime.errors import TableError
from anytime.moments.moments import Gram
from anytime_reproduction.experiment import Setting
from anytime_reproduction.sets import FILES, load_set, read_yahoo

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
    assert data.X.tolist() == [
        [0.5, 0, 1, 0],
        [0, 0, 0.25, 0],
        [0.125, 0, 0, 0.75],
        [1, 0.5, 0, 0],
        [0, 0, 0, 1],
    ]
    assert data.y.tolist() == [2, 0, 4, 1, 0]
    assert data.query is not None
    assert data.query.tolist() == [1, 1, 2, 9, 9]
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


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("good qid:1 1:0.5", "good"),
        ("1 qid:1 7:0.5", "6"),
        ("1 qid:1 0:0.5", "0"),
        ("1 qid:1 3:0.5 1:0.5", "sorted"),
        ("1 qid:1 1:much", "much"),
        ("1 1:0.5", "qid"),
        ("nan qid:1 1:0.5", "not a number"),
        ("1 qid:1 1:nan", "not a number"),
        ("1 qid:1 1:inf", "not a number"),
        ("1 qid:first 1:0.5", "first"),
    ],
)
def test_a_line_of_another_form_is_told(folder: Path, line: str, told: str) -> None:
    path = folder / FILES[0]
    path.write_text("\n".join([*TRAIN, line]) + "\n", encoding="utf-8")
    with pytest.raises(TableError, match=told) as error:
        read_yahoo(folder, folder / "costs.txt")
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_bytes_that_are_no_text_are_told(folder: Path) -> None:
    (folder / FILES[0]).write_bytes(b"\x00\xff\x9c\x01")
    with pytest.raises(TableError, match="expected"):
        read_yahoo(folder, folder / "costs.txt")


def test_a_file_without_rows_is_told(folder: Path) -> None:
    (folder / FILES[1]).write_text("", encoding="utf-8")
    with pytest.raises(TableError, match="no rows"):
        read_yahoo(folder, folder / "costs.txt")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_told_with_what_is_expected(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(TableError, match=name) as error:
        read_yahoo(folder, folder / "costs.txt")
    assert all(expected in str(error.value) for expected in FILES)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1,20,5", "n_features"),  # feature 5 has no cost
        ("1,20,5,-1,200,50", "negative"),
        ("1,20,5,nan,200,50", "negative"),
        ("1,20,5,cheap,200,50", "cheap"),
        ("", "no costs"),
        ("1e8,1e8,1e8,1e8,1e8", "no row"),
    ],
)
def test_costs_of_another_form_are_told(folder: Path, text: str, told: str) -> None:
    (folder / "costs.txt").write_text(text, encoding="utf-8")
    with pytest.raises(TableError, match=told):
        read_yahoo(folder, folder / "costs.txt")


def test_a_missing_cost_file_is_told(folder: Path) -> None:
    with pytest.raises(TableError, match=r"prices\.txt"):
        read_yahoo(folder, folder / "prices.txt")


def test_the_experiments_take_the_files_in_the_place_of_the_sample(folder: Path) -> None:
    data = load_set("yahoo_sample", Setting(yahoo=(folder, folder / "costs.txt")))
    assert (data.X.shape, data.measure, data.splits) == ((5, 4), "NDCG@5", (((0,), 1),))
    assert "3 training rows, 4 features" in data.what
    split = data.split(0)
    assert split.test.tolist() == [3, 4]
    assert split.gram.weight == 3
    assert split.held.weight == 2
    np.testing.assert_allclose(split.gram.x_mean, data.X[:3].mean(axis=0))
    assert isinstance(split.gram, Gram)
