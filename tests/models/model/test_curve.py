"""The numbers that sum up a curve are those computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.model.curve import PLATEAU_LEVELS, Shape, plateau_level, stopping_cost, timeliness
from anytime.types import Float
from anytime_reproduction.comparison import oracle_order
from models import literal
from models.properties import quick

COSTS, F = np.array([0.0, 1.0, 3.0, 6.0]), np.array([0.0, 0.2, 0.3, 0.4])


@st.composite
def curves(draw: st.DrawFn) -> tuple[Float, Float]:
    """Cumulative costs, free steps among them, and explained variances that never fall; the last is positive."""
    steps = draw(
        st.lists(st.tuples(st.sampled_from((0, 0.5, 1, 2, 7)), st.sampled_from((0, 1, 3, 10))), min_size=1, max_size=9)
    )
    costs, gains = np.array([0.0, *(c for c, _ in steps)]), np.array([0.0, *(g for _, g in steps)])
    gains[-1] += 1.0
    return np.cumsum(costs), 0.5 * np.cumsum(gains) / gains.sum()


# Timeliness.


FREE_AT_FIRST = np.array([0.0, 0.0, 0.0, 2.0]), np.array([0.0, 0.05, 0.1, 0.3])
FREE_WITHIN = np.array([0.0, 1.0, 1.0, 2.0]), np.array([0.0, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    ("curve", "stop", "shape", "area"),
    [
        ((COSTS, F), 6.0, "trapezoid", 0.1 + 0.5 + 1.05),
        ((COSTS, F), 6.0, "step", 0.0 + 0.4 + 0.9),
        ((COSTS, F), 3.0, "trapezoid", 0.1 + 0.5),
        ((COSTS, F), 3.0, "step", 0.4),
        ((COSTS, F), 2.0, "trapezoid", 0.1 + (0.2 + 0.25) / 2),
        ((COSTS, F), 2.0, "step", 0.2),
        ((COSTS, F), 0.5, "trapezoid", 0.5 * 0.1 / 2),
        ((COSTS, F), 0.5, "step", 0.0),
        ((COSTS, F), 10.0, "trapezoid", 1.65 + 1.6),
        ((COSTS, F), 10.0, "step", 1.3 + 1.6),
        # What is free is there from the beginning.
        (FREE_AT_FIRST, 2.0, "trapezoid", (0.1 + 0.3) / 2 * 2),
        (FREE_AT_FIRST, 2.0, "step", 0.1 * 2),
        # A free step within the curve lifts it at once, and not before.
        (FREE_WITHIN, 2.0, "trapezoid", 0.2 / 2 + (0.3 + 0.4) / 2),
        (FREE_WITHIN, 2.0, "step", 0.3),
    ],
)
def test_timeliness_is_the_area_up_to_the_stop_by_hand(
    curve: tuple[Float, Float], stop: float, shape: Shape, area: float
) -> None:
    assert timeliness(*curve, stop, 0.5, shape) == pytest.approx(area / (stop * 0.5), rel=1e-12)


def test_without_cost_or_risk_there_is_no_timeliness() -> None:
    assert timeliness(COSTS, F, 0.0, 0.5) == timeliness(COSTS, F, 6.0, 0.0) == 0.0


@pytest.mark.parametrize("shape", ["trapezoid", "step"])
@pytest.mark.parametrize("free", ["first", "anywhere"])
def test_timeliness_is_the_literal_one(shape: Shape, free: str) -> None:
    @quick()
    @given(curves(), st.floats(0.1, 30))
    def check(curve: tuple[Float, Float], stop: float) -> None:
        costs, explained = np.sort(np.diff(curve[0])) if free == "first" else np.diff(curve[0]), curve[1]
        costs = np.concatenate([[0.0], np.cumsum(costs)])
        expected = literal.timeliness(costs.tolist(), explained.tolist(), stop, 0.5, shape)
        assert timeliness(costs, explained, stop, 0.5, shape) == pytest.approx(expected, rel=1e-9, abs=1e-12)

    check()


# Stops and plateaus.


@pytest.mark.parametrize(
    ("level", "cost"), [(0.0, 0.0), (0.4, 1.0), (0.5, 1.0), (0.51, 3.0), (0.75, 3.0), (0.76, 6.0), (1.0, 6.0)]
)
def test_the_stop_is_where_the_share_of_the_final_value_is_first_reached(level: float, cost: float) -> None:
    assert stopping_cost(COSTS, F, level) == cost


def test_a_share_that_only_rounding_misses_is_reached() -> None:
    explained = np.array([0.0, 0.1 + 0.2, 0.6])
    assert stopping_cost(np.array([0.0, 1.0, 2.0]), explained[::1] * [1, 1 - 1e-14, 1], 0.5) == 1.0


def test_what_explains_nothing_stops_at_once() -> None:
    assert stopping_cost(COSTS, np.zeros(4), 0.99) == 0.0
    assert plateau_level(COSTS, np.zeros(4)) == 1.0


@pytest.mark.parametrize("level", PLATEAU_LEVELS)
def test_a_plateau_begins_where_the_next_percent_is_dear(level: float) -> None:
    explained = np.array([0.0, level, level + 0.01, 1.0])
    assert plateau_level(np.array([0.0, 10.0, 31.0, 40.0]), explained) == level
    assert plateau_level(np.array([0.0, 10.0, 12.0, 14.0]), explained) == 1.0


@pytest.mark.parametrize(
    ("costs", "explained", "level"),
    [
        ([0, 10, 40, 41, 80], [0, 0.96, 0.97, 0.985, 1], 0.96),
        ([0, 5, 7, 8, 9, 10], [0, 0.95, 0.96, 0.975, 0.99, 1], 1.0),
        ([0, 5, 7.1, 8, 9, 10], [0, 0.95, 0.96, 0.975, 0.99, 1], 0.95),
        ([0, 1, 60, 70, 80, 85, 90, 100], [0, 0.93, 0.95, 0.96, 0.97, 0.98, 0.99, 1], 1.0),
    ],
    ids=[
        "the first counts",
        "exactly a fifth does not count",
        "more than a fifth counts",
        "a costly percent before 95 does not count",
    ],
)
def test_plateaus_by_hand(costs: list[float], explained: list[float], level: float) -> None:
    assert plateau_level(np.array(costs, float), np.array(explained, float)) == level


@quick()
@given(curves(), st.sampled_from((0.0, 0.5, 0.95, 0.97, 1.0)))
def test_stops_and_plateaus_are_the_literal_ones(curve: tuple[Float, Float], level: float) -> None:
    costs, explained = curve[0].tolist(), curve[1].tolist()
    assert stopping_cost(*curve, level) == literal.stopping_cost(costs, explained, level)
    assert plateau_level(*curve) == literal.plateau_level(costs, explained)


# The oracle's line.


@pytest.mark.parametrize(
    ("gains", "costs", "order"),
    [([1, 4, 3, 2, 0], [1, 2, 1, 1, 3], [2, 1, 3, 0, 4]), ([1, 0, 5, 2], [1, 0, 0, 1], [1, 2, 3, 0])],
    ids=["by gain for the cost", "free steps first"],
)
def test_the_oracle_takes_gains_by_what_they_cost_ties_as_they_came(
    gains: list[float], costs: list[float], order: list[int]
) -> None:
    assert oracle_order(np.array(gains, float), np.array(costs, float)).tolist() == order


@quick()
@given(curves())
def test_the_oracle_is_never_behind_the_sequence_that_it_sorts(curve: tuple[Float, Float]) -> None:
    costs, explained = curve
    paid, gains = np.diff(costs), np.diff(explained)
    order = oracle_order(gains, paid)
    assert sorted(order.tolist()) == list(range(len(gains)))
    oracle_costs = np.concatenate([[0.0], np.cumsum(paid[order])])
    oracle_F = np.concatenate([[0.0], np.cumsum(gains[order])])
    for stop in (0.5, 3.0, float(costs[-1])):
        assert timeliness(oracle_costs, oracle_F, stop, 0.5) >= timeliness(costs, explained, stop, 0.5) - 1e-12
