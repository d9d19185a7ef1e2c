"""Costs of calls with several rows, learned from the metrics of services: per row, whatever the size of the calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from anytime.costs.distributions import Histogram, RandomTimes, fitted_cost, rounded_cost
from anytime.costs.scraping import (
    CallTimes,
    Tallies,
    added,
    call_times,
    distributions_of,
    group_cost,
    of_model,
    read_scrape,
    since,
)
from anytime.errors import AnytimeError
from anytime.groups import CallCost
from anytime.types import Float
from anytime_service.telemetry.metrics import rows_label

BOUNDS = ("0.001", "0.01", "0.1", "+Inf")
Call = tuple[int, float]
"""Rows, and milliseconds."""

PAGES: list[Call] = [(1, 2.5), (100, 52.0), (100, 52.0), (500, 252.0), (3, 3.5)]
"""2 ms, and half a millisecond per row."""


def scrape(calls: Sequence[Call], group: str = "hog", *, counted: bool = True) -> str:
    """What a service exposes of calls."""
    lines: list[str] = []
    for label in sorted({rows_label(rows) for rows, _ in calls}):
        times = [ms / 1e3 for rows, ms in calls if rows_label(rows) == label]
        labels = f'model="m",group="{group}",rows="{label}"'
        for bound in BOUNDS:
            below = sum(time <= float(bound) for time in times)
            lines.append(f'anytime_group_seconds_bucket{{{labels},le="{bound}"}} {float(below)}')
        lines.append(f"anytime_group_seconds_sum{{{labels}}} {sum(times)}")
        total = sum(rows for rows, _ in calls if rows_label(rows) == label)
        lines += [f"anytime_group_rows_total{{{labels}}} {float(total)}"] * counted
    return "\n".join([*lines, ""])


def timings(*several: Sequence[Call]) -> Tallies:
    """Of one service, or of several."""
    return added(of_model([read_scrape(scrape(calls)).timings for calls in several], "m"))


def cost(calls: Tallies, stated: CallCost | None = None, quantile: float | None = None, least: int = 1) -> CallCost:
    return group_cost(call_times(calls)["hog"], stated or CallCost(per_row=1.0), quantile, least)


def parts(cost: CallCost) -> tuple[float, float]:
    return cost.fixed, cost.per_row


def test_the_label_of_rows_is_a_range_from_a_power_of_two() -> None:
    labels = {rows: rows_label(rows) for rows in (1, 2, 3, 4, 7, 8, 100, 127, 128)}
    assert list(labels.values()) == ["1", "2-3", "2-3", "4-7", "4-7", "8-15", "64-127", "64-127", "128-255"]


SINGLE, MANY = [(1, 2.5)] * 9, [(100, 52.0)] * 3
FITTED: dict[str, tuple[list[list[Call]], dict[str, Any], tuple[float, float]]] = {
    "a page costs its time over its rows": ([[(100, 10.0)] * 40], {}, (0.0, 0.1)),
    "a row": ([[(1, 10.0)] * 40], {}, (0.0, 10.0)),
    "one range of rows": ([[(70, 7.0), (120, 12.0)]], {}, (0.0, 0.1)),
    "both parts where calls have different sizes": ([PAGES], {}, (2.0, 0.5)),
    "a fixed part only": ([[(1, 4.0), (100, 4.0)]], {}, (4.0, 0.0)),
    "rows only": ([[(1, 0.3), (100, 30.0)]], {}, (0.0, 0.3)),
    "no part is negative where larger calls took less": ([[(1, 9.0), (100, 3.0)]], {}, (3.6, 0.0)),
    "sizes with few calls do not decide": (
        [[(100, 10.0)] * 40 + [(1, 9.0)] * 2],
        {"least": 30},
        (0.0, (400 + 18) / 4002),
    ),
    "services with calls of other sizes": ([SINGLE, MANY], {}, (2.0, 0.5)),
    "a stated fixed part keeps its share where calls have one size, here twice as slow": (
        [[(100, 104.0)] * 40],
        {"stated": CallCost(fixed=2.0, per_row=0.5)},
        (4.0, 1.0),
    ),
    "a stated cost of 0": ([[(100, 10.0)]], {"stated": CallCost(fixed=0.0, per_row=0.0)}, (0.0, 0.1)),
    # Half of the bucket from 1 to 10 ms, and of that from 10 to 100 ms.
    "a quantile is that of calls of one size": (
        [[(1, 5.0)] * 50 + [(100, 50.0)] * 50],
        {"quantile": 0.5},
        parts(fitted_cost([1, 100], [5.5, 55.0])),
    ),
}


@pytest.mark.parametrize("case", FITTED)
def test_calls_cost_a_fixed_part_and_a_part_per_row(case: str) -> None:
    services, options, expected = FITTED[case]
    assert parts(cost(timings(*services), **options)) == pytest.approx(expected, abs=1e-9)


def test_services_add_up() -> None:
    assert timings(PAGES[:2], PAGES[2:]) == pytest.approx(timings(PAGES))


def test_what_was_counted_before_is_taken_away_with_its_rows() -> None:
    before, after = timings([(100, 99.0)] * 5), timings([(100, 99.0)] * 5 + [(100, 10.0)] * 4 + [(3, 0.3)])
    found = call_times(since(after, before))["hog"]
    assert [(each.rows, each.calls) for each in found] == [(3, 1), (100, 4)]
    assert [each.times.mean for each in found] == pytest.approx([0.3, 10.0])


def test_the_fit_is_the_least_sum_of_squared_relative_errors() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = np.sort(rng.choice(np.arange(1, 500), size=4, replace=False)).astype(float)
        times, weights = rng.uniform(0.1, 9, size=4), rng.integers(1, 90, size=4).astype(float)

        def error(x: Float, rows: Float = rows, times: Float = times, weights: Float = weights) -> float:
            return float(np.sum(weights * ((x[0] + x[1] * rows - times) / times) ** 2))

        found = np.array(parts(fitted_cost(rows.tolist(), times.tolist(), weights.tolist())))
        best = minimize(error, [1.0, 0.01], bounds=[(0, None), (0, None)], tol=1e-14)
        assert error(found) <= error(best.x) * (1 + 1e-6)


def test_a_distribution_is_of_the_most_frequent_rows() -> None:
    calls = {
        "a": call_times(timings([(100, 10.0)] * 40 + [(1, 0.1)] * 3))["hog"],
        "b": [CallTimes(200.0, Histogram(bounds=(1.0, 10.0), counts=(0, 5, 0), sum=25.0))],
    }
    found = distributions_of(calls, {"a": CallCost(per_row=0.1), "b": CallCost(fixed=3.0, per_row=0.01)}, "here")
    assert (found.rows, found.groups["a"].count) == (100, 40)
    means = [each.mean for each in found.groups.values() if isinstance(each, Histogram)]
    assert means == pytest.approx([10.0, 5.0 * (3 + 1) / (3 + 2)]), "as the costs say"


@pytest.mark.parametrize(
    ("sample", "value"),
    [
        ('anytime_group_seconds_sum{model="m",group="hog",rows="1"}', "NaN"),
        ('anytime_group_seconds_bucket{model="m",group="hog",rows="1",le="+Inf"}', "+Inf"),
        ('anytime_group_rows_total{model="m",group="hog",rows="1"}', "-1"),
        ("process_start_time_seconds", "NaN"),
    ],
)
def test_a_number_that_is_not_finite_is_one_clear_error(sample: str, value: str) -> None:
    why = r"the metrics have .* (nan|inf|-1); expected finite numbers, 0 or more; read the metrics"
    with pytest.raises(AnytimeError, match=why) as refused:
        read_scrape(f"{sample} {value}\n")
    assert "\n" not in str(refused.value)
    assert sample.partition("{")[0] in str(refused.value)
    read_scrape('other_seconds_sum{model="m",group="hog"} NaN\nother NaN\n')


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (scrape([(100, 10.0)], counted=False), r'"64-127" without anytime_group_rows_total'),
        (scrape([(100, 10.0)]).replace("64-127", "many"), 'have calls of rows="many"; expected a range'),
        (scrape([(1, 10.0)]).replace('le="0.01"', 'le="few"'), "the histogram of group 'hog' is incomplete"),
    ],
    ids=["not counted", "not a range", "incomplete"],
)
def test_rows_that_are_not_counted_or_not_a_range_are_refused(content: str, why: str) -> None:
    with pytest.raises(AnytimeError, match=why):
        call_times(read_scrape(content).timings["m"])


def test_one_row_needs_no_count() -> None:
    assert call_times(read_scrape(scrape([(1, 10.0)], counted=False)).timings["m"])["hog"][0].rows == 1


def test_rows_counted_a_moment_later_stay_in_their_range() -> None:
    content = scrape([(100, 10.0)]).replace("} 100.0", "} 300.0")
    assert call_times(read_scrape(content).timings["m"])["hog"][0].rows == 127


def test_costs_are_rounded_to_four_digits_and_stated_as_numbers_without_a_fixed_part() -> None:
    assert rounded_cost(CallCost(per_row=1.23456)) == 1.235
    assert rounded_cost(CallCost(fixed=0.123456, per_row=3.0)) == CallCost(fixed=0.1235, per_row=3.0)


def test_times_reach_a_prefix_when_they_have_passed() -> None:
    assert RandomTimes(np.array([[0.0, 10.0, 30.0]])).reached(np.array([5.0, 10.0, 40.0])).tolist() == [[0, 1, 2]]
