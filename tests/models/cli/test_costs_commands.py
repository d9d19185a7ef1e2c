"""`anytime profile`, `costs` and `evaluate --random-costs`: what they write and print, and what they refuse."""

from __future__ import annotations

import errno
import json
import socket
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
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

Capture = pytest.CaptureFixture[str]

GROUPS: dict[str, Any] = {
    "cost_unit": "ms",
    "groups": [
        {"name": "a", "features": ["a0", "a1"], "cost": 4.0},
        {"name": "visit", "features": [], "cost": 1.0},
        {"name": "b", "features": ["b0"], "cost": 0.5, "requires": ["visit"]},
        {"name": "c", "features": ["c0"], "cost": 2.0},
    ],
}
BOUNDS = ("0.001", "0.002", "0.005", "0.01", "+Inf")

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


def output(capsys: Capture, *arguments: str, code: int = 0) -> str:
    """What a command prints."""
    capsys.readouterr()
    assert main(list(arguments)) == code
    return capsys.readouterr().out


def metrics(model: str = "m", **groups: list[float]) -> str:
    """What a service tells of groups, of values in milliseconds."""
    lines = ["# TYPE anytime_group_seconds histogram"]
    for group, values in groups.items():
        labels = f'model="{model}",group="{group}"'
        for bound in BOUNDS:
            below = sum(value / 1e3 <= float(bound) for value in values)
            lines.append(f'anytime_group_seconds_bucket{{{labels},le="{bound}"}} {below}.0')
        lines.append(f"anytime_group_seconds_sum{{{labels}}} {sum(values) / 1e3}")
    return "\n".join([*lines, ""])


def trained(*options: str) -> None:
    assert main([*TRAIN, "--out", "m.safetensors", *options]) == 0


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
    for word in ("cost (ms)", "median", "p99", "timer", "wrote measured.yaml and measured.json"):
        assert word in out
    trained("--groups", "measured.yaml")
    assert load("m.safetensors").groups == found


