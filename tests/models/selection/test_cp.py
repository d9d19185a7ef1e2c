"""The criterion "cp": its scores are the literal ones, and groups of noise do not precede columns with an effect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from anytime import AnytimeClassifier, AnytimeRegressor
from anytime.families import family_of
from anytime.groups import FeatureGroups, load_groups
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection import Rule
from anytime.selection.least_squares import Sweep
from anytime.types import Float
from models.judge import check_every_step
from models.likelihood_problems import Case as LikelihoodCase, cases as likelihood_cases
from models.literal import Rows, columns_of
from models.literal_likelihood import LikelihoodRows
from models.properties import quick
from models.selection.test_sequencing_against_literal import Case, cases


def freedom(covariance: Float, own_penalty: float) -> float:
    """tr(C^-1 S), with C = S + own_penalty I."""
    penalised = covariance + own_penalty * np.eye(len(covariance))
    return float(np.trace(np.linalg.pinv(penalised, rcond=1e-10, hermitian=True) @ covariance))


@dataclass(frozen=True, eq=False, repr=False)
class ExpectedGains(Rows):
    """Rows on which forward regression sees the gain that it expects on new rows."""

    def gain(self, selected: Sequence[int], columns: Sequence[int]) -> float:
        """F(G + g) - F(G) - tr(C_{g|G}^-1 S_{g|G}) sigma^2/n, sigma^2 the variance of the residuals."""
        n, G, g = float(self.w.sum()), list(selected), list(columns)
        S = self.gram([*G, *g])
        inner = np.linalg.pinv(S[: len(G), : len(G)] + self.alpha * np.eye(len(G)), rcond=1e-10, hermitian=True)
        given = S[len(G) :, len(G) :] - S[len(G) :, : len(G)] @ inner @ S[: len(G), len(G) :]
        variance = float(np.sum(self.w * self.Y**2)) / n - 2 * self.explained_variance(G)
        return super().gain(G, g) - freedom(given, self.alpha) * max(variance, 0.0) / n


@pytest.mark.parametrize("doubling", [False, True])
@pytest.mark.parametrize("cost_blind", [False, True])
def test_every_step_is_the_literal_choice(cost_blind: bool, doubling: bool) -> None:
    @quick(max_examples=80)
    @given(cases(alphas=(1e-5, 1e-2, 1.0)))
    def check(case: Case) -> None:
        how: dict[str, Any] = {"cost_blind": cost_blind, "doubling": doubling}
        literal, learned = case.rows(ExpectedGains), case.learned("cp", **how)
        check_every_step(literal, case.groups, learned, method="fr", atol=1e-9 * case.Y.shape[1] / 2, **how)

    check()


@quick(max_examples=60)
@given(cases(alphas=(1e-5, 1e-2, 1.0)), st.integers(0, 3))
def test_every_score_is_the_literal_one(case: Case, steps: int) -> None:
    criterion, literal = Rule("cp").criterion, case.rows(ExpectedGains)
    sweep = Sweep(case.gram, case.groups.slices, case.alpha, blocks=True)
    selected = range(len(case.groups))[:steps]
    for group in selected:
        sweep.select(group)
    found = criterion.scores(sweep)
    for group in range(len(selected), len(case.groups)):
        own = columns_of(case.groups, [group])
        if own:
            expected = literal.gain(columns_of(case.groups, selected), own)
            assert found[group] == pytest.approx(expected, rel=1e-5, abs=1e-7)
            assert criterion.union_score(sweep, sweep.rows(group)) == pytest.approx(found[group])


@dataclass(frozen=True, eq=False, repr=False)
class ExpectedLikelihood(LikelihoodRows):
    """The same for a likelihood of one predictor, whose gain is that of its second-order model."""

    def gain(self, selected: Sequence[int], columns: Sequence[int]) -> float:
        """1/2 b' H_{g|S}^-1 b - tr(H_{g|S}^-1 (H_{g|S} - alpha I)) phi/n; phi is 1, or the mean deviance."""
        n = len(self.X) if self.weights is None else float(self.weights.sum())
        eta = self._eta(selected)
        H, end = self._hessian([*selected, *columns], eta), len(selected) + 1
        inner = np.linalg.pinv(H[:end, :end], rcond=1e-13, hermitian=True)
        given = H[end:, end:] - H[end:, :end] @ inner @ H[:end, end:] - self.alpha * np.eye(len(columns))
        phi = float(self.w @ family_of("gamma").deviances(eta, self.Y)) if self.family == "gamma" else 1.0
        return super().gain(selected, columns) - freedom(given, self.alpha) * phi / n


