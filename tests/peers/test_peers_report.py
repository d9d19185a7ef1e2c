"""The report of the benchmarks beside peers stands alone, and keeps parts that were measured before."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anytime_reproduction.report import curve, panels
from benchmarks.peers.environments import Absent, Environment
from benchmarks.peers.quality import said
from benchmarks.peers.report import kept, lines, page, shown, write
from benchmarks.peers.section import Finding, Section, Sheet, absence, cell, mebibytes, picture, within
from benchmarks.peers.sizing import MOST, exponents, grid
from benchmarks.peers.turns import Spread


def section(name: str = "training") -> Section:
    figure, (axis,) = panels(1)
    curve(axis, np.array([1.0, 10.0]), np.array([0.0, 1.0]), "one <of> them")
    return Section(
        name,
        "Training & more",
        "2026-01-02 03:04 UTC",
        ("peer 1.2",),
        (Finding("holds", "a < b"), Finding("missed", "c > d"), Finding("absent", "peer: no wheel")),
        ("A paragraph.",),
        (Sheet("Some numbers", ("", "seconds"), (("ours", 0.12345), ("peer & co", None), ("rows", 12345))),),
        (picture("A picture.", figure),),
    )


def test_the_page_stands_alone_and_escapes_what_it_is_told() -> None:
    text = "\n".join(page([section()]))
    assert "Training &amp; more" in text
    assert "a &lt; b" in text
    assert "peer &amp; co" in text
    assert "src='data:image/png;base64,iVBOR" in text
    assert "<td>1 holds</td><td>1 missed</td><td>1 absent</td>" in text
    assert "src='http" not in text


def test_parts_are_kept_for_the_next_report(tmp_path: Path) -> None:
    path = write([section("training"), section("size")], tmp_path)
    assert path.read_text(encoding="utf-8").count("<h2") == 2
    assert kept(tmp_path / "peers-report.json") == [section("training"), section("size")]
    assert kept(tmp_path / "none.json") == []


def test_the_terminal_is_told_the_same() -> None:
    told = "\n".join(lines(section()))
    assert "missed  c > d" in told
    assert "    ours        0.1235" in told


def test_cells_in_words() -> None:
    assert [shown(value) for value in (None, 1234, 0.000123456, "x")] == ["", "1,234", "0.0001235", "x"]
    assert cell(None) is None
    assert cell(Spread(0.5, 0.25, 0.75, 9)) == "0.50 (0.25 to 0.75)"
    assert mebibytes(-3.0) == "0.0 MiB"


def test_a_limit_holds_is_missed_or_was_not_measured() -> None:
    found = [within("x", ratio, 0.5) for ratio in (Spread(0.5, 0.4, 0.6, 9), Spread(0.6, 0.4, 0.7, 9), None)]
    assert [each.verdict for each in found] == ["holds", "missed", "absent"]
    assert found[1].text == "x: 0.60 (0.40 to 0.70) times, limit 0.5"


def test_a_rival_that_cannot_be_installed_is_told_with_the_reason() -> None:
    told = absence([Absent("peer", "no wheel"), Environment("other", Path("python"), {"other": "1"})])
    assert told == [Finding("absent", "peer cannot be installed here: no wheel")]


def test_losses_are_told_as_losses() -> None:
    means = {"ours, a": [0.5, 0.6, 0.7], "ours, b": [0.4, 0.5, 0.6], "trees": [0.3, 0.6, 0.8]}
    told = said("set", means, {"ours, a": 0.7, "ours, b": 0.6, "trees": 0.9})
    assert [each.verdict for each in told] == ["ahead", "noted", "behind", "behind"]
    assert told[0].text == "set, over the first 5% of the cost: ours, a 0.5000, trees 0.3000"


def test_without_rivals_nothing_is_said() -> None:
    assert said("set", {"ours, a": [0.5, 0.6, 0.7]}, {"ours, a": 0.7}) == []


def test_exponents_are_found_again() -> None:
    sizes = [(n, D) for n in (100, 1000, 10_000) for D in (10, 20, 50)]
    np.testing.assert_allclose(exponents(sizes, [3e-9 * n * D**1.5 for n, D in sizes]), [1.0, 1.5])


def test_the_grid_holds_no_table_that_is_too_large() -> None:
    sizes = grid(quick=False)
    assert max(n * D for n, D in sizes) == MOST
    assert (10_000_000, 100) in sizes
    assert (500_000, 2000) not in sizes
    assert set(grid(quick=True)) < set(sizes)
