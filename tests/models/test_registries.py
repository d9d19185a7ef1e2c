"""What "Where to add" in CONTRIBUTING.md says of each registry, and members of the test's own of those without a file.

Selection methods, bases and families have tests of a complete member, and of one that lacks a part, in their folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import anytime
from anytime.data.formats import SUFFIXES, Batch, ReadAs, Table, open_table
from anytime.families import FAMILIES
from anytime.families.family import Family
from anytime.features.bases import BASES
from anytime.features.bases.basis import Basis
from anytime.features.operations import OPERATIONS, Operation
from anytime.model.export import EXPORTS, Export
from anytime.model.model import Model
from anytime.selection import Criterion
from anytime.selection.criteria import CRITERIA
from guides import ROOT, text_of
from models.commands import Capture, document, output, refusal
from models.refusals import assert_refused

REGISTRIES: dict[str, tuple[Mapping[str, Any], str, set[str]]] = {
    "selection criterion": (CRITERIA, "selection/criteria.py", {"name", *Criterion.__abstractmethods__}),
    "basis": (BASES, "features/bases/basis.py", {"name", "fits", *Basis.__abstractmethods__}),
    "operation of a term": (OPERATIONS, "features/operations.py", {"form", "code", *Operation.__abstractmethods__}),
    "family": (FAMILIES, "families/__init__.py", {"name", "tasks", "link", *Family.__abstractmethods__}),
    "table format": (SUFFIXES, "data/formats/__init__.py", {*Table.__abstractmethods__}),
    "model export": (EXPORTS, "model/export.py", {"suffix", "text"}),
}
"""Each registry, where it is, and the parts of a member that have no default."""


@pytest.mark.parametrize("what", REGISTRIES)
def test_contributing_names_each_registry_its_home_its_parts_and_its_test(what: str) -> None:
    members, home, parts = REGISTRIES[what]
    table = text_of("CONTRIBUTING.md").partition("### Where to add")[2].partition("\n## ")[0]
    row = dict(re.findall(r"^\| (.+?) \| (.+) \|$", table, flags=re.MULTILINE))[what]
    source = (ROOT / "models" / "anytime" / home).read_text(encoding="utf-8")
    constant = next(name for name in re.findall(r"^([A-Z]+)\b.*=", source, flags=re.MULTILINE) if f"`{name}`" in row)
    assert members
    assert re.search(rf"^{constant}\b", source, flags=re.MULTILINE)
    assert home in row
    assert {part for part in parts if f"`{part}`" not in row} == set()
    tested = re.findall(r"`(tests/[\w/.]+)`", row)
    assert tested
    source = "".join((ROOT / path).read_text(encoding="utf-8") for path in tested)
    assert re.search(r"def test_\w*(without_one_of_its_parts|lacks_a_member)", source)


class Lines(Table):
    """A file of lines `name: numbers`, one column each."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        lines = [line.partition(":") for line in path.read_text().splitlines()]
        self._values = {name: np.array(values.split(), dtype=np.float64) for name, _, values in lines}
        self._columns = dict(self._values)

    def _types(self, names: tuple[str, ...], stated: Mapping[str, ReadAs]) -> dict[str, ReadAs]:
        return {name: "number" for name in names if name not in stated}

    def _read(self, types: Mapping[str, ReadAs], rows: int, begin: int) -> Iterator[Batch]:
        for start in range(begin, len(next(iter(self._values.values()))), rows):
            yield Batch(start, {name: self._values[name][start : start + rows] for name in types})


@pytest.fixture
def desk(desk: Path) -> pd.DataFrame:
    X = np.random.default_rng(0).normal(size=(90, 3))
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=X @ [1.0, -2.0, 0.5] + 1.0)
    frame.to_csv("table.csv", index=False)
    lines = (f"{name}: {' '.join(map(repr, column.tolist()))}" for name, column in frame.items())
    Path("table.lines").write_text("\n".join(lines))
    return frame


def test_a_table_format_of_ones_own_works_in_every_command(
    desk: pd.DataFrame, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_refused(lambda: open_table("table.lines"), "has an unknown format; expected one of")
    monkeypatch.setitem(SUFFIXES, ".lines", Lines)
    for suffix in ("lines", "csv"):
        command = ["train", f"table.{suffix}", "--target", "y", "--out", f"{suffix}.safetensors"]
        output(capsys, *command, "--test", f"table.{suffix}")
    own, plain = anytime.load("lines.safetensors"), anytime.load("csv.safetensors")
    np.testing.assert_allclose(own.prefixes.packed, plain.prefixes.packed, rtol=1e-12)
    assert document(capsys, "evaluate", "lines.safetensors", "table.lines")["rows"] == len(desk)
    output(capsys, "predict", "lines.safetensors", "table.lines", "--out", "predicted.csv")
    assert len(pd.read_csv("predicted.csv")) == len(desk)
    output(capsys, "moments", "table.lines", "--target", "y", "--out", "t.moments")


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("lacking", ["_types", "_read"])
def test_a_table_format_without_one_of_its_parts_is_a_clear_error(
    lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {name: value for name, value in vars(Lines).items() if name not in (lacking, "__abstractmethods__")}
    monkeypatch.setitem(SUFFIXES, ".lines", type("Lines", (Table,), members))
    assert_refused(lambda: open_table("table.lines"), "Lines ", lacking, error=TypeError)


def words(model: Model) -> str:
    return f"{model.name}: {', '.join(step.group for step in model.manifest.steps)}\n"


@pytest.mark.usefixtures("desk")
def test_an_export_of_ones_own_is_a_form_of_the_command(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    output(capsys, "train", "table.csv", "--target", "y", "--out", "m.safetensors")
    export = ["export", "m.safetensors", "--to", "words"]
    assert "--to is 'words'; expected one of json, c" in refusal(capsys, *export)
    monkeypatch.setitem(EXPORTS, "words", Export(".txt", words))
    output(capsys, *export, "--out", "m.txt")
    assert Path("m.txt").read_text() == "m: b, a, c\n"
    assert ".txt" in refusal(capsys, *export, "--out", "m.json")
