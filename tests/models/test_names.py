"""Names of columns, groups, classes and levels are used as written, and joined only with a check.

Wherever they go: groups files, tables, frames of any labels, the command line, contributions, sets of classes, exports.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from anytime import AnytimeClassifier, AnytimeRegressor, load
from anytime.errors import AnytimeError
from anytime.groups import FeatureGroups, joined_names, load_groups, write_groups
from anytime.loaded import LoadedModel
from anytime.model.export import document
from models.commands import Capture, ran
from models.exporting import compiled, printed
from models.opening import opened

MARKS = ["_", ":", "|", "=", ">", " * ", ",", ".", "+1", "'", '"', "[0]", "/", "@", " is other", "?", "\\"]
CLASSES = ["left", "front_left", "Comedy", "Drama", "Comedy|Drama", "a, b"]
ROWS = 300
OPTIONS = ["--basis", "linear", "--alpha", "0.001", "--family", "gaussian", "--folds", "0"]
"""Of a quick fit."""

GROUPS: dict[str, Any] = {
    "groups": [
        *({"name": f"g{mark}h", "features": [f"n{mark}x", f"t{mark}x"], "cost": 1.0} for mark in MARKS),
        # Joined by "_" or ":" with a class or a column, these are the same as others.
        {"name": "lidar", "features": ["0", "b:c"], "cost": 2.0},
        {"name": "lidar_front", "features": ["1"], "cost": 2.0},
        {"name": "lidar:b", "features": ["c"], "cost": 2.0},
        {"name": "lidar:b:c", "features": ["2"], "cost": 2.0},
    ],
    "types": dict.fromkeys(("b:c", "c"), "text"),
}


def frame() -> pd.DataFrame:
    """Numbers, text whose levels have the marks, and classes."""
    rng = np.random.default_rng(0)
    features = [name for group in GROUPS["groups"] for name in group["features"]]
    levels = {name: [f"u{name}", f"v{name}|w"] for name in features if name[0] == "t" or name in ("b:c", "c")}
    columns = {f: rng.choice(levels[f], ROWS) if f in levels else rng.normal(size=ROWS) for f in features}
    score = np.add.outer(sum(columns[f] for f in ("0", "1", "2")), np.zeros(len(CLASSES)))
    score += rng.normal(size=(len(CLASSES), 3)).dot([columns["0"], columns["1"], columns["2"]]).T * 2
    return pd.DataFrame(columns | {"y": np.array(CLASSES, dtype=object)[score.argmax(axis=1)]})


@cache
def model() -> LoadedModel:
    """A calibrated model of all these names; `basis` and penalty make it quick."""
    table = frame()
    return AnytimeClassifier(GROUPS, basis="linear", alpha=1e-3, family="gaussian").fit(table, table["y"]).model_


def decoded(cell: str) -> list[str]:
    """The labels of a set, as the guide says how they are written."""
    found: list[str] = json.loads(cell) if cell.startswith("[") else [part for part in cell.split("|") if part]
    return found


names = st.text("ab_:|", max_size=4)


@given(st.lists(st.tuples(names, names), unique=True), st.sampled_from("_:|"), st.sets(names))
def test_joined_names_are_different_and_those_that_are_unique_stay_plain(
    pairs: list[tuple[str, ...]], mark: str, taken: set[str]
) -> None:
    found = joined_names(pairs, mark, taken)
    assert len({*found, *taken}) == len(pairs) + len(taken)
    plain = [mark.join(pair) for pair in pairs]
    for pair, name in zip(pairs, found, strict=True):
        one = mark.join(pair)
        assert name == (one if [*plain, *taken].count(one) == 1 else json.dumps(pair))


def test_every_door_of_training_has_the_same_names_and_coefficients(desk: Path, capsys: Capture) -> None:
    table = frame()
    table.to_csv("t.csv", index=False)
    table.to_parquet("t.parquet")
    expected = model()
    assert expected.groups.names == tuple(group["name"] for group in GROUPS["groups"])
    for path, suffix in product(("t.csv", "t.parquet"), (".yaml", ".json")):
        write_groups(load_groups(GROUPS), desk / f"g{suffix}")
        ran(capsys, "train", path, "--groups", f"g{suffix}", "--target", "y", *OPTIONS, "--out", "m.safetensors")
        found = load("m.safetensors")
        assert (found.groups.names, found.groups.features) == (expected.groups.names, expected.groups.features)
        np.testing.assert_allclose(found.prefixes.packed, expected.prefixes.packed, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("written", [True, False])
def test_a_table_with_marks_in_its_names_trains_without_groups_and_with_the_draft(
    written: bool, desk: Path, capsys: Capture
) -> None:
    frame().to_csv("t.csv", index=False)
    ran(capsys, "groups", "t.csv", "--target", "y", "--out", "g.yaml")
    draft = ["--groups", "g.yaml"] if written else []
    ran(capsys, "train", "t.csv", "--target", "y", *OPTIONS, *draft, "--out", "m.safetensors")
    assert {*load("m.safetensors").groups.features} == {*frame()} - {"y"}


def test_predictions_in_a_file_have_a_column_for_each_group_and_class_and_exact_sets(
    desk: Path, capsys: Capture
) -> None:
    frame().to_csv("t.csv", index=False)
    frame()[::-1].to_csv("c.csv", index=False)
    write_groups(load_groups(GROUPS), desk / "g.yaml")
    train = ["train", "t.csv", "--groups", "g.yaml", "--target", "y", *OPTIONS, "--calibrate", "c.csv"]
    ran(capsys, *train, "--out", "m.safetensors")
    ran(capsys, "predict", "m.safetensors", "t.csv", "--explain", "--interval", "--keep", "b:c", "--out", "p.csv")
    with Path("p.csv").open(encoding="utf-8", newline="") as file:
        first = next(csv.reader(file))
    loaded, shown = load("m.safetensors"), pd.read_csv("p.csv", keep_default_na=False)
    answer, groups = loaded.answer("t.csv", explain=True), loaded.groups.names
    parts = {
        (group, label): [f"contribution_{group}_{label}", f"contribution_{json.dumps([group, label])}"]
        for group, label in product(groups, CLASSES)
    }
    assert len({*first}) == len(first) == 3 + len(CLASSES) + len(parts)
    for k, label in enumerate(sorted(CLASSES)):
        score = shown[f"base_{label}"].astype(float)
        for group in groups:
            plain, exact = parts[group, label]
            score += shown[exact if exact in shown else plain].astype(float)
        np.testing.assert_allclose(score, answer.scores[:, k], atol=1e-9)
    members = np.array(sorted(CLASSES))
    assert answer.prediction_set is not None
    assert [decoded(cell) for cell in shown["prediction_set"]] == [
        members[row].tolist() for row in answer.prediction_set
    ]


def test_sets_are_joined_plainly_where_every_label_allows_it() -> None:
    table = frame()
    for labels in (["up", "down", "a b"], ["up", "down", "|"], ["up", "down", "up|down"]):
        y = np.array(labels, dtype=object)[np.arange(ROWS) % 3]
        answer = (
            AnytimeClassifier(basis="linear", alpha=0.1, family="gaussian").fit(table[["0"]], y).model_.answer(table)
        )
        vars(answer).update(prediction_set=np.tile([[True, False, True], [False, False, False]], (ROWS // 2, 1)))
        cells = answer.columns()["prediction_set"].tolist()
        assert cells[0].startswith("[") == ("a b" not in labels)
        assert [decoded(cell) for cell in cells[:2]] == [[sorted(labels)[0], sorted(labels)[2]], []]


def test_exports_have_the_names_as_written(tmp_path: Path) -> None:
    exported = json.loads(json.dumps(document(model())))
    assert {feature["name"] for feature in exported["features"]} == {*model().groups.features}
    assert {group["name"] for group in exported["groups"]} == {*model().groups.names}
    assert exported["classes"] == sorted(CLASSES)
    saved = replace(model(), manifest=model().manifest.model_copy(update={"name": "m"})).save(
        tmp_path / "m.safetensors"
    )
    ask = compiled(saved, tmp_path, "ask.c")
    codes = {
        f"level {number} {j} {label}": str(code)
        for number, place in enumerate(saved.places.values())
        for j, levels in place.expansion.categories.items()
        for code, label in enumerate(levels.labels)
    }
    assert printed(ask, [*codes]) == [*codes.values()]


# Frames whose labels are no text.

LABELS: dict[str, tuple[list[Any], list[str]]] = {
    "counted": ([0, 1, 2], ["0", "1", "2"]),
    "numbers": ([7, -1, 2.5], ["7.0", "-1.0", "2.5"]),
    "mixed": (["a", 0, 1], ["a", "0", "1"]),
    "pairs": ([("a", 1), ("a", 2), ("b", 1)], ["('a', 1)", "('a', 2)", "('b', 1)"]),
    "times": (pd.date_range("2024-01-01", periods=3).tolist(), [f"2024-01-0{day} 00:00:00" for day in (1, 2, 3)]),
    "bytes": ([b"a", "a", 1.5], ["b'a'", "a", "1.5"]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_columns_of_a_frame_go_to_the_groups_that_name_them_whatever_their_labels(kind: str) -> None:
    labels, texts = LABELS[kind]
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = X @ [5.0, 1.0, 0.1]
    named, labelled = pd.DataFrame(X, columns=texts), pd.DataFrame(X)
    labelled.columns = pd.Index(labels) if kind != "pairs" else pd.MultiIndex.from_tuples(labels)
    a, b, c = texts
    groups = {"cheap": {"features": [c], "cost": 1}, "dear": {"features": [b, a], "cost": 50}}
    one, other = (AnytimeRegressor(groups, basis="linear", alpha=1e-6).fit(each, y) for each in (named, labelled))
    assert one.sequence_ == other.sequence_
    assert list(other.get_feature_names_out()) == list(one.get_feature_names_out())
    np.testing.assert_array_equal(one.coef_, other.coef_)
    expected = one.predict(named)
    doors: list[Callable[[], Any]] = [
        lambda: one.predict(labelled),
        lambda: other.predict(labelled),
        lambda: one.model_.predict(labelled),
        lambda: one.model_.predict(labelled.iloc[:, ::-1]),
        lambda: one.model_.predict(labelled.head(3).to_dict("records")),
        lambda: [opened(one.model_, dict.fromkeys(groups, labelled.iloc[[i]])).answer().prediction for i in range(3)],
    ]
    for door in doors:
        found = np.asarray(door())
        np.testing.assert_allclose(found, expected[: len(found)], rtol=1e-9)


def test_labels_that_are_the_same_text_are_refused_by_name() -> None:
    X = pd.DataFrame(np.eye(4)[:, :2], columns=[0, "0"])
    model = AnytimeRegressor({"a": ["0"]}, basis="linear", alpha=0.1).fit(X[["0"]], np.arange(4.0)).model_
    for door in (
        lambda: AnytimeRegressor({"a": ["0"]}).fit(X, np.arange(4.0)),
        lambda: model.predict(X),
        lambda: model.predict([{0: 1.0, "0": 2.0}]),
    ):
        with pytest.raises(AnytimeError, match="'0'"):
            door()


@pytest.mark.parametrize("known", ["x", "age"])
def test_counted_labels_that_no_group_names_are_an_array(known: str) -> None:
    names = [f"{known}{j}" for j in range(3)]
    X = np.random.default_rng(0).normal(size=(40, 3))
    groups: FeatureGroups | None = None if known == "x" else load_groups([[name] for name in names])
    fits = [AnytimeRegressor(groups, basis="linear", alpha=0.1).fit(each, X[:, 0]) for each in (X, pd.DataFrame(X))]
    for fitted, table in product(fits, (X, pd.DataFrame(X))):
        assert fitted.model_.groups.features == tuple(names)
        np.testing.assert_allclose(fitted.predict(table), fits[0].predict(X))
        np.testing.assert_allclose(fitted.model_.predict(table), fits[0].predict(X))