@pytest.mark.parametrize("family", ["binomial", "poisson", "gamma"])
def test_every_step_of_a_likelihood_is_the_literal_choice(family: Any) -> None:
    @quick(max_examples=24)
    @given(likelihood_cases((family,), alphas=(1e-3, 1e-2)), st.booleans())
    def check(case: LikelihoodCase, doubling: bool) -> None:
        fitted, literal = case.learned("cp", doubling=doubling), case.rows(ExpectedLikelihood)
        how: dict[str, Any] = {"method": "fr", "cost_blind": False, "doubling": doubling}
        check_every_step(literal, case.groups, fitted.sequence, atol=1e-8, **how)

    check()


NOISE_GROUPS = [["a"], ["b"], ["c"], *([f"n{g}_{j}" for j in range(20)] for g in range(3))]


def with_noise_groups(seed: int, kind: str) -> tuple[pd.DataFrame, Float, FeatureGroups]:
    """150 rows of three columns with an effect and three groups of 20 columns without."""
    rng = np.random.default_rng(seed)
    content = [{"name": f"g{g}", "features": names, "cost": 1.0} for g, names in enumerate(NOISE_GROUPS)]
    X = pd.DataFrame(rng.normal(size=(150, 63)), columns=[name for names in NOISE_GROUPS for name in names])
    eta = X[["a", "b", "c"]].to_numpy() @ np.full(3, 0.5)
    y = {
        "regression": lambda: 0.6 * eta + rng.normal(size=150),
        "classes": lambda: rng.random(150) < 1 / (1 + np.exp(-1.5 * eta)),
        "three": lambda: (np.outer(2 * eta, [-1, 0, 1]) + rng.gumbel(size=(150, 3))).argmax(axis=1),
    }[kind]()
    return X, y, load_groups({"groups": content})


@pytest.mark.parametrize(
    ("kind", "family"),
    [("regression", "gaussian"), ("classes", "gaussian"), ("classes", "binomial"), ("three", "multinomial")],
)
def test_large_groups_without_effect_do_not_precede_columns_with_one(kind: str, family: str) -> None:
    before = dict.fromkeys(("fr", "cp"), 0)
    for seed in range(10):
        X, y, groups = with_noise_groups(seed, kind)
        estimator = AnytimeRegressor if kind == "regression" else AnytimeClassifier
        for method in before:
            fitted = estimator(groups, method=method, alpha=1e-2, basis="linear", family=family).fit(X, y)
            before[method] += fitted.sequence_[0] in ("g3", "g4", "g5")
    assert before["fr"] >= 5
    assert before["cp"] == 0


def test_a_criterion_of_differences_has_lengths_and_may_be_negative() -> None:
    X, y, groups = with_noise_groups(0, "regression")
    gram = Gram.of(moments_of(X.to_numpy(), y))
    criterion, sweep = Rule("cp").criterion, Sweep(gram, groups.slices, 1e-2, blocks=True)
    for group in range(3):
        sweep.select(group)
    scores = criterion.scores(sweep)[3:]
    assert (scores < 0).any()
    assert criterion.lengths(scores).tolist() == pytest.approx([math.sqrt(max(2 * score, 0.0)) for score in scores])
    stopped = AnytimeRegressor(groups, method="cp", alpha=1e-2, epsilon=0.05).fit(X, y)
    assert sorted(stopped.sequence_) == ["g0", "g1", "g2"]
