"""Paths of coefficients as curves of explained variance against cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anytime.selection import sequence
from benchmarks.peers.adapters.with_ours import ALPHA, coefficients, gram_of
from benchmarks.peers.problems import SyntheticProblem, make_problem
from benchmarks.peers.training import active_groups, entry_order, explained, line_of, refitted

SIZES, COSTS = np.array([2, 1, 2]), np.array([3.0, 1.0, 5.0])
PATH = np.array([[0.0, 0, 0, 0, 0], [0, 0.5, 0, 0, 0], [0, 0.5, 1, 0, -1], [0, 0, 1, 1, -1]])


def test_a_group_is_active_where_one_of_its_coefficients_is() -> None:
    assert active_groups(PATH, SIZES).tolist() == [
        [False, False, False],
        [True, False, False],
        [True, True, True],
        [False, True, True],
    ]


def test_groups_enter_in_the_order_of_the_path_and_the_cheaper_first() -> None:
    assert entry_order(PATH, SIZES, COSTS) == [0, 1, 2]
    assert entry_order(PATH[:2], SIZES, COSTS) == [0]


def test_a_curve_has_the_best_point_within_each_cost() -> None:
    S, q = np.eye(5), np.array([0.0, 0.5, 1.0, 1.0, -1.0])
    assert explained(PATH, S, q).tolist() == [0.0, 0.125, 1.125, 1.5]
    line = line_of(PATH, SIZES, COSTS, S, q)
    assert line.costs.tolist() == [0.0, 0.0, 3.0, 6.0, 9.0]
    assert line.explained.tolist() == [0.0, 0.0, 0.125, 1.5, 1.5]


@pytest.fixture
def small(tmp_path: Path) -> SyntheticProblem:
    return make_problem(400, 30, 4, tmp_path)


def test_a_synthetic_problem_is_standardised_and_its_groups_cover_all_columns(small: SyntheticProblem) -> None:
    np.testing.assert_allclose(np.diagonal(small.S), 1.0)
    np.testing.assert_allclose(small.S, np.load(small.folder / "S.npy"))
    assert small.sizes.sum() == 30
    assert len(small.groups.features) == 30
    assert small.name == "n=400 D=30, 8 groups of 3"


def test_no_group_is_active_from_the_largest_penalty_on(small: SyntheticProblem) -> None:
    ends = np.cumsum(small.sizes)
    norms = [np.linalg.norm(small.q[end - size : end]) for end, size in zip(ends, small.sizes, strict=True)]
    assert max(
        norm - small.penalty(1.0) * cost for norm, cost in zip(norms, small.costs, strict=True)
    ) == pytest.approx(0)
    assert small.penalty(0.1) == pytest.approx(small.penalty(1.0) / 10)


def test_our_timed_path_explains_what_the_library_reports(small: SyntheticProblem) -> None:
    problem = {"S": small.S, "q": small.q, "rows": len(small.y), "sizes": small.sizes, "costs": small.costs}
    gram = gram_of(problem)
    found = sequence(gram, small.groups, "fr", ALPHA)
    models = coefficients(gram, found)
    whole = np.zeros(30)
    whole[models.columns] = models.coef(models.steps)[:, 0]
    assert explained(whole[np.newaxis], small.S, small.q)[0] == pytest.approx(found.explained_variance[-1], abs=1e-4)
    order = [step.adds[-1] for step in found.steps]
    np.testing.assert_allclose(refitted(order, gram, small.groups, ALPHA).explained, found.explained_variance)
