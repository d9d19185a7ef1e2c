"""Protocol of the comparison of the defaults: splits, columns paid for, differences and verdicts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from anytime.groups import load_groups
from benchmarks.peers.defaults import BY_HAND, DEFAULT, LINEAR, Problem, columns_at, compare, measure, sheet
from benchmarks.peers.report import Part

GROUPS = load_groups(
    {"groups": [{"name": "a", "features": ["u"], "cost": 1.0}, {"name": "b", "features": ["v", "w"], "cost": 3.0}]}
)


def small(*, are_classes: bool) -> Problem:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = X[:, 0] + np.abs(X[:, 1]) + 0.1 * rng.normal(size=300)
    return Problem(X, np.asarray(y > 0.8, dtype=np.float64) if are_classes else y, GROUPS, are_classes)


def test_a_split_trains_on_seven_tenths_of_the_rows() -> None:
    problem = small(are_classes=False)
    X, y, Xt, yt = problem.split(1)
    assert [len(each) for each in (X, y, Xt, yt)] == [210, 210, 90, 90]
    assert {*y, *yt} == {*problem.y}
    assert not np.array_equal(problem.split(2)[1], y)


def test_a_peer_has_the_columns_of_the_groups_within_each_share_of_the_cost() -> None:
    model = SimpleNamespace(
        curve_=SimpleNamespace(costs=np.array([0.0, 1.0, 4.0])),
        model_=SimpleNamespace(computed=[(), ("a",), ("a", "b")]),
    )
    expected = [[False, False, False], [True, False, False], [True, True, True]]
    np.testing.assert_array_equal(columns_at(model, GROUPS), expected)


@pytest.mark.parametrize("are_classes", [False, True])
def test_the_default_and_other_options_are_measured_at_each_share(are_classes: bool) -> None:
    found = measure(small(are_classes=are_classes), 0, {}, Part("Defaults"))
    assert [*found] == [DEFAULT, LINEAR, BY_HAND]
    assert all(values.shape == (3,) for values in found.values())
    assert found[DEFAULT][2] > found[LINEAR][2] + 0.02  # the target is bent
    assert abs(found[DEFAULT][0] - 0.5 * are_classes) < 0.1  # nothing within 5 % of the cost


def test_the_default_must_not_lose_to_lines_by_a_standard_error() -> None:
    lines = np.array([[0.5, 0.6, 0.7], [0.5, 0.7, 0.7], [0.5, 0.65, 0.7]])
    found = {DEFAULT: np.array([[0.5, 0.5, 0.7], [0.5, 0.5, 0.9], [0.5, 0.5, 0.8]]), LINEAR: lines, "EBM": lines - 0.3}
    verdicts = [finding.verdict for finding in compare("set", found)]
    assert verdicts == ["holds", "missed", "holds", "ahead", "ahead", "ahead"]
    one_split = np.zeros((5, 3))
    one_split[4, 2] = 0.0387  # a loss of one standard error, but for rounding
    [*_, last] = compare("set", {DEFAULT: -one_split, LINEAR: np.zeros((5, 3))})
    assert last.verdict == "holds"
    rows = sheet("set", found).rows
    assert rows[0] == (DEFAULT, "0.5000", "0.5000", "0.8000")
    assert rows[1] == (LINEAR, "+0.0000 (0.0000)", "+0.1500 (0.0289)", "-0.1000 (0.0577)")
