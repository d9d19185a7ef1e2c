"""What a table means: its task, its labels, its columns, its folds; and one line for whatever does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from anytime.cli.main import main
from anytime.data.dataset import Dataset, infinite_columns
from anytime.data.formats import open_table
from anytime.data.survey import check_words, settle_target, survey
from anytime.folds import FoldAssigner
from anytime.groups import load_groups
from anytime.target import Target, labels
from models.refusals import assert_refused

N = 12
GROUPS = load_groups(
    {"groups": [{"name": "g", "features": ["x1", "x0"], "cost": 1.0}, {"name": "h", "features": ["x2"], "cost": 2.0}]}
)


def columns(count: int = N, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(count, 3))
    return {f"x{j}": X[:, j] for j in range(3)} | {"y": rng.normal(size=count)} | more


def write(folder: Path, values: dict[str, Any], suffix: str = ".parquet") -> Path:
    path = folder / f"table{suffix}"
    frame = pd.DataFrame(values)
    frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


def scan(folder: Path, target: Any, task: Any = "auto", *, drop_missing: bool = False) -> Target:
    """What is found of a target with these values."""
    path = write(folder, {"x0": np.arange(len(target)), "y": target})
    return settle_target(survey(open_table(path), ["y"], drop_missing=drop_missing), task)


def dataset(path: Path, target: str | list[str] = "y", **options: Any) -> Dataset:
    table = open_table(path)
    names = [target] if isinstance(target, str) else target
    found = survey(table, names, drop_missing=options.get("drop_missing", False))
    return Dataset(table, GROUPS, settle_target(found), **options)


def trained_on(folder: Path, seen: Any, new: Any) -> Dataset:
    """A table of the targets `new`, read with the target that was settled for `seen`."""
    target = dataset(write(folder, columns(t=seen)), "t").target
    return Dataset(open_table(write(folder, columns(t=new))), GROUPS, target)


# Tasks


@pytest.mark.parametrize(
    ("values", "asked", "task", "classes"),
    [
        ([0.5, 1.5, 2.5], "auto", "regression", None),
        ([0.0, 1.0, 0.0], "auto", "binary", (0, 1)),
        ([0.5, 1.0, 0.5], "auto", "regression", None),
        ([0, 1, 1], "auto", "binary", (0, 1)),
        ([7, 3, 7], "auto", "binary", (3, 7)),
        ([True, False, True], "auto", "binary", (False, True)),
        (["no", "yes", "no"], "auto", "binary", ("no", "yes")),
        (["b", "c", "a"], "auto", "multiclass", ("a", "b", "c")),
        ([0, 1, 2], "auto", "regression", None),
        (np.array([1, 2], dtype="u1"), "auto", "binary", (1, 2)),
        ([0, 1, 1], "regression", "regression", None),
        ([0.0, 1.0, 1.0], "binary", "binary", (0, 1)),
        ([0.5, 1.5, 0.5], "binary", "binary", (0.5, 1.5)),
        ([0, 1, 2], "multiclass", "multiclass", (0, 1, 2)),
        (["a", "b", "a"], "multiclass", "binary", ("a", "b")),
    ],
)
def test_a_task_is_taken_as_asked_or_numbers_are_a_regression_two_values_binary_and_text_classes(
    values: Any, asked: Any, task: str, classes: Any, tmp_path: Path
) -> None:
    target = scan(tmp_path, values, asked)
    assert (target.task, target.classes) == (task, classes)
    assert [type(c) for c in target.classes or ()] == [type(c) for c in classes or ()]


def test_two_classes_share_one_response_and_more_have_one_each(tmp_path: Path) -> None:
    assert scan(tmp_path, ["no", "yes"]).responses == ("yes",)
    assert scan(tmp_path, ["b", "c", "a"]).responses == ("a", "b", "c")
    assert scan(tmp_path, [0.5, 1.5]).responses == ("y",)


@pytest.mark.parametrize(
    ("values", "task", "words"),
    [
        (["a", "b", "c"], "regression", ["'y'", "is text", "numbers"]),
        ([0, 1, 2], "binary", ["'y'", "3 values", "expected 2"]),
        (["a", "b", "c"], "binary", ["'y'", "3 values", "expected 2"]),
        (np.arange(1500), "multiclass", ["'y'", "over 1000 values", "AnytimeRegressor"]),
        ([f"word {i}" for i in range(1500)], "auto", ["over 1000 values"]),
        ([0.0, np.inf, 0.0], "binary", ["'y'", "inf"]),
        ([0.0, np.inf, 1.0], "multiclass", ["'y'", "inf"]),
    ],
)
def test_a_task_that_does_not_fit_the_target_is_refused(
    values: Any, task: Any, words: list[str], tmp_path: Path
) -> None:
    assert_refused(lambda: scan(tmp_path, values, task), *words)


@pytest.mark.parametrize("values", [[3, 3, 3], [0.5], ["a", "a"], [True, True]])
@pytest.mark.parametrize("task", ["auto", "regression", "binary", "multiclass"])
def test_a_target_that_never_changes_is_refused(values: Any, task: Any, tmp_path: Path) -> None:
    assert_refused(lambda: scan(tmp_path, values, task), "'y'", "in every row", "at least 2 values")


# Missing targets


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_missing_targets_are_counted_and_located(suffix: str, tmp_path: Path) -> None:
    y = np.arange(20.0)
    y[[2, 5, 7, 11, 13, 17, 19]] = np.nan
    path = write(tmp_path, {"x0": np.arange(20), "y": y}, suffix)
    assert_refused(
        lambda: survey(open_table(path), ["y"]),
        "7 of 20 rows",
        "(rows 2, 5, 7, 11, 13, ...,",
        "leave them out: drop_missing=True",
    )
    found = survey(open_table(path), ["y"], drop_missing=True)
    assert (found.rows, found.missing) == (20, 7)


@pytest.mark.parametrize(
    ("values", "classes"), [(["a", None, "b"], ("a", "b")), (pd.array([0, None, 1], dtype="Int64"), (0, 1))]
)
def test_a_missing_label_is_missing_and_not_a_class(values: Any, classes: Any, tmp_path: Path) -> None:
    assert_refused(lambda: scan(tmp_path, values), "1 of 3 rows", "(rows 1,")
    assert scan(tmp_path, values, drop_missing=True).classes == classes


def test_a_table_without_any_target_is_refused_even_so(tmp_path: Path) -> None:
    assert_refused(lambda: scan(tmp_path, [np.nan, np.nan], drop_missing=True), "no row has a target")


def test_rows_left_out_leave_no_trace(tmp_path: Path) -> None:
    values = columns(weight=np.arange(1.0, N + 1), query=np.arange(N) // 3)
    keep = np.arange(N) % 4 != 1
    gappy = values | {"y": np.where(keep, values["y"], np.nan)}
    options: dict[str, Any] = {"query": "query", "weights": "weight"}
    (tmp_path / "some").mkdir()
    found = dataset(write(tmp_path, gappy), drop_missing=True, **options).moments()[0]
    some = {name: column[keep] for name, column in values.items()}
    expected = dataset(write(tmp_path / "some", some), **options).moments()[0]
    np.testing.assert_allclose(found.scatter, expected.scatter, rtol=1e-12)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12)
    assert (found.rows, found.weight) == (expected.rows, expected.weight)


# Columns


def test_columns_that_nothing_uses_are_named_in_the_order_of_the_table(tmp_path: Path) -> None:
    path = write(tmp_path, {"later": np.zeros(N)} | columns(row=np.arange(N), q=np.arange(N), w=np.ones(N)))
    assert dataset(path, query="q", weights="w").check() == ["later", "row"]
    assert dataset(path).check() == ["later", "row", "q", "w"]


def test_the_columns_of_the_matrix_are_in_the_order_of_the_groups(tmp_path: Path) -> None:
    values = columns()
    (rows,) = dataset(write(tmp_path, values)).rows()
    assert np.array_equal(rows.X, np.column_stack([values["x1"], values["x0"], values["x2"]]))
    assert np.array_equal(rows.Y[:, 0], values["y"])
    assert (rows.weights, rows.query) == (None, None)


def test_several_targets_make_several_responses(tmp_path: Path) -> None:
    path = write(tmp_path, columns(z=np.arange(N)))
    found = dataset(path, ["y", "z"])
    assert found.target == Target("regression", ("y", "z"), family_name="gaussian")
    (rows,) = found.rows()
    assert rows.Y.shape == (N, 2)
    assert_refused(lambda: settle_target(survey(open_table(path), ["y", "z"]), "binary"), "2 targets make a regression")


def test_a_row_counts_as_missing_if_one_of_several_targets_is(tmp_path: Path) -> None:
    values = columns(z=np.arange(float(N)))
    values["y"][1] = values["z"][4] = np.nan
    assert_refused(lambda: dataset(write(tmp_path, values), ["y", "z"]), "2 of 12 rows", "(rows 1, 4,")
    assert dataset(write(tmp_path, values), ["y", "z"], drop_missing=True).moments()[0].rows == N - 2


# Classes


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["no", "yes"] * 6, [[0], [1]]),
        ([3, 7] * 6, [[0], [1]]),
        (["b", "c", "a"] * 4, [[0, 1, 0], [0, 0, 1], [1, 0, 0]]),
    ],
)
def test_two_classes_become_the_indicator_of_the_second_and_three_an_indicator_each(
    values: Any, expected: Any, tmp_path: Path
) -> None:
    (rows,) = dataset(write(tmp_path, columns(t=values)), "t").rows()
    assert rows.Y[: len(expected)].tolist() == expected


@pytest.mark.parametrize(
    ("seen", "new", "word"),
    [
        (["a", "b", "c"] * 4, ["a", "d", "b"] * 4, "'d'"),
        (["no", "yes"] * 6, ["no", "maybe"] * 6, "'maybe'"),
        ([0, 1] * 6, [0, 2] * 6, "2"),
        (["no", "yes"] * 6, [0, 1] * 6, "0"),
        ([0, 1] * 6, ["0", "2"] * 6, "2"),
    ],
)
def test_a_class_that_training_never_saw_is_named(seen: Any, new: Any, word: str, tmp_path: Path) -> None:
    assert_refused(trained_on(tmp_path, seen, new).moments, word, "never seen in training")


def test_classes_are_read_as_in_training_whatever_type_a_table_has(tmp_path: Path) -> None:
    for seen, new in (([3, 7] * 6, ["3", "7"] * 6), (["3", "7"] * 6, [3, 7] * 6), ([True, False] * 6, [1, 0] * 6)):
        again = trained_on(tmp_path, seen, new)
        (rows,) = again.rows()
        assert rows.Y[:2].ravel().tolist() == [float(label == (again.target.classes or ())[1]) for label in seen[:2]]


def test_a_table_may_lack_a_class(tmp_path: Path) -> None:
    (rows,) = trained_on(tmp_path, ["a", "b", "c"] * 4, ["a", "c"] * 6).rows()
    assert rows.Y.sum(axis=0).tolist() == [6, 0, 6]


# Weights and queries


def at_row_4(weight: float) -> NDArray[Any]:
    return np.where(np.arange(N) == 4, weight, 1.0)


@pytest.mark.parametrize(
    ("column", "role", "words"),
    [
        (at_row_4(-1.0), {"weights": "c"}, ["weight in row 4", "is -1; expected 0, or 1e-100 to 1e+100"]),
        (at_row_4(1e300), {"weights": "c"}, ["weight in row 4", "is 1e+300"]),
        (at_row_4(5e-324), {"weights": "c"}, ["weight in row 4", "is 4.94066e-324"]),
        (at_row_4(np.nan), {"weights": "c"}, ["weight in row 4", "missing"]),
        (at_row_4(np.inf), {"weights": "c"}, ["'c'", "infinite", "row 4"]),
        (["heavy"] * N, {"weights": "c"}, ["'c'", "text", "'heavy'"]),
        (["a", None] * 6, {"query": "c"}, ["'c'", "missing"]),
        ([1.0, np.nan] * 6, {"query": "c"}, ["'c'", "missing"]),
        (["a", "b"] * 6, {"target": ["y", "c"]}, ["'c'", "text"]),
    ],
    ids=[
        *("negative", "large", "tiny", "missing", "infinite", "text"),
        *("a row without a query of text", "a row without a query of numbers", "text among several targets"),
    ],
)
def test_a_column_that_does_not_fit_its_role_is_refused(
    column: Any, role: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    assert_refused(lambda: dataset(write(tmp_path, columns(c=column)), **role).moments(2), *words)


# Moments


def large() -> dict[str, Any]:
    values = columns(40_000, w=np.random.default_rng(1).random(40_000))
    values["x2"][::1000] = np.nan
    values["x0"] += 1e4
    return values


def test_moments_are_the_same_to_the_bit_for_any_number_of_threads(tmp_path: Path) -> None:
    path = write(tmp_path, large())
    one = dataset(path, weights="w").moments(3, n_jobs=1)
    for jobs in (2, 5, -1):
        for a, b in zip(one, dataset(path, weights="w").moments(3, n_jobs=jobs), strict=True):
            assert np.array_equal(a.scatter, b.scatter)
            assert np.array_equal(a.mean, b.mean)


def test_progress_counts_every_row_once(tmp_path: Path) -> None:
    progressed: list[int] = []
    blocks = dataset(write(tmp_path, large())).blocks(FoldAssigner(1, 0, stratified=False), progress=progressed.append)
    assert progressed == []
    assert sum(len(block.Y) for block in blocks) == sum(progressed) == 40_000
    assert len(progressed) > 1


def test_infinities_are_counted_over_all_batches_from_the_first_row(tmp_path: Path) -> None:
    values = large() | {"x1": np.where(np.arange(40_000) < 39_990, 0.0, np.inf)}
    (error,) = infinite_columns(open_table(write(tmp_path, values)), ["x0", "x1"], {})
    assert "column 'x1' holds 10 infinite values, the first in row 39990 (counted from 0)" in str(error)


# Words among numbers, and labels that stay labels.

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
