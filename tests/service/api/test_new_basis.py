"""A basis is one class, as is an operation: new ones work everywhere, and an incomplete basis is refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeRegressor, load
from anytime.errors import GroupsError
from anytime.evaluation.shapes import column_shapes
from anytime.features.bases import BASES, NUMERIC, Basis, ColumnSample, Kind, register
from anytime.features.operations import VALUE, Operands, Operation, Term
from anytime.groups import ColumnBasis
from anytime.model.export import document
from anytime.types import Float
from anytime_service.client import Client
from anytime_service.settings import Settings
from models.commands import Capture, ran, refusal
from models.exporting import Event, asked, compiled
from models.present import present
from models.refusals import assert_refused
from service.serving import run_service

ROOT = Path(__file__).parents[3]
TABLE = ("t.csv", "--groups", "g.json", "--target", "y")
REQUIRED = {"name", "fits", *Basis.__abstractmethods__}


@dataclass(frozen=True)
class Share(Operation):
    """u / (|u| + b)."""

    form = "saturated"
    code = "u / (NAME_size(u) + b)"
    helper = "\nstatic double NAME_size(double u)\n{\n    return u < 0 ? -u : u;\n}\n"
    stated: ClassVar[Mapping[str, str]] = {"width": "b"}

    def values(self, x: Float, of: Operands) -> Float:
        return x / (np.abs(x) + of.b)


@dataclass(frozen=True)
class Saturated(Basis):
    """Terms x and x / (|x| + width); the width is the median size of the values."""

    name: ClassVar[str] = "saturated"
    fits: ClassVar[frozenset[Kind]] = NUMERIC
    parts: ClassVar[frozenset[str]] = frozenset({"width"})

    width: float

    @classmethod
    def learn(cls, size: float, given: ColumnBasis, sample: ColumnSample) -> Self:
        del size
        width = (given.model_extra or {}).get("width")
        if width is None:
            width = float(np.median(np.abs(sample.values))) if len(sample.values) else 1.0
        if not isinstance(width, float | int) or width <= 0:
            raise GroupsError(f"its width is {width!r}; expected a number > 0")
        return cls(float(width))

    def described(self) -> ColumnBasis:
        own: dict[str, Any] = {"width": self.width}
        return ColumnBasis(basis=self.name, **own)

    @property
    def terms(self) -> list[Term]:
        return [VALUE, Term(Share(), " saturated", b=self.width)]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register(Saturated)
    yield
    del BASES["saturated"]


@pytest.fixture
def folder(desk: Path) -> Path:
    """A table with the columns x and z of a group each, and a groups file in which x has the basis."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.normal(size=300), "z": rng.normal(size=300)})
    X.loc[::10, "x"] = np.nan
    Y = np.tanh(3 * X["x"].fillna(0)) + 0.2 * X["z"] + 0.01 * rng.normal(size=300)
    X.assign(y=Y).to_csv("t.csv", index=False)
    groups = [{"name": name, "features": [name], "cost": 1} for name in ("x", "z")]
    (desk / "g.json").write_text(json.dumps({"groups": groups, "bases": {"x": "saturated"}}))
    return desk


