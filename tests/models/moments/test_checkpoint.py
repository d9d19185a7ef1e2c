"""A pass that was stopped is taken up where it was, and comes to the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import _files as container
from anytime.cli.main import main
from anytime.data.dataset import Dataset
from anytime.data.formats import open_table
from anytime.data.survey import settle_target, survey, surveyed
from anytime.errors import ArtifactError, TableError
from anytime.groups import load_groups
from anytime.moments.files import CHECKPOINT, Checkpoint
from anytime.moments.moments import Moments

ROWS, STOP = 12_000, 9_000
CONTENT = {
    "groups": [{"name": "g", "features": ["x0", "x1"], "cost": 1.0}, {"name": "h", "features": ["x2"], "cost": 2}]
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve blocks, so that some are done when a pass stops."""
    monkeypatch.setattr("anytime.data.formats.table.BLOCK_VALUES", 1)


@pytest.fixture(params=[".parquet", ".csv"], scope="module")
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of several batches, with gaps, queries and classes."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(ROWS, 3)), columns=["x0", "x1", "x2"])
    frame["x1"] += 1e4
    frame.loc[::700, "x2"] = np.nan
    frame["y"] = frame["x0"] + rng.normal(size=ROWS)
    frame.loc[::900, "y"] = np.nan
    frame["kind"] = np.where(frame["x0"] > 0.3, "up", "down")
    frame["q"] = np.sort(rng.integers(0, 500, size=ROWS))
    path: Path = tmp_path_factory.mktemp("table") / f"table{request.param}"
    if request.param == ".parquet":
        frame.to_parquet(path, row_group_size=2_700)
    else:
        frame.to_csv(path, index=False)
    return path


def dataset(path: Path, target: str = "y", groups: dict[str, Any] = CONTENT, **options: Any) -> Dataset:
    opened = open_table(path)
    found = survey(opened, [target], drop_missing=True)
    return Dataset(opened, load_groups(groups), settle_target(found), drop_missing=True, **options)


def stopped(after: int) -> Callable[[int], None]:
    """Progress that stops the pass behind some rows."""
    seen = 0

    def stop_pass(rows: int) -> None:
        nonlocal seen
        seen += rows
        if seen > after:
            raise TableError("the table is out of reach")

    return stop_pass


def assert_same(one: list[Moments], other: list[Moments]) -> None:
    for a, b in zip(one, other, strict=True):
        assert (a.rows, a.weight, a.missing) == (b.rows, b.weight, b.missing)
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-12, atol=1e-12)
        size = np.sqrt(np.diagonal(b.scatter))  # the mean of x1 is 10,000 of its deviations: so many digits are lost
        assert (np.abs(a.scatter - b.scatter) <= 1e-9 * np.outer(size, size)).all()


@pytest.mark.parametrize(("how", "jobs"), [("rows", 1), ("rows", 2), ("queries", 2), ("classes", 1), ("whole", 1)])
def test_a_pass_that_was_stopped_comes_to_what_it_would_have(how: str, jobs: int, table: Path, tmp_path: Path) -> None:
    target, query = "kind" if how == "classes" else "y", "q" if how == "queries" else None
    options: dict[str, Any] = {"seed": 3, "stratified": how == "classes", "n_jobs": jobs}
    folds = 1 if how == "whole" else 4
    expected = dataset(table, target, query=query).moments(folds, **options)
    path = tmp_path / "pass.checkpoint"
    again, remembered = dataset(table, target, query=query), Checkpoint(path, every_s=0.0)
    with pytest.raises(TableError, match="out of reach"):
        again.moments(folds, progress=stopped(STOP), checkpoint=remembered, **options)
    row = json.loads(read(path))["row"]
    assert 0 < row < ROWS
    reported: list[int] = []
    found = dataset(table, target, query=query).moments(
        folds, progress=reported.append, checkpoint=Checkpoint(path, every_s=0.0), **options
    )
    assert_same(found, expected)
    assert sum(reported) == sum(part.rows for part in expected)
    assert_same(dataset(table, target, query=query).moments(folds, checkpoint=Checkpoint(path), **options), expected)


