"""Eq. 10: the orders, the ratios at all budgets, and what no sequence can do."""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime_reproduction.experiment import Setting
from anytime_reproduction.uai.doubling import DOUBLING, SHARES, any_sequence, doubled, eq10, knapsack, learned, ratios
from models.properties import quick
from reproduction.runs_for_tests import assert_complete

QUICK = Setting(quick=True)


def least_ratio(order: tuple[int, ...], share: float) -> float:
    """Plainly: the least over all budgets of F within B over the best of cost B/C."""
    values, costs = eq10(len(order))
    best = knapsack(values, costs)
    found = np.inf
    for budget in range(int(costs.sum()) + 1):
        spent, value = 0, 0.0
        for item in order:
            spent += item
            if spent > budget:
                break
            value += values[item - 1]
        competitor = best[int(budget / share + 1e-9)]
        if competitor > 0:
            found = min(found, value / competitor)
    return float(found)


def test_doubling_takes_the_dearest_item_within_its_limit() -> None:
    assert doubled(13).tolist()[:5] == [1, 2, 3, 6, 12]
    assert sorted(doubled(13).tolist()) == list(range(1, 14))


@pytest.mark.parametrize("D", [5, 12, 30])
def test_our_trainer_learns_the_orders_of_both_algorithms(D: int) -> None:
    values, costs = eq10(D)
    assert (learned(values, costs, doubling=True).columns + 1).tolist() == doubled(D).tolist()
    greedy = learned(values, costs, doubling=False).columns + 1
    assert greedy.tolist() == sorted(range(1, D + 1), key=lambda x: -np.exp(x - D) / x)


@quick(max_examples=80)
@given(st.lists(st.tuples(st.integers(1, 6), st.floats(0, 10)), min_size=1, max_size=7))
def test_the_knapsack_is_that_of_plain_search(items: list[tuple[int, float]]) -> None:
    costs, values = np.array([c for c, _ in items]), np.array([v for _, v in items])
    found = knapsack(values, costs)
    sets = [
        (costs[list(members)].sum(), values[list(members)].sum())
        for size in range(len(items) + 1)
        for members in combinations(range(len(items)), size)
    ]
    expected = [max(value for cost, value in sets if cost <= budget) for budget in range(costs.sum() + 1)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("share", [1.0, 2.0, 3.5, 4.0])
def test_ratios_are_those_of_plain_counting(share: float) -> None:
    values, costs = eq10(9)
    for order in (doubled(9), np.array([9, 8, 7, 6, 5, 4, 3, 2, 1]), np.array([2, 1, 9, 3, 4, 5, 6, 7, 8])):
        found = ratios(order - 1, values, costs, share)[1].min()
        assert found == pytest.approx(least_ratio(tuple(order.tolist()), share))


@pytest.mark.parametrize("share", [1.0, 1.5, 2.0, 3.0, 4.0])
def test_no_sequence_at_all_does_better_than_it_is_said(share: float) -> None:
    best = max(least_ratio(order, share) for order in permutations(range(1, 7)))
    limit = any_sequence(6, share)
    assert min(best, 1.0) <= limit + 1e-12
    assert limit <= 1.0


def test_the_limit_falls_with_more_items_under_four_and_not_at_four() -> None:
    for share in (1.0, 2.0, 3.0):
        assert any_sequence(64, share) < 0.5 * any_sequence(16, share)
    assert any_sequence(64, 4.0) == 1.0


@pytest.fixture
def results() -> dict[str, Any]:
    return {run.name: run.work(QUICK, **run.arguments) for run in DOUBLING.runs(QUICK)}


def test_a_quick_look_finds_what_the_theorems_say(results: dict[str, Any]) -> None:
    section = DOUBLING.section(QUICK, results)
    assert [finding.agrees for finding in section.findings] == [True, True, True, None, True, None]
    assert_complete(section)


def test_findings_follow_the_results(results: dict[str, Any]) -> None:
    results["sequences"]["Doubling"]["quarter"][1][3] = 0.2
    results["sequences"]["CS-G-FR"]["order"].reverse()
    results["least-8"]["doubling"] = [0.1] * 7
    findings = DOUBLING.section(QUICK, results).findings
    assert [finding.agrees for finding in findings] == [False, True, False, None, False, None]
    assert "no fall is visible up to 32 items" in findings[5].text
    results["least-32"]["any"] = [0.01 if share < 4 else 1.0 for share in SHARES]
    assert DOUBLING.section(QUICK, results).findings[5].agrees
