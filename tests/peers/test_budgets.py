"""Costs of trees and prefixes, and the model that a budget allows."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import r2_score

from anytime.evaluation.evaluate import ndcg
from anytime.groups import load_groups
from benchmarks.peers.adapters.boosting import tree_features, used_by_rounds
from benchmarks.peers.quality import (
    RANKING,
    Points,
    QualitySet,
    Table,
    cost_of,
    difference_error,
    feature_prices,
    mean_upto,
    value_at_budgets,
)

GROUPS = load_groups(
    {
        "groups": [
            {"name": "speed", "features": ["v"], "cost": 1},
            {"name": "blood", "features": [], "cost": 10},
            {"name": "lab", "features": ["l0", "l1"], "cost": 4, "requires": ["blood"]},
        ]
    }
)


def test_a_model_pays_whole_groups_and_what_they_require_once() -> None:
    used = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 1], [1, 1, 1]], dtype=bool)
    assert cost_of(used, GROUPS).tolist() == [0.0, 1.0, 14.0, 14.0, 15.0]


def test_features_are_priced_at_their_share_or_at_the_whole_group() -> None:
    shared, full = feature_prices(GROUPS)
    assert shared.tolist() == [1.0, 2.0, 2.0]
    assert full.tolist() == [1.0, 4.0, 4.0]


def test_features_are_read_from_the_splits_of_a_tree() -> None:
    leaf = {"leaf_value": 1.0}
    tree = {
        "split_feature": 3,
        "left_child": {"split_feature": 0, "left_child": leaf, "right_child": leaf},
        "right_child": leaf,
    }
    assert sorted(tree_features(tree)) == [0, 3]
    assert list(tree_features(leaf)) == []
    tree_dump = {
        "split": "f12",
        "children": [{"leaf": 1.0}, {"split": "f2", "children": [{"leaf": 0.0}, {"leaf": 1.0}]}],
    }
    assert sorted(tree_features(tree_dump)) == [2, 12]
    assert list(tree_features({"leaf": 0.5})) == []


def test_features_count_from_the_first_round_that_uses_them() -> None:
    trees = [[0], [], [1], [0], [2], [2]]  # two trees a round
    assert used_by_rounds(trees, 2, (1, 2, 3), 4).tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
    ]
    assert used_by_rounds(trees, 2, (2,), 4).tolist() == [[True, True, False, False]]


POINTS = Points(np.array([1.0, 5.0, 3.0]), np.array([0.5, 0.6, 0.7]), np.array([0.55, 0.9, 0.65]))


def test_a_budget_selects_the_model_that_validates_best_or_the_most_expensive_within_it() -> None:
    budgets = np.array([0.0, 1.0, 4.0, 5.0])
    assert value_at_budgets(POINTS, budgets, 0.1, chosen=True).tolist() == [0.1, 0.55, 0.65, 0.65]
    assert value_at_budgets(POINTS, budgets, 0.1, chosen=False).tolist() == [0.1, 0.55, 0.65, 0.9]
    both = POINTS.joined(Points(np.array([0.0]), np.array([0.9]), np.array([0.2])))
    assert value_at_budgets(both, budgets, 0.0, chosen=True).tolist() == [0.2] * 4


def test_the_mean_of_a_curve_is_that_of_a_step_function() -> None:
    budgets, values = np.array([0.0, 1.0, 4.0]), np.array([0.0, 1.0, 2.0])
    assert mean_upto(budgets, values, 1.0) == 0.0
    assert mean_upto(budgets, values, 2.0) == 0.5
    assert mean_upto(budgets, values, 5.0) == (0 + 3 * 1 + 1 * 2) / 5


def test_values_of_each_row_are_selected_and_averaged_like_their_means() -> None:
    rows = Points(POINTS.costs, POINTS.validation, POINTS.test[:, np.newaxis] + np.array([-0.1, 0.1]))
    budgets = np.array([0.0, 1.0, 3.0, 5.0])
    each = value_at_budgets(rows, budgets, np.array([0.0, 0.2]), chosen=True)
    whole = value_at_budgets(POINTS, budgets, 0.1, chosen=True)
    np.testing.assert_allclose(each.mean(axis=1), whole)
    np.testing.assert_allclose(mean_upto(budgets, each, 4.0).mean(), mean_upto(budgets, whole, 4.0))


def test_the_error_of_a_difference_is_that_of_a_mean() -> None:
    difference = np.random.default_rng(1).normal(size=400)
    error = difference_error(difference, np.ones(400), draws=4000)
    np.testing.assert_allclose(error, difference.std() / 20, rtol=0.05)
    assert difference_error(np.full(400, 0.3), np.ones(400)) < 1e-12


def test_units_add_up_to_the_quality_of_a_model() -> None:
    generator = np.random.default_rng(2)
    query = np.repeat(np.arange(30), generator.integers(1, 7, size=30))
    y, scores = generator.integers(0, 3, size=len(query)).astype(float), generator.normal(size=(2, len(query)))
    part = Table(np.zeros((len(y), 0)), y, query)
    problem = QualitySet("set", "", RANKING, 1, GROUPS, part, part, part)
    terms, weights = problem.units("NDCG@5", part, scores)
    expected = ndcg(y, scores.T, query)
    assert expected is not None
    np.testing.assert_allclose(terms.sum(axis=1) / weights.sum(), expected)
    terms, weights = problem.units("r2", part, scores)
    np.testing.assert_allclose(terms.sum(axis=1) / weights.sum(), [r2_score(y, row) for row in scores])
    np.testing.assert_allclose(problem.prior("r2")[0], 0.0, atol=1e-12)


def test_equal_rows_count_as_one_unit() -> None:
    X = np.array([[1.0], [2.0], [1.0], [1.0]])
    part = Table(X, np.array([0, 1, 0, 1]))
    problem = QualitySet("set", "", ("accuracy",), 2, GROUPS, part, part, part)
    terms, weights = problem.units("accuracy", part, np.array([[-1.0, 1.0, -1.0, -1.0]]))
    assert (terms.tolist(), weights.tolist()) == ([[2.0, 1.0]], [3.0, 1.0])
