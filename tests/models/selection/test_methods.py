"""A selection method is one class: one of the test's own works everywhere, and an incomplete one is a clear error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import anytime
from anytime import AnytimeClassifier, AnytimeRegressor, TrainingError, resequence
from anytime.cli.main import main
from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram
from anytime.selection import Criterion, PathMethod, method_of, methods
from anytime.selection.criteria import CRITERIA, SelectionState
from anytime.training.options import Options
from anytime.training.resequencing import Changes
from anytime.types import Float, Index
from guides import ROOT
from models import literal
from models.commands import Capture, output
from models.refusals import assert_refused

GROUPS: dict[str, Any] = {
    "groups": [
        {"name": "a", "features": ["a0", "a1"], "cost": 2.0},
        {"name": "b", "features": ["b0"], "cost": 1.0},
        {"name": "c", "features": ["c0", "c1"], "cost": 4.0, "requires": ["b"]},
    ]
}
FEATURES = ["a0", "a1", "b0", "c0", "c1"]


class MeanGradient(Criterion):
    """The mean squared gradient of a group's columns, to a power."""

    name = "mean-gradient"

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    def scores(self, state: SelectionState) -> Float:
        scores = np.zeros(len(state.sizes))
        for stack in state.classes:
            scores[stack.groups] = np.square(state.b[stack.rows]).mean(axis=(1, 2)) ** self.power
        return scores

    def union_score(self, state: SelectionState, rows: Index) -> float:
        return float(np.square(state.b[rows]).mean() ** self.power)


class AsListed(PathMethod):
    """The order of the groups file."""

    name = "as-listed"

    def steps(self, gram: Gram, groups: FeatureGroups, *, cost_blind: bool) -> tuple[tuple[int, ...], ...]:  # noqa: ARG002
        return tuple((group,) for group in range(len(groups)))


def table(rows: int = 120, seed: int = 0) -> pd.DataFrame:
    X = np.random.default_rng(seed).normal(size=(rows, 5))
    y = X @ [0.3, 0.1, -0.5, 0.8, 0.8] + np.random.default_rng(seed + 1).normal(size=rows)
    return pd.DataFrame({**dict(zip(FEATURES, X.T, strict=True)), "y": y, "sick": y > 0})


@pytest.fixture
def desk(desk: Path) -> Path:
    Path("groups.json").write_text(json.dumps(GROUPS))
    table().to_csv("train.csv", index=False)
    return desk


def test_a_criterion_of_ones_own_orders_groups_as_its_scores_say() -> None:
    frame = table()
    blind = AnytimeRegressor(GROUPS, method=MeanGradient(), cost_blind=True, alpha=1e-3)
    found = blind.fit(frame[FEATURES], frame["y"])
    rows = literal.Rows(*literal.standardise(frame[FEATURES].to_numpy(), frame["y"].to_numpy()), 1e-3)
    groups = found.fit_.expansion.terms
    selected: list[int] = []
    while len(selected) < 3:
        before = literal.columns_of(groups, selected)
        steps = {
            g: [p for p in (*groups.prerequisites[g], g) if p not in selected] for g in range(3) if g not in selected
        }
        scores = {
            g: np.square(rows.gradient(before, literal.columns_of(groups, adds))).mean() for g, adds in steps.items()
        }
        selected += steps[max(scores, key=lambda g: scores[g])]
    assert [group for step in found.fit_.sequence.steps for group in step.adds] == selected
    assert clone(found).get_params()["method"].power == 1.0
    power = AnytimeRegressor(GROUPS, method=MeanGradient(power=0.01), alpha=1e-3).fit(frame[FEATURES], frame["y"])
    assert power.sequence_[0] == "b"  # almost equal scores: the cheapest group


@pytest.mark.parametrize("options", [{"alpha": "cv", "cv": 3, "nested": True}, {"doubling": True}, {"epsilon": 0.05}])
def test_a_criterion_of_ones_own_works_with_every_rule(options: dict[str, Any]) -> None:
    frame = table()
    options = {"alpha": 1e-3} | options
    for estimator, target in ((AnytimeRegressor, "y"), (AnytimeClassifier, "sick")):
        found = estimator(GROUPS, method=MeanGradient(), **options).fit(frame[FEATURES], frame[target])
        assert set(found.sequence_) <= {"a", "b", "c"}
        assert found.score(frame[FEATURES], frame[target]) > 0.3


def test_its_model_is_saved_shown_loaded_and_reordered(desk: Path, capsys: Capture) -> None:
    frame = table()
    found = AnytimeRegressor(GROUPS, method=MeanGradient(), alpha=1e-3).fit(frame[FEATURES], frame["y"])
    model = found.save(desk / "own.safetensors")
    assert model.manifest.method == "mean-gradient"
    assert model.manifest.guarantee.why.startswith("groups that require others") or "not mean-gradient" in (
        model.manifest.guarantee.why
    )
    loaded = anytime.load(desk / "own.safetensors")
    loaded.open().add(loaded.manifest.steps[0].group, [1.0])
    assert "mean-gradient" in output(capsys, "show", "own.safetensors")
    assert main(["export", "own.safetensors", "--to", "json", "--out", "own.json"]) == 0
    assert_refused(
        lambda: resequence(loaded), "method is 'mean-gradient'; expected one of omp, fr", error=TrainingError
    )
    again = resequence(loaded, changes=Changes(method=MeanGradient()))
    assert [step.adds for step in again.manifest.steps] == [step.adds for step in model.manifest.steps]
    assert resequence(loaded, changes=Changes(method="fr")).manifest.method == "fr"
    assert AnytimeRegressor.load(desk / "own.safetensors").sequence_ == found.sequence_


