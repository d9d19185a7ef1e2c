"""`anytime profile`, `costs` and `evaluate --random-costs`: what they write and print, and what they refuse."""

from __future__ import annotations

import errno
import json
import socket
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from anytime.cli.main import main
from anytime.costs.distributions import CostDistributions, Samples
from anytime.costs.drift import drift
from anytime.groups import load_groups
from anytime.loaded import load
from models.commands import Capture, document, output, ran, refusal
from models.costs.test_scraping import Call, Metrics, scrape
from system import http_server

GROUPS: dict[str, Any] = {
    "cost_unit": "ms",
    "groups": [
        {"name": "a", "features": ["a0", "a1"], "cost": 4.0},
        {"name": "visit", "features": [], "cost": 1.0},
        {"name": "b", "features": ["b0"], "cost": 0.5, "requires": ["visit"]},
        {"name": "c", "features": ["c0"], "cost": 2.0},
    ],
}

MODULE = """
import numpy as np

EXTRACTORS = {
    "a": lambda row: [row["a0"], row["a1"]],
    "b": lambda row: [row["b0"]],
    "c": lambda row: [row["c0"]],
}
BATCHES = {
    "a": lambda rows: np.stack([rows["a0"], rows["a1"]], axis=1),
    "b": lambda rows: rows["b0"][:, np.newaxis],
    "c": lambda rows: rows["c0"][:, np.newaxis],
}
INPUTS = [{"a0": 1.0, "a1": 2.0, "b0": 3.0, "c0": 4.0}] * 3
WRONG = EXTRACTORS | {"b": lambda row: row["nothing"]}
NUMBER = 3
ONE = EXTRACTORS["a"]


def made():
    return EXTRACTORS
"""


