"""Why groups are whitened: repeated good features earn a group nothing, and its basis does not matter (section 2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.groups import FeatureGroups
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection import sequence
from anytime.selection.criteria import CRITERIA
from anytime.selection.least_squares import Sweep
from anytime.types import Float, Method
from models.likelihood_problems import METHODS
from models.problems import grouped, plain_groups
from models.properties import quick

WHITENED: tuple[Method, ...] = ("omp", "fr")

ROWS = 400


def equations(blocks: Sequence[Float], y: Float) -> Gram:
    return Gram.of(moments_of(np.column_stack(blocks), y))


def scores(blocks: Sequence[Float], y: Float, method: Method, alpha: float = 0.0) -> Float:
    """Score of each group before anything is selected, not divided by costs."""
    gram = equations(blocks, y)
    return CRITERIA[method]().on(gram).scores(Sweep(gram, of_cost_one(blocks).slices, alpha, blocks=True))


def of_cost_one(blocks: Sequence[Float]) -> FeatureGroups:
    return grouped([block.shape[1] for block in blocks], [1.0] * len(blocks))


def first(blocks: Sequence[Float], y: Float, method: Method, alpha: float = 0.0) -> int:
    return sequence(equations(blocks, y), of_cost_one(blocks), method, alpha).steps[0].adds[0]


def repeated_against_complementary(copies: int) -> tuple[list[Float], Float]:
    """A good feature many times, and two features that tell more, each its own part."""
    rng = np.random.default_rng(0)
    parts = rng.normal(size=(ROWS, 2))
    y = parts.sum(axis=1) + 0.3 * rng.normal(size=ROWS)
    good = y + 1.2 * y.std() * rng.normal(size=ROWS)
    return [np.repeat(good[:, np.newaxis], copies, axis=1), parts], y


# Repeated features.


@pytest.mark.parametrize("copies", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("method", WHITENED)
def test_whitened_scores_do_not_change_with_the_number_of_copies(method: Method, copies: int) -> None:
    once = scores(*repeated_against_complementary(1), method)
    np.testing.assert_allclose(scores(*repeated_against_complementary(copies), method), once, rtol=1e-9)
    assert first(*repeated_against_complementary(copies), method) == 1


@pytest.mark.parametrize(("copies", "winner"), [(1, 1), (2, 1), (3, 0), (5, 0), (20, 0)])
def test_without_whitening_each_copy_adds_its_score_again_until_the_copies_win(copies: int, winner: int) -> None:
    once = scores(*repeated_against_complementary(1), "no-whiten")
    found = scores(*repeated_against_complementary(copies), "no-whiten")
    np.testing.assert_allclose(found, once * [copies, 1], rtol=1e-9)
    assert first(*repeated_against_complementary(copies), "no-whiten") == winner


@pytest.mark.parametrize("method", WHITENED)
@quick(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(1, 4), min_size=2, max_size=5), copies=st.integers(1, 5)
)
def test_copies_within_a_group_change_neither_order_nor_gains(
    method: Method, seed: int, sizes: list[int], copies: int
) -> None:
    blocks, y = correlated(seed, sizes)
    assert_same_sequence(blocks, [np.repeat(block, copies, axis=1) for block in blocks], y, method)


# Features that tell something only together.


@pytest.mark.parametrize(("method", "expected"), [("omp", 0), ("fr", 0), ("single", 1)])
def test_single_passes_over_a_group_of_many_small_parts(method: Method, expected: int) -> None:
    rng = np.random.default_rng(1)
    parts = rng.normal(size=(ROWS, 9))
    y = parts.sum(axis=1)
    lone = y + 1.3 * y.std() * rng.normal(size=ROWS)
    blocks = [parts, lone[:, np.newaxis]]
    gains = scores(blocks, y, "fr")
    assert gains[0] > 2 * gains[1]
    assert first(blocks, y, method) == expected


# The basis of a group.


def correlated(seed: int, sizes: Sequence[int]) -> tuple[list[Float], Float]:
    """Groups of features that share much, within and across, and a response of some of them."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(ROWS, 1))
    blocks = [rng.normal(size=(ROWS, d)) + rng.normal(size=(ROWS, 1)) + 0.5 * common for d in sizes]
    X = np.column_stack(blocks)
    return blocks, X @ rng.normal(size=X.shape[1]) + rng.normal(size=ROWS)


