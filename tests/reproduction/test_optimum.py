"""The optimum within every budget is that of plain search."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anytime_reproduction.uai.bounds import best_of_sets
from anytime_reproduction.uai.doubling import knapsack
from models.properties import quick

COSTS = st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, 2.5]), min_size=1, max_size=6)


def subsets(count: int) -> list[tuple[int, ...]]:
    return list(chain.from_iterable(combinations(range(count), size) for size in range(count + 1)))


@quick(max_examples=80)
@given(COSTS, st.integers(0, 2**32 - 1))
def test_the_best_of_all_sets_is_that_of_plain_search(costs: list[float], seed: int) -> None:
    values = np.random.default_rng(seed).uniform(0, 1, 2 ** len(costs))
    values[0] = 0.0
    found = best_of_sets(values, np.array(costs))
    sets = {
        members: (sum(costs[g] for g in members), values[sum(1 << g for g in members)])
        for members in subsets(len(costs))
    }
    assert found.costs[0] == 0
    assert (np.diff(found.values) > 0).all()
    for budget in [*(cost for cost, _ in sets.values()), 0.0, 0.15, 99.0]:
        expected = max(value for cost, value in sets.values() if cost <= budget + 1e-9)
        assert found.within(np.array([budget]))[0] == expected


@quick(max_examples=80)
@given(st.lists(st.tuples(st.integers(1, 6), st.floats(0, 10)), min_size=1, max_size=7))
def test_the_knapsack_is_that_of_plain_search(items: list[tuple[int, float]]) -> None:
    costs, values = np.array([c for c, _ in items]), np.array([v for _, v in items])
    found = knapsack(values, costs)
    sets = [(costs[list(members)].sum(), values[list(members)].sum()) for members in subsets(len(items))]
    expected = [max(value for cost, value in sets if cost <= budget) for budget in range(costs.sum() + 1)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
