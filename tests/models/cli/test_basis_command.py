"""`anytime basis` writes a groups file that several sites share; what it states is not learned again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from anytime import load
from anytime.cli.main import main
from anytime.groups import load_groups
from models.commands import Capture, refusal
from models.opening import opened

GROUPS: dict[str, Any] = {
    "cost_unit": "ms",
    "groups": [
        {"name": "person", "features": ["age", "country", "member"], "cost": 1.0},
        {"name": "ticket", "features": ["fare", "visits"], "cost": 2.0},
    ],
}


def rows(seed: int, count: int = 300) -> pd.DataFrame:
    """Rows of a site: each has its own ages; many ages are missing, and few fares."""
    rng = np.random.default_rng(seed)
    found = pd.DataFrame(
        {
            "age": rng.uniform(20 * seed, 60 + 20 * seed, count).round(1),
            "country": rng.choice(["NO", "SE", "DK"], count, p=[0.5, 0.4, 0.1]),
            "member": rng.random(count) < 0.3,
            "fare": rng.lognormal(3, 1, count),
            "visits": rng.integers(0, 5, count),
        }
    )
    found["y"] = np.abs(found["age"] - 50) / 10 + (found["country"] == "NO") + rng.normal(size=count)
    found.loc[rng.random(count) < 0.2, "age"] = np.nan
    found.loc[7, "fare"] = np.nan
    return found


@pytest.fixture
def desk(desk: Path) -> Path:
    """A directory with the tables of two sites, one of all their rows, and a groups file."""
    sites = [rows(0), rows(1)]
    for name, table in zip(("a", "b", "all"), (*sites, pd.concat(sites)), strict=True):
        table.to_csv(f"{name}.csv", index=False)
    Path("g.json").write_text(json.dumps(GROUPS))
    return desk


def run(*arguments: str) -> None:
    assert main(list(arguments)) == 0


@pytest.mark.parametrize("suffix", ["json", "yaml"])
@pytest.mark.parametrize("basis", ["hinge:3", "auto", "poly:2", "linear"])
def test_sites_that_share_the_file_merge_moments_to_the_model_of_all_rows(basis: str, suffix: str, desk: Path) -> None:
    shared = f"shared.{suffix}"
    run("basis", "a.csv", "--groups", "g.json", "--basis", basis, "--target", "y", "--out", shared)
    folds = ["--folds", "2" if basis == "auto" else "0"]
    for name in ("a", "b", "all"):
        run("moments", f"{name}.csv", "--groups", shared, "--target", "y", *folds, "--out", f"{name}.moments")
    run("moments", "a.moments", "b.moments", "--out", "both.moments")
    # Folds of merged moments are those of each site, so only a fixed alpha comes to the same.
    for name in ("both", "all"):
        run("train", f"{name}.moments", "--alpha", "0.01", "--out", f"{name}.safetensors")
    both, every = load("both.safetensors"), load("all.safetensors")
    assert both.groups.bases == every.groups.bases
    np.testing.assert_allclose(both.prefixes.packed, every.prefixes.packed, rtol=1e-8, atol=1e-8)


def test_the_file_states_every_column_and_the_sample_decides_about_missing_values(desk: Path) -> None:
    run("basis", "a.csv", "--groups", "g.json", "--basis", "hinge:2", "--clamp", "0.1", "--out", "shared.yaml")
    found = load_groups("shared.yaml")
    age, fare = (rows(0)[name].dropna() for name in ("age", "fare"))
    assert [(name, basis.missing) for name, basis in found.bases.items()] == [
        ("age", True),
        ("country", False),
        ("member", False),
        ("fare", False),  # one of 300 rows is less than 1 %
        ("visits", False),
    ]
    assert found.bases["age"].basis == "hinge:2"
    np.testing.assert_allclose(found.bases["age"].knots or (), np.quantile(age, [1 / 3, 2 / 3]))
    np.testing.assert_allclose(found.bases["fare"].range or (), np.quantile(fare, [0.1, 0.9]))
    assert (found.bases["country"].levels, found.bases["country"].other) == (("NO", "SE", "DK"), False)
    assert found.groups == load_groups("g.json").groups


def test_complete_bases_are_not_learned_again(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("basis", "a.csv", "--groups", "g.json", "--basis", "hinge:2", "--out", "shared.json")
    run("basis", "b.csv", "--groups", "shared.json", "--basis", "poly:3", "--clamp", "0.2", "--out", "again.json")
    assert load_groups("again.json") == load_groups("shared.json")
    monkeypatch.setattr("anytime.data.survey.learned_groups", None)  # nothing is learned from rows
    run("train", "b.csv", "--groups", "shared.json", "--target", "y", "--basis", "poly:3", "--out", "m.safetensors")
    assert load("m.safetensors").groups.bases == load_groups("shared.json").bases


def test_moments_with_other_bases_are_refused_with_the_column(desk: Path, capsys: Capture) -> None:
    for name in ("a", "b"):
        own = ["--groups", "g.json", "--target", "y", "--basis", "hinge:1"]
        run("moments", f"{name}.csv", *own, "--out", f"{name}.moments")
    error = refusal(capsys, "moments", "a.moments", "b.moments", "--out", "both.moments")
    assert error.startswith("error: moments of b.csv do not match those of a.csv: knots of column 'age' is [")
    assert error.endswith("; make both with a groups file that 'anytime basis' wrote")
    assert not Path("both.moments").exists()


def test_quantiles_are_for_plots_and_moments_merge_without_them(desk: Path) -> None:
    run("basis", "a.csv", "--groups", "g.json", "--basis", "hinge:2", "--out", "shared.json")
    shared = load_groups("shared.json")
    assert shared.bases["age"].quantiles == pytest.approx(np.nanquantile(rows(0)["age"], np.linspace(0, 1, 21)))
    assert shared.bases["country"].quantiles is None
    bare = {name: basis.model_dump(exclude={"quantiles"}) for name, basis in shared.bases.items()}
    Path("bare.json").write_text(json.dumps(json.loads(Path("shared.json").read_text()) | {"bases": bare}))
    for name, groups in (("a", "shared.json"), ("b", "bare.json")):
        run("moments", f"{name}.csv", "--groups", groups, "--target", "y", "--out", f"{name}.moments")
    run("moments", "a.moments", "b.moments", "--out", "both.moments")
    run("train", "both.moments", "--out", "m.safetensors")
    assert load("m.safetensors").groups.bases["age"].quantiles == shared.bases["age"].quantiles


WRITTEN = {
    "age": {"basis": "hinge:2", "knots": [18, 65.5], "levels": [0], "range": [0, 100], "missing": True},
    "country": {"basis": "categories", "levels": ["NO", "SE"], "other": True},
    "fare": {"basis": "poly:2", "centre": 30, "scale": 10},
}
TERMS = (
    *("age", "age>18", "age>65.5", "age=0", "age is missing", "country=NO", "country=SE", "country is other", "member"),
    *("fare", "fare^2", "visits"),
)
UNQUOTED = """
groups:
  - {name: person, features: [age, country, member], cost: 1}
  - {name: ticket, features: [fare, visits], cost: 2}