@pytest.fixture
def desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a table, groups, a module of extractors and a model."""
    monkeypatch.delenv("ANYTIME_KEY", raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "desk_module", raising=False)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(80, 4)), columns=["a0", "a1", "b0", "c0"])
    frame["y"] = frame @ [1.0, 1.0, 1.5, 0.7] + 0.5 * rng.normal(size=80)
    frame["kind"] = np.where(frame["y"] > 0, "up", "down")
    frame[:60].to_csv("train.csv", index=False)
    frame[60:].to_csv("test.csv", index=False)
    Path("groups.json").write_text(json.dumps(GROUPS))
    Path("desk_module.py").write_text(MODULE)
    return desk


PROFILE = ["profile", "desk_module:EXTRACTORS", "train.csv", "--groups", "groups.json", "--out", "measured.yaml"]
QUICK = ["--limit", "5", "--repeats", "2", "--warm-up", "1"]
TRAIN = ["train", "train.csv", "--groups", "groups.json", "--target", "y", "--alpha", "0.01", "--folds", "0"]
COSTS = ["costs", "--from", "metrics.txt", "--model", "m.safetensors"]
SIMULATE = ["evaluate", "m.safetensors", "test.csv", "--random-costs", "d.json"]


def metrics(**groups: list[float]) -> str:
    """What a service exposes of groups, of calls of one row in milliseconds."""
    return page_metrics(**{group: [(1, ms) for ms in values] for group, values in groups.items()})


def page_metrics(**groups: list[Call]) -> str:
    """What a service exposes of calls of several rows."""
    return "".join(scrape(calls, group) for group, calls in groups.items())


DRIFTED = metrics(a=[0.2] * 40, b=[9.0] * 40, c=[9.0] * 40)
"""Costs at which another sequence is better."""


def trained(*options: str, target: str = "y") -> None:
    """Train the model of the desk."""
    assert main([target if word == "y" else word for word in (*TRAIN, "--out", "m.safetensors", *options)]) == 0


@pytest.fixture
def model_desk(desk: Path) -> Path:
    """The working directory, with the model m.safetensors."""
    trained()
    return desk


# profile


def test_profile_writes_the_groups_at_what_their_extractors_take(desk: Path, capsys: Capture) -> None:
    out = output(capsys, *PROFILE, *QUICK, "--distributions", "measured.json")
    found, before = load_groups("measured.yaml"), load_groups(GROUPS)
    assert found.cost_unit == "ms"
    assert (found.names, found.features) == (before.names, before.features)
    assert [group.requires for group in found.groups] == [group.requires for group in before.groups]
    assert found.costs[found.position("visit")] == 1.0, "nobody computes it by itself"
    saved = CostDistributions.load("measured.json")
    assert saved.paired
    for name in "abc":
        assert found.costs[found.position(name)] == saved.groups[name].quantiles(np.array(0.5))
        assert saved.groups[name].count == 10
    words = ("cost (ms)", "median", "p99", "timer", "wrote measured.yaml and measured.json")
    assert not [word for word in words if word not in out]
    trained("--groups", "measured.yaml")
    assert load("m.safetensors").groups == found


def test_profile_takes_a_quantile_inputs_of_a_module_a_model_and_batches(model_desk: Path, capsys: Capture) -> None:
    inputs = ["profile", "desk_module:made", "--inputs", "desk_module:INPUTS", "--groups", "m.safetensors"]
    values = document(capsys, *inputs, "--out", "g.json", "--cost-quantile", "0.9", "--distributions", "d.json")
    saved = CostDistributions.load("d.json")
    assert values["cost_unit"] == "ms"
    assert {each["group"]: each["cost"] for each in values["groups"]} == {
        name: saved.groups[name].quantiles(np.array(0.9)) for name in "abc"
    }
    assert all(each["calls"] == 15 and each["p10"] <= each["median"] <= each["p99"] for each in values["groups"])
    batches = ["profile", "desk_module:BATCHES", *PROFILE[2:], "--rows", "1,8"]
    values = document(capsys, *batches, *QUICK)
    assert all(each["base"] >= 0 and each["per_row"] >= 0 for each in values["groups"])
    assert "a row" in output(capsys, *batches, *QUICK)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["desk_module:WRONG", *PROFILE[2:]], "the extractor of group 'b' failed (KeyError: 'nothing')"),
        (["desk_module:NUMBER", *PROFILE[2:]], "desk_module:NUMBER is int; expected a dict with a callable"),
        (["desk_module:ONE", *PROFILE[2:]], "desk_module:ONE failed (TypeError: <lambda>() missing 1 required"),
        (
            ["desk_module:EXTRACTOR", *PROFILE[2:]],
            "module 'desk_module' has no 'EXTRACTOR'; did you mean 'EXTRACTORS'?",
        ),
        (["desk_modul:EXTRACTORS", *PROFILE[2:]], "cannot import 'desk_modul' (ModuleNotFoundError"),
        (["desk_module", *PROFILE[2:]], "'desk_module' is not a name in a module; expected MODULE:NAME"),
        ([*PROFILE[1:], "--inputs", "desk_module:INPUTS"], "a table and --inputs are given"),
        ([PROFILE[1], *PROFILE[3:]], "no inputs are given; give a table, or --inputs MODULE:INPUTS"),
        ([PROFILE[1], *PROFILE[3:], "--inputs", "desk_module:NUMBER"], "desk_module:NUMBER is int; expected an iter"),
        ([*PROFILE[1:], "--rows", "8,8"], "--rows is '8,8'; expected distinct whole numbers, 1 or more"),
        ([*PROFILE[1:], "--rows", "0"], "--rows is '0'"),
        ([*PROFILE[1:], "--cost-quantile", "90"], "--cost-quantile is 90; expected a number between 0 and 1"),
        ([*PROFILE[1:-1], "measured.txt"], "cannot write 'measured.txt'; expected a name that ends in"),
        ([*PROFILE[1:], "--distributions", "d.txt"], "cannot write 'd.txt'; expected a name that ends in .json"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_profile_tells_what_is_wrong_in_a_line(arguments: list[str], why: str, desk: Path, capsys: Capture) -> None:
    assert refusal(capsys, "profile", *arguments).startswith(f"error: {why}")
    assert not list(desk.glob("measured*"))


# costs


def test_costs_are_the_means_of_what_the_service_measured_and_few_values_change_nothing(
    model_desk: Path, capsys: Capture
) -> None:
    Path("metrics.txt").write_text(metrics(a=[0.5] * 40, b=[8.0] * 39 + [4.0], c=[3.0] * 29))
    values = document(capsys, *COSTS, "--out", "learned.yaml", "--distributions", "d.json")
    costs = {each["group"]: each["cost"] for each in values["groups"]}
    assert costs == {"a": 0.5, "visit": 1.0, "b": 7.9, "c": 2.0}
    a, visit, _, c = values["groups"]
    assert c["why"] == "unchanged: fewer than 30 values were measured"
    assert visit["why"].startswith("unchanged: it has no features")
    assert (a["why"], a["measured"], a["old"]) == (None, 40, 4.0)
    learned = load_groups("learned.yaml")
    assert dict(zip(learned.names, learned.costs.tolist(), strict=True)) == costs
    found = drift(load("m.safetensors"), learned)
    sequence = values["sequence"]
    for name, steps in (("staying", found.current.steps), ("moving", found.relearned.steps)):
        assert sequence[name] == [list(adds) for adds in steps]
    assert sequence["timeliness"]["lost"] == found.lost
    assert CostDistributions.load("d.json").groups["b"].count == 40
    assert main(["resequence", "m.safetensors", "--costs", "learned.yaml", "--out", "new.safetensors"]) == 0
    assert [step.adds for step in load("new.safetensors").manifest.steps] == list(found.relearned.steps)


def test_a_quantile_is_told_with_its_bucket_and_least_can_be_lowered(model_desk: Path, capsys: Capture) -> None:
    Path("metrics.txt").write_text(metrics(a=[0.5] * 40, b=[8.0] * 40, c=[3.0] * 5 + [200.0] * 5))
    call = [*COSTS, "--cost-quantile", "0.9", "--least", "5"]
    out = output(capsys, *call)
    assert all(words in out for words in ("between 5 and 10", "more than 100"))
    found = {each["group"]: (each["bucket"], each["cost"]) for each in document(capsys, *call)["groups"]}
    assert found["b"] == ([5.0, 10.0], 5.0 + 0.9 * 5.0)
    assert found["c"] == ([100.0, None], 100.0)


def test_costs_of_a_window_are_taken_replica_by_replica(model_desk: Path, capsys: Capture) -> None:
    both = [*COSTS, "--from", "other.txt"]
    for name in ("metrics.txt", "other.txt"):
        Path(name).write_text(metrics(a=[1.0] * 1000))
    output(capsys, *both, "--keep", "saved.txt")
    Path("metrics.txt").write_text(metrics(a=[2.0] * 100))
    Path("other.txt").write_text(metrics(a=[1.0] * 1000 + [2.0] * 2000))
    captured = ran(capsys, *both, "--since", "saved.txt", "--json")
    group = json.loads(captured.out)["groups"][0]
    assert (group["cost"], group["measured"]) == (pytest.approx(2.0), 2100)
    assert "metrics.txt was restarted since then; all of its counts are used" in captured.err
    assert "no group of model 'm' was timed since" in refusal(capsys, *COSTS, "--since", "metrics.txt")
    Path("one.txt").write_text(metrics(a=[1.0]))
    assert "give one --since for each --from" in refusal(capsys, *both, "--since", "one.txt")


def test_check_is_3_where_staying_loses_more_than_is_tolerated(model_desk: Path, capsys: Capture) -> None:
    Path("metrics.txt").write_text(metrics(a=[4.0] * 40, b=[0.5] * 40, c=[2.0] * 40))
    assert "the sequence does not change" in output(capsys, *COSTS, "--check")
    Path("metrics.txt").write_text(DRIFTED)
    captured = ran(capsys, *COSTS, "--check", "--budget", "0.3", "--budget", "12", code=3)
    assert "of timeliness, more than 0.01; resequence the model" in captured.err
    assert all(words in captured.out for words in ("current: visit+b", "new:     a"))
    assert [line.split()[0] for line in captured.out.splitlines() if line.strip()[:3] in ("0.3", "12 ")] == [
        "0.3",
        "12",
    ]
    assert main([*COSTS, "--check", "--tolerance", "0.99"]) == 0
    assert main(COSTS) == 0


def test_no_failure_of_check_has_the_exit_code_of_drift(
    model_desk: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody listens
        for source, code in {
            f"http://127.0.0.1:{silent.getsockname()[1]}/metrics": 1,
            "http://anytime.invalid/metrics": 1,
            "ftp://127.0.0.1/metrics": 2,
            "none.txt": 2,
        }.items():
            refusal(capsys, "costs", "--from", source, *COSTS[3:], "--check", code=code)
    Path("metrics.txt").write_text(DRIFTED)
    for error in (MemoryError(), OSError(errno.EIO, "Input/output error"), ZeroDivisionError("a surprise")):
        monkeypatch.setattr("anytime.costs.drift.resequence", Mock(side_effect=error))
        refusal(capsys, *COSTS, "--check", code=1)


@pytest.mark.parametrize(("status", "expected"), [(401, 2), (404, 2), (500, 1), (503, 1)])
def test_a_service_that_fails_is_told_from_a_call_that_it_refuses(
    status: int, expected: int, model_desk: Path, capsys: Capture
) -> None:
    with http_server(Metrics, seen=[]) as port:
        source = f"http://127.0.0.1:{port}/moved/{status}/elsewhere"
        said = refusal(capsys, "costs", "--from", source, *COSTS[3:], "--check", code=expected)
    assert f"returned {status}" in said


def test_a_likelihood_is_estimated_without_its_data_and_ordered_with_them(desk: Path, capsys: Capture) -> None:
    trained("--family", "binomial", target="kind")
    Path("metrics.txt").write_text(DRIFTED)
    assert "estimated from the gains of the steps, since a likelihood needs --data" in ran(capsys, *COSTS).err
    assert "estimated" not in ran(capsys, *COSTS, "--data", "train.csv").err
    trained("--no-moments")
    assert "since the model has no moments" in ran(capsys, *COSTS).err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--from", "nowhere.txt"], "cannot read 'nowhere.txt'"),
        (["--since", "nowhere.txt"], "cannot read 'nowhere.txt'"),
        (["--cost-quantile", "1"], "--cost-quantile is 1"),
        (["--out", "learned.csv"], "cannot write 'learned.csv'"),
        (["--model", "groups.json"], "'groups.json' is not a complete safetensors file"),
    ],
    ids=str,
)
def test_costs_tells_what_is_wrong_in_a_line(options: list[str], why: str, model_desk: Path, capsys: Capture) -> None:
    Path("metrics.txt").write_text(metrics(a=[4.0] * 40))
    assert refusal(capsys, *COSTS, *options).startswith(f"error: {why}")


def test_what_was_measured_is_printed_although_a_file_cannot_be_written(
    model_desk: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("metrics.txt").write_text(metrics(a=[4.0] * 40))
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("anytime.cli.costs.write_text", full)
    for call in ([*PROFILE, *QUICK], [*COSTS, "--out", "measured.yaml"]):
        captured = ran(capsys, *call, "--distributions", "d.json", code=1)
        assert "error: no space left on device; measured.yaml is complete" in captured.err.splitlines()
        assert all(words in captured.out for words in ("cost (ms)", "wrote measured.yaml"))


# evaluate --random-costs


def test_evaluate_simulates_deadlines_of_costs_that_are_certain_as_prefixes(model_desk: Path, capsys: Capture) -> None:
    certain = {name: Samples(samples=(cost,)) for name, cost in (("a", 4.0), ("b", 0.5), ("c", 2.0))}
    Path("d.json").write_text(CostDistributions(groups=certain).text())
    deadlines = [0.0, *load("m.safetensors").costs[1:].tolist()]
    call = [*SIMULATE, "--draws", "50", *[part for deadline in deadlines for part in ("--deadline", str(deadline))]]
    values = document(capsys, *call)
    for prefix, row in zip(values["prefixes"], values["random_costs"]["deadlines"], strict=True):
        measured = [[each[name] for name in ("prefix", "r2", "mse")] for each in (row, prefix)]
        assert measured[0] == pytest.approx(measured[1])
        assert (row["r2_error"], row["mse_error"]) == pytest.approx((0, 0), abs=1e-12)
    share = values["random_costs"]["timeliness_r2"]
    assert share["mean"] == pytest.approx(share["at_mean_costs"])
    out = output(capsys, *call)
    assert all(words in out for words in ("deadline (ms)", "50 draws of costs; timeliness of r2 up to"))
    assert document(capsys, *call[:3]).keys() == {*values} - {"random_costs"}


def test_evaluate_simulates_accuracy_too_and_the_same_seed_is_the_same_again(desk: Path, capsys: Capture) -> None:
    trained("--family", "binomial", target="kind")
    Path("metrics.txt").write_text(metrics(a=[4.0] * 40, b=[0.5] * 40, c=[2.0] * 40))
    output(capsys, *COSTS, "--distributions", "d.json")
    call = [*SIMULATE, "--draws", "200", "--seed", "3"]
    first = document(capsys, *call)
    assert document(capsys, *call) == first
    rows = first["random_costs"]["deadlines"]
    assert {"accuracy", "accuracy_error", "deviance", "r2"} <= set(rows[0])
    prefixes = [row["prefix"] for row in rows]
    assert prefixes == sorted(prefixes)
    assert prefixes[-1] > 0


# Costs of calls

PAGES: dict[str, Any] = GROUPS | {
    "groups": [
        {**each, "cost": {"a": {"fixed": 90.0, "per_row": 0.1}, "b": 1.0}.get(each["name"], each["cost"])}
        for each in GROUPS["groups"]
    ]
}
"""Group a is the most expensive for one row, and the cheapest for a page."""


def learned_parts(path: str = "learned.yaml") -> dict[str, tuple[float, float]]:
    return {group.name: (group.call_cost.fixed, group.call_cost.per_row) for group in load_groups(path).groups}


def test_a_model_is_trained_for_the_rows_of_a_page_and_every_command_keeps_them(desk: Path, capsys: Capture) -> None:
    Path("groups.json").write_text(json.dumps(PAGES))
    trained()
    assert load("m.safetensors").manifest.steps[-1].group == "a"
    trained("--rows", "100")
    model = load("m.safetensors")
    assert (model.manifest.steps[0].group, model.groups.rows) == ("a", 100)
    assert model.costs[1] == pytest.approx(1.0)
    assert "costs are per row, in predictions of 100 rows" in output(capsys, "show", "m.safetensors")
    assert document(capsys, "show", "m.safetensors")["groups"]["rows"] == 100
    Path("groups.json").write_text(json.dumps(PAGES | {"rows": 100}))
    trained()
    assert load("m.safetensors").version == model.version, "in the file or as an option"
    Path("groups.json").write_text(json.dumps(PAGES))
    for name, options in (("certify", ["--seconds", "1"]), ("resequence", ["--costs", "groups.json"])):
        assert main([name, "m.safetensors", *options, "--out", "n.safetensors"]) == 0
        assert load("n.safetensors").groups == model.groups
    exported = json.loads(output(capsys, "export", "m.safetensors", "--to", "json"))
    group = next(each for each in exported["groups"] if each["name"] == "a")
    assert exported["rows"] == 100
    assert (group["cost"], group["fixed"], group["per_row"]) == pytest.approx((1.0, 90.0, 0.1))
    header = output(capsys, "export", "m.safetensors", "--to", "c")
    assert "/* Cost of each prefix, per row in predictions of 100 rows, the base rate first. */" in header
    assert main(["moments", *TRAIN[1:6], "--out", "m.moments"]) == 0
    assert main(["train", "m.moments", "--rows", "100", *TRAIN[6:], "--out", "n.safetensors"]) == 0
    assert load("n.safetensors").costs == pytest.approx(model.costs)
    assert load("n.safetensors").groups.rows == 100


def test_costs_of_calls_of_two_sizes_have_a_fixed_part(model_desk: Path, capsys: Capture) -> None:
    Path("metrics.txt").write_text(page_metrics(a=[(100, 12.0)] * 30 + [(1, 2.1)] * 30, b=[(100, 800.0)] * 60))
    values = document(capsys, *COSTS, "--out", "learned.yaml", "--distributions", "d.json")
    assert learned_parts()["a"] == pytest.approx((2.0, 0.1))
    assert load_groups("learned.yaml").rows == values["rows"] == round((30 * 100 + 30 + 60 * 100) / 120)
    assert CostDistributions.load("d.json").rows == 100
    first = values["groups"][0]
    assert (first["fixed"], first["per_row"], first["measured"]) == pytest.approx((2.0, 0.1, 60))
    assert first["cost"] == pytest.approx(0.1 + 2.0 / values["rows"])
    trained("--rows", "50")
    assert "in predictions of 50 rows" in output(capsys, *COSTS, "--out", "learned.yaml"), "the model says so"


def test_costs_that_are_not_times_are_replaced_by_measured_ones(desk: Path, capsys: Capture) -> None:
    groups = {"cost_unit": "dollars", "groups": {"a": ["a0", "a1"], "b": ["b0"], "c": ["c0"]}}
    Path("groups.json").write_text(json.dumps(groups))
    trained()
    Path("metrics.txt").write_text(page_metrics(**dict.fromkeys("abc", [(100, 10.0)] * 40)))
    assert {each["old"] for each in document(capsys, *COSTS, "--out", "learned.yaml")["groups"]} == {None}
    assert (learned_parts()["b"], load_groups("learned.yaml").cost_unit) == ((0, 0.1), "ms")


def test_a_profile_of_several_row_counts_has_a_fixed_part_and_its_deadlines_are_of_pages(
    desk: Path, capsys: Capture
) -> None:
    call = ["profile", "desk_module:BATCHES", *PROFILE[2:], *QUICK, "--distributions", "d.json"]
    values = document(capsys, *call, "--rows", "1,20")
    found = load_groups("measured.yaml")
    assert (found.rows, CostDistributions.load("d.json").rows) == (20, 20)
    for each in values["groups"]:
        assert each["cold"] > 0
        assert each["cost"] == pytest.approx(found.costs[found.position(each["group"])])
    output(capsys, *call, "--rows", "20")
    found = load_groups("measured.yaml")
    assert found.rows is None
    assert not found.cost_parts[0].any()


def test_a_deadline_is_compared_with_the_time_of_a_page(desk: Path, capsys: Capture) -> None:
    Path("groups.json").write_text(json.dumps(PAGES))
    trained()
    times = {"a": np.full(9, 100.0), "b": np.full(9, 100.0), "c": np.full(9, 200.0)}
    Path("d.json").write_text(CostDistributions.measured(times, "by hand", 100).text())
    steps = load("m.safetensors").manifest.steps
    for rows in (1, 50, 100, 200):
        options = [] if rows == 100 else ["--rows", str(rows)]
        calls = {"a": (90 + 0.1 * rows), "b": rows, "c": 2 * rows, "visit": rows}  # the visit costs 1 ms per row
        spent = np.cumsum([sum(calls[name] for name in step.adds) for step in steps])
        for deadline in (0.5, 3, 95, 130, 250, 450, 2000):
            call = [*SIMULATE, "--draws", "2", "--deadline", str(deadline), *options]
            values = document(capsys, *call)["random_costs"]
            assert (values["rows"], values["deadlines"][0]["prefix"]) == (rows, (spent <= deadline).sum()), deadline
    assert "draws of costs of 100 rows" in output(capsys, *SIMULATE)


def test_a_profile_accepts_a_pattern_and_keeps_it(desk: Path, capsys: Capture) -> None:
    pattern = {"cost_unit": "ms", "groups": [{"name": "a", "features": ["a*"], "cost": 1}], "bases": {"a1": "hinge:2"}}
    Path("groups.json").write_text(json.dumps(pattern))
    Path("wide.py").write_text(
        "E = {'a': lambda x: [1.0, 2.0]}\nI = [1, 2, 3]\n"
        "calls = []\n"
        "def growing(x):\n    calls.append(x); return [1.0] * len(calls)\n"
        "G = {'a': growing}\nN = {'a': lambda x: []}\n"
    )
    for inputs in (["--inputs", "wide:I"], ["train.csv"]):
        output(capsys, "profile", "wide:E", *inputs, *PROFILE[3:], *QUICK)
        found = load_groups("measured.yaml")
        assert (found.features, found.bases["a1"].basis) == (("a*",), "hinge:2")
    for extractors, why in (("G", "returned 2; expected 1 values"), ("N", "returned 0; expected 1 or more values")):
        said = refusal(capsys, "profile", f"wide:{extractors}", "--inputs", "wide:I", *PROFILE[3:])
        assert f"the extractor of group 'a' {why}" in said
