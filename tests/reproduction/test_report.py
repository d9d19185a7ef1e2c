"""The report: findings, tables and pictures as they are, in one file and beside it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from anytime.errors import AnytimeError
from anytime_reproduction.cli import EXPERIMENTS, chosen
from anytime_reproduction.experiment import Estimate, Experiment, Figure, Finding, Section, Table
from anytime_reproduction.report import VERDICTS, lines, write_report
from models.refusals import assert_refused

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


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(
        lambda: write_report([(EXPERIMENT, section())], [], tmp_path / "file"),
        "cannot write into ",
        "file",
        error=AnytimeError,
    )


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