bases:
  age: {basis: "hinge:2", knots: [18, 65.5], levels: [0], range: [0, 100], missing: true}
  country: {basis: categories, levels: [NO, SE], other: true}
  fare: {basis: "poly:2", centre: 30, scale: 10}
"""


@pytest.mark.parametrize("kind", ["json", "yaml", "unquoted"])
def test_knots_levels_and_ranges_may_be_written_by_hand(kind: str, desk: Path) -> None:
    content = GROUPS | {"bases": WRITTEN}
    text = {"json": json.dumps(content), "yaml": yaml.safe_dump(content), "unquoted": UNQUOTED}[kind]
    name = "hand.json" if kind == "json" else "hand.yaml"
    Path(name).write_text(text)
    run("train", "all.csv", "--groups", name, "--target", "y", "--basis", "linear", "--out", "m.safetensors")
    model = load("m.safetensors")
    assert model.terms.features == TERMS
    assert model.groups.bases["age"].range == (0, 100)
    assert model.groups.bases["country"].levels == ("NO", "SE")
    assert opened(model, {"person": [130, "DK", True]}).answer().clamped == ("age",)


@pytest.mark.parametrize(
    ("basis", "message"),
    [
        ({"levels": [1, 2]}, "column 'country': its levels are [1, 2] and a value is "),
        ({"levels": [1, 2], "other": True, "range": None}, "column 'country': its levels are [1, 2] and a value is "),
        ({"levels": ["NO", "NO"]}, "column 'country': it has level 'NO' twice; expected each level once"),
        ({"levels": ["NO"], "other": "no"}, "column 'country', other: input should be a valid boolean (got 'no')"),
    ],
)
def test_levels_that_do_not_fit_are_refused(basis: dict[str, Any], message: str, desk: Path, capsys: Capture) -> None:
    Path("hand.json").write_text(json.dumps(GROUPS | {"bases": {"country": {"basis": "categories"} | basis}}))
    command = ["train", "a.csv", "--groups", "hand.json", "--target", "y", "--out", "m.safetensors"]
    assert message in refusal(capsys, *command)


def test_more_terms_than_memory_are_refused_before_the_pass(
    desk: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anytime.moments.accumulate.memory_limit", lambda: 8 * 100)
    monkeypatch.setattr("anytime.data.dataset.Dataset.moments", None)
    command = ["train", "a.csv", "--groups", "g.json", "--target", "y", "--basis", "hinge:1", "--folds", "3"]
    error = refusal(capsys, *command, "--out", "m.safetensors")
    # age, its knot; three countries; member; fare, its knot; visits, its knot and five common values
    assert "the columns become 15 terms, whose moments in 3 folds need 9000 bytes of the 800 that" in error
    error = refusal(capsys, *command[:6], "--folds", "3", "--out", "m.safetensors")
    assert "in 3 folds need" in error
