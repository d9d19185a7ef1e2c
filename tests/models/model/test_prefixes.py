"""The k-th prefix is the ridge regression on its columns and nothing else, in raw units."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.groups import FeatureGroups, load_groups, singletons
from anytime.model.prefixes import BATCH, PrefixModels, prefix_models, staircase
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection import FactoredOrder, sequence
from anytime.types import Float
from models import literal
from models.properties import quick


@dataclass(frozen=True, eq=False)
class Learned:
    """A table and the prefix models of a sequence learned from it."""

    X: Float = field(repr=False)
    Y: Float = field(repr=False)
    weights: Float | None = field(repr=False)
    alpha: float
    order: FactoredOrder = field(repr=False)
    models: PrefixModels = field(repr=False)

    def columns(self, prefix: int) -> list[int]:
        columns: list[int] = self.order.columns[: self.order.ends[prefix]].tolist()
        return columns

    def directly(self, prefix: int) -> Float:
        """Predictions of the training rows by a fresh solve on the prefix's columns."""
        Xs, Ys = literal.standardise(self.X, self.Y, self.weights)
        W = literal.Rows(Xs, Ys, self.alpha, self.weights).coefficients(self.columns(prefix))
        w = np.ones(len(self.X)) if self.weights is None else self.weights
        mean = np.average(self.Y, axis=0, weights=w)
        return mean + Xs[:, self.columns(prefix)] @ W * np.sqrt(np.average((self.Y - mean) ** 2, axis=0, weights=w))


def learned(
    X: Float, Y: Float, groups: FeatureGroups, alpha: float = 1e-3, weights: Float | None = None, method: str = "fr"
) -> Learned:
    gram = Gram.of(moments_of(X, Y, weights))
    order = sequence(gram, groups, "omp" if method == "omp" else "fr", alpha)
    W = staircase(order.state.factor, order.state.z, order.ends)
    return Learned(X, Y, weights, alpha, order, prefix_models(gram, order.columns, order.ends, W))


def grouped(sizes: list[int], rng: np.random.Generator) -> FeatureGroups:
    names = iter(range(sum(sizes)))
    content = [
        {"name": f"g{g}", "features": [f"x{next(names)}" for _ in range(size)], "cost": float(rng.integers(1, 9))}
        for g, size in enumerate(sizes)
    ]
    return load_groups({"groups": content})


@st.composite
def cases(draw: st.DrawFn) -> Learned:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(any))
    D, P, n = sum(sizes), draw(st.integers(1, 3)), draw(st.integers(30, 80))
    X = rng.normal(size=(n, D)) @ (np.eye(D) + 0.3 * rng.normal(size=(D, D))) * 10.0 ** rng.integers(-2, 3, D) + 5.0
    Y = rng.normal(size=(n, P)) * [1.0, 50.0, 0.01][:P] + X[:, :1] + 7.0
    weights = rng.uniform(0.1, 3.0, n) if draw(st.booleans()) else None
    alpha = draw(st.sampled_from((0.0, 1e-7, 1e-3, 1.0)))
    return learned(X, Y, grouped(sizes, rng), alpha, weights, draw(st.sampled_from(("fr", "omp"))))


@quick(max_examples=80)
@given(cases())
def test_each_prefix_is_the_direct_solve_on_its_columns(case: Learned) -> None:
    scale = case.Y.std(axis=0)
    for prefix in range(case.models.steps + 1):
        assert np.abs((case.models.predict(case.X, prefix) - case.directly(prefix)) / scale).max() < 1e-7


@quick(max_examples=60)
@given(cases())
def test_all_prefixes_at_once_are_the_prefixes_one_by_one(case: Learned) -> None:
    together = case.models.predict_all(case.X)
    assert together.shape == (case.models.steps + 1, *case.Y.shape)
    for prefix, found in enumerate(together):
        np.testing.assert_allclose(found, case.models.predict(case.X, prefix), rtol=1e-10, atol=1e-9)


@quick(max_examples=40)
@given(cases())
def test_only_the_columns_that_a_prefix_has_are_kept_and_read(case: Learned) -> None:
    assert case.models.packed.shape == (case.models.ends.sum(), case.Y.shape[1])
    for prefix in range(case.models.steps + 1):
        others = np.setdiff1d(np.arange(case.X.shape[1]), case.columns(prefix))
        changed = case.X.copy()
        changed[:, others] = np.nan
        np.testing.assert_array_equal(case.models.predict(changed, prefix), case.models.predict(case.X, prefix))


def test_columns_that_add_nothing_have_coefficient_zero_and_predictions_are_those_without_them() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8))
    X[:, 3], X[:, 5], X[:, 7] = X[:, 0], 0.1, X[:, 1] - 2 * X[:, 2]
    Y = X @ rng.normal(size=(8, 2)) + rng.normal(size=(60, 2))
    case = learned(X, Y, singletons([f"x{j}" for j in range(8)]), alpha=0.0)
    dropped = case.order.columns[case.order.state.factor.dropped].tolist()
    assert len(dropped) == 2
    zero = case.order.columns[~case.models.coef(case.models.steps).any(axis=1)].tolist()
    assert sorted(zero) == sorted([*dropped, 5])
    expected = np.column_stack([X[:, :3], X[:, [4, 6]], np.ones(60)])
    direct = expected @ np.linalg.lstsq(expected, Y)[0]
    np.testing.assert_allclose(case.models.predict(X, case.models.steps), direct, atol=1e-9)


@pytest.mark.parametrize("responses", [1, 2, 3])
def test_more_prefixes_than_a_batch_are_solved_alike(responses: int) -> None:
    rng = np.random.default_rng(1)
    D = BATCH + 20
    X = rng.normal(size=(D + 200, D))
    Y = X @ rng.normal(size=(D, responses)) + rng.normal(size=(len(X), responses))
    case = learned(X, Y, singletons([f"x{j}" for j in range(D)]), alpha=1e-2)
    together = case.models.predict_all(X)
    edges = {BATCH // responses * k + d for k in (1, 2, 3) for d in (-1, 0, 1)}
    for prefix in sorted(k for k in {0, 1, D, *edges} if k <= D):
        np.testing.assert_allclose(together[prefix], case.directly(prefix), atol=1e-8 * np.abs(Y).max())