def test_a_pass_over_terms_that_was_stopped_comes_to_what_it_would_have(table: Path, tmp_path: Path) -> None:
    path = tmp_path / "pass.checkpoint"
    content = {"groups": [{"name": "g", "features": ["x0", "kind"], "cost": 1}, CONTENT["groups"][1]]}

    def learned(basis: str = "hinge:2") -> Dataset:
        data = dataset(table, groups=content)
        bases, _ = surveyed(data.table, data.groups, ["y"], option=basis, drop_missing=True, seed=3)
        return replace(data, groups=bases)

    expected = learned().moments(4)
    assert expected[0].features == 8, "x0 and x2 with two knots each, and two kinds"
    with pytest.raises(TableError, match="out of reach"):
        learned().moments(4, progress=stopped(STOP), checkpoint=Checkpoint(path, every_s=0.0))
    assert 0 < json.loads(read(path))["row"] < ROWS
    with pytest.raises(ArtifactError, match="belongs to a pass with another bases"):
        learned("hinge:1").moments(4, checkpoint=Checkpoint(path))
    assert_same(learned().moments(4, checkpoint=Checkpoint(path)), expected)


def read(path: Path) -> str:
    """The record of a checkpoint."""
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return str(header["__metadata__"]["anytime.checkpoint"])


def test_it_is_written_now_and_then_only(table: Path, tmp_path: Path) -> None:
    path = tmp_path / "pass.checkpoint"
    data, remembered = dataset(table), Checkpoint(path, every_s=3600.0)
    with pytest.raises(TableError, match="out of reach"):
        data.moments(progress=stopped(STOP), checkpoint=remembered)
    assert not path.exists()


@pytest.mark.parametrize("change", ["seed", "folds", "table", "features"])
def test_a_checkpoint_of_another_pass_is_refused(change: str, table: Path, tmp_path: Path) -> None:
    path = tmp_path / "pass.checkpoint"
    dataset(table).moments(3, seed=0, checkpoint=Checkpoint(path))
    other = dataset(table)
    if change == "table":
        table.touch()
    if change == "features":
        other = Dataset(other.table, load_groups({"groups": CONTENT["groups"][:1]}), other.target, drop_missing=True)
    with pytest.raises(ArtifactError, match=f"another {change}") as caught:
        other.moments(4 if change == "folds" else 3, seed=int(change == "seed"), checkpoint=Checkpoint(path))
    assert "\n" not in str(caught.value)
    assert path.exists()


def test_a_damaged_checkpoint_is_refused(table: Path, tmp_path: Path) -> None:
    path = tmp_path / "pass.checkpoint"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ArtifactError, match="remove it to start again"):
        dataset(table).moments(checkpoint=Checkpoint(path))


@pytest.mark.parametrize(
    "change",
    [{"identity": []}, {"identity": None}, {"row": float("inf")}, {"row": -5}, {"row": 3.0}, {"row": True}],
    ids=str,
)
def test_a_checkpoint_whose_record_cannot_be_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "pass.checkpoint"
    Checkpoint(path).save(0, [Moments.empty(1, 1, np.zeros(1))])
    record, (_, arrays) = json.loads(read(path)), container.read(path, CHECKPOINT)
    container.write(path, CHECKPOINT, json.dumps(record | change), arrays)
    with pytest.raises(ArtifactError, match="damaged record; remove it to start again"):
        Checkpoint(path).begin({}, 1, 1)


