"""Distributions of costs: stored in a file, drawn from, turned into costs of groups, and simulated under deadlines."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime._files import check_writable
from anytime.cli.options import checked_quantile
from anytime.costs.distributions import (
    CostDistributions,
    Histogram,
    RandomTimes,
    Samples,
    completions,
    priced,
    simulate,
)
from anytime.errors import AnytimeError, GroupsError
from anytime.estimators import AnytimeRegressor
from anytime.groups import SUFFIXES, FeatureGroups, load_groups, milliseconds, write_groups
from anytime.model.model import Model
from models.properties import quick
from models.refusals import assert_refused

PAIRED = CostDistributions.measured({"a": np.array([1.0, 2.0, 3.0]), "b": np.array([10.0, 20.0, 30.0])}, "by hand")
MIXED = CostDistributions(
    groups={"a": Samples(samples=(1.0, 2.0, 3.0, 4.0)), "b": Histogram(bounds=(1.0, 3.0), counts=(10, 10, 0), sum=25.0)}
)


def groups(unit: str = "ms", draw: float = 0.0) -> FeatureGroups:
    return load_groups(
        {
            "cost_unit": unit,
            "groups": [
                {"name": "a", "features": ["a0"], "cost": 5.0},
                {"name": "draw", "features": [], "cost": draw},
                {"name": "b", "features": ["b0", "b1"], "cost": 7.0, "requires": ["draw"]},
            ],
        }
    )


@pytest.mark.parametrize("stored", [PAIRED, MIXED], ids=["paired", "mixed"])
def test_a_file_holds_what_was_measured(stored: CostDistributions, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(stored.text())
    assert CostDistributions.load(path) == stored
    assert set(json.loads(path.read_text())) == {"format", "unit", "source", "paired", "groups"}


def test_paired_samples_are_drawn_together_and_others_are_not() -> None:
    rng = np.random.default_rng(0)
    together = PAIRED.draw(["b", "a"], 2000, rng)
    np.testing.assert_array_equal(together[:, 0], 10 * together[:, 1])
    apart = MIXED.draw(["a", "b"], 20_000, rng)
    assert abs(np.corrcoef(apart, rowvar=False).ravel()[1]) < 0.03
    assert apart.mean(axis=0) == pytest.approx([2.5, 1.25], rel=0.02)
    assert PAIRED.draw([], 5, rng).shape == (5, 0)
    assert MIXED.draw([], 5, rng).shape == (5, 0)


def test_samples_are_stored_to_four_digits() -> None:
    assert CostDistributions.measured({"a": np.array([1.23456])}, "").groups["a"] == Samples(samples=(1.235,))


def test_a_file_states_the_rows_of_its_calls_and_without_them_a_call_has_one(tmp_path: Path) -> None:
    file = tmp_path / "d.json"
    texts = {rows: CostDistributions.measured({"a": np.array([1.0])}, "", rows).text() for rows in (1, 100)}
    for text, rows in (('{"groups": {"a": {"samples": [1.0]}}}', 1), (texts[1], 1), (texts[100], 100)):
        file.write_text(text)
        assert CostDistributions.load(file).rows == rows
    assert '"rows"' not in texts[1], "as before"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[]", "the file: "),
        ('{"groups": {}}', "groups: "),
        ('{"groups": {"a": {"samples": [-1]}}}', "greater than or equal to 0"),
        ('{"format": 2, "groups": {"a": {"samples": [1]}}}', "format: "),
        (
            '{"paired": true, "groups": {"a": {"samples": [1]}, "b": {"samples": [1, 2]}}}',
            "the same number for each group",
        ),
        ('{"paired": true, "groups": {"a": {"bounds": [1], "counts": [1, 0], "sum": 1}}}', "need samples"),
        ('{"groups": {"a": {"bounds": [1], "counts": [1], "sum": 1}}}', "1 counts for 1 bounds"),
        ("not json", "the file: "),
        ('{"rows": 0, "groups": {"a": {"samples": [1.0]}}}', "rows: input should be greater than or equal to 1"),
    ],
)
def test_a_file_of_something_else_is_refused_in_a_line(content: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content)
    assert_refused(
        lambda: CostDistributions.load(path), why, "'anytime profile' or 'anytime costs'", error=AnytimeError
    )


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_bytes(b"\xff\xfe\x00")
    for name, why in (("nowhere.json", "cannot read"), ("costs.json", "it is not text")):
        assert_refused(partial(CostDistributions.load, tmp_path / name), why, error=GroupsError)


def test_groups_with_other_costs_keep_what_is_stated_of_their_columns() -> None:
    features = [{"name": "a", "features": ["a_*"], "cost": 5.0}, {"name": "b", "features": ["b0"], "cost": 7.0}]
    stated = {"types": {"a_1": "text", "b0": "number"}, "bases": {"a_1": "categories", "b0": "cyclic:24"}}
    given = load_groups({"cost_unit": "ms", "groups": features, **stated})
    found = priced(given.for_rows(3), {"a": 2.0})
    assert (found.types, found.bases, found.rows) == (given.types, given.bases, 3)
    assert found.bare == load_groups({"cost_unit": "ms", "groups": features, "rows": 3}).with_prices({"a": 2.0}, "ms")


def test_groups_are_priced_in_milliseconds_and_those_that_are_not_measured_keep_their_costs() -> None:
    found = priced(groups("s", draw=0.5), {"a": 2.0})
    assert found.cost_unit == "ms"
    assert found.costs.tolist() == [2.0, 500.0, 7000.0]
    assert [group.requires for group in found.groups] == [(), (), ("draw",)]
    assert priced(groups("dollars"), {"a": 2.0, "b": 3.0}).costs.tolist() == [2.0, 0.0, 3.0]
    assert_refused(
        lambda: priced(groups("dollars", draw=1.0), {"a": 2.0, "b": 3.0}),
        "'draw' have no measured cost, and 'dollars' is not a unit of time",
        error=GroupsError,
    )
    assert_refused(lambda: priced(groups(), {"c": 1.0}), "there is no group 'c'", error=GroupsError)


@pytest.mark.parametrize(
    ("unit", "expected"), [("ms", 1.0), (" Seconds ", 1e3), ("µs", 1e-3), ("units", None), ("$", None)]
)
def test_units_of_time_are_known(unit: str, expected: float | None) -> None:
    assert milliseconds(unit) == expected


@pytest.mark.parametrize("quantile", [0.0, 1.0, -0.1, 90.0, float("nan")])
def test_a_quantile_that_is_none_is_refused(quantile: float) -> None:
    assert_refused(
        lambda: checked_quantile(quantile),
        "--cost-quantile is ",
        "; expected a number between 0 and 1",
        error=GroupsError,
    )


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    for path, why in (
        ("groups.txt", "expected a name that ends in .json or .yaml"),
        ("nowhere/groups.yaml", "there is no directory"),
        ("folder.json", "it is a directory"),
    ):
        assert_refused(partial(check_writable, tmp_path / path, SUFFIXES), why, error=AnytimeError)
    assert_refused(lambda: write_groups(groups(), tmp_path / "folder.json"), "cannot write", error=GroupsError)


def played(steps: list[list[int]], needs: list[set[int]], costs: list[float], workers: int) -> list[float]:
    """The times of prefixes if workers compute groups in order, in steps of a tenth of a millisecond."""
    waiting = [group for step in steps for group in step]
    ends: dict[int, int] = {}
    running: dict[int, int] = {}
    now = 0
    while waiting or running:
        for group in [group for group, end in running.items() if end <= now]:
            ends[group] = running.pop(group)
        for group in list(waiting):
            if len(running) < workers and needs[group] <= ends.keys():
                waiting.remove(group)
                running[group] = now + round(10 * costs[group])
        now += 1
    times = [0.0]
    for step in steps:
        times.append(max([times[-1], *(ends[group] / 10 for group in step)]))
    return times


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
@pytest.mark.parametrize("seed", range(6))
def test_workers_share_the_groups_of_an_input(workers: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    order = rng.permutation(6).tolist()
    steps = [order[:1], order[1:3], order[3:]]
    needs: list[set[int]] = [set() for _ in range(6)]
    needs[order[2]], needs[order[5]] = {order[1]}, {order[0], order[3]}
    costs = rng.integers(1, 60, size=(4, 6)) / 10
    found = completions(steps, costs, workers, needs).times
    np.testing.assert_allclose(found, [played(steps, needs, row, workers) for row in costs.tolist()], atol=1e-9)


# Histograms, against a literal interpolation, bucket by bucket.


def literal_quantile(histogram: Histogram, q: float) -> float:
    """Prometheus' `histogram_quantile`: linear inside a bucket; the lower end of the bucket up to +Inf."""
    rank, below, low = q * sum(histogram.counts), 0, 0.0
    for high, count in zip(histogram.bounds, histogram.counts, strict=False):
        if count and below + count >= rank:
            return low + (high - low) * (rank - below) / count
        below, low = below + count, high
    return low


