"""Why groups are whitened: repeated good features earn a group nothing, and its basis does not matter (section 2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

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


# Repeated features.


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


# The first step.


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