def test_profile_takes_a_quantile_inputs_of_a_module_a_model_and_batches(desk: Path, capsys: Capture) -> None:
    trained()
    inputs = ["profile", "desk_module:made", "--inputs", "desk_module:INPUTS", "--groups", "m.safetensors"]
    values = json.loads(
        output(capsys, *inputs, "--out", "g.json", "--cost-quantile", "0.9", "--distributions", "d.json", "--json")
    )
    saved = CostDistributions.load("d.json")
    assert values["cost_unit"] == "ms"
    assert {each["group"]: each["cost"] for each in values["groups"]} == {
        name: saved.groups[name].quantiles(np.array(0.9)) for name in "abc"
    }
    assert all(each["calls"] == 15 and each["p10"] <= each["median"] <= each["p99"] for each in values["groups"])
    batches = ["profile", "desk_module:BATCHES", *PROFILE[2:], "--rows", "1,8"]
    values = json.loads(output(capsys, *batches, *QUICK, "--json"))
    assert all(each["base"] >= 0 and each["per_row"] >= 0 for each in values["groups"])
    assert "a row" in output(capsys, *batches, *QUICK)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["desk_module:WRONG", *PROFILE[2:]], "the extractor of group 'b' failed (KeyError: 'nothing')"),
        (["desk_module:NUMBER", *PROFILE[2:]], "desk_module:NUMBER is int; expected a dict with a callable"),
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
    capsys.readouterr()
    assert main(["profile", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.strip().splitlines()[-1].startswith(f"error: {why}")
    assert not list(desk.glob("measured*"))


def test_profile_refuses_what_must_keep_a_cost_that_is_no_time(desk: Path, capsys: Capture) -> None:
    Path("groups.json").write_text(json.dumps(GROUPS | {"cost_unit": "dollars"}))
    assert main([*PROFILE, *QUICK]) == 2
    assert "'visit' have no measured cost, and 'dollars' is not a unit of time" in capsys.readouterr().err


# costs


def test_costs_are_the_means_of_what_the_service_measured_and_few_values_change_nothing(
    desk: Path, capsys: Capture
) -> None:
    trained()
    Path("metrics.txt").write_text(metrics(a=[0.5] * 40, b=[8.0] * 39 + [4.0], c=[3.0] * 29))
    values = json.loads(output(capsys, *COSTS, "--out", "learned.yaml", "--distributions", "d.json", "--json"))
    costs = {each["group"]: each["cost"] for each in values["groups"]}
    assert costs == {"a": 0.5, "visit": 1.0, "b": 7.9, "c": 2.0}
    whys = {each["group"]: each["why"] for each in values["groups"]}
    assert whys["c"] == "unchanged: fewer than 30 values were measured"
    assert whys["visit"].startswith("unchanged: it has no features")
    assert (whys["a"], values["groups"][0]["measured"], values["groups"][0]["old"]) == (None, 40, 4.0)
    learned = load_groups("learned.yaml")
    assert dict(zip(learned.names, learned.costs.tolist(), strict=True)) == costs
    found = drift(load("m.safetensors"), learned)
    sequence = values["sequence"]
    assert sequence["staying"] == [list(adds) for adds in found.current.steps]
    assert sequence["moving"] == [list(adds) for adds in found.relearned.steps]
    assert sequence["timeliness"]["lost"] == found.lost
    assert CostDistributions.load("d.json").groups["b"].count == 40
    assert main(["resequence", "m.safetensors", "--costs", "learned.yaml", "--out", "new.safetensors"]) == 0
    assert [step.adds for step in load("new.safetensors").manifest.steps] == list(found.relearned.steps)


def test_a_quantile_is_told_with_its_bucket_and_least_can_be_lowered(desk: Path, capsys: Capture) -> None:
    trained()
    Path("metrics.txt").write_text(metrics(a=[0.5] * 40, b=[8.0] * 40, c=[3.0] * 5 + [20.0] * 5))
    out = output(capsys, *COSTS, "--cost-quantile", "0.9", "--least", "5")
    assert "between 5 and 10" in out
    assert "more than 10" in out
    values = json.loads(output(capsys, *COSTS, "--cost-quantile", "0.9", "--least", "5", "--json"))
    by_group = {each["group"]: each for each in values["groups"]}
    assert by_group["b"]["bucket"] == [5.0, 10.0]
    assert by_group["b"]["cost"] == 5.0 + 0.9 * 5.0
    assert by_group["c"]["bucket"] == [10.0, None]
    assert by_group["c"]["cost"] == 10.0


def test_costs_of_a_window_are_those_since_the_metrics_that_were_kept(desk: Path, capsys: Capture) -> None:
    trained()
    Path("metrics.txt").write_text(metrics(a=[0.5] * 40))
    output(capsys, *COSTS, "--keep", "saved.txt")
    Path("metrics.txt").write_text(metrics(a=[0.5] * 40 + [4.5] * 50))
    values = json.loads(output(capsys, *COSTS, "--since", "saved.txt", "--json"))
    assert (values["groups"][0]["cost"], values["groups"][0]["measured"]) == (4.5, 50)
    assert main([*COSTS, "--since", "metrics.txt"]) == 2
    assert "no group of model 'm' was timed since" in capsys.readouterr().err


def test_costs_of_a_window_are_taken_replica_by_replica(desk: Path, capsys: Capture) -> None:
    trained()
    both = [*COSTS, "--from", "other.txt"]
    for name in ("metrics.txt", "other.txt"):
        Path(name).write_text(metrics(a=[1.0] * 1000))
    output(capsys, *both, "--keep", "saved.txt")
    Path("metrics.txt").write_text(metrics(a=[2.0] * 100))
    Path("other.txt").write_text(metrics(a=[1.0] * 1000 + [2.0] * 2000))
    assert main([*both, "--since", "saved.txt", "--json"]) == 0
    captured = capsys.readouterr()
    group = json.loads(captured.out)["groups"][0]
    assert (group["cost"], group["measured"]) == (pytest.approx(2.0), 2100)
    assert "metrics.txt was restarted since then; all of its counts are used" in captured.err
    Path("one.txt").write_text(metrics(a=[1.0]))
    assert main([*both, "--since", "one.txt"]) == 2
    assert "give one --since for each --from" in capsys.readouterr().err


def test_check_is_3_where_staying_loses_more_than_is_tolerated(desk: Path, capsys: Capture) -> None:
    trained()
    Path("metrics.txt").write_text(metrics(a=[4.0] * 40, b=[0.5] * 40, c=[2.0] * 40))
    out = output(capsys, *COSTS, "--check")
    assert "the sequence does not change" in out
    Path("metrics.txt").write_text(metrics(a=[0.2] * 40, b=[9.0] * 40, c=[9.0] * 40))
    assert main([*COSTS, "--check", "--budget", "0.3", "--budget", "12"]) == 3
    captured = capsys.readouterr()
    assert "of timeliness, more than 0.01; resequence the model" in captured.err
    assert "current: visit+b" in captured.out
    assert "new:     a" in captured.out
    assert [line.split()[0] for line in captured.out.splitlines() if line.strip()[:3] in ("0.3", "12 ")] == [
        "0.3",
        "12",
    ]
    assert main([*COSTS, "--check", "--tolerance", "0.99"]) == 0
    assert main(COSTS) == 0


def test_no_failure_of_check_has_the_exit_code_of_drift(
    desk: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    check = ["--model", "m.safetensors", "--check"]

    def code(source: str) -> int:
        capsys.readouterr()
        found = main(["costs", "--from", source, *check])
        lines = capsys.readouterr().err.splitlines()
        assert lines[-1].startswith("error: ")
        assert not [line for line in lines if "Traceback" in line]
        return found

    assert code(f"http://127.0.0.1:{port}/metrics") == 1, "nobody listens"
    assert code("http://anytime.invalid/metrics") == 1, "no such host"
    assert code("ftp://127.0.0.1/metrics") == 2
    assert code("none.txt") == 2
    Path("metrics.txt").write_text(metrics(a=[0.2] * 40, b=[9.0] * 40, c=[9.0] * 40))
    for error in (MemoryError(), OSError(errno.EIO, "Input/output error"), ZeroDivisionError("a surprise")):
        monkeypatch.setattr("anytime.costs.drift.resequence", Mock(side_effect=error))
        assert code("metrics.txt") == 1


@pytest.mark.parametrize(("status", "expected"), [(401, 2), (404, 2), (500, 1), (503, 1)])
def test_a_service_that_fails_is_told_from_a_call_that_it_refuses(
    status: int, expected: int, desk: Path, capsys: Capture
) -> None:
    trained()

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.handle_request).start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        assert main(["costs", "--from", url, "--model", "m.safetensors", "--check"]) == expected
    assert f"returned {status}" in capsys.readouterr().err


def test_a_likelihood_is_estimated_without_its_data_and_ordered_with_them(desk: Path, capsys: Capture) -> None:
    call = [*TRAIN, "--out", "m.safetensors", "--family", "binomial"]
    call[call.index("y")] = "kind"
    assert main(call) == 0
    Path("metrics.txt").write_text(metrics(a=[0.2] * 40, b=[9.0] * 40, c=[9.0] * 40))
    capsys.readouterr()
    assert main(COSTS) == 0
    assert "estimated from the gains of the steps, as a likelihood needs --data" in capsys.readouterr().err
    assert main([*COSTS, "--data", "train.csv"]) == 0
    assert "estimated" not in capsys.readouterr().err
    trained("--no-moments")
    assert main(COSTS) == 0
    assert "as the model has no moments" in capsys.readouterr().err


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
def test_costs_tells_what_is_wrong_in_a_line(options: list[str], why: str, desk: Path, capsys: Capture) -> None:
    trained()
    Path("metrics.txt").write_text(metrics(a=[4.0] * 40))
    capsys.readouterr()
    assert main([*COSTS, *options]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {why}")
    assert captured.err.count("\n") == 1


# evaluate --random-costs


def test_evaluate_simulates_deadlines_of_costs_that_are_certain_as_prefixes(desk: Path, capsys: Capture) -> None:
    trained()
    model = load("m.safetensors")
    saved = CostDistributions(
        groups={name: Samples(samples=(cost,)) for name, cost in (("a", 4.0), ("b", 0.5), ("c", 2))}
    )
    Path("d.json").write_text(saved.text())
    deadlines = [0.0, *(float(cost) for cost in model.costs[1:])]
    options = [part for deadline in deadlines for part in ("--deadline", str(deadline))]
    call = ["evaluate", "m.safetensors", "test.csv", "--random-costs", "d.json", "--draws", "50", *options]
    values = json.loads(output(capsys, *call, "--json"))
    for prefix, row in zip(values["prefixes"], values["random_costs"]["deadlines"], strict=True):
        assert row["prefix"] == prefix["prefix"]
        for name in ("r2", "mse"):
            assert row[name] == pytest.approx(prefix[name])
            assert row[f"{name}_error"] == pytest.approx(0, abs=1e-12)
    share = values["random_costs"]["timeliness_r2"]
    assert share["mean"] == pytest.approx(share["at_mean_costs"])
    out = output(capsys, *call)
    assert "deadline (ms)" in out
    assert "50 draws of costs; timeliness of r2 up to" in out
    assert json.loads(output(capsys, *call[:3], "--json")).keys() == {*values} - {"random_costs"}


def test_evaluate_simulates_accuracy_too_and_the_same_seed_is_the_same_again(desk: Path, capsys: Capture) -> None:
    call = [*TRAIN, "--out", "m.safetensors", "--family", "binomial"]
    call[call.index("y")] = "kind"
    assert main(call) == 0
    Path("metrics.txt").write_text(metrics(a=[4.0] * 40, b=[0.5] * 40, c=[2.0] * 40))
    output(capsys, *COSTS, "--distributions", "d.json")
    call = ["evaluate", "m.safetensors", "test.csv", "--random-costs", "d.json", "--draws", "200", "--json"]
    first = output(capsys, *call, "--seed", "3")
    assert output(capsys, *call, "--seed", "3") == first
    rows = json.loads(first)["random_costs"]["deadlines"]
    assert {"accuracy", "accuracy_error", "deviance", "r2"} <= set(rows[0])
    prefixes = [row["prefix"] for row in rows]
    assert prefixes == sorted(prefixes)
    assert prefixes[-1] > 0


def test_evaluate_refuses_deadlines_without_costs_and_costs_that_lack_a_group(desk: Path, capsys: Capture) -> None:
    trained()
    assert main(["evaluate", "m.safetensors", "test.csv", "--deadline", "3"]) == 2
    assert "--deadline applies to simulations only; add --random-costs FILE" in capsys.readouterr().err
    Path("d.json").write_text(CostDistributions(groups={"a": Samples(samples=(1.0,))}).text())
    assert main(["evaluate", "m.safetensors", "test.csv", "--random-costs", "d.json"]) == 2
    assert "no distribution for 'b', 'c'" in capsys.readouterr().err


# Costs of calls

PAGES: dict[str, Any] = GROUPS | {
    "groups": [
        {**each, "cost": {"a": {"fixed": 90.0, "per_row": 0.1}, "b": 1.0}.get(each["name"], each["cost"])}
        for each in GROUPS["groups"]
    ]
}
"""Group a is the most expensive for one row, and the cheapest for a page."""


def page_metrics(started: float = 1.0, **groups: list[tuple[int, float]]) -> str:
    """What a service exposes of calls of (rows, milliseconds), rows from 64 to 127 or 1."""
    lines = [f"process_start_time_seconds {started}"]
    for group, calls in groups.items():
        for label in sorted({"1" if rows == 1 else "64-127" for rows, _ in calls}):
            own = [(rows, ms / 1e3) for rows, ms in calls if (rows == 1) == (label == "1")]
            labels = f'model="m",group="{group}",rows="{label}"'
            for bound in BOUNDS:
                below = sum(time <= float(bound) for _, time in own)
                lines.append(f'anytime_group_seconds_bucket{{{labels},le="{bound}"}} {below}.0')
            lines.append(f"anytime_group_seconds_sum{{{labels}}} {sum(time for _, time in own)}")
            lines.append(f"anytime_group_rows_total{{{labels}}} {sum(rows for rows, _ in own)}.0")
    return "\n".join([*lines, ""])


def learned_parts(path: str = "learned.yaml") -> dict[str, tuple[float, float]]:
    return {group.name: (group.call_cost.fixed, group.call_cost.per_row) for group in load_groups(path).groups}


def test_a_model_is_trained_for_the_rows_of_a_page_and_every_command_keeps_them(desk: Path, capsys: Capture) -> None:
    Path("groups.json").write_text(json.dumps(PAGES))
    trained()
    assert load("m.safetensors").manifest.steps[-1].group == "a"
    trained("--rows", "100")
    model = load("m.safetensors")
    assert model.manifest.steps[0].group == "a"
    assert model.costs[1] == pytest.approx(1.0)
    assert model.groups.rows == 100
    assert "costs are per row, in predictions of 100 rows" in output(capsys, "show", "m.safetensors")
    assert json.loads(output(capsys, "show", "m.safetensors", "--json"))["groups"]["rows"] == 100
    Path("groups.json").write_text(json.dumps(PAGES | {"rows": 100}))
    trained()
    assert load("m.safetensors").version == model.version, "in the file or as an option"
    assert main(["certify", "m.safetensors", "--out", "n.safetensors", "--seconds", "1"]) == 0
    assert load("n.safetensors").groups == model.groups
    Path("groups.json").write_text(json.dumps(PAGES))
    assert main(["resequence", "m.safetensors", "--costs", "groups.json", "--out", "n.safetensors"]) == 0
    assert load("n.safetensors").groups == model.groups
    document = json.loads(output(capsys, "export", "m.safetensors", "--to", "json"))
    group = next(each for each in document["groups"] if each["name"] == "a")
    assert document["rows"] == 100
    assert (group["cost"], group["fixed"], group["per_row"]) == pytest.approx((1.0, 90.0, 0.1))
    header = output(capsys, "export", "m.safetensors", "--to", "c")
    assert "/* Cost of each prefix, per row in predictions of 100 rows, the base rate first. */" in header
    moments = ["moments", *TRAIN[1:6], "--out", "m.moments"]
    assert main(moments) == 0
    assert (
        main(["train", "m.moments", "--rows", "100", "--alpha", "0.01", "--folds", "0", "--out", "n.safetensors"]) == 0
    )
    assert load("n.safetensors").costs == pytest.approx(model.costs)
    assert load("n.safetensors").groups.rows == 100


def test_costs_of_pages_are_per_row_and_keep_the_order(desk: Path, capsys: Capture) -> None:
    trained()
    Path("metrics.txt").write_text(page_metrics(a=[(100, 400.0)] * 40, b=[(100, 50.0)] * 40, c=[(1, 2.0)] * 40))
    out = output(capsys, *COSTS, "--out", "learned.yaml")
    assert learned_parts() == {"a": (0, 4.0), "visit": (0, 1.0), "b": (0, 0.5), "c": (0, 2.0)}
    assert load_groups("learned.yaml").rows is None
    assert "the sequence does not change" in out
    quantile = output(capsys, *COSTS, "--cost-quantile", "0.5")
    assert "more than" in quantile


def test_costs_of_calls_of_two_sizes_have_a_fixed_part(desk: Path, capsys: Capture) -> None:
    trained()
    Path("metrics.txt").write_text(page_metrics(a=[(100, 12.0)] * 30 + [(1, 2.1)] * 30, b=[(100, 800.0)] * 60))
    values = json.loads(output(capsys, *COSTS, "--out", "learned.yaml", "--distributions", "d.json", "--json"))
    assert learned_parts()["a"] == pytest.approx((2.0, 0.1))
    assert load_groups("learned.yaml").rows == values["rows"] == round((30 * 100 + 30 + 60 * 100) / 120)
    assert CostDistributions.load("d.json").rows == 100
    first = values["groups"][0]
    assert (first["fixed"], first["per_row"], first["measured"]) == pytest.approx((2.0, 0.1, 60))
    assert first["cost"] == pytest.approx(0.1 + 2.0 / values["rows"])
    trained("--rows", "50")
    assert "in predictions of 50 rows" in output(capsys, *COSTS, "--out", "learned.yaml"), "the model says so"


def test_a_restart_between_two_texts_is_seen_by_the_start_of_the_process(desk: Path, capsys: Capture) -> None:
    trained()
    Path("before.txt").write_text(page_metrics(1.0, a=[(1, 8.0)] * 40))
    Path("metrics.txt").write_text(page_metrics(2.0, a=[(1, 2.0)] * 90))
    assert main([*COSTS, "--since", "before.txt", "--out", "learned.yaml"]) == 0
    assert "metrics.txt was restarted since then; all of its counts are used" in capsys.readouterr().err
    assert learned_parts()["a"] == (0, 2.0)
    Path("before.txt").write_text(page_metrics(2.0, a=[(1, 2.0)] * 40))
    Path("metrics.txt").write_text(page_metrics(2.0, a=[(1, 2.0)] * 40 + [(1, 4.0)] * 50))
    assert main([*COSTS, "--since", "before.txt", "--out", "learned.yaml"]) == 0
    assert "restarted" not in capsys.readouterr().err
    assert learned_parts()["a"] == (0, 4.0)


def test_metrics_that_are_not_finite_are_refused_in_a_line(desk: Path, capsys: Capture) -> None:
    trained()
    Path("metrics.txt").write_text(page_metrics(a=[(1, 2.0)] * 40).replace("seconds_sum{", "seconds_sum{", 1))
    content = Path("metrics.txt").read_text()
    line = next(each for each in content.splitlines() if "seconds_sum" in each)
    Path("metrics.txt").write_text(content.replace(line, line.rpartition(" ")[0] + " NaN"))
    capsys.readouterr()
    assert main([*COSTS, "--out", "learned.yaml"]) == 2
    (error,) = (each for each in capsys.readouterr().err.splitlines() if each.startswith("error: "))
    assert "anytime_group_seconds_sum" in error
    assert not Path("learned.yaml").exists()


def test_costs_that_are_not_times_are_replaced_by_measured_ones_of_every_group(desk: Path, capsys: Capture) -> None:
    groups = [each for each in PAGES["groups"] if each["name"] != "visit"]
    groups = [{key: value for key, value in each.items() if key != "requires"} for each in groups]
    Path("groups.json").write_text(json.dumps({"cost_unit": "dollars", "groups": groups}))
    trained()
    Path("metrics.txt").write_text(page_metrics(a=[(100, 10.0)] * 40, b=[(100, 10.0)] * 40, c=[(100, 10.0)] * 40))
    assert "-" in output(capsys, *COSTS, "--out", "learned.yaml")
    assert learned_parts()["b"] == (0, 0.1)
    assert load_groups("learned.yaml").cost_unit == "ms"


def test_a_profile_of_several_row_counts_has_a_fixed_part_and_its_deadlines_are_of_pages(
    desk: Path, capsys: Capture
) -> None:
    call = ["profile", "desk_module:BATCHES", *PROFILE[2:], *QUICK, "--distributions", "d.json"]
    values = json.loads(output(capsys, *call, "--rows", "1,20", "--json"))
    found = load_groups("measured.yaml")
    assert (found.rows, CostDistributions.load("d.json").rows) == (20, 20)
    for each in values["groups"]:
        assert each["cold"] > 0
        assert each["cost"] == pytest.approx(found.costs[found.position(each["group"])])
    output(capsys, *call, "--rows", "20")
    assert load_groups("measured.yaml").rows is None
    assert not load_groups("measured.yaml").fixed_costs.any()


def test_a_deadline_is_compared_with_the_time_of_a_page(desk: Path, capsys: Capture) -> None:
    Path("groups.json").write_text(json.dumps(PAGES))
    trained()
    times = {"a": np.full(9, 100.0), "b": np.full(9, 100.0), "c": np.full(9, 200.0)}
    Path("d.json").write_text(CostDistributions.measured(times, "by hand", 100).text())
    call = ["evaluate", "m.safetensors", "test.csv", "--random-costs", "d.json", "--json", "--draws", "2"]

    def reached(deadline: float, *options: str) -> float:
        values = json.loads(output(capsys, *call, "--deadline", str(deadline), *options))["random_costs"]
        assert values["rows"] == (int(options[1]) if options else 100)
        found: float = values["deadlines"][0]["prefix"]
        return found

    def literal(deadline: float, rows: int) -> int:
        """The steps of the sequence that end in time; the visit costs 1 ms per row."""
        model = load("m.safetensors")
        calls = {"a": (90 + 0.1 * rows), "b": rows, "c": 2 * rows, "visit": rows}
        spent, prefix = 0.0, 0
        for step in model.manifest.steps:
            spent += sum(calls[name] for name in step.adds)
            prefix += spent <= deadline
        return prefix

    for rows in (1, 50, 100, 200):
        for deadline in (0.5, 3, 95, 130, 250, 450, 2000):
            options = [] if rows == 100 else ["--rows", str(rows)]
            assert reached(deadline, *options) == literal(deadline, rows), (rows, deadline)
    assert "draws of costs of 100 rows" in output(capsys, *call[:5])
    assert main(["evaluate", "m.safetensors", "test.csv", "--rows", "9"]) == 2
    assert "--rows applies to simulations only; add --random-costs FILE" in capsys.readouterr().err


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
        output(capsys, "profile", "wide:E", *inputs, "--groups", "groups.json", "--out", "measured.yaml", *QUICK)
        assert load_groups("measured.yaml").features == ("a*",)
        assert load_groups("measured.yaml").bases["a1"].basis == "hinge:2"
    call = ["--inputs", "wide:I", "--groups", "groups.json", "--out", "measured.yaml"]
    for extractors, why in (("G", "returned 2; expected 1 values"), ("N", "returned 0; expected 1 or more values")):
        assert main(["profile", f"wide:{extractors}", *call]) == 2
        assert f"the extractor of group 'a' {why}" in capsys.readouterr().err
