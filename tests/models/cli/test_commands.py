"""The command line: every command on small tables, and one line for whatever is wrong."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from anytime.cli.main import main
from anytime.data.formats import open_table
from anytime.evaluation.calibrate import calibrate
from anytime.evaluation.evaluate import evaluate
from anytime.evaluation.shapes import column_shapes
from anytime.loaded import load
from anytime.model.manifest import Certificate, Stopped
from anytime.training.prices import LEAST_SQUARES_ONLY
from models.commands import Capture, document, output, ran, refusal
from models.present import present

REMARKS = ("task: ", "ignored: ", "left out: ", "ordering ", "calibrating ", "evaluating ", "measuring ", "one penalty")
Content = dict[str, Any]


def groups(**changes: Content) -> Content:
    """Groups a, visit, b and c; changes by name of the group."""
    contents: list[Content] = [
        {"name": "a", "features": ["a0", "a1"], "cost": 4.0},
        {"name": "visit", "features": [], "cost": 1.0},
        {"name": "b", "features": ["b0"], "cost": 0.5, "requires": ["visit"]},
        {"name": "c", "features": ["c0"], "cost": 2.0},
    ]
    return {"cost_unit": "ms", "groups": [group | changes.get(group["name"], {}) for group in contents]}


def rows(seed: int = 0, count: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(count, 4)), columns=["a0", "a1", "b0", "c0"])
    frame["y"] = frame.sum(axis=1) + 0.5 * rng.normal(size=count)
    frame["kind"] = np.where(frame["y"] > 0, "up", "down")
    frame["grade"] = np.digitize(frame["y"], [-1, 0, 1])
    frame["q"] = np.sort(rng.integers(0, 12, size=count))
    frame["w"] = 1.0
    return frame


@pytest.fixture
def desk(desk: Path) -> Path:
    """A working directory with train.parquet, test.csv, held.csv and groups.json."""
    rows().to_parquet("train.parquet")
    rows(1, 30).to_csv("test.csv", index=False)
    rows(2, 50).to_csv("held.csv", index=False)
    Path("groups.json").write_text(json.dumps(groups()))
    return desk


TRAIN = ["train", "train.parquet", "--groups", "groups.json", "--target", "y", "--out", "m.safetensors"]
COMPARE = ["compare", "train.parquet", "--groups", "groups.json", "--target", "y"]


def trained(*options: str) -> Path:
    assert main([*TRAIN, *options]) == 0
    return Path("m.safetensors")


# What the commands do


def test_train_writes_a_model_and_shows_its_steps(desk: Path, capsys: Capture) -> None:
    captured = ran(capsys, *TRAIN)
    model = load("m.safetensors")
    made = model.manifest.provenance
    assert (model.name, made.data, made.folds, made.seed) == ("m", "train.parquet", 5, 0)
    assert model.moments is not None
    assert captured.err.splitlines() == [
        "ignored: 'kind', 'grade', 'q', 'w' (in no group)",
        "task: regression",
        "ordering 4 groups and fitting every prefix",
    ]
    words = ("(base rate)", "visit + b", "wrote m.safetensors", model.version, "adds (ms)")
    assert not [word for word in words if word not in captured.out]
    files = {"groups.json", "held.csv", "m.safetensors", "test.csv", "train.parquet"}
    assert {path.name for path in desk.iterdir()} == files


def test_train_says_which_task_and_classes_it_took(desk: Path, capsys: Capture) -> None:
    call = aimed("kind")
    said = "task: binary, classes down, up"
    for options, hint in {
        (): f"; binomial likelihood (--family gaussian, least squares, also has {LEAST_SQUARES_ONLY})",
        (
            "--alpha",
            "0",
        ): "; least squares on their indicators: without a penalty, a binomial likelihood may have no optimum",
        ("--method", "sparse"): "; least squares on their indicators, which method sparse needs",
        ("--family", "gaussian"): "",
        ("--family", "binomial"): "",
    }.items():
        assert said + hint in ran(capsys, *call, *options).err.splitlines()
    assert load("m.safetensors").manifest.classes == ("down", "up")


CALIBRATE = ["--calibrate", "held.csv"]
REFUSE = ["--missing-target", "error"]


@pytest.mark.parametrize(
    ("target", "options", "says", "columns"),
    [
        ("y", [], "90% intervals", ["width"]),
        ("y", ["--coverage", "0.8"], "80% intervals", ["width"]),
        ("kind", ["--family", "binomial", "--coverage", "0.975"], "97.5% sets of classes", ["set size", "ECE"]),
        ("grade", ["--task", "multiclass"], "90% sets of classes", ["set size", "ECE"]),
        ("grade", ["--family", "poisson", "--task", "count"], "90% intervals", ["width"]),
    ],
)
def test_train_calibrates_and_show_and_evaluate_tell_it(
    target: str, options: list[str], says: str, columns: list[str], desk: Path, capsys: Capture
) -> None:
    out = output(capsys, *aimed(target, "--alpha", "0.1"), *CALIBRATE, *options)
    model = load("m.safetensors")
    found = present(model.manifest.calibration)
    assert (found.rows, found.data, len(found.thresholds)) == (50, "held.csv", model.steps + 1)
    assert found == calibrate(model, open_table("held.csv"), found.coverage).manifest.calibration
    line = f"calibrated on 50 rows of held.csv: {says}"
    shown = output(capsys, "show", "m.safetensors")
    for text in (out, shown):
        assert line in text.splitlines()
    assert all(f" {name} " in shown.splitlines()[0] for name in columns)
    assert ("ECE" in shown) == ("ECE" in columns)
    assert document(capsys, "show", "m.safetensors")["calibration"] == found.model_dump(mode="json")
    evaluated = evaluate(model, open_table("test.csv"))
    measured = {name: present(getattr(evaluated, name)).tolist() for name in ("coverage", "size")}
    prefixes = document(capsys, *EVALUATE)["prefixes"]
    assert {name: [each[name] for each in prefixes] for name in measured} == measured
    table = output(capsys, *EVALUATE)
    assert f" coverage  {columns[0]} " in table.replace("   ", "  ")
    assert all(f" {value:.4g} " in table for values in measured.values() for value in values)


def test_without_a_calibration_nothing_is_said_of_it(desk: Path, capsys: Capture) -> None:
    out = output(capsys, *TRAIN, "--test", "test.csv") + output(capsys, "show", "m.safetensors")
    assert not re.search("calibrated|coverage|width|ECE", out)
    assert not {"coverage", "size"} & set(document(capsys, *EVALUATE)["prefixes"][0])
    assert document(capsys, "show", "m.safetensors")["calibration"] is None


def weak_rows(seed: int, count: int = 60) -> pd.DataFrame:
    """As `rows`, but c tells nothing and a little."""
    frame = rows(seed, count)
    frame["y"] = 0.3 * frame["a0"] + frame["b0"] + 0.5 * np.random.default_rng(seed + 50).normal(size=count)
    return frame


def weaken() -> None:
    """Weak rows to learn from and to calibrate on."""
    weak_rows(0).to_parquet("train.parquet")
    weak_rows(2, 50).to_csv("held.csv", index=False)


def test_train_stops_by_epsilon_and_show_says_where(desk: Path, capsys: Capture) -> None:
    weaken()
    out = output(capsys, *TRAIN, "--epsilon", "0.5", "--alpha", "0.01", "--test", "test.csv", *CALIBRATE)
    model = load("m.safetensors")
    stopped = present(model.manifest.stopped)
    assert (stopped.rule, stopped.epsilon, stopped.left_out) == ("epsilon", 0.5, ("a", "c"))
    assert [step.adds for step in model.manifest.steps] == [("visit", "b")]
    line = f"stopped by epsilon 0.5: the longest remaining projection is {stopped.longest:.3g}; left out: 'a', 'c'"
    for text in (out, output(capsys, "show", "m.safetensors")):
        assert line in text.splitlines()
    assert document(capsys, "show", "m.safetensors")["stopped"] == stopped.model_dump(mode="json")
    assert model.groups.features == ("b0",)
    output(capsys, *EVALUATE)


@pytest.mark.parametrize("options", [[], ["--family", "poisson", "--task", "count"]], ids=["squares", "deviances"])
def test_train_keeps_the_prefix_that_evaluate_finds_best_on_the_validation_table(
    options: list[str], desk: Path, capsys: Capture
) -> None:
    for name, frame in (("train.parquet", weak_rows(0, 30)), ("held.csv", weak_rows(8, 50))):
        frame["n"] = np.maximum(frame["y"].round() + 2, 0)
        frame.to_parquet(name) if name == "train.parquet" else frame.to_csv(name, index=False)
    call = [*aimed("n", "--alpha", "0.001", "--folds", "0"), *options]
    assert main(call) == 0
    values = document(capsys, "evaluate", "m.safetensors", "held.csv")["prefixes"]
    errors = [each["deviance" if options else "mse"] for each in values]
    best = int(np.argmin(errors))
    assert 0 < best < len(errors) - 1, "this table does not test anything"
    out = output(capsys, *call, "--validation", "held.csv")
    model = load("m.safetensors")
    stopped = present(model.manifest.stopped)
    assert (stopped.rule, stopped.steps, stopped.validation) == ("validation", best, "held.csv")
    assert stopped.errors == pytest.approx(errors)
    assert model.steps == best
    shown_errors = f"{errors[best]:.4g} ({errors[-1]:.4g} with all)"
    said = f"stopped by held.csv: step {best} of {len(errors) - 1} has the least error, {shown_errors}; left out: "
    assert all(said in text for text in (out, output(capsys, "show", "m.safetensors")))


def test_a_stopped_model_is_resequenced_by_the_file_it_was_trained_with(desk: Path, capsys: Capture) -> None:
    stop()
    before = load("m.safetensors")
    assert "ignored: 'a', 'c' (left out of the model)" in ran(capsys, *RESEQUENCE).err.splitlines()
    assert main([*RESEQUENCE, "--cost", "b=7"]) == 0
    assert main(RESEQUENCE) == 0
    after = load("new.safetensors")
    assert after.manifest.stopped == Stopped(rule=None, steps=before.steps, left_out=("a", "c"))
    assert after.manifest.groups == before.manifest.groups
    assert "left out: 'a', 'c'" in output(capsys, "show", "new.safetensors").splitlines(), "and no rule"


CERTIFY = ["certify", "m.safetensors", "--nodes", "20", "--in-place"]


def test_certify_in_place_writes_into_the_model_and_show_and_plot_tell_it(desk: Path, capsys: Capture) -> None:
    before = load(trained("--method", "single", "--alpha", "0.01", "--folds", "0"))
    captured = ran(capsys, *CERTIFY)
    assert captured.err == ""
    after = load("m.safetensors")
    found = present(after.manifest.certificate)
    best = [share >= 1 - 1e-9 for share in present(after.certified_shares)[1:]]
    assert (found.nodes, found.seconds, after.name) == (20, 60.0, "m")
    assert after.version != before.version
    shown = output(capsys, "show", "m.safetensors")
    for text in (captured.out, shown):
        lines = text.splitlines()
        assert " of best " in lines[0]
        assert [" best " in line for line in lines[2 : 2 + after.steps]] == best
    line = next(line for line in shown.splitlines() if line.startswith("certified: "))
    assert line in captured.out.splitlines()
    assert "20 nodes for each, 60 s for all" in line
    assert document(capsys, "show", "m.safetensors")["certificate"] == found.model_dump(mode="json")
    output(capsys, "plot", "m.safetensors", "--out", "m.png")
    assert [path.name for path in desk.glob("*.safetensors")] == ["m.safetensors"]


def test_certify_without_a_file_or_to_another_leaves_the_model_as_it_was(desk: Path, capsys: Capture) -> None:
    before = trained("--alpha", "0.01").read_bytes()
    out = output(capsys, *CERTIFY[:-1])
    assert all(words in out for words in ("of best", "not written: add --out M.safetensors, or --in-place"))
    values = document(capsys, *CERTIFY[:-1], "--seconds", "5", "--out", "sure.safetensors")
    assert Path("m.safetensors").read_bytes() == before
    model = load("sure.safetensors")
    assert (values["version"], values["nodes"], values["seconds"]) == (model.version, 20, 5.0)
    found, shares = present(model.manifest.certificate), present(model.certified_shares)
    assert [[each[name] for name in ("prefix", "bound", "cost", "share")] for each in values["prefixes"]] == [
        list(prefix) for prefix in zip(range(model.steps + 1), found.bounds, model.costs, shares, strict=True)
    ]


def test_a_share_that_is_not_exact_is_said_to_be_the_least_and_none_is_rounded_up(desk: Path, capsys: Capture) -> None:
    model = load(trained("--alpha", "0.01"))
    F = [0.0, *(step.explained_variance for step in model.manifest.steps)]
    bounds = (0.0, F[1], F[2] / 0.99999, *(value / 0.9346 for value in F[3:]))
    found = Certificate(bounds=bounds, exact=(True, True, True, False), nodes=1)
    replace(model, manifest=model.manifest.model_copy(update={"certificate": found})).save("m.safetensors")
    lines = output(capsys, "show", "m.safetensors").splitlines()
    cells = ("best", "best", " 99.9 %", ">= 93.4 %")
    assert all(f" {cell}  " in line for line, cell in zip(lines[1:5], cells, strict=True))
    said = "certified: every step explains at least 93.4 % of the best set at its cost on the training data"
    assert any(line.startswith(said) for line in lines)


def test_a_model_at_other_costs_is_said_to_be_no_longer_calibrated_and_certified(desk: Path, capsys: Capture) -> None:
    trained("--alpha", "0.01", *CALIBRATE)
    assert main(CERTIFY) == 0
    said = {"not calibrated: the prefixes changed", "not certified: the costs or the order changed"}
    assert said <= set(ran(capsys, *RESEQUENCE).err.splitlines())
    assert load("new.safetensors").manifest.calibration is None
    assert "of best" not in output(capsys, "show", "new.safetensors")


def test_show_tells_the_steps_in_order_and_its_json_has_the_documented_fields(desk: Path, capsys: Capture) -> None:
    model = load(trained())
    out = output(capsys, "show", "m.safetensors")
    for line, step in zip(out.splitlines()[2 : 2 + model.steps], model.manifest.steps, strict=True):
        assert line.rstrip().endswith(" + ".join(step.adds))
        assert f"{step.r2:.4f}" in line
    assert model.version in out
    shown = document(capsys, "show", "m.safetensors")
    fields = {"group", "adds", "cost", "cumulative_cost", "explained_variance", "r2", "cv_error", "alpha"}
    fields |= {"deviance", "best"}
    assert [set(step) for step in shown["steps"]] == [fields] * model.steps
    assert [step["group"] for step in shown["steps"]] == [step.group for step in model.manifest.steps]
    assert np.allclose(np.cumsum([step["cost"] for step in shown["steps"]]), model.costs[1:])
    assert (shown["features"], shown["moments"], shown["cost_unit"]) == (4, True, "ms")


def test_show_counts_the_terms_of_a_model_with_bases_and_shortens_their_names(desk: Path, capsys: Capture) -> None:
    assert "4 columns: 4 informative, 0 constant, 0 collinear with others" in output(capsys, *TRAIN)
    town = "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch"
    change(a1=["Bala", f"{town} (upper village)"] * 30, b0=[0.0, 1.0, 2.0] * 20)()
    trained("--basis", "hinge:1")
    shown = output(capsys, "show", "m.safetensors")
    # a0 and c0: themselves and a knot; a1: two levels, the last not listed; b0: itself, a knot, three values
    assert "4 columns, 11 terms: 8 informative, 0 constant, 3 collinear with others" in shown
    assert town not in shown


def test_evaluate_tells_every_prefix(desk: Path, capsys: Capture) -> None:
    model = load(trained())
    values = document(capsys, *EVALUATE)
    found = evaluate(model, open_table("test.csv"))
    assert values["rows"] == 30
    assert [(each["prefix"], each["r2"]) for each in values["prefixes"]] == list(enumerate(present(found.r2).tolist()))
    assert set(values["prefixes"][0]) == {"prefix", "cost", "explained_variance", "r2", "mse"}
    table = output(capsys, *EVALUATE)
    assert all(words in table for words in ("test mse", "30 rows; timeliness"))


def test_evaluate_tells_accuracy_of_classes_and_ndcg_of_queries(desk: Path, capsys: Capture) -> None:
    assert main(aimed("kind")) == 0
    assert document(capsys, *EVALUATE)["prefixes"][-1]["accuracy"] > 0.7
    assert "accuracy" in output(capsys, *EVALUATE)
    assert main(aimed("grade", "--query", "q")) == 0
    values = document(capsys, *EVALUATE)
    assert 0.5 < values["prefixes"][-1]["ndcg@5"] <= 1
    ranked = [part["grade"] for _, part in pd.read_csv("test.csv").groupby("q") if len(part) > 1]
    without = sum((grades == 0).all() for grades in ranked)
    assert (values["queries"], values["queries_without_relevant"]) == (len(ranked), without)
    line = f"NDCG@5: the mean of {len(ranked)} queries of 2 rows or more; {without} without a relevant row count as 0"
    assert line in output(capsys, *EVALUATE)


def test_evaluate_tells_the_measures_at_budgets(desk: Path, capsys: Capture) -> None:
    assert main(aimed("grade", "--query", "q")) == 0
    model = load("m.safetensors")
    call = [*EVALUATE, "--budget", "3", "--budget", "0"]
    values = document(capsys, *call)
    prefixes = [model.affordable(budget) for budget in (3.0, 0.0)]
    assert 0 < prefixes[0] < model.steps
    rows = [{"budget": budget, **values["prefixes"][p]} for budget, p in zip((3.0, 0.0), prefixes, strict=True)]
    assert values["budgets"] == rows
    head, first, second = output(capsys, *call).splitlines()[:3]
    assert head.split()[:3] == ["budget", "step", "total"]
    for line, row in ((first, rows[0]), (second, rows[1])):
        assert line.split()[:2] == [f"{row['budget']:g}", str(row["prefix"])]
        assert f"{row['ndcg@5']:.4g}" in line.split()


def test_compare_tells_every_method_on_both_tables(desk: Path, capsys: Capture) -> None:
    names = ["CS-G-FR", "CS-G-OMP", "Single", "No-Whiten", "G-OMP", "Doubling", "FR Oracle", "OMP Oracle"]
    names += ["Sparse", "Sparse (shrunken)"]
    values = document(capsys, *COMPARE, "--test", "test.csv")
    assert [method["name"] for method in values["methods"]] == names
    for method in values["methods"]:
        assert method["train"]["cost"][-1] == pytest.approx(7.5)
        assert len(method["test"]["cost"]) == len(method["test"]["explained_variance"])
    out = output(capsys, *COMPARE, "--alpha", "0.01", "--folds", "0", "--level", "0.9")
    assert all(words in out for words in (*names, "reaches 90 % of its final"))


def test_compare_takes_moments_and_bases_as_train_does(desk: Path, capsys: Capture) -> None:
    options = ["--basis", "hinge:3", "--seed", "3"]
    output(capsys, "moments", *COMPARE[1:], *options, "--out", "m.moments")
    table = document(capsys, *COMPARE, *options, "--test", "test.csv")
    moments = document(capsys, "compare", "m.moments", "--test", "test.csv")
    assert moments == table != document(capsys, *COMPARE, "--seed", "3", "--test", "test.csv")


def test_plot_and_compare_draw_pictures(desk: Path, capsys: Capture) -> None:
    trained()
    output(capsys, "plot", "m.safetensors", "--out", "model.png")
    output(capsys, "plot", "m.safetensors", "--shapes", "--prefix", "2", "--top", "2", "--out", "shapes.svg")
    output(capsys, *COMPARE, "--test", "test.csv", "--plot", "compared.pdf")
    for name, magic in (("model.png", b"\x89PNG"), ("shapes.svg", b"<?xml"), ("compared.pdf", b"%PDF")):
        assert Path(name).read_bytes().startswith(magic)


def test_show_prints_the_shapes_that_the_library_returns(desk: Path, capsys: Capture) -> None:
    trained("--basis", "hinge:1")
    model = load("m.safetensors")
    for options, prefix in (([], model.steps), (["--prefix", "1"], 1)):
        values = document(capsys, "show", "m.safetensors", "--shapes", *options)
        said = [values[name] for name in ("model", "version", "prefix", "scores")]
        assert said == [model.name, model.version, prefix, ["y"]]
        assert values["columns"] == json.loads(json.dumps([asdict(each) for each in column_shapes(model, prefix)]))
        _, columns = output(capsys, "show", "m.safetensors", "--shapes", *options).split("\n\n")
        lines = columns.split("\n")[1:-1]
        assert [line.split()[0] for line in lines] == [column["name"] for column in values["columns"]]


def test_resequence_orders_by_the_new_costs_as_training_would(desk: Path, capsys: Capture) -> None:
    plain = ("--alpha", "0.01", "--folds", "0")
    before = load(trained(*plain))
    with_groups(a={"cost": 0.01}, c={"cost": 50.0}, visit={"cost": 30.0})()
    assert "wrote new.safetensors" in output(capsys, *RESEQUENCE)
    after = load("new.safetensors")
    assert [step.group for step in after.manifest.steps] != [step.group for step in before.manifest.steps]
    assert after.manifest.provenance.resequenced_from == before.version
    again = load(trained(*plain))
    assert after.manifest.steps == again.manifest.steps
    assert np.array_equal(after.prefixes.packed, again.prefixes.packed)


def test_resequence_by_the_same_costs_changes_nothing_also_without_a_dropped_feature(
    desk: Path, capsys: Capture
) -> None:
    for options in ([], ["--drop", "a1"]):
        before = load(trained("--alpha", "0.01", "--folds", "0", *options))
        output(capsys, *RESEQUENCE)
        after = load("new.safetensors")
        assert (after.manifest.steps, after.manifest.groups) == (before.manifest.steps, before.manifest.groups)
    assert "a1" not in after.groups.features


@pytest.mark.parametrize("names", [("hog[a]", "[bold]", "$a_$"), ("hog[/x]", "two words", "grün")])
def test_a_group_is_shown_by_its_name_whatever_that_is(names: tuple[str, ...], desk: Path, capsys: Capture) -> None:
    content = groups(**{group: {"name": name} for group, name in zip("abc", names, strict=True)})
    Path("groups.json").write_text(json.dumps(content | {"cost_unit": f"{names[0]}s"}))
    for shown in (output(capsys, *TRAIN), output(capsys, "show", "m.safetensors"), output(capsys, *EVALUATE)):
        assert all(name in shown for name in (*names, f"{names[0]}s"))
    output(capsys, "plot", "m.safetensors", "--out", "model.png")
    output(capsys, *COMPARE, "--plot", "compared.png")


def test_groups_that_cost_nothing_are_trained_shown_compared_and_drawn(desk: Path, capsys: Capture) -> None:
    free: Content = {"cost": 0.0}
    with_groups(a=free, visit=free, b=free, c=free)()
    output(capsys, *TRAIN)
    output(capsys, *EVALUATE)
    output(capsys, "plot", "m.safetensors", "--out", "model.png")
    output(capsys, *COMPARE, "--plot", "compared.png")
    assert load("m.safetensors").costs.tolist() == [0.0] * (load("m.safetensors").steps + 1)
    assert all(Path(name).read_bytes().startswith(b"\x89PNG") for name in ("model.png", "compared.png"))


# What is wrong


def change(**columns: Any) -> Callable[[], object]:
    """A training table with other columns; a function changes the column it is named after."""
    frame = rows()
    others = {name: value(frame[name]) if callable(value) else value for name, value in columns.items()}
    return partial(frame.assign(**others).to_parquet, "train.parquet")


def with_groups(**changes: Content) -> Callable[[], object]:
    return partial(Path("groups.json").write_text, json.dumps(groups(**changes)))


def table(name: str, frame: pd.DataFrame) -> Callable[[], object]:
    return partial(frame.to_csv, name, index=False)


def at(row: int, value: Any) -> Callable[[Any], Any]:
    """Put a value into one row of a column."""
    return lambda column: column.where(column.index != row, value)


def nothing() -> None:
    """Leave the desk as it is."""


def tamper() -> None:
    Path("m.safetensors").write_bytes(trained().read_bytes().replace(b'\\"ms\\"', b'\\"us\\"'))


def without_columns(*names: str) -> None:
    """A model, and a test table without some of its columns."""
    trained()
    rows(1, 30).drop(columns=[*names]).to_csv("test.csv", index=False)


def stop() -> None:
    """A model of weak rows that was stopped."""
    weaken()
    trained("--epsilon", "0.5", "--alpha", "0.01")


def promise(*options: str) -> None:
    """A model of weak rows that has a guarantee."""
    weaken()
    with_groups(b={"requires": []})()
    trained("--method", "omp", *options)


def train_likelihood() -> None:
    assert main(aimed("kind", "--family", "binomial", "--alpha", "0.1", "--folds", "0")) == 0


def aimed(target: str, *more: str) -> list[str]:
    """The training of another target."""
    return [*TRAIN[:4], "--target", target, "--out", "m.safetensors", *more]


CSV = ["train", "train.csv", *TRAIN[2:]]
ALL_DROPPED = [word for feature in ("a0", "a1", "b0", "c0") for word in ("--drop", feature)]
EVALUATE = ["evaluate", "m.safetensors", "test.csv"]
RESEQUENCE = ["resequence", "m.safetensors", "--costs", "groups.json", "--out", "new.safetensors"]
NEW = ["resequence", "m.safetensors", "--out", "new.safetensors"]
A_GROUP_TWICE = with_groups(b={"features": ["b0", "a0"]})
CIRCLE = with_groups(visit={"requires": ["b"]})
WITHOUT_COST = partial(Path("groups.json").write_text, json.dumps(groups()).replace(', "cost": 4.0', ""))
OTHER_COLUMNS = table("test.csv", rows(1, 30).drop(columns="b0"))
FEW_HELD = table("held.csv", rows(2, 8))
GAPS_HELD = table("held.csv", rows(2, 30).assign(y=lambda frame: frame["y"].where(~frame.index.isin([3, 5]))))
DISGUISED = partial(Path("train.parquet").write_text, "a0,a1,b0,c0,y\n1,2,3,4,5\n")
BARE = partial(trained, "--no-moments")
MOMENTS = partial(main, ["moments", *TRAIN[1:-1], "m.moments"])
FROM_MOMENTS = ["train", "m.moments", "--out", "m.safetensors"]
WRONG: list[tuple[str, Callable[[], object], list[str], list[str]]] = [
    ("a feature that is no column", with_groups(a={"features": ["a0", "a11"]}), TRAIN, ["'a11'", "'a1'"]),
    ("a target that is no column", nothing, aimed("yy"), ["'yy'", "'y'"]),
    ("a query that is no column", nothing, [*TRAIN, "--query", "qq"], ["'qq'", "'q'"]),
    ("weights that are no column", nothing, [*TRAIN, "--weights", "ww"], ["'ww'", "'w'"]),
    ("a dropped feature that is none", nothing, [*TRAIN, "--drop", "a2"], ["--drop a2"]),
    ("every feature dropped", nothing, [*TRAIN, *ALL_DROPPED], ["every feature"]),
    ("a feature in two groups", A_GROUP_TWICE, TRAIN, ["'a0'", "'a'", "'b'"]),
    ("a group without cost", WITHOUT_COST, TRAIN, ["'a'", "cost"]),
    ("a negative cost", with_groups(a={"cost": -1}), TRAIN, ["'a'", "-1"]),
    ("a cycle in requires", CIRCLE, TRAIN, ["cycle", "visit -> b -> visit"]),
    ("a target among the features", nothing, aimed("a0"), ["'a0'", "feature"]),
    ("weights among the features", nothing, [*TRAIN, "--weights", "a0"], ["'a0'", "feature"]),
    ("a query among the features", nothing, [*TRAIN, "--query", "a0"], ["'a0'", "feature"]),
    ("features that are no columns", with_groups(a={"features": ["z8", "z9"]}), TRAIN, ["lacks 'z8', 'z9'"]),
    ("a target twice", nothing, [*TRAIN, "--target", "y"], ["'y'"]),
    ("a table of no rows", table("train.csv", rows(count=0)), CSV, ["train.csv", "no rows"]),
    ("an empty file", Path("train.csv").touch, CSV, ["train.csv", "empty"]),
    ("one row", partial(rows(count=1).to_parquet, "train.parquet"), TRAIN, ["'y'", "at least 2"]),
    ("a target that never changes", change(y=3.5), TRAIN, ["'y'", "3.5", "at least 2"]),
    (
        "text in a column that is stated as numbers",
        change(b0=["1.5", "red"] * 30),
        [*TRAIN, "--number", "b0"],
        ["'b0'", "text", "'red' in row 1"],
    ),
    (
        "infinity in every feature",
        change(a0=at(4, np.inf), a1=at(4, np.inf), b0=at(4, np.inf), c0=at(4, np.inf)),
        TRAIN,
        ["'b0'", "infinite", "row 4"],
    ),
    ("infinity in the target", change(y=at(4, np.inf)), TRAIN, ["'y'", "infinite", "row 4"]),
    (
        "infinity in a binary target",
        change(y=lambda y: np.where(y > 0, np.inf, 0.0)),
        [*TRAIN, "--task", "binary"],
        ["'y'", "inf"],
    ),
    (
        "a missing target",
        change(y=at(4, np.nan)),
        [*TRAIN, "--missing-target", "error"],
        ["1 of 60 rows", "rows 4", "--missing-target drop"],
    ),
    ("a negative weight", change(w=at(4, -1.0)), [*TRAIN, "--weights", "w"], ["weight", "row 4"]),
    ("no weight at all", change(w=0.0), [*TRAIN, "--weights", "w"], ["weight"]),
    (
        "a target of dates",
        change(y=pd.date_range("2024-01-01", periods=60)),
        TRAIN,
        ["target 'y' is timestamp[", "]; expected numbers or text: convert"],
    ),
    ("a text target for a regression", nothing, aimed("kind", "--task", "regression"), ["'kind'", "text"]),
    ("three values for two classes", nothing, aimed("grade", "--task", "binary"), ["'grade'", "4 values"]),
    ("a family of classes for numbers", nothing, aimed("y", "--family", "binomial"), ["'y'", "2 for task binary"]),
    ("a family of two classes for four", nothing, aimed("grade", "--family", "binomial"), ["'grade'", "4 values"]),
    ("a family of classes for two", nothing, aimed("kind", "--family", "multinomial"), ["binomial or gaussian"]),
    ("a family of counts for text", nothing, aimed("kind", "--family", "poisson"), ["'kind'", "text"]),
    ("a family of counts for numbers below 0", nothing, aimed("y", "--family", "poisson"), ["'y'", "expected counts"]),
    (
        "a family of counts for a regression",
        nothing,
        aimed("grade", "--family", "poisson", "--task", "regression"),
        ["poisson", "gaussian"],
    ),
    (
        "least squares for counts",
        nothing,
        aimed("grade", "--family", "gaussian", "--task", "count"),
        ["gaussian", "poisson"],
    ),
    ("several counts", nothing, aimed("grade", "--target", "y", "--family", "poisson"), ["2 targets"]),
    ("several classes", nothing, aimed("kind", "--target", "grade", "--family", "binomial"), ["'kind'", "text"]),
    ("an unknown family", nothing, [*TRAIN, "--family", "beta"], ["--family is 'beta'", "poisson"]),
    *(
        (
            f"a negative count by {option}",
            change(grade=at(7, -3)),
            aimed("grade", option, value),
            ["train.parquet: target 'grade' holds -3; expected counts, 0 or more"],
        )
        for option, value in (("--family", "poisson"), ("--task", "count"))
    ),
    (
        "one class with weight",
        change(w=1.0 * (rows()["kind"] == "down")),
        aimed("kind", "--family", "binomial", "--weights", "w"),
        ["target 'kind' is 'down' in every row"],
    ),
    ("one class of several", change(grade=1), aimed("grade", "--family", "multinomial"), ["'grade' is 1 in every row"]),
    ("a table that is not there", nothing, ["train", "none.parquet", *TRAIN[2:]], ["none.parquet", "check the path"]),
    ("a table that is a directory", nothing, ["train", "..", *TRAIN[2:]], ["directory without tables"]),
    ("a table of no known format", nothing, ["train", "groups.json", *TRAIN[2:]], ["groups.json", ".parquet"]),
    ("certifying a model without moments", BARE, CERTIFY, ["'m'", "--no-moments"]),
    ("certifying a likelihood", train_likelihood, CERTIFY, ["'m'", "binomial", "least squares"]),
    ("certifying by no nodes", trained, [*CERTIFY, "--nodes", "0"], ["0 nodes"]),
    ("certifying in no time at all", trained, [*CERTIFY, "--seconds", "-1"], ["-1.0 seconds"]),
    ("certifying for ever", trained, [*CERTIFY, "--seconds", "inf"], ["inf seconds", "finite"]),
    ("certifying what is not there", nothing, CERTIFY, ["m.safetensors", "no such file"]),
    ("certifying into another kind of file", trained, [*CERTIFY[:-1], "--out", "m.bin"], ["m.bin", ".safetensors"]),
    ("certifying into two files", trained, [*CERTIFY, "--out", "n.safetensors"], ["both --out and --in-place"]),
    ("certifying into the model by --out", trained, [*CERTIFY[:-1], "--out", "./m.safetensors"], ["the model itself"]),
    (
        "testing on what chose the prefix",
        nothing,
        [*TRAIN, "--validation", "test.csv", "--test", "test.csv"],
        ["--test is 'test.csv'", "chooses where to stop"],
    ),
    (
        "testing on what calibrated",
        nothing,
        [*TRAIN, "--calibrate", "test.csv", "--test", "test.csv"],
        ["--test is 'test.csv'", "--calibrate uses"],
    ),
    ("a budget below 0", trained, [*EVALUATE, "--budget", "-1"], ["budget is -1.0", "0 or more"]),
    *(
        (
            f"{option} without random costs",
            trained,
            [*EVALUATE, option, "3"],
            [f"{option} applies to simulations only; add --random-costs FILE"],
        )
        for option in ("--deadline", "--rows")
    ),
    ("a precision of nothing", nothing, [*TRAIN, "--epsilon", "0"], ["epsilon is 0.0", "above 0"]),
    ("a precision that is none", nothing, [*TRAIN, "--epsilon", "nan"], ["epsilon is nan"]),
    ("a precision that keeps nothing", nothing, [*TRAIN, "--epsilon", "9"], ["epsilon is 9", "the longest is"]),
    (
        "validation on the rows to learn from",
        nothing,
        [*TRAIN, "--validation", "train.parquet"],
        ["--validation is 'train.parquet'", "the model learns from"],
    ),
    (
        "calibration on the rows of the validation",
        nothing,
        [*TRAIN, "--validation", "test.csv", "--calibrate", "test.csv"],
        ["--calibrate is 'test.csv'", "--validation uses"],
    ),
    (
        "a validation table that lacks a feature",
        OTHER_COLUMNS,
        [*TRAIN, "--validation", "test.csv"],
        ["test.csv", "'b0'"],
    ),
    (
        "a validation on which nothing is better than the base rate",
        table("test.csv", rows(1, 30).assign(y=lambda frame: -9 * frame["y"])),
        [*TRAIN, "--validation", "test.csv"],
        ["test.csv", "the base rate is the best"],
    ),
    ("a table that is not what its name says", DISGUISED, TRAIN, ["train.parquet", "Parquet"]),
    ("groups that are not there", nothing, [*TRAIN[:3], "none.json", *TRAIN[4:]], ["none.json", "no such file"]),
    ("groups that are a table", nothing, [*TRAIN[:3], "train.parquet", *TRAIN[4:]], ["train.parquet", "not text"]),
    ("a test table that is not there", nothing, [*TRAIN, "--test", "none.csv"], ["none.csv"]),
    ("a test table that lacks a column", OTHER_COLUMNS, [*TRAIN, "--test", "test.csv"], ["test.csv", "'b0'"]),
    ("a calibration table that is not there", nothing, [*TRAIN, "--calibrate", "none.csv"], ["none.csv"]),
    ("a calibration on another table", OTHER_COLUMNS, [*TRAIN, "--calibrate", "test.csv"], ["test.csv", "'b0'"]),
    ("a calibration on the training rows", nothing, [*TRAIN, "--calibrate", "train.parquet"], ["rows", "learns from"]),
    ("too few rows to calibrate", FEW_HELD, [*TRAIN, *CALIBRATE], ["8 rows are too few", "9 or more"]),
    ("rows to calibrate without targets", GAPS_HELD, [*TRAIN, *CALIBRATE, *REFUSE], ["held.csv", "2 of 30 rows"]),
    (
        "a calibration with weights",
        nothing,
        [*TRAIN, "--weights", "w", *CALIBRATE],
        [
            "error: --calibrate is 'held.csv' with weights 'w'; expected no weights",
            "depends on the weight of the row to predict, which is unknown",
        ],
    ),
    (
        "groups in place of a file that exists",
        partial(Path("g.yaml").write_text, "edited"),
        ["groups", "train.parquet", "--target", "y", "--out", "g.yaml"],
        ["'g.yaml' exists, perhaps with your costs; remove it, or name another file"],
    ),
    ("a coverage of nothing", nothing, [*TRAIN, "--coverage", "0.9"], ["--coverage", "--calibrate"]),
    ("a coverage in percent", FEW_HELD, [*TRAIN, *CALIBRATE, "--coverage", "90"], ["coverage is 90", "0.9"]),
    ("an alpha that is a word", nothing, [*TRAIN, "--alpha", "auto"], ["--alpha", "'auto'", "'cv'"]),
    ("a negative alpha", nothing, [*TRAIN, "--alpha", "-1"], ["alpha", "-1", "0 or more"]),
    ("an alpha that is no number", nothing, [*TRAIN, "--alpha", "nan"], ["alpha", "nan"]),
    ("an infinite alpha", nothing, [*TRAIN, "--alpha", "inf"], ["alpha", "inf"]),
    ("one fold", nothing, [*TRAIN, "--folds", "1"], ["--folds", "2 or more"]),
    ("negative folds", nothing, [*TRAIN, "--folds", "-2"], ["--folds", "-2"]),
    ("folds that are a word", nothing, [*TRAIN, "--folds", "five"], ["--folds"]),
    ("no folds to choose alpha by", nothing, [*TRAIN, "--folds", "0"], ["cv", "folds"]),
    ("no folds to nest in", nothing, [*TRAIN, "--nested", "--alpha", "0.1", "--folds", "0"], ["nested", "folds"]),
    ("no jobs", nothing, [*TRAIN, "--n-jobs", "0"], ["--n-jobs"]),
    ("a negative seed", nothing, [*TRAIN, "--seed", "-1"], ["--seed"]),
    ("an unknown method", nothing, [*TRAIN, "--method", "lasso"], ["--method is 'lasso'", "omp, fr"]),
    ("an unknown task", nothing, [*TRAIN, "--task", "ranking"], ["--task"]),
    ("a model of another suffix", nothing, [*TRAIN[:-1], "m.bin"], ["m.bin", ".safetensors"]),
    ("a model in no directory", nothing, [*TRAIN[:-1], "no/m.safetensors"], ["no directory 'no'"]),
    ("pairs below none", nothing, [*TRAIN, "--pairs", "-1"], ["--pairs is -1; expected a number from 0", "or 'auto'"]),
    ("pairs that are a word", nothing, [*TRAIN, "--pairs", "some"], ["--pairs is 'some'; expected a number from 0"]),
    (
        "pairs on a path",
        nothing,
        [*TRAIN, "--pairs", "3", "--method", "sparse"],
        ["method sparse does not support pairs"],
    ),
    (
        "pairs of moments",
        MOMENTS,
        [*FROM_MOMENTS, "--pairs", "2"],
        ["--pairs requires a table", "without rows to screen"],
    ),
    ("no target", nothing, ["train", "train.parquet", "--groups", "groups.json", *TRAIN[6:]], ["--target"]),
    ("no table", nothing, ["train"], ["argument 'DATA'", "--help"]),
    ("an unknown option", nothing, [*TRAIN, "--cost"], ["--cost"]),
    ("an unknown command", nothing, ["trian"], ["trian", "--help"]),
    ("no command", nothing, [], ["command", "--help"]),
    ("a level above one", nothing, [*COMPARE, "--level", "1.5"], ["--level", "1.5"]),
    ("a level of nought", nothing, [*COMPARE, "--level", "0"], ["--level", "above 0"]),
    ("a level that is a word", nothing, [*COMPARE, "--level", "high"], ["--level"]),
    ("a comparison without a target", nothing, COMPARE[:4], ["is a table; give --target"]),
    ("a comparison with a wrong alpha", nothing, [*COMPARE, "--alpha", "-1"], ["alpha", "-1"]),
    ("a comparison in no directory", nothing, [*COMPARE, "--plot", "no/c.png"], ["no directory 'no'"]),
    ("a comparison of no known picture", nothing, [*COMPARE, "--plot", "c.gif"], ["c.gif", ".png"]),
    ("a comparison on another table", OTHER_COLUMNS, [*COMPARE, "--test", "test.csv"], ["test.csv", "'b0'"]),
    ("a picture of no known format", trained, ["plot", "m.safetensors", "--out", "m.gif"], ["m.gif", ".png"]),
    ("a prefix without shapes", trained, ["show", "m.safetensors", "--prefix", "1"], ["--prefix", "--shapes"]),
    (
        "shapes within a budget",
        trained,
        ["show", "m.safetensors", "--shapes", "--budget", "1"],
        ["--budget", "--prefix"],
    ),
    ("weights of no rows", trained, [*RESEQUENCE, "--weights", "w"], ["--weights is 'w' without rows", "add --data"]),
    ("a budget that is a word", trained, [*EVALUATE, "--budget", "ten"], ["--budget", "a valid number", "not 'ten'"]),
    ("shapes of no prefix", trained, ["show", "m.safetensors", "--shapes", "--prefix", "9"], ["9", "0 to 3"]),
    ("a top without shapes", trained, ["plot", "m.safetensors", "--out", "m.png", "--top", "3"], ["--top"]),
    ("a picture of a table", nothing, ["plot", "train.parquet", "--out", "m.png"], ["train.parquet"]),
    ("a model that is not there", nothing, ["show", "none.safetensors"], ["none.safetensors", "no such file"]),
    (
        "a model that is a table",
        nothing,
        ["show", "train.parquet"],
        ["train.parquet", "not a complete safetensors file"],
    ),
    ("a model that was tampered with", tamper, ["show", "m.safetensors"], ["changed after it was written"]),
    ("an evaluation by a tampered model", tamper, EVALUATE, ["changed after it was written"]),
    ("an evaluation without a column", partial(without_columns, "b0"), EVALUATE, ["test.csv lacks", "'b0'"]),
    ("other costs for a tampered model", tamper, RESEQUENCE, ["changed after it was written"]),
    ("other costs for a model without moments", BARE, RESEQUENCE, ["without its moments", "--no-moments"]),
    ("nothing to be changed", trained, NEW, ["no change requested"]),
    ("a required group left out", trained, [*NEW, "--without", "visit"], ["'b' requires 'visit', which is left out"]),
    (
        "rows of levels for moments",
        MOMENTS,
        [*FROM_MOMENTS, "--min-level-rows", "3"],
        ["--min-level-rows requires a table"],
    ),
    ("too few rows of levels", nothing, [*TRAIN, "--min-level-rows", "1"], ["--min-level-rows is 1; expected a whole"]),
    ("types of moments", MOMENTS, [*FROM_MOMENTS, "--text", "a0"], ["--text or --number requires a table"]),
    ("a seed of moments", MOMENTS, [*FROM_MOMENTS, "--seed", "7"], ["--seed requires a table"]),
    (
        "class weights of a regression",
        nothing,
        [*TRAIN, "--class-weight", "balanced"],
        ["class weights require classes; target y is regression"],
    ),
    (
        "class weights of moments",
        MOMENTS,
        [*FROM_MOMENTS, "--class-weight", "balanced"],
        ["--class-weight requires a table"],
    ),
    (
        "a forced group that does not exist",
        trained,
        [*NEW, "--first", "visits"],
        ["no group 'visits'; did you mean 'visit'?"],
    ),
    (
        "groups to place first and none of them",
        trained,
        [*NEW, "--first", "c", "--no-first"],
        ["--first and --no-first", "one of them"],
    ),
    ("a required group left out of training", nothing, [*TRAIN, "--without", "visit"], ["'b' requires 'visit'"]),
    ("an unknown group left out of training", nothing, [*TRAIN, "--without", "d"], ["no group 'd'"]),
    ("a demo on a port that does not exist", nothing, ["demo", "--port", "99999", "--once"], ["'--port'", "65535"]),
    ("an unknown group first in training", nothing, [*TRAIN, "--first", "visits"], ["did you mean 'visit'?"]),
    ("a group first and left out", nothing, [*TRAIN, "--first", "a", "--without", "a"], ["'a'", "both placed first"]),
    ("no group of this name", trained, ["what-if", "m.safetensors", "--without", "x"], ["there is no group 'x'"]),
    ("a budget of less than nothing", trained, ["what-if", "m.safetensors", "--budget", "-1"], ["budget is -1"]),
    ("no group of this cost", trained, ["what-if", "m.safetensors", "--cost", "x=2"], ["there is no group 'x'"]),
    (
        "a report on other columns",
        partial(without_columns, "b0"),
        ["report", "m.safetensors", "--test", "test.csv", "--out", "r.html"],
        ["lacks", "'b0'"],
    ),
    ("a report in a text file", trained, ["report", "m.safetensors", "--out", "r.txt"], ["r.txt", ".html"]),
    (
        "a report of a coverage above one",
        trained,
        ["report", "m.safetensors", "--calibrate", "held.csv", "--coverage", "2", "--out", "r.html"],
        ["coverage is 2"],
    ),
    (
        "a report of a coverage without a table to calibrate on",
        trained,
        ["report", "m.safetensors", "--coverage", "0.8", "--out", "r.html"],
        ["--coverage is 0.8 without a table to calibrate on; add --calibrate TABLE"],
    ),
    (
        "predictions of other columns",
        partial(without_columns, "a0", "a1", "b0", "c0"),
        ["predict", "m.safetensors", "test.csv", "--out", "p.csv"],
        ["of the first step"],
    ),
    (
        "a likelihood without its rows",
        train_likelihood,
        ["what-if", "m.safetensors", "--without", "c"],
        ["add --data TABLE"],
    ),
]


SHOW = ["show", "m.safetensors"]
SAID: list[tuple[str, Callable[[], object], list[str], list[str]]] = [
    (
        "a bound of doubling that promises nothing",
        with_groups(b={"requires": [], "cost": 1.0}, a={"cost": 40.0}, c={"cost": 20.0}, visit={"cost": 2.0}),
        [*TRAIN, "--doubling"],
        ["guarantee: none (the bound applies only up to step 1 of 4, to budgets of at most 1 ms; a quarter of that"],
    ),
    (
        "a bound of doubling",
        with_groups(a={"cost": 1.0}, visit={"cost": 1.0}, b={"requires": [], "cost": 1.0}, c={"cost": 1.0}),
        [*TRAIN, "--doubling"],
        ["the groups within any budget B explain more than "],
    ),
    (
        "rows without a target",
        change(y=lambda y: y.where(~y.index.isin([3, 5]))),
        TRAIN,
        ["left out: 2 of 60 rows of train.parquet without a target\n", "learned from 58 rows"],
    ),
    (
        "columns that options leave out",
        nothing,
        [*TRAIN, "--without", "c", "--drop", "a1"],
        [
            "left out: 'c0' (--without)\n",
            "left out: 'a1' (--drop)\n",
            "ignored: 'kind', 'grade', 'q', 'w' (in no group)\n",
        ],
    ),
    (
        "rules that stop nothing",
        nothing,
        [*TRAIN, "--epsilon", "1e-6", "--validation", "held.csv"],
        ["\nnot stopped by epsilon 1e-06 or held.csv; no group left out\n"],
    ),
    (
        "the certificate of a stopped model",
        stop,
        CERTIFY,
        ["every step is the best set of the retained groups at its cost"],
    ),
    ("the promise of a model", partial(promise, "--alpha", "0.1"), SHOW, ["any set of cost K explains"]),
    (
        "the promise of a stopped model",
        partial(promise, "--alpha", "0.1", "--epsilon", "0.5"),
        SHOW,
        ["any set of cost K of all training groups explains"],
    ),
    (
        "the promise of a stopped model in another order",
        partial(promise, "--alpha", "0.1", "--epsilon", "0.5"),
        RESEQUENCE,
        ["any set of cost K of the retained groups explains"],
    ),
]


@pytest.mark.parametrize(("prepare", "call", "words"), [case[1:] for case in SAID], ids=[case[0] for case in SAID])
def test_what_is_special_about_a_model_is_said(
    prepare: Callable[[], object], call: list[str], words: list[str], desk: Path, capsys: Capture
) -> None:
    prepare()
    captured = ran(capsys, *call)
    assert not [word for word in words if word not in captured.err + captured.out]


@pytest.mark.parametrize(("prepare", "call", "words"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    prepare: Callable[[], object], call: list[str], words: list[str], desk: Path, capsys: Capture
) -> None:
    prepare()
    before = {path: path.read_bytes() for path in desk.rglob("*")}
    captured = ran(capsys, *call, code=2)
    *remarks, error = captured.err.splitlines()
    assert error.startswith("error: ")
    assert all(line.startswith(REMARKS) for line in remarks), captured.err
    assert captured.out == ""
    assert len(error) < 500
    assert not [word for word in words if word not in error], error
    assert {path: path.read_bytes() for path in desk.rglob("*")} == before


WORDS_HELD = table(
    "held.csv", rows(2, 30).assign(b0=lambda frame: frame["b0"].astype(object).where(frame.index < 29, "x"))
)
CLASS_HELD = table("held.csv", rows(2, 30).assign(kind=lambda frame: frame["kind"].where(frame.index < 29, "left")))
INFINITE_HELD = table("held.csv", rows(2, 30).assign(c0=lambda frame: frame["c0"].where(frame.index < 29, np.inf)))


@pytest.mark.parametrize("option", ["--test", "--calibrate"])
@pytest.mark.parametrize(
    ("prepare", "target", "word"),
    [(WORDS_HELD, "y", "'x' in row 29"), (CLASS_HELD, "kind", "'left' was never seen"), (INFINITE_HELD, "y", "row 29")],
    ids=["a cell of text", "a class", "an infinite value"],
)
def test_what_only_another_table_has_costs_neither_the_model_nor_the_other_measures(
    prepare: Callable[[], object], target: str, word: str, option: str, desk: Path, capsys: Capture
) -> None:
    prepare()
    other = {"--test": "--calibrate", "--calibrate": "--test"}[option]
    captured = ran(capsys, *aimed(target, option, "held.csv", other, "test.csv", "--alpha", "0.1"), code=1)
    (error,) = (line for line in captured.err.splitlines() if line.startswith("error: "))
    assert word in error
    assert error.endswith("; m.safetensors is complete")
    model = load("m.safetensors")
    assert (model.manifest.calibration is None) == (option == "--calibrate")
    assert ("test " in captured.out) == (option == "--calibrate")
    assert model.version in captured.out
    assert "wrote m.safetensors" in captured.out


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("place", "call", "said"),
    [
        ("anytime_reproduction.comparison.plot_comparison", [*COMPARE, "--plot", "c.png"], "CS-G-OMP"),
        ("anytime.model.model.Model.save", [*CERTIFY[:-1], "--out", "sure.safetensors"], "certified: "),
    ],
    ids=["compare", "certify"],
)
def test_results_are_printed_although_their_file_cannot_be_written(
    place: str, call: list[str], said: str, desk: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained("--alpha", "0.01")
    monkeypatch.setattr(place, Mock(side_effect=FULL))
    captured = ran(capsys, *call, code=1)
    assert [line for line in captured.err.splitlines() if "error" in line] == ["error: no space left on device"]
    assert said in captured.out


def test_a_wrong_test_table_is_found_before_the_training(
    desk: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anytime.training.train.fit", Mock(side_effect=AssertionError("the training began")))
    OTHER_COLUMNS()
    FEW_HELD()
    wrong = ([*TRAIN, "--test", "test.csv"], [*TRAIN, "--calibrate", "test.csv"], [*TRAIN, *CALIBRATE])
    for call in (*wrong, [*COMPARE, "--plot", "c.gif"]):
        assert main(call) == 2
    monkeypatch.setattr("os.access", lambda _, mode: mode != os.W_OK)
    assert "cannot write 'm.safetensors': no permission to write in '.'" in refusal(capsys, *TRAIN)


def test_an_unexpected_failure_is_one_line_without_a_traceback(
    desk: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained()
    monkeypatch.setattr("anytime.cli.model_file.load", Mock(side_effect=ZeroDivisionError("a surprise\nin two lines")))
    captured = ran(capsys, "show", "m.safetensors", code=1)
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("error: internal error: ZeroDivisionError: a surprise in two lines")
    monkeypatch.setenv("ANYTIME_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["show", "m.safetensors"])


@pytest.mark.parametrize(
    ("place", "failure", "code", "said"),
    [
        ("anytime.training.train.fit", MemoryError(), 1, "error: out of memory.*"),
        ("pyarrow.parquet.ParquetFile.iter_batches", pa.ArrowMemoryError("malloc failed"), 1, "error: out of memory.*"),
        ("anytime.training.train.fit", KeyboardInterrupt(), 130, "error: stopped"),
    ],
    ids=["memory", "memory to read the table, which is no fault of it", "an interruption"],
)
def test_a_failure_of_the_machine_or_an_interruption_is_one_line(
    place: str,
    failure: BaseException,
    code: int,
    said: str,
    desk: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, Mock(side_effect=failure))
    assert re.fullmatch(said, refusal(capsys, *TRAIN, code=code))
    assert not Path("m.safetensors").exists()


def test_a_full_disk_is_one_line_and_exit_1_and_a_wrong_path_is_exit_2(
    desk: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained()
    full = Mock(side_effect=FULL)
    monkeypatch.setattr("os.fsync", full)
    assert refusal(capsys, *RESEQUENCE, code=1) == "error: cannot write 'new.safetensors': no space left on device"
    monkeypatch.setattr("pathlib.Path.write_text", full)
    assert main(["export", "m.safetensors", "--to", "json", "--out", "m.json"]) == 1
    assert main(["export", "m.safetensors", "--to", "json", "--out", "none/m.json"]) == 2


@pytest.mark.parametrize(
    ("call", "code", "out", "err"),
    [
        (["--version"], 0, f"anytime-linear {version('anytime-linear')}\n", ""),
        (["show", "none"], 2, "", "error: cannot read 'none': no such file or directory\n"),
    ],
    ids=["version", "show"],
)
def test_the_module_runs_as_the_command(call: list[str], code: int, out: str, err: str) -> None:
    done = subprocess.run([sys.executable, "-m", "anytime", *call], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_train_places_groups_first_and_leaves_groups_out_as_resequence_does(
    family: str, desk: Path, capsys: Capture
) -> None:
    target = "y" if family == "gaussian" else "kind"
    plain = ["--alpha", "0.01", "--folds", "0", "--family", family]
    assert "left out: 'a'" in output(capsys, *aimed(target, *plain, "--first", "c", "--without", "a")).splitlines()
    one = load("m.safetensors").manifest
    assert [step.group for step in one.steps] == ["c", "b"]
    assert (one.first, one.groups.names) == (("c",), ("visit", "b", "c"))
    assert main(aimed(target, *plain)) == 0
    data = [] if family == "gaussian" else ["--data", "train.parquet"]
    output(capsys, *NEW, "--first", "c", "--without", "a", *data)
    other = load("new.safetensors").manifest
    for mine, theirs in zip(one.steps, other.steps, strict=True):
        assert mine.adds == theirs.adds
        assert mine.explained_variance == pytest.approx(theirs.explained_variance, rel=1e-9)
    assert (other.first, other.stopped) == (one.first, one.stopped)
    assert other.provenance.data == "train.parquet"
    for changed, first in ((["--costs", "groups.json"], ("c",)), (["--no-first"], ())):
        output(capsys, "resequence", "new.safetensors", *changed, "--out", "last.safetensors", *data)
        assert load("last.safetensors").manifest.first == first


def test_moments_are_trained_without_some_groups_and_with_others_first(desk: Path, capsys: Capture) -> None:
    output(capsys, "moments", "train.parquet", "--groups", "groups.json", "--target", "y", "--out", "m.moments")
    choice = ["--alpha", "0.01", "--first", "c", "--without", "a"]
    output(capsys, "train", "m.moments", *choice, "--out", "smaller.safetensors")
    one, other = load("smaller.safetensors"), load(trained(*choice))
    assert [step.adds for step in one.manifest.steps] == [("c",), ("visit", "b")]
    assert one.manifest.first == other.manifest.first == ("c",)
    assert one.prefixes.packed == pytest.approx(other.prefixes.packed, rel=1e-9)


def test_first_names_no_group_that_a_stopping_rule_excluded(desk: Path, capsys: Capture) -> None:
    weak_rows(0, 30).to_parquet("train.parquet")
    weak_rows(8, 50).to_csv("held.csv", index=False)
    first = ["--first", "b", "--first", "a", "--first", "c"]
    manifest = load(trained("--alpha", "0.001", "--folds", "0", "--validation", "held.csv", *first)).manifest
    assert manifest.first == tuple(step.group for step in manifest.steps)
    assert len(manifest.first) < 3, "this table does not test anything"
    output(capsys, *NEW, "--method", "omp")


def test_an_interruption_before_a_command_begins_prints_one_line(desk: Path) -> None:
    """Ctrl-C while the modules of a command are imported: an interrupted import would print a traceback."""
    stop = (
        "import importlib.abc, os, signal, sys\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == sys.argv[1]: os.kill(os.getpid(), signal.SIGINT)\n"
        "from anytime.cli import main\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.exit(main(['train', *sys.argv[2:]]))"
    )
    for module in ("typer", "numpy", "anytime.cli.train"):
        call = [sys.executable, "-c", stop, module, *TRAIN[1:]]
        done = subprocess.run(call, cwd=desk, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: stopped\n")
    assert not (desk / "m.safetensors").exists()


def test_nested_errors_are_named_and_recorded(desk: Path, capsys: Capture) -> None:
    assert "each of 5 folds learned its own order" in output(capsys, *TRAIN, "--nested")
    assert load("m.safetensors").manifest.provenance.nested
    assert "learned its own order" in output(capsys, "show", "m.safetensors")
    assert "learned its own order" not in output(capsys, *TRAIN)
    assert "nested" not in load("m.safetensors").manifest.provenance.model_dump()
