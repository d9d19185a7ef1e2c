"""The report of the comparison with peers is self-contained, and retains parts that were measured before."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.peers.environments import Absent, Environment
from benchmarks.peers.measurements import Spread
from benchmarks.peers.quality import BASIS, LINEAR, Cells, compare_cells
from benchmarks.peers.report import (
    Finding,
    Section,
    Sheet,
    cell,
    drawn,
    format_cell,
    lines,
    mebibytes,
    missing_peers,
    page,
    read_sections,
    within,
    write,
)
from benchmarks.peers.sizing import MAX_NUMBERS, exponents, grid


def section(name: str = "training") -> Section:
    findings = (Finding("holds", "a < b"), Finding("missed", "c > d"), Finding("absent", "peer: no wheel"))
    numbers = Sheet("Some numbers", ("", "seconds"), (("ours", 0.12345), ("peer & co", None), ("rows", 12345)))
    two = {"one <of> them": ([1.0, 10.0], [0.0, 1.0]), "another": ([1.0, 10.0], [1.0, 2.0])}
    image = drawn("A picture.", {"": two}, "x", "y")
    text, made = ("A paragraph.",), "2026-01-02 03:04 UTC"
    return Section("Training & more", ("peer 1.2",), findings, text, (numbers,), (image,), name, made)


def test_the_page_is_self_contained_and_escapes_text() -> None:
    text = "\n".join(page([section()]))
    assert "Training &amp; more" in text
    assert "a &lt; b" in text
    assert "peer &amp; co" in text
    assert "one &lt;of&gt; them</span>" in text
    assert "    holds  a &lt; b\n   missed  c &gt; d\n   absent  peer: no wheel\n" in text
    assert "src='http" not in text


def test_parts_are_stored_for_the_next_report(tmp_path: Path) -> None:
    path = write([section("training"), section("size")], tmp_path)
    assert path.read_text(encoding="utf-8").count("<h2") == 2
    assert read_sections(tmp_path / "peers-report.json") == [section("training"), section("size")]
    assert read_sections(tmp_path / "none.json") == []


def test_the_terminal_shows_the_same() -> None:
    found = "\n".join(lines(section()))
    assert "missed  c > d" in found
    assert "    ours        0.1235" in found


def test_cells_are_formatted() -> None:
    assert [format_cell(value) for value in (None, 1234, 0.000123456, "x")] == ["", "1,234", "0.0001235", "x"]
    assert cell(None) is None
    assert cell(Spread(0.5, 0.25, 0.75, 9)) == "0.50 (0.25 to 0.75)"
    assert mebibytes(-3.0) == "0.0 MiB"


def test_a_limit_holds_is_missed_or_was_not_measured() -> None:
    found = [within("x", ratio, 0.5) for ratio in (Spread(0.5, 0.4, 0.6, 9), Spread(0.6, 0.4, 0.7, 9), None)]
    assert [each.verdict for each in found] == ["holds", "missed", "absent"]
    assert found[1].text == "x: 0.60 (0.40 to 0.70) times, limit 0.5"


def test_a_peer_that_cannot_be_installed_is_reported_with_the_reason() -> None:
    found = missing_peers([Absent("peer", "no wheel"), Environment("other", Path("python"), {"other": "1"})])
    assert found == [Finding("absent", "peer is not installed here: no wheel")]


def test_losses_are_reported_as_losses() -> None:
    ones = np.ones(50)
    noise = np.where(np.arange(50) % 2, 0.3, -0.3)
    basis = np.array([0.5 * ones, 0.6 * ones, 0.7 * ones, 0.7 * ones])
    linear = np.array([0.4 * ones, 0.6 * ones, 0.71 * ones + noise, 0.8 * ones])
    trees = np.array([0.3 * ones, 0.6 * ones, 0.8 * ones, 0.9 * ones])
    found = compare_cells("set", Cells({LINEAR: linear, BASIS: basis, "trees": trees}, ones))
    with_linear, with_trees = found[::2], found[1::2]
    assert [each.verdict for each in with_linear] == ["holds", "holds", "holds", "missed"]
    assert [each.verdict for each in with_trees] == ["ahead", "noted", "behind", "behind"]
    cell = "set, over the first 5% of the cost"
    alone = compare_cells("set", Cells({LINEAR: linear, BASIS: basis}, ones))
    assert [each.verdict for each in alone] == ["holds", "holds", "holds", "missed"]
    assert found[1].text == f"{cell}: {BASIS} 0.5000, trees 0.3000, difference +0.2000 ± 0.0000"


def test_exponents_are_recovered() -> None:
    sizes = [(n, D) for n in (100, 1000, 10_000) for D in (10, 20, 50)]
    np.testing.assert_allclose(exponents(sizes, [3e-9 * n * D**1.5 for n, D in sizes]), [1.0, 1.5])


def test_the_grid_limits_the_size_of_tables() -> None:
    sizes = grid(quick=False)
    assert max(n * D for n, D in sizes) == MAX_NUMBERS
    assert (10_000_000, 100) in sizes
    assert (500_000, 2000) not in sizes
    assert set(grid(quick=True)) < set(sizes)
