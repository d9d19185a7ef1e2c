"""`anytime reproduce`: the report from the command line, resumed where it stopped, and one line for each error."""

from __future__ import annotations

import csv
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from anytime.cli.main import main
from anytime.errors import AnytimeError
from anytime_reproduction import cli as reproduction
from anytime_reproduction.cli import EXPERIMENTS, chosen
from anytime_reproduction.experiment import Estimate, Experiment, Figure, Finding, Section, Setting, Table
from anytime_reproduction.group_omp import simulations
from anytime_reproduction.report import VERDICTS, lines, write_report
from anytime_reproduction.uai import bounds, training_time
from models.commands import Capture, output, ran, refusal
from models.refusals import assert_refused


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


# Reports.

EXPERIMENT = Experiment("small", "A <small> one", "Somebody 2016, Table 1", lambda _: [], lambda *_: Section(()))


def section() -> Section:
    chart = lines("set", {"CS-G-FR": ([1.0, 10.0], [0.0, 1.0]), "OMP": ([1.0, 10.0], [0.5, 2.0])}, "cost", "F", log="x")
    rows = (("5 published", 0.3188, None), ("5 ours", Estimate(0.31234, 0.00456, 10), 3))
    table = Table.titled("numbers", "Some & others.", ("size", "F", "runs"), rows)
    findings = (
        Finding("as it was", True, claims=3),
        Finding("not so", False),
        Finding("who knows", judged=True),
        Finding("new"),
    )
    return Section(findings, ("A paragraph.",), (table,), (Figure("curve", "A curve.", [chart]),))


def test_the_report_stands_alone_and_says_what_agrees(tmp_path: Path) -> None:
    path = write_report([(EXPERIMENT, section())], ["Real data."], tmp_path / "new" / "folder")
    page = path.read_text(encoding="utf-8")
    assert "A &lt;small&gt; one" in page
    assert "Some &amp; others." in page
    assert [page.count(f"class='verdict {word}'") for word in ("agrees", "differs", "undecided", "noted")] == [1] * 4
    assert "<td>3 agree</td><td>1 differ</td><td>1 undecided</td>" in page
    assert VERDICTS in page.replace("&#x27;", "'")
    assert "0.3123 ± 0.0046" in page
    assert '<td class="published">5 published</td><td class="published">0.3188</td>' in page
    assert '<td class="words">5 ours</td>' in page
    assert page.count("<svg ") == 1
    assert "http" not in page.replace("xhtml", "")


def test_csv_files_have_every_digit_and_the_errors(tmp_path: Path) -> None:
    write_report([(EXPERIMENT, section())], [], tmp_path)
    with (tmp_path / "tables" / "numbers.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    assert lines == [
        ["size", "F", "F (standard error)", "runs"],
        ["5 published", "0.3188", "", ""],
        ["5 ours", "0.31234", "0.00456", "3"],
    ]


def test_figures_stand_beside_it_as_pages_that_name_their_lines(tmp_path: Path) -> None:
    write_report([(EXPERIMENT, section())], [], tmp_path)
    page = (tmp_path / "figures" / "curve.html").read_text(encoding="utf-8")
    assert all(f"</i>{name}</span>" in page for name in ("CS-G-FR", "OMP"))
    assert all(f">{words}<" in page for words in ("cost", "F", "A curve.", "1", "10"))


def test_an_estimate_has_the_standard_error_of_the_mean() -> None:
    values = [1.0, 2.0, 4.0]
    estimate = Estimate.of(values)
    assert estimate.mean == pytest.approx(7 / 3)
    assert estimate.error == pytest.approx(np.std(values, ddof=1) / np.sqrt(3))
    assert estimate.margin == pytest.approx(t.ppf(0.975, 2) * np.std(values, ddof=1) / np.sqrt(3))
    assert Estimate.of([1.0]) == Estimate(1.0, None, 1)
    assert Estimate.of([1.0]).margin == 0.0


def test_what_runs_have_in_common_cancels_in_differences() -> None:
    common = np.array([10.0, 20.0, 30.0])
    difference = Estimate.of_difference((common + 1.0).tolist(), common.tolist())
    assert (difference.mean, difference.error) == (1.0, 0.0)


def test_experiments_are_chosen_by_name_in_the_requested_order() -> None:
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len(set(names)) == len(names)
    assert [experiment.name for experiment in chosen(())] == names
    assert [experiment.name for experiment in chosen(["curves", "table-1", "curves"])] == ["curves", "table-1"]
    assert_refused(
        lambda: chosen(["table1"]), "there is no experiment 'table1'; did you mean 'table-1'", error=AnytimeError
    )