def test_a_registered_method_is_an_option_of_the_commands(
    desk: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", "train.csv", "--target", "y", "--groups", "groups.json"]
    command += ["--out", "m.safetensors", "--method", "mean-gradient"]
    assert main(command) == 2
    assert "--method is 'mean-gradient'; expected one of omp, fr, cp, single, no-whiten, sparse" in (
        capsys.readouterr().err.replace("\n", " ")
    )
    monkeypatch.setitem(methods(), "mean-gradient", MeanGradient)
    assert main(command) == 0
    assert anytime.load(desk / "m.safetensors").manifest.method == "mean-gradient"
    assert main(["resequence", "m.safetensors", "--cost", "c=0.5", "--out", "n.safetensors"]) == 0
    assert anytime.load(desk / "n.safetensors").manifest.steps[0].group == "c"


def test_a_path_of_ones_own_states_the_whole_order() -> None:
    frame = table()
    found = AnytimeRegressor(GROUPS, method=AsListed(), alpha=1e-3).fit(frame[FEATURES], frame["y"])
    assert found.sequence_ == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fro", {}, r"method is 'fro'; expected one of omp, fr, cp, single, no-whiten, sparse, or an object"),
        (3, {}, r"method is 3; expected one of"),
        (MeanGradient, {}, "method is the class MeanGradient; expected an object, MeanGradient()"),
        (AsListed(), {"doubling": True}, "method 'as-listed' does not support doubling; turn doubling off, or choose"),
        (AsListed(), {"epsilon": 0.1}, "method 'as-listed' does not support epsilon; turn epsilon off, or choose"),
        (AsListed(), {"family": "poisson"}, "method 'as-listed' supports family gaussian, not poisson"),
        (AsListed(), {"pairs": 2}, "method as-listed does not support pairs"),
        ("fr", {"epsilon": 0.0}, "epsilon is 0.0; expected a finite number above 0"),
        ("fr", {"epsilon": np.inf}, "epsilon is inf; expected a finite number above 0"),
        ("fr", {"first": ("a",), "without": ("a",)}, "group 'a' is both placed first and left out; choose one"),
    ],
)
def test_what_does_not_go_together_is_refused_once(method: Any, options: dict[str, Any], message: str) -> None:
    assert_refused(lambda: Options(method=method, **options), message, error=ValueError)


@pytest.mark.parametrize("lacking", ["name", *sorted(Criterion.__abstractmethods__)])
def test_without_one_of_its_parts_it_is_a_clear_error(lacking: str) -> None:
    members = {
        name: member for name, member in vars(MeanGradient).items() if name not in (lacking, "__abstractmethods__")
    }
    incomplete: Any = type("Mine", (Criterion,), members)
    assert_refused(lambda: method_of(incomplete()), "Mine ", lacking, error=(TypeError, TrainingError))


@pytest.mark.parametrize("name", list(CRITERIA))
def test_a_criterion_is_one_class_one_entry_and_a_row_of_the_guide(name: str) -> None:
    """As "Where to add" in CONTRIBUTING.md says: no other file of the library or the service names it."""
    kind = CRITERIA[name]
    guide = (ROOT / "models" / "guides" / "choices.md").read_text(encoding="utf-8")
    assert f"`{name}`" in guide.partition("## Methods")[2].partition("\n```")[0]
    home = ROOT / "models" / "anytime" / "selection" / "criteria.py"
    assert f"class {kind.__name__}(" in home.read_text(encoding="utf-8")
    quoted = re.compile(rf'"{name}"')
    naming = {
        path.relative_to(ROOT).as_posix()
        for folder in ("models/anytime", "service/anytime_service")
        for path in (ROOT / folder).rglob("*.py")
        if path != home and quoted.search(re.sub(r'"""[\s\S]*?"""', "", path.read_text(encoding="utf-8")))
    }
    default = ("selection/greedy", "selection/least_squares", "estimators", "testing/doubles")
    assert naming <= {f"models/anytime/{file}.py" for file in default if name == "fr"}


@pytest.mark.parametrize("method", list(CRITERIA))
def test_the_order_does_not_depend_on_the_size_of_the_responses(method: str) -> None:
    """Scores are rounding in proportion to those of the empty model, however rare the events are."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 4))
    eta = X @ [0.0, 0.3, 0.6, 1.2]
    groups = {"groups": [{"name": str(j), "features": [f"x{j}"], "cost": 1.0} for j in range(4)]}
    counts, events = rng.poisson(np.exp(eta)), rng.random(1000) < 1 / (1 + np.exp(-eta))
    expected = ["3", "2", "1", "0"]
    for scale in (1.0, 1e-7):
        poisson = AnytimeRegressor(groups, family="poisson", method=method, alpha=1e-12).fit(X, counts * scale)
        assert poisson.sequence_ == expected
        binomial = AnytimeClassifier(groups, family="binomial", method=method, alpha=1e-12)
        assert binomial.fit(X, events, sample_weight=np.where(events, scale, 1.0)).sequence_ == expected
