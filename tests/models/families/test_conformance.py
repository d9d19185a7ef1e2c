"""A family is one class: a complete one of the test's own works everywhere, and an incomplete one is a clear error."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

import anytime
from anytime import AnytimeRegressor
from anytime.cli.main import main
from anytime.data.formats import open_table
from anytime.evaluation.evaluate import evaluate
from anytime.families import FAMILIES, Family, family_of
from anytime.families.family import Link
from anytime.types import Bool, Float
from anytime_service.settings import Settings
from guides import ROOT
from models import literal
from models.commands import Capture, output, refusal
from models.exporting import Event, asked, compiled
from models.opening import by_group, opened
from models.present import present
from models.refusals import assert_refused
from service.serving import run_service

GROUPS: dict[str, Any] = {
    "cost_unit": "ms",
    "groups": [{"name": "a", "features": ["a0", "a1"], "cost": 2.0}, {"name": "b", "features": ["b0"], "cost": 1.0}],
}
FEATURES = ["a0", "a1", "b0"]
TRAIN = [
    "train",
    "train.csv",
    "--groups",
    "groups.json",
    "--target",
    "y",
    "--family",
    "swing",
    "--out",
    "m.safetensors",
]


class Swing(Family):
    """Responses of either sign, below 1,000: E[y|x] = sinh(eta), so phi(eta) = cosh(eta)."""

    name = "swing"
    tasks = ("regression",)
    link = Link("asinh", "area", "    output[0] = sinh(scores[0]);")
    noun = "swing"
    expected = "swings below 1000"

    def valid(self, Y: Float) -> Bool:
        return np.asarray(Y < 1000.0)

    def start(self, mean: Float) -> Float:
        return np.arcsinh(mean)

    def saturated(self, Y: Float) -> Float:
        return np.asarray((np.hypot(1.0, Y) - Y * np.arcsinh(Y)).sum(axis=1))

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        return (np.cosh(eta) - Y * eta)[:, 0], Y - np.sinh(eta)

    def curvature(self, eta: Float, Y: Float) -> Float:  # noqa: ARG002
        return np.cosh(eta)

    def mean(self, scores: Float) -> Float:
        return np.sinh(scores)

    def deviation(self, mean: Float, scale: Float) -> Float:  # noqa: ARG002
        return np.sqrt(np.hypot(1.0, mean))


def table(rows: int, seed: int) -> pd.DataFrame:
    X = np.random.default_rng(seed).normal(size=(rows, 3))
    y = np.sinh(0.4 + X @ [0.8, -0.5, 0.3]) + np.random.default_rng(seed + 1).normal(size=rows)
    return pd.DataFrame({**dict(zip(FEATURES, X.T, strict=True)), "y": y, "z": y})


@pytest.fixture
def desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables and groups, and the family."""
    monkeypatch.setitem(FAMILIES, "swing", Swing)
    Path("groups.json").write_text(json.dumps(GROUPS))
    for number, name in enumerate(("train", "test", "other")):
        table(200, 10 * number).to_csv(f"{name}.csv", index=False)
    return desk


@pytest.fixture
def trained(desk: Path) -> anytime.LoadedModel:
    assert main([*TRAIN, "--alpha", "cv", "--folds", "3", "--test", "test.csv", "--calibrate", "other.csv"]) == 0
    return anytime.load(desk / "m.safetensors")


def test_it_trains_by_every_way_to_the_optimum(desk: Path) -> None:
    assert main([*TRAIN, "--alpha", "0.01", "--folds", "0"]) == 0
    model, frame = anytime.load("m.safetensors"), pd.read_csv("train.csv")
    assert (model.manifest.family, model.manifest.link, model.manifest.task) == ("swing", "asinh", "regression")
    estimator = AnytimeRegressor(GROUPS, family="swing", alpha=0.01).fit(frame[FEATURES], frame["y"])
    np.testing.assert_allclose(estimator.fit_.prefixes.packed, model.prefixes.packed, rtol=1e-9)
    Z, y = literal.standardise(frame[FEATURES].to_numpy(), frame["y"].to_numpy())[0], frame["y"].to_numpy()

    def objective(theta: Float) -> float:
        eta = theta[0] + Z @ theta[1:]
        return float(np.mean(np.cosh(eta) - y * eta) + 0.005 * np.sum(theta[1:] ** 2))

    wanted = minimize(objective, np.zeros(4), method="BFGS", options={"gtol": 1e-8}).x
    scores = wanted[0] + Z @ wanted[1:]
    np.testing.assert_allclose(estimator.predict(frame[FEATURES]), np.sinh(scores), rtol=1e-4, atol=1e-4)
    assert estimator.save("again.safetensors").manifest.family == "swing"
    assert anytime.load("again.safetensors").prefixes.packed.tolist() == estimator.fit_.prefixes.packed.tolist()


