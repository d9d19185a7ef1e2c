"""`anytime reproduce`: the report from the command line, resumed where it stopped, and one line for each error."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest

from anytime.cli.main import main
from anytime_reproduction import cli as reproduction
from anytime_reproduction.cli import EXPERIMENTS
from anytime_reproduction.experiment import Setting
from anytime_reproduction.group_omp import simulations
from anytime_reproduction.report import VERDICTS
from anytime_reproduction.uai import bounds, training_time
from models.commands import Capture, output, ran, refusal


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without real data sets near it."""
    monkeypatch.delenv("ANYTIME_DEBUG", raising=False)
    (tmp_path / "desk").mkdir()
    monkeypatch.chdir(tmp_path / "desk")
    return tmp_path


def test_one_experiment_becomes_a_report(capsys: Capture) -> None:
    out, err = ran(capsys, "reproduce", "table-1", "--quick", "--n-jobs", "1")
    title = "table-1: Timeliness on sets of a detection problem"
    noted = "noted     Not a reproduction: no published data here (stand-ins for kddcup99)."
    assert all(words in out for words in (title, noted, VERDICTS))
    assert not {"agrees", "DIFFERS"} & set(out.split())  # nothing is judged on data that stand in
    assert out.rstrip().endswith("wrote reproduction/report.html")
    assert "scikit-learn's bundled sets" in err
    page = Path("reproduction/report.html").read_text(encoding="utf-8")
    assert all(words in page for words in ("breast cancer", "0.4406"))
    assert Path("reproduction/tables/table-1.csv").exists()


def test_stored_results_are_reused_unless_fresh_is_given(capsys: Capture) -> None:
    run = ["reproduce", "table-1", "--quick", "--n-jobs", "1", "--out", "there"]
    assert main(run) == 0
    first, second = sorted(Path("there/runs/table-1").glob("*.json"))
    stored = json.loads(first.read_text())
    stored["result"]["test"]["CS-G-FR"] = [0.123456]
    first.write_text(json.dumps(stored))
    second.unlink()
    assert main(run) == 0
    assert "0.1234" in json.dumps(json.loads(first.read_text())["result"])
    assert second.exists()
    assert main([*run, "--fresh"]) == 0
    assert "0.123456" not in first.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table-one"], "there is no experiment 'table-one'"),
        (["table-1", "--all"], "--all was given together with the name of an experiment"),
        (["--yahoo", "folder"], "one of --yahoo and --yahoo-costs was given"),
        (["--data", "nowhere"], "--data 'nowhere' is not a folder"),
        (["--n-jobs", "0"], "--n-jobs is 0"),
        (["table-2", "--data", ".."], "there is no data set '../"),
        (["table-2", "--yahoo", "..", "--yahoo-costs", "costs.csv"], "there is no '../set1.train.txt'"),
    ],
)
def test_a_wrong_call_is_one_line_before_any_work(arguments: list[str], message: str, capsys: Capture) -> None:
    out, err = ran(capsys, "reproduce", "--quick", *arguments, code=2)
    assert out == ""
    assert message in err.splitlines()[-1]
    assert not Path("reproduction").exists()


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(reproduction, "find_spec", lambda name: None if name == "sklearn" else object())
    assert "need sklearn; pip install 'anytime-linear[train]'" in refusal(capsys, "reproduce", "--quick")


def test_a_folder_that_cannot_be_made_is_one_line_before_any_work(capsys: Capture) -> None:
    Path("file").write_text("")
    said = refusal(capsys, "reproduce", "table-1", "--quick", "--n-jobs", "1", "--out", "file")
    assert said.startswith("error: cannot write into 'file'")


def test_a_missing_cost_file_is_one_line_before_any_work(desk: Path, capsys: Capture) -> None:
    for name in ("set1.train.txt", "set1.test.txt"):
        (desk / name).write_text("1 qid:1 1:0.5\n")
    said = refusal(capsys, "reproduce", "table-2", "--yahoo", str(desk), "--yahoo-costs", "nofile")
    assert "cannot read the cost file 'nofile': no such file or directory" in said


@pytest.mark.usefixtures("smaller_stand_ins")
def test_a_quick_look_at_everything_without_real_data(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (bounds, "MAX_QUICK", 6),
        (bounds, "QUICK_SECONDS", 0.2),
        (simulations, "PENALTIES", 20),
        (training_time, "QUICK_TURNS", 1),
        (training_time, "QUICK_MADE", (20, 40)),
    ):
        monkeypatch.setattr(module, name, value)
    out = output(capsys, "reproduce", "--quick", "--n-jobs", "1")
    page = Path("reproduction/report.html").read_text(encoding="utf-8")
    for experiment in EXPERIMENTS:
        assert f"{experiment.name}: {experiment.title}" in out
        assert f"<h2 id='{experiment.name}'>" in page
    assert sorted(Path("reproduction/figures").glob("*.html"))
    assert not re.search(r"[>± ]-?(nan|inf)[< ]", page)


@pytest.mark.parametrize("setting", [Setting(quick=True), Setting(Path("data"))])
def test_other_processes_can_execute_every_run(setting: Setting) -> None:
    for experiment in EXPERIMENTS:
        runs = experiment.runs(setting)
        assert pickle.loads(pickle.dumps(runs)) == runs
