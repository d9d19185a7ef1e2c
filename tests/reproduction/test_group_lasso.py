"""The Group Lasso path: optima to the last digits, on moments alone, whatever the columns are like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st
from sklearn.linear_model import LassoLars

from anytime.errors import TrainingError
from anytime.groups import load_groups
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.types import Float
from anytime_reproduction.lasso import group_lasso
from anytime_reproduction.lasso.sparse import GroupLassoPath, _descent, group_lasso_path
from models import literal
from models.problems import messy_table
from models.properties import quick

GAP = 1e-12
"""What is promised of every gap, as a share of half the variance."""

KKT = 3e-6
"""Conditions follow the root of the gap: |b - b*|^2 <= 2 |S| (P - P*), and |S| is under 10 here."""


# The Group Lasso as the paper writes it, on the rows, by plain proximal gradients.


def paper_objective(
    X: Float, Y: Float, slices: Sequence[slice], weights: Sequence[float], lam: float, w: Float
) -> float:
    """|Y - Xw|^2 + lambda sum_j c_j |w_j|_F."""
    norms = [float(np.linalg.norm(w[columns])) for columns in slices]
    return float(np.sum((Y - X @ w) ** 2) + lam * sum(c * norm for c, norm in zip(weights, norms, strict=True)))


def violation(S: Float, q: Float, slices: Sequence[slice], weights: Sequence[float], mu: float, w: Float) -> float:
    """How far w is from the conditions of an optimum, in the scale of the mean loss.

    q_g - S_g w is mu c_g w_g/|w_g| where w_g is not zero, and at most as long elsewhere.
    """
    b, worst = q - S @ w, 0.0
    for columns, c in zip(slices, weights, strict=True):
        norm = np.linalg.norm(w[columns])
        if norm > 0:
            worst = max(worst, float(np.linalg.norm(b[columns] - mu * c * w[columns] / norm)))
        else:
            worst = max(worst, float(np.linalg.norm(b[columns])) - mu * c)
    return worst


@dataclass(frozen=True, eq=False)
class Case:
    """Standardised rows in groups with weights."""

    X: Float
    Y: Float
    slices: tuple[slice, ...]
    weights: Float

    @property
    def gram(self) -> Gram:
        return Gram.of(moments_of(self.X, self.Y))

    def objective(self, mu: float, w: Float) -> float:
        """P(w) in the scale of the mean loss, from the rows."""
        n = len(self.X)
        return paper_objective(self.X, self.Y, self.slices, self.weights.tolist(), 2 * n * mu, w) / (2 * n)

    def path(self, **options: float) -> GroupLassoPath:
        return group_lasso_path(self.gram, self.slices, self.weights, **options)  # type: ignore[arg-type]


def slices_of(sizes: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(end - size, end) for end, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True))


def noise(rng: np.random.Generator, weights: list[float]) -> Case:
    """Three groups of two columns, which explain nothing."""
    X, Y = literal.standardise(rng.normal(size=(50, 6)), rng.normal(size=(50, 1)))
    return Case(X, Y, slices_of([2, 2, 2]), np.array(weights))


@st.composite
def cases(draw: st.DrawFn, messy: bool = True) -> Case:
    """Small problems: with duplicate, negated, summed and constant columns, free groups, groups without columns."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(0 if messy else 1, 4), min_size=1, max_size=7).filter(any))
    costs: list[float] = [0.0, 0.5, 1.0, 1.0, 3.0, 100.0] if messy else [0.5, 1.0, 3.0]
    weights = np.array([draw(st.sampled_from(costs)) for _ in sizes])
    kinds = ["constant", "binary", "copy", "negated", "sum"] if messy else ["binary"]
    rows = draw(st.sampled_from([10, 40] if messy else [40]))
    X = messy_table(rng, rows, sum(sizes), kinds, 0.5, 0.0)
    P = draw(st.integers(1, 3))
    Y = X @ rng.normal(size=(X.shape[1], P)) * rng.choice([0.0, 1.0], p=[0.1, 0.9]) + rng.normal(size=(rows, P))
    Xs, Ys = literal.standardise(X, Y)
    return Case(Xs, Ys, slices_of(sizes), weights)


@quick(max_examples=60)
@given(cases())
def test_every_penalty_is_solved_to_its_optimum(case: Case) -> None:
    gram, path = case.gram, case.path(count=12, smallest=1e-4)
    assert path.reached.all()
    assert path.target == pytest.approx(GAP * 0.5 * gram.yy.sum())
    assert np.isfinite(path.coef).all()
    scale = np.sqrt(gram.yy.sum())
    for mu, w in zip(path.mu, path.coef, strict=True):
        assert violation(gram.S, gram.q, case.slices, case.weights.tolist(), float(mu), w) <= KKT * scale