def test_it_is_measured_calibrated_shown_and_described(trained: anytime.LoadedModel, capsys: Capture) -> None:
    found, frame = evaluate(trained, open_table("test.csv")), pd.read_csv("test.csv")
    mean, y = np.sinh(trained.prefixes.predict(frame[FEATURES].to_numpy(), trained.steps))[:, 0], frame["y"]
    eta, perfect = np.arcsinh(mean), np.arcsinh(y)
    deviance = 2 * np.mean(np.cosh(eta) - y * eta - np.cosh(perfect) + y * perfect)
    assert np.asarray(found.deviance)[-1] == pytest.approx(deviance, rel=1e-9)
    assert found.mse[-1] == pytest.approx(np.mean((mean - y) ** 2), rel=1e-9)
    answer = opened(trained, by_group(trained.groups, frame[FEATURES].to_numpy()), len(frame)).answer()
    np.testing.assert_allclose(answer.prediction, mean, rtol=1e-9)
    ends = np.array(answer.interval)
    width = 2 * present(trained.manifest.calibration).thresholds[-1] * np.sqrt(np.hypot(1.0, mean))
    np.testing.assert_allclose(ends[:, 1] - ends[:, 0], width, rtol=1e-9)
    assert 0.8 < np.mean((ends[:, 0] <= y) & (y <= ends[:, 1])) <= 1.0
    assert "regression, swing by" in output(capsys, "show", "m.safetensors")
    output(capsys, "plot", "m.safetensors", "--out", "m.svg")
    output(capsys, "plot", "m.safetensors", "--shapes", "--out", "shapes.svg")
    again = ["--data", "train.csv", "--alpha", "0.1", "--out", "again.safetensors"]
    output(capsys, "resequence", "m.safetensors", *again)
    assert anytime.load("again.safetensors").manifest.family == "swing"
    said = refusal(capsys, "certify", "m.safetensors", "--out", "c.safetensors")
    assert "is swing; certificates support least squares only" in said


def test_it_is_exported(trained: anytime.LoadedModel, desk: Path) -> None:
    assert main(["export", "m.safetensors", "--to", "json", "--out", "m.json"]) == 0
    document = json.loads(Path("m.json").read_text())
    assert (document["family"], document["link"]) == ("swing", "asinh")
    assert main(["export", "m.safetensors", "--to", "c", "--out", "exported.h"]) == 0
    ask = compiled(trained, desk, "ask.c")
    assert Path("exported.h").read_text() == Path("m.h").read_text()
    ((_, outputs),) = asked(trained, ask, [Event("a", (0.5, -1.25)), Event("b", (2.0,)), Event()])
    wanted = np.sinh(trained.prefixes.predict(np.array([[0.5, -1.25, 2.0]]), trained.steps))[0, 0]
    assert outputs == pytest.approx([wanted], rel=1e-12)


def test_it_is_served_and_explained(trained: anytime.LoadedModel) -> None:
    with run_service([trained], Settings(port=0)) as service:
        described = service.get("/models/m").json()
        assert (described["family"], described["link"]) == ("swing", "asinh")
        assert described["measures"] == {
            "explained": "deviance explained",
            "error": "deviance",
            "score": "area",
            "least_squares": False,
        }
        answer = service.post({"groups": {"a": [0.5, -1.25], "b": [2.0]}}, explain=True).json()
    scores = trained.prefixes.predict(np.array([[0.5, -1.25, 2.0]]), trained.steps)[0, 0]
    assert answer["prediction"] == pytest.approx(np.sinh(scores), rel=1e-12)
    parts = answer["contributions"]
    assert parts["intercept"] + sum(parts["groups"].values()) == pytest.approx(scores, rel=1e-9)