@pytest.mark.parametrize(
    ("bounds", "counts", "quantiles", "bucket"),
    [
        ((1.0, 2.0, 3.0), (10, 0, 10, 0), {0.25: 0.5, 0.5: 1.0, 0.75: 2.5, 1.0: 3.0}, (0.5, (0.0, 1.0))),
        ((1.0, 10.0), (10, 0, 10), {0.25: 0.5, 0.75: 10.0, 1.0: 10.0}, (0.9, (10.0, np.inf))),
        ((2.0, 5.0), (0, 100, 0), {0.5: 3.5}, (0.5, (2.0, 5.0))),
    ],
    ids=["at the end of a bucket, the next is empty", "beyond the last bound it is that bound", "in the middle"],
)
def test_quantiles_by_hand(bounds: Any, counts: Any, quantiles: dict[float, float], bucket: Any) -> None:
    histogram = Histogram(bounds=bounds, counts=counts, sum=300.0)
    np.testing.assert_allclose(histogram.quantiles(np.array([list(quantiles)])), [list(quantiles.values())])
    assert (bucket[0], histogram.bucket(bucket[0])) == bucket


@quick(max_examples=60)
@given(values=st.lists(st.floats(1e-3, 60.0), min_size=1, max_size=40), q=st.floats(0.0, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], q: float) -> None:
    bounds = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
    counts = np.bincount(np.searchsorted(bounds, values, side="left"), minlength=len(bounds) + 1)
    histogram = Histogram(bounds=bounds, counts=tuple(counts.tolist()), sum=float(np.sum(values)))
    low, high = histogram.bucket(q)
    found = float(histogram.quantiles(np.array(q)))
    assert low <= found <= high
    if abs(q * len(values) - round(q * len(values))) > 1e-6:
        assert found == pytest.approx(literal_quantile(histogram, q))
        assert low <= float(np.quantile(values, q, method="inverted_cdf")) <= high
    assert histogram.mean == pytest.approx(np.mean(values))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"bounds": (1.0, 2.0), "counts": (1, 2), "sum": 3.0}, "2 counts for 2 bounds"),
        ({"bounds": (2.0, 1.0), "counts": (1, 2, 0), "sum": 3.0}, "not positive and increasing"),
        ({"bounds": (0.0, 1.0), "counts": (1, 2, 0), "sum": 3.0}, "not positive and increasing"),
        ({"bounds": (1.0,), "counts": (0, 0), "sum": 0.0}, "all 0"),
        ({"bounds": (1.0,), "counts": (2, -1), "sum": 0.0}, "negative"),
        ({"bounds": (1.0,), "counts": (2, 1), "sum": -1.0}, "greater than or equal to 0"),
    ],
    ids=str,
)
def test_an_invalid_histogram_is_refused(content: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Histogram(**content)


# Deadlines under random costs.


def literal(steps: list[list[int]], costs: np.ndarray, values: np.ndarray, deadline: float) -> np.ndarray:
    """The value of each draw at a deadline, group by group."""
    reached = []
    for draw in costs:
        clock, prefix = 0.0, 0
        for step in steps:
            for group in step:
                clock += draw[group]
            if clock > deadline:
                break
            prefix += 1
        reached.append(values[prefix])
    return np.array(reached)


def literal_area(steps: list[list[int]], draw: np.ndarray, values: np.ndarray, stop: float) -> float:
    """Area under the step curve of one draw, by walking along it."""
    area, clock, value = 0.0, 0.0, float(values[0])
    for k, step in enumerate(steps, start=1):
        until = clock + sum(float(draw[group]) for group in step)
        area += value * (min(until, stop) - min(clock, stop))
        clock, value = until, float(values[k])
    return area + value * max(stop - clock, 0.0)


@quick(max_examples=40)
@given(seed=st.integers(0, 10_000), deadline=st.floats(0.0, 6.0), stop=st.floats(0.1, 6.0))
def test_it_is_the_literal_simulation(seed: int, deadline: float, stop: float) -> None:
    rng = np.random.default_rng(seed)
    steps = [[2], [0, 3], [1]]
    costs = np.round(rng.exponential(size=(30, 4)), 2) * (rng.random((30, 4)) > 0.2)
    values = np.cumsum([0.0, *rng.random(3)])
    times = completions(steps, costs)
    expected = literal(steps, costs, values, deadline)
    found = times.expected(values, np.array([deadline]))
    assert found.mean[0] == pytest.approx(expected.mean())
    assert found.error[0] == pytest.approx(expected.std(ddof=1) / np.sqrt(30))
    reached = literal(steps, costs, np.arange(4.0), deadline)
    assert times.prefixes(np.array([deadline])).mean[0] == pytest.approx(reached.mean())
    areas = np.array([literal_area(steps, draw, values, stop) for draw in costs]) / stop
    mean, error = times.timeliness(values, stop)
    assert mean == pytest.approx(areas.mean())
    assert error == pytest.approx(areas.std(ddof=1) / np.sqrt(30))


def test_one_draw_has_no_error() -> None:
    found = RandomTimes(np.array([[0.0, 1.0]])).expected(np.array([0.0, 1.0]), np.array([2.0]))
    assert (found.mean[0], found.error[0]) == (1.0, 0.0)


def model(unit: str = "ms", draw: float = 2.0) -> Model:
    X = np.random.default_rng(0).normal(size=(40, 3))
    return AnytimeRegressor(groups(unit, draw)).fit(X, X @ [1.0, 2.0, 1.0]).model_


def test_a_model_is_simulated_from_the_costs_of_its_groups_and_what_nobody_computes_costs_what_the_model_says() -> None:
    samples = CostDistributions.measured({"a": np.array([1.0, 3.0]), "b": np.array([5.0, 7.0])}, "")
    found = model()
    times = simulate(found, samples, 1000, np.random.default_rng(0))
    steps = [step.adds for step in found.manifest.steps]
    ends = {(1.0, 5.0): 0, (3.0, 7.0): 0}
    for row in np.diff(times.times, axis=1):
        took = dict(zip(steps, row.tolist(), strict=True))
        ends[took["a",], took["draw", "b"] - 2.0] += 1
    assert len(ends) == 2, "samples of one input belong together"
    assert min(ends.values()) > 400
    assert simulate(model("s"), samples, 10, np.random.default_rng(0)).times[:, -1].min() == pytest.approx(2006.0)


def test_what_cannot_be_simulated_is_refused() -> None:
    rng = np.random.default_rng(0)
    assert_refused(
        lambda: simulate(model(), CostDistributions(groups={"a": Samples(samples=(1.0,))}), 10, rng),
        "no distribution for 'b'",
        error=GroupsError,
    )
    both = CostDistributions(groups={name: Samples(samples=(1.0,)) for name in "ab"})
    assert_refused(
        lambda: simulate(model("dollars"), both, 10, rng),
        "group 'draw' without features costs 2 dollars, which is not a time",
        error=GroupsError,
    )
    simulate(model("dollars", draw=0.0), both, 10, rng)
