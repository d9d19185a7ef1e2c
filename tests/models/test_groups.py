"""Groups files: what they mean, and one line for each way in which they can be wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, strategies as st

from anytime import AnytimeRegressor, load
from anytime.errors import GroupsError
from anytime.groups import FeatureGroups, load_groups, singletons, write_groups
from models.commands import Capture, output
from models.refusals import assert_refused

Content = dict[str, Any]


def group(name: str, features: list[str], cost: Any = 1.0, **more: Any) -> Content:
    return {"name": name, "features": features, "cost": cost, **more}


CLINIC: Content = {
    "cost_unit": "dollars",
    "groups": [
        group("age", ["age"], 0),
        group("lab", ["iron", "sugar"], 3.5, requires=["blood"]),
        group("blood", [], 2.0, requires=["visit"]),
        group("visit", [], 10.0),
        group("scan", ["s0", "s1", "s2"], 40, requires=["visit", "blood"]),
    ],
}


LOADED = load_groups(CLINIC)


def as_json(folder: Path, content: Content) -> Path:
    (path := folder / "groups.json").write_text(json.dumps(content), encoding="utf-8")
    return path


def as_yaml(folder: Path, content: Content) -> Path:
    (path := folder / "groups.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_a_file_says_the_same_in_json_in_yaml_and_as_a_dict(tmp_path: Path) -> None:
    for source in (as_json(tmp_path, CLINIC), as_yaml(tmp_path, CLINIC), str(tmp_path / "groups.json")):
        assert load_groups(source) == LOADED
    assert load_groups(LOADED) is LOADED


def test_the_order_of_the_file_is_the_order_of_the_columns() -> None:
    assert LOADED.names == ("age", "lab", "blood", "visit", "scan")
    assert LOADED.features == ("age", "iron", "sugar", "s0", "s1", "s2")
    assert LOADED.slices == (slice(0, 1), slice(1, 3), slice(3, 3), slice(3, 3), slice(3, 6))
    assert LOADED.costs.tolist() == [0.0, 3.5, 2.0, 10.0, 40.0]
    assert (len(LOADED), LOADED.position("scan")) == (5, 4)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_prerequisites_come_once_and_after_what_they_require(pairs: list[tuple[int, int]]) -> None:
    requires: dict[int, set[str]] = {i: set() for i in range(8)}
    for a, b in pairs:
        if a != b:
            requires[max(a, b)].add(f"g{min(a, b)}")
    groups = load_groups({"groups": [group(f"g{i}", [f"x{i}"], requires=sorted(requires[i])) for i in range(8)]})
    for i, required in enumerate(groups.prerequisites):
        assert len(set(required)) == len(required)
        assert i not in required
        for place, p in enumerate(required):
            assert set(groups.prerequisites[p]) <= set(required[:place])
        direct = {groups.position(name) for name in groups.groups[i].requires}
        assert set(required) == direct.union(*(groups.prerequisites[p] for p in direct))


def test_a_chain_of_three_thousand_requirements_does_not_recurse() -> None:
    length = 3000
    chain = [group(f"g{i}", [f"x{i}"], requires=[f"g{i + 1}"]) for i in range(length - 1)]
    groups = load_groups({"groups": [*chain, group(f"g{length - 1}", [])]})
    assert groups.prerequisites[0] == tuple(range(length - 1, 0, -1))


UNREADABLE: list[tuple[str, str, bytes, list[str]]] = [
    ("not JSON", "g.json", b'{"groups": ', ["is not JSON", "line 1"]),
    ("not YAML", "g.yaml", b"groups: [\n - {", ["is not YAML", "line"]),
    ("a list", "g.json", b"[]", ["has no groups", "'groups'"]),
    ("a word", "g.yaml", b"groups", ["has no groups", "'groups'"]),
    ("empty", "g.yaml", b"", ["has no groups", "'groups'"]),
    ("empty JSON", "g.json", b"", ["is not JSON"]),
    ("binary", "g.json", b"\x89PNG\r\n\x1a\n\xff\xfe\x00", ["not text"]),
    ("binary that is ASCII", "g.yaml", b"\x00\x01\x02", ["is not YAML"]),
    ("an ordinary date", "g.yaml", b"groups: 2024-12-31", []),
    ("brackets without end", "g.json", b"[" * 100_000, []),
    ("YAML brackets without end", "g.yaml", b"[" * 3_000, []),
    ("a YAML list that holds itself", "g.yaml", b"groups: &a [*a]", []),
    ("a broken rule in JSON", "g.json", b'{"groups": [{"name": "a", "features": ["x"], "cost": -1}]}', ["'a'", "-1"]),
    ("a broken rule in YAML", "g.yaml", b"groups: [{name: a, features: [x], cost: -1}]", ["'a'", "-1"]),
    ("NaN in JSON", "g.json", b'{"groups": [{"name": "a", "features": ["x"], "cost": NaN}]}', ["'a'", "nan"]),
    ("a number without end", "g.json", b'{"groups": 1' + b"0" * 5_000 + b"}", ["is not JSON"]),
    ("a YAML number without end", "g.yaml", b"groups: 1" + b"0" * 5_000, ["is not YAML"]),
    ("a date that never was", "g.yaml", b"groups: !!timestamp 2024-13-45", ["is not YAML"]),
    ("hours of hours without end", "g.yaml", b"groups: 1" + b":00" * 200 + b".5", ["a valid array"]),
    ("a cost twice", "g.yaml", b"groups:\n  - {name: a, features: [x], cost: 1, cost: 5}\n", ["'cost' occurs twice"]),
    ("groups twice", "g.yaml", b"groups: []\ngroups: []\n", ["'groups' occurs twice", "line 1"]),
    ("a level twice in a mapping", "g.yaml", b"groups: []\nbases: {a: linear, a: hinge}\n", ["'a' occurs twice"]),
    ("a cost twice in JSON", "g.json", b'{"groups": [{"name": "a", "cost": 1, "cost": 5}]}', ["'cost' occurs twice"]),
    ("a word said to be a date", "g.yaml", b"groups: !!timestamp today", ["is not YAML"]),
    ("a word said to be true or false", "g.yaml", b"groups: !!bool maybe", ["is not YAML"]),
    ("nothing said to be a number", "g.yaml", b"groups: !!int ''", ["is not YAML"]),
]


@pytest.mark.parametrize(
    ("name", "content", "words"), [case[1:] for case in UNREADABLE], ids=[case[0] for case in UNREADABLE]
)
def test_a_file_that_is_no_groups_file_is_one_line_that_names_it(
    name: str, content: bytes, words: list[str], tmp_path: Path
) -> None:
    (path := tmp_path / name).write_bytes(content)
    assert_refused(lambda: load_groups(path), str(path), *words, error=GroupsError)


def test_a_missing_file_and_a_directory_are_said_to_be_that(tmp_path: Path) -> None:
    assert_refused(lambda: load_groups(tmp_path / "none.json"), "no such file", error=GroupsError)
    assert_refused(lambda: load_groups(tmp_path), "is a directory", error=GroupsError)


def test_costs_that_numpy_counted_are_taken_from_a_dict() -> None:
    groups = load_groups({"groups": [group("a", ["x"], np.float64(2.5)), group("b", ["y"], np.int64(3))]})
    assert groups.costs.tolist() == [2.5, 3.0]


def test_the_dict_it_came_from_is_not_changed_and_may_change() -> None:
    content = json.loads(json.dumps(CLINIC))
    groups = load_groups(content)
    assert content == CLINIC
    content["groups"][0]["features"].append("late")
    assert groups == LOADED


@pytest.mark.parametrize(
    ("unit", "cost", "words"),
    [("dollars", 1, "1 dollar"), ("dollars", 1.5, "1.5 dollars"), ("ms", 1, "1 ms"), ("EUR", 1, "1 EUR"),
     ("units", 1 + 1e-9, "1 unit"), ("gas", 1, "1 gas"), ("loss", 1, "1 loss"), ("units", 0, "0 units")],
)  # fmt: skip
def test_a_cost_of_one_has_a_unit_in_the_singular(unit: str, cost: float, words: str) -> None:
    assert load_groups({"cost_unit": unit, "groups": {"a": ["x"]}}).amount(cost) == words


def test_without_drops_features_and_the_groups_that_nothing_pays_for() -> None:
    groups = LOADED.without(["iron", "sugar", "s1"])
    assert groups.features == ("age", "s0", "s2")
    assert groups.names == ("age", "blood", "visit", "scan")
    assert LOADED.without(["iron", "sugar", "s0", "s1", "s2"]).names == ("age",)
    alone = {"groups": [*CLINIC["groups"][:1], group("call", [], 1)]}
    assert load_groups(alone).without([]).names == ("age", "call")  # the user's own choice
    required = {"groups": [group("a", ["x"], 1), group("b", ["y"], 1, requires=["a"])]}
    assert load_groups(required).without(["x"]).names == ("a", "b")


def test_with_costs_takes_costs_unit_and_requirements_and_keeps_the_order_of_the_columns() -> None:
    first = group("lab", ["sugar", "iron"], 350.0, requires=["visit"])
    others = [each for each in CLINIC["groups"] if each["name"] != "lab"]
    new = LOADED.with_costs(load_groups({"cost_unit": "cents", "groups": [first, *others]}))
    assert (new.cost_unit, new.names, new.features) == ("cents", LOADED.names, LOADED.features)
    assert new.costs.tolist() == [0.0, 350.0, 2.0, 10.0, 40.0]
    assert new.groups[1].requires == ("visit",)


def test_singletons_are_each_feature_at_cost_one() -> None:
    assert singletons(["x", "y"]) == load_groups({"groups": [group("x", ["x"]), group("y", ["y"])]})


def test_a_pattern_stands_for_the_columns_that_no_group_names() -> None:
    groups = load_groups(
        {
            "groups": [
                {"name": "rest", "features": ["body_*", "hog[0]"], "cost": 1},
                {"name": "dear", "features": ["body_9", "x?"], "cost": 2},
            ],
            "bases": {"body_1": {"basis": "hinge"}},
        }
    )
    found = groups.matched(["body_2", "body_9", "x1", "x22", "body_1", "hog0"])
    assert [group.features for group in found.groups] == [("body_2", "body_1", "hog[0]"), ("body_9", "x1")]
    assert found.bases == groups.bases
    assert groups.matched(["a"]) == groups
    named = load_groups({"groups": [{"name": "g", "features": ["x*"], "cost": 1}]})
    assert named.matched(["x*", "x1"]) == named


@pytest.mark.usefixtures("desk")
def test_patterns_are_matched_by_commands_and_estimators(capsys: Capture) -> None:
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 4)), columns=["a_1", "a_2", "b", "y"])
    table.to_csv("t.csv", index=False)
    groups = {"groups": [{"name": "a", "features": ["a_*"], "cost": 1}, {"name": "rest", "features": ["?"], "cost": 2}]}
    for number, unit in enumerate(("units", "dollars")):
        Path(f"g{number}.json").write_text(json.dumps(groups | {"cost_unit": unit}))
    stated = ["t.csv", "--groups", "g0.json", "--target", "y", "--out"]
    output(capsys, "train", *stated, "m.safetensors")
    assert [group.features for group in load("m.safetensors").groups.groups] == [("a_1", "a_2"), ("b",)]
    output(capsys, "basis", *stated, "b.json")
    assert load_groups("b.json").features == ("a_1", "a_2", "b")
    output(capsys, "resequence", "m.safetensors", "--costs", "g1.json", "--out", "c.safetensors")
    assert load("c.safetensors").groups.cost_unit == "dollars"
    estimator = AnytimeRegressor(groups).fit(table.drop(columns="y"), table["y"])
    assert estimator.model_.groups.features == ("a_1", "a_2", "b")


# Costs of calls.

PAGES: Content = {
    "cost_unit": "ms",
    "groups": [
        group("stored", ["clicks"], 0.1),
        group("terms", ["title", "body"], {"fixed": 2, "per_row": 0.5}),
        group("model", [], {"fixed": 8}),
        group("network", ["vector"], {"per_row": 4.0}, requires=["model"]),
        group("idle", ["i"], {"fixed": 0.0, "per_row": 0.0}),
    ],
}


def test_a_cost_is_a_number_per_row_or_has_a_fixed_part() -> None:
    groups = load_groups(PAGES)
    assert groups.cost_parts.tolist() == [[0, 2, 8, 0, 0], [0.1, 0.5, 0, 4, 0]]
    assert groups.groups[3].cost == 4.0, "equal costs are equal"
    for rows in (1, 7, 100):
        literal = [0.1 * rows, 2 + 0.5 * rows, 8, 4 * rows, 0]
        assert groups.call_costs(rows) == pytest.approx(literal)
        assert groups.for_rows(rows).costs == pytest.approx(np.array(literal) / rows)
    assert groups.costs.tolist() == groups.call_costs(1).tolist()


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
@pytest.mark.parametrize("rows", [None, 1, 100])
def test_costs_of_calls_survive_writing_a_file(rows: int | None, suffix: str, tmp_path: Path) -> None:
    groups = load_groups(PAGES if rows is None else PAGES | {"rows": rows})
    write_groups(groups, tmp_path / f"g{suffix}")
    assert load_groups(tmp_path / f"g{suffix}") == groups
    assert FeatureGroups.model_validate_json(groups.model_dump_json()) == groups
    assert ("rows" in (tmp_path / f"g{suffix}").read_text()) is (rows is not None)


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_a_file_that_is_written_has_a_line_for_each_group(suffix: str, tmp_path: Path) -> None:
    groups = load_groups({"a": ["long " * 40], "b": ["- {x}: y"]})
    write_groups(groups, tmp_path / f"g{suffix}")
    assert load_groups(tmp_path / f"g{suffix}") == groups
    assert (tmp_path / f"g{suffix}").read_text().count("\n") == 4


def test_groups_keep_the_rows_of_their_calls_and_no_stale_costs() -> None:
    groups = load_groups(PAGES | {"rows": 100})
    assert groups.costs[1] == pytest.approx(0.52)
    for same in (groups.only([1, 2]), groups.without(["clicks"]), groups.matched(["x"]), groups.with_bases({})):
        assert same.costs[same.position("terms")] == pytest.approx(0.52)
    assert groups.for_rows(4).costs[1] == pytest.approx(1.0)
    assert groups.costs[1] == pytest.approx(0.52)
    cheap = load_groups(PAGES | {"groups": [{**each, "cost": {"fixed": 50}} for each in PAGES["groups"]]})
    assert groups.with_costs(cheap).costs.tolist() == [0.5] * 5, "the model's rows, as the file states none"
    assert groups.with_costs(cheap.for_rows(10)).costs.tolist() == [5.0] * 5


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: LOADED.position("scam"), "no group 'scam'; did you mean 'scan'?"),
    (lambda: LOADED.without(LOADED.features), "every feature is dropped"),
    (lambda: singletons(["x", "x"]), "two groups have the name 'x'"),
    (lambda: load_groups(PAGES).for_rows(0), "rows is 0; expected a whole number from 1 to 1000000000"),
    (
        lambda: load_groups({"groups": [group("a", ["x*"]), group("b", ["*1"])]}).matched(["x1"]),
        "feature 'x1' is in group 'a' and in group 'b'",
    ),
    *(
        (lambda other=other: LOADED.with_costs(load_groups({"groups": other})), words)
        for other, words in (
            (CLINIC["groups"][:4], "lacks 'scan'"),
            ([*CLINIC["groups"], group("new", ["z"])], "has 'new'"),
            ([group("age", ["years"], 0), *CLINIC["groups"][1:]], "'age' lacks 'age' in the new file"),
        )
    ),
]


@pytest.mark.parametrize(("act", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_does_not_fit_the_groups_is_refused(act: Callable[[], object], words: str) -> None:
    assert_refused(act, words, error=GroupsError)


PLAIN = [
    "012",
    "0x1F",
    "0o17",
    "0b1",
    "1_000",
    "1:30",
    "NO",
    "yes",
    "on",
    "2020-01-01",
    "+5",
    "5.",
    ".inf",
    ".nan",
    "1e3x",
]


@pytest.mark.parametrize("scalar", PLAIN)
def test_only_numbers_of_json_are_numbers_in_yaml(scalar: str, tmp_path: Path) -> None:
    (path := tmp_path / "g.yaml").write_text(f"groups:\n  - {{name: {scalar}, features: [{scalar}], cost: 1}}\n")
    assert load_groups(path).features == load_groups(path).names == (scalar,)
    path.write_text(f"groups:\n  - {{name: a, features: [x], cost: {scalar}}}\n")
    assert_refused(
        lambda: load_groups(path), f"cost: input should be a valid number (got {scalar!r})", error=GroupsError
    )


@pytest.mark.parametrize(
    ("scalar", "cost"), [("1e3", 1000.0), (".5", 0.5), ("-0", 0.0), ("1E+2", 100.0), ("2.50", 2.5)]
)
def test_numbers_of_json_are_numbers_in_yaml(scalar: str, cost: float, tmp_path: Path) -> None:
    (path := tmp_path / "g.yaml").write_text(f"groups:\n  - {{name: a, features: [x], cost: {scalar}}}\n")
    assert load_groups(path).costs.tolist() == [cost]


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_any_name_and_level_is_read_as_it_was_written(suffix: str, tmp_path: Path) -> None:
    names = [
        *PLAIN,
        "1e3",
        ".5",
        "~",
        "null",
        "true",
        "<<",
        "",
        "12",
        "é",
        "a: b",
        "# x",
        "- y",
        "\u2028",
        "'q'",
        " b: c",
        "{x}",
        "12:30",
    ]
    columns = {
        "012": {"basis": "categories", "levels": names, "other": False, "range": None},
        "1e3": {"basis": "categories", "levels": [3, 1], "other": True, "missing": False},
        "~": {"basis": "categories", "levels": [True, False], "other": False},
    }
    content = {
        "groups": [{"name": "a", "features": names, "cost": 1}],
        "types": {"012": "text", "~": "bool"},
        "bases": columns,
    }
    write_groups(load_groups(content), tmp_path / f"g{suffix}")
    groups, again = load_groups(content), load_groups(tmp_path / f"g{suffix}")
    assert again == groups
    assert [type(level) for level in again.bases["~"].levels or ()] == [bool, bool]
    assert again.bases["012"].model_fields_set == groups.bases["012"].model_fields_set, "a null range is still stated"


SHORT: list[tuple[Any, list[tuple[str, list[str], float]], str]] = [
    ({"a": ["age", "city"], "b": ["iron"]}, [("a", ["age", "city"], 1.0), ("b", ["iron"], 1.0)], "units"),
    ([["age", "city"], ["iron"]], [("age+1", ["age", "city"], 1.0), ("iron", ["iron"], 1.0)], "units"),
    ((("age",), ("iron",)), [("age", ["age"], 1.0), ("iron", ["iron"], 1.0)], "units"),
    ({"a": {"features": ["age"], "cost": 5}, "b": ["iron"]}, [("a", ["age"], 5.0), ("b", ["iron"], 1.0)], "units"),
    ({"groups": {"a": ["age"]}, "cost_unit": "ms"}, [("a", ["age"], 1.0)], "ms"),
    ({"groups": [["age"], ["iron"]]}, [("age", ["age"], 1.0), ("iron", ["iron"], 1.0)], "units"),
    ({"a": ["age"], "cost_unit": "dollars"}, [("a", ["age"], 1.0)], "dollars"),
    ({"b": ["iron"], "types": ["age"]}, [("b", ["iron"], 1.0), ("types", ["age"], 1.0)], "units"),
    ({"a": {"features": ["age"], "cost": "5ms"}, "b": {"features": ["iron"], "cost": "2 s"}},
     [("a", ["age"], 5.0), ("b", ["iron"], 2000.0)], "ms"),
    ({"groups": [group("a", ["age"], "0.5 s")], "cost_unit": "ms"}, [("a", ["age"], 500.0)], "ms"),
    ({"groups": [group("a", ["age"], "3 dollars")]}, [("a", ["age"], 3.0)], "dollars"),
    ([group("a", ["age"], 2)], [("a", ["age"], 2.0)], "units"),
]  # fmt: skip


@pytest.mark.parametrize(("short", "expected", "unit"), SHORT, ids=[str(short)[:60] for short, *_ in SHORT])
def test_short_forms_are_the_groups_that_they_say(
    short: Any, expected: list[tuple[str, list[str], float]], unit: str, tmp_path: Path
) -> None:
    for source in (short, as_json(tmp_path, short), as_yaml(tmp_path, json.loads(json.dumps(short)))):
        groups = load_groups(source)
        assert [(each.name, list(each.features), each.cost) for each in groups.groups] == expected
        assert groups.cost_unit == unit


def of_cost(cost: Any) -> Content:
    return {"groups": [group("a", ["x"], cost)]}


WRONG: list[tuple[Any, list[str]]] = [
    ({"groups": [group("a", ["x"]), group("b", ["x"])]}, ["'x'", "'a'", "'b'"]),
    ({"groups": [group("a", ["x", "x"])]}, ["'x'", "twice in group 'a'"]),
    ({"groups": [{"name": "a", "features": ["x"]}]}, ["'a'", "cost", "required"]),
    ({"groups": [group("a", ["x"], -0.5)]}, ["'a'", "-0.5", ">= 0"]),
    ({"groups": [group("a", ["x"], math.nan)]}, ["'a'", "nan", "number"]),
    ({"groups": [group("a", ["x"], math.inf)]}, ["'a'", "inf", "number"]),
    ({"groups": [group("a", ["x"], 5e-324)]}, ["'a'", "5e-324", "1e-100 or more, or 0"]),
    ({"groups": [group("a", ["x"], 1)], "types": {"x": "txt"}}, ["types", "'text'", "(got 'txt')"]),
    ({"groups": [group("a", ["x"], 1)], "types": {"y": "text"}}, ["types has column 'y'"]),
    ({"groups": [group("a", ["x"], "2.5")]}, ["'a'", "cost", "number", "'2.5'"]),
    ({"groups": [group("a", ["x"], True)]}, ["'a'", "cost", "number", "True"]),
    ({"groups": [group("a", ["x"], None)]}, ["'a'", "cost", "number", "None"]),
    (
        {
            "groups": [
                group("a", ["x"], requires=["b"]),
                group("b", [], requires=["c"]),
                group("c", [], requires=["a"]),
                group("d", [], requires=["a"]),
            ]
        },
        ["a -> b -> c -> a", "cycle"],
    ),
    ({"groups": [group("a", ["x"], requires=["a"])]}, ["a -> a", "cycle"]),
    (
        {"groups": [group("lab", ["x"], requires=["blod"]), group("blood", [])]},
        ["'lab'", "'blod'", "did you mean 'blood'?"],
    ),
    ({"groups": [group("a", ["x"]), group("a", ["y"])]}, ["two groups", "'a'"]),
    ({"groups": []}, ["no groups", "at least one"]),
    ({"cost_unit": "ms"}, ["groups", "required"]),
    ({"groups": [group("a", []), group("b", [])]}, ["feature", "at least one"]),
    ({"groups": [group("a", ["x"], cots=1)]}, ["'a'", "cots", "not permitted"]),
    ({"unit": "ms", "groups": [group("a", ["x"])]}, ["unit", "not permitted"]),
    ({"groups": [group("a", ["x"]), {"features": ["y"], "cost": 1}]}, ["number 2", "name", "required"]),
    ({"groups": [group("", ["x"])]}, ["number 1", "name"]),
    ({"groups": ["a"]}, ["number 1", "object", "'a'"]),
    ({"groups": [group("a", "x")]}, ["'a'", "features", "'x'"]),  # type: ignore[arg-type]
    ({"groups": [group("a", [7])]}, ["'a'", "features", "7"]),  # type: ignore[list-item]
    (of_cost(10**400), ["finite"]),
    (of_cost({}), ["groups: group 'a': the cost is {}; expected a number per row, or fixed and per_row"]),
    (of_cost({"fixed": -1}), ["the fixed cost of group 'a' is -1.0; expected a finite number >= 0"]),
    (of_cost({"fixed": 1, "per_row": -1}), ["the cost of group 'a' is -1.0; expected a finite number >= 0"]),
    (of_cost({"fixed": 1e200}), ["the fixed cost of group 'a' is 1e+200; expected a finite number 1e+100 or less"]),
    (of_cost({"fixed": "x"}), ["group 'a', cost, fixed: input should be a valid number (got 'x')"]),
    (of_cost({"each": 1}), ["group 'a', cost, each: extra inputs are not permitted (got 1)"]),
    (of_cost("x"), ["group 'a', cost: input should be a valid number (got 'x')"]),
    (of_cost(None), ["group 'a', cost: input should be a valid number (got None)"]),
    (of_cost([1, 2]), ["group 'a', cost: input should be a valid number (got [1, 2])"]),
    *(({"rows": rows, **of_cost(1.0)}, ["rows: "]) for rows in (0, -1, 1.5, "1", True, 10**10)),
    ({"groups": [group("a", ["x"]) | {"co\nst": 1}]}, ["co"]),
    ({"groups": [group("a", ["x*"])], "bases": {"y": {"basis": "hinge"}}}, ["column 'y', which is in no group"]),
    # The form that was meant is shown.
    (["age", "city"], ["a list of names", '["age"]', '{"a": ["age", "city"]}']),
    ({"a": 5}, ["group 'a' is 5", '{"a": ["column", ...]}']),
    ({"a": "age"}, ["group 'a' is 'age'", '{"a": ["column", ...]}']),
    ({"groups": [{"name": "a", "features": ["x"]}]}, ["cost", '{"name": "a", "features": ["x"], "cost": 1}']),
    ({"groups": [group("a", ["x"], "5ms"), group("b", ["y"], "2 dollars")]}, ["'ms', 'dollars'", "one unit"]),
    ({"groups": [group("a", ["x"], "5ms")], "cost_unit": "dollars"}, ["'ms', 'dollars'", "one unit"]),
    (5, ["groups is 5", "a list of lists"]),
    ([["age"], ["age"]], ["'age'", "each feature in one group"]),
    ({}, ['has no groups; expected at least one, such as {"a": ["column"]}']),
    ([], ['has no groups; expected at least one, such as {"a": ["column"]}']),
    ([("one", ["a"]), ("two", ["b"])], ['a list of pairs; expected a dict, such as {"one": ["a"]}']),
    ([[0, 1], [2]], ['a group is [0, 1]; expected names of columns, such as ["x0", "x1"] of an array']),
    ({"one": [0, 1]}, ['a group is [0, 1]; expected names of columns, such as ["x0", "x1"] of an array']),
    ([0, 0, 1], ['a list of numbers; expected lists of columns, such as [["a", "b"]]']),
    ({"one": {"cols": ["a"]}}, ['expected {"name": "one", "features": ["a"], "cost": 1.0}']),
    ([{"name": "one", "columns": ["a"]}], ['expected {"name": "one", "features": ["a"], "cost": 1}']),
]


@pytest.mark.parametrize(("content", "words"), WRONG, ids=[str(content)[:60] for content, _ in WRONG])
def test_a_broken_rule_a_wrong_cost_and_what_is_no_form_of_groups_are_told_in_a_line(
    content: Any, words: list[str]
) -> None:
    assert_refused(lambda: load_groups(content), *words, error=GroupsError)


def test_a_wrong_type_is_shown_in_short() -> None:
    many = {f"group{i}": group("a", [f"x{i}"]) for i in range(100)}
    assert len(assert_refused(lambda: load_groups({"groups": many}), "groups", error=GroupsError)) < 300