def test_it_refuses_responses_and_targets_in_its_own_words(desk: Path, capsys: Capture) -> None:
    frame = pd.read_csv("train.csv")
    frame.loc[3, "y"] = 5000.0
    frame.to_csv("wrong.csv", index=False)
    assert_refused(
        lambda: AnytimeRegressor(GROUPS, family="swing").fit(frame[FEATURES], frame["y"]),
        "target 'y' is 5000 in row 3; expected swings below 1000",
        error=ValueError,
    )
    for call, why in (
        (["train", "wrong.csv", *TRAIN[2:]], "target 'y' holds 5000; expected swings below 1000"),
        ([*TRAIN, "--target", "z"], "family swing fits one target, and 2 are given"),
        ([*TRAIN, "--task", "count"], "family swing does not fit target 'y' (task count)"),
    ):
        assert why in refusal(capsys, *call)


def broken(family: Family) -> list[str]:
    """What the formulas of a family break of its contract, with what follows from it."""
    rng, P = np.random.default_rng(0), 3 if family.name == "multinomial" else 1
    one, other = rng.uniform(0.1, 0.9, size=(2, 5, P))
    if P > 1:  # shares
        one, other = (each / each.sum(axis=1, keepdims=True) for each in (one, other))
    perfect = np.array([family.start(y) for y in one])
    eta = perfect + 0.1 * rng.normal(size=perfect.shape)
    loss, slope = family.loss(eta, one)
    between = family.loss(eta, (one + other) / 2)[0]
    base = np.tile(family.start(one.mean(axis=0)), (5, 1))
    step = 1e-6
    moved = [
        (family.loss(eta + h, one)[0] - family.loss(eta - h, one)[0]) / (2 * step) for h in step * np.eye(len(eta.T))
    ]
    promises = {
        "the loss is not linear in the responses: their mean does not give the base rate, nor r2": (
            between,
            (loss + family.loss(eta, other)[0]) / 2,
        ),
        "the second result of `loss` is not its negative gradient: training does not converge": (
            -slope,
            np.stack(moved, 1),
        ),
        "the loss of all rows is not least at `start` of their mean: step 0 is not the base rate": (
            family.loss(base, one)[1].mean(axis=0),
            np.zeros(len(eta.T)),
        ),
        "`saturated` is not the loss of a perfect fit: deviances are wrong": (
            family.saturated(one),
            family.loss(perfect, one)[0],
        ),
    }
    return [why for why, (found, wanted) in promises.items() if not np.allclose(found, wanted, rtol=1e-6, atol=1e-6)]


@pytest.mark.parametrize(
    "family", [*(kind.of("2" if name == "negative-binomial" else None) for name, kind in FAMILIES.items()), Swing()]
)
def test_the_formulas_of_a_family_keep_its_contract(family: Family) -> None:
    assert broken(family) == []


@pytest.mark.parametrize("lacking", ["name", "tasks", "link", *sorted(Family.__abstractmethods__)])
def test_without_one_of_its_parts_it_is_a_clear_error(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {name: member for name, member in vars(Swing).items() if name not in (lacking, "__abstractmethods__")}
    incomplete: Any = type("Swing", (Family,), members)
    monkeypatch.setitem(FAMILIES, "swing", incomplete)
    frame = table(30, 0)
    assert_refused(
        lambda: AnytimeRegressor(GROUPS, family="swing").fit(frame[FEATURES], frame["y"]),
        f"family Swing lacks {lacking}; expected the members of Family",
        error=TypeError,
    )


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gaussian"])
def test_a_family_is_one_class_one_entry_and_a_row_of_the_guide(name: str) -> None:
    """As "Where to add" in CONTRIBUTING.md says: no other file of the library or the service names a likelihood."""
    kind = FAMILIES[name]
    assert family_of(name).label.partition(":")[0] == kind.name == name
    guide = (ROOT / "models" / "guides" / "choices.md").read_text(encoding="utf-8")
    table_of_families = guide.partition("## Families")[2].partition("\n```")[0]
    assert f"`{name}" in table_of_families
    home = Path(inspect.getfile(kind))
    assert home.parent == ROOT / "models" / "anytime" / "families"
    literal_name = re.compile(rf'(["\'`]){name}\1(?!\))')
    naming = {
        path.relative_to(ROOT).as_posix()
        for folder in ("models/anytime", "service/anytime_service")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".js") and path != home and any(map(literal_name.search, code_of(path)))
    }
    assert naming <= {"service/anytime_service/demo/story.py"}  # the demonstration is of one family


def code_of(path: Path) -> list[str]:
    """The lines of a file without its docstrings and comments."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r'"""(?:.|\n)*?"""', "", text) if path.suffix == ".py" else text
    return [re.sub(r"(#|//).*", "", line) for line in text.splitlines()]
