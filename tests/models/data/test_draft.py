"""Groups that nobody wrote: the draft of a file, and each column at cost 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from anytime import load, open_table
from anytime.cli.main import main
from anytime.data.draft import drafted
from anytime.errors import GroupsError
from anytime.groups import load_groups
from models.commands import ran, refusal


@pytest.fixture
def desk(desk: Path) -> Path:
    rng = np.random.default_rng(0)
    n = 200
    frame = pd.DataFrame({"row": range(n), "key": [f"k{i}" for i in rng.permutation(n)]})
    frame[["hog_0", "hog_1", "_odd"]] = rng.normal(size=(n, 3))
    frame["city"] = rng.choice(["Oslo", "Rome: x", "# z\n"], n)
    frame["ok"] = rng.random(n) < 0.5
    frame["year"] = rng.integers(1990, 2020, n)
    frame["same"], frame["empty"], frame["day"] = 1, None, pd.date_range("2020-01-01", periods=n)
    frame["foreign"] = frame["day"].dt.strftime("%d.%m.%Y")
    frame["y"] = frame["hog_0"] + 2 * frame["hog_1"] + rng.normal(size=n) / 3
    frame["twice"] = 1 - 2 * frame["y"]
    frame["kind"] = np.where(frame["y"] > 0, "up", "down")
    frame["code"] = np.where(frame["y"] > 0, 7, 9)
    frame.loc[::10, "hog_1"] = np.nan
    frame.to_parquet("t.parquet", index=False)
    frame.to_csv("t.csv", index=False)
    return desk


@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_a_draft_leaves_out_what_would_mislead_and_says_why(desk: Path, name: str) -> None:
    draft = drafted(open_table(desk / name), ["y"], by_prefix="_", costs={"hog": "5ms"})
    assert {*draft.left_out} == {"row", "key", "same", "empty", "twice", "foreign"}
    assert draft.left_out["foreign"] == "holds dates such as 01.01.2020; expected ISO form: 2024-05-17"
    assert "identifier: 200 different values in 200 rows" in draft.left_out["key"]
    assert draft.left_out["empty"] == "no value"
    assert "determines y" in draft.left_out["twice"]
    assert draft.groups.names == ("hog", "_odd", "city", "ok", "year", "day", "kind", "code")
    assert draft.groups.costs.tolist() == [5, 1, 1, 1, 1, 1, 1, 1]
    assert draft.groups.types == {"city": "text", "ok": "bool", "day": "date", "kind": "text"}
    assert draft.held["day"] == "date, 2020-01-01 to 2020-07-18, 200 different values"
    assert draft.held["hog_1"].endswith("180 different values, 10 % missing")


def test_what_determines_a_class_is_left_out(desk: Path) -> None:
    left_out = drafted(open_table("t.parquet"), ["kind"]).left_out
    assert {"y", "twice", "code"} <= {*left_out}
    assert "hog_1" not in left_out


@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_the_file_is_read_again_as_the_same_groups_and_trains(desk: Path, name: str) -> None:
    assert main(["groups", name, "--target", "y", "--by-prefix", "_", "--cost", "city=2", "--out", "g.yaml"]) == 0
    text = (desk / "g.yaml").read_text()
    assert "# city" not in text
    assert "#   twice: determines y in every row" in text
    assert load_groups("g.yaml") == drafted(open_table(name), ["y"], by_prefix="_", costs={"city": 2.0}).groups
    assert main(["train", name, "--groups", "g.yaml", "--target", "y", "--out", "m.safetensors"]) == 0
    assert load("m.safetensors").groups.names == load_groups("g.yaml").names


def test_without_groups_each_column_costs_one(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pd.read_parquet("t.parquet").drop(columns=["key", "city"]).to_parquet("u.parquet", index=False)
    said = ran(capsys, "train", "u.parquet", "--target", "y", "--drop", "twice", "--out", "m.safetensors").err
    assert "no --groups: each of 13 columns is a group at cost 1" in said
    groups = load("m.safetensors").groups
    assert {"hog_0", "year", "code"} <= {*groups.names}
    assert set(groups.costs.tolist()) == {1.0}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "nix"], "has no column 'nix'"),
        (["--target", "y", "--cost", "hogg=1"], "--cost hogg=1.0: there is no group 'hogg'; did you mean 'hog_1'?"),
        (["--target", "y", "--cost", "hog"], "--cost is 'hog'; expected GROUP=COST, such as hog=2.5"),
        (["--target", "y", "--cost", "city=-1"], "the cost of group 'city' is -1.0"),
        (["--target", "y", "--cost", "city=dear"], "group 'city'"),
        (["--target", "y", "--out", "g.json"], "cannot write 'g.json'"),
    ],
)
def test_a_wrong_call_writes_nothing(
    desk: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refusal(capsys, "groups", "t.parquet", "--out", "g.yaml", *words)
    assert not list(desk.glob("g.*"))


def test_a_table_without_a_useful_column_says_what_each_holds(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1] * 9, "y": range(9)}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(GroupsError, match=r"no column to learn from: 'a' \(the value 1 in every row"):
        drafted(open_table(tmp_path / "t.parquet"), ["y"])
