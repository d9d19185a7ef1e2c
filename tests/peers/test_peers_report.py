"""Measurements are interleaved, and their report is self-contained, and retains parts that were measured before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import report
from benchmarks.peers.environments import Environment, FailedError, NotInstalledError
from benchmarks.peers.quality import BASIS, LINEAR, Cells, compare_cells
from benchmarks.peers.report import (
    Finding,
    Measurements,
    Part,
    Section,
    Sheet,
    Spread,
    digits,
    drawn,
    format_cell,
    interleave,
    page,
    ratios,
    read_sections,
    within,
    write,
)
from benchmarks.peers.training import MAX_NUMBERS, grid, growth


def section(name: str = "training") -> Section:
    findings = (Finding("holds", "a < b"), Finding("missed", "c > d"), Finding("absent", "peer: no wheel"))
    numbers = Sheet("Some numbers", ("", "seconds"), (("ours", 0.12345), ("peer & co", None), ("rows", 12345)))
    two = {"one <of> them": ([1.0, 10.0], [0.0, 1.0]), "another": ([1.0, 10.0], [1.0, 2.0])}
    image = drawn("A picture.", {"": two}, "x", "y")
    text, made = ("A paragraph.",), "2026-01-02 03:04 UTC"
    return Section("Training & more", ("peer 1.2",), findings, text, (numbers,), (image,), name, made)


def test_the_page_is_self_contained_and_escapes_text_and_parts_are_stored_for_the_next_one(tmp_path: Path) -> None:
    text = "\n".join(page([section()]))
    assert "Training &amp; more" in text
    assert "peer &amp; co" in text
    assert "one &lt;of&gt; them</span>" in text
    assert "    holds  a &lt; b\n   missed  c &gt; d\n   absent  peer: no wheel\n" in text
    assert "    ours        0.1235" in text
    assert "src='http" not in text
    path = write([section("training"), section("size")], tmp_path)
    assert path.read_text(encoding="utf-8").count("<h2") == 2
    assert read_sections(tmp_path / "peers-report.json") == [section("training"), section("size")]
    assert read_sections(tmp_path / "none.json") == []


def test_numbers_are_formatted() -> None:
    assert [format_cell(value) for value in (None, 1234, 0.000123456, "x")] == ["", "1,234", "0.0001235", "x"]
    assert [digits(value) for value in (0.0123, 0.5, 9.94, 12.3, 1234.5)] == ["0.012", "0.50", "9.9", "12", "1,234"]


def test_a_limit_holds_is_missed_or_was_not_measured() -> None:
    found = [within("x", ratio, 0.5) for ratio in (Spread(0.5, 0.4, 0.6, 9), Spread(0.6, 0.4, 0.7, 9), None)]
    assert [each.verdict for each in found] == ["holds", "missed", "absent"]
    assert found[1].text == "x: 0.60 (0.40 to 0.70) times, limit 0.5"
    assert [growth({J: J**power for J in (50, 100, 400)}, 500).verdict for power in (1.4, 1.6)] == ["holds", "missed"]


def test_a_peer_without_an_environment_is_reported_once_and_a_failure_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"peer": Environment("peer", why="no wheel"), "other": Environment("other", versions={"other": "1"})}
    monkeypatch.setattr(report, "prepared", known.__getitem__)
    part = Part("Title", "peer", "other")
    for error in (NotInstalledError("no wheel"), FailedError("no luck"), FileNotFoundError("no set")):
        with part.trying("a set"):
            raise error
    found = part.section("text")
    assert (found.title, found.text, found.versions) == ("Title", ("text",), ("other: other 1",))
    reasons = ("peer is not installed here: no wheel", "a set: no luck", "a set: not found: no set")
    assert found.findings == tuple(Finding("absent", why) for why in reasons)


def test_losses_are_reported_as_losses() -> None:
    ones = np.ones(50)
    noise = np.where(np.arange(50) % 2, 0.3, -0.3)
    basis = np.array([0.5 * ones, 0.6 * ones, 0.7 * ones, 0.7 * ones])
    linear = np.array([0.4 * ones, 0.6 * ones, 0.71 * ones + noise, 0.8 * ones])
    trees = np.array([0.3 * ones, 0.6 * ones, 0.8 * ones, 0.9 * ones])
    found = compare_cells("set", Cells({LINEAR: linear, BASIS: basis, "trees": trees}, ones))
    assert [each.verdict for each in found[::2]] == ["holds", "holds", "holds", "missed"]
    assert [each.verdict for each in found[1::2]] == ["ahead", "noted", "behind", "behind"]
    alone = compare_cells("set", Cells({LINEAR: linear, BASIS: basis}, ones))
    assert [each.verdict for each in alone] == ["holds", "holds", "holds", "missed"]
    cell = "set, over the first 5% of the cost"
    assert found[1].text == f"{cell}: {BASIS} 0.5000, trees 0.3000, difference +0.2000 ± 0.0000"


def test_the_grid_limits_the_size_of_tables() -> None:
    sizes = grid(quick=False)
    assert max(n * D for n, D in sizes) == MAX_NUMBERS
    assert (10_000_000, 100) in sizes
    assert (500_000, 2000) not in sizes
    assert set(grid(quick=True)) < set(sizes)


def test_a_spread_is_the_median_and_the_quartiles_or_the_ends_of_few_values() -> None:
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert Spread.of([3.0, 1.0]) == Spread(2.0, 1.0, 3.0, 2)
    assert str(Spread.of([3.0])) == "3.0"
    found = ratios([1.0, 10.0, 2.0, 7.0], [2.0, 20.0, 4.0])
    assert found == Spread(0.5, 0.5, 0.5, 3), "of the rounds that both have"


def counted(calls: list[str], name: str, value: float) -> Callable[[], float]:
    def measure() -> float:
        calls.append(name)
        return value

    return measure


def test_measurements_are_interleaved_after_a_warm_up_and_slow_ones_have_fewer_rounds() -> None:
    calls: list[str] = []
    results = interleave({name: counted(calls, name, 1.0) for name in "ab"}, 2)
    assert calls == ["a", "b"] * 3
    assert results == Measurements({"a": [1.0, 1.0], "b": [1.0, 1.0]}, {})
    measures = {"long": counted(calls, "long", 9.0), "short": counted(calls, "short", 1.0)}
    results = interleave(measures, 5, long=5.0, few=2)
    assert [len(results.values[name]) for name in measures] == [2, 5]
    assert results.ratio("short", "long") == Spread(1 / 9, 1 / 9, 1 / 9, 2)


def test_a_failed_measurement_is_skipped_from_then_on_with_its_reason() -> None:
    def fails() -> float:
        calls.append("fails")
        raise FailedError("no luck")

    calls: list[str] = []
    results = interleave({"fails": fails, "works": counted(calls, "works", 1.0)}, 3)
    assert results.failed == {"fails": "no luck"}
    assert calls.count("fails") == 1
    assert results.spread("fails") is None
    assert results.ratio("works", "fails") is None