def test_the_command_goes_on_from_a_checkpoint_and_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(ROWS, 3)), columns=["x0", "x1", "x2"])
    frame["y"] = frame["x0"] + rng.normal(size=ROWS)
    frame.to_parquet("t.parquet")
    Path("g.json").write_text(json.dumps(CONTENT))
    command = ["train", "t.parquet", "--groups", "g.json", "--target", "y", "--out", "m.safetensors"]
    command += ["--checkpoint", "c.checkpoint"]
    moments = Dataset.moments

    def cut(self: Dataset, *args: Any, **options: Any) -> list[Moments]:
        options["checkpoint"]._every_s = 0.0
        return moments(self, *args, **options | {"progress": stopped(STOP)})

    with monkeypatch.context() as patched:
        patched.setattr(Dataset, "moments", cut)
        assert main(command) != 0
    assert Path("c.checkpoint").exists()
    assert not Path("m.safetensors").exists()
    assert main([*command, "--seed", "1"]) == 2
    assert "another seed" in capsys.readouterr().err
    assert main(command) == 0
    assert not Path("c.checkpoint").exists()
    assert Path("m.safetensors").exists()


@pytest.mark.parametrize(
    "wrong", [{"x1": np.inf}, {"x1": 1e200}, {"x1": np.inf, "z": np.inf}, {"x1": 1e200, "z": np.inf}]
)
def test_a_pass_that_is_repeated_without_unusable_columns_is_resumed(
    wrong: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(ROWS, 4)), columns=["x0", "x1", "x2", "z"])
    frame["y"] = frame["x0"] + rng.normal(size=ROWS)
    for name, value in wrong.items():
        frame.loc[ROWS - 1, name] = value
    frame.to_parquet("t.parquet")
    command = ["train", "t.parquet", "--target", "y", "--basis", "linear", "--clamp", "off"]
    assert main([*command, "--out", "expected.safetensors"]) == 0
    expected = capsys.readouterr().out
    command += ["--out", "m.safetensors", "--checkpoint", "c.checkpoint"]
    moments, read_rows = Dataset.moments, []

    def cut(self: Dataset, *args: Any, **options: Any) -> list[Moments]:
        options["checkpoint"]._every_s = 0.0
        if set(self.groups.features).isdisjoint(wrong):
            options["progress"] = stopped(STOP)
        return moments(self, *args, **options)

    def counted(self: Dataset, *args: Any, **options: Any) -> list[Moments]:
        before = Path("c.checkpoint").exists() and json.loads(read(Path("c.checkpoint")))["row"]
        read_rows.append((len(self.groups.features), before))
        return moments(self, *args, **options)

    for _ in range(2):  # interrupted twice
        with monkeypatch.context() as patched:
            patched.setattr(Dataset, "moments", cut)
            assert main(command) == 2
        assert "out of reach" in capsys.readouterr().err
        assert json.loads(read(Path("c.checkpoint")))["row"] > 0
    with monkeypatch.context() as patched:
        patched.setattr(Dataset, "moments", counted)
        assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[:4] == expected.splitlines()[:4]
    assert all(row > 0 for _, row in read_rows), "every pass resumes"
    assert read_rows[-1][0] == 4 - len(wrong)
    assert not Path("c.checkpoint").exists()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("m.safetensors", "--out"),
        ("t.csv", "DATA"),
        ("g.json", "--groups"),
        ("v.csv", "--validation"),
        ("c.csv", "--calibrate"),
        ("e.csv", "--test"),
    ],
)
def test_a_checkpoint_that_is_another_file_of_the_command_is_refused(
    name: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for table in ("t.csv", "v.csv", "c.csv", "e.csv"):
        pd.DataFrame(rng.normal(size=(40, 4)), columns=["x0", "x1", "x2", "y"]).to_csv(table, index=False)
    Path("g.json").write_text(json.dumps(CONTENT))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    command = ["train", "t.csv", "--groups", "g.json", "--target", "y", "--out", "m.safetensors"]
    command += ["--validation", "v.csv", "--calibrate", "c.csv", "--test", "e.csv"]
    assert main([*command, "--checkpoint", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --checkpoint")
    assert f"which is also {what}" in said
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