def invertible(rng: np.random.Generator, d: int) -> Float:
    """A linear map that stretches by no more than a hundred."""
    U, V = (np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(2))
    A: Float = U @ np.diag(10.0 ** rng.uniform(-1, 1, d)) @ V
    return A


def assert_same_sequence(blocks: Sequence[Float], others: Sequence[Float], y: Float, method: Method) -> None:
    """The same groups in the same order, each prefix explaining as much, without penalty."""
    one, other = (sequence(equations(b, y), of_cost_one(b), method, 0.0) for b in (blocks, others))
    assert [step.adds for step in one.steps] == [step.adds for step in other.steps]
    np.testing.assert_allclose(one.explained_variance, other.explained_variance, atol=1e-8)


@pytest.mark.parametrize("method", WHITENED)
@quick(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(1, 5), min_size=2, max_size=6))
def test_invertible_maps_within_groups_change_neither_order_nor_gains(
    method: Method, seed: int, sizes: list[int]
) -> None:
    blocks, y = correlated(seed, sizes)
    rng = np.random.default_rng(seed)
    mapped = [block @ invertible(rng, block.shape[1]) for block in blocks]
    np.testing.assert_allclose(scores(mapped, y, method), scores(blocks, y, method), rtol=1e-7, atol=1e-10)
    assert_same_sequence(blocks, mapped, y, method)


@quick(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_smaller_the_penalty_the_less_forward_regression_minds_the_basis(seed: int) -> None:
    blocks, y = correlated(seed, [3, 4, 2])
    rng = np.random.default_rng(seed)
    mapped = [block @ invertible(rng, block.shape[1]) for block in blocks]
    gaps = [np.abs(scores(mapped, y, "fr", alpha) - scores(blocks, y, "fr", alpha)).max() for alpha in (1e-2, 1e-5, 0)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert (np.array(gaps[1:]) < [1e-2, 1e-9]).all()


def test_another_basis_of_the_same_features_changes_the_choice_without_whitening() -> None:
    rng = np.random.default_rng(2)
    parts = rng.normal(size=(ROWS, 2))
    y = parts @ [1.0, 0.2] + 0.5 * rng.normal(size=ROWS)
    other = y[:, np.newaxis] + 0.4 * y.std() * rng.normal(size=(ROWS, 1))
    near = parts @ np.array([[1.0, 1.0], [0.0, 0.1]])  # the first, and next to a copy of it
    chosen: dict[str, list[int]] = {
        method: [first([basis, other], y, method) for basis in (parts, near)] for method in METHODS
    }
    assert chosen["no-whiten"] == [1, 0]
    for method in WHITENED:
        assert chosen[method][0] == chosen[method][1]


# The first step.


@quick(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_before_anything_is_selected_omp_sees_twice_the_gain_of_forward_regression(seed: int, sizes: list[int]) -> None:
    blocks, y = correlated(seed, sizes)
    np.testing.assert_allclose(scores(blocks, y, "omp"), 2 * scores(blocks, y, "fr"), rtol=1e-7, atol=1e-12)


@quick(max_examples=80)
@given(
    groups=plain_groups(costs=(0.5, 1, 2, 3, 5, 8)),
    seed=st.integers(0, 2**32 - 1),
    alpha=st.sampled_from([0.0, 1e-5, 1e-2, 1.0]),
)
def test_no_criterion_gains_more_for_the_cost_of_its_first_step_than_forward_regression(
    groups: FeatureGroups, seed: int, alpha: float
) -> None:
    blocks, y = correlated(seed, [len(group.features) for group in groups.groups])
    gram = equations(blocks, y)
    gains = {}
    for method in METHODS:
        step = sequence(gram, groups, method, alpha).steps[0]
        gains[method] = step.explained_variance / step.cost
    assert gains["fr"] >= max(gains.values()) * (1 - 1e-8)
