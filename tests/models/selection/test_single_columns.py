"""Groups of one column go a shorter way, to the same sequence and coefficients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.groups import FeatureGroups, load_groups
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection import FactoredOrder, Rule, SweepSearch, greedy, sequence
from anytime.selection.criteria import CRITERIA
from anytime.selection.least_squares import Sweep, single_columns
from models.properties import quick

B = {"name": "b", "features": ["y"], "cost": 1}


def the_long_way(gram: Gram, groups: FeatureGroups, alpha: float, *, cost_blind: bool) -> FactoredOrder:
    """By the sweep over groups of any size."""
    criterion = CRITERIA["fr"]().on(gram)
    sweep = Sweep(gram, groups.slices, alpha, blocks=True)
    found = greedy(SweepSearch(groups, sweep, criterion), Rule("fr", cost_blind=cost_blind))
    return replace(found, state=sweep.solved)


def problem(rng: np.random.Generator, width: int, responses: int, kind: str) -> tuple[Gram, FeatureGroups]:
    """Columns that are correlated, constant or copies of each other, at costs of few values, zero among them."""
    X = rng.normal(size=(3 * width + 20, width))
    X[:, 1:] += 0.7 * X[:, :-1]
    if kind == "ties":
        X[:, 2::4] = X[:, 1 : X[:, 2::4].shape[1] * 4 : 4][:, : X[:, 2::4].shape[1]]
        X[:, 3::7] = 5.0
    Y = X @ rng.normal(size=(width, responses)) + rng.normal(size=(len(X), responses))
    costs = rng.integers(0 if kind == "free" else 1, 4, width).astype(float)
    named = [{"name": f"g{j}", "features": [f"x{j}"], "cost": float(cost)} for j, cost in enumerate(costs)]
    return Gram.of(moments_of(X, Y)), load_groups({"groups": named})


@quick(max_examples=60)
@given(
    st.integers(0, 10_000),
    st.sampled_from([1, 2, 5, 40, 127, 128, 129, 260]),
    st.integers(1, 3),
    st.sampled_from(["plain", "ties", "free"]),
    st.booleans(),
    st.sampled_from([0.0, 1e-5, 0.1]),
)
def test_the_short_way_comes_to_the_same(
    seed: int, width: int, responses: int, kind: str, cost_blind: bool, alpha: float
) -> None:
    gram, groups = problem(np.random.default_rng(seed), width, responses, kind)
    ours = sequence(gram, groups, "fr", alpha, cost_blind=cost_blind)
    theirs = the_long_way(gram, groups, alpha, cost_blind=cost_blind)
    np.testing.assert_allclose(ours.explained_variance, theirs.explained_variance, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(ours.costs, theirs.costs)
    np.testing.assert_array_equal(ours.columns, theirs.columns)
    np.testing.assert_array_equal(ours.state.factor.dropped, theirs.state.factor.dropped)
    np.testing.assert_allclose(ours.state.factor.L, theirs.state.factor.L, atol=1e-7)
    np.testing.assert_allclose(ours.state.z, theirs.state.z, atol=1e-7)
    assert [step.adds for step in ours.steps] == [step.adds for step in theirs.steps]


def test_it_is_taken_where_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    gram, groups = problem(np.random.default_rng(0), 9, 1, "plain")
    taken = Mock(wraps=single_columns)
    monkeypatch.setattr("anytime.selection.least_squares.single_columns", taken)
    sequence(gram, groups, "fr", 0.1)
    assert taken.call_count == 1
    for options in ({"doubling": True}, {"epsilon": 0.1}, {"first": (groups.names[3],)}, {"method": "omp"}):
        sequence(gram, groups, **{"method": "fr", "alpha": 0.1} | options)  # type: ignore[arg-type]
    assert taken.call_count == 1


@pytest.mark.parametrize(
    ("changes", "single"),
    [({}, True), ({"features": ["y", "z"]}, False), ({"requires": ["a"]}, False), ({"features": []}, False)],
    ids=str,
)
def test_which_groups_are_single_columns(
    changes: dict[str, Any], single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Mock(wraps=single_columns)
    monkeypatch.setattr("anytime.selection.least_squares.single_columns", taken)
    gram, _ = problem(np.random.default_rng(0), 9, 1, "plain")
    groups = load_groups({"groups": [{"name": "a", "features": ["x"], "cost": 1}, B | changes]})
    sequence(gram.restricted(np.arange(len(groups.features))), groups, "fr", 0.1)
    assert taken.call_count == single