def test_a_new_basis_works_everywhere(folder: Path, capsys: Capture) -> None:
    table = pd.read_csv("t.csv")
    X, Y = table[["x", "z"]], table["y"].to_numpy()
    ran(capsys, "train", *TABLE, "--out", "m.safetensors")
    model = load("m.safetensors")
    width = float(np.median(np.abs(X["x"].dropna())))
    assert model.terms.features == ("x", "x saturated", "x is missing", "z")
    assert model.groups.bases["x"].model_extra == {"width": pytest.approx(width)}

    # The command line, moments and a groups file with the learned basis.
    ran(capsys, "evaluate", "m.safetensors", "t.csv")
    ran(capsys, "compare", *TABLE)
    ran(capsys, "basis", *TABLE, "--out", "learned.yaml")
    assert f"width: {width}"[:12] in Path("learned.yaml").read_text()
    ran(capsys, "moments", "t.csv", "--groups", "learned.yaml", "--target", "y", "--out", "t.moments")
    ran(capsys, "train", "t.moments", "--out", "m2.safetensors")
    np.testing.assert_allclose(load("m2.safetensors").prefixes.packed, model.prefixes.packed, rtol=1e-9)

    # Estimators, also with the basis for every column.
    predictions = AnytimeRegressor(json.loads(Path("g.json").read_text()), alpha="cv").fit(X, Y).predict(X)
    assert AnytimeRegressor(basis="saturated").fit(X, Y).get_feature_names_out()[-1] == "z saturated"

    # Predictions, and what they consist of.
    values = {"x": [[None if np.isnan(v) else v] for v in X["x"].tolist()], "z": X[["z"]].to_numpy()}
    opened = model.open(len(X))
    for group, each in values.items():
        opened.add(group, each)
    answer = opened.answer(explain=True)
    np.testing.assert_allclose(np.ravel(answer.prediction), predictions, rtol=1e-9)
    parts = present(answer.contributions)
    total = np.ravel(parts.intercept) + sum(np.ravel(value) for value in parts.features.values())
    np.testing.assert_allclose(total, predictions, rtol=1e-9)

    # Exports.
    terms = next(feature["terms"] for feature in document(model)["features"] if feature["name"] == "x")
    assert [term["form"] for term in terms] == ["value", "saturated", "missing"]
    added = [[Event("x", (x,)), Event("z", (z,)), Event()] for x, z in X.iloc[:20].to_numpy().tolist()]
    found = asked(model, compiled(model, folder, "ask.c"), chain(*added))
    np.testing.assert_allclose([output for _, [output] in found], predictions[:20], rtol=1e-9)

    # Shapes, the plot and the report.
    shape = next(each for each in column_shapes(model) if each.name == "x")
    assert (shape.basis, len(shape.points) >= 2, shape.missing is not None) == ("saturated", True, True)
    ran(capsys, "plot", "m.safetensors", "--shapes", "--out", "shapes.svg")
    ran(capsys, "show", "m.safetensors")

    # The server, its client and the console.
    with run_service([model], Settings(port=0, max_rows=300)) as service:
        with Client(service.url) as client:
            np.testing.assert_allclose(np.ravel(client.predict(values).prediction), predictions, rtol=1e-9)
        assert service.get("/models/m").json()["columns"][0]["type"] == "number"
        assert service.get("/models/m/shape", column="x").json()["basis"] == "saturated"
        assert service.post({"groups": service.get("/models/m/sample").json()["groups"]}).status_code == 200


def test_what_a_groups_file_states_of_it_is_checked_by_the_basis(folder: Path, capsys: Capture) -> None:
    groups = json.loads(Path("g.json").read_text())
    for stated, said in (
        ({"width": -1}, "column 'x': its width is -1; expected a number > 0"),
        ({"width": [1]}, "column 'x': its width is (1,); expected a number > 0"),
        (
            {"depth": 1},
            "column 'x': it states depth, which basis 'saturated' lacks; expected some of width, range, missing",
        ),
        (
            {"knots": [1]},
            "column 'x': it states knots, which basis 'saturated' lacks; expected some of width, range, missing",
        ),
    ):
        (folder / "g.json").write_text(json.dumps(groups | {"bases": {"x": {"basis": "saturated", **stated}}}))
        assert refusal(capsys, "train", *TABLE, "--out", "m.safetensors") == f"error: {said}"


@pytest.mark.parametrize("basis", ["poly:2", "hinge", "date", "saturated"])
def test_what_a_basis_learns_is_checked_before_it_is_stored(basis: str) -> None:
    """Values whose statistics overflow are one line about the column."""
    X = pd.DataFrame({"x": [1.0, 2.0, 1.7e308, -1.7e308] * 20})
    groups = {"groups": [{"name": "x", "features": ["x"], "cost": 1}], "bases": {"x": basis}}
    assert_refused(lambda: AnytimeRegressor(groups).fit(X, np.arange(80.0)), "column 'x'", error=ValueError)


@pytest.mark.parametrize("absent", sorted(REQUIRED))
def test_a_basis_that_lacks_a_member_is_refused_by_its_name(absent: str) -> None:
    members = {name: value for name, value in vars(Saturated).items() if name in REQUIRED - {absent}}
    partial = type("Partial", (Basis,), members | ({} if absent == "name" else {"name": "partial"}))
    with pytest.raises(TypeError, match=rf"basis Partial lacks {absent}; see"):
        register(partial)
    assert "partial" not in BASES


def test_two_bases_have_two_names() -> None:
    with pytest.raises(TypeError, match="two bases have the name 'hinge': Again and Hinge"):
        register(type("Again", (Saturated,), {"name": "hinge"}))


def test_every_basis_has_a_file_and_a_row_in_the_guide() -> None:
    folder = ROOT / "models" / "anytime" / "features" / "bases"
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files == {basis.__module__.rpartition(".")[2] for basis in BASES.values()} - {"test_new_basis"}
    guide = (ROOT / "models" / "guides" / "columns.md").read_text()
    assert [name for name in BASES if not re.search(rf"^\| `{name}\b", guide, re.MULTILINE)] == ["saturated"]