@quick(max_examples=40)
@given(cases(), st.integers(0, 2**32 - 1), st.floats(0.01, 1.5))
def test_the_gap_bounds_what_is_missing_to_the_optimum(case: Case, seed: int, share: float) -> None:
    descent = _descent(case.gram, case.slices, case.weights)
    rng = np.random.default_rng(seed)
    mu = share * descent.largest() or 1.0
    best = case.objective(mu, descent.all_columns(descent.at(mu).w))
    w = rng.normal(size=descent.q.shape) * rng.choice([0.0, 0.01, 1.0])
    missing = case.objective(mu, descent.all_columns(w)) - best
    assert descent.gap(w, descent.q - descent.S @ w, mu) >= missing - 1e-11


@quick(max_examples=40)
@given(cases())
def test_all_is_zero_at_the_first_penalty_and_something_is_not_just_below(case: Case) -> None:
    first = case.path(count=1)
    free = (case.weights == 0) & np.array([s.stop > s.start for s in case.slices])
    assert (first.active[0] == free).all()
    if first.mu[0] > 1e-12:  # else nothing explains anything that the free groups leave
        assert (group_lasso_path(case.gram, case.slices, case.weights, mu=[0.99 * first.mu[0]]).active[0] & ~free).any()


def test_groups_of_one_are_the_lasso_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 30)) @ (np.eye(30) + 0.3 * rng.normal(size=(30, 30)))
    X, Y = literal.standardise(X, X[:, :1] - X[:, 3:4] + rng.normal(size=(80, 1)))
    path = Case(X, Y, slices_of([1] * 30), np.ones(30)).path(count=20, smallest=1e-3)
    for mu, w in zip(path.mu[1:], path.coef[1:], strict=True):
        lasso = LassoLars(alpha=mu, fit_intercept=False).fit(X, Y[:, 0])  # solves directly, without a tolerance
        np.testing.assert_allclose(w[:, 0], lasso.coef_, rtol=0, atol=1e-8)


@quick(max_examples=15)
@given(case=cases())
def test_conjugate_gradients_lead_to_the_same_optima(case: Case) -> None:
    path = case.path(count=8, smallest=1e-3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_lasso, "DIRECT", 0)
        other = case.path(count=8, smallest=1e-3)
    assert other.reached.all()
    np.testing.assert_allclose(case.X @ other.coef, case.X @ path.coef, rtol=0, atol=1e-5)


@pytest.mark.parametrize("response", [np.zeros(20), np.tile([1.0, -1.0], 10)])
def test_where_nothing_explains_anything_the_path_is_one_penalty(response: Float) -> None:
    X = np.repeat(np.array([1.0, -1.0]), 10)[:, np.newaxis]  # orthogonal to the second response
    path = Case(X, response[:, np.newaxis], slices_of([1]), np.ones(1)).path()
    assert path.mu.tolist() == [0.0]
    assert path.reached.all()
    assert not path.coef.any()


def test_a_gap_that_is_not_reached_is_told() -> None:
    path = noise(np.random.default_rng(5), [1.0, 1.0, 1.0]).path(count=3, smallest=0.1, rounds=0)
    assert path.reached.tolist() == [True, False, False]
    assert (path.gaps[1:] > path.target).all()


@pytest.mark.parametrize(
    ("weights", "mu", "said"),
    [
        *(
            (weights, [0.1], "expected 2 finite numbers, 0 or more")
            for weights in ([1], [1, -1], [1, np.nan], [1, np.inf])
        ),
        *(([1, 1], mu, "expected penalties above 0") for mu in ([0.0], [-1.0], [np.nan], [0.1, 0.0], [])),
    ],
)
def test_weights_and_penalties_that_are_none_are_refused(weights: list[float], mu: list[float], said: str) -> None:
    gram = Gram.of(moments_of(np.eye(4)[:, :2], np.arange(4.0)[:, np.newaxis]))
    with pytest.raises(TrainingError, match=said):
        group_lasso_path(gram, slices_of([1, 1]), np.array(weights, dtype=np.float64), mu=mu)


@pytest.mark.parametrize(
    ("name", "file", "target"),
    [("mq2008", "data", "relevance"), ("kddcup99", "test", "attack"), ("yahoo_sample", "train", "relevance")],
)
def test_real_tables_are_solved_at_every_penalty(shared_data: Path, name: str, file: str, target: str) -> None:
    groups = load_groups(shared_data / name / "groups.json")
    table = pq.read_table(shared_data / name / f"{file}.parquet", columns=[*groups.features, target]).slice(0, 20_000)
    X = np.column_stack([table[feature].to_numpy() for feature in groups.features]).astype(np.float64)
    gram = Gram.of(moments_of(X, table[target].to_numpy().astype(np.float64)[:, np.newaxis]))
    # The smallest gap that rounding allows here is 2e-12 under the oldest kernel, and 4e-13 under newer ones.
    path = group_lasso_path(gram, groups.slices, groups.costs, count=40, tolerance=1e-11)
    assert path.reached.all()
    for mu, w in zip(path.mu, path.coef, strict=True):
        assert violation(gram.S, gram.q, groups.slices, groups.costs.tolist(), float(mu), w) <= 1e-5 * mu
