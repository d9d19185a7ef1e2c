"""What is promised holds against the best of all sets, found by trying them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection import GroupOrder, sequence
from anytime.training.fit import guarantee
from anytime.training.guarantee import (
    bound,
    buys_no_group,
    doubling_bound,
    spectral_gamma,
    submodularity_ratio,
    subset_values,
)
from anytime.training.options import Options
from anytime.types import Float, Method
from models import literal
from models.present import present
from models.problems import SmallTable, grouped
from models.properties import quick

ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Problem(SmallTable):
    """A table of which the theory promises something."""

    def learned(self, method: Method, *, doubling: bool = False) -> GroupOrder:
        return sequence(self.gram, self.groups, method, self.alpha, doubling=doubling)

    def sets(self) -> dict[frozenset[int], float]:
        """F of every set of groups, each by a fit of its own."""
        rows = literal.Rows(*literal.standardise(self.X, self.Y), self.alpha)
        return literal.explained_variance_of_subsets(rows, self.groups)

    def cost(self, members: frozenset[int]) -> float:
        return literal.cost_of(self.groups, sorted(members))


HADAMARD = np.kron(np.kron([[1, 1], [1, -1]], [[1, 1], [1, -1]]), [[1, 1], [1, -1]]).astype(np.float64)


def correlated(rng: np.random.Generator, rows: int, width: int, kind: str) -> Float:
    """Columns that share much, hide each other, or repeat each other."""
    X = rng.normal(size=(rows, width))
    if kind == "common":
        X += rng.choice([0.5, 2.0, 5.0]) * rng.normal(size=(rows, 1))
    elif kind == "differences":
        for j in range(1, width):
            X[:, j] = X[:, j - 1] + rng.choice([0.1, 0.5]) * X[:, j]
    elif kind == "copies":
        for j in range(1, width):
            if rng.random() < 0.4:
                X[:, j] = X[:, rng.integers(0, j)] * rng.choice([-1.0, 1.0])
    return X


@st.composite
def problems(
    draw: st.DrawFn,
    costs: Sequence[float] = (0.0, 0.5, 1.0, 1.0, 2.0, 3.0, 8.0),
    alphas: Sequence[float] = (0.0, 1e-7, 1e-3, 0.1, 1.0),
    most: int = 6,
) -> Problem:
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=most))
    chosen = [draw(st.sampled_from(costs)) for _ in sizes]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, width, responses = draw(st.integers(20, 60)), sum(sizes), draw(st.integers(1, 2))
    X = correlated(rng, rows, width, draw(st.sampled_from(("plain", "common", "differences", "copies"))))
    signal = X @ (rng.normal(size=(width, responses)) * rng.integers(0, 2, size=(width, 1)))
    Y = signal + draw(st.sampled_from((0.01, 1.0))) * rng.normal(size=(rows, responses))
    return Problem(X, Y, grouped(sizes, chosen), draw(st.sampled_from(alphas)))


# Theorem 3.2.


@pytest.mark.parametrize("method", ["fr", "omp"])
def test_each_prefix_explains_the_promised_share_of_any_set(method: Method) -> None:
    @quick(max_examples=150)
    @given(problems())
    def check(problem: Problem) -> None:
        learned = problem.learned(method)
        gamma = present(guarantee(problem.gram, problem.groups, Options(method), problem.alpha).gamma)
        assert 0 <= gamma <= 1
        F = problem.sets()
        for K in {problem.cost(members) for members in F} - {0.0}:
            best = literal.brute_force_best(F, problem.groups.costs.tolist(), K)
            for B, explained in zip(learned.costs, learned.explained_variance, strict=True):
                assert explained >= bound(gamma, B, K) * best - ROUNDING

    check()


@quick(max_examples=80)
@given(problems())
def test_gamma_is_the_least_eigenvalue_once_the_groups_are_whitened(problem: Problem) -> None:
    assume(problem.alpha > 0)
    S = problem.gram.S
    C, D = S + problem.alpha * np.eye(len(S)), np.zeros_like(S)
    shares = []
    for columns in problem.groups.slices:
        D[columns, columns] = C[columns, columns]
        values = np.linalg.eigvalsh(S[columns, columns])
        shares += [s / (s + problem.alpha) for s in values if s > 1e-10 * values.max()]
    nu = min(shares) / max(shares)
    assume(min(np.linalg.eigvalsh(S[g, g]).min() for g in problem.groups.slices) > 1e-6)
    whole = np.linalg.eigvals(np.linalg.solve(D, C)).real.min()
    found = [spectral_gamma(problem.gram, problem.groups, method, problem.alpha) for method in ("fr", "omp")]
    assert found == pytest.approx([whole, nu * whole], abs=1e-6)


def test_copies_within_a_group_promise_no_less_and_copies_across_groups_without_penalty_nothing() -> None:
    X = np.random.default_rng(0).normal(size=(50, 3))
    plain, within, across = (
        spectral_gamma(Gram.of(moments_of(X[:, columns], X @ np.ones(3))), grouped(sizes, [1, 1]), "fr", 0.0)
        for columns, sizes in (([0, 1, 2], [1, 2]), ([0, 0, 1, 2], [2, 2]), ([0, 1, 0, 2], [2, 2]))
    )
    assert (within, across) == pytest.approx((plain, 0.0), abs=1e-9)


def test_constants_promise_no_less() -> None:
    X = np.random.default_rng(1).normal(size=(50, 3))
    one, other = Gram.of(moments_of(X, X[:, 0])), Gram.of(moments_of(np.column_stack([X, np.ones(50)]), X[:, 0]))
    expected = spectral_gamma(one, grouped([1, 2], [1, 1]), "fr", 0.1)
    for groups in (grouped([1, 3], [1, 1]), grouped([1, 2, 1], [1, 1, 1])):
        assert spectral_gamma(other, groups, "fr", 0.1) == pytest.approx(expected)


# Theorem 4.3.


def within(learned: GroupOrder, budget: float) -> float:
    """F of the longest prefix within a budget."""
    return float(learned.explained_variance[np.flatnonzero(learned.costs <= budget * (1 + ROUNDING))[-1]])


def telling_budgets(problem: Problem, learned: GroupOrder) -> list[float]:
    """Budgets at which a bound can fail first: where a set of a quarter becomes possible, and before each step."""
    sets = {4 * problem.cost(members) for members in problem.sets()}
    before = {float(cost) * (1 - 1e-6) for cost in learned.costs}
    return sorted(sets | before | {float(cost) for cost in learned.costs})


@quick(max_examples=300)
@given(problems(costs=(0.0, 1.0, 1.0, 1.0, 1.5, 2.0, 2.0, 3.0, 4.0, 6.0)))
def test_doubling_explains_the_promised_share_of_any_set_of_a_quarter_of_any_budget(problem: Problem) -> None:
    learned = problem.learned("fr", doubling=True)
    found = guarantee(problem.gram, problem.groups, Options(), problem.alpha, doubling_until=learned.doubling_until)
    assert found.doubling_until == learned.doubling_until
    share = doubling_bound(present(found.doubling_gamma))
    positive = problem.groups.costs[problem.groups.costs > 0]
    capable = float(learned.costs[found.doubling_until]) if found.doubling_until is not None else 0.0
    if len(positive):
        nothing = not any(0 < problem.cost(members) <= capable / 4 for members in problem.sets())
        assert buys_no_group(learned.costs, found.doubling_until or 0) == nothing
    F = problem.sets()
    for budget in telling_budgets(problem, learned):
        if len(positive) and positive.min() < budget <= capable:
            best = literal.brute_force_best(F, problem.groups.costs.tolist(), budget / 4)
            assert within(learned, budget) >= share * best - ROUNDING


def test_where_the_dearest_waits_too_long_the_promise_ends() -> None:
    X = np.random.default_rng(2).normal(size=(50, 3))
    problem = Problem(X, X @ [[0.1], [0.1], [9.0]], grouped([1, 1, 1], [1.0, 1.0, 50.0]), 1e-5)
    learned = problem.learned("fr", doubling=True)
    found = guarantee(problem.gram, problem.groups, Options(), 1e-5, doubling_until=learned.doubling_until)
    assert (learned.doubling_until, found.doubling_until, found.gamma) == (2, 2, None)


# Every set, and Eq. 9.


@quick(max_examples=100)
@given(problems())
def test_the_value_of_every_set_is_that_of_its_own_fit(problem: Problem) -> None:
    found = subset_values(problem.gram, problem.groups, problem.alpha)
    assert found.shape == (2 ** len(problem.groups),)
    for members, F in problem.sets().items():
        assert found[sum(1 << g for g in members)] == pytest.approx(F, abs=1e-8)


def test_groups_without_features_are_worth_nothing() -> None:
    X = np.random.default_rng(3).normal(size=(30, 2))
    found = subset_values(Gram.of(moments_of(X, X[:, 0])), grouped([1, 0, 1], [1, 1, 1]), 0.1)
    assert found[0] == 0.0
    np.testing.assert_allclose(found[[2, 3, 6, 7]], found[[0, 1, 4, 5]])


@quick(max_examples=60)
@given(problems(alphas=(1e-3, 0.1, 1.0), most=4))
def test_the_ratio_is_that_of_plain_enumeration(problem: Problem) -> None:
    F = problem.sets()
    gains = [F[b] - F[a] for a in F for b in F if a < b and len(b - a) == 1]
    # Gains that only rounding tells from zero have no ratio.
    assume(min((gain for gain in gains if gain > 1e-14), default=1.0) > 1e-7)
    found = submodularity_ratio(problem.gram, problem.groups, problem.alpha)
    assert found == pytest.approx(literal.submodularity_ratio(F), rel=1e-5, abs=1e-7)


def test_columns_that_help_only_together_have_a_small_ratio_and_orthogonal_ones_one() -> None:
    rng = np.random.default_rng(4)
    hidden, noise = rng.normal(size=2000), rng.normal(size=2000)
    gram = Gram.of(moments_of(np.column_stack([hidden + 10 * noise, noise]), hidden))
    assert submodularity_ratio(gram, grouped([1, 1], [1, 1]), 1e-9) < 0.02
    gram = Gram.of(moments_of(HADAMARD[:, 1:], HADAMARD @ np.arange(8.0)))
    assert submodularity_ratio(gram, grouped([1, 2, 3, 1], [1, 1, 1, 1]), 0.1) == pytest.approx(1.0)


# Where nothing is promised.


def small() -> Problem:
    X = np.random.default_rng(5).normal(size=(40, 3))
    return Problem(X, X @ np.ones((3, 1)), grouped([1, 2], [1.0, 2.0]), 1e-3)


@pytest.mark.parametrize(
    ("options", "requires", "until", "why"),
    [
        ({"method": "single"}, {}, None, "single"),
        ({"method": "no-whiten"}, {}, None, "no-whiten"),
        ({"method": "omp", "cost_blind": True}, {}, None, "cost-blind"),
        ({"cost_blind": True}, {}, None, "cost-blind"),
        ({"method": "omp"}, {}, 1, "fr only"),
        ({}, {1: [0]}, None, "require"),
        ({"family": "poisson"}, {}, 1, "least squares"),
        ({"first": ("g0",)}, {}, 1, "the user chose the first groups"),
    ],
)
def test_where_the_theorems_do_not_reach_nothing_is_promised_and_it_says_why(
    options: dict[str, Any], requires: dict[int, list[int]], until: int | None, why: str
) -> None:
    groups = grouped([1, 2], [1.0, 2.0], requires)
    found = guarantee(small().gram, groups, Options(**options), 1e-3, doubling_until=until)
    assert (found.gamma, found.doubling_gamma, found.doubling_until) == (None, None, until)
    assert why in found.why


def test_the_ratio_of_many_groups_is_not_known_and_it_says_so() -> None:
    X = np.random.default_rng(6).normal(size=(60, 13))
    gram = Gram.of(moments_of(X, X[:, 0]))
    for count in (12, 13):
        sizes = [1] * (count - 1) + [14 - count]
        found = guarantee(gram, grouped(sizes, [1.0] * count), Options(), 1e-3, doubling_until=count)
        assert (found.doubling_gamma is None) == ("unknown" in found.why) == (count > 12)
        assert found.doubling_until == count


def test_what_is_promised_has_no_reason_against_it() -> None:
    problem = small()
    for until in (None, 2):
        assert guarantee(problem.gram, problem.groups, Options(), 1e-3, doubling_until=until).why == ""


# The shares.


def test_the_share_grows_with_the_budget_and_with_gamma() -> None:
    shares = [bound(1.0, 1.0, 1.0), bound(0.5, 3.0, 2.0), doubling_bound(1.0)]
    assert shares == pytest.approx(1 - np.exp([-1.0, -0.75, -0.5]))
    assert (bound(0.5, 0.0, 2.0), bound(0.0, 9.0, 2.0), doubling_bound(0.0)) == (0.0, 0.0, 0.0)
    for low, high in pairwise(np.linspace(0, 1, 11)):
        assert bound(low, 2.0, 3.0) < bound(high, 2.0, 3.0)
        assert doubling_bound(low) < doubling_bound(high)
