"""Moments as files: the moments of sites add up to those of all rows, and files are not believed.

Sites whose rows lack a class, have one class only, or have no event yet join as one table of all rows.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from anytime._files import has_kind
from anytime.cli.main import main
from anytime.errors import ArtifactError
from anytime.loaded import load
from anytime.moments.files import KIND, StoredMoments
from models.commands import Capture, ran, refusal
from models.refusals import assert_refused

pytestmark = pytest.mark.usefixtures("linear_by_default")

GROUPS = {
    "cost_unit": "ms",
    "groups": [
        {"name": "a", "features": ["a0", "a1"], "cost": 4.0},
        {"name": "b", "features": ["b0"], "cost": 0.5},
        {"name": "c", "features": ["c0"], "cost": 2.0},
    ],
}
TOLD = ("--groups", "groups.json", "--target", "y")


def rows(seed: int, count: int = 80) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(count, 4)), columns=["a0", "a1", "b0", "c0"])
    frame["y"] = frame.sum(axis=1) + 0.5 * rng.normal(size=count)
    frame["kind"] = np.where(frame["y"] > 0, "up", "down")
    frame.loc[::7, "b0"] = np.nan
    return frame


@pytest.fixture
def desk(desk: Path) -> Path:
    """A working directory with the tables of two sites, both in one, and groups.json."""
    north, south = rows(0), rows(1, 120)
    north.to_parquet("north.parquet")
    south.to_csv("south.csv", index=False)
    pd.concat([north, south]).to_parquet("all.parquet")
    Path("groups.json").write_text(json.dumps(GROUPS))
    return desk


def done(*arguments: str) -> None:
    assert main(arguments) == 0


def made(*names: str, **options: str) -> StoredMoments:
    out = f"{names[0].split('.')[0]}.moments"
    more = [part for option, value in options.items() for part in (f"--{option}", value)]
    done("moments", *names, *TOLD, "--out", out, *more)
    return StoredMoments.load(out)


@pytest.mark.usefixtures("desk")
def test_two_sites_train_the_model_of_all_rows() -> None:
    made("north.parquet")
    made("south.csv")
    done("moments", "north.moments", "south.moments", "--out", "both.moments")
    both = StoredMoments.load("both.moments")
    assert (both.record.data, both.total.rows) == (("north.parquet", "south.csv"), 200)
    done("train", "both.moments", "--alpha", "1e-3", "--out", "sites.safetensors")
    done("train", "all.parquet", *TOLD, "--alpha", "1e-3", "--out", "whole.safetensors")
    sites, whole = load("sites.safetensors"), load("whole.safetensors")
    assert [step.adds for step in sites.manifest.steps] == [step.adds for step in whole.manifest.steps]
    np.testing.assert_allclose(sites.prefixes.packed, whole.prefixes.packed, rtol=1e-10)
    np.testing.assert_allclose(sites.prefixes.mean, whole.prefixes.mean, atol=1e-13)
    provenance = sites.manifest.provenance
    assert (provenance.data, provenance.imputed) == ("north.parquet, south.csv", ("b0",))


@pytest.mark.usefixtures("desk")
def test_a_site_may_be_taken_away_again() -> None:
    north = made("north.parquet")
    made("south.csv")
    done("moments", "north.moments", "south.csv", *TOLD, "--out", "both.moments")
    done("moments", "both.moments", "--minus", "south.moments", "--out", "left.moments")
    remaining = StoredMoments.load("left.moments")
    assert remaining.record.data == ("north.parquet",)
    for a, b in zip(remaining.parts, north.parts, strict=True):
        assert (a.rows, a.weight) == pytest.approx((b.rows, b.weight))
        np.testing.assert_allclose(a.scatter, b.scatter, atol=1e-10)


@pytest.mark.usefixtures("desk")
def test_rows_that_were_not_added_by_themselves_are_taken_away_without_folds(capsys: Capture) -> None:
    whole, north = made("all.parquet"), made("north.parquet")
    made("south.csv", folds="3")
    captured = ran(capsys, "moments", "all.moments", "--minus", "south.moments", "--out", "left.moments")
    assert "so their rows may be in any fold: the result has one fold and needs a fixed --alpha" in captured.err
    remaining = StoredMoments.load("left.moments")
    assert (remaining.record.folds, remaining.record.data, len(whole.parts)) == (1, ("all.parquet",), 5)
    [part] = remaining.parts
    assert part.rows == 80
    np.testing.assert_allclose(part.refilled(north.total.fill).scatter, north.total.scatter, atol=1e-9)
    said = refusal(capsys, "train", "left.moments", "--out", "m.safetensors")
    assert said == "error: alpha 'cv' needs folds; give at least 2, or a number for alpha"
    done("train", "left.moments", "--alpha", "1e-3", "--out", "left.safetensors")
    done("train", "north.moments", "--alpha", "1e-3", "--out", "north.safetensors")
    np.testing.assert_allclose(
        load("left.safetensors").prefixes.packed, load("north.safetensors").prefixes.packed, rtol=1e-9
    )


@pytest.mark.usefixtures("desk")
def test_a_table_of_fewer_rows_than_folds_goes_with_others() -> None:
    rows(3, 3).to_csv("few.csv", index=False)
    few = made("few.csv")
    assert (few.record.folds, [part.rows for part in few.parts]) == (5, [1, 1, 1, 0, 0])
    north = made("north.parquet")
    done("moments", "north.moments", "few.csv", *TOLD, "--out", "both.moments")
    both = StoredMoments.load("both.moments")
    assert [part.rows for part in both.parts] == [a.rows + b.rows for a, b in zip(north.parts, few.parts, strict=True)]
    done("train", "both.moments", "--out", "both.safetensors")


@pytest.mark.usefixtures("desk")
def test_a_later_table_may_lack_classes_of_the_first_but_has_no_others_and_least_squares_fit_them(
    capsys: Capture,
) -> None:
    options = ("--groups", "groups.json", "--target", "kind", "--out", "both.moments")
    south = rows(1, 120)
    south[south["kind"] == "up"].to_csv("ups.csv", index=False)
    done("moments", "north.parquet", "ups.csv", *options)
    both = StoredMoments.load("both.moments")
    assert (both.record.classes, both.total.rows) == (("down", "up"), 80 + (south["kind"] == "up").sum())
    done("train", "both.moments", "--out", "both.safetensors")
    assert load("both.safetensors").manifest.family == "gaussian"
    south.assign(kind="left").to_csv("lefts.csv", index=False)
    assert "error: lefts.csv: target 'left' was never seen in training; known: 'down', 'up'" in refusal(
        capsys, "moments", "north.parquet", "lefts.csv", *options
    )
    made("north.parquet")
    assert "--target is 'kind'; the moments in 'north.moments' are of 'y'" in refusal(
        capsys, "moments", "north.moments", "ups.csv", *options
    )


@pytest.mark.usefixtures("desk")
def test_a_stream_forgets() -> None:
    north, south = made("north.parquet"), made("south.csv")
    done("moments", "north.moments", "south.moments", "--decay", "0.5", "--out", "stream.moments")
    assert StoredMoments.load("stream.moments").total.weight == 0.5 * north.total.weight + south.total.weight


@pytest.mark.usefixtures("desk")
def test_groups_may_have_new_costs_when_moments_are_trained() -> None:
    made("north.parquet")
    groups = json.loads(Path("groups.json").read_text())
    groups["groups"][1]["cost"] = 50.0
    Path("dear.json").write_text(json.dumps(groups))
    done("train", "north.moments", "--groups", "dear.json", "--out", "dear.safetensors")
    assert load("dear.safetensors").manifest.steps[-1].group == "b"


@pytest.mark.usefixtures("desk")
def test_few_rows_may_tell_themselves_and_that_is_said(capsys: Capture) -> None:
    rows(3, 3).to_csv("few.csv", index=False)
    made("few.csv", folds="0")
    assert "3 rows of 4 features: the rows may be recoverable from these moments" in capsys.readouterr().err


@pytest.mark.usefixtures("desk")
def test_what_does_not_go_together_is_refused(capsys: Capture) -> None:
    made("north.parquet")
    made("south.csv", folds="3")
    done("moments", "all.parquet", "--groups", "groups.json", "--target", "kind", "--out", "kinds.moments")
    for command, words in (
        ("moments north.moments south.moments --out never.moments", "their folds are 3, expected 5"),
        ("moments north.moments kinds.moments --out never.moments", "their target are ['kind'], expected ['y']"),
        ("moments north.moments --minus north.moments --out never.moments", "no rows remain of 80 after removing 80"),
        ("moments north.moments --out never.safetensors", "expected a name that ends in .moments"),
        ("moments north.parquet --out never.moments", "is a table; give --target"),
        ("train north.parquet --groups groups.json --out never.safetensors", "is a table; give --target"),
        ("train kinds.moments --family binomial --out never.safetensors", "fitted on rows"),
        ("train north.moments --weights y --out never.safetensors", "--weights requires a table"),
        ("train north.moments --target c0 --out never.safetensors", "--target is c0; the moments are of y"),
        (
            "train north.moments --task binary --out never.safetensors",
            "--task is binary; the moments are of task regression",
        ),
    ):
        assert words in refusal(capsys, *command.split())
    assert not list(Path().glob("never*"))


@pytest.mark.usefixtures("desk")
def test_files_are_not_believed(capsys: Capture) -> None:
    made("north.parquet")
    arrays = load_file("north.moments")
    content = Path("north.moments").read_bytes()
    record = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["anytime.moments"]

    width = len(arrays["0.mean"]) + 1
    wider = {"0.mean": np.zeros(width), "0.scatter": np.zeros((width, width)), "0.missing": np.array([[99, 100]])}
    binary = record.replace('"task":"regression"', '"task":"binary"')
    for changed, text, words in (
        ({"0.scatter": np.zeros((2, 2))}, record, "has array '0.scatter' as float64 of shape"),
        ({"1.mean": np.full_like(arrays["1.mean"], np.nan)}, record, "has numbers in '1.mean' that are not finite"),
        ({"2.rows": np.array([1.5])}, record, "has array '2.rows' as float64"),
        ({"2.rows": np.array([-1])}, record, "invalid counts in fold 2"),
        (wider, record, "invalid counts in fold 0"),
        ({}, record.replace('"format":1', '"format":2'), "has format 2; this library reads up to 1"),
        ({}, record.replace('"folds":5', '"folds":0'), "damaged record (folds"),
        ({}, "nonsense", "this library did not write"),
        ({}, record.replace('"folds":5', f'"folds":5{"0" * 5_000}'), "this library did not write"),
        ({}, binary, "classes that do not fit its task"),
        ({}, binary.replace('"classes":null', '"classes":["a"]'), "do not fit its task"),
    ):
        save_file(arrays | changed, "spoilt.moments", {"anytime.moments": text})
        assert_refused(partial(StoredMoments.load, "spoilt.moments"), words, error=ArtifactError)
    Path("spoilt.moments").write_bytes(content[:-50])
    assert has_kind(Path("spoilt.moments"), KIND)
    assert "is not a complete safetensors file" in refusal(capsys, "train", "spoilt.moments", "--out", "m.safetensors")
    done("train", "north.moments", "--out", "m.safetensors")
    assert not has_kind(Path("m.safetensors"), KIND)
    assert "another kind; expected one from 'anytime moments'" in refusal(
        capsys, "moments", "north.moments", "--minus", "m.safetensors", "--out", "n.moments"
    )


@pytest.mark.usefixtures("desk")
def test_moments_of_other_columns_do_not_merge() -> None:
    north = made("north.parquet")
    other = StoredMoments(north.record.model_copy(update={"query": "q"}), north.parts)
    assert_refused(lambda: north.merge(other), "their query are 'q', expected None")


def test_a_large_table_is_not_read_to_see_that_it_is_no_moments(tmp_path: Path) -> None:
    path = tmp_path / "large.parquet"
    with path.open("wb") as file:
        file.write(b"PAR1\x15\x04\x15\x80")
        file.truncate(1 << 34)
    assert not has_kind(path, KIND)


STATED = {"two": "no,yes", "three": "a,b,c", "numbers": "0,1,2"}


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("kind", ["two", "three", "numbers", "events"])
def test_sites_that_lack_classes_join_as_one_table(kind: str, *, stated: bool) -> None:
    Path("g.yaml").write_text("groups: [{name: A, features: [a], cost: 1}, {name: B, features: [b], cost: 1}]")
    X = np.random.default_rng(0).normal(size=(300, 2))
    score = X @ [2.0, -1.0]
    of = {
        "two": np.where(score > 0, "yes", "no"),
        "three": np.where(score > 1, "a", np.where(score < -1, "c", "b")),
        "numbers": np.digitize(score, [-1.0, 1.0]),
        "events": np.maximum(score.round(), 0.0),
    }
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": of[kind]})
    classes = ["--classes", STATED[kind]] if stated and kind in STATED else []
    task = ["--task", "multiclass"] if kind == "numbers" else []
    options = ["--groups", "g.yaml", "--target", "y", "--folds", "0", *task, *classes]
    sites = [table[table.y == value] for value in sorted(set(table.y))]
    for i, site in enumerate([*sites, table]):
        site.to_csv(f"{i}.csv", index=False)
        done("moments", f"{i}.csv", *options, "--out", f"{i}.moments")
    done("moments", *(f"{i}.moments" for i in range(len(sites))), "--out", "sites.moments")
    done("moments", *(f"{i}.csv" for i in range(len(sites))), *options, "--out", "tables.moments")
    whole = StoredMoments.load(f"{len(sites)}.moments")
    for name in ("sites", "tables"):
        joined = StoredMoments.load(f"{name}.moments")
        assert (joined.target, joined.total.rows) == (whole.target, whole.total.rows)
        np.testing.assert_allclose(joined.total.mean, whole.total.mean, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(joined.total.scatter, whole.total.scatter, rtol=1e-10, atol=1e-9)
