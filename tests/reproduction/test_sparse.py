"""Sparse orders groups by their entry on the cost-weighted Group Lasso path, and refits them."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.errors import TrainingError
from anytime.groups import FeatureGroups
from anytime.model.prefixes import staircase
from anytime.moments.accumulate import fold_moments_of, moments_of
from anytime.moments.moments import Gram
from anytime.selection import Rule, sequence, sequencer
from anytime.training.fit import fit, guarantee
from anytime.training.options import Options
from anytime.types import Float
from anytime_reproduction.lasso import sparse
from anytime_reproduction.lasso.sparse import shrunken_curve, sparse_entries
from models import literal
from models.problems import any_groups, grouped, messy_table
from models.properties import quick
from models.refusals import assert_refused


def orthonormal(q: list[float]) -> Gram:
    """Uncorrelated columns with these correlations to one response: group g enters at |q_g|/c_g."""
    D = len(q)
    ones, zeros = np.ones(D), np.zeros(D)
    response = np.array(q)[:, np.newaxis]
    constant = np.zeros(D, dtype=np.bool_)
    return Gram(np.eye(D), response, np.ones(1), zeros, ones, np.zeros(1), np.ones(1), constant, 100.0)


def chosen(steps: tuple[tuple[int, ...], ...]) -> list[int]:
    return [adds[-1] for adds in steps]


def table(seed: int, groups: FeatureGroups, rows: int = 60, P: int = 1) -> tuple[Float, Float]:
    rng = np.random.default_rng(seed)
    X = messy_table(rng, rows, len(groups.features), ["constant", "binary", "copy", "sum"], 0.3, 0.0)
    return X, X @ rng.normal(size=(X.shape[1], P)) + rng.normal(size=(rows, P))


# The order


def test_uncorrelated_groups_enter_by_gradient_per_cost() -> None:
    # |q_g|/c_g: .3, .5/2 = .25, .6/2 = .3 less a little, sqrt(.09 + .16)/1 = .5
    gram = orthonormal([0.3, 0.5, 0.59, 0.3, 0.4])
    groups = grouped([1, 1, 1, 2], [1, 2, 2, 1])
    assert chosen(sparse_entries(gram, groups).steps) == [3, 0, 2, 1]
    # Without costs .59, and .5 twice, in the order of the file.
    assert chosen(sparse_entries(gram, groups, cost_blind=True).steps) == [2, 1, 3, 0]


def test_groups_that_enter_between_two_penalties_are_told_apart() -> None:
    ratios = 0.1 * (1 + 1e-5 * np.arange(8.0))[::-1]
    order = np.random.default_rng(0).permutation(8)
    gram, groups = orthonormal([0.5, *ratios[order]]), grouped([1] * 9, [1] * 9)
    assert chosen(sparse_entries(gram, groups).steps) == [0, *(1 + np.argsort(-ratios[order])).tolist()]


def test_equal_groups_enter_by_cost_and_then_by_the_groups_file() -> None:
    groups = grouped([1, 1, 1, 1], [2, 1, 1, 2])
    assert chosen(sparse_entries(orthonormal([0.4, 0.2, 0.2, 0.4]), groups).steps) == [1, 2, 0, 3]


def test_what_never_enters_comes_last_by_how_near_it_came() -> None:
    rng = np.random.default_rng(1)
    one, two = rng.normal(size=(80, 2)), rng.normal(size=(80, 2))
    X = np.hstack([one, one, two, two])  # the dearer copies never enter
    gram = Gram.of(moments_of(X, one[:, :1] + 0.5 * two[:, :1] + rng.normal(size=(80, 1))))
    entries = sparse_entries(gram, grouped([2, 2, 2, 2, 0], [1, 3, 1, 2, 1]))
    assert entries.path.active.any(axis=0).tolist() == [True, False, True, False, False]
    assert chosen(entries.steps) == [0, 2, 3, 1, 4]


def test_free_groups_go_first_and_what_becomes_free_goes_at_once() -> None:
    # Group 3 and 5, which requires it, are free; 4 enters at .9/(5 + 2) and pays the visit; then 2 is free, too.
    groups = grouped([1, 0, 1, 1, 1, 1], [1, 5, 0, 0, 2, 0], {2: [1], 4: [1], 5: [3]})
    gram = orthonormal([0.1, 0.6, 0.5, 0.9, 0.01])
    assert sparse_entries(gram, groups).steps == ((3,), (5,), (1, 4), (2,), (0,))
    assert sparse_entries(gram, groups, cost_blind=True).steps == ((1, 4), (2,), (3,), (0,), (5,))


def test_a_group_enters_by_what_it_costs_with_all_it_requires() -> None:
    # Ratios .5/1, .6/(10 + 1), .3/2; the visit is paid with the first test.
    groups = grouped([1, 0, 1, 1], [1, 10, 1, 2], {2: [1]})
    assert sparse_entries(orthonormal([0.5, 0.6, 0.3]), groups).steps == ((0,), (3,), (1, 2))


@quick(max_examples=20)
@given(any_groups, st.integers(0, 2**32 - 1), st.booleans(), st.integers(1, 2))
def test_steps_take_every_group_once_after_what_it_requires(
    groups: FeatureGroups, seed: int, cost_blind: bool, P: int
) -> None:
    found = sequence(Gram.of(moments_of(*table(seed, groups, P=P))), groups, "sparse", 1e-3, cost_blind=cost_blind)
    taken: set[int] = set()
    for step in found.steps:
        for group in step.adds:
            assert set(groups.prerequisites[group]) <= taken
            taken.add(group)
        assert step.cost == pytest.approx(groups.costs[list(step.adds)].sum())
    assert sorted(g for step in found.steps for g in step.adds) == list(range(len(groups)))
    assert (np.diff(found.explained_variance) >= -1e-12).all()


# The coefficients


@quick(max_examples=10)
@given(any_groups, st.integers(0, 2**32 - 1))
def test_every_prefix_is_refitted_by_ridge_regression(groups: FeatureGroups, seed: int) -> None:
    X, Y = table(seed, groups, P=2)
    found = sequence(Gram.of(moments_of(X, Y)), groups, "sparse", 0.01)
    rows = literal.Rows(*literal.standardise(X, Y), 0.01)
    W = staircase(found.state.factor, found.state.z, found.ends)
    for k, end in enumerate(found.ends):
        columns = found.columns[:end].tolist()
        np.testing.assert_allclose(
            rows.X[:, columns] @ W[k, :end], rows.X[:, columns] @ rows.coefficients(columns), atol=1e-9
        )
        assert found.explained_variance[k] == pytest.approx(rows.explained_variance(columns), abs=1e-9)


def test_the_order_is_the_same_at_every_penalty_and_learned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = grouped([2, 1, 3, 1], [1, 2, 3, 1])
    X, Y = table(7, groups, rows=90)
    parts = fold_moments_of(X, Y, folds=np.arange(90) % 3, count=3)
    learned = Mock(side_effect=sparse_entries)
    monkeypatch.setattr(sparse, "sparse_entries", learned)
    fitted = fit(parts, groups, Options(method="sparse", alpha="cv"))
    assert learned.call_count == 1
    assert fit(parts, groups, Options(method="sparse", alpha="cv", nested=True)).errors is not None
    assert learned.call_count == 1 + 1 + 3
    at = sequencer(fitted.gram, groups, Rule("sparse"))
    assert at(1e-7).columns.tolist() == at(10.0).columns.tolist() == fitted.sequence.columns.tolist()
    why = guarantee(fitted.gram, groups, fitted.options, fitted.alpha).why
    assert why == "the theorems cover fr and omp, not sparse"


def test_a_path_that_is_not_solved_orders_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "SUFFICIENT", -1.0)
    assert_refused(
        lambda: sparse_entries(orthonormal([0.5, 0.2]), grouped([1, 1], [1, 1])),
        "too large for a reliable order; choose another method",
        error=TrainingError,
    )


# The shrunken curve


def test_the_shrunken_curve_is_the_paths_own_weights_on_rows() -> None:
    groups = grouped([2, 0, 2, 3], [1, 4, 2, 3], {2: [1]})
    X, Y = table(3, groups, rows=80, P=2)
    train, test = (X[:50], Y[:50]), (X[50:], Y[50:])
    gram = Gram.of(moments_of(*train))
    path = sparse_entries(gram, groups).path
    costs, by_response = shrunken_curve(path, groups, gram.held_out_moments(moments_of(*test)))
    explained = by_response.sum(axis=1)
    Xs, Ys = (test[0] - gram.x_mean) / gram.x_scale, (test[1] - gram.y_mean) / gram.y_scale
    paid: set[int] = set()
    assert costs[0] == explained[0] == 0
    for k, w in enumerate(path.coef, start=1):
        for g in np.flatnonzero([np.any(w[columns]) for columns in groups.slices]).tolist():
            paid |= {g, *groups.prerequisites[g]}
        assert costs[k] == pytest.approx(sum(groups.costs[g] for g in paid))
        by_rows = 0.5 * (np.mean(Ys**2, axis=0) - np.mean((Ys - Xs @ w) ** 2, axis=0)).sum()
        assert explained[k] == pytest.approx(by_rows, abs=1e-9)
    assert (np.diff(costs) >= 0).all()


# As a method


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"doubling": True}, "does not support doubling; turn doubling off"),
        ({"family": "binomial"}, "supports family gaussian, not binomial"),
        ({"family": "poisson"}, "supports family gaussian, not poisson"),
    ],
)
def test_what_does_not_go_with_sparse_is_refused(options: dict[str, Any], message: str) -> None:
    assert_refused(lambda: Options(method="sparse", **options), message, error=TrainingError)
